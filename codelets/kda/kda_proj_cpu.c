/* The three input projections of KDA: x -> q | k | v side by side in one row, as one convolution
 * follows. */
#include "../../common/op/kda.h"
#include "../linalg/linear.h"

void
k3_kda_proj_fwd_cpu_f32(void *const *buf, const struct k3_kda_proj_args *a)
{
	const struct k3_weight *w[] = {&a->wq, &a->wk, &a->wv};
	float *qkvr = buf[0];

	for (size_t i = 0; i < 3; i++)
		k3_linear_fwd(qkvr + i * a->p, 3 * a->p, 0.0f, buf[1], a->d, buf, w[i], 0, a->p,
			      a->t);
}

void
k3_kda_proj_bwd_dx_cpu_f32(void *const *buf, const struct k3_kda_proj_args *a)
{
	const struct k3_weight *w[] = {&a->wq, &a->wk, &a->wv};
	const float *dqkvr = buf[1];

	for (size_t i = 0; i < 3; i++)
		k3_linear_dx(buf[0], a->d, i ? 1.0f : 0.0f, dqkvr + i * a->p, 3 * a->p, buf, w[i],
			     0, a->p, a->t);
}

void
k3_kda_proj_bwd_dw_cpu_f32(void *const *buf, const struct k3_kda_proj_args *a)
{
	const struct k3_weight *dw[] = {&a->wq, &a->wk, &a->wv};
	const float *dqkvr = buf[0];

	for (size_t i = 0; i < 3; i++)
		k3_linear_dw(buf, dw[i], 0, a->p, dqkvr + i * a->p, 3 * a->p, buf[1], a->d, a->t);
}
