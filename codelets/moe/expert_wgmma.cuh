/* The kernel of expert_wgmma.cu: tiles, stages, the product of one tile. */
#ifndef K3_MOE_EXPERT_WGMMA_CUH
#define K3_MOE_EXPERT_WGMMA_CUH
#include <string.h>

#include "expert_task.h"
#include "wgmma.cuh"

enum { THREADS = 256, TILE = 128, STAGES = 3, STAGE_BYTES = 4 * BOX_BYTES };

struct expert_job {
	CUtensorMap x[2], y[2];
	struct expert_task task;
	int width, depth; /* columns of the result, contraction; not of WEIGHTS */
	int tiles[2];	  /* of WEIGHTS: tiles of dW13 and dW2 per expert */
};

template <int PRODUCT>
static __host__ __device__ constexpr int
tile_columns(void)
{
	return PRODUCT == GATE_UP ? TILE / 2 : TILE;
}

struct tile {
	int expert, side; /* side 1: dW2 */
	int row, end;	  /* first row, first row that is not the expert's (or the gradient's) */
	int col;
	int from, depth; /* contraction: first index, how many; steps of BOX */
};

/* Shared memory: stages, barriers, first tile of each expert and its offsets. */
struct layout {
	uint32_t stages, full, empty;
	int *first, *offs;
};

static __host__ __device__ constexpr size_t
shared_bytes(int experts)
{
	return 1024 + STAGES * STAGE_BYTES + 64 + 2 * sizeof(int) * ((size_t)experts + 1);
}

static __device__ __forceinline__ struct layout
layout_of(unsigned char *raw, int experts)
{
	unsigned char *base = raw + (1024 - (shared_address(raw) & 1023)) % 1024;
	unsigned char *bars = base + STAGES * STAGE_BYTES;
	struct layout l;

	l.stages = shared_address(base);
	l.full = shared_address(bars);
	l.empty = l.full + 8 * STAGES;
	l.first = (int *)(bars + 64);
	l.offs = l.first + experts + 1;
	return l;
}

/* By warp 0: first[e] is the number of row tiles before expert e. */
static __device__ void
list_tiles(const struct layout *l, const int32_t *offs, int experts)
{
	int lane = threadIdx.x, carry = 0;

	for (int from = 0; from <= experts; from += 32) {
		int e = from + lane;
		int begin = e <= experts ? offs[e] : 0;
		int n = e < experts ? (offs[e + 1] - begin + TILE - 1) / TILE : 0, upto = n;
#pragma unroll
		for (int step = 1; step < 32; step <<= 1) {
			int below = __shfl_up_sync(0xffffffffu, upto, step);
			upto += lane >= step ? below : 0;
		}
		if (e <= experts) {
			l->first[e] = carry + upto - n;
			l->offs[e] = begin;
		}
		carry += __shfl_sync(0xffffffffu, upto, 31);
	}
}

template <int PRODUCT>
static __device__ __forceinline__ int
count_tiles(const struct expert_job *job, const struct layout *l)
{
	const int cols = tile_columns<PRODUCT>();

	if (PRODUCT == WEIGHTS)
		return job->task.experts * (job->tiles[0] + job->tiles[1]);
	return l->first[job->task.experts] * ((job->width + cols - 1) / cols);
}

static __device__ __forceinline__ struct tile
weight_tile(const struct expert_job *job, const struct layout *l, int index)
{
	int each = job->tiles[0] + job->tiles[1], left = index % each, per_row;
	struct tile t;

	t.expert = index / each;
	t.side = left >= job->tiles[0];
	left -= t.side ? job->tiles[0] : 0;
	per_row = ((t.side ? job->task.f : job->task.r) + TILE - 1) / TILE;
	t.row = left / per_row * TILE;
	t.end = t.side ? job->task.r : 2 * job->task.f;
	t.col = left % per_row * TILE;
	t.from = l->offs[t.expert];
	t.depth = l->offs[t.expert + 1] - t.from;
	return t;
}

