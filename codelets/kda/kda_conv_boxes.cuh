/* The rows of a warp's walk over its strip, brought by the copy engine: boxes of the inputs and of the
 * gradients, two boxes ahead.  Where the rows of a document have holes between
 * them a box comes row by row.  The trap: a stage is asked for again only after the whole warp has
 * read it.  Boxes of 2 KiB: the copy engine falls behind with smaller ones.
 */
#ifndef K3_KDA_CONV_BOXES_CUH
#define K3_KDA_CONV_BOXES_CUH
#include "../cuda/tensor_map.cuh"
#include "kda_conv_bwd.cuh"

/* Channels of a lane and of a warp. */
enum { WALK_N = 4, WALK_WIDTH = 32 * WALK_N };

template <typename T> struct walk_stage {
	static const int rows = 2048 / (WALK_WIDTH * sizeof(T));
	T u[rows][WALK_WIDTH], dy[rows][WALK_WIDTH];
};

/* Boxes under way to a warp. */
template <typename T> struct __align__(128) walk_ring
{
	static const int stages = 2;
	struct walk_stage<T> stage[stages];
};

/* Maps of the inputs and of the gradients. */
struct walk_maps {
	CUtensorMap u, dy;
};

/* Where a warp's rows come from; `at` and `parity` are those of the next box. */
template <typename T> struct walk_source {
	const struct walk_maps *maps;
	const T *u, *dy;			    /* the warp's channels in row 0 */
	const float *r;				    /* factor of the lane's head in row 0 */
	uint32_t u_pitch, dy_pitch, r_pitch, bytes; /* bytes of a row of the warp */
	int u_col, dy_col, lanes;		    /* lanes of a head */
	bool normed;				    /* q or k */
	const struct walk_stage<T> *ring;
	uint32_t barriers, at, parity;
};

/* A document's positions lo .. hi-1, of which those before `last` are the strip's own. */
struct walk_span {
	struct conv_rows rows;
	int lo, hi, last;
};

/* By one lane: rows of a box from position q on to a stage; behind the document's end come any rows. */
template <typename T>
static __device__ __forceinline__ void
walk_ask(const struct walk_source<T> &from, const struct walk_span &x, uint32_t stage, int q,
	 bool dense)
{
	const uint32_t row_bytes = WALK_WIDTH * sizeof(T);
	const int rows = walk_stage<T>::rows;
	uint32_t to = shared_address(from.ring + stage), barrier = from.barriers + 8 * stage;

	if (dense) {
		phase_expect(barrier, sizeof(*from.ring));
		copy_box(to, &from.maps->u, from.u_col, q + x.rows.shift, barrier);
		copy_box(to + rows * row_bytes, &from.maps->dy, from.dy_col, q + x.rows.shift,
			 barrier);
		return;
	}
	phase_expect(barrier, 2 * rows * from.bytes);
#pragma unroll 1
	for (int i = 0; i < rows; i++, to += row_bytes) {
		uint32_t row = (uint32_t)x.rows.order[q + i < x.hi ? q + i : x.hi - 1];
		copy_run(to, from.u + conv_before(row, from.u_pitch), from.bytes, barrier);
		copy_run(to + rows * row_bytes, from.dy + conv_before(row, from.dy_pitch),
			 from.bytes, barrier);
	}
}

/* Factors of a box from position q on: each as many lanes have them. */
template <typename T>
static __device__ __forceinline__ float
walk_factors(const struct walk_source<T> &from, const struct walk_span &x, int q)
{
	q += (int)threadIdx.x % walk_stage<T>::rows;
	q = q < x.hi ? q : x.hi - 1;
	return from.normed ? from.r[conv_before(conv_row(x.rows, q), from.r_pitch)] : 1.0f;
}

/* The next box, when it is there. */
template <typename T>
static __device__ __forceinline__ const struct walk_stage<T> *
walk_wait(const struct walk_source<T> &from) {
	phase_wait(from.barriers + 8 * from.at, from.parity);
	return from.ring + from.at;
}

/* The warp has read it: the one behind those under way, from position q on, takes its place. */
template <typename T>
static __device__ __forceinline__ void
walk_next(struct walk_source<T> *from, const struct walk_span &x, int q, bool dense)
{
	__syncwarp();
	if (q < x.last + CONV_TAPS - 1 && lane_elected())
		walk_ask<T>(*from, x, from->at, q, dense);
	from->at = from->at + 1 == walk_ring<T>::stages ? 0 : from->at + 1;
	from->parity ^= from->at == 0;
}

#endif
