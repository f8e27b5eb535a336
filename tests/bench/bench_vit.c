/* k3_bench op vit: the vision tower, one image in one tile.  Here: shapes, output projection and
 * MLP of a block.  A model without a tower gets the one of preset small. */
#include <math.h>

#include "bench_vit.h"

int32_t *
bench_vit_layout(struct bench_case *c, const struct vit *v)
{
	int32_t *layout = bench_memory(c, k3_vit_layout_len(1) * sizeof(*layout)),
		*part = layout + K3_VL_HEAD;

	layout[K3_VL_PATCHES] = (int32_t)v->n;
	layout[K3_VL_MERGED] = (int32_t)v->m;
	layout[K3_VL_PARTS] = 1;
	layout[K3_VL_MERGED0] = 0;
	part[K3_VP_ITEM] = part[K3_VP_ROW0] = part[K3_VP_PATCH0] = part[K3_VP_MERGED0] = 0;
	part[K3_VP_T] = 1;
	part[K3_VP_H] = part[K3_VP_ROWS] = (int32_t)v->h;
	part[K3_VP_W] = (int32_t)v->w;
	return layout;
}

double *
bench_vit_rstd(struct bench_case *c, const float *x, size_t rows, size_t d, double eps)
{
	double *rstd = bench_doubles(c, rows);

	for (size_t i = 0; i < rows; i++) {
		double sum = 0;
		for (size_t k = 0; k < d; k++)
			sum += (double)x[i * d + k] * (double)x[i * d + k];
		rstd[i] = 1 / sqrt(sum / (double)d + eps);
	}
	return rstd;
}

double *
bench_vit_normed(struct bench_case *c, const float *x, const float *norm, size_t rows, size_t d,
		 double eps)
{
	double *y = bench_doubles(c, rows * d);

	for (size_t i = 0; i < rows; i++)
		bench_rms(y + i * d, x + i * d, norm, d, eps);
	return y;
}

double *
bench_vit_norm_back(struct bench_case *c, const double *dy, const float *x, const float *norm,
		    const float *add, size_t rows, size_t d, double eps, double **dnorm)
{
	double *dx = bench_doubles(c, rows * d);

	*dnorm = bench_doubles(c, d);
	for (size_t i = 0; i < rows; i++) {
		bench_rms_back(dx + i * d, *dnorm, dy + i * d, x + i * d, norm, d, eps);
		for (size_t k = 0; add && k < d; k++)
			dx[i * d + k] += (double)add[i * d + k];
	}
	return dx;
}

static bool
open_case(struct bench_case *c, struct bench *b, enum k3_op op, size_t n, size_t d, size_t k)
{
	return bench_open(c, b, k3_op_name(op), BENCH_SAME, BENCH_TARGET_GEMM, "n=%zu d=%zu k=%zu",
			  n, d, k);
}

static void
out_fwd(struct bench *b, const struct vit *v)
{
	struct k3_vit_out_args a = {.n = v->n, .d = v->d, .dq = v->dq, .h = v->heads};
	struct bench_case c;
	float *w;

	if (!open_case(&c, b, K3_OP_VIT_OUT_FWD, v->n, v->d, v->dq))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_OUT_FWD);
	float *y = bench_out(call, "y", v->n * v->d), *x = bench_in(call, v->n * v->d),
	      *o = bench_in(call, v->n * v->dq);
	a.w = bench_weight(call, v->d, v->dq, &w);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NT, v->n, v->d, v->dq);
	if (bench_run(&c)) {
		struct bench_rows rows = bench_rows(&c, y, v->d, v->n, v->d);
		bench_rows_product(&rows, BENCH_NT, v->dq, o, v->dq, w, v->dq);
		bench_rows_add(&rows, x, v->d);
		bench_rows_expect(&rows, "y");
	}
	bench_close(&c);
}

static void
out_bwd_dx(struct bench *b, const struct vit *v)
{
	struct k3_vit_out_args a = {.n = v->n, .d = v->d, .dq = v->dq, .h = v->heads};
	struct bench_case c;
	float *w;

	if (!open_case(&c, b, K3_OP_VIT_OUT_BWD_DX, v->n, v->d, v->dq))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_OUT_BWD_DX);
	float *dout = bench_out(call, "do", v->n * v->dq),
	      *delta = bench_out(call, "delta", v->n * v->heads), *dy = bench_in(call, v->n * v->d),
	      *o = bench_in(call, v->n * v->dq);
	a.w = bench_weight(call, v->d, v->dq, &w);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NN, v->n, v->dq, v->d);
	if (bench_run(&c)) {
		double *want = bench_wide(&c, BENCH_NN, v->n, v->dq, v->d, dy, v->d, w, v->dq),
		       *sums = bench_doubles(&c, v->n * v->heads);
		for (size_t i = 0; i < v->n * v->dq; i++)
			sums[i / v->hd] += want[i] * (double)o[i];
		bench_expect(&c, "do", dout, v->dq, want, v->n, v->dq, v->d);
		bench_expect(&c, "delta", delta, v->heads, sums, v->n, v->heads, v->d + v->hd);
	}
	bench_close(&c);
}

