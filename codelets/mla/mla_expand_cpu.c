/* Expansion of the compressed keys and values of a tile (model.md 4).  The shared key part is
 * neither normalised nor rotated: it travels at the end of each row, and its gradient is the sum
 * over all heads. */
#include <string.h>

#include "../../common/op/mla.h"
#include "../linalg/linear.h"
#include "../norm/rms.h"

static void
normalise(float *out, const float *c, const float *w, const struct k3_mla_expand_args *a)
{
	size_t ck = a->rkv + a->rope;

	for (size_t i = 0; i < a->t; i++)
		k3_rms_fwd_row(out + i * a->rkv, c + i * ck, w,
			       k3_rms_factor(c + i * ck, a->rkv, a->eps), a->rkv);
}

void
k3_mla_expand_fwd_cpu_f32(void *const *buf, const struct k3_mla_expand_args *a)
{
	float *kv = buf[0], *work = buf[2];
	const float *c = buf[1];
	size_t ck = a->rkv + a->rope, wide = a->h * (a->nope + a->v), ld = wide + a->rope;

	normalise(work, c, buf[a->kn.first], a);
	k3_linear_fwd(kv, ld, 0, work, a->rkv, buf, &a->wkvb, 0, wide, a->t);
	for (size_t i = 0; i < a->t; i++)
		memcpy(kv + i * ld + wide, c + i * ck + a->rkv, a->rope * sizeof(float));
}

static size_t
group_rows(const struct k3_mla_expand_args *a, uint32_t g, size_t *first)
{
	size_t h0, heads = k3_heads_of_group(a->h, a->group_heads, g, &h0);

	*first = h0 * (a->nope + a->v);
	return heads * (a->nope + a->v);
}

void
k3_mla_expand_bwd_dx_cpu_f32(void *const *buf, const struct k3_mla_expand_args *a)
{
	float *dc = buf[0], *dlat = buf[2];
	const float *c = buf[1];
	float *dkn = buf[a->dkn.first];
	size_t ck = a->rkv + a->rope;

	for (uint32_t g = 0; g < a->dkv.n; g++) {
		size_t first, n = group_rows(a, g, &first), ld = n + a->rope;
		const float *dkv = buf[a->dkv.first + g];
		k3_linear_dx(dlat, a->rkv, g ? 1.0f : 0.0f, dkv, ld, buf, &a->wkvb, first,
			     first + n, a->t);
		for (size_t i = 0; i < a->t; i++)
			for (size_t r = 0; r < a->rope; r++) {
				float *sum = &dc[i * ck + a->rkv + r];
				*sum = (g ? *sum : 0.0f) + dkv[i * ld + n + r];
			}
	}
	if (!a->dkn.accumulate)
		memset(dkn, 0, a->rkv * sizeof(*dkn));
	for (size_t i = 0; i < a->t; i++)
		k3_rms_bwd_row(dc + i * ck, dkn, dlat + i * a->rkv, c + i * ck, buf[a->kn.first],
			       k3_rms_factor(c + i * ck, a->rkv, a->eps), a->rkv);
}

void
k3_mla_expand_bwd_dw_cpu_f32(void *const *buf, const struct k3_mla_expand_args *a)
{
	const float *c = buf[0];
	float *work = buf[1];

	normalise(work, c, buf[a->kn.first], a);
	for (uint32_t g = 0; g < a->dkv.n; g++) {
		size_t first, n = group_rows(a, g, &first);
		k3_linear_dw(buf, &a->wkvb, first, first + n, buf[a->dkv.first + g], n + a->rope,
			     work, a->rkv, a->t);
	}
}
