/* Latent down-projection and dispatch (model.md 5.3): each token's latent row goes to the sorted
 * rows of its k experts; backward, a token sums its rows in ascending slot order, and the router's
 * gradient joins. */
#include <string.h>

#include "../../common/op/moe.h"
#include "../linalg/linear.h"
#include "../vec/vec.h"

void
k3_moe_dispatch_fwd_cpu_f32(void *const *buf, const struct k3_moe_dispatch_args *a)
{
	float *zs = buf[0], *z = buf[3];
	const float *x = buf[1];
	const int32_t *row = k3_route_row(buf[2], a->n_experts, a->t, a->k);

	k3_linear_fwd(z, a->r, 0, x, a->d, buf, &a->wdown, 0, a->r, a->t);
	for (size_t i = 0; i < a->t * a->k; i++)
		memcpy(zs + (size_t)row[i] * a->r, z + i / a->k * a->r, a->r * sizeof(*z));
}

/* Gradient of the router logits of one token (model.md 5.2): the selection counts as constant. */
static void
router_row(float *dl, const float *w, const float *score, const int32_t *ids, const int32_t *row,
	   const float *dwt, const struct k3_moe_dispatch_args *a)
{
	double sum = (double)a->sum_eps, dot = 0, scale = (double)a->scale;

	memset(dl, 0, a->n_experts * sizeof(*dl));
	for (size_t j = 0; j < a->k; j++) {
		sum += (double)score[ids[j]];
		dot += (double)dwt[row[j]] * ((double)w[j] / scale);
	}
	for (size_t j = 0; j < a->k; j++) {
		double s = (double)score[ids[j]];
		dl[ids[j]] = (float)(scale * ((double)dwt[row[j]] - dot) / sum * s * (1 - s));
	}
}

void
k3_moe_dispatch_bwd_dx_cpu_f32(void *const *buf, const struct k3_moe_dispatch_args *a)
{
	float *dx = buf[0], *dz = buf[1], *dl = buf[2];
	const float *dzs = buf[3], *dwt = buf[4], *w = buf[6];
	const int32_t *route = buf[5];
	const float *score = k3_routew_scores(w, a->t, a->k);
	const int32_t *ids = k3_route_ids(route, a->n_experts),
		      *row = k3_route_row(route, a->n_experts, a->t, a->k);
	const struct k3_vec *vec = k3_vec();

	for (size_t i = 0; i < a->t; i++) {
		float *sum = dz + i * a->r;
		memcpy(sum, dzs + (size_t)row[i * a->k] * a->r, a->r * sizeof(*sum));
		for (size_t j = 1; j < a->k; j++)
			vec->add(sum, sum, dzs + (size_t)row[i * a->k + j] * a->r, a->r);
		router_row(dl + i * a->n_experts, w + i * a->k, score + i * a->n_experts,
			   ids + i * a->k, row + i * a->k, dwt, a);
	}
	k3_linear_dx(dx, a->d, 1, dz, a->r, buf, &a->wdown, 0, a->r, a->t);
	k3_linear_dx(dx, a->d, 1, dl, a->n_experts, buf, &a->wr, 0, a->n_experts, a->t);
}

void
k3_moe_dispatch_bwd_dw_cpu_f32(void *const *buf, const struct k3_moe_dispatch_args *a)
{
	const float *dz = buf[0], *dl = buf[1], *x = buf[2];

	k3_linear_dw(buf, &a->wdown, 0, a->r, dz, a->r, x, a->d, a->t);
	k3_linear_dw(buf, &a->wr, 0, a->n_experts, dl, a->n_experts, x, a->d, a->t);
}
