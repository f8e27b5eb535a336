/* Routed experts on CUDA against the CPU kernels: widths for the tensor cores and odd ones, empty
 * experts, all rows at few experts, experts whose rows are summed in parts, groups of experts
 * beside rows of NaN, no tokens. */
#include <criterion/criterion.h>
#include <math.h>

#include "../../common/op/moe.h"
#include "cuda_case.h"
#include "route_case.h"
#include "../../codelets/cuda/kernels.h"

#define TEST(name) Test(cuda_expert, name, .init = cuda_case_need_device, .timeout = 120)

static const struct shape {
	size_t t, r, f, n_experts, k;
	enum route_pattern pattern;
	uint32_t e0, e1;
} shapes[] = {
	{64, 64, 64, 8, 2, ROUTE_RANDOM, 0, 8},	     {257, 72, 40, 5, 2, ROUTE_SKEWED, 0, 5},
	{33, 17, 13, 9, 3, ROUTE_RANDOM, 0, 9},	     {130, 31, 70, 6, 2, ROUTE_SKEWED, 2, 5},
	{300, 136, 200, 7, 3, ROUTE_RANDOM, 2, 6},   {500, 256, 128, 12, 2, ROUTE_FEW, 0, 12},
	{129, 128, 192, 70, 4, ROUTE_SKEWED, 1, 69}, {1, 64, 48, 4, 1, ROUTE_RANDOM, 0, 4},
	{0, 64, 48, 4, 2, ROUTE_RANDOM, 0, 4},	     {256, 512, 384, 32, 4, ROUTE_RANDOM, 0, 32},
	{2100, 136, 104, 3, 1, ROUTE_FEW, 0, 3},     {4200, 24, 16, 3, 1, ROUTE_FEW, 0, 3},
	{9000, 136, 104, 2, 1, ROUTE_SKEWED, 0, 2}};

#define EACH_SHAPE(s)                                                                              \
	for (const struct shape *s = shapes; s < shapes + sizeof(shapes) / sizeof(*shapes); s++)

/* Operands of one shape. */
struct group {
	struct cuda_case c;
	struct route_case routes;
	struct k3_expert_args a;
	size_t tk, from, to; /* rows; those of the group */
};

static void
begin(struct group *g, const struct shape *s, uint64_t seed)
{
	route_case_make(&g->routes, s->t, s->n_experts, s->k, s->pattern, seed);
	cuda_case_begin(&g->c, seed);
	g->a = (struct k3_expert_args){.t = s->t,
				       .n_experts = s->n_experts,
				       .k = s->k,
				       .r = s->r,
				       .f = s->f,
				       .e0 = s->e0,
				       .e1 = s->e1,
				       .beta1 = 4,
				       .beta2 = 25};
	g->tk = s->t * s->k;
	g->from = (size_t)g->routes.route[s->e0];
	g->to = (size_t)g->routes.route[s->e1];
}

static void
end(struct group *g)
{
	cuda_case_end(&g->c);
	route_case_free(&g->routes);
}

/* Rows of other groups hold NaN: nothing may read them. */
static void
add_rows(struct group *g, size_t width, double scale, const char *name)
{
	uint32_t i = cuda_case_add(&g->c, CUDA_T, CUDA_R, g->tk * width, scale, name);
	float *x = g->c.operand[i].host;

	for (size_t row = 0; row < g->tk; row++)
		for (size_t c = 0; c < width && (row < g->from || row >= g->to); c++)
			x[row * width + c] = NAN;
}

/* A result; where a group is not all experts, the other rows keep what they have. */
static void
add_result(struct group *g, enum cuda_operand_type type, size_t width, const char *name)
{
	bool all = g->from == 0 && g->to == g->tk;

	cuda_case_add(&g->c, type, all ? CUDA_W : CUDA_RW, g->tk * width, 1, name);
}

