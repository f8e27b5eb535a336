/* Tiles of the kernel of expert_wgmma.cu, and what a block keeps in shared memory.
 *
 * The trap: experts without rows have no tile, and share the number of their first one with the next
 * expert.
 */
#ifndef K3_MOE_EXPERT_TILES_CUH
#define K3_MOE_EXPERT_TILES_CUH
#include <string.h>

#include "expert_task.h"
#include "boxes.cuh"

enum { TILE_ROWS = 128, GROUPS = 2, BLOCK_THREADS = 128 * (1 + GROUPS) };

/* Launched behind the product whose result it reads: its blocks start as those end, and wait. */
template <int PRODUCT>
static __host__ __device__ constexpr bool
follows(void)
{
	return PRODUCT == DOWN || PRODUCT == D_LATENT;
}

/* Columns of the product. */
template <int PRODUCT>
static __host__ __device__ constexpr int
product_columns(void)
{
	return PRODUCT == D_HIDDEN || PRODUCT > WEIGHTS ? 128 : 192;
}

/* Columns of the result: GATE_UP computes two for each. */
template <int PRODUCT>
static __host__ __device__ constexpr int
tile_columns(void)
{
	return PRODUCT == GATE_UP ? product_columns<PRODUCT>() / 2 : product_columns<PRODUCT>();
}

template <int PRODUCT>
static __host__ __device__ constexpr int
stages_of(void)
{
	return PRODUCT == D_HIDDEN ? 4 : product_columns<PRODUCT>() == 128 ? 6 : 5;
}

/* Two boxes of x; y follows. */
template <int PRODUCT>
static __host__ __device__ constexpr int
stage_bytes(void)
{
	return (TILE_ROWS + product_columns<PRODUCT>()) * BOX * (int)sizeof(k3_bf16);
}

/* y runs along the contraction in rows of 128 bytes */
template <int PRODUCT>
static __host__ __device__ constexpr bool
y_turned(void)
{
	return PRODUCT == D_HIDDEN || PRODUCT == D_LATENT || PRODUCT == ROUTED;
}

/* How a stage's y is loaded: boxes beside each other and the rows of each. */
template <int PRODUCT>
static __host__ __device__ constexpr int
y_boxes(void)
{
	return y_turned<PRODUCT>() ? product_columns<PRODUCT>() / BOX : PRODUCT == GATE_UP ? 2 : 1;
}

template <int PRODUCT>
static __host__ __device__ constexpr int
y_rows(void)
{
	return y_turned<PRODUCT>() ? BOX : product_columns<PRODUCT>() / y_boxes<PRODUCT>();
}

enum { X_BYTES = TILE_ROWS * BOX_ROW_BYTES };

/* Of D_HIDDEN: chunks of gate and up (expert_dgrad.cuh), boxes of both; those of a tile. */
enum { RING_CHUNKS = 5, CHUNK_BYTES = 2 * BOX_BYTES, TILE_CHUNKS = 4 };

template <int PRODUCT>
static __host__ __device__ constexpr int
chunks_bytes(void)
{
	return PRODUCT == D_HIDDEN ? RING_CHUNKS * CHUNK_BYTES : 0;
}

/* Barriers of the ring. */
template <int PRODUCT>
static __host__ __device__ constexpr int
ring_turn_bytes(void)
{
	return PRODUCT == D_HIDDEN ? 8 * (GROUPS + 3 * RING_CHUNKS) : 0;
}

struct expert_job {
	CUtensorMap x, y;
	CUtensorMap gu, dgu; /* of D_HIDDEN: boxes of chunks */
	struct expert_task task;
	int width, depth; /* columns of the result, contraction */
	int blocked;	  /* whole boxes of columns: a stage's boxes come by one copy */
};

struct tile {
	int expert;
	int row, end; /* first row, first row that is not there */
	int col;
};

/* Shared memory: stages, barriers, first tile of each expert and its offsets. */
struct layout {
	uint32_t stages, full, empty, turn;
	uint32_t ring, ring_turn; /* of D_HIDDEN: chunks; barriers */
	int *first, *offs;
};

