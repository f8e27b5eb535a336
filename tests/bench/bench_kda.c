/* k3_bench op kda: projections, gates and output; conv and chunk are in bench_kda_chunk.c.  All
 * heads are one group, as the plan has it unless it is told otherwise. */
#include "bench.h"
#include "bench_kda.h"

static void
project(struct bench *b, enum k3_op op)
{
	const struct k3_config *m = b->model;
	size_t t = b->tokens, d = m->width, p = (size_t)m->kda_heads * m->kda_dim;
	struct k3_kda_proj_args a = {.t = t, .d = d, .p = p};
	struct k3_weight *w[] = {&a.wq, &a.wk, &a.wv};
	static const char *const dw[] = {"dwq", "dwk", "dwv"};
	bool forward = op == K3_OP_KDA_PROJ_FWD, data = op == K3_OP_KDA_PROJ_BWD_DX;
	float *x, *y, *dx, *weight[3];
	struct bench_case c;

	if (!bench_open(&c, b, k3_op_name(op), BENCH_SAME, BENCH_TARGET_GEMM, "t=%zu d=%zu p=%zu",
			t, d, p))
		return;
	struct bench_call *call = bench_call(&c, op);
	dx = data ? bench_out(call, "dx", t * d) : NULL;
	y = forward ? bench_out(call, "qkvr", t * 3 * p) : bench_in(call, t * 3 * p);
	x = data ? NULL : bench_in(call, t * d);
	for (size_t i = 0; i < 3; i++) {
		*w[i] = forward || data ? bench_weight(call, p, d, &weight[i])
					: bench_gradient(call, dw[i], p, d, &weight[i]);
		if (forward)
			bench_product(call, BENCH_NT, t, p, d);
		else if (data)
			bench_product(call, BENCH_NN, t, d, p);
		else
			bench_product(call, BENCH_TN, p, d, t);
	}
	bench_args(call, &a, sizeof(a));
	if (bench_run(&c)) {
		struct bench_rows all = bench_rows(&c, dx, d, data ? t : 0, d);
		for (size_t i = 0; i < 3; i++) {
			const float *part = y + i * p;
			struct bench_rows one = forward ? bench_rows(&c, part, 3 * p, t, p)
							: bench_rows(&c, weight[i], d, p, d);
			if (forward)
				bench_rows_product(&one, BENCH_NT, d, x, d, weight[i], d);
			else if (data)
				bench_rows_product(&all, BENCH_NN, p, part, 3 * p, weight[i], d);
			else
				bench_rows_product(&one, BENCH_TN, t, part, 3 * p, x, d);
			if (!data)
				bench_rows_expect(&one, forward ? "qkvr" : dw[i]);
		}
		if (data)
			bench_rows_expect(&all, "dx");
	}
	bench_close(&c);
}

struct gate {
	size_t t, d, p, h, k;
	struct k3_kda_gate_args a;
};

static bool
open_gate(struct bench_case *c, struct bench *b, enum k3_op op, struct gate *g)
{
	const struct k3_config *m = b->model;

	g->t = b->tokens;
	g->d = m->width;
	g->h = m->kda_heads;
	g->k = m->kda_dim;
	g->p = g->h * g->k;
	g->a = (struct k3_kda_gate_args){.t = g->t,
					 .d = g->d,
					 .p = g->p,
					 .h = g->h,
					 .k = g->k,
					 .group_heads = (uint32_t)g->h};
	return bench_open(c, b, k3_op_name(op), BENCH_SAME, BENCH_TARGET_GEMM,
			  "t=%zu d=%zu p=%zu h=%zu k=%zu", g->t, g->d, g->p, g->h, g->k);
}

static void
gate_forward(struct bench *b)
{
	struct gate g;
	struct bench_case c;
	float *wfa, *wfb, *wb, *wg;

	if (!open_gate(&c, b, K3_OP_KDA_GATE_FWD, &g))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_KDA_GATE_FWD);
	float *fa = bench_out(call, "fa", g.t * g.k), *f = bench_out(call, "f", g.t * g.p);
	float *br = bench_out(call, "br", g.t * g.h), *gg = bench_out(call, "gg", g.t * g.p);
	float *x = bench_in(call, g.t * g.d);
	g.a.wfa = bench_weight(call, g.k, g.d, &wfa);
	g.a.wfb = bench_weight(call, g.p, g.k, &wfb);
	g.a.wb = bench_weight(call, g.h, g.d, &wb);
	g.a.wg = bench_weight(call, g.p, g.d, &wg);
	bench_args(call, &g.a, sizeof(g.a));
	bench_product(call, BENCH_NT, g.t, g.k, g.d);
	bench_product(call, BENCH_NT, g.t, g.p, g.k);
	bench_product(call, BENCH_NT, g.t, g.h, g.d);
	bench_product(call, BENCH_NT, g.t, g.p, g.d);
	if (bench_run(&c)) {
		struct bench_rows rows[] = {
			bench_rows(&c, fa, g.k, g.t, g.k), bench_rows(&c, f, g.p, g.t, g.p),
			bench_rows(&c, br, g.h, g.t, g.h), bench_rows(&c, gg, g.p, g.t, g.p)};
		bench_rows_product(&rows[0], BENCH_NT, g.d, x, g.d, wfa, g.d);
		bench_rows_product(&rows[1], BENCH_NT, g.k, fa, g.k, wfb, g.k);
		bench_rows_product(&rows[2], BENCH_NT, g.d, x, g.d, wb, g.d);
		bench_rows_product(&rows[3], BENCH_NT, g.d, x, g.d, wg, g.d);
		for (size_t i = 0; i < 4; i++)
			bench_rows_expect(&rows[i], c.output[i].name);
	}
	bench_close(&c);
}

