/* The kernel of expert_weights.cu: who loads, who multiplies.
 *
 * The traps: a tile's last slab may hold rows of the next expert, or of other groups, which may be
 * anything, NaN too: behind the expert's rows it is cleared, in both operands.  Warpgroups wait by
 * phase_wait: a wait that may end the program, in their loop over tiles, takes the compiler's
 * registers for the sums.
 *
 * To racecheck of compute-sanitizer a phase of an mbarrier is no order between plain stores and
 * loads: it reports the tile that hand_over leaves and take_tile reads, as it does of any such pair.
 */
#ifndef K3_MOE_EXPERT_WEIGHTS_MULTIPLY_CUH
#define K3_MOE_EXPERT_WEIGHTS_MULTIPLY_CUH
#include "expert_weights_finish.cuh"

static __device__ __forceinline__ void
load_slab(uint32_t to, uint32_t bar, const struct grad_job *job, const struct grad_tile *t, int row)
{
	const CUtensorMap *x = &job->x[t->side], *y = &job->y[t->side];

	phase_expect(bar, GRAD_STAGE_BYTES);
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

	phase_wait_guarded(shared_address(base) + GRAD_TILE_EMPTY_AT + 8 * slot,
			   (number / TILES_AHEAD & 1) ^ 1);
	((struct grad_tile *)(base + GRAD_TILES_AT))[slot] = *t;
	phase_arrive(shared_address(base) + GRAD_TILE_FULL_AT + 8 * slot);
}

/* By one thread: the first tile is the block's own, others are taken as they come. */
static __device__ __forceinline__ void
bring_tiles(const struct grad_job *job, unsigned char *base)
{
	const struct grad_experts x = grad_experts_of(base, job->task.experts);
	const uint32_t at = shared_address(base);
	int total = x.first[job->task.experts] * (job->tiles[0] + job->tiles[1]);
	int index = (int)blockIdx.x, stage = 0, round = 0;
	bool hidden = false;
	unsigned n = 0;

	for (; index < total; n++) {
		struct grad_tile t = grad_tile_at(job, &x, index);
		index = (int)gridDim.x + atomicAdd(&job->counts[NEXT_TILE], 1);
		hand_over(base, &t, n);
		if (t.side && !hidden) {
			/* until the kernel before has ended */
			wait_for_predecessor();
			hidden = true;
		}
		for (int k = 0; k < t.depth; k += SLAB) {
			phase_wait_guarded(at + GRAD_EMPTY_AT + 8 * stage, round ^ 1);
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
	shared_fence();
	group_sync(GROUPS + 1, GROUPS * GROUP);
}

struct place {
	int stage;
	uint32_t round;
};

static __device__ __forceinline__ void
release_slab(uint32_t base, int stage)
{
	if ((threadIdx.x & 31) == 0)
		phase_arrive(base + GRAD_EMPTY_AT + 8 * stage);
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
	settled<2 * N>(d[0]);
	settled<2 * N>(d[1]);
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
		phase_arrive(shared_address(base) + GRAD_TILE_EMPTY_AT +
			     8 * (number % TILES_AHEAD));
}

/* A tile stays where the loading thread put it until it is done. */
static __device__ __forceinline__ void
sum_tiles(const struct grad_job *job, unsigned char *base, int group)
{
	const uint32_t at = shared_address(base);
	const struct sender s = {at + GRAD_PIECES_AT + group * PIECE_BUFFERS * PIECE_BYTES, group};
	struct place p = {0, 0};
	unsigned n = 0;

	for (int depth = take_tile(base, n); depth >= 0; depth = take_tile(base, ++n)) {
		const struct grad_tile *t = tile_of(base, n);
		if (depth > 0 || !job->task.accumulate[t->side]) {
			float d[2][GRAD_COLS / 2];
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
			phase_init(at + GRAD_FULL_AT + 8 * i, 1);
			phase_init(at + GRAD_EMPTY_AT + 8 * i, 4 * GROUPS);
		}
		for (int i = 0; i < TILES_AHEAD; i++) {
			phase_init(at + GRAD_TILE_FULL_AT + 8 * i, 1);
			phase_init(at + GRAD_TILE_EMPTY_AT + 8 * i, 4 * GROUPS);
		}
		phase_publish();
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
		registers_less<40>();
		if (threadIdx.x == 0)
			bring_tiles(&job, base);
	} else {
		registers_more<232>();
		sum_tiles(&job, base, (int)(threadIdx.x >> 7) - 1);
	}
}

#endif
