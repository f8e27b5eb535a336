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

/* Head h in a list of group buffers: row 0, and the distance of rows in *ld. */
static float *
head_rows(void *const *buf, const struct k3_list *groups, const struct k3_kda_out_args *a, size_t h,
	  size_t *ld)
{
	size_t g = h / a->group_heads, h0 = g * a->group_heads, left = a->h - h0;

	*ld = (left < a->group_heads ? left : a->group_heads) * a->v;
	return (float *)buf[groups->first + g] + (h - h0) * a->v;
}

/* y [t, P] = n on sigmoid(gg) */
static void
gated_norm(float *y, const float *gg, void *const *buf, const struct k3_kda_out_args *a)
{
	const struct k3_vec *vec = k3_vec();
	const float *on = k3_weight_ptr(buf, &a->on);

	for (size_t h = 0; h < a->h; h++) {
		size_t ld;
		const float *o = head_rows(buf, &a->o, a, h, &ld);

		for (size_t t = 0; t < a->t; t++) {
			size_t at = t * a->p + h * a->v;

			vec->norm_gate_fwd(y + at, o + t * ld, on, gg + at,
					   k3_rms_factor(o + t * ld, a->v, a->eps), a->v);
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
	for (size_t h = 0; h < a->h; h++) {
		size_t ld;
		const float *o = head_rows(buf, &a->o, a, h, &ld);
		float *dout = head_rows(buf, &a->dout, a, h, &ld);

		for (size_t t = 0; t < a->t; t++) {
			size_t at = t * a->p + h * a->v;

			vec->norm_gate_bwd(dout + t * ld, dgg + at, don, dy + at, o + t * ld, on,
					   gg + at, k3_rms_factor(o + t * ld, a->v, a->eps), a->v);
		}
	}
}

void
k3_kda_out_bwd_dw_cpu_f32(void *const *buf, const struct k3_kda_out_args *a)
{
	gated_norm(buf[2], buf[1], buf, a);
	k3_linear_dw(buf, &a->wo, 0, a->d, buf[0], a->d, buf[2], a->p, a->t);
}
