/* k3_bench op moe: all routed experts of a tile, on even and on skewed routes.  The limit has the
 * same products: one per expert that has rows. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench_moe.h"

struct experts {
	struct bench_route route;
	size_t tk, r, f;
	double b1, b2;
	struct k3_expert_args a;
};

static bool
open_experts(struct bench_case *c, struct bench *b, enum k3_op op, const char *suffix,
	     enum bench_routing kind, struct experts *x)
{
	const struct k3_config *m = b->model;
	char name[64];

	x->tk = b->tokens * m->top_k;
	x->r = m->latent;
	x->f = m->expert_ffn;
	x->b1 = m->situ_beta1;
	x->b2 = m->situ_beta2;
	x->a = (struct k3_expert_args){.t = b->tokens,
				       .n_experts = m->experts,
				       .k = m->top_k,
				       .r = x->r,
				       .f = x->f,
				       .e1 = m->experts,
				       .beta1 = (float)x->b1,
				       .beta2 = (float)x->b2};
	snprintf(name, sizeof(name), "%s%s_%s", k3_op_name(op), suffix,
		 kind == BENCH_SKEWED ? "skewed" : "random");
	if (!bench_open(c, b, name, BENCH_SAME, BENCH_TARGET_GEMM,
			"t=%zu k=%zu experts=%u r=%zu f=%zu", b->tokens, (size_t)m->top_k,
			m->experts, x->r, x->f))
		return false;
	x->route = bench_route(c, kind);
	return true;
}

static size_t
rows_of(const struct experts *x, size_t e)
{
	return (size_t)(x->route.offs[e + 1] - x->route.offs[e]);
}

/* situ of sorted rows g | u, rounded. */
static float *
hidden(struct bench_case *c, const struct experts *x, const float *gu)
{
	double *h = bench_doubles(c, x->tk * x->f);

	for (size_t i = 0; i < x->tk * x->f; i++) {
		size_t at = i / x->f * 2 * x->f + i % x->f;
		double g = (double)gu[at], u = (double)gu[at + x->f];
		h[i] = x->b1 * tanh(g / x->b1) * bench_sigmoid(g) * x->b2 * tanh(u / x->b2);
	}
	return bench_narrow(c, h, x->tk * x->f);
}

static void
forward(struct bench *b, enum bench_routing kind)
{
	struct experts x;
	struct bench_case c;
	float *w13, *w2;

	if (!open_experts(&c, b, K3_OP_EXPERT_FWD, "", kind, &x))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_EXPERT_FWD);
	size_t r = x.r, f = x.f, n = x.route.n_experts;
	float *gu = bench_out(call, "gu", x.tk * 2 * f), *ys = bench_out(call, "ys", x.tk * r);
	float *zs = bench_in(call, x.tk * r);
	bench_push(call, x.route.route);
	bench_work(call, x.tk * f);
	x.a.w13 = bench_weight(call, n * 2 * f, r, &w13);
	x.a.w2 = bench_weight(call, n * r, f, &w2);
	bench_args(call, &x.a, sizeof(x.a));
	for (size_t e = 0; e < n; e++) {
		bench_product(call, BENCH_NT, rows_of(&x, e), 2 * f, r);
		bench_product(call, BENCH_NT, rows_of(&x, e), r, f);
	}
	if (bench_run(&c)) {
		float *h = hidden(&c, &x, gu);
		for (size_t e = 0; e < n; e++) {
			size_t at = (size_t)x.route.offs[e], rows = rows_of(&x, e);
			struct bench_rows up = bench_rows(&c, gu + at * 2 * f, 2 * f, rows, 2 * f),
					  down = bench_rows(&c, ys + at * r, r, rows, r);
			bench_rows_product(&up, BENCH_NT, r, zs + at * r, r, w13 + e * 2 * f * r,
					   r);
			bench_rows_product(&down, BENCH_NT, f, h + at * f, f, w2 + e * r * f, f);
			bench_rows_expect(&up, "gu");
			bench_rows_expect(&down, "ys");
		}
	}
	bench_close(&c);
}

