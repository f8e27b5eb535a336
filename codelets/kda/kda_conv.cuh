/* What the two passes of KDA's convolution share on the device: where the inputs of a position lie,
 * and which channels a lane of the fast kernels has.
 *
 * A position counts the valid rows of the tile (the layout's order); lo .. hi-1 are those of its
 * document, and below 0 lie the rows of the entering halo.
 */
#ifndef K3_KDA_CONV_CUH
#define K3_KDA_CONV_CUH

#include "../cuda/runs.cuh"

extern "C" {
#include "../../common/config.h"
#include "../../common/op/kda.h"
}

struct conv {
	const void *u, *halo; /* inputs [t, 3P]; entering halo or NULL */
	const int32_t *layout;
	const float *c[3]; /* taps of q, k, v */
	size_t t, p, h, k;
	int taps;
	float eps;
};

/* Document of a position. */
struct conv_place {
	int segment, lo, hi;
};

static __device__ __forceinline__ const int32_t *
conv_doc(const int32_t *layout)
{
	return layout + K3_TL_HEAD;
}

static __device__ __forceinline__ const int32_t *
conv_order(const int32_t *layout)
{
	return layout + K3_TL_HEAD + layout[K3_TL_ROWS];
}

static __device__ __forceinline__ const int32_t *
conv_segments(const int32_t *layout)
{
	return layout + K3_TL_HEAD + 2 * (ptrdiff_t)layout[K3_TL_ROWS];
}

/** The document of position i, 0 <= i < valid; empty ones are passed over. */
static __device__ __forceinline__ struct conv_place
conv_locate(const int32_t *layout, int i)
{
	const int32_t *seg = conv_segments(layout);
	int from = 0, to = layout[K3_TL_SEGMENTS] - 1;

	while (from < to) {
		int mid = (from + to) / 2;

		if (seg[mid + 1] > i)
			to = mid;
		else
			from = mid + 1;
	}
	struct conv_place x = {from, seg[from], seg[from + 1]};
	return x;
}

/** Whether position q, before one in the document x, belongs to that document. */
static __device__ __forceinline__ bool
conv_has(const struct conv &c, const struct conv_place &x, int q)
{
	return q >= x.lo ||
	       (x.segment == 0 && c.halo != NULL && q < 0 && -q <= c.layout[K3_TL_HIST_IN]);
}

/** Taps of q, k or v; an index into the arguments would move them to local memory. */
static __device__ __forceinline__ const float *
conv_taps(const struct conv &c, size_t part)
{
	return part == 0 ? c.c[0] : part == 1 ? c.c[1] : c.c[2];
}

/** Row of inputs at position q. */
template <typename T>
static __device__ __forceinline__ const T *
conv_input(const struct conv &c, const int32_t *order, int q)
{
	size_t width = 3 * c.p;

	return q >= 0 ? (const T *)c.u + (size_t)order[q] * width
		      : (const T *)c.halo + (size_t)(c.taps - 1 + q) * width;
}

/* The fast kernels.  A warp walks over the positions of a strip, document by document.  A lane
 * has N neighbouring channels, which are in one head, as `lanes` lanes, a power of two, have a
 * head.  Four taps; the last inputs stay in registers, and what later positions need comes to
 * shared memory meanwhile.  The trap: loads to registers would wait for each other, as a warp can
 * tell only six of them apart. */
enum { CONV_TAPS = 4 };

struct conv_lanes {
	size_t col, head, part; /* column of the inputs; head of 3h; 0 q, 1 k, 2 v */
	bool live;
};

/** Lane's channels from `first` on, of those of heads h0 .. h0+heads-1 in q, k and v. */
static __device__ __forceinline__ struct conv_lanes
conv_lanes_at(const struct conv &c, size_t first, size_t h0, size_t heads)
{
	struct conv_lanes l;
	size_t head = first / c.k;

	l.live = head < 3 * heads;
	head = l.live ? head : 0;
	l.part = head / heads;
	l.head = l.part * c.h + h0 + head % heads;
	l.col = l.head * c.k + (l.live ? first % c.k : 0);
	return l;
}

/** w[j][k]: tap j of the lane's channel k. */
template <int N>
static __device__ __forceinline__ void
conv_taps_load(float (*w)[N], const struct conv &c, const struct conv_lanes &l)
{
	const float *from = conv_taps(c, l.part) + (l.col - l.part * c.p) * CONV_TAPS;

#pragma unroll
	for (int k = 0; k < N; k++) {
		float4 x = reinterpret_cast<const float4 *>(from)[k];
		w[0][k] = x.x, w[1][k] = x.y, w[2][k] = x.z, w[3][k] = x.w;
	}
}

/* Rows of positions lo .. hi-1 of a document: they follow each other unless there are holes. */
struct conv_rows {
	const int32_t *order;
	int shift; /* row - position */
	bool dense;
};

static __device__ __forceinline__ struct conv_rows
conv_rows_of(const int32_t *order, int lo, int hi)
{
	int first = order[lo];

	return {order, first - lo, order[hi - 1] - first == hi - 1 - lo};
}

static __device__ __forceinline__ uint32_t
conv_row(const struct conv_rows &r, int q)
{
	return (uint32_t)(r.dense ? q + r.shift : r.order[q]);
}

/** Elements before a row: one instruction. */
static __device__ __forceinline__ size_t
conv_before(uint32_t row, uint32_t pitch)
{
	return (size_t)row * pitch;
}

/** Inputs of the positions before lo, lo-j to u[4-j]; zeros where the document x has none. */
template <typename T, int N>
static __device__ __forceinline__ void
conv_window(float (*u)[N], const struct conv &c, size_t col, const struct conv_place &x,
	    const int32_t *order, int lo)
{
#pragma unroll
	for (int j = 0; j < CONV_TAPS; j++) {
#pragma unroll
		for (int k = 0; k < N; k++)
			u[j][k] = 0;
		int q = lo - CONV_TAPS + j;
		if (j > 0 && conv_has(c, x, q))
			run_load<T, N>(u[j], conv_input<T>(c, order, q) + col);
	}
}

/* How many lanes have a head, 0: the fast kernels do not fit. */
static inline int
conv_lanes_of(const struct k3_kda_conv_args *a, size_t n)
{
	size_t lanes = a->k / n;
	bool power = lanes && (lanes & (lanes - 1)) == 0 && lanes <= 32;

	return a->taps == CONV_TAPS && a->k % n == 0 && power ? (int)lanes : 0;
}

/** Rows of a strip, so that `warps` walk at the same time. */
static inline size_t
conv_strip_rows(size_t t, size_t groups, size_t warps)
{
	enum { LEAST = 16 };
	size_t strips = groups < warps ? warps / groups : 1, rows = (t + strips - 1) / strips;

	return rows > LEAST ? rows : (size_t)LEAST;
}

static inline struct conv
conv_of(void *const *buf, const struct k3_kda_conv_args *a, uint32_t u, uint32_t layout)
{
	struct conv c = {buf[u],
			 a->halo_in.n ? buf[a->halo_in.first] : NULL,
			 (const int32_t *)buf[layout],
			 {(const float *)buf[a->cq.first], (const float *)buf[a->ck.first],
			  (const float *)buf[a->cv.first]},
			 a->t,
			 a->p,
			 a->h,
			 a->k,
			 (int)a->taps,
			 a->l2_eps};

	return c;
}

#endif
