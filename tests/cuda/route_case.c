#include "route_case.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "../../common/op/moe.h"
#include "../../common/rng.h"

/* k distinct experts of one token. */
static void
choose(int32_t *ids, size_t n, size_t k, enum route_pattern pattern, uint64_t key)
{
	for (size_t j = 0, draw = 0; j < k;) {
		double u = k3_rng_uniform(key, draw++);
		size_t of = pattern == ROUTE_FEW ? k : n;
		int32_t e = (int32_t)((pattern == ROUTE_SKEWED ? u * u * u : u) * (double)of);
		bool taken = false;
		for (size_t i = 0; i < j; i++)
			taken |= ids[i] == e;
		if (!taken)
			ids[j++] = e;
	}
}

void
route_case_make(struct route_case *c, size_t t, size_t n_experts, size_t k,
		enum route_pattern pattern, uint64_t seed)
{
	const size_t d = 3;
	float *x = malloc((t + 1) * d * sizeof(*x)), *wr = malloc(n_experts * d * sizeof(*wr)),
	      *bias = calloc(n_experts, sizeof(*bias));
	uint64_t key = k3_rng_key("routes", seed);
	struct k3_moe_route_args a = {.t = t,
				      .d = d,
				      .n_experts = n_experts,
				      .k = k,
				      .sum_eps = 1e-20f,
				      .scale = 1,
				      .forced = {3, 1},
				      .wr = {4, 1, n_experts, d, n_experts, 0},
				      .bias = {5, 1, 1, n_experts, 1, 0}};

	*c = (struct route_case){.t = t, .n_experts = n_experts, .k = k};
	c->ids = malloc((t * k + 1) * sizeof(*c->ids));
	c->route = malloc(k3_route_len(t, n_experts, k) * sizeof(*c->route));
	c->routew = malloc((k3_routew_len(t, n_experts, k) + 1) * sizeof(*c->routew));
	cr_assert(x && wr && bias && c->ids && c->route && c->routew);
	for (size_t i = 0; i < t * d; i++)
		x[i] = (float)k3_rng_normal(key, i, INFINITY);
	for (size_t i = 0; i < n_experts * d; i++)
		wr[i] = (float)k3_rng_normal(key + 1, i, INFINITY);
	for (size_t i = 0; i < t; i++)
		choose(c->ids + i * k, n_experts, k, pattern, k3_rng_key("token", seed + i));
	void *buf[] = {c->route, c->routew, x, c->ids, wr, bias};
	a.n_buf = 6;
	k3_moe_route_fwd_cpu_f32(buf, &a);
	free(x);
	free(wr);
	free(bias);
}

void
route_case_free(struct route_case *c)
{
	free(c->ids);
	free(c->route);
	free(c->routew);
}
