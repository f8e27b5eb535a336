/* KDA's output: RMS norm of each head, gate, projection.  n = o r, y = n on sigmoid(gg), p_out =
 * p_in + y Wo^T.
 *
 * y is never kept: each pass forms it again in the work buffer, which costs far less than the
 * product that follows. The trap: o comes by head groups [t, hg v], all else by whole rows [t, P].
 */
#include <string.h>

#include "../../common/op/kda.h"
#include "../linalg/linear.h"
#include "../norm/rms.h"

/* Columns of a head group in a row of all heads; returns their number. */
static size_t
group_cols(const struct k3_kda_out_args *a, uint32_t g, size_t *first)
{
	size_t h0, heads = k3_heads_of_group(a->h, a->group_heads, g, &h0);

	*first = h0 * a->v;
	return heads * a->v;
}

/* y [t, P] = n on sigmoid(gg) */
static void
gated_norm(float *y, const float *gg, void *const *buf, const struct k3_kda_out_args *a)
{
	const struct k3_vec *vec = k3_vec();
	const float *on = k3_weight_ptr(buf, &a->on);

	for (uint32_t g = 0; g < a->o.n; g++) {
		size_t first, n = group_cols(a, g, &first);

		for (size_t t = 0; t < a->t; t++)
			for (size_t c = 0; c < n; c += a->v) {
				const float *o = (const float *)buf[a->o.first + g] + t * n + c;
				size_t at = t * a->p + first + c;

				vec->norm_gate_fwd(y + at, o, on, gg + at,
						   k3_rms_factor(o, a->v, a->eps), a->v);
			}
	}
}

void
k3_kda_out_fwd_cpu_f32(void *const *buf, const struct k3_kda_out_args *a)
{
	gated_norm(buf[2], buf[1], buf, a);
	if (a->p_in.n)
		memcpy(buf[0], buf[a->p_in.first], a->t * a->d * sizeof(float));
	k3_linear_fwd(buf[0], a->d, a->p_in.n ? 1.0f : 0.0f, buf[2], a->p, buf, &a->wo, 0, a->d,
		      a->t);
}

void
k3_kda_out_bwd_dx_cpu_f32(void *const *buf, const struct k3_kda_out_args *a)
{
	float *dgg = buf[0], *dy = buf[3], *don = k3_weight_ptr(buf, &a->don);
	const float *gg = buf[2], *on = k3_weight_ptr(buf, &a->on);
	const struct k3_vec *vec = k3_vec();

	k3_linear_dx(dy, a->p, 0.0f, buf[1], a->d, buf, &a->wo, 0, a->d, a->t);
	if (!a->don.accumulate)
		memset(don, 0, a->v * sizeof(*don));
	for (uint32_t g = 0; g < a->o.n; g++) {
		size_t first, n = group_cols(a, g, &first);

		for (size_t t = 0; t < a->t; t++)
			for (size_t c = 0; c < n; c += a->v) {
				const float *o = (const float *)buf[a->o.first + g] + t * n + c;
				float *dout = (float *)buf[a->dout.first + g] + t * n + c;
				size_t at = t * a->p + first + c;

				vec->norm_gate_bwd(dout, dgg + at, don, dy + at, o, on, gg + at,
						   k3_rms_factor(o, a->v, a->eps), a->v);
			}
	}
}

void
k3_kda_out_bwd_dw_cpu_f32(void *const *buf, const struct k3_kda_out_args *a)
{
	gated_norm(buf[2], buf[1], buf, a);
	k3_linear_dw(buf, &a->wo, 0, a->d, buf[0], a->d, buf[2], a->p, a->t);
}
