/* k3_bench op vit: queries, keys and values with their rotation, and attention of an image over
 * itself, forward and backward.  The oracle turns pairs one by one and forms whole matrices of
 * each head, in double. */
#include <cblas.h>
#include <math.h>

#include "bench_vit.h"

/* Turns the heads of a row in place: pair 2i of a head by the column, pair 2i+1 by the row. */
static void
turn(double *x, const struct vit *v, size_t patch, double sign)
{
	double at[2] = {(double)(patch % v->w), (double)(patch / v->w)};

	for (size_t h = 0; h < v->heads; h++)
		for (size_t k = 0; k < v->hd; k += 2) {
			double *y = x + h * v->hd + k, a = y[0], e = y[1],
			       angle = at[k / 2 % 2] *
				       pow(10000, -4.0 * (double)(k / 4) / (double)v->hd);
			y[0] = a * cos(angle) - sign * e * sin(angle);
			y[1] = e * cos(angle) + sign * a * sin(angle);
		}
}

static bool
open_qkv(struct bench_case *c, struct bench *b, const struct vit *v, enum k3_op op)
{
	return bench_open(c, b, k3_op_name(op), BENCH_SAME, BENCH_TARGET_GEMM,
			  "n=%zu d=%zu dq=%zu h=%zu", v->n, v->d, v->dq, v->heads);
}

static struct k3_vit_qkv_args
qkv_args(const struct vit *v)
{
	return (struct k3_vit_qkv_args){
		.n = v->n, .d = v->d, .dq = v->dq, .h = v->heads, .eps = (float)v->eps};
}

static void
qkv_fwd(struct bench *b, const struct vit *v)
{
	struct k3_vit_qkv_args a = qkv_args(v);
	size_t n = v->n, d = v->d, ld = 3 * v->dq;
	struct bench_case c;
	float *norm, *w;

	if (!open_qkv(&c, b, v, K3_OP_VIT_QKV_FWD))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_QKV_FWD);
	float *qkv = bench_out(call, "qkv", n * ld), *rstd = bench_out(call, "rstd", n),
	      *x = bench_in(call, n * d);
	bench_push(call, bench_vit_layout(&c, v));
	bench_work(call, k3_vit_qkv_work_floats(n, d, v->hd));
	a.norm = bench_weight(call, 1, d, &norm);
	a.w = bench_weight(call, ld, d, &w);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NT, n, ld, d);
	if (bench_run(&c)) {
		float *normed =
			bench_narrow(&c, bench_vit_normed(&c, x, norm, n, d, v->eps), n * d);
		double *want = bench_wide(&c, BENCH_NT, n, ld, d, normed, d, w, d);
		for (size_t i = 0; i < n; i++) {
			turn(want + i * ld, v, i, 1);
			turn(want + i * ld + v->dq, v, i, 1);
		}
		bench_expect(&c, "qkv", qkv, ld, want, n, ld, d);
		bench_expect(&c, "rstd", rstd, 1, bench_vit_rstd(&c, x, n, d, v->eps), n, 1, d);
	}
	bench_close(&c);
}

/* dq | dk turned back | dv. */
static double *
product_gradient(struct bench_case *c, const struct vit *v, const float *dq, const float *dkv)
{
	size_t ld = 3 * v->dq;
	double *dp = bench_doubles(c, v->n * ld);

	for (size_t i = 0; i < v->n; i++) {
		for (size_t k = 0; k < v->dq; k++) {
			dp[i * ld + k] = (double)dq[i * v->dq + k];
			dp[i * ld + v->dq + k] = (double)dkv[2 * i * v->dq + k];
			dp[i * ld + 2 * v->dq + k] = (double)dkv[(2 * i + 1) * v->dq + k];
		}
		turn(dp + i * ld, v, i, -1);
		turn(dp + i * ld + v->dq, v, i, -1);
	}
	return dp;
}

