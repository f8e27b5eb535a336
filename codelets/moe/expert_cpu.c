/* A group of routed experts on the sorted rows of one tile (model.md 5.3): per expert two products
 * forward, two for the data gradient, two for the weights; the weight of a row goes with its
 * activation, which is narrower than its gradient or as wide.  The trap: an expert without rows is
 * legal, and its gradient is exact zeros when it writes. */
#include <cblas.h>
#include <string.h>

#include "../../common/op/moe.h"
#include "../vec/vec.h"

typedef blasint bint;

/* y [n, out] = x [n, in] w^T */
static void
product(float *y, const float *x, const float *w, size_t n, size_t out, size_t in)
{
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (bint)n, (bint)out, (bint)in, 1.0f, x,
		    (bint)in, w, (bint)in, 0.0f, y, (bint)out);
}

/* dx [n, in] = dy [n, out] w */
static void
product_dx(float *dx, const float *dy, const float *w, size_t n, size_t out, size_t in)
{
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (bint)n, (bint)in, (bint)out, 1.0f,
		    dy, (bint)out, w, (bint)in, 0.0f, dx, (bint)in);
}

/* dw [out, in] = beta dw + dy^T x */
static void
product_dw(float *dw, float beta, const float *dy, const float *x, size_t n, size_t out, size_t in)
{
	cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (bint)out, (bint)in, (bint)n, 1.0f, dy,
		    (bint)out, x, (bint)in, beta, dw, (bint)in);
}

/* h rows from the saved g | u rows, each times its weight w[src[i]] unless w is NULL. */
static void
activate(float *h, const float *gu, const float *w, const int32_t *src, size_t n,
	 const struct k3_expert_args *a)
{
	const struct k3_vec *vec = k3_vec();

	for (size_t i = 0; i < n; i++) {
		const float *g = gu + i * 2 * a->f;

		vec->situ_fwd(h + i * a->f, g, g + a->f, w ? w[src[i]] : 1.0f, a->beta1, a->beta2,
			      a->f);
	}
}

void
k3_expert_gu_cpu_f32(void *const *buf, const struct k3_expert_args *a)
{
	float *gu = buf[0];
	const float *zs = buf[1], *w13 = buf[a->w13.first];
	const int32_t *offs = k3_route_offs(buf[2]);

	for (uint32_t e = a->e0; e < a->e1; e++) {
		size_t from = (size_t)offs[e], n = (size_t)offs[e + 1] - from, i = e - a->e0;
		if (n > 0)
			product(gu + from * 2 * a->f, zs + from * a->r, w13 + i * 2 * a->f * a->r,
				n, 2 * a->f, a->r);
	}
}

void
k3_expert_fwd_cpu_f32(void *const *buf, const struct k3_expert_args *a)
{
	float *gu = buf[0], *ys = buf[1], *work = buf[4];
	const float *zs = buf[2], *w13 = buf[a->w13.first], *w2 = buf[a->w2.first];
	const int32_t *offs = k3_route_offs(buf[3]);

	for (uint32_t e = a->e0; e < a->e1; e++) {
		size_t from = (size_t)offs[e], n = (size_t)offs[e + 1] - from, i = e - a->e0;
		if (n == 0)
			continue;
		product(gu + from * 2 * a->f, zs + from * a->r, w13 + i * 2 * a->f * a->r, n,
			2 * a->f, a->r);
		activate(work, gu + from * 2 * a->f, NULL, NULL, n, a);
		product(ys + from * a->r, work, w2 + i * a->r * a->f, n, a->r, a->f);
	}
}

/* dgu of the rows of one expert from dh = W2^T dy (in dh, unscaled), and the gradient of the row
 * weights. */
static void
gradient_rows(float *dgu, float *dwt, const float *dh, const float *gu, const float *w,
	      const int32_t *src, size_t n, const struct k3_expert_args *a)
{
	const struct k3_vec *vec = k3_vec();

	for (size_t i = 0; i < n; i++) {
		size_t g = i * 2 * a->f, u = g + a->f;

		dwt[i] = (float)vec->situ_bwd(dgu + g, dgu + u, dh + i * a->f, gu + g, gu + u,
					      w[src[i]], a->beta1, a->beta2, a->f);
	}
}

void
k3_expert_dgrad_cpu_f32(void *const *buf, const struct k3_expert_args *a)
{
	float *dgu = buf[0], *dzs = buf[1], *dwt = buf[2], *work = buf[7];
	const float *dys = buf[3], *gu = buf[4], *w = buf[6], *w13 = buf[a->w13.first],
		    *w2 = buf[a->w2.first];
	const int32_t *offs = k3_route_offs(buf[5]),
		      *src = k3_route_src(buf[5], a->n_experts, a->t, a->k);

	for (uint32_t e = a->e0; e < a->e1; e++) {
		size_t from = (size_t)offs[e], n = (size_t)offs[e + 1] - from, i = e - a->e0;
		if (n == 0)
			continue;
		product_dx(work, dys + from * a->r, w2 + i * a->r * a->f, n, a->r, a->f);
		gradient_rows(dgu + from * 2 * a->f, dwt + from, work, gu + from * 2 * a->f, w,
			      src + from, n, a);
		product_dx(dzs + from * a->r, dgu + from * 2 * a->f, w13 + i * 2 * a->f * a->r, n,
			   2 * a->f, a->r);
	}
}

void
k3_expert_wgrad_cpu_f32(void *const *buf, const struct k3_expert_args *a)
{
	float *h = buf[6], *dw13 = buf[a->w13.first], *dw2 = buf[a->w2.first];
	const float *dgu = buf[0], *dys = buf[1], *gu = buf[2], *zs = buf[3], *w = buf[5];
	const int32_t *offs = k3_route_offs(buf[4]),
		      *src = k3_route_src(buf[4], a->n_experts, a->t, a->k);

	for (uint32_t e = a->e0; e < a->e1; e++) {
		size_t from = (size_t)offs[e], n = (size_t)offs[e + 1] - from, i = e - a->e0;
		size_t n13 = 2 * a->f * a->r, n2 = a->r * a->f;
		if (n == 0) {
			if (!a->w13.accumulate)
				memset(dw13 + i * n13, 0, n13 * sizeof(*dw13));
			if (!a->w2.accumulate)
				memset(dw2 + i * n2, 0, n2 * sizeof(*dw2));
			continue;
		}
		activate(h, gu + from * 2 * a->f, w, src + from, n, a);
		product_dw(dw13 + i * n13, a->w13.accumulate ? 1.0f : 0.0f, dgu + from * 2 * a->f,
			   zs + from * a->r, n, 2 * a->f, a->r);
		product_dw(dw2 + i * n2, a->w2.accumulate ? 1.0f : 0.0f, dys + from * a->r, h, n,
			   a->r, a->f);
	}
}
