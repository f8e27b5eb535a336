/* What the chunk and the recurrent kernels share: where the rows of a head lie, and the small maths
 * around them.
 *
 * Only rows that the layout's order names are touched, in that order; a hole inside a document is
 * not there. The trap: a tile without any segment still hands on the state (the document may go on
 * behind its holes).
 */
#ifndef K3_KDA_TILE_H
#define K3_KDA_TILE_H
#include <math.h>
#include <string.h>

#include "../../common/op/kda.h"
#include "../linalg/linear.h"

/** One head's columns in qkv [t, h(2k+v)], f [t, hk] and br [t, h]. */
struct k3i_kda_head {
	const float *q, *k, *v, *f, *br; /* row 0 */
	size_t ld_qkv, ld_f, ld_br;
	const float *dt_k; /* NULL in raw mode */
	float exp_a;
};

static inline struct k3i_kda_head
k3i_kda_head(void *const *buf, uint32_t qkv, size_t h, const struct k3_kda_chunk_args *a)
{
	struct k3i_kda_head x;

	x.ld_qkv = a->h * (2 * a->k + a->v);
	x.ld_f = a->h * a->k;
	x.ld_br = a->h;
	x.q = (const float *)buf[qkv] + h * a->k;
	x.k = (const float *)buf[qkv] + (a->h + h) * a->k;
	x.v = (const float *)buf[qkv] + 2 * a->h * a->k + h * a->v;
	x.f = (const float *)buf[qkv + 1] + h * a->k;
	x.br = (const float *)buf[qkv + 2] + h;
	x.dt_k = a->raw ? NULL : k3_weight_ptr(buf, &a->dt_bias) + h * a->k;
	x.exp_a = a->raw ? 1.0f : expf(k3_weight_ptr(buf, &a->a_log)[h]);
	return x;
}

/** 1 / (1 + exp(-x)) without overflow; *rest = 1 - result, without cancellation. */
static inline float
k3i_sigmoid(float x, float *rest)
{
	float e = expf(-fabsf(x)), big = 1.0f / (1.0f + e), small = e / (1.0f + e);

	*rest = x >= 0 ? small : big;
	return x >= 0 ? big : small;
}

/** The state [k, v] of head i of the group in an optional list of one buffer, or NULL. */
static inline float *
k3i_kda_state(void *const *buf, const struct k3_list *l, size_t i,
	      const struct k3_kda_chunk_args *a)
{
	return l->n ? (float *)buf[l->first] + i * a->k * a->v : NULL;
}

/** dst = src, or zeros where src is absent. */
static inline void
k3i_copy_or_zero(float *dst, const float *src, size_t n)
{
	if (src)
		memcpy(dst, src, n * sizeof(*dst));
	else
		memset(dst, 0, n * sizeof(*dst));
}

/** Zeros in the rows without a document of x [t, width]. */
static inline void
k3i_zero_holes(float *x, size_t width, const int32_t *layout)
{
	const int32_t *doc = k3_tile_doc(layout);

	for (size_t t = 0; t < (size_t)layout[K3_TL_ROWS]; t++)
		if (doc[t] == 0)
			memset(x + t * width, 0, width * sizeof(*x));
}

#endif
