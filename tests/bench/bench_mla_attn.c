/* k3_bench op mla: attention of a tile of queries over its own keys (causal), as one document and
 * as eight, and over those of the tile before it (all pairs), forward and backward.  The oracle
 * forms whole matrices of each head in double. */
#include <math.h>
#include <string.h>

#include "bench.h"
#include "bench_mla.h"

struct attn {
	size_t t, h, nope, rope, v, kq, ldk; /* ldk: floats of a kv row */
	bool own;			     /* the keys are the queries' own tile */
	size_t doc;			     /* rows of a document when they are */
	double scale;
	const float *q, *kv, *da; /* [t, h kq], [t, ldk], [t, h v] */
	double *o, *lse, *delta, *dq, *dkv;
};

/* Products over the pairs that a query sees, each 2 (width) flops: forward q k, P v; backward q k,
 * da v (P and dS), P^T da, dS k, dS^T q: widths kq, v and kq, v, v, kq, kq. */
static double
pair_flops(const struct attn *x, bool backward)
{
	double pairs = (double)x->t * (double)x->t;
	double rest = (double)(x->t % x->doc), docs = (double)(x->t / x->doc), doc = (double)x->doc;
	if (x->own)
		pairs = (docs * doc * (doc + 1) + rest * (rest + 1)) / 2;
	double kq = (double)x->kq, v = (double)x->v;

	return (double)x->h * pairs * (backward ? 6 * kq + 4 * v : 2 * kq + 2 * v);
}

struct head {
	double *q, *k, *v, *da, *s, *dp; /* [t, kq], [t, kq], [t, v], [t, v], [t, t], [t, t] */
	double *o, *dq, *dk, *dv;
};

static void
load_head(const struct attn *x, size_t h, struct head *e)
{
	size_t kvw = x->nope + x->v;

	for (size_t i = 0; i < x->t; i++) {
		const float *kv = x->kv + i * x->ldk + h * kvw,
			    *rope = x->kv + (i + 1) * x->ldk - x->rope;
		for (size_t c = 0; c < x->kq; c++) {
			e->q[i * x->kq + c] = (double)x->q[(i * x->h + h) * x->kq + c];
			e->k[i * x->kq + c] = (double)(c < x->nope ? kv[c] : rope[c - x->nope]);
		}
		for (size_t c = 0; c < x->v; c++) {
			e->v[i * x->v + c] = (double)kv[x->nope + c];
			e->da[i * x->v + c] = (double)x->da[(i * x->h + h) * x->v + c];
		}
	}
}

/* Scores become P; lse of each row. */
static void
softmax(const struct attn *x, size_t h, double *s)
{
	for (size_t i = 0; i < x->t; i++) {
		size_t first = x->own ? i / x->doc * x->doc : 0, n = x->own ? i + 1 : x->t;
		double *row = s + i * x->t, sum = 0;
		for (size_t j = first; j < n; j++)
			sum += exp(x->scale * row[j]);
		for (size_t j = 0; j < x->t; j++)
			row[j] = j >= first && j < n ? exp(x->scale * row[j]) / sum : 0;
		x->lse[i * x->h + h] = log(sum);
	}
}

static void
solve_head(const struct attn *x, size_t h, struct head *e)
{
	size_t t = x->t, kq = x->kq, v = x->v, kvw = x->nope + v;

	load_head(x, h, e);
	bench_dgemm(e->s, BENCH_NT, t, t, kq, e->q, e->k);
	softmax(x, h, e->s);
	bench_dgemm(e->o, BENCH_NN, t, v, t, e->s, e->v);
	bench_dgemm(e->dp, BENCH_NT, t, t, v, e->da, e->v);
	bench_dgemm(e->dv, BENCH_TN, t, v, t, e->s, e->da);
	for (size_t i = 0; i < t; i++) {
		double *delta = &x->delta[i * x->h + h];
		for (size_t c = 0; c < v; c++) {
			x->o[(i * x->h + h) * v + c] = e->o[i * v + c];
			*delta += e->o[i * v + c] * e->da[i * v + c];
		}
		for (size_t j = 0; j < t; j++)
			e->dp[i * t + j] = e->s[i * t + j] * (e->dp[i * t + j] - *delta) * x->scale;
	}
	bench_dgemm(e->dq, BENCH_NN, t, kq, t, e->dp, e->k);
	bench_dgemm(e->dk, BENCH_TN, t, kq, t, e->dp, e->q);
	for (size_t i = 0; i < t; i++) {
		double *dkv = x->dkv + i * x->ldk + h * kvw,
		       *rope = x->dkv + (i + 1) * x->ldk - x->rope;
		for (size_t c = 0; c < kq; c++) {
			x->dq[(i * x->h + h) * kq + c] = e->dq[i * kq + c];
			*(c < x->nope ? &dkv[c] : &rope[c - x->nope]) += e->dk[i * kq + c];
		}
		for (size_t c = 0; c < v; c++)
			dkv[x->nope + c] = e->dv[i * v + c];
	}
}

static void
solve(struct bench_case *c, struct attn *x)
{
	size_t t = x->t;
	struct head e = {bench_doubles(c, t * x->kq), bench_doubles(c, t * x->kq),
			 bench_doubles(c, t * x->v),  bench_doubles(c, t * x->v),
			 bench_doubles(c, t * t),     bench_doubles(c, t * t),
			 bench_doubles(c, t * x->v),  bench_doubles(c, t * x->kq),
			 bench_doubles(c, t * x->kq), bench_doubles(c, t * x->v)};

	x->o = bench_doubles(c, t * x->h * x->v);
	x->lse = bench_doubles(c, t * x->h);
	x->delta = bench_doubles(c, t * x->h);
	x->dq = bench_doubles(c, t * x->h * x->kq);
	x->dkv = bench_doubles(c, t * x->ldk);
	for (size_t h = 0; h < x->h; h++)
		solve_head(x, h, &e);
}

