/* k3_bench op vit: what is before and behind the tower's blocks: patch embedding, final norm
 * with merge, projector.  The embedding's image has the position table's size, so that places
 * are table entries; the tests of the kernel cover the resampling. */
#include <math.h>

#include "bench_vit.h"

static void
embed(struct bench *b, const struct vit *v)
{
	const struct k3_vision_config *m = &b->model->vision;
	size_t d = v->d, pixels = m->present ? 3 * (size_t)m->patch * m->patch : 12;
	struct k3_vit_embed_args a = {
		.n = v->n, .d = d, .pixels = pixels, .table_h = v->h, .table_w = v->w};
	struct bench_case c;
	float *w, *pos;

	if (bench_open(&c, b, "vit_patch_embed_fwd", BENCH_SAME, BENCH_TARGET_GEMM,
		       "n=%zu d=%zu pixels=%zu", v->n, d, pixels)) {
		struct bench_call *call = bench_call(&c, K3_OP_VIT_PATCH_EMBED_FWD);
		float *x = bench_out(call, "x", v->n * d), *patches = bench_in(call, v->n * pixels);
		bench_push(call, bench_vit_layout(&c, v));
		a.wpe = bench_weight(call, d, pixels, &w);
		a.pos = bench_weight(call, v->n, d, &pos);
		bench_args(call, &a, sizeof(a));
		bench_product(call, BENCH_NT, v->n, d, pixels);
		if (bench_run(&c)) {
			struct bench_rows rows = bench_rows(&c, x, d, v->n, d);
			bench_rows_product(&rows, BENCH_NT, pixels, patches, pixels, w, pixels);
			bench_rows_add(&rows, pos, d);
			bench_rows_expect(&rows, "x");
		}
		bench_close(&c);
	}
	if (!bench_open(&c, b, "vit_patch_embed_bwd", BENCH_SAME, BENCH_TARGET_GEMM,
			"n=%zu d=%zu pixels=%zu", v->n, d, pixels))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_PATCH_EMBED_BWD);
	float *dx = bench_in(call, v->n * d), *patches = bench_in(call, v->n * pixels);
	bench_push(call, bench_vit_layout(&c, v));
	a.wpe = bench_gradient(call, "dwpe", d, pixels, &w);
	a.pos = bench_gradient(call, "dpos", v->n, d, &pos);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_TN, d, pixels, v->n);
	if (bench_run(&c)) {
		struct bench_rows rows = bench_rows(&c, w, pixels, d, pixels),
				  places = bench_rows(&c, pos, d, v->n, d);
		bench_rows_product(&rows, BENCH_TN, v->n, dx, d, patches, pixels);
		bench_rows_add(&places, dx, d);
		bench_rows_expect(&rows, "dwpe");
		bench_rows_expect(&places, "dpos");
	}
	bench_close(&c);
}

/* Merged row and offset in it of element k of patch i. */
static size_t
place(const struct vit *v, size_t i, size_t k)
{
	size_t row = i / v->w, col = i % v->w;

	return (row / 2 * (v->w / 2) + col / 2) * v->c + (row % 2 * 2 + col % 2) * v->d + k;
}

static struct k3_vit_merge_args
merge_args(const struct vit *v)
{
	return (struct k3_vit_merge_args){
		.n = v->n, .m = v->m, .d = v->d, .merge_h = 2, .merge_w = 2, .eps = (float)v->eps};
}

static void
merge_fwd(struct bench *b, const struct vit *v)
{
	struct k3_vit_merge_args a = merge_args(v);
	size_t n = v->n, d = v->d;
	struct bench_case c;
	float *norm;

	if (!bench_open(&c, b, "vit_merge_fwd", BENCH_MEMORY, 0, "n=%zu d=%zu", n, d))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_MERGE_FWD);
	float *z = bench_out(call, "z", n * d), *xf = bench_out(call, "xf", n * d),
	      *rstd = bench_out(call, "rstd", n), *x = bench_in(call, n * d);
	bench_push(call, bench_vit_layout(&c, v));
	a.norm = bench_weight(call, 1, d, &norm);
	bench_args(call, &a, sizeof(a));
	bench_traffic(call, n * d, 2 * n * d, 0);
	if (bench_run(&c)) {
		double *want = bench_vit_normed(&c, x, norm, n, d, v->eps),
		       *merged = bench_doubles(&c, n * d);
		for (size_t i = 0; i < n * d; i++)
			merged[place(v, i / d, i % d)] = want[i];
		bench_expect(&c, "xf", xf, d, want, n, d, d);
		bench_expect(&c, "z", z, v->c, merged, v->m, v->c, d);
		bench_expect(&c, "rstd", rstd, 1, bench_vit_rstd(&c, x, n, d, v->eps), n, 1, d);
	}
	bench_close(&c);
}

