/* SiTU-GLU feed-forward (model.md 5.1): three products and one elementwise pass each way. */
#include <string.h>

#include "../../common/op/glu.h"
#include "../linalg/linear.h"
#include "../vec/vec.h"

static void
activate(float *h, const float *gu, const struct k3_glu_args *a)
{
	const struct k3_vec *vec = k3_vec();

	for (size_t i = 0; i < a->t; i++) {
		const float *g = gu + i * 2 * a->f;

		vec->situ_fwd(h + i * a->f, g, g + a->f, 1.0f, a->beta1, a->beta2, a->f);
	}
}

static void
saved_products(float *gu, const float *x, void *const *buf, const struct k3_glu_args *a)
{
	k3_linear_fwd(gu, 2 * a->f, 0, x, a->d, buf, &a->w1, 0, a->f, a->t);
	k3_linear_fwd(gu + a->f, 2 * a->f, 0, x, a->d, buf, &a->w3, 0, a->f, a->t);
}

void
k3_glu_gu_cpu_f32(void *const *buf, const struct k3_glu_args *a)
{
	saved_products(buf[0], buf[1], buf, a);
}

void
k3_glu_fwd_cpu_f32(void *const *buf, const struct k3_glu_args *a)
{
	float *y = buf[0], *gu = buf[1], *h = buf[3];
	const float *x = buf[2];

	saved_products(gu, x, buf, a);
	activate(h, gu, a);
	if (a->p_in.n)
		memcpy(y, buf[a->p_in.first], a->t * a->d * sizeof(*y));
	k3_linear_fwd(y, a->d, a->p_in.n ? 1.0f : 0.0f, h, a->f, buf, &a->w2, 0, a->d, a->t);
}

void
k3_glu_bwd_dx_cpu_f32(void *const *buf, const struct k3_glu_args *a)
{
	float *dx = buf[0], *dgu = buf[1], *dh = buf[4];
	const float *dy = buf[2], *gu = buf[3];
	const struct k3_vec *vec = k3_vec();

	k3_linear_dx(dh, a->f, 0, dy, a->d, buf, &a->w2, 0, a->d, a->t);
	for (size_t i = 0; i < a->t; i++) {
		size_t g = i * 2 * a->f, u = g + a->f;

		vec->situ_bwd(dgu + g, dgu + u, dh + i * a->f, gu + g, gu + u, 1.0f, a->beta1,
			      a->beta2, a->f);
	}
	k3_linear_dx(dx, a->d, 0, dgu, 2 * a->f, buf, &a->w1, 0, a->f, a->t);
	k3_linear_dx(dx, a->d, 1, dgu + a->f, 2 * a->f, buf, &a->w3, 0, a->f, a->t);
}

void
k3_glu_bwd_dw_cpu_f32(void *const *buf, const struct k3_glu_args *a)
{
	const float *dgu = buf[0], *dy = buf[1], *gu = buf[2], *x = buf[3];
	float *h = buf[4];

	activate(h, gu, a);
	k3_linear_dw(buf, &a->w1, 0, a->f, dgu, 2 * a->f, x, a->d, a->t);
	k3_linear_dw(buf, &a->w3, 0, a->f, dgu + a->f, 2 * a->f, x, a->d, a->t);
	k3_linear_dw(buf, &a->w2, 0, a->d, dy, a->d, h, a->f, a->t);
}
