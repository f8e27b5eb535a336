/* The latent mixture of experts as a chain of kernels, route -> dispatch -> expert groups ->
 * combine and back, against the oracle; then experts without rows, expert groups, and SiTU at its
 * limits. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "../codelets/glu/situ.h"
#include "../common/op/moe.h"
#include "held.h"

/* One layer: operands, how it is cut, results. */
struct layer {
	size_t t, d, r, f, n_experts, k;
	float scale;
	float *x, *wr, *bias, *wdown, *w13, *w2, *norm, *wup, *p_in, *shared, *dp;
	int32_t *forced;
	size_t blocks; /* row blocks of wr, wdown and wup */
	uint32_t n_groups;
	uint32_t edge[5]; /* group g holds experts edge[g] .. edge[g+1]-1 */
	int32_t *route;
	float *routew, *zs, *gu, *ys, *y, *p_out;
	float *dys, *dgu, *dzs, *dwt, *dx, *dz, *dl, *dnorm;
	float *dwr, *dwdown, *dw13, *dw2, *dwup;
};

static void
outputs(struct layer *l)
{
	size_t tk = l->t * l->k, e = l->n_experts;

	l->route = held_out_ints(k3_route_len(l->t, e, l->k));
	l->routew = held_out(k3_routew_len(l->t, e, l->k));
	l->zs = held_out(tk * l->r);
	l->gu = held_out(tk * 2 * l->f);
	l->ys = held_out(tk * l->r);
	l->y = held_out(l->t * l->r);
	l->p_out = held_out(l->t * l->d);
	l->dys = held_out(tk * l->r);
	l->dgu = held_out(tk * 2 * l->f);
	l->dzs = held_out(tk * l->r);
	l->dwt = held_out(tk);
	l->dx = held_copy(l->shared, l->t * l->d);
	l->dz = held_out(l->t * l->r);
	l->dl = held_out(l->t * e);
	l->dnorm = held_out(l->r);
	l->dwr = held_out(e * l->d);
	l->dwdown = held_out(l->r * l->d);
	l->dw13 = held_out(e * 2 * l->f * l->r);
	l->dw2 = held_out(e * l->r * l->f);
	l->dwup = held_out(l->d * l->r);
}

static void
one_group(struct layer *l)
{
	l->blocks = 1;
	l->scale = 1;
	l->n_groups = 1;
	l->edge[0] = 0;
	l->edge[1] = (uint32_t)l->n_experts;
}

static struct layer
golden(void)
{
	struct layer l = {.t = 11, .d = 10, .r = 7, .f = 5, .n_experts = 9, .k = 3};
	float **in[] = {&l.x,	 &l.wr,	 &l.bias, &l.wdown,  &l.w13, &l.w2,
			&l.norm, &l.wup, &l.p_in, &l.shared, &l.dp};
	const char *name[] = {"chain.x",    "chain.wr",	    "chain.bias", "chain.wdown",
			      "chain.w13",  "chain.w2",	    "chain.norm", "chain.wup",
			      "chain.p_in", "chain.shared", "chain.dp"};

	for (size_t i = 0; i < sizeof(in) / sizeof(*in); i++)
		*in[i] = held_input("moe", name[i]);
	one_group(&l);
	outputs(&l);
	return l;
}

/* A layer of random numbers for tests that compare it with itself or look for exact values. */
static struct layer
random_layer(size_t t, size_t n_experts, size_t k)
{
	struct layer l = {.t = t, .d = 6, .r = 4, .f = 3, .n_experts = n_experts, .k = k};

	l.x = held_random(1, t * l.d, -1, 1);
	l.wr = held_random(2, n_experts * l.d, -1, 1);
	l.bias = held_random(3, n_experts, 0, 0);
	l.wdown = held_random(4, l.r * l.d, -1, 1);
	l.w13 = held_random(5, n_experts * 2 * l.f * l.r, -1, 1);
	l.w2 = held_random(6, n_experts * l.r * l.f, -1, 1);
	l.norm = held_random(7, l.r, 0.5, 1.5);
	l.wup = held_random(8, l.d * l.r, -1, 1);
	l.p_in = held_random(9, t * l.d, -1, 1);
	l.shared = held_random(10, t * l.d, -1, 1);
	l.dp = held_random(11, t * l.d, -1, 1);
	one_group(&l);
	outputs(&l);
	return l;
}

