/* Gradients of the experts' weights on Hopper's tensor cores, bf16 operands and float sums.
 *
 * One block a multiprocessor takes tiles of 256 x 192.  A thread keeps slabs loading, over the end of
 * a tile into the next one; two warpgroups multiply, each half of a tile, and hand their sums to
 * the copy engine; three warps compute the weighted hidden rows that dW2 is a product with.
 *
 * The trap: a tile's last slab may hold rows of the next expert, or of other groups, which may be
 * anything, NaN too: behind the expert's rows it is cleared, in both operands.
 */
#include "expert_weights_finish.cuh"
#include "expert_weights_hidden.cuh"

static __device__ __forceinline__ void
load_slab(uint32_t to, uint32_t bar, const struct grad_job *job, const struct grad_tile *t, int row)
{
	const CUtensorMap *x = &job->x[t->side], *y = &job->y[t->side];

	barrier_expect(bar, GRAD_STAGE_BYTES);
	for (int i = 0; i < (job->blocked ? 1 : GRAD_X_BOXES); i++)
		box_load(to + i * SLAB_BYTES, x, bar, job->blocked ? 0 : t->row + i * BOX, row,
			 job->blocked ? t->row / BOX : 0, 0);
	to += GRAD_X_BOXES * SLAB_BYTES;
	for (int i = 0; i < (job->blocked ? 1 : GRAD_Y_BOXES); i++)
		box_load(to + i * SLAB_BYTES, y, bar, job->blocked ? 0 : t->col + i * BOX, row,
			 job->blocked ? t->col / BOX : 0, 0);
}

/* Hands a tile to the warpgroups. */
static __device__ __forceinline__ void
hand_over(unsigned char *base, const struct grad_tile *t, unsigned number)
{
	unsigned slot = number % TILES_AHEAD;

	barrier_wait(shared_address(base) + GRAD_TILE_EMPTY_AT + 8 * slot,
		     (number / TILES_AHEAD & 1) ^ 1);
	((struct grad_tile *)(base + GRAD_TILES_AT))[slot] = *t;
	barrier_arrive(shared_address(base) + GRAD_TILE_FULL_AT + 8 * slot);
}

/* By one thread: the first tile is the block's own, others are taken as they come. */
static __device__ __forceinline__ void
bring_tiles(const struct grad_job *job, unsigned char *base)
{
	const struct grad_experts x = grad_experts_of(base, job->task.experts);
	const uint32_t at = shared_address(base);
	int total = x.first[job->task.experts] * (job->tiles[0] + job->tiles[1]);
	int index = (int)blockIdx.x, stage = 0, round = 0;
	unsigned n = 0;

	for (; index < total; n++) {
		struct grad_tile t = grad_tile_at(job, &x, index);
		index = (int)gridDim.x + atomicAdd(&job->counts[NEXT_TILE], 1);
		hand_over(base, &t, n);
		if (t.side)
			await_hidden(job, &x, t.place);
		for (int k = 0; k < t.depth; k += SLAB) {
			barrier_wait(at + GRAD_EMPTY_AT + 8 * stage, round ^ 1);
			load_slab(at + stage * GRAD_STAGE_BYTES, at + GRAD_FULL_AT + 8 * stage, job,
				  &t, t.from + k);
			if (++stage == GRAD_STAGES) {
				stage = 0;
				round ^= 1;
			}
		}
	}
	struct grad_tile end = {};
	end.depth = -1;
	hand_over(base, &end, n);
}