static struct k3_mla_attn_args
args_of(const struct attn *x)
{
	struct k3_mla_attn_args a = {.t = x->t,
				     .tk_max = x->t,
				     .h = x->h,
				     .nope = x->nope,
				     .rope = x->rope,
				     .v = x->v,
				     .h1 = (uint32_t)x->h,
				     .first = 1,
				     .init_dq = 1,
				     .init_dkv = 1,
				     .scale = (float)x->scale};

	return a;
}

static void
push_forward(struct bench_call *call, const struct attn *x, const int32_t *queries,
	     const int32_t *keys)
{
	struct k3_mla_attn_args a = args_of(x);

	bench_out(call, "o", x->t * x->h * x->v);
	bench_keep(call->c, bench_out(call, "lse", x->t * x->h));
	bench_push(call, x->q);
	bench_push(call, queries);
	bench_work(call, k3_mla_attn_fwd_work_floats(x->t, x->nope, x->rope, x->v));
	a.kv = (struct k3_list){call->n, 1};
	bench_push(call, x->kv);
	a.klayout = (struct k3_list){call->n, 1};
	bench_push(call, keys);
	bench_args(call, &a, sizeof(a));
	call->flops = pair_flops(x, false);
}

static void
push_backward(struct bench_call *call, const struct attn *x, const int32_t *queries,
	      const int32_t *keys)
{
	struct k3_mla_attn_args a = args_of(x);

	bench_out(call, "dq", x->t * x->h * x->kq);
	bench_out(call, "dkv", x->t * x->ldk);
	bench_push(call, x->q);
	bench_push(call, x->kv);
	bench_push(call, x->da);
	bench_push(call, bench_narrow(call->c, x->lse, x->t * x->h));
	bench_push(call, bench_narrow(call->c, x->delta, x->t * x->h));
	bench_push(call, queries);
	bench_push(call, keys);
	bench_work(call, k3_mla_attn_bwd_work_floats(x->t, x->nope, x->rope, x->v));
	bench_args(call, &a, sizeof(a));
	call->flops = pair_flops(x, true);
}

/* The shared key part of dkv sums over queries and heads. */
static void
compare(struct bench_case *c, const struct attn *x)
{
	const double *want[] = {x->o, x->lse, x->dq, x->dkv};

	for (size_t i = 0; i < 4; i++) {
		const struct bench_output *out = &c->output[i];
		bench_expect(c, out->name, out->data, out->n, want[i], 1, out->n,
			     x->kq + x->t * x->h);
	}
}

/* Documents of equal length, but for the last. */
static void
cut_documents(int32_t *layout, const struct attn *x)
{
	int32_t *segment = layout + K3_TL_HEAD + 2 * x->t, n = 0;

	for (size_t i = 0; i < x->t; i++) {
		layout[K3_TL_HEAD + i] = (int32_t)(i / x->doc) + 1;
		if (i % x->doc == 0)
			segment[n++] = (int32_t)i;
	}
	segment[n] = (int32_t)x->t;
	layout[K3_TL_SEGMENTS] = n;
}

static void
attend(struct bench *b, const char *name, bool own, size_t docs)
{
	const struct k3_config *m = b->model;
	struct attn x = {.t = b->tokens,
			 .h = m->heads,
			 .nope = m->nope_dim,
			 .rope = m->rope_dim,
			 .v = m->v_dim,
			 .kq = m->nope_dim + m->rope_dim,
			 .own = own,
			 .doc = (b->tokens + docs - 1) / docs};
	struct bench_case c;

	x.ldk = x.h * (x.nope + x.v) + x.rope;
	x.scale = 1 / sqrt((double)x.kq);
	if (!bench_open(&c, b, name, BENCH_CUBE, BENCH_TARGET_ATTENTION,
			"t=%zu h=%zu kq=%zu v=%zu %s, %zu a document", x.t, x.h, x.kq, x.v,
			own ? "causal" : "all", x.doc))
		return;
	x.q = bench_random(&c, x.t * x.h * x.kq, -2, 2);
	x.kv = bench_random(&c, x.t * x.ldk, -2, 2);
	x.da = bench_random(&c, x.t * x.h * x.v, -1, 1);
	if (bench_checks(&c)) {
		solve(&c, &x);
	} else {
		x.lse = bench_constants(&c, x.t * x.h, 8);
		x.delta = bench_constants(&c, x.t * x.h, 0.1);
	}
	int32_t *keys = bench_layout(&c, x.t), *queries = bench_layout(&c, x.t);
	queries[K3_TL_ROW0] = own ? 0 : (int32_t)x.t;
	queries[K3_TL_CONT_IN] = keys[K3_TL_CONT_OUT] = !own;
	cut_documents(queries, &x);
	cut_documents(keys, &x);
	struct bench_call *fwd = bench_call(&c, K3_OP_MLA_ATTN_FWD),
			  *bwd = bench_call(&c, K3_OP_MLA_ATTN_BWD);
	push_forward(fwd, &x, queries, keys);
	push_backward(bwd, &x, queries, keys);
	if (bench_run(&c))
		compare(&c, &x);
	bench_close(&c);
}

void
bench_mla_attn(struct bench *b)
{
	attend(b, "mla_attn", true, 1);
	attend(b, "mla_attn_before", false, 1);
	attend(b, "mla_attn_packed", true, 8);
}