static size_t
block_rows(const struct layer *l, size_t rows)
{
	return (rows + l->blocks - 1) / l->blocks;
}

static struct k3_weight
push_blocks(struct held_task *task, const struct layer *l, float *x, size_t rows, size_t cols,
	    int accumulate)
{
	return held_push_weight(task, x, rows, cols, block_rows(l, rows), accumulate);
}

static void
route(struct layer *l)
{
	struct held_task task = {{l->route, l->routew, l->x}, 3};
	struct k3_moe_route_args a = {.t = l->t,
				      .d = l->d,
				      .n_experts = l->n_experts,
				      .k = l->k,
				      .sum_eps = 1e-20f,
				      .scale = l->scale};

	a.forced = held_push_list(&task, l->forced);
	a.wr = push_blocks(&task, l, l->wr, l->n_experts, l->d, 0);
	a.bias = held_push_weight(&task, l->bias, 1, l->n_experts, 1, 0);
	a.n_buf = task.n;
	k3_moe_route_fwd_cpu_f32(task.buf, &a);
}

static struct k3_moe_dispatch_args
dispatch_args(const struct layer *l)
{
	struct k3_moe_dispatch_args a = {.t = l->t,
					 .d = l->d,
					 .r = l->r,
					 .n_experts = l->n_experts,
					 .k = l->k,
					 .sum_eps = 1e-20f,
					 .scale = l->scale};

	return a;
}

static void
dispatch(struct layer *l)
{
	struct held_task task = {{l->zs, l->x, l->route, held_out(l->t * l->r)}, 4};
	struct k3_moe_dispatch_args a = dispatch_args(l);

	a.wdown = push_blocks(&task, l, l->wdown, l->r, l->d, 0);
	a.n_buf = task.n;
	k3_moe_dispatch_fwd_cpu_f32(task.buf, &a);
}

/* Arguments of group g with its slices of two tensors shaped like the expert weights. */
static struct k3_expert_args
expert_args(struct held_task *task, const struct layer *l, uint32_t g, float *w13, float *w2,
	    int accumulate)
{
	size_t e0 = l->edge[g], n = l->edge[g + 1] - e0, n13 = 2 * l->f * l->r, n2 = l->r * l->f;
	struct k3_expert_args a = {.t = l->t,
				   .n_experts = l->n_experts,
				   .k = l->k,
				   .r = l->r,
				   .f = l->f,
				   .e0 = l->edge[g],
				   .e1 = l->edge[g + 1],
				   .beta1 = 4,
				   .beta2 = 25};

	a.w13 = held_push_weight(task, w13 + e0 * n13, n * 2 * l->f, l->r, n * 2 * l->f,
				 accumulate);
	a.w2 = held_push_weight(task, w2 + e0 * n2, n * l->r, l->f, n * l->r, accumulate);
	a.n_buf = task->n;
	return a;
}

static void
group_forward(struct layer *l, uint32_t g)
{
	struct held_task task = {{l->gu, l->ys, l->zs, l->route, held_out(l->t * l->k * l->f)}, 5};
	struct k3_expert_args a = expert_args(&task, l, g, l->w13, l->w2, 0);

	k3_expert_fwd_cpu_f32(task.buf, &a);
}

static void
group_dgrad(struct layer *l, uint32_t g)
{
	struct held_task task = {{l->dgu, l->dzs, l->dwt, l->dys, l->gu, l->route, l->routew,
				  held_out(l->t * l->k * l->f)},
				 8};
	struct k3_expert_args a = expert_args(&task, l, g, l->w13, l->w2, 0);

	k3_expert_dgrad_cpu_f32(task.buf, &a);
}

