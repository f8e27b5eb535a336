/* k3_bench op glu: the feed-forward of the dense layer and of the shared experts.  The hidden rows
 * are made again from the g | u columns by the formula of SiTU, in double. */
#include <math.h>

#include "bench.h"

struct shape {
	enum k3_op fwd, bwd_dx, bwd_dw;
	size_t t, d, f;
	bool p_in;
};

static struct k3_glu_args
args_of(const struct bench *b, const struct shape *s)
{
	struct k3_glu_args a = {.t = s->t,
				.d = s->d,
				.f = s->f,
				.beta1 = (float)b->model->situ_beta1,
				.beta2 = (float)b->model->situ_beta2};

	return a;
}

static bool
open_case(struct bench_case *c, struct bench *b, const struct shape *s, enum k3_op op)
{
	return bench_open(c, b, k3_op_name(op), BENCH_SAME, BENCH_TARGET_GEMM, "t=%zu d=%zu f=%zu",
			  s->t, s->d, s->f);
}

/* situ of every row of g | u, rounded to what a product can take. */
static float *
hidden(struct bench_case *c, const float *gu, size_t t, size_t f, double b1, double b2)
{
	double *h = bench_doubles(c, t * f);

	for (size_t i = 0; i < t * f; i++) {
		double g = (double)gu[i / f * 2 * f + i % f],
		       u = (double)gu[i / f * 2 * f + f + i % f];
		h[i] = b1 * tanh(g / b1) * bench_sigmoid(g) * b2 * tanh(u / b2);
	}
	return bench_narrow(c, h, t * f);
}

/* d(g | u) from dh. */
static double *
hidden_back(struct bench_case *c, const double *dh, const float *gu, size_t t, size_t f, double b1,
	    double b2)
{
	double *dgu = bench_doubles(c, t * 2 * f);

	for (size_t i = 0; i < t * f; i++) {
		size_t at = i / f * 2 * f + i % f;
		double g = (double)gu[at], u = (double)gu[at + f];
		double t1 = tanh(g / b1), z = bench_sigmoid(g), t2 = tanh(u / b2);
		dgu[at] = dh[i] * b2 * t2 * ((1 - t1 * t1) * z + b1 * t1 * z * (1 - z));
		dgu[at + f] = dh[i] * b1 * t1 * z * (1 - t2 * t2);
	}
	return dgu;
}

static void
forward(struct bench *b, const struct shape *s)
{
	struct k3_glu_args a = args_of(b, s);
	size_t t = s->t, d = s->d, f = s->f;
	struct bench_case c;
	float *w1, *w3, *w2, *p = NULL;

	if (!open_case(&c, b, s, s->fwd))
		return;
	struct bench_call *call = bench_call(&c, s->fwd);
	float *y = bench_out(call, "y", t * d), *gu = bench_out(call, "gu", t * 2 * f);
	float *x = bench_in(call, t * d);
	bench_work(call, t * f);
	a.p_in = (struct k3_list){call->n, s->p_in};
	if (s->p_in)
		p = bench_in(call, t * d);
	a.w1 = bench_weight(call, f, d, &w1);
	a.w3 = bench_weight(call, f, d, &w3);
	a.w2 = bench_weight(call, d, f, &w2);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NT, t, f, d);
	bench_product(call, BENCH_NT, t, f, d);
	bench_product(call, BENCH_NT, t, d, f);
	if (bench_run(&c)) {
		float *h = hidden(&c, gu, t, f, (double)a.beta1, (double)a.beta2);
		struct bench_rows g = bench_rows(&c, gu, 2 * f, t, f),
				  u = bench_rows(&c, gu + f, 2 * f, t, f),
				  out = bench_rows(&c, y, d, t, d);
		bench_rows_product(&g, BENCH_NT, d, x, d, w1, d);
		bench_rows_product(&u, BENCH_NT, d, x, d, w3, d);
		bench_rows_product(&out, BENCH_NT, f, h, f, w2, f);
		if (p)
			bench_rows_add(&out, p, d);
		bench_rows_expect(&g, "gu (gate)");
		bench_rows_expect(&u, "gu (up)");
		bench_rows_expect(&out, "y");
	}
	bench_close(&c);
}

