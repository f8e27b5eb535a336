/* k3_bench op mla: keys and values from the compressed rows. */
#include "bench.h"
#include "bench_mla.h"

struct expand {
	size_t t, wide, ld, rkv, rope, ck; /* wide = h (nope + v), ld = wide + rope */
	struct k3_mla_expand_args a;
};

static bool
open_expand(struct bench_case *c, struct bench *b, enum k3_op op, struct expand *x)
{
	const struct k3_config *m = b->model;

	x->a = (struct k3_mla_expand_args){.t = b->tokens,
					   .h = m->heads,
					   .nope = m->nope_dim,
					   .rope = m->rope_dim,
					   .v = m->v_dim,
					   .rkv = m->kv_rank,
					   .eps = (float)m->mla_norm_eps,
					   .group_heads = m->heads};
	x->t = b->tokens;
	x->wide = x->a.h * (x->a.nope + x->a.v);
	x->ld = x->wide + x->a.rope;
	x->rkv = x->a.rkv;
	x->rope = x->a.rope;
	x->ck = x->rkv + x->rope;
	return bench_open(c, b, k3_op_name(op), BENCH_SAME, BENCH_TARGET_GEMM,
			  "t=%zu rkv=%zu rope=%zu width=%zu", x->t, x->rkv, x->rope, x->wide);
}

/* The latent part of each row after its norm, rounded. */
static float *
normed(struct bench_case *c, const struct expand *x, const float *rows, const float *kn)
{
	double *y = bench_doubles(c, x->t * x->rkv);

	for (size_t i = 0; i < x->t; i++)
		bench_rms(y + i * x->rkv, rows + i * x->ck, kn, x->rkv, (double)x->a.eps);
	return bench_narrow(c, y, x->t * x->rkv);
}

/* The shared key part, columns `col` on of rows of `ld` floats. */
static double *
shared_part(struct bench_case *c, const struct expand *x, const float *rows, size_t ld, size_t col)
{
	double *y = bench_doubles(c, x->t * x->rope);

	for (size_t i = 0; i < x->t * x->rope; i++)
		y[i] = (double)rows[i / x->rope * ld + col + i % x->rope];
	return y;
}

static void
forward(struct bench *b)
{
	struct expand x;
	struct bench_case c;
	float *kn, *w;

	if (!open_expand(&c, b, K3_OP_MLA_EXPAND_FWD, &x))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_MLA_EXPAND_FWD);
	float *kv = bench_out(call, "kv", x.t * x.ld), *in = bench_in(call, x.t * x.ck);
	bench_work(call, x.t * x.rkv);
	x.a.kn = bench_weight(call, 1, x.rkv, &kn);
	x.a.wkvb = bench_weight(call, x.wide, x.rkv, &w);
	bench_args(call, &x.a, sizeof(x.a));
	bench_product(call, BENCH_NT, x.t, x.wide, x.rkv);
	if (bench_run(&c)) {
		struct bench_rows rows = bench_rows(&c, kv, x.ld, x.t, x.wide);
		bench_rows_product(&rows, BENCH_NT, x.rkv, normed(&c, &x, in, kn), x.rkv, w, x.rkv);
		bench_rows_expect(&rows, "kv");
		bench_expect(&c, "kv (shared keys)", kv + x.wide, x.ld,
			     shared_part(&c, &x, in, x.ck, x.rkv), x.t, x.rope, 0);
	}
	bench_close(&c);
}

static void
backward_data(struct bench *b)
{
	struct expand x;
	struct bench_case c;
	float *dkn, *kn, *w;

	if (!open_expand(&c, b, K3_OP_MLA_EXPAND_BWD_DX, &x))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_MLA_EXPAND_BWD_DX);
	float *dc = bench_out(call, "dc", x.t * x.ck), *in = bench_in(call, x.t * x.ck);
	bench_work(call, x.t * x.rkv);
	x.a.dkv = (struct k3_list){call->n, 1};
	float *dkv = bench_in(call, x.t * x.ld);
	x.a.dkn = bench_gradient(call, "dkn", 1, x.rkv, &dkn);
	x.a.kn = bench_weight(call, 1, x.rkv, &kn);
	x.a.wkvb = bench_weight(call, x.wide, x.rkv, &w);
	bench_args(call, &x.a, sizeof(x.a));
	bench_product(call, BENCH_NN, x.t, x.rkv, x.wide);
	if (bench_run(&c)) {
		double *dn = bench_wide(&c, BENCH_NN, x.t, x.rkv, x.wide, dkv, x.ld, w, x.rkv);
		double *want = bench_doubles(&c, x.t * x.rkv), *want_dkn = bench_doubles(&c, x.rkv);
		for (size_t i = 0; i < x.t; i++)
			bench_rms_back(want + i * x.rkv, want_dkn, dn + i * x.rkv, in + i * x.ck,
				       kn, x.rkv, (double)x.a.eps);
		bench_expect(&c, "dc", dc, x.ck, want, x.t, x.rkv, x.wide);
		bench_expect(&c, "dc (shared keys)", dc + x.rkv, x.ck,
			     shared_part(&c, &x, dkv, x.ld, x.wide), x.t, x.rope, 0);
		bench_expect(&c, "dkn", dkn, x.rkv, want_dkn, 1, x.rkv, x.t);
	}
	bench_close(&c);
}

static void
backward_weights(struct bench *b)
{
	struct expand x;
	struct bench_case c;
	float *kn, *dw;

	if (!open_expand(&c, b, K3_OP_MLA_EXPAND_BWD_DW, &x))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_MLA_EXPAND_BWD_DW);
	float *in = bench_in(call, x.t * x.ck);
	bench_work(call, x.t * x.rkv);
	x.a.dkv = (struct k3_list){call->n, 1};
	float *dkv = bench_in(call, x.t * x.ld);
	x.a.kn = bench_weight(call, 1, x.rkv, &kn);
	x.a.wkvb = bench_gradient(call, "dwkvb", x.wide, x.rkv, &dw);
	bench_args(call, &x.a, sizeof(x.a));
	bench_product(call, BENCH_TN, x.wide, x.rkv, x.t);
	if (bench_run(&c)) {
		struct bench_rows rows = bench_rows(&c, dw, x.rkv, x.wide, x.rkv);
		bench_rows_product(&rows, BENCH_TN, x.t, dkv, x.ld, normed(&c, &x, in, kn), x.rkv);
		bench_rows_expect(&rows, "dwkvb");
	}
	bench_close(&c);
}

void
bench_mla_expand(struct bench *b)
{
	forward(b);
	backward_data(b);
	backward_weights(b);
}