static void
group_wgrad(struct layer *l, uint32_t g, int accumulate)
{
	struct held_task task = {{l->dgu, l->dys, l->gu, l->zs, l->route, l->routew,
				  held_out(l->t * l->k * (l->f + l->r))},
				 7};
	struct k3_expert_args a = expert_args(&task, l, g, l->dw13, l->dw2, accumulate);

	k3_expert_wgrad_cpu_f32(task.buf, &a);
}

static struct k3_moe_combine_args
combine_args(const struct layer *l)
{
	struct k3_moe_combine_args a = {.t = l->t,
					.d = l->d,
					.r = l->r,
					.n_experts = l->n_experts,
					.k = l->k,
					.eps = 1e-5f};

	return a;
}

static void
combine(struct layer *l)
{
	struct held_task task = {{l->p_out, l->y, l->ys, l->route, l->routew, l->shared, l->p_in,
				  held_out(l->t * l->r)},
				 8};
	struct k3_moe_combine_args a = combine_args(l);

	a.norm = held_push_weight(&task, l->norm, 1, l->r, 1, 0);
	a.wup = push_blocks(&task, l, l->wup, l->d, l->r, 0);
	a.n_buf = task.n;
	k3_moe_combine_fwd_cpu_f32(task.buf, &a);
}

static void
combine_back(struct layer *l, int accumulate)
{
	struct held_task task = {{l->dys, l->dp, l->y, l->route, held_out(2 * l->t * l->r)}, 5};
	struct k3_moe_combine_args a = combine_args(l);

	a.dnorm = held_push_weight(&task, l->dnorm, 1, l->r, 1, accumulate);
	a.norm = held_push_weight(&task, l->norm, 1, l->r, 1, 0);
	a.wup = push_blocks(&task, l, l->wup, l->d, l->r, 0);
	a.n_buf = task.n;
	k3_moe_combine_bwd_dx_cpu_f32(task.buf, &a);
}

static void
dispatch_back(struct layer *l)
{
	struct held_task task = {{l->dx, l->dz, l->dl, l->dzs, l->dwt, l->route, l->routew}, 7};
	struct k3_moe_dispatch_args a = dispatch_args(l);

	a.wdown = push_blocks(&task, l, l->wdown, l->r, l->d, 0);
	a.wr = push_blocks(&task, l, l->wr, l->n_experts, l->d, 0);
	a.n_buf = task.n;
	k3_moe_dispatch_bwd_dx_cpu_f32(task.buf, &a);
}

static void
weights_back(struct layer *l, int accumulate)
{
	struct held_task up = {{l->dp, l->y, held_out(l->t * l->r)}, 3},
			 down = {{l->dz, l->dl, l->x}, 3};
	struct k3_moe_combine_args c = combine_args(l);
	struct k3_moe_dispatch_args a = dispatch_args(l);

	c.norm = held_push_weight(&up, l->norm, 1, l->r, 1, 0);
	c.wup = push_blocks(&up, l, l->dwup, l->d, l->r, accumulate);
	c.n_buf = up.n;
	k3_moe_combine_bwd_dw_cpu_f32(up.buf, &c);
	for (uint32_t g = 0; g < l->n_groups; g++)
		group_wgrad(l, g, accumulate);
	a.wdown = push_blocks(&down, l, l->dwdown, l->r, l->d, accumulate);
	a.wr = push_blocks(&down, l, l->dwr, l->n_experts, l->d, accumulate);
	a.n_buf = down.n;
	k3_moe_dispatch_bwd_dw_cpu_f32(down.buf, &a);
}

static void
forward(struct layer *l)
{
	route(l);
	dispatch(l);
	for (uint32_t g = 0; g < l->n_groups; g++)
		group_forward(l, g);
	combine(l);
}

static void
backward(struct layer *l)
{
	combine_back(l, 0);
	for (uint32_t g = 0; g < l->n_groups; g++)
		group_dgrad(l, g);
	dispatch_back(l);
}

