/* Dispatch and combine on CUDA against the CPU kernels. */
#include <criterion/criterion.h>

#include "../../common/op/moe.h"
#include "cuda_case.h"
#include "route_case.h"
#include "../../codelets/cuda/kernels.h"

#define TEST(name) Test(cuda_moe_rows, name, .init = cuda_case_need_device, .timeout = 120)

static const struct shape {
	size_t t, d, r, n_experts, k, block;
	enum route_pattern pattern;
} shapes[] = {
	{64, 64, 32, 8, 2, 1000, ROUTE_RANDOM},	    {257, 72, 56, 40, 5, 24, ROUTE_SKEWED},
	{33, 31, 17, 9, 3, 4, ROUTE_RANDOM},	    {100, 36, 28, 4, 4, 16, ROUTE_RANDOM},
	{70, 16, 24, 896, 16, 12, ROUTE_RANDOM},    {2500, 64, 40, 8, 1, 1000, ROUTE_FEW},
	{1, 8, 5, 3, 2, 2, ROUTE_RANDOM},	    {0, 8, 16, 4, 2, 3, ROUTE_RANDOM},
	{512, 1024, 512, 32, 4, 512, ROUTE_RANDOM}, {300, 200, 136, 12, 3, 1000, ROUTE_RANDOM},
	{391, 264, 1032, 5, 2, 2000, ROUTE_SKEWED}};

#define EACH_SHAPE(s)                                                                              \
	for (const struct shape *s = shapes; s < shapes + sizeof(shapes) / sizeof(*shapes); s++)

static void
add_routes(struct cuda_case *c, const struct route_case *r, bool weights)
{
	cuda_case_values(c, CUDA_I32, CUDA_R, k3_route_len(r->t, r->n_experts, r->k), r->route,
			 "route");
	if (weights)
		cuda_case_values(c, CUDA_F32, CUDA_R, k3_routew_len(r->t, r->n_experts, r->k),
				 r->routew, "routew");
}

static struct k3_moe_dispatch_args
dispatch_args(const struct shape *s)
{
	return (struct k3_moe_dispatch_args){.t = s->t,
					     .d = s->d,
					     .r = s->r,
					     .n_experts = s->n_experts,
					     .k = s->k,
					     .sum_eps = 1e-20f,
					     .scale = 1};
}

static struct k3_moe_combine_args
combine_args(const struct shape *s)
{
	return (struct k3_moe_combine_args){.t = s->t,
					    .d = s->d,
					    .r = s->r,
					    .n_experts = s->n_experts,
					    .k = s->k,
					    .eps = 1e-5f};
}

TEST(rows_are_dispatched_as_by_the_cpu)
{
	EACH_SHAPE(s)
	{
		struct k3_moe_dispatch_args a = dispatch_args(s);
		struct route_case routes;
		struct cuda_case c;
		route_case_make(&routes, s->t, s->n_experts, s->k, s->pattern, 1);
		cuda_case_begin(&c, 1);
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->k * s->r, 0, "zs");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "x");
		add_routes(&c, &routes, false);
		cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * s->t * s->r, 0, "work");
		a.wdown = cuda_case_weight(&c, CUDA_T, CUDA_R, s->r, s->d, s->block, 0.1, "wdown");
		CUDA_CASE_COMPARE(&c, "moe_dispatch_fwd", &a, k3_moe_dispatch_fwd_cpu_f32,
				  moe_dispatch_fwd, 0);
		cuda_case_end(&c);
		route_case_free(&routes);
	}
}

/* dx is rounded for each block of wdown and again for the router; dl is a float island. */
TEST(input_and_router_gradients_equal_the_cpu)
{
	EACH_SHAPE(s)
	{
		struct k3_moe_dispatch_args a = dispatch_args(s);
		struct route_case routes;
		struct cuda_case c;
		route_case_make(&routes, s->t, s->n_experts, s->k, s->pattern, 2);
		cuda_case_begin(&c, 2);
		cuda_case_add(&c, CUDA_T, CUDA_RW, s->t * s->d, 1, "dx");
		cuda_case_tolerance(&c, 1e-5, 1e-2);
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->r, 0, "dz");
		cuda_case_add(&c, CUDA_F32, CUDA_W, s->t * s->n_experts, 0, "dl");
		cuda_case_tolerance(&c, 1e-6, 1e-6);
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->k * s->r, 1, "dzs");
		cuda_case_add(&c, CUDA_F32, CUDA_R, s->t * s->k, 3, "dwt");
		add_routes(&c, &routes, true);
		a.wdown = cuda_case_weight(&c, CUDA_T, CUDA_R, s->r, s->d, s->block, 0.1, "wdown");
		a.wr = cuda_case_weight(&c, CUDA_T, CUDA_R, s->n_experts, s->d, s->block, 0.5,
					"wr");
		CUDA_CASE_COMPARE(&c, "moe_dispatch_bwd_dx", &a, k3_moe_dispatch_bwd_dx_cpu_f32,
				  moe_dispatch_bwd_dx, 0);
		cuda_case_end(&c);
		route_case_free(&routes);
	}
}

