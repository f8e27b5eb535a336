/* Tiles of the kernel of expert_wgmma.cu, and what a block keeps in shared memory.  The trap: experts
 * without rows have no tile, and share the number of their first one with the next expert. */
#ifndef K3_MOE_EXPERT_TILES_CUH
#define K3_MOE_EXPERT_TILES_CUH
#include <string.h>

#include "expert_task.h"
#include "wgmma.cuh"

/* Rows of a tile: a warpgroup for each 64.  Columns: 128. */
template <int PRODUCT>
static __host__ __device__ constexpr int
tile_rows(void)
{
	return PRODUCT == D_HIDDEN ? 128 : 256;
}

template <int PRODUCT>
static __host__ __device__ constexpr int
block_threads(void)
{
	return 2 * tile_rows<PRODUCT>();
}

template <int PRODUCT>
static __host__ __device__ constexpr int
stages_of(void)
{
	return PRODUCT == D_HIDDEN ? 3 : 4;
}

/* Boxes of x in a stage; two of y follow. */
template <int PRODUCT>
static __host__ __device__ constexpr int
x_boxes(void)
{
	return tile_rows<PRODUCT>() / BOX;
}

template <int PRODUCT>
static __host__ __device__ constexpr int
stage_bytes(void)
{
	return (x_boxes<PRODUCT>() + 2) * BOX_BYTES;
}

enum { TILE = 128 };

struct expert_job {
	CUtensorMap x[2], y[2]; /* of D_HIDDEN x[1] is gu */
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
	int from, depth; /* contraction: first index, how many */
	int steps;	 /* stages to load: BOX of the contraction each; of D_HIDDEN also g and u */
};

/* Shared memory: stages, barriers, first tile of each expert and its offsets. */
struct layout {
	uint32_t stages, full, empty;
	int *first, *offs;
};

template <int PRODUCT>
static __host__ __device__ constexpr size_t
shared_bytes(int experts)
{
	return 1024 + stages_of<PRODUCT>() * stage_bytes<PRODUCT>() + 64 +
	       2 * sizeof(int) * ((size_t)experts + 1);
}

template <int PRODUCT>
static __device__ __forceinline__ struct layout
layout_of(unsigned char *raw, int experts)
{
	unsigned char *base = raw + (1024 - (shared_address(raw) & 1023)) % 1024;
	unsigned char *bars = base + stages_of<PRODUCT>() * stage_bytes<PRODUCT>();
	struct layout l;

	l.stages = shared_address(base);
	l.full = shared_address(bars);
	l.empty = l.full + 8 * stages_of<PRODUCT>();
	l.first = (int *)(bars + 64);
	l.offs = l.first + experts + 1;
	return l;
}

/* By warp 0: first[e] is the number of tiles of `rows` rows before expert e. */
static __device__ void
list_tiles(const struct layout *l, const int32_t *offs, int experts, int rows)
{
	int lane = threadIdx.x, carry = 0;

	for (int from = 0; from <= experts; from += 32) {
		int e = from + lane;
		int begin = e <= experts ? offs[e] : 0;
		int n = e < experts ? (offs[e + 1] - begin + rows - 1) / rows : 0, upto = n;
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
	t.row = left / per_row * tile_rows<WEIGHTS>();
	t.end = t.side ? job->task.r : 2 * job->task.f;
	t.col = left % per_row * TILE;
	t.from = l->offs[t.expert];
	t.depth = l->offs[t.expert + 1] - t.from;
	t.steps = (t.depth + BOX - 1) / BOX;
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
	t.row = l->offs[low] + (which - l->first[low]) * tile_rows<PRODUCT>();
	t.end = l->offs[low + 1];
	t.col = (index - which * per_row) * cols;
	t.from = 0;
	t.depth = job->depth;
	t.steps = (t.depth + BOX - 1) / BOX + (PRODUCT == D_HIDDEN ? 2 : 0);
	return t;
}

#endif