static void
merge_bwd(struct bench *b, const struct vit *v)
{
	struct k3_vit_merge_args a = merge_args(v);
	size_t n = v->n, d = v->d;
	struct bench_case c;
	float *dnorm, *norm;

	if (!bench_open(&c, b, "vit_merge_bwd", BENCH_MEMORY, 0, "n=%zu d=%zu", n, d))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_MERGE_BWD);
	float *dx = bench_out(call, "dx", n * d), *dxf = bench_out(call, "dxf", n * d),
	      *dz = bench_in(call, n * d), *x = bench_in(call, n * d);
	bench_push(call, bench_narrow(&c, bench_vit_rstd(&c, x, n, d, v->eps), n));
	bench_push(call, bench_vit_layout(&c, v));
	a.dnorm = bench_gradient(call, "dnorm", 1, d, &dnorm);
	a.norm = bench_weight(call, 1, d, &norm);
	bench_args(call, &a, sizeof(a));
	bench_traffic(call, 2 * n * d, 2 * n * d, 0);
	if (bench_run(&c)) {
		double *want = bench_doubles(&c, n * d), *sums;
		for (size_t i = 0; i < n * d; i++)
			want[i] = (double)dz[place(v, i / d, i % d)];
		bench_expect(&c, "dxf", dxf, d, want, n, d, 1);
		bench_expect(&c, "dx", dx, d,
			     bench_vit_norm_back(&c, want, x, norm, NULL, n, d, v->eps, &sums), n,
			     d, d);
		bench_expect(&c, "dnorm", dnorm, d, sums, 1, d, n + d);
	}
	bench_close(&c);
}

void
bench_vit_edges(struct bench *b, const struct vit *v)
{
	embed(b, v);
	merge_fwd(b, v);
	merge_bwd(b, v);
}

static double
gelu(double x)
{
	return 0.5 * x * (1 + erf(x * M_SQRT1_2));
}

static double
gelu_slope(double x)
{
	return 0.5 * (1 + erf(x * M_SQRT1_2)) + x * exp(-0.5 * x * x) / sqrt(2 * M_PI);
}

static float *
active(struct bench_case *c, const float *u, size_t n)
{
	double *y = bench_doubles(c, n);

	for (size_t i = 0; i < n; i++)
		y[i] = gelu((double)u[i]);
	return bench_narrow(c, y, n);
}

static bool
open_project(struct bench_case *c, struct bench *b, const struct vit *v, enum k3_op op)
{
	return bench_open(c, b, k3_op_name(op), BENCH_SAME, BENCH_TARGET_GEMM, "m=%zu c=%zu D=%zu",
			  v->m, v->c, v->dt);
}

static struct k3_vit_project_args
project_args(const struct vit *v)
{
	return (struct k3_vit_project_args){
		.m = v->m, .c = v->c, .dt = v->dt, .eps = (float)v->eps};
}

static void
project_fwd(struct bench *b, const struct vit *v)
{
	struct k3_vit_project_args a = project_args(v);
	size_t m = v->m, w = v->c, dt = v->dt;
	float *w1, *w2, *norm;
	struct bench_case c;

	if (!open_project(&c, b, v, K3_OP_VIT_PROJECT_FWD))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_PROJECT_FWD);
	float *y = bench_out(call, "y", m * dt), *u = bench_out(call, "u", m * w),
	      *s = bench_out(call, "s", m * dt), *rstd = bench_out(call, "rstd", m),
	      *z = bench_in(call, m * w);
	bench_work(call, m * w);
	a.w1 = bench_weight(call, w, w, &w1);
	a.w2 = bench_weight(call, dt, w, &w2);
	a.norm = bench_weight(call, 1, dt, &norm);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NT, m, w, w);
	bench_product(call, BENCH_NT, m, dt, w);
	if (bench_run(&c)) {
		struct bench_rows hidden = bench_rows(&c, u, w, m, w),
				  out = bench_rows(&c, s, dt, m, dt);
		bench_rows_product(&hidden, BENCH_NT, w, z, w, w1, w);
		bench_rows_product(&out, BENCH_NT, w, active(&c, u, m * w), w, w2, w);
		bench_rows_expect(&hidden, "u");
		bench_rows_expect(&out, "s");
		bench_expect(&c, "y", y, dt, bench_vit_normed(&c, s, norm, m, dt, v->eps), m, dt,
			     dt);
		bench_expect(&c, "rstd", rstd, 1, bench_vit_rstd(&c, s, m, dt, v->eps), m, 1, dt);
	}
	bench_close(&c);
}

