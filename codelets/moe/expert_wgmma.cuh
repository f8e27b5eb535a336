/* The kernel of expert_wgmma.cu: who loads, who multiplies. */
#ifndef K3_MOE_EXPERT_WGMMA_CUH
#define K3_MOE_EXPERT_WGMMA_CUH
#include "expert_dgrad.cuh"
#include "moe_finish.cuh"

/* `n` boxes beside each other from a column on, by one copy if they are whole. */
static __device__ __forceinline__ void
load_beside(uint32_t to, uint32_t bar, const struct expert_job *job, const CUtensorMap *map, int n,
	    int col, int row, int matrix)
{
	for (int i = 0; i < (job->blocked ? 1 : n); i++, col += BOX, to += BOX_BYTES)
		box_load(to, map, bar, job->blocked ? 0 : col, row, job->blocked ? col / BOX : 0,
			 matrix);
}

/* A stage: x and y. */
template <int PRODUCT>
static __device__ __forceinline__ void
load_boxes(uint32_t to, uint32_t bar, const struct expert_job *job, const struct tile *t, int k)
{
	const CUtensorMap *x = &job->x, *y = &job->y;

	phase_expect(bar, stage_bytes<PRODUCT>());
	box_load(to, x, bar, k, t->row, 0, 0);
	to += X_BYTES;
	if (y_turned<PRODUCT>())
		load_beside(to, bar, job, y, y_boxes<PRODUCT>(), t->col, k, t->expert);
	else
		box_load(to, y, bar, k, t->col, 0, t->expert);
}

/* By a warp, whose first lane keeps the stages loading, over the end of a tile into the next one. */
template <int PRODUCT>
static __device__ __forceinline__ void
load_tiles(const struct expert_job *job, const struct layout *l, int total)
{
	const int stages = stages_of<PRODUCT>(), steps = (job->depth + BOX - 1) / BOX;
	struct walk w = {0, (int)gridDim.x, total};
	int stage = 0, round = 0;

	for (int i = (int)blockIdx.x, n = 0; i < total; i += w.stride, n++) {
		if (n % 32 == 0)
			walk_find<PRODUCT>(&w, job, l, i);
		struct tile t = walk_tile(&w, n % 32);
		for (int step = 0; step < steps; step++) {
			if ((threadIdx.x & 31) == 0) {
				phase_wait_guarded(l->empty + 8 * stage, round ^ 1);
				load_boxes<PRODUCT>(l->stages + stage * stage_bytes<PRODUCT>(),
						    l->full + 8 * stage, job, &t, step * BOX);
			}
			if (++stage == stages) {
				stage = 0;
				round ^= 1;
			}
		}
		__syncwarp();
	}
}

/* The stage used as number `used` is free for this warp. */
template <int PRODUCT>
static __device__ __forceinline__ void
release(const struct layout *l, unsigned used)
{
	if ((threadIdx.x & 31) == 0)
		phase_arrive(l->empty + 8 * (used % stages_of<PRODUCT>()));
}

/* Address of the stage that is used as number `used`, when it is there. */
template <int PRODUCT>
static __device__ __forceinline__ uint32_t
await_stage(const struct layout *l, unsigned used)
{
	const unsigned stages = stages_of<PRODUCT>(), stage = used % stages;

	phase_wait_guarded(l->full + 8 * stage, used / stages & 1);
	return l->stages + stage * stage_bytes<PRODUCT>();
}

/* d += the tile; where rows are not there, of what the stage held before. */
template <int PRODUCT, int N>
static __device__ __forceinline__ void
multiply_tile(float (&d)[2][N], const struct expert_job *job, unsigned used, const struct layout *l)
{
	const int b_turned = y_turned<PRODUCT>();

	for (int k = 0; k < job->depth; k += BOX, used++) {
		uint32_t at = await_stage<PRODUCT>(l, used);
		uint64_t a = box_operand(at), b = box_operand(at + X_BYTES);
		wgmma_fence();
#pragma unroll
		for (int i = 0; i < BOX / 16; i++)
#pragma unroll
			for (int m = 0; m < 2; m++)
				wgmma_boxes<0, b_turned>(
					d[m], a + i * operand_step<0>() + m * (BOX_BYTES >> 4),
					b + i * operand_step<b_turned>());
		wgmma_commit();
		if (k > 0) {
			wgmma_wait<1>();
			release<PRODUCT>(l, used - 1);
		}
	}
}