static void
qkv_bwd_dx(struct bench *b, const struct vit *v)
{
	struct k3_vit_qkv_args a = qkv_args(v);
	size_t n = v->n, d = v->d, ld = 3 * v->dq;
	float *dnorm, *norm, *w;
	struct bench_case c;

	if (!open_qkv(&c, b, v, K3_OP_VIT_QKV_BWD_DX))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_QKV_BWD_DX);
	float *dx = bench_out(call, "dx", n * d), *dp = bench_out(call, "dp", n * ld),
	      *dy = bench_in(call, n * d), *dq = bench_in(call, n * v->dq),
	      *dkv = bench_in(call, 2 * n * v->dq), *x = bench_in(call, n * d);
	bench_push(call, bench_narrow(&c, bench_vit_rstd(&c, x, n, d, v->eps), n));
	bench_push(call, bench_vit_layout(&c, v));
	bench_work(call, k3_vit_qkv_work_floats(n, d, v->hd));
	a.dnorm = bench_gradient(call, "dnorm", 1, d, &dnorm);
	a.norm = bench_weight(call, 1, d, &norm);
	a.w = bench_weight(call, ld, d, &w);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NN, n, d, ld);
	if (bench_run(&c)) {
		double *want = product_gradient(&c, v, dq, dkv), *sums,
		       *dn = bench_wide(&c, BENCH_NN, n, d, ld, bench_narrow(&c, want, n * ld), ld,
					w, d);
		bench_expect(&c, "dp", dp, ld, want, n, ld, 2);
		bench_expect(&c, "dx", dx, d,
			     bench_vit_norm_back(&c, dn, x, norm, dy, n, d, v->eps, &sums), n, d,
			     d + ld);
		bench_expect(&c, "dnorm", dnorm, d, sums, 1, d, n + d + ld);
	}
	bench_close(&c);
}

static void
qkv_bwd_dw(struct bench *b, const struct vit *v)
{
	struct k3_vit_qkv_args a = qkv_args(v);
	size_t n = v->n, d = v->d, ld = 3 * v->dq;
	struct bench_case c;
	float *norm, *dw;

	if (!open_qkv(&c, b, v, K3_OP_VIT_QKV_BWD_DW))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_QKV_BWD_DW);
	float *dp = bench_in(call, n * ld), *x = bench_in(call, n * d);
	bench_push(call, bench_narrow(&c, bench_vit_rstd(&c, x, n, d, v->eps), n));
	bench_work(call, n * d);
	a.norm = bench_weight(call, 1, d, &norm);
	a.w = bench_gradient(call, "dw", ld, d, &dw);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_TN, ld, d, n);
	if (bench_run(&c)) {
		float *normed =
			bench_narrow(&c, bench_vit_normed(&c, x, norm, n, d, v->eps), n * d);
		struct bench_rows rows = bench_rows(&c, dw, d, ld, d);
		bench_rows_product(&rows, BENCH_TN, n, dp, ld, normed, d);
		bench_rows_expect(&rows, "dw");
	}
	bench_close(&c);
}

void
bench_vit_qkv(struct bench *b, const struct vit *v)
{
	qkv_fwd(b, v);
	qkv_bwd_dx(b, v);
	qkv_bwd_dw(b, v);
}

/* What attention gives and takes, [n, ...]. */
struct attn {
	const float *qkv, *da;
	double *o, *lse, *delta, *dq, *dkv;
};

static double *
columns(struct bench_case *c, const float *x, size_t n, size_t ld, size_t hd)
{
	double *y = bench_doubles(c, n * hd);

	for (size_t i = 0; i < n * hd; i++)
		y[i] = (double)x[i / hd * ld + i % hd];
	return y;
}

static void
product(double *y, CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, size_t m, size_t n, size_t k,
	const double *a, const double *b)
{
	cblas_dgemm(CblasRowMajor, ta, tb, (blasint)m, (blasint)n, (blasint)k, 1.0, a,
		    (blasint)(ta == CblasTrans ? m : k), b, (blasint)(tb == CblasTrans ? k : n),
		    0.0, y, (blasint)n);
}

/* Scores to weights, row by row; lse of each. */
static void
softmax(double *s, double *lse, size_t n, size_t ld, double scale)
{
	for (size_t i = 0; i < n; i++, s += n) {
		double sum = 0;
		for (size_t j = 0; j < n; j++)
			sum += s[j] = exp(scale * s[j]);
		for (size_t j = 0; j < n; j++)
			s[j] /= sum;
		lse[i * ld] = log(sum);
	}
}