static struct layer
golden_in_groups(uint32_t n_groups)
{
	static const uint32_t edge[4][4] = {{0}, {0, 9}, {0, 4, 9}, {0, 2, 3, 9}};
	struct layer l = golden();

	l.n_groups = n_groups;
	memcpy(l.edge, edge[n_groups], sizeof(edge[n_groups]));
	return l;
}

static void
expect_forward(const struct layer *l)
{
	held_expect(l->y, "moe", "chain.y", 1e-6);
	held_expect(l->p_out, "moe", "chain.p_out", 1e-6);
}

/* dx began with the gradient of the shared experts, for which `shared` stands in. */
static void
expect_input_gradient(const struct layer *l)
{
	float *dx = held_out(l->t * l->d);

	for (size_t i = 0; i < l->t * l->d; i++)
		dx[i] = l->dx[i] - l->shared[i];
	held_expect(dx, "moe", "chain.dx", 2e-6);
	held_expect(l->dnorm, "moe", "chain.dnorm", 2e-6);
}

static void
expect_weight_gradients(const struct layer *l)
{
	held_expect(l->dwr, "moe", "chain.dwr", 2e-6);
	held_expect(l->dwdown, "moe", "chain.dwdown", 2e-6);
	held_expect(l->dw13, "moe", "chain.dw13", 2e-6);
	held_expect(l->dw2, "moe", "chain.dw2", 2e-6);
	held_expect(l->dwup, "moe", "chain.dwup", 2e-6);
}

Test(moe, output_matches_the_oracle, .timeout = 60, .fini = held_end)
{
	struct layer l = golden_in_groups(1);

	forward(&l);
	expect_forward(&l);
}

Test(moe, output_of_two_expert_groups_matches_the_oracle, .timeout = 60, .fini = held_end)
{
	struct layer l = golden_in_groups(2);

	forward(&l);
	expect_forward(&l);
}

Test(moe, output_of_three_expert_groups_matches_the_oracle, .timeout = 60, .fini = held_end)
{
	struct layer l = golden_in_groups(3);

	forward(&l);
	expect_forward(&l);
}

Test(moe, input_gradient_with_router_is_added_to_dx, .timeout = 60, .fini = held_end)
{
	struct layer l = golden_in_groups(1);

	forward(&l);
	backward(&l);
	expect_input_gradient(&l);
}

Test(moe, input_gradient_of_two_expert_groups_matches_the_oracle, .timeout = 60, .fini = held_end)
{
	struct layer l = golden_in_groups(2);

	forward(&l);
	backward(&l);
	expect_input_gradient(&l);
}

Test(moe, input_gradient_of_three_expert_groups_matches_the_oracle, .timeout = 60, .fini = held_end)
{
	struct layer l = golden_in_groups(3);

	forward(&l);
	backward(&l);
	expect_input_gradient(&l);
}

Test(moe, weight_gradients_match_the_oracle_for_every_grouping, .timeout = 60, .fini = held_end)
{
	for (uint32_t n = 1; n <= 3; n++) {
		struct layer l = golden_in_groups(n);
		forward(&l);
		backward(&l);
		weights_back(&l, 0);
		expect_weight_gradients(&l);
	}
}

Test(moe, gradients_of_later_tiles_are_added, .timeout = 60, .fini = held_end)
{
	struct layer l = golden_in_groups(2);
	float *sum[] = {l.dwr, l.dwdown, l.dw13, l.dw2, l.dwup, l.dnorm};
	size_t n[] = {90, 70, 630, 315, 70, 7};

	forward(&l);
	backward(&l);
	expect_input_gradient(&l);
	combine_back(&l, 1);
	weights_back(&l, 0);
	weights_back(&l, 1);
	for (size_t i = 0; i < 6; i++)
		for (size_t j = 0; j < n[i]; j++)
			sum[i][j] /= 2;
	expect_weight_gradients(&l);
	held_expect(l.dnorm, "moe", "chain.dnorm", 2e-6);
}