template <int PRODUCT>
static __device__ __forceinline__ struct tile
tile_at(const struct expert_job *job, const struct layout *l, int index)
{
	const int cols = tile_columns<PRODUCT>();
	int per_row, which, low = 0, high = job->task.experts - 1;
	struct tile t;

	if (PRODUCT == WEIGHTS)
		return weight_tile(job, l, index);
	per_row = (job->width + cols - 1) / cols;
	which = index / per_row;
	/* the last expert whose first tile is not behind: those before it with no rows have the same */
	while (low < high) {
		int middle = (low + high + 1) / 2;
		if (l->first[middle] <= which)
			low = middle;
		else
			high = middle - 1;
	}
	t.expert = low;
	t.side = 0;
	t.row = l->offs[low] + (which - l->first[low]) * TILE;
	t.end = l->offs[low + 1];
	t.col = (index - which * per_row) * cols;
	t.from = 0;
	t.depth = job->depth;
	return t;
}

/* What thread 0 loads next. */
struct loader {
	struct tile t;
	int index, total, done; /* tile, tiles, of its contraction */
	unsigned loads;
};

/* The next tile that has something to load. */
template <int PRODUCT>
static __device__ __forceinline__ void
loader_seek(struct loader *o, const struct expert_job *job, const struct layout *l)
{
	o->done = 0;
	for (; o->index < o->total; o->index += gridDim.x) {
		o->t = tile_at<PRODUCT>(job, l, o->index);
		if (o->t.depth > 0)
			return;
	}
}

/* A stage: two boxes of x, two of y. */
template <int PRODUCT>
static __device__ __forceinline__ void
load_boxes(uint32_t to, uint32_t bar, const struct expert_job *job, const struct tile *t, int k)
{
	const CUtensorMap *x = &job->x[t->side], *y = &job->y[t->side];
	uint32_t b = to + 2 * BOX_BYTES;

	if (PRODUCT == WEIGHTS) {
		box_load(to, x, bar, t->row, t->from + k, 0);
		box_load(to + BOX_BYTES, x, bar, t->row + BOX, t->from + k, 0);
		box_load(b, y, bar, t->col, t->from + k, 0);
		box_load(b + BOX_BYTES, y, bar, t->col + BOX, t->from + k, 0);
		return;
	}
	box_load(to, x, bar, k, t->row, 0);
	box_load(to + BOX_BYTES, x, bar, k, t->row + BOX, 0);
	if (PRODUCT == GATE_UP || PRODUCT == DOWN) {
		int other = PRODUCT == GATE_UP ? job->task.f : BOX;
		box_load(b, y, bar, k, t->col, t->expert);
		box_load(b + BOX_BYTES, y, bar, k, t->col + other, t->expert);
	} else {
		box_load(b, y, bar, t->col, k, t->expert);
		box_load(b + BOX_BYTES, y, bar, t->col + BOX, k, t->expert);
	}
}

template <int PRODUCT>
static __device__ __forceinline__ void
load_next(struct loader *o, const struct expert_job *job, const struct layout *l)
{
	unsigned stage = o->loads % STAGES, round = o->loads / STAGES;
	uint32_t bar = l->full + 8 * stage;

	if (o->index >= o->total)
		return;
	barrier_wait(l->empty + 8 * stage, (round & 1) ^ 1);
	barrier_expect(bar, STAGE_BYTES);
	load_boxes<PRODUCT>(l->stages + stage * STAGE_BYTES, bar, job, &o->t, o->done);
	o->loads++;
	o->done += BOX;
	if (o->done >= o->t.depth) {
		o->index += gridDim.x;
		loader_seek<PRODUCT>(o, job, l);
	}
}