static void
solve_head(struct bench_case *c, const struct vit *v, struct attn *x, size_t h)
{
	size_t n = v->n, hd = v->hd, dq = v->dq, at = h * hd;
	double *q = columns(c, x->qkv + at, n, 3 * dq, hd),
	       *k = columns(c, x->qkv + dq + at, n, 3 * dq, hd),
	       *val = columns(c, x->qkv + 2 * dq + at, n, 3 * dq, hd),
	       *da = columns(c, x->da + at, n, dq, hd), *s = bench_doubles(c, n * n),
	       *ds = bench_doubles(c, n * n), *y[4], scale = 1 / sqrt((double)hd);

	for (int i = 0; i < 4; i++)
		y[i] = bench_doubles(c, n * hd); /* o, dv, dq, dk */
	product(s, CblasNoTrans, CblasTrans, n, n, hd, q, k);
	softmax(s, x->lse + h, n, v->heads, scale);
	product(y[0], CblasNoTrans, CblasNoTrans, n, hd, n, s, val);
	product(y[1], CblasTrans, CblasNoTrans, n, hd, n, s, da);
	product(ds, CblasNoTrans, CblasTrans, n, n, hd, da, val);
	for (size_t i = 0; i < n; i++) {
		double *delta = &x->delta[i * v->heads + h];
		for (size_t e = 0; e < hd; e++)
			*delta += y[0][i * hd + e] * da[i * hd + e];
		for (size_t j = 0; j < n; j++)
			ds[i * n + j] = s[i * n + j] * (ds[i * n + j] - *delta) * scale;
	}
	product(y[2], CblasNoTrans, CblasNoTrans, n, hd, n, ds, k);
	product(y[3], CblasTrans, CblasNoTrans, n, hd, n, ds, q);
	for (size_t i = 0; i < n * hd; i++) {
		size_t row = i / hd, col = at + i % hd;
		x->o[row * dq + col] = y[0][i];
		x->dq[row * dq + col] = y[2][i];
		x->dkv[2 * row * dq + col] = y[3][i];
		x->dkv[(2 * row + 1) * dq + col] = y[1][i];
	}
}

static struct k3_vit_attn_args
attn_args(const struct vit *v)
{
	return (struct k3_vit_attn_args){.n = v->n,
					 .nk = v->n,
					 .dq = v->dq,
					 .h = v->heads,
					 .scale = 1.0f / sqrtf((float)v->hd),
					 .init_dq = 1,
					 .init_dkv = 1};
}

static void
push_calls(struct bench_case *c, const struct vit *v, const struct attn *x)
{
	struct bench_call *fwd = bench_call(c, K3_OP_VIT_ATTN_FWD),
			  *bwd = bench_call(c, K3_OP_VIT_ATTN_BWD);
	struct k3_vit_attn_args a = attn_args(v);
	size_t n = v->n, dq = v->dq;
	const int32_t *layout = bench_vit_layout(c, v);

	bench_out(fwd, "o", n * dq);
	bench_out(fwd, "lse", n * v->heads);
	bench_push(fwd, x->qkv);
	bench_push(fwd, layout);
	bench_work(fwd, k3_vit_attn_fwd_work_floats(n, v->hd));
	a.kqkv = (struct k3_list){fwd->n, 1};
	bench_push(fwd, x->qkv);
	a.klayout = (struct k3_list){fwd->n, 1};
	bench_push(fwd, layout);
	bench_args(fwd, &a, sizeof(a));
	fwd->flops = 4.0 * (double)(n * n * dq);
	a = attn_args(v);
	bench_out(bwd, "dq", n * dq);
	bench_out(bwd, "dkv", 2 * n * dq);
	bench_push(bwd, x->qkv);
	bench_push(bwd, x->qkv);
	bench_push(bwd, x->da);
	bench_push(bwd, bench_narrow(c, x->lse, n * v->heads));
	bench_push(bwd, bench_narrow(c, x->delta, n * v->heads));
	bench_push(bwd, layout);
	bench_push(bwd, layout);
	bench_work(bwd, k3_vit_attn_bwd_work_floats(v->hd));
	bench_args(bwd, &a, sizeof(a));
	bwd->flops = 10.0 * (double)(n * n * dq);
}

void
bench_vit_attn(struct bench *b, const struct vit *v)
{
	size_t n = v->n, dq = v->dq;
	struct bench_case c;

	if (!bench_open(&c, b, "vit_attn", BENCH_CUBE, BENCH_TARGET_ATTENTION, "n=%zu h=%zu hd=%zu",
			n, v->heads, v->hd))
		return;
	struct attn x = {.qkv = bench_random(&c, 3 * n * dq, -2, 2),
			 .da = bench_random(&c, n * dq, -1, 1),
			 .o = bench_doubles(&c, n * dq),
			 .lse = bench_doubles(&c, n * v->heads),
			 .delta = bench_doubles(&c, n * v->heads),
			 .dq = bench_doubles(&c, n * dq),
			 .dkv = bench_doubles(&c, 2 * n * dq)};
	for (size_t h = 0; h < v->heads; h++)
		solve_head(&c, v, &x, h);
	push_calls(&c, v, &x);
	if (bench_run(&c)) {
		const double *want[] = {x.o, x.lse, x.dq, x.dkv};
		for (size_t i = 0; i < 4; i++) {
			const struct bench_output *out = &c.output[i];
			bench_expect(&c, out->name, out->data, out->n, want[i], 1, out->n,
				     v->hd + n);
		}
	}
	bench_close(&c);
}
