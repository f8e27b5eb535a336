/* k3_bench op kda: norm of each head, gate, output projection. */
#include "bench.h"
#include "bench_kda.h"

struct out {
	size_t t, d, p, h, v;
	struct k3_kda_out_args a;
};

static bool
open_out(struct bench_case *c, struct bench *b, enum k3_op op, struct out *x)
{
	const struct k3_config *m = b->model;

	x->t = b->tokens;
	x->d = m->width;
	x->h = m->kda_heads;
	x->v = m->kda_dim;
	x->p = x->h * x->v;
	x->a = (struct k3_kda_out_args){.t = x->t,
					.d = x->d,
					.p = x->p,
					.h = x->h,
					.v = x->v,
					.eps = (float)m->norm_eps,
					.group_heads = (uint32_t)x->h};
	return bench_open(c, b, k3_op_name(op), BENCH_SAME, BENCH_TARGET_GEMM, "t=%zu d=%zu p=%zu",
			  x->t, x->d, x->p);
}

/* rmsnorm(o; on) * sigmoid(gg), rounded. */
static float *
gated(struct bench_case *c, const struct out *x, const float *o, const float *gg, const float *on)
{
	double *y = bench_doubles(c, x->t * x->p);

	for (size_t i = 0; i < x->t * x->h; i++)
		bench_rms(y + i * x->v, o + i * x->v, on, x->v, (double)x->a.eps);
	for (size_t i = 0; i < x->t * x->p; i++)
		y[i] *= bench_sigmoid((double)gg[i]);
	return bench_narrow(c, y, x->t * x->p);
}

static void
forward(struct bench *b)
{
	struct out x;
	struct bench_case c;
	float *on, *wo;

	if (!open_out(&c, b, K3_OP_KDA_OUT_FWD, &x))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_KDA_OUT_FWD);
	float *p_out = bench_out(call, "p_out", x.t * x.d), *gg = bench_in(call, x.t * x.p);
	bench_work(call, x.t * x.p);
	x.a.o = (struct k3_list){call->n, 1};
	float *o = bench_in(call, x.t * x.p);
	x.a.p_in = (struct k3_list){call->n, 1};
	float *p_in = bench_in(call, x.t * x.d);
	x.a.on = bench_weight(call, 1, x.v, &on);
	x.a.wo = bench_weight(call, x.d, x.p, &wo);
	bench_args(call, &x.a, sizeof(x.a));
	bench_product(call, BENCH_NT, x.t, x.d, x.p);
	if (bench_run(&c)) {
		struct bench_rows rows = bench_rows(&c, p_out, x.d, x.t, x.d);
		bench_rows_add(&rows, p_in, x.d);
		bench_rows_product(&rows, BENCH_NT, x.p, gated(&c, &x, o, gg, on), x.p, wo, x.p);
		bench_rows_expect(&rows, "p_out");
	}
	bench_close(&c);
}

static void
expect_back(struct bench_case *c, const struct out *x, const double *dy, const float *o,
	    const float *gg, const float *on, const float *dgg, const float *dout, const float *don)
{
	double *want_dgg = bench_doubles(c, x->t * x->p), *want_do = bench_doubles(c, x->t * x->p);
	double *want_don = bench_doubles(c, x->v), dn[x->v];

	for (size_t i = 0; i < x->t * x->h; i++) {
		const float *oi = o + i * x->v;
		double *n = want_dgg + i * x->v;
		bench_rms(n, oi, on, x->v, (double)x->a.eps);
		for (size_t j = 0; j < x->v; j++) {
			double z = bench_sigmoid((double)gg[i * x->v + j]);
			dn[j] = dy[i * x->v + j] * z;
			n[j] *= dn[j] * (1 - z);
		}
		bench_rms_back(want_do + i * x->v, want_don, dn, oi, on, x->v, (double)x->a.eps);
	}
	bench_expect(c, "dgg", dgg, x->p, want_dgg, x->t, x->p, x->d);
	bench_expect(c, "dout", dout, x->p, want_do, x->t, x->p, x->d);
	bench_expect(c, "don", don, x->v, want_don, 1, x->v, x->t * x->h);
}

static void
backward_data(struct bench *b)
{
	struct out x;
	struct bench_case c;
	float *don, *on, *wo;

	if (!open_out(&c, b, K3_OP_KDA_OUT_BWD_DX, &x))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_KDA_OUT_BWD_DX);
	float *dgg = bench_out(call, "dgg", x.t * x.p), *dp = bench_in(call, x.t * x.d);
	float *gg = bench_in(call, x.t * x.p);
	bench_work(call, x.t * x.p);
	x.a.dout = (struct k3_list){call->n, 1};
	float *dout = bench_out(call, "dout", x.t * x.p);
	x.a.o = (struct k3_list){call->n, 1};
	float *o = bench_in(call, x.t * x.p);
	x.a.don = bench_gradient(call, "don", 1, x.v, &don);
	x.a.on = bench_weight(call, 1, x.v, &on);
	x.a.wo = bench_weight(call, x.d, x.p, &wo);
	bench_args(call, &x.a, sizeof(x.a));
	bench_product(call, BENCH_NN, x.t, x.p, x.d);
	if (bench_run(&c))
		expect_back(&c, &x, bench_wide(&c, BENCH_NN, x.t, x.p, x.d, dp, x.d, wo, x.p), o,
			    gg, on, dgg, dout, don);
	bench_close(&c);
}

static void
backward_weights(struct bench *b)
{
	struct out x;
	struct bench_case c;
	float *on, *dwo;

	if (!open_out(&c, b, K3_OP_KDA_OUT_BWD_DW, &x))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_KDA_OUT_BWD_DW);
	float *dp = bench_in(call, x.t * x.d), *gg = bench_in(call, x.t * x.p);
	bench_work(call, x.t * x.p);
	x.a.o = (struct k3_list){call->n, 1};
	float *o = bench_in(call, x.t * x.p);
	x.a.on = bench_weight(call, 1, x.v, &on);
	x.a.wo = bench_gradient(call, "dwo", x.d, x.p, &dwo);
	bench_args(call, &x.a, sizeof(x.a));
	bench_product(call, BENCH_TN, x.d, x.p, x.t);
	if (bench_run(&c)) {
		struct bench_rows rows = bench_rows(&c, dwo, x.p, x.d, x.p);
		bench_rows_product(&rows, BENCH_TN, x.t, dp, x.d, gated(&c, &x, o, gg, on), x.p);
		bench_rows_expect(&rows, "dwo");
	}
	bench_close(&c);
}

void
bench_kda_out(struct bench *b)
{
	forward(b);
	backward_data(b);
	backward_weights(b);
}
