/* How the tiles of a walk come into its stages: copies by one warp, which then hands the stage
 * over. */
#ifndef K3_KDA_WALK_LOAD_CUH
#define K3_KDA_WALK_LOAD_CUH

#include "kda_walk.cuh"

/** [64, 8 pieces PANELS] of rows that follow each other to a tile; n rows are there. */
template <int PANELS>
static __device__ __forceinline__ void
walk_fetch(unsigned char *tile, const k3_bf16 *from, int n)
{
	const int pieces = 8 * PANELS, step = 32 / pieces;
	int lane = (int)threadIdx.x & 31, piece = lane % pieces, row = lane / pieces;
	uint32_t to = shared_address(tile);

	from += lane * 8;
#pragma unroll 8
	for (int m = 0; m < WALK_ROWS / step; m++)
		copy_16(to + piece_at(WALK_ROWS, row + m * step, piece), from + m * 32 * 8,
			row + m * step < n);
}

enum { WALK_STEP = 4 }; /* rows of 64 columns that a warp copies at once */

/** Rows of 64 columns; row (lane / 8) + 4 m comes from row index[m], or from its own (NULL). */
static __device__ __forceinline__ void
walk_fetch_rows(unsigned char *tile, const struct walk_rows &from, const int *index)
{
	int lane = (int)threadIdx.x & 31, piece = lane % 8, row = lane / 8;

#pragma unroll
	for (int m = 0; m < WALK_ROWS / WALK_STEP; m++) {
		int r = row + WALK_STEP * m;
		const k3_bf16 *at = from.at + (size_t)(index ? index[m] : r) * from.ld + 8 * piece;
		uint32_t to = shared_address(tile) + piece_at(WALK_ROWS, r, piece);
		int cols = r < from.n ? min(from.cols - 8 * piece, 8) : 0;
		uint32_t x[4] = {};

		if (from.whole) {
			copy_16(to, cols > 0 ? at : from.at, cols > 0);
			continue;
		}
#pragma unroll
		for (int c = 0; c < 8; c++)
			if (c < cols)
				x[c / 2] |= (uint32_t)__bfloat16_as_ushort(at[c]) << c % 2 * 16;
		shared_store_16(to, make_uint4(x[0], x[1], x[2], x[3]));
	}
}

/** exp(G_last) of a chunk; zeros where its leaving state is not wanted. */
static __device__ __forceinline__ void
walk_fetch_last(float *to, const struct kda_task &x, const struct kda_entry &e)
{
	int i = 4 * ((int)threadIdx.x & 31);
	size_t slot = e.to >= 0 ? (size_t)e.to : x.work.slots;
	const float *last = x.work.last + (blockIdx.y * (x.work.slots + 1) + slot) * WALK_K;

	copy_16(shared_address(to + i), last + i, e.to != KDA_NONE);
}

/** Before and after a warp fills its stage for chunk i. */
static __device__ __forceinline__ void
walk_stage_begin(int i)
{
	if (i >= WALK_STAGES)
		group_sync(WALK_EMPTY + i % WALK_STAGES, WALK_PAIR);
}

static __device__ __forceinline__ void
walk_stage_end(int i)
{
	copy_wait<0>();
	walk_arrive(WALK_FULL + i % WALK_STAGES);
}

/** Asks for n rows of `width` to come nearer. */
static __device__ __forceinline__ void
walk_prefetch(const void *array, size_t row, int n, size_t width)
{
	const k3_bf16 *from = (const k3_bf16 *)array + row * width;

	asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from),
		     "r"((uint32_t)((size_t)n * width * sizeof(k3_bf16)))
		     : "memory");
}

#endif