/* What a recomputed layer needs again. */
static void
first_product(struct bench *b, enum bench_routing kind)
{
	struct experts x;
	struct bench_case c;
	float *w13;

	if (!open_experts(&c, b, K3_OP_EXPERT_GU, "", kind, &x))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_EXPERT_GU);
	size_t r = x.r, f = x.f, n = x.route.n_experts;
	float *gu = bench_out(call, "gu", x.tk * 2 * f), *zs = bench_in(call, x.tk * r);
	bench_push(call, x.route.route);
	x.a.w13 = bench_weight(call, n * 2 * f, r, &w13);
	bench_args(call, &x.a, sizeof(x.a));
	for (size_t e = 0; e < n; e++)
		bench_product(call, BENCH_NT, rows_of(&x, e), 2 * f, r);
	if (bench_run(&c))
		for (size_t e = 0; e < n; e++) {
			size_t at = (size_t)x.route.offs[e];
			struct bench_rows up =
				bench_rows(&c, gu + at * 2 * f, 2 * f, rows_of(&x, e), 2 * f);
			bench_rows_product(&up, BENCH_NT, r, zs + at * r, r, w13 + e * 2 * f * r,
					   r);
			bench_rows_expect(&up, "gu");
		}
	bench_close(&c);
}

/* dgu and dwt of all rows from dh = dys w2, unscaled, of one expert after the other. */
static void
expect_hidden_back(struct bench_case *c, const struct experts *x, const float *dys, const float *gu,
		   const float *w2, const float *dgu, const float *dwt)
{
	size_t r = x->r, f = x->f;
	double *want = bench_doubles(c, x->tk * 2 * f), *dot = bench_doubles(c, x->tk);

	for (size_t e = 0; e < x->route.n_experts; e++) {
		size_t at = (size_t)x->route.offs[e], rows = rows_of(x, e);
		double *dh =
			bench_wide(c, BENCH_NN, rows, f, r, dys + at * r, r, w2 + e * r * f, f);
		for (size_t i = 0; i < rows * f; i++) {
			size_t row = at + i / f, col = row * 2 * f + i % f;
			double g = (double)gu[col], u = (double)gu[col + f];
			double weight = (double)x->route.routew[x->route.src[row]];
			double t1 = tanh(g / x->b1), z = bench_sigmoid(g), t2 = tanh(u / x->b2);
			dot[row] += dh[i] * x->b1 * t1 * z * x->b2 * t2;
			want[col] = weight * dh[i] * x->b2 * t2 *
				    ((1 - t1 * t1) * z + x->b1 * t1 * z * (1 - z));
			want[col + f] = weight * dh[i] * x->b1 * t1 * z * (1 - t2 * t2);
		}
	}
	bench_expect(c, "dgu", dgu, 2 * f, want, x->tk, 2 * f, r);
	bench_expect(c, "dwt", dwt, 1, dot, x->tk, 1, r + f);
}

static void
data_gradient(struct bench *b, enum bench_routing kind)
{
	struct experts x;
	struct bench_case c;
	float *w13, *w2;

	if (!open_experts(&c, b, K3_OP_EXPERT_DGRAD, "", kind, &x))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_EXPERT_DGRAD);
	size_t r = x.r, f = x.f, n = x.route.n_experts;
	float *dgu = bench_out(call, "dgu", x.tk * 2 * f), *dzs = bench_out(call, "dzs", x.tk * r);
	float *dwt = bench_out(call, "dwt", x.tk);
	bench_keep(&c, dwt);
	float *dys = bench_in(call, x.tk * r);
	float *gu = bench_push(call, bench_random(&c, x.tk * 2 * f, -4, 4));
	bench_push(call, x.route.route);
	bench_push(call, x.route.routew);
	bench_work(call, x.tk * f);
	x.a.w13 = bench_weight(call, n * 2 * f, r, &w13);
	x.a.w2 = bench_weight(call, n * r, f, &w2);
	bench_args(call, &x.a, sizeof(x.a));
	for (size_t e = 0; e < n; e++) {
		bench_product(call, BENCH_NN, rows_of(&x, e), f, r);
		bench_product(call, BENCH_NN, rows_of(&x, e), r, 2 * f);
	}
	if (bench_run(&c)) {
		expect_hidden_back(&c, &x, dys, gu, w2, dgu, dwt);
		for (size_t e = 0; e < n; e++) {
			size_t at = (size_t)x.route.offs[e];
			struct bench_rows rows = bench_rows(&c, dzs + at * r, r, rows_of(&x, e), r);
			bench_rows_product(&rows, BENCH_NN, 2 * f, dgu + at * 2 * f, 2 * f,
					   w13 + e * 2 * f * r, r);
			bench_rows_expect(&rows, "dzs");
		}
	}
	bench_close(&c);
}