/* Rows from `rows` on of all four boxes become zero. */
static __device__ __forceinline__ void
clear_tail(uint32_t stage, int rows)
{
	int words = (BOX - rows) * 8;

	for (int i = threadIdx.x; i < 4 * words; i += THREADS) {
		uint32_t at = stage + i / words * BOX_BYTES + rows * 128 + i % words * 16;
		asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0)
			     : "memory");
	}
	shared_publish();
	__syncthreads();
}

/* The stage is free for this warp; thread 0 loads into the one that all warps have left. */
template <int PRODUCT>
static __device__ __forceinline__ void
release(unsigned stage, struct loader *o, const struct expert_job *job, const struct layout *l)
{
	if ((threadIdx.x & 31) == 0)
		barrier_arrive(l->empty + 8 * stage);
	if (threadIdx.x == 0)
		load_next<PRODUCT>(o, job, l);
	__syncwarp();
}

/* d = the tile, rows of this warpgroup; *used counts stages. */
template <int PRODUCT>
static __device__ __forceinline__ void
multiply_tile(float (&d)[64], const struct tile *t, unsigned *used, struct loader *o,
	      const struct expert_job *job, const struct layout *l)
{
	const int a_turned = PRODUCT == WEIGHTS, b_turned = PRODUCT != GATE_UP && PRODUCT != DOWN;

	for (int k = 0; k < t->depth; k += BOX) {
		unsigned stage = *used % STAGES;
		uint32_t at = l->stages + stage * STAGE_BYTES;
		barrier_wait(l->full + 8 * stage, *used / STAGES & 1);
		if (PRODUCT == WEIGHTS && t->depth - k < BOX)
			clear_tail(at, t->depth - k);
		uint64_t a = operand(at + (threadIdx.x >> 7) * BOX_BYTES),
			 b = operand(at + 2 * BOX_BYTES);
		wgmma_begin();
#pragma unroll
		for (int i = 0; i < BOX / 16; i++)
			wgmma_128<a_turned, b_turned>(d, a + i * operand_step<a_turned>(),
						      b + i * operand_step<b_turned>(), k + i > 0);
		wgmma_commit();
		if (k > 0) {
			wgmma_wait<1>();
			release<PRODUCT>((*used - 1) % STAGES, o, job, l);
		}
		++*used;
	}
	wgmma_wait<0>();
	wgmma_pin(d);
	if (t->depth > 0)
		release<PRODUCT>((*used - 1) % STAGES, o, job, l);
}

#include "expert_finish.cuh"

template <int PRODUCT>
static __global__ void
__launch_bounds__(THREADS, 2) multiply(const __grid_constant__ struct expert_job job)
{
	extern __shared__ unsigned char raw[];
	struct layout l = layout_of(raw, job.task.experts);
	struct loader o = {};
	unsigned used = 0;
	int total;

	if (threadIdx.x < 32)
		list_tiles(&l, job.task.offs, job.task.experts);
	if (threadIdx.x == 0) {
		for (int i = 0; i < STAGES; i++) {
			barrier_init(l.full + 8 * i, 1);
			barrier_init(l.empty + 8 * i, THREADS / 32);
		}
		barrier_publish();
	}
	__syncthreads();
	total = count_tiles<PRODUCT>(&job, &l);
	if (threadIdx.x == 0) {
		o.index = (int)blockIdx.x;
		o.total = total;
		loader_seek<PRODUCT>(&o, &job, &l);
		for (int i = 0; i < STAGES; i++)
			load_next<PRODUCT>(&o, &job, &l);
	}
	__syncwarp();
	for (int i = (int)blockIdx.x; i < total; i += gridDim.x) {
		struct tile t = tile_at<PRODUCT>(&job, &l, i);
		float d[64];
#pragma unroll
		for (int q = 0; q < 64; q++)
			d[q] = 0;
		multiply_tile<PRODUCT>(d, &t, &used, &o, &job, &l);
		finish<PRODUCT>(&job.task, &t, d);
	}
}

#endif
