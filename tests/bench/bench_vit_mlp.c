/* k3_bench op vit: feed-forward of a tower block, two products around the GELU of tanh. */
#include <math.h>

#include "bench_vit.h"

static struct k3_vit_mlp_args
args_of(const struct bench_vit_shape *x)
{
	return (struct k3_vit_mlp_args){
		.n = x->n, .d = x->d, .f = x->f, .eps = (float)x->v->norm_eps};
}

static bool
open_case(struct bench_case *c, struct bench *b, const struct bench_vit_shape *x, enum k3_op op)
{
	return bench_open(c, b, k3_op_name(op), BENCH_SAME, BENCH_TARGET_GEMM, "n=%zu d=%zu f=%zu",
			  x->n, x->d, x->f);
}

/* tanh of the GELU. */
static double
bend(double x)
{
	return tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
}

static float *
active(struct bench_case *c, const float *u, size_t n)
{
	double *y = bench_doubles(c, n);

	for (size_t i = 0; i < n; i++)
		y[i] = (double)u[i] / 2 * (1 + bend((double)u[i]));
	return bench_narrow(c, y, n);
}

static void
forward(struct bench *b, const struct bench_vit_shape *x)
{
	struct k3_vit_mlp_args a = args_of(x);
	size_t n = x->n, d = x->d, f = x->f;
	struct bench_case c;
	float *norm, *fc0, *fc1;

	if (!open_case(&c, b, x, K3_OP_VIT_MLP_FWD))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_MLP_FWD);
	float *y = bench_out(call, "y", n * d), *u = bench_out(call, "u", n * f),
	      *rstd = bench_out(call, "rstd", n), *in = bench_in(call, n * d);
	bench_keep(&c, rstd);
	bench_work(call, n * (d + f));
	a.norm = bench_weight(call, 1, d, &norm);
	a.fc0 = bench_weight(call, f, d, &fc0);
	a.fc1 = bench_weight(call, d, f, &fc1);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NT, n, f, d);
	bench_product(call, BENCH_NT, n, d, f);
	if (bench_run(&c)) {
		struct bench_rows up = bench_rows(&c, u, f, n, f), out = bench_rows(&c, y, d, n, d);
		bench_rows_product(&up, BENCH_NT, d,
				   bench_vit_normed(&c, in, norm, n, d, x->v->norm_eps), d, fc0, d);
		bench_rows_expect(&up, "u");
		bench_rows_add(&out, in, d);
		bench_rows_product(&out, BENCH_NT, f, active(&c, u, n * f), f, fc1, f);
		bench_rows_expect(&out, "y");
		bench_expect(&c, "rstd", rstd, 1, bench_vit_factors(&c, in, n, d, x->v->norm_eps),
			     n, 1, 1);
	}
	bench_close(&c);
}

/* du from the gradient of the activation, in place. */
static void
slope(double *du, const float *u, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		double v = (double)u[i], t = bend(v);
		du[i] *=
			(1 + t) / 2 + v / 2 * (1 - t * t) * sqrt(2 / M_PI) * (1 + 0.134145 * v * v);
	}
}

static void
backward_data(struct bench *b, const struct bench_vit_shape *x)
{
	struct k3_vit_mlp_args a = args_of(x);
	size_t n = x->n, d = x->d, f = x->f;
	struct bench_case c;
	float *norm, *fc0, *fc1, *dnorm;

	if (!open_case(&c, b, x, K3_OP_VIT_MLP_BWD_DX))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_MLP_BWD_DX);
	float *dx = bench_out(call, "dx", n * d), *du = bench_out(call, "du", n * f),
	      *dy = bench_in(call, n * d), *u = bench_push(call, bench_random(&c, n * f, -4, 4)),
	      *in = bench_in(call, n * d);
	bench_push(call, bench_narrow(&c, bench_vit_factors(&c, in, n, d, x->v->norm_eps), n));
	bench_work(call, n * d);
	a.dnorm = bench_gradient(call, "dnorm", 1, d, &dnorm);
	a.norm = bench_weight(call, 1, d, &norm);
	a.fc0 = bench_weight(call, f, d, &fc0);
	a.fc1 = bench_weight(call, d, f, &fc1);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NN, n, f, d);
	bench_product(call, BENCH_NN, n, d, f);
	if (bench_run(&c)) {
		double *back = bench_wide(&c, BENCH_NN, n, f, d, dy, d, fc1, f),
		       *dn = bench_wide(&c, BENCH_NN, n, d, f, du, f, fc0, d),
		       *want = bench_doubles(&c, n * d), *dw = bench_doubles(&c, d);
		slope(back, u, n * f);
		bench_expect(&c, "du", du, f, back, n, f, d);
		for (size_t i = 0; i < n * d; i += d)
			bench_rms_back(want + i, dw, dn + i, in + i, norm, d, x->v->norm_eps);
		for (size_t i = 0; i < n * d; i++)
			want[i] += (double)dy[i];
		bench_expect(&c, "dx", dx, d, want, n, d, f);
		bench_expect(&c, "dnorm", dnorm, d, dw, 1, d, n + f);
	}
	bench_close(&c);
}

static void
backward_weights(struct bench *b, const struct bench_vit_shape *x)
{
	struct k3_vit_mlp_args a = args_of(x);
	size_t n = x->n, d = x->d, f = x->f;
	struct bench_case c;
	float *norm, *dfc0, *dfc1;

	if (!open_case(&c, b, x, K3_OP_VIT_MLP_BWD_DW))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_MLP_BWD_DW);
	float *du = bench_in(call, n * f), *dy = bench_in(call, n * d),
	      *u = bench_push(call, bench_random(&c, n * f, -4, 4)), *in = bench_in(call, n * d);
	bench_push(call, bench_narrow(&c, bench_vit_factors(&c, in, n, d, x->v->norm_eps), n));
	bench_work(call, n * (d + f));
	a.norm = bench_weight(call, 1, d, &norm);
	a.fc0 = bench_gradient(call, "dfc0", f, d, &dfc0);
	a.fc1 = bench_gradient(call, "dfc1", d, f, &dfc1);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_TN, f, d, n);
	bench_product(call, BENCH_TN, d, f, n);
	if (bench_run(&c)) {
		struct bench_rows up = bench_rows(&c, dfc0, d, f, d),
				  down = bench_rows(&c, dfc1, f, d, f);
		bench_rows_product(&up, BENCH_TN, n, du, f,
				   bench_vit_normed(&c, in, norm, n, d, x->v->norm_eps), d);
		bench_rows_product(&down, BENCH_TN, n, dy, d, active(&c, u, n * f), f);
		bench_rows_expect(&up, "dfc0");
		bench_rows_expect(&down, "dfc1");
	}
	bench_close(&c);
}

void
bench_vit_mlp(struct bench *b)
{
	struct bench_vit_shape x = bench_vit_shape(b);

	forward(b, &x);
	backward_data(b, &x);
	backward_weights(b, &x);
}