/* A gradient that is written, or added to what *before keeps. */
static struct k3_weight
gradient(struct bench_call *call, const char *name, size_t rows, size_t cols, float **dw,
	 float **before)
{
	if (!before)
		return bench_gradient(call, name, rows, cols, dw);
	*dw = bench_inout(call, name, rows * cols, before);
	bench_keep(call->c, *dw);
	struct k3_weight w = bench_last(call, rows, cols);
	w.accumulate = 1;
	return w;
}

static void
weight_gradient(struct bench *b, enum bench_routing kind, bool adds)
{
	struct experts x;
	struct bench_case c;
	float *dw13, *dw2, *before13 = NULL, *before2 = NULL;

	if (!open_experts(&c, b, K3_OP_EXPERT_WGRAD, adds ? "_adds" : "", kind, &x))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_EXPERT_WGRAD);
	size_t r = x.r, f = x.f, n = x.route.n_experts;
	float *dgu = bench_in(call, x.tk * 2 * f), *dys = bench_in(call, x.tk * r);
	float *gu = bench_push(call, bench_random(&c, x.tk * 2 * f, -4, 4));
	float *zs = bench_in(call, x.tk * r);
	bench_push(call, x.route.route);
	bench_push(call, x.route.routew);
	bench_work(call, x.tk * f);
	x.a.w13 = gradient(call, "dw13", n * 2 * f, r, &dw13, adds ? &before13 : NULL);
	x.a.w2 = gradient(call, "dw2", n * r, f, &dw2, adds ? &before2 : NULL);
	bench_args(call, &x.a, sizeof(x.a));
	for (size_t e = 0; e < n; e++) {
		bench_product(call, BENCH_TN, 2 * f, r, rows_of(&x, e));
		bench_product(call, BENCH_TN, r, f, rows_of(&x, e));
	}
	if (bench_run(&c)) {
		double *scaled = bench_doubles(&c, x.tk * r);
		for (size_t i = 0; i < x.tk * r; i++)
			scaled[i] = (double)x.route.routew[x.route.src[i / r]] * (double)dys[i];
		float *h = hidden(&c, &x, gu), *dy = bench_narrow(&c, scaled, x.tk * r);
		for (size_t e = 0; e < n; e++) {
			size_t at = (size_t)x.route.offs[e], rows = rows_of(&x, e);
			struct bench_rows up = bench_rows(&c, dw13 + e * 2 * f * r, r, 2 * f, r),
					  down = bench_rows(&c, dw2 + e * r * f, f, r, f);
			bench_rows_product(&up, BENCH_TN, rows, dgu + at * 2 * f, 2 * f,
					   zs + at * r, r);
			bench_rows_product(&down, BENCH_TN, rows, dy + at * r, r, h + at * f, f);
			if (adds) {
				bench_rows_add(&up, before13 + e * 2 * f * r, r);
				bench_rows_add(&down, before2 + e * r * f, f);
			}
			bench_rows_expect(&up, "dw13");
			bench_rows_expect(&down, "dw2");
		}
	}
	bench_close(&c);
}

void
bench_moe_expert(struct bench *b)
{
	static const enum bench_routing kinds[] = {BENCH_RANDOM, BENCH_SKEWED};

	for (size_t i = 0; i < 2; i++) {
		forward(b, kinds[i]);
		data_gradient(b, kinds[i]);
		weight_gradient(b, kinds[i], false);
		weight_gradient(b, kinds[i], true);
		first_product(b, kinds[i]);
	}
}
