/* k3_bench op moe: the router; dispatch and combine, and the experts, are in files of their own. */
#include "bench_moe.h"

#include <math.h>
#include <string.h>

#include "../../common/rng.h"

void
bench_sort(int32_t *route, const int32_t *ids, size_t t, size_t n_experts, size_t k)
{
	int32_t *offs = route, *row = route + n_experts + 1 + t * k, *src = row + t * k, next = 0;

	memcpy(route + n_experts + 1, ids, t * k * sizeof(*ids));
	for (size_t e = 0; e < n_experts; e++) {
		offs[e] = next;
		for (size_t i = 0; i < t * k; i++)
			if (ids[i] == (int32_t)e) {
				row[i] = next;
				src[next++] = (int32_t)i;
			}
	}
	offs[n_experts] = next;
}

/* k different experts: uniform, or with the square of the square of a uniform number. */
static void
choose(int32_t *ids, uint64_t key, size_t n_experts, size_t k, enum bench_routing kind)
{
	size_t open = kind == BENCH_SKEWED ? n_experts - n_experts / 4 : n_experts;

	open = open < k ? k : open;
	for (size_t j = 0, try = 0; j < k; try++) {
		double u = k3_rng_uniform(key, try);
		size_t e = (size_t)((kind == BENCH_SKEWED ? u * u * u * u : u) * (double)open);
		bool taken = false;
		for (size_t i = 0; i < j; i++)
			taken |= ids[i] == (int32_t)e;
		if (!taken)
			ids[j++] = (int32_t)e;
	}
}

struct bench_route
bench_route(struct bench_case *c, enum bench_routing kind)
{
	struct bench_route r = {
		.t = c->b->tokens, .n_experts = c->b->model->experts, .k = c->b->model->top_k};
	size_t tk = r.t * r.k, n = r.n_experts;
	int32_t *route = bench_memory(c, k3_route_len(r.t, n, r.k) * sizeof(*route));
	int32_t *ids = bench_memory(c, tk * sizeof(*ids));
	float *routew = bench_random(c, k3_routew_len(r.t, n, r.k), 0.05, 0.95);

	bench_keep(c, routew);
	for (size_t i = 0; i < r.t; i++) {
		double sum = 0;
		choose(ids + i * r.k, k3_rng_key("route", i), n, r.k, kind);
		for (size_t j = 0; j < r.k; j++)
			sum += (double)routew[tk + i * n + (size_t)ids[i * r.k + j]];
		for (size_t j = 0; j < r.k; j++)
			routew[i * r.k + j] =
				(float)((double)routew[tk + i * n + (size_t)ids[i * r.k + j]] /
					sum);
	}
	bench_sort(route, ids, r.t, n, r.k);
	r.route = route;
	r.routew = routew;
	r.offs = k3_route_offs(route);
	r.ids = ids;
	r.row = k3_route_row(route, n, r.t, r.k);
	r.src = k3_route_src(route, n, r.t, r.k);
	r.score = k3_routew_scores(routew, r.t, r.k);
	return r;
}

/* How far the chosen experts of all tokens are from the best by biased score, and from falling
 * order: 0 but for roundings of the scores. A repeated expert counts as 1. */
static double
choice_error(const int32_t *ids, const double *score, const float *bias,
	     const struct k3_moe_route_args *a)
{
	double worst = 0;

	for (size_t i = 0; i < a->t; i++) {
		const double *s = score + i * a->n_experts;
		double last = INFINITY;
		bool taken[a->n_experts];
		memset(taken, 0, sizeof(taken));
		for (size_t j = 0; j < a->k; j++) {
			int32_t e = ids[i * a->k + j];
			if (e < 0 || (size_t)e >= a->n_experts || taken[e])
				return 1;
			taken[e] = true;
			worst = fmax(worst, s[e] + (double)bias[e] - last);
			last = s[e] + (double)bias[e];
		}
		for (size_t e = 0; e < a->n_experts; e++)
			if (!taken[e])
				worst = fmax(worst, s[e] + (double)bias[e] - last);
	}
	return worst;
}

