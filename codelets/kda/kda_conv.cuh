/* What the two passes of KDA's convolution share on the device: N neighbouring channels a lane, and
 * where the inputs of a position lie.
 *
 * A position counts the valid rows of the tile (the layout's order); lo .. hi-1 are those of its
 * document, and below 0 lie the rows of the entering halo.
 */
#ifndef K3_KDA_CONV_CUH
#define K3_KDA_CONV_CUH

#include "../cuda/device.cuh"

extern "C" {
#include "../../common/config.h"
#include "../../common/op/kda.h"
}

/* N is 1, or 4 where every head begins at a multiple of 4 elements. */
template <typename T, int N>
static __device__ __forceinline__ void
conv_load(float *out, const T *from)
{
	struct __align__(N * sizeof(T)) pack
	{
		T x[N];
	};
	struct pack in = *reinterpret_cast<const struct pack *>(from);

#pragma unroll
	for (int i = 0; i < N; i++)
		out[i] = wide(in.x[i]);
}

template <typename T, int N>
static __device__ __forceinline__ void
conv_store(T *to, const float *in)
{
	struct __align__(N * sizeof(T)) pack
	{
		T x[N];
	};
	struct pack out;

#pragma unroll
	for (int i = 0; i < N; i++)
		out.x[i] = narrow<T>(in[i]);
	*reinterpret_cast<struct pack *>(to) = out;
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