Test(moe, weights_in_three_row_blocks_match_the_oracle, .timeout = 60, .fini = held_end)
{
	struct layer l = golden_in_groups(2);

	l.blocks = 3;
	forward(&l);
	backward(&l);
	weights_back(&l, 0);
	expect_forward(&l);
	expect_input_gradient(&l);
	expect_weight_gradients(&l);
}

Test(moe, splitting_experts_into_groups_does_not_change_a_bit, .timeout = 60, .fini = held_end)
{
	struct layer one = golden_in_groups(1), three = golden_in_groups(3);

	forward(&one);
	backward(&one);
	weights_back(&one, 0);
	forward(&three);
	backward(&three);
	weights_back(&three, 0);
	held_expect_same(three.p_out, one.p_out, 110, "p_out");
	held_expect_same(three.dx, one.dx, 110, "dx");
	held_expect_same(three.dw13, one.dw13, 630, "dw13");
	held_expect_same(three.dw2, one.dw2, 315, "dw2");
}

Test(moe, a_group_touches_only_rows_of_its_experts, .timeout = 60, .fini = held_end)
{
	struct layer l = golden_in_groups(2);
	const float *untouched = held_out(33 * 10);

	route(&l);
	dispatch(&l);
	group_forward(&l, 1);
	combine_back(&l, 0);
	group_dgrad(&l, 1);
	size_t before = (size_t)l.route[4];
	cr_assert(before > 0 && before < 33, "both groups must have rows");
	held_expect_same(l.gu, untouched, before * 10, "gu of the other group");
	held_expect_same(l.ys, untouched, before * 7, "ys of the other group");
	held_expect_same(l.dgu, untouched, before * 10, "dgu of the other group");
	held_expect_same(l.dzs, untouched, before * 7, "dzs of the other group");
	held_expect_same(l.dwt, untouched, before, "dwt of the other group");
	for (size_t i = before * 7; i < 33 * 7; i++)
		cr_assert(isfinite(l.ys[i]) && !isnan(l.gu[before * 10]), "own row not written");
}

Test(moe, forcing_the_same_experts_in_another_order_gives_the_same_layer, .timeout = 60,
     .fini = held_end)
{
	struct layer l = golden_in_groups(2);
	int32_t *ids = held_ints("moe", "chain.ids"), turned[33];

	for (size_t i = 0; i < 33; i++)
		turned[i] = ids[i / 3 * 3 + 2 - i % 3];
	l.forced = turned;
	forward(&l);
	backward(&l);
	weights_back(&l, 0);
	expect_forward(&l);
	expect_input_gradient(&l);
	expect_weight_gradients(&l);
}

Test(moe, route_scale_multiplies_the_sum_and_the_router_gradient, .timeout = 60, .fini = held_end)
{
	struct layer l = golden_in_groups(1), scaled = golden_in_groups(1);

	scaled.scale = 2.5f;
	forward(&l);
	forward(&scaled);
	backward(&l);
	memcpy(scaled.dzs, l.dzs, 33 * 7 * sizeof(float));
	memcpy(scaled.dwt, l.dwt, 33 * sizeof(float));
	dispatch_back(&scaled);
	for (size_t i = 0; i < 77; i++)
		scaled.y[i] /= 2.5f;
	for (size_t i = 0; i < 99; i++)
		scaled.dl[i] /= 2.5f;
	held_expect_close(scaled.y, l.y, 77, 1e-6, "y / scale");
	held_expect_close(scaled.dl, l.dl, 99, 1e-6, "dl / scale");
}

Test(moe, experts_that_were_not_chosen_give_no_router_gradient, .timeout = 60, .fini = held_end)
{
	struct layer l = golden_in_groups(1);
	const int32_t *ids = held_ints("moe", "chain.ids");

	forward(&l);
	backward(&l);
	for (size_t i = 0; i < 99; i++) {
		const int32_t *own = ids + i / 9 * 3;
		int e = (int)(i % 9), chosen = own[0] == e || own[1] == e || own[2] == e;
		cr_assert(chosen ? l.dl[i] != 0 : l.dl[i] == 0, "token %zu, expert %d: %g", i / 9,
			  e, (double)l.dl[i]);
	}
}