static void
expect_route(struct bench_case *c, const int32_t *route, const float *routew, double *score,
	     const float *bias, const struct k3_moe_route_args *a)
{
	size_t n = a->n_experts, tk = a->t * a->k, len = k3_route_len(a->t, n, a->k);
	const int32_t *ids = k3_route_ids(route, n);
	int32_t *sorted = bench_memory(c, len * sizeof(*sorted));
	double *w = bench_doubles(c, tk), *cut = bench_doubles(c, a->t), differ = 0;

	for (size_t i = 0; i < a->t * n; i++)
		score[i] = bench_sigmoid(score[i]);
	double error = choice_error(ids, score, bias, a);
	bench_judge(c, "route (choice)", error, bench_tolerance(a->d));
	if (error >= 1)
		return;
	for (size_t i = 0; i < a->t; i++) {
		double sum = 0;
		cut[i] = -INFINITY;
		for (size_t e = 0; e < n; e++) {
			bool taken = false;
			for (size_t j = 0; j < a->k; j++)
				taken |= ids[i * a->k + j] == (int32_t)e;
			if (!taken)
				cut[i] = fmax(cut[i], score[i * n + e] + (double)bias[e]);
		}
		for (size_t j = 0; j < a->k; j++)
			sum += score[i * n + (size_t)ids[i * a->k + j]];
		for (size_t j = 0; j < a->k; j++)
			w[i * a->k + j] = score[i * n + (size_t)ids[i * a->k + j]] / sum;
	}
	bench_sort(sorted, ids, a->t, n, a->k);
	for (size_t i = 0; i < len; i++)
		differ += sorted[i] != route[i];
	bench_judge(c, "route (order)", differ, 0);
	bench_expect(c, "routew (weights)", routew, a->k, w, a->t, a->k, a->d);
	bench_expect(c, "routew (scores)", routew + tk, n, score, a->t, n, a->d);
	if (a->k < n)
		bench_expect(c, "routew (cut)", routew + tk + a->t * n, 1, cut, a->t, 1, a->d);
}

static void
route(struct bench *b)
{
	const struct k3_config *m = b->model;
	struct k3_moe_route_args a = {.t = b->tokens,
				      .d = m->width,
				      .n_experts = m->experts,
				      .k = m->top_k,
				      .sum_eps = (float)m->router_sum_eps,
				      .scale = 1};
	struct bench_case c;
	float *wr, *bias;

	if (!bench_open(&c, b, k3_op_name(K3_OP_MOE_ROUTE_FWD), BENCH_SAME, 0,
			"t=%zu d=%zu experts=%zu k=%zu", a.t, a.d, a.n_experts, a.k))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_MOE_ROUTE_FWD);
	int32_t *out =
		bench_out_typed(call, "route", k3_route_len(a.t, a.n_experts, a.k), BENCH_I32);
	float *routew = bench_out(call, "routew", k3_routew_len(a.t, a.n_experts, a.k));
	bench_keep(&c, routew);
	float *x = bench_in(call, a.t * a.d);
	a.wr = bench_weight(call, a.n_experts, a.d, &wr);
	a.bias = bench_weight(call, 1, a.n_experts, &bias);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NT, a.t, a.n_experts, a.d);
	/* logits of about 1, so that scores differ */
	for (size_t i = 0; i < a.n_experts * a.d; i++)
		wr[i] *= 3 / sqrtf((float)a.d);
	for (size_t e = 0; e < a.n_experts; e++)
		bias[e] *= 0.1f;
	if (bench_run(&c))
		expect_route(&c, out, routew,
			     bench_wide(&c, BENCH_NT, a.t, a.n_experts, a.d, x, a.d, wr, a.d), bias,
			     &a);
	bench_close(&c);
}

void
bench_moe(struct bench *b)
{
	route(b);
	bench_moe_share(b);
	bench_moe_expert(b);
}