static void
add_routes(struct group *g, bool weights)
{
	size_t t = g->a.t, e = g->a.n_experts, k = g->a.k;

	cuda_case_values(&g->c, CUDA_I32, CUDA_R, k3_route_len(t, e, k), g->routes.route, "route");
	if (weights)
		cuda_case_values(&g->c, CUDA_F32, CUDA_R, k3_routew_len(t, e, k), g->routes.routew,
				 "routew");
}

static void
add_work(struct group *g)
{
	cuda_case_add(&g->c, CUDA_WORK, CUDA_W, 4 * g->tk * g->a.f, 0, "work");
}

static void
add_weights(struct group *g, enum cuda_operand_type type, enum cuda_operand_mode mode, bool w2)
{
	size_t n = g->a.e1 - g->a.e0, r = g->a.r, f = g->a.f;

	g->a.w13 = cuda_case_weight(&g->c, type, mode, n * 2 * f, r, n * 2 * f, 1 / sqrt((double)r),
				    "w13");
	if (w2)
		g->a.w2 = cuda_case_weight(&g->c, type, mode, n * r, f, n * r, 1 / sqrt((double)f),
					   "w2");
}

TEST(gate_and_up_alone_equal_the_cpu)
{
	EACH_SHAPE(s)
	{
		struct group g;
		begin(&g, s, 1);
		add_result(&g, CUDA_T, 2 * s->f, "gu");
		add_rows(&g, s->r, 2, "zs");
		add_routes(&g, false);
		add_weights(&g, CUDA_T, CUDA_R, false);
		CUDA_CASE_COMPARE(&g.c, "expert_gu", &g.a, k3_expert_gu_cpu_f32, expert_gu, 0);
		end(&g);
	}
}

TEST(forward_equals_the_cpu)
{
	EACH_SHAPE(s)
	{
		struct group g;
		begin(&g, s, 2);
		add_result(&g, CUDA_T, 2 * s->f, "gu");
		add_result(&g, CUDA_T, s->r, "ys");
		add_rows(&g, s->r, 2, "zs");
		add_routes(&g, false);
		add_work(&g);
		add_weights(&g, CUDA_T, CUDA_R, true);
		CUDA_CASE_COMPARE(&g.c, "expert_fwd", &g.a, k3_expert_fwd_cpu_f32, expert_fwd, 0);
		end(&g);
	}
}

/* dwt is a sum of products of both signs. */
TEST(data_gradients_equal_the_cpu)
{
	EACH_SHAPE(s)
	{
		struct group g;
		begin(&g, s, 3);
		add_result(&g, CUDA_T, 2 * s->f, "dgu");
		add_result(&g, CUDA_T, s->r, "dzs");
		add_result(&g, CUDA_F32, 1, "dwt");
		cuda_case_tolerance(&g.c, 1e-4, 5e-3);
		add_rows(&g, s->r, 1, "dys");
		add_rows(&g, 2 * s->f, 2, "gu");
		add_routes(&g, true);
		add_work(&g);
		add_weights(&g, CUDA_T, CUDA_R, true);
		CUDA_CASE_COMPARE(&g.c, "expert_dgrad", &g.a, k3_expert_dgrad_cpu_f32, expert_dgrad,
				  k3_expert_dgrad_cuda_scratch(&g.a));
		end(&g);
	}
}

TEST(weight_gradients_are_written_or_added)
{
	EACH_SHAPE(s)
	for (int adds = 0; adds < 2; adds++) {
		struct group g;
		begin(&g, s, 4);
		add_rows(&g, 2 * s->f, 1, "dgu");
		add_rows(&g, s->r, 1, "dys");
		add_rows(&g, 2 * s->f, 2, "gu");
		add_rows(&g, s->r, 1, "zs");
		add_routes(&g, true);
		add_work(&g);
		add_weights(&g, CUDA_F32, adds ? CUDA_RW : CUDA_W, true);
		CUDA_CASE_COMPARE(&g.c, adds ? "expert_wgrad, adds" : "expert_wgrad", &g.a,
				  k3_expert_wgrad_cpu_f32, expert_wgrad,
				  k3_expert_wgrad_cuda_scratch(&g.a));
		end(&g);
	}
}