Test(moe, a_single_active_expert_has_a_constant_weight, .timeout = 60, .fini = held_end)
{
	struct layer l = random_layer(13, 5, 1);

	forward(&l);
	backward(&l);
	held_expect_all(l.routew, 1, 13, "weight");
	held_expect_all(l.dl, 0, 65, "router gradient");
}

/* Experts of a token by the wanted sizes, one active expert, tokens spread so that sorting has work
 * to do. */
static void
force_sizes(struct layer *l, const size_t *size)
{
	static int32_t ids[256];
	size_t left[16];

	memcpy(left, size, l->n_experts * sizeof(*left));
	for (size_t i = 0, e = 0; i < l->t; i++) {
		do
			e = (e + 1) % l->n_experts;
		while (!left[e]);
		left[e]--;
		ids[i] = (int32_t)e;
	}
	l->forced = ids;
}

/* Forward and backward of a layer with given expert sizes; gradients of empty experts must be exact
 * zeros. */
static void
expect_empty_experts_silent(const size_t *size, size_t n_experts, size_t t)
{
	struct layer l = random_layer(t, n_experts, 1);

	force_sizes(&l, size);
	forward(&l);
	backward(&l);
	weights_back(&l, 0);
	for (size_t e = 0; e < n_experts; e++) {
		float *dw13 = l.dw13 + e * 24, *dw2 = l.dw2 + e * 12;
		cr_assert_eq((size_t)(l.route[e + 1] - l.route[e]), size[e]);
		if (size[e] == 0) {
			held_expect_all(dw13, 0, 24, "dw13 of an empty expert");
			held_expect_all(dw2, 0, 12, "dw2 of an empty expert");
			continue;
		}
		for (size_t i = 0; i < 24; i++)
			cr_assert(isfinite(dw13[i]) && dw13[i] != 0, "dw13[%zu]: %g", i,
				  (double)dw13[i]);
	}
	for (size_t i = 0; i < t * l.d; i++)
		cr_assert(isfinite(l.p_out[i]) && isfinite(l.dx[i]), "element %zu", i);
}

Test(moe, experts_without_rows_get_exact_zero_gradients, .timeout = 60, .fini = held_end)
{
	static const size_t size[] = {16, 0, 25, 44, 0, 8};

	expect_empty_experts_silent(size, 6, 93);
}

Test(moe, the_first_expert_may_be_empty, .timeout = 60, .fini = held_end)
{
	static const size_t size[] = {0, 3, 4, 5};

	expect_empty_experts_silent(size, 4, 12);
}

Test(moe, the_last_expert_may_be_empty, .timeout = 60, .fini = held_end)
{
	static const size_t size[] = {3, 4, 5, 0};

	expect_empty_experts_silent(size, 4, 12);
}

Test(moe, all_experts_but_one_may_be_empty, .timeout = 60, .fini = held_end)
{
	static const size_t size[] = {0, 0, 12, 0};

	expect_empty_experts_silent(size, 4, 12);
}

Test(moe, a_group_without_rows_writes_zeros_and_nothing_else, .timeout = 60, .fini = held_end)
{
	static const size_t size[] = {0, 0, 0, 0, 5, 6};
	struct layer l = random_layer(11, 6, 1);
	const float *untouched = held_out(11 * 6);

	l.n_groups = 2;
	l.edge[1] = 4;
	l.edge[2] = 6;
	force_sizes(&l, size);
	route(&l);
	dispatch(&l);
	group_forward(&l, 0);
	group_dgrad(&l, 0);
	group_wgrad(&l, 0, 0);
	held_expect_same(l.gu, untouched, 66, "gu");
	held_expect_same(l.ys, untouched, 44, "ys");
	held_expect_same(l.dgu, untouched, 66, "dgu");
	held_expect_same(l.dzs, untouched, 44, "dzs");
	held_expect_same(l.dwt, untouched, 11, "dwt");
	held_expect_all(l.dw13, 0, 4 * 24, "dw13");
	held_expect_all(l.dw2, 0, 4 * 12, "dw2");
	held_expect_same(l.dw13 + 96, untouched, 48, "dw13 of the other group");
}

