/* Gated output of MLA (model.md 4): p_out = p_in + (o * sigmoid(zg)) wo^T.  Head groups have
 * outputs of their own. */
#include <string.h>

#include "../../common/op/mla.h"
#include "../linalg/linear.h"
#include "../vec/vec.h"

static size_t
group_cols(const struct k3_mla_out_args *a, uint32_t g, size_t *first)
{
	size_t h0, heads = k3_heads_of_group(a->h, a->group_heads, g, &h0);

	*first = h0 * a->v;
	return heads * a->v;
}

static void
gated(float *out, const float *zg, void *const *buf, const struct k3_mla_out_args *a)
{
	const struct k3_vec *vec = k3_vec();
	size_t hv = a->h * a->v;

	for (uint32_t g = 0; g < a->o.n; g++) {
		size_t first, n = group_cols(a, g, &first);
		const float *o = buf[a->o.first + g];
		for (size_t i = 0; i < a->t; i++)
			vec->gate_fwd(out + i * hv + first, o + i * n, zg + i * hv + first, n);
	}
}

void
k3_mla_out_fwd_cpu_f32(void *const *buf, const struct k3_mla_out_args *a)
{
	float *p_out = buf[0], *work = buf[2];
	size_t hv = a->h * a->v;

	gated(work, buf[1], buf, a);
	if (a->p_in.n)
		memcpy(p_out, buf[a->p_in.first], a->t * a->d * sizeof(*p_out));
	k3_linear_fwd(p_out, a->d, a->p_in.n ? 1.0f : 0.0f, work, hv, buf, &a->wo, 0, a->d, a->t);
}

void
k3_mla_out_bwd_dx_cpu_f32(void *const *buf, const struct k3_mla_out_args *a)
{
	float *dzg = buf[0], *work = buf[3];
	const float *dp = buf[1], *zg = buf[2];
	const struct k3_vec *vec = k3_vec();
	size_t hv = a->h * a->v;

	k3_linear_dx(work, hv, 0, dp, a->d, buf, &a->wo, 0, a->d, a->t);
	for (uint32_t g = 0; g < a->o.n; g++) {
		size_t first, n = group_cols(a, g, &first), heads = n / a->v;
		const float *o = buf[a->o.first + g];
		float *da = buf[a->da.first + g], *delta = buf[a->delta.first + g];
		for (size_t i = 0; i < a->t; i++)
			for (size_t h = 0; h < heads; h++) {
				size_t at = i * hv + first + h * a->v, in = i * n + h * a->v;

				delta[i * heads + h] = (float)vec->gate_bwd(
					da + in, dzg + at, work + at, o + in, zg + at, a->v);
			}
	}
}

void
k3_mla_out_bwd_dw_cpu_f32(void *const *buf, const struct k3_mla_out_args *a)
{
	const float *dp = buf[0];
	float *work = buf[2];

	gated(work, buf[1], buf, a);
	k3_linear_dw(buf, &a->wo, 0, a->d, dp, a->d, work, a->h * a->v, a->t);
}