/* As box_operand, of boxes of SLAB rows. */
static __device__ __forceinline__ uint64_t
slab_operand(uint32_t address)
{
	return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(SLAB_BYTES >> 4) << 16 |
	       (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

static __device__ __forceinline__ void
both_groups_sync(void)
{
	asm volatile("bar.sync %0, %1;" ::"n"(GROUPS + 1), "n"(GROUPS * 128) : "memory");
}

/* By both warpgroups: rows from `rows` on of all boxes become zero. */
static __device__ __forceinline__ void
clear_slab(uint32_t stage, int rows)
{
	const int boxes = GRAD_STAGE_BYTES / SLAB_BYTES;
	int words = (SLAB - rows) * 8;

	for (int i = threadIdx.x - 128; i < boxes * words; i += GROUPS * 128)
		shared_store_16(stage + i / words * SLAB_BYTES + rows * BOX_ROW_BYTES +
					i % words * 16,
				make_uint4(0, 0, 0, 0));
	shared_publish();
	both_groups_sync();
}

struct place {
	int stage;
	uint32_t round;
};

static __device__ __forceinline__ void
release_slab(uint32_t base, int stage)
{
	if ((threadIdx.x & 31) == 0)
		barrier_arrive(base + GRAD_EMPTY_AT + 8 * stage);
}

/* d = the tile's sums, of this warpgroup's half of the rows. */
template <int N>
static __device__ __forceinline__ void
multiply_slabs(float (&d)[2][N], int depth, uint32_t base, struct place *p, int group)
{
	int before = 0;

#pragma unroll
	for (int i = 0; i < N; i++)
		d[0][i] = d[1][i] = 0;
	for (int k = 0; k < depth; k += SLAB) {
		uint32_t at = base + p->stage * GRAD_STAGE_BYTES;
		phase_wait(base + GRAD_FULL_AT + 8 * p->stage, p->round);
		if (depth - k < SLAB)
			clear_slab(at, depth - k);
		uint64_t a = slab_operand(at + group * (GROUP_ROWS / BOX) * SLAB_BYTES),
			 b = slab_operand(at + GRAD_X_BOXES * SLAB_BYTES);
		wgmma_fence();
#pragma unroll
		for (int i = 0; i < SLAB / 16; i++)
#pragma unroll
			for (int m = 0; m < 2; m++)
				wgmma_boxes<1, 1>(d[m],
						  a + i * operand_step<1>() + m * (SLAB_BYTES >> 4),
						  b + i * operand_step<1>());
		wgmma_commit();
		if (k > 0) {
			wgmma_wait<1>();
			release_slab(base, before);
		}
		before = p->stage;
		if (++p->stage == GRAD_STAGES) {
			p->stage = 0;
			p->round ^= 1;
		}
	}
	wgmma_wait<0>();
	wgmma_pin(d[0]);
	wgmma_pin(d[1]);
	if (depth > 0)
		release_slab(base, before);
}

static __device__ __forceinline__ const struct grad_tile *
tile_of(unsigned char *base, unsigned number)
{
	return (struct grad_tile *)(base + GRAD_TILES_AT) + number % TILES_AHEAD;
}

/* The depth of the tile of that number, when the loading thread has handed it over. */
static __device__ __forceinline__ int
take_tile(unsigned char *base, unsigned number)
{
	phase_wait(shared_address(base) + GRAD_TILE_FULL_AT + 8 * (number % TILES_AHEAD),
		     number / TILES_AHEAD & 1);
	return __shfl_sync(0xffffffffu, tile_of(base, number)->depth, 0);
}

static __device__ __forceinline__ void
leave_tile(unsigned char *base, unsigned number)
{
	__syncwarp();
	if ((threadIdx.x & 31) == 0)
		barrier_arrive(shared_address(base) + GRAD_TILE_EMPTY_AT +
			       8 * (number % TILES_AHEAD));
}

/* A tile stays where the loading thread put it until it is done. */
static __device__ __forceinline__ void
sum_tiles(const struct grad_job *job, unsigned char *base, int group)
{
	const uint32_t at = shared_address(base);
	struct sender s = {at + GRAD_PIECES_AT + group * PIECE_BUFFERS * PIECE_BYTES,
			   at + GRAD_OLD_AT + group * PIECE_BUFFERS * 8, 0, group};
	struct place p = {0, 0};
	unsigned n = 0;

	for (int depth = take_tile(base, n); depth >= 0; depth = take_tile(base, ++n)) {
		const struct grad_tile *t = tile_of(base, n);
		if (depth > 0 || !job->task.accumulate[t->side]) {
			float d[2][GRAD_COLS / 2];
#ifndef ADD_REDUCE
			if (job->task.accumulate[t->side] && (threadIdx.x & 127) == 0) {
				if (t->side)
					expect_side<1>(&s, job, t);
				else
					expect_side<0>(&s, job, t);
			}
#endif
			multiply_slabs(d, depth, at, &p, group);
			finish_grad(d, &s, job, t, base);
		}
		leave_tile(base, n);
	}
	if ((threadIdx.x & 127) == 0)
		asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

static __device__ __forceinline__ void
prepare_grad(const struct grad_job *job, unsigned char *base)
{
	const struct grad_experts x = grad_experts_of(base, job->task.experts);
	const uint32_t at = shared_address(base);

	for (int e = threadIdx.x; e <= job->task.experts; e += BLOCK_THREADS)
		x.offs[e] = job->task.offs[e];
	if (threadIdx.x == 0) {
		for (int i = 0; i < GRAD_STAGES; i++) {
			barrier_init(at + GRAD_FULL_AT + 8 * i, 1);
			barrier_init(at + GRAD_EMPTY_AT + 8 * i, 4 * GROUPS);
		}
		for (int i = 0; i < TILES_AHEAD; i++) {
			barrier_init(at + GRAD_TILE_FULL_AT + 8 * i, 1);
			barrier_init(at + GRAD_TILE_EMPTY_AT + 8 * i, 4 * GROUPS);
		}
		for (int i = 0; i < GROUPS * PIECE_BUFFERS; i++)
			barrier_init(at + GRAD_OLD_AT + 8 * i, 1);
		barrier_publish();
	}
	__syncthreads();
	order_parts(&x, &job->task);
	if (threadIdx.x < 32)
		list_parts(&x, &job->task);
	__syncthreads();
}

static __global__ void
__launch_bounds__(BLOCK_THREADS, 1) sum_weights(const __grid_constant__ struct grad_job job)
{
	unsigned char *base = grad_base();

	prepare_grad(&job, base);
	if (threadIdx.x < 128) {
		registers_less<56>();
		if (threadIdx.x >= 32) {
			const struct grad_experts x = grad_experts_of(base, job.task.experts);
			weigh_rows(&job, &x, shared_address(base) + GRAD_RUNS_AT);
		} else if (threadIdx.x == 0) {
			bring_tiles(&job, base);
		}
	} else {
		registers_more<224>();
		sum_tiles(&job, base, (int)(threadIdx.x >> 7) - 1);
	}
}

/* Tiles of one part. */
static void
count_grad_tiles(int tiles[2], size_t r, size_t f)
{
	for (int side = 0; side < 2; side++)
		tiles[side] = (int)(blocks_for(r, GRAD_ROWS) *
				    blocks_for(side ? f : 2 * f, GRAD_COLS));
}

struct expert_parts
k3i_expert_weights_parts(size_t tk, size_t r, size_t f, size_t experts)
{
	const size_t most_bytes = (size_t)128 << 20;
	struct expert_parts p = {GRAD_PART_ROWS, 0, 0, 0};
	int tiles[2];
	size_t each;

	count_grad_tiles(tiles, r, f);
	each = (size_t)(tiles[0] + tiles[1]) * GROUPS;
	while (p.rows < tk &&
	       (2 * tk / p.rows + 1) * each * GROUP_FLOATS * sizeof(float) > most_bytes)
		p.rows *= 2;
	if (p.rows < tk)
		p.tiles = (2 * tk / p.rows + 1) * each;
	p.floats = p.tiles * GROUP_FLOATS;
	p.counts = p.tiles + CLAIMS_DONE + experts;
	return p;
}

/* Gradients [experts, rows, cols], as pieces leave for them. */
static void
describe_gradient(CUtensorMap *map, void *p, size_t cols, size_t rows, size_t experts,
		  int piece_rows)
{
	const cuuint64_t dim[3] = {cols, rows, experts},
			 stride[2] = {cols * sizeof(float), rows * cols * sizeof(float)};
	const cuuint32_t box[3] = {PIECE_COLS, (cuuint32_t)piece_rows, 1}, step[3] = {1, 1, 1};

	K3_CUDA_CHECK(map_encoder()(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, p, dim, stride, box,
				    step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
				    CU_TENSOR_MAP_L2_PROMOTION_NONE,
				    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

void
k3i_expert_weights(const struct expert_task *task, const struct k3_cuda *cuda)
{
	struct grad_job job;
	size_t tk = task->tk, r = (size_t)task->r, f = (size_t)task->f,
	       e = (size_t)task->experts, bytes = grad_shared_bytes(task->experts), most;
	struct expert_parts parts = k3i_expert_weights_parts(tk, r, f, e);
	cudaStream_t stream = (cudaStream_t)cuda->stream;

	memset(&job, 0, sizeof(job));
	job.task = *task;
	job.blocked = task->r % BOX == 0 && task->f % BOX == 0;
	job.counts = task->arrived + parts.tiles;
	count_grad_tiles(job.tiles, r, f);
	describe_beside(&job.x[0], task->y[0], r, tk, 1, SLAB, GRAD_X_BOXES, job.blocked);
	describe_beside(&job.y[0], task->x[0], 2 * f, tk, 1, SLAB, GRAD_Y_BOXES, job.blocked);
	describe_beside(&job.x[1], task->x[1], r, tk, 1, SLAB, GRAD_X_BOXES, job.blocked);
	describe_beside(&job.y[1], task->y[1], f, tk, 1, SLAB, GRAD_Y_BOXES, job.blocked);
	describe_gradient(&job.out[0], task->out[0], r, 2 * f, e, PIECE_COLS);
	describe_gradient(&job.out[1], task->out[1], f, r, e, BOX);
	most = (tk / (size_t)task->part_rows + e) * (size_t)(job.tiles[0] + job.tiles[1]);
	K3_CUDA_CHECK(cudaMemsetAsync(task->arrived, 0, parts.counts * sizeof(int), stream));
	K3_CUDA_CHECK(cudaFuncSetAttribute(
		sum_weights, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
	sum_weights<<<most > cuda->processors ? cuda->processors : (unsigned)most, BLOCK_THREADS,
		      bytes, stream>>>(job);
	K3_CUDA_LAUNCHED("sum_weights");
}
