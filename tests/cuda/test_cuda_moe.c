/* Router, dispatch and combine on CUDA against the CPU kernels.
 *
 * The trap: logits differ in their last bits, so the router's inputs are drawn until no two scores that
 * decide are closer than those bits; they are numbers of bf16, so that both types see the same. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/op/moe.h"
#include "../../common/rng.h"
#include "cuda_case.h"
#include "route_case.h"
#include "../../codelets/cuda/kernels.h"

#define TEST(name) Test(cuda_moe, name, .init = cuda_case_need_device, .timeout = 120)

static const struct shape {
	size_t t, d, r, n_experts, k, block;
	enum route_pattern pattern;
} shapes[] = {{64, 64, 32, 8, 2, 1000, ROUTE_RANDOM},	 {257, 72, 56, 40, 5, 24, ROUTE_SKEWED},
	      {33, 31, 17, 9, 3, 4, ROUTE_RANDOM},	 {100, 36, 28, 4, 4, 16, ROUTE_RANDOM},
	      {70, 16, 24, 896, 16, 256, ROUTE_RANDOM},	 {513, 64, 40, 8, 1, 1000, ROUTE_FEW},
	      {1, 8, 5, 3, 2, 2, ROUTE_RANDOM},		 {0, 8, 16, 4, 2, 3, ROUTE_RANDOM},
	      {512, 1024, 512, 32, 4, 512, ROUTE_RANDOM}};

#define EACH_SHAPE(s)                                                                              \
	for (const struct shape *s = shapes; s < shapes + sizeof(shapes) / sizeof(*shapes); s++)

static float
bf16(double x)
{
	float f = (float)x;
	uint32_t u;

	memcpy(&u, &f, 4);
	u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
	memcpy(&f, &u, 4);
	return f;
}

/* Smallest distance between biased scores that the order of the first k+1 rests on. */
static double
margin(const float *x, const float *wr, const float *bias, const struct shape *s)
{
	double value[1024], least = INFINITY;

	for (size_t e = 0; e < s->n_experts; e++) {
		double dot = 0;
		for (size_t c = 0; c < s->d; c++)
			dot += (double)x[c] * (double)wr[e * s->d + c];
		value[e] = 1 / (1 + exp(-dot)) + (double)bias[e];
	}
	for (size_t j = 0; j < s->k && j + 1 < s->n_experts; j++) {
		for (size_t e = j + 1; e < s->n_experts; e++)
			if (value[e] > value[j]) {
				double swap = value[j];
				value[j] = value[e];
				value[e] = swap;
			}
		for (size_t e = j + 1; e < s->n_experts; e++)
			least = fmin(least, value[j] - value[e]);
	}
	return least;
}

/* The router's operands with x drawn until every token is decided. */
static void
add_router(struct cuda_case *c, struct k3_moe_route_args *a, const struct shape *s,
	   const int32_t *forced)
{
	uint64_t key = k3_rng_key("router", s->t);
	float *x = malloc((s->t * s->d + 1) * sizeof(*x)),
	      *wr = malloc(s->n_experts * s->d * sizeof(*wr)), bias[1024];

	for (size_t i = 0; i < s->n_experts * s->d; i++)
		wr[i] = bf16(k3_rng_normal(key, i, INFINITY) / sqrt((double)s->d));
	for (size_t e = 0; e < s->n_experts; e++)
		bias[e] = 0.1f * (float)k3_rng_normal(key + 1, e, INFINITY);
	for (size_t i = 0, draw = 0; i < s->t; i++)
		do {
			for (size_t col = 0; col < s->d; col++)
				x[i * s->d + col] = bf16(k3_rng_normal(key + 2, draw++, INFINITY));
		} while (margin(x + i * s->d, wr, bias, s) < 3e-6);
	cuda_case_add(c, CUDA_I32, CUDA_W, k3_route_len(s->t, s->n_experts, s->k), 0, "route");
	cuda_case_add(c, CUDA_F32, CUDA_W, k3_routew_len(s->t, s->n_experts, s->k), 0, "routew");
	cuda_case_tolerance(c, 1e-5, 1e-5); /* a float island */
	cuda_case_values(c, CUDA_T, CUDA_R, s->t * s->d, x, "x");
	a->forced = (struct k3_list){(uint32_t)c->n, forced != NULL};
	if (forced)
		cuda_case_values(c, CUDA_I32, CUDA_R, s->t * s->k, forced, "forced");
	a->wr = (struct k3_weight){.first = (uint32_t)c->n,
				   .rows = s->n_experts,
				   .cols = s->d,
				   .block_rows = s->block};
	for (size_t e = 0; e < s->n_experts; e += s->block, a->wr.n++)
		cuda_case_values(c, CUDA_T, CUDA_R,
				 (s->n_experts - e < s->block ? s->n_experts - e : s->block) * s->d,
				 wr + e * s->d, "wr");
	a->bias = (struct k3_weight){(uint32_t)c->n, 1, 1, s->n_experts, 1, 0};
	cuda_case_values(c, CUDA_F32, CUDA_R, s->n_experts, bias, "bias");
	free(x);
	free(wr);
}