static void
gate_data(struct bench *b)
{
	struct gate g;
	struct bench_case c;
	float *before, *wfa, *wfb, *wb, *wg;

	if (!open_gate(&c, b, K3_OP_KDA_GATE_BWD_DX, &g))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_KDA_GATE_BWD_DX);
	float *dx = bench_inout(call, "dx", g.t * g.d, &before);
	float *dfa = bench_out(call, "dfa", g.t * g.k), *dgg = bench_in(call, g.t * g.p);
	uint32_t at = call->n;
	float *df = bench_in(call, g.t * g.p);
	g.a.df = bench_list(call, at);
	float *dbr = bench_in(call, g.t * g.h);
	g.a.dbr = bench_list(call, at + 1);
	g.a.wfa = bench_weight(call, g.k, g.d, &wfa);
	g.a.wfb = bench_weight(call, g.p, g.k, &wfb);
	g.a.wb = bench_weight(call, g.h, g.d, &wb);
	g.a.wg = bench_weight(call, g.p, g.d, &wg);
	bench_args(call, &g.a, sizeof(g.a));
	bench_product(call, BENCH_NN, g.t, g.k, g.p);
	bench_product(call, BENCH_NN, g.t, g.d, g.h);
	bench_product(call, BENCH_NN, g.t, g.d, g.k);
	bench_product(call, BENCH_NN, g.t, g.d, g.p);
	if (bench_run(&c)) {
		struct bench_rows latent = bench_rows(&c, dfa, g.k, g.t, g.k),
				  all = bench_rows(&c, dx, g.d, g.t, g.d);
		bench_rows_product(&latent, BENCH_NN, g.p, df, g.p, wfb, g.k);
		bench_rows_add(&all, before, g.d);
		bench_rows_product(&all, BENCH_NN, g.h, dbr, g.h, wb, g.d);
		bench_rows_product(&all, BENCH_NN, g.k, dfa, g.k, wfa, g.d);
		bench_rows_product(&all, BENCH_NN, g.p, dgg, g.p, wg, g.d);
		bench_rows_expect(&latent, "dfa");
		bench_rows_expect(&all, "dx");
	}
	bench_close(&c);
}

static void
gate_weights(struct bench *b)
{
	struct gate g;
	struct bench_case c;
	float *w[6];
	static const char *const name[] = {"dwfa", "dwfb", "dwb", "dwg"};

	if (!open_gate(&c, b, K3_OP_KDA_GATE_BWD_DW, &g))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_KDA_GATE_BWD_DW);
	float *dfa = bench_in(call, g.t * g.k), *dgg = bench_in(call, g.t * g.p);
	float *x = bench_in(call, g.t * g.d), *fa = bench_in(call, g.t * g.k);
	uint32_t at = call->n;
	float *df = bench_in(call, g.t * g.p), *dbr = bench_in(call, g.t * g.h);
	float *dab = bench_in(call, g.h + g.p);
	bench_keep(&c, dab);
	g.a.df = (struct k3_list){at, 1};
	g.a.dbr = (struct k3_list){at + 1, 1};
	g.a.dab = (struct k3_list){at + 2, 1};
	g.a.wfa = bench_gradient(call, name[0], g.k, g.d, &w[0]);
	g.a.wfb = bench_gradient(call, name[1], g.p, g.k, &w[1]);
	g.a.wb = bench_gradient(call, name[2], g.h, g.d, &w[2]);
	g.a.wg = bench_gradient(call, name[3], g.p, g.d, &w[3]);
	g.a.a_log = bench_gradient(call, "da_log", 1, g.h, &w[4]);
	g.a.dt_bias = bench_gradient(call, "ddt_bias", 1, g.p, &w[5]);
	bench_args(call, &g.a, sizeof(g.a));
	bench_product(call, BENCH_TN, g.k, g.d, g.t);
	bench_product(call, BENCH_TN, g.p, g.d, g.t);
	bench_product(call, BENCH_TN, g.p, g.k, g.t);
	bench_product(call, BENCH_TN, g.h, g.d, g.t);
	if (bench_run(&c)) {
		struct bench_rows rows[] = {
			bench_rows(&c, w[0], g.d, g.k, g.d), bench_rows(&c, w[1], g.k, g.p, g.k),
			bench_rows(&c, w[2], g.d, g.h, g.d), bench_rows(&c, w[3], g.d, g.p, g.d)};
		double *wide = bench_doubles(&c, g.h + g.p);
		for (size_t i = 0; i < g.h + g.p; i++)
			wide[i] = (double)dab[i];
		bench_rows_product(&rows[0], BENCH_TN, g.t, dfa, g.k, x, g.d);
		bench_rows_product(&rows[1], BENCH_TN, g.t, df, g.p, fa, g.k);
		bench_rows_product(&rows[2], BENCH_TN, g.t, dbr, g.h, x, g.d);
		bench_rows_product(&rows[3], BENCH_TN, g.t, dgg, g.p, x, g.d);
		for (size_t i = 0; i < 4; i++)
			bench_rows_expect(&rows[i], name[i]);
		bench_expect(&c, "da_log", w[4], g.h, wide, 1, g.h, 1);
		bench_expect(&c, "ddt_bias", w[5], g.p, wide + g.h, 1, g.p, 1);
	}
	bench_close(&c);
}

void
bench_kda(struct bench *b)
{
	project(b, K3_OP_KDA_PROJ_FWD);
	project(b, K3_OP_KDA_PROJ_BWD_DX);
	project(b, K3_OP_KDA_PROJ_BWD_DW);
	gate_forward(b);
	gate_data(b);
	gate_weights(b);
	bench_kda_conv(b);
	bench_kda_chunk(b);
	bench_kda_out(b);
}