static void
backward_data(struct bench *b, const struct shape *s)
{
	struct k3_glu_args a = args_of(b, s);
	size_t t = s->t, d = s->d, f = s->f;
	struct bench_case c;
	float *w1, *w3, *w2;

	if (!open_case(&c, b, s, s->bwd_dx))
		return;
	struct bench_call *call = bench_call(&c, s->bwd_dx);
	float *dx = bench_out(call, "dx", t * d), *dgu = bench_out(call, "dgu", t * 2 * f);
	float *dy = bench_in(call, t * d);
	float *gu = bench_push(call, bench_random(&c, t * 2 * f, -4, 4));
	bench_work(call, t * f);
	a.w1 = bench_weight(call, f, d, &w1);
	a.w3 = bench_weight(call, f, d, &w3);
	a.w2 = bench_weight(call, d, f, &w2);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NN, t, f, d);
	bench_product(call, BENCH_NN, t, d, f);
	bench_product(call, BENCH_NN, t, d, f);
	if (bench_run(&c)) {
		double *dh = bench_wide(&c, BENCH_NN, t, f, d, dy, d, w2, f);
		struct bench_rows out = bench_rows(&c, dx, d, t, d);
		bench_expect(&c, "dgu", dgu, 2 * f,
			     hidden_back(&c, dh, gu, t, f, (double)a.beta1, (double)a.beta2), t,
			     2 * f, d);
		bench_rows_product(&out, BENCH_NN, f, dgu, 2 * f, w1, d);
		bench_rows_product(&out, BENCH_NN, f, dgu + f, 2 * f, w3, d);
		bench_rows_expect(&out, "dx");
	}
	bench_close(&c);
}

static void
backward_weights(struct bench *b, const struct shape *s)
{
	struct k3_glu_args a = args_of(b, s);
	size_t t = s->t, d = s->d, f = s->f;
	struct bench_case c;
	float *w1, *w3, *w2;

	if (!open_case(&c, b, s, s->bwd_dw))
		return;
	struct bench_call *call = bench_call(&c, s->bwd_dw);
	float *dgu = bench_in(call, t * 2 * f), *dy = bench_in(call, t * d);
	float *gu = bench_push(call, bench_random(&c, t * 2 * f, -4, 4));
	float *x = bench_in(call, t * d);
	bench_work(call, t * f);
	a.w1 = bench_gradient(call, "dw1", f, d, &w1);
	a.w3 = bench_gradient(call, "dw3", f, d, &w3);
	a.w2 = bench_gradient(call, "dw2", d, f, &w2);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_TN, f, d, t);
	bench_product(call, BENCH_TN, f, d, t);
	bench_product(call, BENCH_TN, d, f, t);
	if (bench_run(&c)) {
		float *h = hidden(&c, gu, t, f, (double)a.beta1, (double)a.beta2);
		struct bench_rows g = bench_rows(&c, w1, d, f, d), u = bench_rows(&c, w3, d, f, d),
				  down = bench_rows(&c, w2, f, d, f);
		bench_rows_product(&g, BENCH_TN, t, dgu, 2 * f, x, d);
		bench_rows_product(&u, BENCH_TN, t, dgu + f, 2 * f, x, d);
		bench_rows_product(&down, BENCH_TN, t, dy, d, h, f);
		bench_rows_expect(&g, "dw1");
		bench_rows_expect(&u, "dw3");
		bench_rows_expect(&down, "dw2");
	}
	bench_close(&c);
}

void
bench_glu(struct bench *b)
{
	const struct k3_config *m = b->model;
	const struct shape shapes[] = {
		{K3_OP_DENSE_FFN_FWD, K3_OP_DENSE_FFN_BWD_DX, K3_OP_DENSE_FFN_BWD_DW, b->tokens,
		 m->width, m->dense_ffn, true},
		{K3_OP_SHARED_FFN_FWD, K3_OP_SHARED_FFN_BWD_DX, K3_OP_SHARED_FFN_BWD_DW, b->tokens,
		 m->width, (size_t)m->shared_experts * m->expert_ffn, false},
	};

	for (size_t i = 0; i < 2; i++) {
		forward(b, &shapes[i]);
		backward_data(b, &shapes[i]);
		backward_weights(b, &shapes[i]);
	}
}
