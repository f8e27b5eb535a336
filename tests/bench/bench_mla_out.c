/* k3_bench op mla: output gate and projection. */
#include "bench.h"
#include "bench_mla.h"

struct out {
	size_t t, d, h, v, hv;
	struct k3_mla_out_args a;
};

static bool
open_out(struct bench_case *c, struct bench *b, enum k3_op op, struct out *x)
{
	const struct k3_config *m = b->model;

	x->t = b->tokens;
	x->d = m->width;
	x->h = m->heads;
	x->v = m->v_dim;
	x->hv = x->h * x->v;
	x->a = (struct k3_mla_out_args){
		.t = x->t, .d = x->d, .h = x->h, .v = x->v, .group_heads = m->heads};
	return bench_open(c, b, k3_op_name(op), BENCH_SAME, BENCH_TARGET_GEMM, "t=%zu d=%zu hv=%zu",
			  x->t, x->d, x->hv);
}

static float *
gated(struct bench_case *c, const struct out *x, const float *o, const float *zg)
{
	double *y = bench_doubles(c, x->t * x->hv);

	for (size_t i = 0; i < x->t * x->hv; i++)
		y[i] = (double)o[i] * bench_sigmoid((double)zg[i]);
	return bench_narrow(c, y, x->t * x->hv);
}

static void
forward(struct bench *b)
{
	struct out x;
	struct bench_case c;
	float *wo;

	if (!open_out(&c, b, K3_OP_MLA_OUT_FWD, &x))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_MLA_OUT_FWD);
	float *p_out = bench_out(call, "p_out", x.t * x.d), *zg = bench_in(call, x.t * x.hv);
	bench_work(call, x.t * x.hv);
	x.a.o = (struct k3_list){call->n, 1};
	float *o = bench_in(call, x.t * x.hv);
	x.a.p_in = (struct k3_list){call->n, 1};
	float *p_in = bench_in(call, x.t * x.d);
	x.a.wo = bench_weight(call, x.d, x.hv, &wo);
	bench_args(call, &x.a, sizeof(x.a));
	bench_product(call, BENCH_NT, x.t, x.d, x.hv);
	if (bench_run(&c)) {
		struct bench_rows rows = bench_rows(&c, p_out, x.d, x.t, x.d);
		bench_rows_add(&rows, p_in, x.d);
		bench_rows_product(&rows, BENCH_NT, x.hv, gated(&c, &x, o, zg), x.hv, wo, x.hv);
		bench_rows_expect(&rows, "p_out");
	}
	bench_close(&c);
}

static void
backward_data(struct bench *b)
{
	struct out x;
	struct bench_case c;
	float *wo;

	if (!open_out(&c, b, K3_OP_MLA_OUT_BWD_DX, &x))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_MLA_OUT_BWD_DX);
	float *dzg = bench_out(call, "dzg", x.t * x.hv), *dp = bench_in(call, x.t * x.d);
	float *zg = bench_in(call, x.t * x.hv);
	bench_work(call, x.t * x.hv);
	x.a.da = (struct k3_list){call->n, 1};
	float *da = bench_out(call, "da", x.t * x.hv);
	x.a.delta = (struct k3_list){call->n, 1};
	float *delta = bench_out(call, "delta", x.t * x.h);
	bench_keep(&c, delta);
	x.a.o = (struct k3_list){call->n, 1};
	float *o = bench_in(call, x.t * x.hv);
	x.a.wo = bench_weight(call, x.d, x.hv, &wo);
	bench_args(call, &x.a, sizeof(x.a));
	bench_product(call, BENCH_NN, x.t, x.hv, x.d);
	if (bench_run(&c)) {
		double *dg = bench_wide(&c, BENCH_NN, x.t, x.hv, x.d, dp, x.d, wo, x.hv);
		double *want = bench_doubles(&c, x.t * x.hv), *dot = bench_doubles(&c, x.t * x.h);
		for (size_t i = 0; i < x.t * x.hv; i++) {
			double z = bench_sigmoid((double)zg[i]), out = (double)o[i];
			want[i] = dg[i] * out * z * (1 - z);
			dg[i] *= z;
			dot[i / x.v] += dg[i] * out;
		}
		bench_expect(&c, "dzg", dzg, x.hv, want, x.t, x.hv, x.d);
		bench_expect(&c, "da", da, x.hv, dg, x.t, x.hv, x.d);
		bench_expect(&c, "delta", delta, x.h, dot, x.t, x.h, x.d);
	}
	bench_close(&c);
}

static void
backward_weights(struct bench *b)
{
	struct out x;
	struct bench_case c;
	float *dwo;

	if (!open_out(&c, b, K3_OP_MLA_OUT_BWD_DW, &x))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_MLA_OUT_BWD_DW);
	float *dp = bench_in(call, x.t * x.d), *zg = bench_in(call, x.t * x.hv);
	bench_work(call, x.t * x.hv);
	x.a.o = (struct k3_list){call->n, 1};
	float *o = bench_in(call, x.t * x.hv);
	x.a.wo = bench_gradient(call, "dwo", x.d, x.hv, &dwo);
	bench_args(call, &x.a, sizeof(x.a));
	bench_product(call, BENCH_TN, x.d, x.hv, x.t);
	if (bench_run(&c)) {
		struct bench_rows rows = bench_rows(&c, dwo, x.hv, x.d, x.hv);
		bench_rows_product(&rows, BENCH_TN, x.t, dp, x.d, gated(&c, &x, o, zg), x.hv);
		bench_rows_expect(&rows, "dwo");
	}
	bench_close(&c);
}

void
bench_mla_out(struct bench *b)
{
	forward(b);
	backward_data(b);
	backward_weights(b);
}
