/* k3_bench op vit: the projector, two products around the exact GELU. */
#include <math.h>

#include "bench_vit.h"

static double
below(double x)
{
	return erfc(-x / sqrt(2)) / 2;
}

static float *
active(struct bench_case *c, const float *u, size_t n)
{
	double *y = bench_doubles(c, n);

	for (size_t i = 0; i < n; i++)
		y[i] = (double)u[i] * below((double)u[i]);
	return bench_narrow(c, y, n);
}

static struct k3_vit_project_args
args_of(const struct bench_vit_shape *x)
{
	return (struct k3_vit_project_args){
		.m = x->m, .c = x->c, .dt = x->dt, .eps = (float)x->v->projector_eps};
}

static bool
open_case(struct bench_case *c, struct bench *b, const struct bench_vit_shape *x, enum k3_op op)
{
	return bench_open(c, b, k3_op_name(op), BENCH_SAME, BENCH_TARGET_GEMM, "m=%zu c=%zu d=%zu",
			  x->m, x->c, x->dt);
}

static void
forward(struct bench *b, const struct bench_vit_shape *x)
{
	struct k3_vit_project_args a = args_of(x);
	size_t m = x->m, width = x->c, d = x->dt;
	struct bench_case c;
	float *w1, *w2, *norm;

	if (!open_case(&c, b, x, K3_OP_VIT_PROJECT_FWD))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_PROJECT_FWD);
	float *y = bench_out(call, "y", m * d), *u = bench_out(call, "u", m * width),
	      *s = bench_out(call, "s", m * d), *rstd = bench_out(call, "rstd", m),
	      *z = bench_in(call, m * width);
	bench_keep(&c, rstd);
	bench_work(call, m * width);
	a.w1 = bench_weight(call, width, width, &w1);
	a.w2 = bench_weight(call, d, width, &w2);
	a.norm = bench_weight(call, 1, d, &norm);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NT, m, width, width);
	bench_product(call, BENCH_NT, m, d, width);
	if (bench_run(&c)) {
		struct bench_rows first = bench_rows(&c, u, width, m, width),
				  second = bench_rows(&c, s, d, m, d);
		double *want = bench_doubles(&c, m * d);
		bench_rows_product(&first, BENCH_NT, width, z, width, w1, width);
		bench_rows_product(&second, BENCH_NT, width, active(&c, u, m * width), width, w2,
				   width);
		bench_rows_expect(&first, "u");
		bench_rows_expect(&second, "s");
		for (size_t i = 0; i < m * d; i += d)
			bench_rms(want + i, s + i, norm, d, x->v->projector_eps);
		bench_expect(&c, "y", y, d, want, m, d, 1);
		bench_expect(&c, "rstd", rstd, 1,
			     bench_vit_factors(&c, s, m, d, x->v->projector_eps), m, 1, 1);
	}
	bench_close(&c);
}

static void
backward_data(struct bench *b, const struct bench_vit_shape *x)
{
	struct k3_vit_project_args a = args_of(x);
	size_t m = x->m, width = x->c, d = x->dt;
	struct bench_case c;
	float *w1, *w2, *norm, *dnorm;

	if (!open_case(&c, b, x, K3_OP_VIT_PROJECT_BWD_DX))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_PROJECT_BWD_DX);
	float *dz = bench_out(call, "dz", m * width), *du = bench_out(call, "du", m * width),
	      *ds = bench_out(call, "ds", m * d), *dy = bench_in(call, m * d),
	      *u = bench_push(call, bench_random(&c, m * width, -4, 4)), *s = bench_in(call, m * d);
	bench_push(call, bench_narrow(&c, bench_vit_factors(&c, s, m, d, x->v->projector_eps), m));
	a.dnorm = bench_gradient(call, "dnorm", 1, d, &dnorm);
	a.w1 = bench_weight(call, width, width, &w1);
	a.w2 = bench_weight(call, d, width, &w2);
	a.norm = bench_weight(call, 1, d, &norm);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NN, m, width, d);
	bench_product(call, BENCH_NN, m, width, width);
	if (bench_run(&c)) {
		double *want = bench_doubles(&c, m * d), *dw = bench_doubles(&c, d),
		       *dn = bench_doubles(&c, m * d);
		struct bench_rows out = bench_rows(&c, dz, width, m, width);
		for (size_t i = 0; i < m * d; i++)
			dn[i] = (double)dy[i];
		for (size_t i = 0; i < m * d; i += d)
			bench_rms_back(want + i, dw, dn + i, s + i, norm, d, x->v->projector_eps);
		bench_expect(&c, "ds", ds, d, want, m, d, d);
		bench_expect(&c, "dnorm", dnorm, d, dw, 1, d, m);
		double *back = bench_wide(&c, BENCH_NN, m, width, d, ds, d, w2, width);
		for (size_t i = 0; i < m * width; i++) {
			double v = (double)u[i];
			back[i] *= below(v) + v * exp(-v * v / 2) / sqrt(2 * M_PI);
		}
		bench_expect(&c, "du", du, width, back, m, width, d);
		bench_rows_product(&out, BENCH_NN, width, du, width, w1, width);
		bench_rows_expect(&out, "dz");
	}
	bench_close(&c);
}

static void
backward_weights(struct bench *b, const struct bench_vit_shape *x)
{
	struct k3_vit_project_args a = args_of(x);
	size_t m = x->m, width = x->c, d = x->dt;
	struct bench_case c;
	float *dw1, *dw2;

	if (!open_case(&c, b, x, K3_OP_VIT_PROJECT_BWD_DW))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_PROJECT_BWD_DW);
	float *du = bench_in(call, m * width), *ds = bench_in(call, m * d),
	      *u = bench_push(call, bench_random(&c, m * width, -4, 4)),
	      *z = bench_in(call, m * width);
	bench_work(call, m * width);
	a.w1 = bench_gradient(call, "dw1", width, width, &dw1);
	a.w2 = bench_gradient(call, "dw2", d, width, &dw2);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_TN, width, width, m);
	bench_product(call, BENCH_TN, d, width, m);
	if (bench_run(&c)) {
		struct bench_rows first = bench_rows(&c, dw1, width, width, width),
				  second = bench_rows(&c, dw2, width, d, width);
		bench_rows_product(&first, BENCH_TN, m, du, width, z, width);
		bench_rows_product(&second, BENCH_TN, m, ds, d, active(&c, u, m * width), width);
		bench_rows_expect(&first, "dw1");
		bench_rows_expect(&second, "dw2");
	}
	bench_close(&c);
}

void
bench_vit_project(struct bench *b)
{
	struct bench_vit_shape x = bench_vit_shape(b);

	forward(b, &x);
	backward_data(b, &x);
	backward_weights(b, &x);
}