static void
out_bwd_dw(struct bench *b, const struct vit *v)
{
	struct k3_vit_out_args a = {.n = v->n, .d = v->d, .dq = v->dq, .h = v->heads};
	struct bench_case c;
	float *dw;

	if (!open_case(&c, b, K3_OP_VIT_OUT_BWD_DW, v->n, v->d, v->dq))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_OUT_BWD_DW);
	float *dy = bench_in(call, v->n * v->d), *o = bench_in(call, v->n * v->dq);
	a.w = bench_gradient(call, "dw", v->d, v->dq, &dw);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_TN, v->d, v->dq, v->n);
	if (bench_run(&c)) {
		struct bench_rows rows = bench_rows(&c, dw, v->dq, v->d, v->dq);
		bench_rows_product(&rows, BENCH_TN, v->n, dy, v->d, o, v->dq);
		bench_rows_expect(&rows, "dw");
	}
	bench_close(&c);
}

/* gelu of the tanh form, and its derivative. */
static double
gelu(double x)
{
	return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double
gelu_slope(double x)
{
	double k = sqrt(2 / M_PI), t = tanh(k * (x + 0.044715 * x * x * x));

	return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
}

static float *
active(struct bench_case *c, const float *u, size_t n)
{
	double *y = bench_doubles(c, n);

	for (size_t i = 0; i < n; i++)
		y[i] = gelu((double)u[i]);
	return bench_narrow(c, y, n);
}

static struct k3_vit_mlp_args
mlp_args(const struct vit *v)
{
	return (struct k3_vit_mlp_args){.n = v->n, .d = v->d, .f = v->f, .eps = (float)v->eps};
}

static void
mlp_fwd(struct bench *b, const struct vit *v)
{
	struct k3_vit_mlp_args a = mlp_args(v);
	size_t n = v->n, d = v->d, f = v->f;
	float *norm, *w0, *w1;
	struct bench_case c;

	if (!open_case(&c, b, K3_OP_VIT_MLP_FWD, n, d, f))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_MLP_FWD);
	float *y = bench_out(call, "y", n * d), *u = bench_out(call, "u", n * f),
	      *rstd = bench_out(call, "rstd", n), *x = bench_in(call, n * d);
	bench_work(call, n * (d + f));
	a.norm = bench_weight(call, 1, d, &norm);
	a.fc0 = bench_weight(call, f, d, &w0);
	a.fc1 = bench_weight(call, d, f, &w1);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NT, n, f, d);
	bench_product(call, BENCH_NT, n, d, f);
	if (bench_run(&c)) {
		float *normed =
			bench_narrow(&c, bench_vit_normed(&c, x, norm, n, d, v->eps), n * d);
		struct bench_rows hidden = bench_rows(&c, u, f, n, f),
				  out = bench_rows(&c, y, d, n, d);
		bench_rows_product(&hidden, BENCH_NT, d, normed, d, w0, d);
		bench_rows_product(&out, BENCH_NT, f, active(&c, u, n * f), f, w1, f);
		bench_rows_add(&out, x, d);
		bench_rows_expect(&hidden, "u");
		bench_rows_expect(&out, "y");
		bench_expect(&c, "rstd", rstd, 1, bench_vit_rstd(&c, x, n, d, v->eps), n, 1, d);
	}
	bench_close(&c);
}

