/* SiTU-GLU feed-forward (model.md 5.1): three products and one elementwise pass each way. */
#include <string.h>

#include "../../common/op/glu.h"
#include "../linalg/linear.h"
#include "situ.h"

static void
activate(float *h, const float *gu, const struct k3_glu_args *a)
{
	for (size_t i = 0; i < a->t; i++)
		for (size_t c = 0; c < a->f; c++)
			h[i * a->f + c] =
				k3_situ_fwd(gu[i * 2 * a->f + c], gu[i * 2 * a->f + a->f + c],
					    a->beta1, a->beta2);
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

	k3_linear_dx(dh, a->f, 0, dy, a->d, buf, &a->w2, 0, a->d, a->t);
	for (size_t i = 0; i < a->t; i++)
		for (size_t c = 0; c < a->f; c++) {
			size_t g = i * 2 * a->f + c, u = g + a->f;
			k3_situ_bwd(dh[i * a->f + c], gu[g], gu[u], a->beta1, a->beta2, &dgu[g],
				    &dgu[u]);
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