Test(moe, an_empty_expert_keeps_what_was_accumulated, .timeout = 60, .fini = held_end)
{
	static const size_t size[] = {4, 0, 7};
	struct layer l = random_layer(11, 3, 1);

	l.dw13 = held_random(20, 72, 1, 2);
	l.dw2 = held_random(21, 36, 1, 2);
	float *was13 = held_copy(l.dw13, 72), *was2 = held_copy(l.dw2, 36);
	force_sizes(&l, size);
	forward(&l);
	backward(&l);
	group_wgrad(&l, 0, 1);
	held_expect_same(l.dw13 + 24, was13 + 24, 24, "dw13");
	held_expect_same(l.dw2 + 12, was2 + 12, 12, "dw2");
	cr_assert(l.dw13[0] != was13[0] && l.dw2[35] != was2[35], "the others must be added to");
}

Test(moe, all_tokens_may_choose_one_expert, .timeout = 60, .fini = held_end)
{
	struct layer l = random_layer(40, 8, 1);

	l.bias[3] = 1e3f;
	forward(&l);
	backward(&l);
	weights_back(&l, 0);
	cr_assert(l.route[3] == 0 && l.route[4] == 40, "rows %d .. %d", l.route[3], l.route[4]);
	for (size_t i = 0; i < 240; i++)
		cr_assert(isfinite(l.p_out[i]) && isfinite(l.dx[i]), "element %zu", i);
	held_expect_all(l.dw13, 0, 3 * 24, "dw13 of experts 0 to 2");
	held_expect_all(l.dw13 + 4 * 24, 0, 4 * 24, "dw13 of experts 4 to 7");
	held_expect_all(l.routew, 1, 40, "weight in spite of the bias");
}

Test(moe, every_expert_may_be_active, .timeout = 60, .fini = held_end)
{
	struct layer l = random_layer(7, 4, 4);

	/* equal scores and equal experts: the sum is one expert's output */
	memset(l.wr, 0, 24 * sizeof(float));
	for (size_t e = 1; e < 4; e++) {
		memcpy(l.w13 + e * 24, l.w13, 24 * sizeof(float));
		memcpy(l.w2 + e * 12, l.w2, 12 * sizeof(float));
	}
	forward(&l);
	held_expect_all(l.routew, 0.25f, 28, "weight");
	held_expect_close(l.y, l.ys, 28, 1e-6, "sum of equal experts");
	backward(&l);
	for (size_t i = 0; i < 28; i++)
		cr_assert(fabsf(l.dl[i]) < 1e-6f, "equal experts leave no router gradient: %g",
			  (double)l.dl[i]);
}

Test(moe, tokens_return_to_their_places, .timeout = 60, .fini = held_end)
{
	struct layer l = random_layer(13, 5, 3);

	route(&l);
	/* token t is the row (t, t, ...), the projection an identity, the experts hand on what they
	 * get */
	for (size_t i = 0; i < 13 * 6; i++)
		l.x[i] = (float)(i / 6);
	for (size_t i = 0; i < 24; i++)
		l.wdown[i] = i / 6 == i % 6;
	dispatch(&l);
	memcpy(l.ys, l.zs, 39 * 4 * sizeof(float));
	combine(&l);
	for (size_t i = 0; i < 52; i++)
		cr_assert(fabsf(l.y[i] - (float)(i / 4)) <= 4e-6f, "token %zu got %g", i / 4,
			  (double)l.y[i]);
	for (size_t i = 0; i < 39; i++)
		cr_assert(l.zs[4 * i] == (float)(k3_route_src(l.route, 5, 13, 3)[i] / 3),
			  "sorted row %zu", i);
}

