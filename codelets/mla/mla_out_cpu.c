/* Gated output of MLA (model.md 4): p_out = p_in + (o * sigmoid(zg)) wo^T.  Head groups have
 * outputs of their own. */
#include <string.h>

#include "../../common/op/mla.h"
#include "../glu/situ.h"
#include "../linalg/linear.h"

static size_t
group_cols(const struct k3_mla_out_args *a, uint32_t g, size_t *first)
{
	size_t h0 = (size_t)g * a->group_heads,
	       h1 = h0 + a->group_heads < a->h ? h0 + a->group_heads : a->h;

	*first = h0 * a->v;
	return (h1 - h0) * a->v;
}

static void
gated(float *out, const float *zg, void *const *buf, const struct k3_mla_out_args *a)
{
	size_t hv = a->h * a->v;

	for (uint32_t g = 0; g < a->o.n; g++) {
		size_t first, n = group_cols(a, g, &first);
		const float *o = buf[a->o.first + g];
		for (size_t i = 0; i < a->t; i++)
			for (size_t c = 0; c < n; c++)
				out[i * hv + first + c] =
					o[i * n + c] * k3_sigmoid(zg[i * hv + first + c]);
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
	size_t hv = a->h * a->v;

	k3_linear_dx(work, hv, 0, dp, a->d, buf, &a->wo, 0, a->d, a->t);
	for (uint32_t g = 0; g < a->o.n; g++) {
		size_t first, n = group_cols(a, g, &first), heads = n / a->v;
		const float *o = buf[a->o.first + g];
		float *da = buf[a->da.first + g], *delta = buf[a->delta.first + g];
		for (size_t i = 0; i < a->t; i++)
			for (size_t h = 0; h < heads; h++) {
				double dot = 0;
				for (size_t c = h * a->v; c < (h + 1) * a->v; c++) {
					size_t at = i * hv + first + c;
					float z = k3_sigmoid(zg[at]), out = o[i * n + c];
					da[i * n + c] = work[at] * z;
					dzg[at] = work[at] * out * z * (1 - z);
					dot += (double)da[i * n + c] * (double)out;
				}
				delta[i * heads + h] = (float)dot;
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