static void
mlp_bwd_dx(struct bench *b, const struct vit *v)
{
	struct k3_vit_mlp_args a = mlp_args(v);
	size_t n = v->n, d = v->d, f = v->f;
	float *dnorm, *norm, *w0, *w1;
	struct bench_case c;

	if (!open_case(&c, b, K3_OP_VIT_MLP_BWD_DX, n, d, f))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_MLP_BWD_DX);
	float *dx = bench_out(call, "dx", n * d), *du = bench_out(call, "du", n * f),
	      *dy = bench_in(call, n * d), *u = bench_push(call, bench_random(&c, n * f, -3, 3)),
	      *x = bench_in(call, n * d);
	bench_push(call, bench_narrow(&c, bench_vit_rstd(&c, x, n, d, v->eps), n));
	bench_work(call, n * d);
	a.dnorm = bench_gradient(call, "dnorm", 1, d, &dnorm);
	a.norm = bench_weight(call, 1, d, &norm);
	a.fc0 = bench_weight(call, f, d, &w0);
	a.fc1 = bench_weight(call, d, f, &w1);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NN, n, f, d);
	bench_product(call, BENCH_NN, n, d, f);
	if (bench_run(&c)) {
		double *want = bench_wide(&c, BENCH_NN, n, f, d, dy, d, w1, f), *dn, *sums;
		for (size_t i = 0; i < n * f; i++)
			want[i] *= gelu_slope((double)u[i]);
		dn = bench_wide(&c, BENCH_NN, n, d, f, bench_narrow(&c, want, n * f), f, w0, d);
		bench_expect(&c, "du", du, f, want, n, f, d);
		bench_expect(&c, "dx", dx, d,
			     bench_vit_norm_back(&c, dn, x, norm, dy, n, d, v->eps, &sums), n, d,
			     d + f);
		bench_expect(&c, "dnorm", dnorm, d, sums, 1, d, n + d + f);
	}
	bench_close(&c);
}

static void
mlp_bwd_dw(struct bench *b, const struct vit *v)
{
	struct k3_vit_mlp_args a = mlp_args(v);
	size_t n = v->n, d = v->d, f = v->f;
	float *norm, *dw0, *dw1;
	struct bench_case c;

	if (!open_case(&c, b, K3_OP_VIT_MLP_BWD_DW, n, d, f))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_MLP_BWD_DW);
	float *du = bench_in(call, n * f), *dy = bench_in(call, n * d),
	      *u = bench_push(call, bench_random(&c, n * f, -3, 3)), *x = bench_in(call, n * d);
	bench_push(call, bench_narrow(&c, bench_vit_rstd(&c, x, n, d, v->eps), n));
	bench_work(call, n * (d + f));
	a.norm = bench_weight(call, 1, d, &norm);
	a.fc0 = bench_gradient(call, "dfc0", f, d, &dw0);
	a.fc1 = bench_gradient(call, "dfc1", d, f, &dw1);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_TN, f, d, n);
	bench_product(call, BENCH_TN, d, f, n);
	if (bench_run(&c)) {
		float *normed =
			bench_narrow(&c, bench_vit_normed(&c, x, norm, n, d, v->eps), n * d);
		struct bench_rows up = bench_rows(&c, dw0, d, f, d),
				  down = bench_rows(&c, dw1, f, d, f);
		bench_rows_product(&up, BENCH_TN, n, du, f, normed, d);
		bench_rows_product(&down, BENCH_TN, n, dy, d, active(&c, u, n * f), f);
		bench_rows_expect(&up, "dfc0");
		bench_rows_expect(&down, "dfc1");
	}
	bench_close(&c);
}

/* About as many patches as the tile has tokens, whole merged tokens. */
static struct vit
shapes(const struct bench *b)
{
	struct k3_config small;
	const struct k3_vision_config *c = &b->model->vision;
	size_t merged = b->tokens > 4 ? b->tokens / 4 : 1, rows = 1;

	if (!c->present && k3_config_preset(&small, "small") == 0)
		c = &small.vision;
	while ((rows + 1) * (rows + 1) <= merged)
		rows++;
	struct vit v = {.h = rows * c->merge_h,
			.w = merged / rows * c->merge_w,
			.d = c->width,
			.dq = c->qkv_width,
			.heads = c->heads,
			.hd = c->qkv_width / c->heads,
			.f = c->ffn,
			.m = rows * (merged / rows),
			.c = (size_t)c->merge_h * c->merge_w * c->width,
			.dt = b->model->width,
			.eps = c->norm_eps};
	v.n = v.h * v.w;
	return v;
}

void
bench_vit(struct bench *b)
{
	struct vit v = shapes(b);

	bench_vit_edges(b, &v);
	bench_vit_qkv(b, &v);
	bench_vit_attn(b, &v);
	out_fwd(b, &v);
	out_bwd_dx(b, &v);
	out_bwd_dw(b, &v);
	mlp_fwd(b, &v);
	mlp_bwd_dx(b, &v);
	mlp_bwd_dw(b, &v);
	bench_vit_project(b, &v);
}