template <int PRODUCT, int N>
static __device__ __forceinline__ void
finish(const float (&d)[2][N], const struct expert_task *task, const struct tile *t)
{
#pragma unroll
	for (int m = 0; m < 2; m++) {
		if constexpr (PRODUCT == GATE_UP)
			finish_gate_up(task, t, d[m], m);
		else if constexpr (PRODUCT == SPREAD)
			finish_spread(task, t, d[m], m);
		else if constexpr (PRODUCT == JOIN)
			finish_join(task, t, d[m], m);
		else if constexpr (PRODUCT == ROUTED)
			finish_routed(task, t, d[m], m);
		else
			finish_rows(task, t, d[m], m, task->r);
	}
	if (PRODUCT == D_LATENT)
		sum_parts(task, t);
}

/* A tile by one warpgroup; `round` counts its tiles.  The groups multiply in turn. */
template <int PRODUCT>
static __device__ __forceinline__ void
compute_tile(const struct expert_job *job, const struct layout *l, const struct tile *t,
	     unsigned used, int group, unsigned round)
{
	const int N = product_columns<PRODUCT>() / 2;
	float d[2][N];
	unsigned last = used + (unsigned)(job->depth + BOX - 1) / BOX;
	float weight[2][2] = {};

	if (PRODUCT == D_HIDDEN)
		load_weights(weight, &job->task, t);
#pragma unroll
	for (int i = 0; i < N; i++)
		d[0][i] = d[1][i] = 0;
	phase_wait_guarded(l->turn + 8 * group, (round & 1) ^ (group == 0));
	multiply_tile<PRODUCT>(d, job, used, l);
	if ((threadIdx.x & 31) == 0)
		phase_arrive(l->turn + 8 * (group ^ 1));
	wgmma_wait<0>();
	settled<2 * N>(d[0]);
	settled<2 * N>(d[1]);
	if (job->depth > 0)
		release<PRODUCT>(l, last - 1);
	if constexpr (PRODUCT == D_HIDDEN)
		finish_hidden(&job->task, l, t, d, weight, GROUPS * round + group);
	else
		finish<PRODUCT>(d, &job->task, t);
}

template <int PRODUCT>
static __device__ __forceinline__ void
compute_tiles(const struct expert_job *job, const struct layout *l, int total, int group)
{
	struct walk w = {0, (int)gridDim.x, total};
	unsigned used = 0;

	for (int i = (int)blockIdx.x, n = 0; i < total; i += w.stride, n++) {
		if (n % 32 == 0)
			walk_find<PRODUCT>(&w, job, l, i);
		struct tile t = walk_tile(&w, n % 32);
		if (n % GROUPS == group)
			compute_tile<PRODUCT>(job, l, &t, used, group, (unsigned)n / GROUPS);
		used += (unsigned)(job->depth + BOX - 1) / BOX;
	}
}

template <int PRODUCT>
static __device__ __forceinline__ void
prepare(const struct expert_job *job, const struct layout *l)
{
	for (int e = threadIdx.x; e <= job->task.experts; e += BLOCK_THREADS)
		l->offs[e] = job->task.offs ? job->task.offs[e] : e * (int)job->task.tk;
	if (threadIdx.x == 0) {
		for (int i = 0; i < stages_of<PRODUCT>(); i++) {
			phase_init(l->full + 8 * i, 1);
			phase_init(l->empty + 8 * i, 4);
		}
		for (int i = 0; i < GROUPS; i++)
			phase_init(l->turn + 8 * i, 4);
		if (PRODUCT == D_HIDDEN)
			ring_init(l);
		phase_publish();
	}
	__syncthreads();
	if (threadIdx.x < 32)
		list_units(l, job->task.experts);
	__syncthreads();
}

template <int PRODUCT>
static __global__ void
__launch_bounds__(BLOCK_THREADS, 1) multiply(const __grid_constant__ struct expert_job job)
{
	extern __shared__ unsigned char raw[];
	struct layout l = layout_of<PRODUCT>(raw, job.task.experts);
	const int LOADER_REGISTERS = PRODUCT == D_HIDDEN ? 56 : 40;
	int total;

	if (PRODUCT == GATE_UP || PRODUCT == D_HIDDEN)
		let_successor_start();
	prepare<PRODUCT>(&job, &l);
	if (follows<PRODUCT>())
		wait_for_predecessor();
	total = count_tiles<PRODUCT>(&job, &l);
	if (threadIdx.x < 128) {
		registers_less<LOADER_REGISTERS>();
		if (threadIdx.x < 32)
			load_tiles<PRODUCT>(&job, &l, total);
		else if (PRODUCT == D_HIDDEN && threadIdx.x < 64)
			load_chunks(&job, &l, total);
		else if (PRODUCT == D_HIDDEN && threadIdx.x < 96)
			store_chunks(&job, &l, total);
	} else {
		registers_more<(3 * 168 - LOADER_REGISTERS) / 2>();
		compute_tiles<PRODUCT>(&job, &l, total, (int)(threadIdx.x >> 7) - 1);
	}
}

#endif