static struct k3_moe_route_args
route_args(const struct shape *s)
{
	return (struct k3_moe_route_args){.t = s->t,
					  .d = s->d,
					  .n_experts = s->n_experts,
					  .k = s->k,
					  .sum_eps = 1e-20f,
					  .scale = 2.5f};
}

TEST(routes_are_those_of_the_cpu)
{
	EACH_SHAPE(s)
	for (int forced = 0; forced < 2; forced++) {
		struct k3_moe_route_args a = route_args(s);
		struct route_case routes;
		struct cuda_case c;
		route_case_make(&routes, s->t, s->n_experts, s->k, s->pattern, 1);
		cuda_case_begin(&c, 1);
		add_router(&c, &a, s, forced ? routes.ids : NULL);
		CUDA_CASE_COMPARE(&c, forced ? "moe_route_fwd, forced" : "moe_route_fwd", &a,
				  k3_moe_route_fwd_cpu_f32, moe_route_fwd,
				  k3_moe_route_fwd_cuda_scratch(&a));
		cuda_case_end(&c);
		route_case_free(&routes);
	}
}

TEST(ties_go_to_the_lowest_expert)
{
	EACH_SHAPE(s)
	{
		struct k3_moe_route_args a = route_args(s);
		struct cuda_case c;
		cuda_case_begin(&c, 2);
		cuda_case_add(&c, CUDA_I32, CUDA_W, k3_route_len(s->t, s->n_experts, s->k), 0,
			      "route");
		cuda_case_add(&c, CUDA_F32, CUDA_W, k3_routew_len(s->t, s->n_experts, s->k), 0,
			      "routew");
		cuda_case_tolerance(&c, 1e-6, 1e-6);
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "x");
		a.wr = cuda_case_weight(&c, CUDA_T, CUDA_R, s->n_experts, s->d, s->block, 0, "wr");
		a.bias = cuda_case_weight(&c, CUDA_F32, CUDA_R, 1, s->n_experts, 1, 0, "bias");
		CUDA_CASE_COMPARE(&c, "moe_route_fwd, ties", &a, k3_moe_route_fwd_cpu_f32,
				  moe_route_fwd, k3_moe_route_fwd_cuda_scratch(&a));
		cuda_case_end(&c);
	}
}

/* Documents with holes: every seventh row has none. */
static void
add_layout(struct cuda_case *c, size_t t)
{
	int32_t *layout = calloc(k3_tile_layout_len(t), sizeof(*layout));

	layout[K3_TL_ROWS] = (int32_t)t;
	for (size_t i = 0; i < t; i++)
		layout[K3_TL_HEAD + i] = i % 7 ? (int32_t)(1 + i / 50) : 0;
	cuda_case_values(c, CUDA_I32, CUDA_R, k3_tile_layout_len(t), layout, "layout");
	free(layout);
}

TEST(counts_equal_the_cpu)
{
	static const size_t bins[] = {0, 7, 1000};

	EACH_SHAPE(s)
	for (int i = 0; i < 6; i++) {
		struct k3_moe_count_args a = {.t = s->t,
					      .n_experts = s->n_experts,
					      .k = s->k,
					      .bins = bins[i / 2],
					      .accumulate = i % 2};
		size_t n = s->n_experts * (1 + a.bins);
		int32_t *old = calloc(n, sizeof(*old));
		struct route_case routes;
		struct cuda_case c;
		route_case_make(&routes, s->t, s->n_experts, s->k, s->pattern, 3);
		cuda_case_begin(&c, 3);
		for (size_t k = 0; k < n; k++)
			old[k] = (int32_t)(k % 11);
		cuda_case_values(&c, CUDA_I32, a.accumulate ? CUDA_RW : CUDA_W, n, old, "balance");
		cuda_case_values(&c, CUDA_I32, CUDA_R, k3_route_len(s->t, s->n_experts, s->k),
				 routes.route, "route");
		cuda_case_values(&c, CUDA_F32, CUDA_R, k3_routew_len(s->t, s->n_experts, s->k),
				 routes.routew, "routew");
		add_layout(&c, s->t);
		/* of the second kind the bias is 0: cutoffs lie on the edge of a bin */
		a.bias = cuda_case_weight(&c, CUDA_F32, CUDA_R, 1, s->n_experts, 1,
					  i % 2 ? 0.0 : 0.3, "bias");
		CUDA_CASE_COMPARE(&c, "moe_count", &a, k3_moe_count_cpu, moe_count, 0);
		cuda_case_end(&c);
		route_case_free(&routes);
		free(old);
	}
}
