/* Combine of the routed experts (model.md 5.3): weighted sum over slots in ascending order, norm,
 * up-projection, shared experts and prefix added. */
#include <string.h>

#include "../../common/op/moe.h"
#include "../linalg/linear.h"
#include "../norm/rms.h"

void
k3_moe_combine_fwd_cpu_f32(void *const *buf, const struct k3_moe_combine_args *a)
{
	float *p_out = buf[0], *y = buf[1], *work = buf[7];
	const float *ys = buf[2], *w = buf[4], *shared = buf[5], *p_in = buf[6];
	const int32_t *row = k3_route_row(buf[3], a->n_experts, a->t, a->k);
	const struct k3_vec *vec = k3_vec();

	for (size_t i = 0; i < a->t; i++) {
		const int32_t *at = row + i * a->k;
		float *sum = y + i * a->r;

		vec->scale(sum, w[i * a->k], ys + (size_t)at[0] * a->r, a->r);
		for (size_t j = 1; j < a->k; j++)
			vec->axpy(sum, w[i * a->k + j], ys + (size_t)at[j] * a->r, a->r);
	}
	k3_rms_fwd_rows(work, y, buf[a->norm.first], a->t, a->r, a->eps);
	vec->add(p_out, p_in, shared, a->t * a->d);
	k3_linear_fwd(p_out, a->d, 1, work, a->r, buf, &a->wup, 0, a->d, a->t);
}

void
k3_moe_combine_bwd_dx_cpu_f32(void *const *buf, const struct k3_moe_combine_args *a)
{
	float *dys = buf[0], *dn = buf[4], *dy = dn + a->t * a->r, *dnorm = buf[a->dnorm.first];
	const float *dp = buf[1], *y = buf[2], *norm = buf[a->norm.first];
	const int32_t *row = k3_route_row(buf[3], a->n_experts, a->t, a->k);

	k3_linear_dx(dn, a->r, 0, dp, a->d, buf, &a->wup, 0, a->d, a->t);
	if (!a->dnorm.accumulate)
		memset(dnorm, 0, a->r * sizeof(*dnorm));
	for (size_t i = 0; i < a->t; i++) {
		const float *yi = y + i * a->r;
		k3_rms_bwd_row(dy + i * a->r, dnorm, dn + i * a->r, yi, norm,
			       k3_rms_factor(yi, a->r, a->eps), a->r);
		for (size_t j = 0; j < a->k; j++)
			memcpy(dys + (size_t)row[i * a->k + j] * a->r, dy + i * a->r,
			       a->r * sizeof(*dy));
	}
}

void
k3_moe_combine_bwd_dw_cpu_f32(void *const *buf, const struct k3_moe_combine_args *a)
{
	const float *dp = buf[0];
	float *work = buf[2];

	k3_rms_fwd_rows(work, buf[1], buf[a->norm.first], a->t, a->r, a->eps);
	k3_linear_dw(buf, &a->wup, 0, a->d, dp, a->d, work, a->r, a->t);
}
