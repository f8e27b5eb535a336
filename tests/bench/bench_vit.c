/* k3_bench op vit: the vision tower; models without one have no case. */
#include <math.h>
#include <string.h>

#include "bench_vit.h"

struct bench_vit_shape
bench_vit_shape(const struct bench *b)
{
	const struct k3_vision_config *v = &b->model->vision;
	size_t mh = v->merge_h, mw = v->merge_w, cols = mw, rows;

	while ((cols + mw) * (cols + mw) <= b->tokens)
		cols += mw;
	rows = b->tokens / cols / mh * mh;
	rows = rows > 0 ? rows : mh;
	return (struct bench_vit_shape){.rows = rows,
					.cols = cols,
					.n = rows * cols,
					.m = rows * cols / (mh * mw),
					.d = v->width,
					.dq = v->qkv_width,
					.h = v->heads,
					.hd = v->qkv_width / v->heads,
					.f = v->ffn,
					.c = mh * mw * v->width,
					.dt = b->model->width,
					.pixels = 3 * (size_t)v->patch * v->patch,
					.v = v};
}

int32_t *
bench_vit_layout(struct bench_case *c, const struct bench_vit_shape *x)
{
	int32_t h = (int32_t)x->rows, w = (int32_t)x->cols,
		layout[] = {h * w, (int32_t)x->m, 1, 0, 0, 1, h, w, 0, h, 0, 0};

	return memcpy(bench_memory(c, sizeof(layout)), layout, sizeof(layout));
}

float *
bench_vit_normed(struct bench_case *c, const float *x, const float *w, size_t n, size_t d,
		 double eps)
{
	double *y = bench_doubles(c, n * d);

	for (size_t i = 0; i < n; i++)
		bench_rms(y + i * d, x + i * d, w, d, eps);
	return bench_narrow(c, y, n * d);
}

double *
bench_vit_factors(struct bench_case *c, const float *x, size_t n, size_t d, double eps)
{
	double *r = bench_doubles(c, n);

	for (size_t i = 0; i < n * d; i++)
		r[i / d] += (double)x[i] * (double)x[i] / (double)d;
	for (size_t i = 0; i < n; i++)
		r[i] = 1 / sqrt(r[i] + eps);
	return r;
}

void
bench_vit(struct bench *b)
{
	if (!b->model->vision.present)
		return;
	bench_vit_ends(b);
	bench_vit_qkv(b);
	bench_vit_attn(b);
	bench_vit_out(b);
	bench_vit_mlp(b);
	bench_vit_project(b);
}
