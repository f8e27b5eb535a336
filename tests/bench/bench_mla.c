/* k3_bench op mla: the projections; expansion, attention and output are in files of their own.  All
 * heads are one group. */
#include "bench.h"
#include "bench_mla.h"

struct proj {
	size_t t, d, hq, hv, rq, ck; /* hq = h kq, hv = h v, ck = rkv + rope */
	struct k3_mla_proj_args a;
};

static bool
open_proj(struct bench_case *c, struct bench *b, enum k3_op op, struct proj *x)
{
	const struct k3_config *m = b->model;

	x->a = (struct k3_mla_proj_args){.t = b->tokens,
					 .d = m->width,
					 .h = m->heads,
					 .kq = m->nope_dim + m->rope_dim,
					 .v = m->v_dim,
					 .rq = m->q_rank,
					 .rkv = m->kv_rank,
					 .rope = m->rope_dim,
					 .eps = (float)m->mla_norm_eps,
					 .group_heads = m->heads};
	x->t = x->a.t;
	x->d = x->a.d;
	x->hq = x->a.h * x->a.kq;
	x->hv = x->a.h * x->a.v;
	x->rq = x->a.rq;
	x->ck = x->a.rkv + x->a.rope;
	return bench_open(c, b, k3_op_name(op), BENCH_SAME, BENCH_TARGET_GEMM,
			  "t=%zu d=%zu rq=%zu hq=%zu ck=%zu hv=%zu", x->t, x->d, x->rq, x->hq,
			  x->ck, x->hv);
}

/* The query latent after its norm, rounded. */
static float *
normed(struct bench_case *c, const struct proj *x, const float *qa, const float *qn)
{
	double *y = bench_doubles(c, x->t * x->rq);

	for (size_t i = 0; i < x->t; i++)
		bench_rms(y + i * x->rq, qa + i * x->rq, qn, x->rq, (double)x->a.eps);
	return bench_narrow(c, y, x->t * x->rq);
}

static void
forward(struct bench *b)
{
	struct proj x;
	struct bench_case c;
	float *wqa, *qn, *wqb, *wkva, *wgate;

	if (!open_proj(&c, b, K3_OP_MLA_PROJ_FWD, &x))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_MLA_PROJ_FWD);
	float *qa = bench_out(call, "qa", x.t * x.rq), *q = bench_out(call, "q", x.t * x.hq);
	float *kv = bench_out(call, "c", x.t * x.ck), *zg = bench_out(call, "zg", x.t * x.hv);
	float *in = bench_in(call, x.t * x.d);
	bench_work(call, x.t * x.rq);
	x.a.wqa = bench_weight(call, x.rq, x.d, &wqa);
	x.a.qn = bench_weight(call, 1, x.rq, &qn);
	x.a.wqb = bench_weight(call, x.hq, x.rq, &wqb);
	x.a.wkva = bench_weight(call, x.ck, x.d, &wkva);
	x.a.wgate = bench_weight(call, x.hv, x.d, &wgate);
	bench_args(call, &x.a, sizeof(x.a));
	bench_product(call, BENCH_NT, x.t, x.rq, x.d);
	bench_product(call, BENCH_NT, x.t, x.hq, x.rq);
	bench_product(call, BENCH_NT, x.t, x.ck, x.d);
	bench_product(call, BENCH_NT, x.t, x.hv, x.d);
	if (bench_run(&c)) {
		struct bench_rows rows[] = {
			bench_rows(&c, qa, x.rq, x.t, x.rq), bench_rows(&c, q, x.hq, x.t, x.hq),
			bench_rows(&c, kv, x.ck, x.t, x.ck), bench_rows(&c, zg, x.hv, x.t, x.hv)};
		bench_rows_product(&rows[0], BENCH_NT, x.d, in, x.d, wqa, x.d);
		bench_rows_product(&rows[1], BENCH_NT, x.rq, normed(&c, &x, qa, qn), x.rq, wqb,
				   x.rq);
		bench_rows_product(&rows[2], BENCH_NT, x.d, in, x.d, wkva, x.d);
		bench_rows_product(&rows[3], BENCH_NT, x.d, in, x.d, wgate, x.d);
		for (size_t i = 0; i < 4; i++)
			bench_rows_expect(&rows[i], c.output[i].name);
	}
	bench_close(&c);
}