/* Sums over all tokens. */
TEST(weight_gradients_of_dispatch_equal_the_cpu)
{
	EACH_SHAPE(s)
	for (int adds = 0; adds < 2; adds++) {
		enum cuda_operand_mode mode = adds ? CUDA_RW : CUDA_W;
		struct k3_moe_dispatch_args a = dispatch_args(s);
		struct cuda_case c;
		cuda_case_begin(&c, 3);
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->r, 1, "dz");
		cuda_case_add(&c, CUDA_F32, CUDA_R, s->t * s->n_experts, 1, "dl");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "x");
		a.wdown = cuda_case_weight(&c, CUDA_F32, mode, s->r, s->d, s->block, 1, "dwdown");
		a.wr = cuda_case_weight(&c, CUDA_F32, mode, s->n_experts, s->d, s->block, 1, "dwr");
		/* 16 bits of dl take part: an error of 2^-17 of each term */
		for (uint32_t b = 0; b < a.wr.n; b++)
			c.operand[a.wr.first + b].tolerance_bf16 = 2e-5;
		CUDA_CASE_COMPARE(&c, "moe_dispatch_bwd_dw", &a, k3_moe_dispatch_bwd_dw_cpu_f32,
				  moe_dispatch_bwd_dw, k3_moe_dispatch_bwd_dw_cuda_scratch(&a));
		cuda_case_end(&c);
	}
}

TEST(combined_rows_equal_the_cpu)
{
	EACH_SHAPE(s)
	{
		struct k3_moe_combine_args a = combine_args(s);
		struct route_case routes;
		struct cuda_case c;
		route_case_make(&routes, s->t, s->n_experts, s->k, s->pattern, 4);
		cuda_case_begin(&c, 4);
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->d, 0, "p_out");
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->r, 0, "y");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->k * s->r, 1, "ys");
		add_routes(&c, &routes, true);
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "shared");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "p_in");
		cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * s->t * s->r, 0, "work");
		a.norm = cuda_case_weight(&c, CUDA_F32, CUDA_R, 1, s->r, 1, 1, "norm");
		a.wup = cuda_case_weight(&c, CUDA_T, CUDA_R, s->d, s->r, s->block, 0.1, "wup");
		CUDA_CASE_COMPARE(&c, "moe_combine_fwd", &a, k3_moe_combine_fwd_cpu_f32,
				  moe_combine_fwd, 0);
		cuda_case_end(&c);
		route_case_free(&routes);
	}
}

TEST(gradients_of_combined_rows_equal_the_cpu)
{
	EACH_SHAPE(s)
	for (int adds = 0; adds < 2; adds++) {
		struct k3_moe_combine_args a = combine_args(s);
		struct route_case routes;
		struct cuda_case c;
		route_case_make(&routes, s->t, s->n_experts, s->k, s->pattern, 5);
		cuda_case_begin(&c, 5);
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->k * s->r, 0, "dys");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "dp");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->r, 1, "y");
		add_routes(&c, &routes, false);
		cuda_case_add(&c, CUDA_WORK, CUDA_W, 8 * s->t * s->r, 0, "work");
		a.dnorm = cuda_case_weight(&c, CUDA_F32, adds ? CUDA_RW : CUDA_W, 1, s->r, 1, 1,
					   "dnorm");
		a.norm = cuda_case_weight(&c, CUDA_F32, CUDA_R, 1, s->r, 1, 1, "norm");
		a.wup = cuda_case_weight(&c, CUDA_T, CUDA_R, s->d, s->r, s->block, 0.1, "wup");
		CUDA_CASE_COMPARE(&c, "moe_combine_bwd_dx", &a, k3_moe_combine_bwd_dx_cpu_f32,
				  moe_combine_bwd_dx, k3_moe_combine_bwd_dx_cuda_scratch(&a));
		cuda_case_end(&c);
		route_case_free(&routes);
	}
}

TEST(weight_gradients_of_combine_equal_the_cpu)
{
	EACH_SHAPE(s)
	for (int adds = 0; adds < 2; adds++) {
		struct k3_moe_combine_args a = combine_args(s);
		struct cuda_case c;
		cuda_case_begin(&c, 6);
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "dp");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->r, 1, "y");
		cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * s->t * s->r, 0, "work");
		a.norm = cuda_case_weight(&c, CUDA_F32, CUDA_R, 1, s->r, 1, 1, "norm");
		a.wup = cuda_case_weight(&c, CUDA_F32, adds ? CUDA_RW : CUDA_W, s->d, s->r,
					 s->block, 1, "dwup");
		CUDA_CASE_COMPARE(&c, "moe_combine_bwd_dw", &a, k3_moe_combine_bwd_dw_cpu_f32,
				  moe_combine_bwd_dw, 0);
		cuda_case_end(&c);
	}
}
