/* MLP of a tower block (model.md 6.3), y = x + gelu_tanh(RMSNorm(x) Wfc0^T) Wfc1^T.  Only u, the
 * argument of the activation, is saved. */
#include "../../common/op/vit.h"
#include "../linalg/linear.h"
#include "norm_rows.h"

void
k3_vit_mlp_fwd_cpu_f32(void *const *buf, const struct k3_vit_mlp_args *a)
{
	float *y = buf[0], *u = buf[1], *normed = buf[4], *active = normed + a->n * a->d;
	const float *x = buf[3];

	norm_rows(normed, buf[2], x, buf[a->norm.first], a->n, a->d, a->eps);
	k3_linear_fwd(u, a->f, 0, normed, a->d, buf, &a->fc0, 0, a->f, a->n);
	k3_vec()->gelu_tanh(active, u, a->n * a->f);
	memcpy(y, x, a->n * a->d * sizeof(*y));
	k3_linear_fwd(y, a->d, 1, active, a->f, buf, &a->fc1, 0, a->d, a->n);
}

void
k3_vit_mlp_bwd_dx_cpu_f32(void *const *buf, const struct k3_vit_mlp_args *a)
{
	float *dx = buf[0], *du = buf[1], *dn = buf[6];
	const float *dy = buf[2];

	k3_linear_dx(du, a->f, 0, dy, a->d, buf, &a->fc1, 0, a->d, a->n);
	k3_vec()->gelu_tanh_bwd(du, du, buf[3], a->n * a->f);
	k3_linear_dx(dn, a->d, 0, du, a->f, buf, &a->fc0, 0, a->f, a->n);
	norm_rows_back(dx, buf[a->dnorm.first], a->dnorm.accumulate != 0, dy, dn, buf[4],
		       buf[a->norm.first], buf[5], a->n, a->d);
}

void
k3_vit_mlp_bwd_dw_cpu_f32(void *const *buf, const struct k3_vit_mlp_args *a)
{
	float *normed = buf[5], *active = normed + a->n * a->d;

	norm_rows_again(normed, buf[3], buf[a->norm.first], buf[4], a->n, a->d);
	k3_linear_dw(buf, &a->fc0, 0, a->f, buf[0], a->f, normed, a->d, a->n);
	k3_vec()->gelu_tanh(active, buf[2], a->n * a->f);
	k3_linear_dw(buf, &a->fc1, 0, a->d, buf[1], a->d, active, a->f, a->n);
}