static void
backward_data(struct bench *b)
{
	struct proj x;
	struct bench_case c;
	float *dqn, *wqa, *qn, *wqb, *wkva, *wgate;

	if (!open_proj(&c, b, K3_OP_MLA_PROJ_BWD_DX, &x))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_MLA_PROJ_BWD_DX);
	float *dx = bench_out(call, "dx", x.t * x.d), *dqa = bench_out(call, "dqa", x.t * x.rq);
	float *dc = bench_in(call, x.t * x.ck), *dzg = bench_in(call, x.t * x.hv);
	float *qa = bench_in(call, x.t * x.rq);
	bench_work(call, x.t * x.rq);
	x.a.dq = (struct k3_list){call->n, 1};
	float *dq = bench_in(call, x.t * x.hq);
	x.a.dqn = bench_gradient(call, "dqn", 1, x.rq, &dqn);
	x.a.wqa = bench_weight(call, x.rq, x.d, &wqa);
	x.a.qn = bench_weight(call, 1, x.rq, &qn);
	x.a.wqb = bench_weight(call, x.hq, x.rq, &wqb);
	x.a.wkva = bench_weight(call, x.ck, x.d, &wkva);
	x.a.wgate = bench_weight(call, x.hv, x.d, &wgate);
	bench_args(call, &x.a, sizeof(x.a));
	bench_product(call, BENCH_NN, x.t, x.rq, x.hq);
	bench_product(call, BENCH_NN, x.t, x.d, x.rq);
	bench_product(call, BENCH_NN, x.t, x.d, x.ck);
	bench_product(call, BENCH_NN, x.t, x.d, x.hv);
	if (bench_run(&c)) {
		double *dn = bench_wide(&c, BENCH_NN, x.t, x.rq, x.hq, dq, x.hq, wqb, x.rq);
		double *want = bench_doubles(&c, x.t * x.rq), *want_dqn = bench_doubles(&c, x.rq);
		struct bench_rows rows = bench_rows(&c, dx, x.d, x.t, x.d);
		for (size_t i = 0; i < x.t * x.rq; i += x.rq)
			bench_rms_back(want + i, want_dqn, dn + i, qa + i, qn, x.rq,
				       (double)x.a.eps);
		bench_expect(&c, "dqa", dqa, x.rq, want, x.t, x.rq, x.hq);
		bench_expect(&c, "dqn", dqn, x.rq, want_dqn, 1, x.rq, x.t);
		bench_rows_product(&rows, BENCH_NN, x.rq, dqa, x.rq, wqa, x.d);
		bench_rows_product(&rows, BENCH_NN, x.ck, dc, x.ck, wkva, x.d);
		bench_rows_product(&rows, BENCH_NN, x.hv, dzg, x.hv, wgate, x.d);
		bench_rows_expect(&rows, "dx");
	}
	bench_close(&c);
}

static void
backward_weights(struct bench *b)
{
	struct proj x;
	struct bench_case c;
	float *qn, *w[4];
	static const char *const name[] = {"dwqa", "dwqb", "dwkva", "dwgate"};

	if (!open_proj(&c, b, K3_OP_MLA_PROJ_BWD_DW, &x))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_MLA_PROJ_BWD_DW);
	float *dqa = bench_in(call, x.t * x.rq), *dc = bench_in(call, x.t * x.ck);
	float *dzg = bench_in(call, x.t * x.hv), *qa = bench_in(call, x.t * x.rq);
	float *in = bench_in(call, x.t * x.d);
	bench_work(call, x.t * x.rq);
	x.a.dq = (struct k3_list){call->n, 1};
	float *dq = bench_in(call, x.t * x.hq);
	x.a.qn = bench_weight(call, 1, x.rq, &qn);
	x.a.wqa = bench_gradient(call, name[0], x.rq, x.d, &w[0]);
	x.a.wqb = bench_gradient(call, name[1], x.hq, x.rq, &w[1]);
	x.a.wkva = bench_gradient(call, name[2], x.ck, x.d, &w[2]);
	x.a.wgate = bench_gradient(call, name[3], x.hv, x.d, &w[3]);
	bench_args(call, &x.a, sizeof(x.a));
	bench_product(call, BENCH_TN, x.rq, x.d, x.t);
	bench_product(call, BENCH_TN, x.hq, x.rq, x.t);
	bench_product(call, BENCH_TN, x.ck, x.d, x.t);
	bench_product(call, BENCH_TN, x.hv, x.d, x.t);
	if (bench_run(&c)) {
		struct bench_rows rows[] = {bench_rows(&c, w[0], x.d, x.rq, x.d),
					    bench_rows(&c, w[1], x.rq, x.hq, x.rq),
					    bench_rows(&c, w[2], x.d, x.ck, x.d),
					    bench_rows(&c, w[3], x.d, x.hv, x.d)};
		bench_rows_product(&rows[0], BENCH_TN, x.t, dqa, x.rq, in, x.d);
		bench_rows_product(&rows[1], BENCH_TN, x.t, dq, x.hq, normed(&c, &x, qa, qn), x.rq);
		bench_rows_product(&rows[2], BENCH_TN, x.t, dc, x.ck, in, x.d);
		bench_rows_product(&rows[3], BENCH_TN, x.t, dzg, x.hv, in, x.d);
		for (size_t i = 0; i < 4; i++)
			bench_rows_expect(&rows[i], name[i]);
	}
	bench_close(&c);
}

void
bench_mla(struct bench *b)
{
	forward(b);
	backward_data(b);
	backward_weights(b);
	bench_mla_expand(b);
	bench_mla_attn(b);
	bench_mla_out(b);
}
