/* k3_bench op vit: queries, keys and values with their rotation. */
#include <math.h>
#include <string.h>

#include "bench_vit.h"

static struct k3_vit_qkv_args
args_of(const struct bench_vit_shape *x)
{
	return (struct k3_vit_qkv_args){
		.n = x->n, .d = x->d, .dq = x->dq, .h = x->h, .eps = (float)x->v->norm_eps};
}

static bool
open_case(struct bench_case *c, struct bench *b, const struct bench_vit_shape *x, enum k3_op op)
{
	return bench_open(c, b, k3_op_name(op), BENCH_SAME, BENCH_TARGET_GEMM, "n=%zu d=%zu dq=%zu",
			  x->n, x->d, x->dq);
}

/* Queries and keys (2 dq columns of 3 dq) turn, in place: pair 2i by the column, 2i + 1 by the row;
 * way -1 turns back. */
static void
turn(const struct bench_vit_shape *x, double *qkv, double way)
{
	for (size_t i = 0; i < x->n * 2 * x->dq; i += 2) {
		size_t patch = i / (2 * x->dq), column = i % (2 * x->dq), pair = column % x->hd / 2;
		double *at = qkv + patch * 3 * x->dq + column, a = at[0], b = at[1];
		double place = (double)(pair % 2 ? patch / x->cols : patch % x->cols);
		double angle = place * pow(10000, -4 * (double)(pair / 2) / (double)x->hd) * way;

		at[0] = a * cos(angle) - b * sin(angle);
		at[1] = a * sin(angle) + b * cos(angle);
	}
}

static void
forward(struct bench *b, const struct bench_vit_shape *x)
{
	struct k3_vit_qkv_args a = args_of(x);
	size_t n = x->n, d = x->d, ld = 3 * x->dq;
	struct bench_case c;
	float *norm, *w;

	if (!open_case(&c, b, x, K3_OP_VIT_QKV_FWD))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_QKV_FWD);
	float *qkv = bench_out(call, "qkv", n * ld), *rstd = bench_out(call, "rstd", n),
	      *in = bench_in(call, n * d);
	bench_keep(&c, rstd);
	bench_push(call, bench_vit_layout(&c, x));
	bench_work(call, k3_vit_qkv_work_floats(n, d, x->hd));
	a.norm = bench_weight(call, 1, d, &norm);
	a.w = bench_weight(call, ld, d, &w);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NT, n, ld, d);
	if (bench_run(&c)) {
		float *normed = bench_vit_normed(&c, in, norm, n, d, x->v->norm_eps);
		double *want = bench_wide(&c, BENCH_NT, n, ld, d, normed, d, w, d);
		turn(x, want, 1);
		bench_expect(&c, "qkv", qkv, ld, want, n, ld, d);
		bench_expect(&c, "rstd", rstd, 1, bench_vit_factors(&c, in, n, d, x->v->norm_eps),
			     n, 1, 1);
	}
	bench_close(&c);
}

/* dq | dkv, turned back. */
static double *
turned_back(struct bench_case *c, const struct bench_vit_shape *x, const float *dq,
	    const float *dkv)
{
	size_t ld = 3 * x->dq;
	double *dp = bench_doubles(c, x->n * ld);

	for (size_t i = 0; i < x->n * ld; i++) {
		size_t row = i / ld, col = i % ld;
		dp[i] = (double)(col < x->dq ? dq[row * x->dq + col]
					     : dkv[row * 2 * x->dq + col - x->dq]);
	}
	turn(x, dp, -1);
	return dp;
}

static void
backward_data(struct bench *b, const struct bench_vit_shape *x)
{
	struct k3_vit_qkv_args a = args_of(x);
	size_t n = x->n, d = x->d, ld = 3 * x->dq;
	struct bench_case c;
	float *norm, *w, *dnorm;

	if (!open_case(&c, b, x, K3_OP_VIT_QKV_BWD_DX))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_QKV_BWD_DX);
	float *dx = bench_out(call, "dx", n * d), *dp = bench_out(call, "dp", n * ld),
	      *dy = bench_in(call, n * d), *dq = bench_in(call, n * x->dq),
	      *dkv = bench_in(call, n * 2 * x->dq), *in = bench_in(call, n * d);
	bench_push(call, bench_narrow(&c, bench_vit_factors(&c, in, n, d, x->v->norm_eps), n));
	bench_push(call, bench_vit_layout(&c, x));
	bench_work(call, k3_vit_qkv_work_floats(n, d, x->hd));
	a.dnorm = bench_gradient(call, "dnorm", 1, d, &dnorm);
	a.norm = bench_weight(call, 1, d, &norm);
	a.w = bench_weight(call, ld, d, &w);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NN, n, d, ld);
	if (bench_run(&c)) {
		double *dn = bench_wide(&c, BENCH_NN, n, d, ld, dp, ld, w, d),
		       *want = bench_doubles(&c, n * d), *dw = bench_doubles(&c, d);
		bench_expect(&c, "dp", dp, ld, turned_back(&c, x, dq, dkv), n, ld, 1);
		for (size_t i = 0; i < n * d; i += d)
			bench_rms_back(want + i, dw, dn + i, in + i, norm, d, x->v->norm_eps);
		for (size_t i = 0; i < n * d; i++)
			want[i] += (double)dy[i];
		bench_expect(&c, "dx", dx, d, want, n, d, ld);
		bench_expect(&c, "dnorm", dnorm, d, dw, 1, d, n + ld);
	}
	bench_close(&c);
}

static void
backward_weights(struct bench *b, const struct bench_vit_shape *x)
{
	struct k3_vit_qkv_args a = args_of(x);
	size_t n = x->n, d = x->d, ld = 3 * x->dq;
	struct bench_case c;
	float *norm, *dw;

	if (!open_case(&c, b, x, K3_OP_VIT_QKV_BWD_DW))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_QKV_BWD_DW);
	float *dp = bench_in(call, n * ld), *in = bench_in(call, n * d);
	bench_push(call, bench_narrow(&c, bench_vit_factors(&c, in, n, d, x->v->norm_eps), n));
	bench_work(call, n * d);
	a.norm = bench_weight(call, 1, d, &norm);
	a.w = bench_gradient(call, "dw", ld, d, &dw);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_TN, ld, d, n);
	if (bench_run(&c)) {
		struct bench_rows rows = bench_rows(&c, dw, d, ld, d);
		bench_rows_product(&rows, BENCH_TN, n, dp, ld,
				   bench_vit_normed(&c, in, norm, n, d, x->v->norm_eps), d);
		bench_rows_expect(&rows, "dw");
	}
	bench_close(&c);
}

void
bench_vit_qkv(struct bench *b)
{
	struct bench_vit_shape x = bench_vit_shape(b);

	forward(b, &x);
	backward_data(b, &x);
	backward_weights(b, &x);
}