template <int PRODUCT>
static __host__ __device__ constexpr size_t
shared_bytes(int experts)
{
	return 1024 + stages_of<PRODUCT>() * stage_bytes<PRODUCT>() + chunks_bytes<PRODUCT>() + 128 +
	       ring_turn_bytes<PRODUCT>() + 2 * sizeof(int) * ((size_t)experts + 1);
}

template <int PRODUCT>
static __device__ __forceinline__ struct layout
layout_of(unsigned char *raw, int experts)
{
	unsigned char *base = raw + (1024 - (shared_address(raw) & 1023)) % 1024;
	unsigned char *ring = base + stages_of<PRODUCT>() * stage_bytes<PRODUCT>(),
		      *bars = ring + chunks_bytes<PRODUCT>();
	struct layout l;

	l.stages = shared_address(base);
	l.full = shared_address(bars);
	l.empty = l.full + 8 * stages_of<PRODUCT>();
	l.turn = l.empty + 8 * stages_of<PRODUCT>();
	l.ring = shared_address(ring);
	l.ring_turn = shared_address(bars + 128);
	l.first = (int *)(bars + 128 + ring_turn_bytes<PRODUCT>());
	l.offs = l.first + experts + 1;
	return l;
}

/* By warp 0: first[i] is the number of units, tiles along the rows, of the experts before. */
static __device__ __forceinline__ void
list_units(const struct layout *l, int experts)
{
	int lane = threadIdx.x, carry = 0;

	for (int from = 0; from < experts; from += 32) {
		int i = from + lane, n = 0, upto;
		if (i < experts)
			n = (l->offs[i + 1] - l->offs[i] + TILE_ROWS - 1) / TILE_ROWS;
		upto = n;
#pragma unroll
		for (int step = 1; step < 32; step <<= 1) {
			int below = __shfl_up_sync(0xffffffffu, upto, step);
			upto += lane >= step ? below : 0;
		}
		if (i < experts)
			l->first[i] = carry + upto - n;
		carry += __shfl_sync(0xffffffffu, upto, 31);
	}
	if (lane == 0)
		l->first[experts] = carry;
}

/* Tiles of a unit. */
template <int PRODUCT>
static __device__ __forceinline__ int
unit_tiles(const struct expert_job *job)
{
	const int cols = tile_columns<PRODUCT>();

	return (job->width + cols - 1) / cols;
}

template <int PRODUCT>
static __device__ __forceinline__ int
count_tiles(const struct expert_job *job, const struct layout *l)
{
	return l->first[job->task.experts] * unit_tiles<PRODUCT>(job);
}

template <int PRODUCT>
static __device__ __forceinline__ struct tile
tile_at(const struct expert_job *job, const struct layout *l, int index)
{
	int each = unit_tiles<PRODUCT>(job), unit = index / each, left = index - unit * each;
	int low = 0, high = job->task.experts - 1;
	struct tile t;

	/* the last expert whose first unit is not behind: those before it with no rows have the same */
	while (low < high) {
		int middle = (low + high + 1) / 2;
		if (l->first[middle] <= unit)
			low = middle;
		else
			high = middle - 1;
	}
	t.expert = low;
	t.row = l->offs[low] + (unit - l->first[low]) * TILE_ROWS;
	t.end = l->offs[low + 1];
	t.col = left * tile_columns<PRODUCT>();
	return t;
}

/* Tiles of a block, 32 at a time: each lane finds one of them, as to find one takes long. */
struct walk {
	int first, stride, total;
	struct tile mine;
};

/* By all lanes of a warp: the tiles from number `first` on. */
template <int PRODUCT>
static __device__ __forceinline__ void
walk_find(struct walk *w, const struct expert_job *job, const struct layout *l, int first)
{
	int index = first + (int)(threadIdx.x & 31) * w->stride;

	w->first = first;
	w->mine = tile_at<PRODUCT>(job, l, min(index, w->total - 1));
}

/* The tile that a lane found, in all lanes. */
static __device__ __forceinline__ struct tile
walk_tile(const struct walk *w, int lane)
{
	const unsigned all = 0xffffffffu;
	struct tile t;

	t.expert = __shfl_sync(all, w->mine.expert, lane);
	t.row = __shfl_sync(all, w->mine.row, lane);
	t.end = __shfl_sync(all, w->mine.end, lane);
	t.col = __shfl_sync(all, w->mine.col, lane);
	return t;
}

#endif