Test(moe, gradients_return_to_their_places, .timeout = 60, .fini = held_end)
{
	struct layer l = random_layer(13, 5, 3);
	static const float part[] = {1, 10, 100};

	route(&l);
	/* slot j of token t contributes part[j] (t + 1) */
	for (size_t i = 0; i < 39; i++) {
		size_t at = (size_t)k3_route_row(l.route, 5, 13, 3)[i];
		l.dwt[at] = 0;
		for (size_t c = 0; c < 4; c++)
			l.dzs[at * 4 + c] = part[i % 3] * (float)(i / 3 + 1);
	}
	dispatch_back(&l);
	for (size_t i = 0; i < 52; i++)
		cr_assert(l.dz[i] == 111 * (float)(i / 4 + 1), "token %zu got %g", i / 4,
			  (double)l.dz[i]);
}

Test(moe, experts_saturate_at_inputs_of_10000, .timeout = 60, .fini = held_end)
{
	float z[] = {1e4f, -1e4f, 1e4f, -1e4f}, one[] = {1, 1}, dys[] = {1, 1, 1, 1};
	static const float want[] = {100, 0, 100, 0};
	struct layer l = {.t = 4, .d = 1, .r = 1, .f = 1, .n_experts = 1, .k = 1};

	one_group(&l);
	l.x = z;
	l.wr = l.bias = held_random(1, 1, 0, 0);
	l.wdown = l.w13 = l.w2 = one;
	l.shared = z;
	outputs(&l);
	memcpy(l.dys, dys, sizeof(dys));
	route(&l);
	dispatch(&l);
	group_forward(&l, 0);
	group_dgrad(&l, 0);
	group_wgrad(&l, 0, 0);
	for (size_t i = 0; i < 4; i++)
		cr_assert(fabsf(l.ys[i] - want[i]) < 1e-4f && fabsf(l.dwt[i] - want[i]) < 1e-4f &&
				  l.dzs[i] == 0,
			  "row %zu: y %g, dw %g, dz %g", i, (double)l.ys[i], (double)l.dwt[i],
			  (double)l.dzs[i]);
	held_expect_all(l.dw13, 0, 2, "dw13 of saturated rows");
	cr_assert(fabsf(l.dw2[0] - 200) < 1e-3f, "dw2 is %g", (double)l.dw2[0]);
}

Test(situ, values_match_the_oracle, .timeout = 60, .fini = held_end)
{
	float *g = held_input("moe", "situ.g"), *u = held_input("moe", "situ.u"), *y = held_out(72);

	for (size_t i = 0; i < 72; i++)
		y[i] = k3_situ_fwd(g[i], u[i], 4, 25);
	held_expect(y, "moe", "situ.y", 1e-6);
}

Test(situ, gradients_match_the_oracle, .timeout = 60, .fini = held_end)
{
	float *g = held_input("moe", "situ.g"), *u = held_input("moe", "situ.u"),
	      *dy = held_input("moe", "situ.dy"), *dg = held_out(72), *du = held_out(72);

	for (size_t i = 0; i < 72; i++)
		k3_situ_bwd(dy[i], g[i], u[i], 4, 25, dg + i, du + i);
	held_expect(dg, "moe", "situ.dg", 1e-6);
	held_expect(du, "moe", "situ.du", 1e-6);
}

Test(situ, arguments_of_10000_give_limits_without_nan, .timeout = 60)
{
	static const float at[] = {1e4f, -1e4f};
	static const float want[2][2] = {{100, -100}, {0, 0}};

	for (size_t i = 0; i < 2; i++)
		for (size_t j = 0; j < 2; j++) {
			float dg = NAN, du = NAN, y = k3_situ_fwd(at[i], at[j], 4, 25);
			k3_situ_bwd(1, at[i], at[j], 4, 25, &dg, &du);
			cr_assert(fabsf(y - want[i][j]) < 1e-4f, "situ(%g, %g) = %g", (double)at[i],
				  (double)at[j], (double)y);
			cr_assert(dg == 0 && du == 0, "gradients %g and %g", (double)dg,
				  (double)du);
		}
}