static void
project_bwd_dx(struct bench *b, const struct vit *v)
{
	struct k3_vit_project_args a = project_args(v);
	size_t m = v->m, w = v->c, dt = v->dt;
	float *dnorm, *w1, *w2, *norm;
	struct bench_case c;

	if (!open_project(&c, b, v, K3_OP_VIT_PROJECT_BWD_DX))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_PROJECT_BWD_DX);
	float *dz = bench_out(call, "dz", m * w), *du = bench_out(call, "du", m * w),
	      *ds = bench_out(call, "ds", m * dt), *dy = bench_in(call, m * dt),
	      *u = bench_push(call, bench_random(&c, m * w, -3, 3)), *s = bench_in(call, m * dt);
	bench_push(call, bench_narrow(&c, bench_vit_rstd(&c, s, m, dt, v->eps), m));
	a.dnorm = bench_gradient(call, "dnorm", 1, dt, &dnorm);
	a.w1 = bench_weight(call, w, w, &w1);
	a.w2 = bench_weight(call, dt, w, &w2);
	a.norm = bench_weight(call, 1, dt, &norm);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NN, m, w, dt);
	bench_product(call, BENCH_NN, m, w, w);
	if (bench_run(&c)) {
		double *dy_wide = bench_doubles(&c, m * dt), *sums, *want, *want_u;
		for (size_t i = 0; i < m * dt; i++)
			dy_wide[i] = (double)dy[i];
		want = bench_vit_norm_back(&c, dy_wide, s, norm, NULL, m, dt, v->eps, &sums);
		want_u = bench_wide(&c, BENCH_NN, m, w, dt, bench_narrow(&c, want, m * dt), dt, w2,
				    w);
		for (size_t i = 0; i < m * w; i++)
			want_u[i] *= gelu_slope((double)u[i]);
		struct bench_rows rows = bench_rows(&c, dz, w, m, w);
		bench_rows_product(&rows, BENCH_NN, w, du, w, w1, w);
		bench_expect(&c, "ds", ds, dt, want, m, dt, dt);
		bench_expect(&c, "dnorm", dnorm, dt, sums, 1, dt, m + dt);
		bench_expect(&c, "du", du, w, want_u, m, w, 2 * dt);
		bench_rows_expect(&rows, "dz");
	}
	bench_close(&c);
}

static void
project_bwd_dw(struct bench *b, const struct vit *v)
{
	struct k3_vit_project_args a = project_args(v);
	size_t m = v->m, w = v->c, dt = v->dt;
	struct bench_case c;
	float *dw1, *dw2;

	if (!open_project(&c, b, v, K3_OP_VIT_PROJECT_BWD_DW))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_PROJECT_BWD_DW);
	float *du = bench_in(call, m * w), *ds = bench_in(call, m * dt),
	      *u = bench_push(call, bench_random(&c, m * w, -3, 3)), *z = bench_in(call, m * w);
	bench_work(call, m * w);
	a.w1 = bench_gradient(call, "dw1", w, w, &dw1);
	a.w2 = bench_gradient(call, "dw2", dt, w, &dw2);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_TN, w, w, m);
	bench_product(call, BENCH_TN, dt, w, m);
	if (bench_run(&c)) {
		struct bench_rows first = bench_rows(&c, dw1, w, w, w),
				  second = bench_rows(&c, dw2, w, dt, w);
		bench_rows_product(&first, BENCH_TN, m, du, w, z, w);
		bench_rows_product(&second, BENCH_TN, m, ds, dt, active(&c, u, m * w), w);
		bench_rows_expect(&first, "dw1");
		bench_rows_expect(&second, "dw2");
	}
	bench_close(&c);
}

void
bench_vit_project(struct bench *b, const struct vit *v)
{
	project_fwd(b, v);
	project_bwd_dx(b, v);
	project_bwd_dw(b, v);
}
