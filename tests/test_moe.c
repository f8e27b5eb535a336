/* The latent mixture of experts as a chain of kernels, route -> dispatch -> expert groups ->
 * combine and back, against the oracle; then experts without rows and expert groups. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "held.h"
#include "moe_case.h"

static struct moe_case
golden_in_groups(uint32_t n_groups)
{
	static const uint32_t edge[4][4] = {{0}, {0, 9}, {0, 4, 9}, {0, 2, 3, 9}};
	struct moe_case l = moe_golden();

	l.n_groups = n_groups;
	memcpy(l.edge, edge[n_groups], sizeof(edge[n_groups]));
	return l;
}

static void
expect_forward(const struct moe_case *l)
{
	held_expect(l->y, "moe", "chain.y", 1e-6);
	held_expect(l->p_out, "moe", "chain.p_out", 1e-6);
}

/* dx began with the gradient of the shared experts, for which `shared` stands in. */
static void
expect_input_gradient(const struct moe_case *l)
{
	float *dx = held_out(l->t * l->d);

	for (size_t i = 0; i < l->t * l->d; i++)
		dx[i] = l->dx[i] - l->shared[i];
	held_expect(dx, "moe", "chain.dx", 2e-6);
	held_expect(l->dnorm, "moe", "chain.dnorm", 2e-6);
}

static void
expect_weight_gradients(const struct moe_case *l)
{
	held_expect(l->dwr, "moe", "chain.dwr", 2e-6);
	held_expect(l->dwdown, "moe", "chain.dwdown", 2e-6);
	held_expect(l->dw13, "moe", "chain.dw13", 2e-6);
	held_expect(l->dw2, "moe", "chain.dw2", 2e-6);
	held_expect(l->dwup, "moe", "chain.dwup", 2e-6);
}

static void
expect_output(uint32_t groups)
{
	struct moe_case l = golden_in_groups(groups);

	moe_forward(&l);
	expect_forward(&l);
	held_end();
}

Test(moe, output_matches_the_oracle, .timeout = 60)
{
	expect_output(1);
}

Test(moe, output_of_two_expert_groups_matches_the_oracle, .timeout = 60)
{
	expect_output(2);
}

Test(moe, output_of_three_expert_groups_matches_the_oracle, .timeout = 60)
{
	expect_output(3);
}

static void
expect_input_gradient_of(uint32_t groups)
{
	struct moe_case l = golden_in_groups(groups);

	moe_forward(&l);
	moe_backward(&l);
	expect_input_gradient(&l);
	held_end();
}

Test(moe, input_gradient_with_router_is_added_to_dx, .timeout = 60)
{
	expect_input_gradient_of(1);
}

Test(moe, input_gradient_of_two_expert_groups_matches_the_oracle, .timeout = 60)
{
	expect_input_gradient_of(2);
}

Test(moe, input_gradient_of_three_expert_groups_matches_the_oracle, .timeout = 60)
{
	expect_input_gradient_of(3);
}

Test(moe, weight_gradients_match_the_oracle_for_every_grouping, .timeout = 60)
{
	for (uint32_t n = 1; n <= 3; n++) {
		struct moe_case l = golden_in_groups(n);
		moe_forward(&l);
		moe_backward(&l);
		moe_weights_back(&l, 0);
		expect_weight_gradients(&l);
	}
	held_end();
}

Test(moe, gradients_of_later_tiles_are_added, .timeout = 60)
{
	struct moe_case l = golden_in_groups(2);
	float *sum[] = {l.dwr, l.dwdown, l.dw13, l.dw2, l.dwup, l.dnorm};
	size_t n[] = {90, 70, 630, 315, 70, 7};

	moe_forward(&l);
	moe_backward(&l);
	expect_input_gradient(&l);
	moe_combine_back(&l, 1);
	moe_weights_back(&l, 0);
	moe_weights_back(&l, 1);
	for (size_t i = 0; i < 6; i++)
		for (size_t j = 0; j < n[i]; j++)
			sum[i][j] /= 2;
	expect_weight_gradients(&l);
	held_expect(l.dnorm, "moe", "chain.dnorm", 2e-6);
	held_end();
}

Test(moe, weights_in_three_row_blocks_match_the_oracle, .timeout = 60)
{
	struct moe_case l = golden_in_groups(2);

	l.blocks = 3;
	moe_forward(&l);
	moe_backward(&l);
	moe_weights_back(&l, 0);
	expect_forward(&l);
	expect_input_gradient(&l);
	expect_weight_gradients(&l);
	held_end();
}

Test(moe, splitting_experts_into_groups_does_not_change_a_bit, .timeout = 60)
{
	struct moe_case one = golden_in_groups(1), three = golden_in_groups(3);

	moe_forward(&one);
	moe_backward(&one);
	moe_weights_back(&one, 0);
	moe_forward(&three);
	moe_backward(&three);
	moe_weights_back(&three, 0);
	held_expect_same(three.p_out, one.p_out, 110, "p_out");
	held_expect_same(three.dx, one.dx, 110, "dx");
	held_expect_same(three.dw13, one.dw13, 630, "dw13");
	held_expect_same(three.dw2, one.dw2, 315, "dw2");
	held_end();
}

Test(moe, a_group_touches_only_rows_of_its_experts, .timeout = 60)
{
	struct moe_case l = golden_in_groups(2);
	const float *untouched = held_out(33 * 10);

	moe_route(&l);
	moe_dispatch(&l);
	moe_group_forward(&l, 1);
	moe_combine_back(&l, 0);
	moe_group_dgrad(&l, 1);
	size_t before = (size_t)l.route[4];
	cr_assert(before > 0 && before < 33, "both groups must have rows");
	held_expect_same(l.gu, untouched, before * 10, "gu of the other group");
	held_expect_same(l.ys, untouched, before * 7, "ys of the other group");
	held_expect_same(l.dgu, untouched, before * 10, "dgu of the other group");
	held_expect_same(l.dzs, untouched, before * 7, "dzs of the other group");
	held_expect_same(l.dwt, untouched, before, "dwt of the other group");
	for (size_t i = before * 7; i < 33 * 7; i++)
		cr_assert(isfinite(l.ys[i]) && !isnan(l.gu[before * 10]), "own row not written");
	held_end();
}

Test(moe, forcing_the_same_experts_in_another_order_gives_the_same_layer, .timeout = 60)
{
	struct moe_case l = golden_in_groups(2);
	int32_t *ids = held_ints("moe", "chain.ids"), turned[33];

	for (size_t i = 0; i < 33; i++)
		turned[i] = ids[i / 3 * 3 + 2 - i % 3];
	l.forced = turned;
	moe_forward(&l);
	moe_backward(&l);
	moe_weights_back(&l, 0);
	expect_forward(&l);
	expect_input_gradient(&l);
	expect_weight_gradients(&l);
	held_end();
}

Test(moe, route_scale_multiplies_the_sum_and_the_router_gradient, .timeout = 60)
{
	struct moe_case l = golden_in_groups(1), scaled = golden_in_groups(1);

	scaled.scale = 2.5f;
	moe_forward(&l);
	moe_forward(&scaled);
	moe_backward(&l);
	memcpy(scaled.dzs, l.dzs, 33 * 7 * sizeof(float));
	memcpy(scaled.dwt, l.dwt, 33 * sizeof(float));
	moe_dispatch_back(&scaled);
	for (size_t i = 0; i < 77; i++)
		scaled.y[i] /= 2.5f;
	for (size_t i = 0; i < 99; i++)
		scaled.dl[i] /= 2.5f;
	held_expect_close(scaled.y, l.y, 77, 1e-6, "y / scale");
	held_expect_close(scaled.dl, l.dl, 99, 1e-6, "dl / scale");
	held_end();
}

Test(moe, experts_that_were_not_chosen_give_no_router_gradient, .timeout = 60)
{
	struct moe_case l = golden_in_groups(1);
	const int32_t *ids = held_ints("moe", "chain.ids");

	moe_forward(&l);
	moe_backward(&l);
	for (size_t i = 0; i < 99; i++) {
		const int32_t *own = ids + i / 9 * 3;
		int e = (int)(i % 9), chosen = own[0] == e || own[1] == e || own[2] == e;
		cr_assert(chosen ? l.dl[i] != 0 : l.dl[i] == 0, "token %zu, expert %d: %g", i / 9,
			  e, (double)l.dl[i]);
	}
	held_end();
}

Test(moe, a_single_active_expert_has_a_constant_weight, .timeout = 60)
{
	struct moe_case l = moe_random(13, 5, 1);

	moe_forward(&l);
	moe_backward(&l);
	held_expect_all(l.routew, 1, 13, "weight");
	held_expect_all(l.dl, 0, 65, "router gradient");
	held_end();
}

/* Experts of a token by the wanted sizes, one active expert, tokens spread so that sorting has work
 * to do. */
static void
force_sizes(struct moe_case *l, const size_t *size)
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
	struct moe_case l = moe_random(t, n_experts, 1);

	force_sizes(&l, size);
	moe_forward(&l);
	moe_backward(&l);
	moe_weights_back(&l, 0);
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

Test(moe, experts_without_rows_get_exact_zero_gradients, .timeout = 60)
{
	static const size_t size[] = {16, 0, 25, 44, 0, 8};

	expect_empty_experts_silent(size, 6, 93);
	held_end();
}

Test(moe, the_first_expert_may_be_empty, .timeout = 60)
{
	static const size_t size[] = {0, 3, 4, 5};

	expect_empty_experts_silent(size, 4, 12);
	held_end();
}

Test(moe, the_last_expert_may_be_empty, .timeout = 60)
{
	static const size_t size[] = {3, 4, 5, 0};

	expect_empty_experts_silent(size, 4, 12);
	held_end();
}

Test(moe, all_experts_but_one_may_be_empty, .timeout = 60)
{
	static const size_t size[] = {0, 0, 12, 0};

	expect_empty_experts_silent(size, 4, 12);
	held_end();
}

Test(moe, a_group_without_rows_writes_zeros_and_nothing_else, .timeout = 60)
{
	static const size_t size[] = {0, 0, 0, 0, 5, 6};
	struct moe_case l = moe_random(11, 6, 1);
	const float *untouched = held_out(11 * 6);

	l.n_groups = 2;
	l.edge[1] = 4;
	l.edge[2] = 6;
	force_sizes(&l, size);
	moe_route(&l);
	moe_dispatch(&l);
	moe_group_forward(&l, 0);
	moe_group_dgrad(&l, 0);
	moe_group_wgrad(&l, 0, 0);
	held_expect_same(l.gu, untouched, 66, "gu");
	held_expect_same(l.ys, untouched, 44, "ys");
	held_expect_same(l.dgu, untouched, 66, "dgu");
	held_expect_same(l.dzs, untouched, 44, "dzs");
	held_expect_same(l.dwt, untouched, 11, "dwt");
	held_expect_all(l.dw13, 0, 4 * 24, "dw13");
	held_expect_all(l.dw2, 0, 4 * 12, "dw2");
	held_expect_same(l.dw13 + 96, untouched, 48, "dw13 of the other group");
	held_end();
}

Test(moe, an_empty_expert_keeps_what_was_accumulated, .timeout = 60)
{
	static const size_t size[] = {4, 0, 7};
	struct moe_case l = moe_random(11, 3, 1);

	l.dw13 = held_random(20, 72, 1, 2);
	l.dw2 = held_random(21, 36, 1, 2);
	float *was13 = held_copy(l.dw13, 72), *was2 = held_copy(l.dw2, 36);
	force_sizes(&l, size);
	moe_forward(&l);
	moe_backward(&l);
	moe_group_wgrad(&l, 0, 1);
	held_expect_same(l.dw13 + 24, was13 + 24, 24, "dw13");
	held_expect_same(l.dw2 + 12, was2 + 12, 12, "dw2");
	cr_assert(l.dw13[0] != was13[0] && l.dw2[35] != was2[35], "the others must be added to");
	held_end();
}

Test(moe, all_tokens_may_choose_one_expert, .timeout = 60)
{
	struct moe_case l = moe_random(40, 8, 1);

	l.bias[3] = 1e3f;
	moe_forward(&l);
	moe_backward(&l);
	moe_weights_back(&l, 0);
	cr_assert(l.route[3] == 0 && l.route[4] == 40, "rows %d .. %d", l.route[3], l.route[4]);
	for (size_t i = 0; i < 240; i++)
		cr_assert(isfinite(l.p_out[i]) && isfinite(l.dx[i]), "element %zu", i);
	held_expect_all(l.dw13, 0, 3 * 24, "dw13 of experts 0 to 2");
	held_expect_all(l.dw13 + 4 * 24, 0, 4 * 24, "dw13 of experts 4 to 7");
	held_expect_all(l.routew, 1, 40, "weight in spite of the bias");
	held_end();
}

Test(moe, every_expert_may_be_active, .timeout = 60)
{
	struct moe_case l = moe_random(7, 4, 4);

	/* equal scores and equal experts: the sum is one expert's output */
	memset(l.wr, 0, 24 * sizeof(float));
	for (size_t e = 1; e < 4; e++) {
		memcpy(l.w13 + e * 24, l.w13, 24 * sizeof(float));
		memcpy(l.w2 + e * 12, l.w2, 12 * sizeof(float));
	}
	moe_forward(&l);
	held_expect_all(l.routew, 0.25f, 28, "weight");
	held_expect_close(l.y, l.ys, 28, 1e-6, "sum of equal experts");
	moe_backward(&l);
	for (size_t i = 0; i < 28; i++)
		cr_assert(fabsf(l.dl[i]) < 1e-6f, "equal experts leave no router gradient: %g",
			  (double)l.dl[i]);
	held_end();
}

Test(moe, tokens_return_to_their_places, .timeout = 60)
{
	struct moe_case l = moe_random(13, 5, 3);

	moe_route(&l);
	/* token t is the row (t, t, ...), the projection an identity, the experts hand on what they
	 * get */
	for (size_t i = 0; i < 13 * 6; i++)
		l.x[i] = (float)(i / 6);
	for (size_t i = 0; i < 24; i++)
		l.wdown[i] = i / 6 == i % 6;
	moe_dispatch(&l);
	memcpy(l.ys, l.zs, 39 * 4 * sizeof(float));
	moe_combine(&l);
	for (size_t i = 0; i < 52; i++)
		cr_assert(fabsf(l.y[i] - (float)(i / 4)) <= 4e-6f, "token %zu got %g", i / 4,
			  (double)l.y[i]);
	for (size_t i = 0; i < 39; i++)
		cr_assert(l.zs[4 * i] == (float)(k3_route_src(l.route, 5, 13, 3)[i] / 3),
			  "sorted row %zu", i);
	held_end();
}

Test(moe, gradients_return_to_their_places, .timeout = 60)
{
	struct moe_case l = moe_random(13, 5, 3);
	static const float part[] = {1, 10, 100};

	moe_route(&l);
	/* slot j of token t contributes part[j] (t + 1) */
	for (size_t i = 0; i < 39; i++) {
		size_t at = (size_t)k3_route_row(l.route, 5, 13, 3)[i];
		l.dwt[at] = 0;
		for (size_t c = 0; c < 4; c++)
			l.dzs[at * 4 + c] = part[i % 3] * (float)(i / 3 + 1);
	}
	moe_dispatch_back(&l);
	for (size_t i = 0; i < 52; i++)
		cr_assert(l.dz[i] == 111 * (float)(i / 4 + 1), "token %zu got %g", i / 4,
			  (double)l.dz[i]);
	held_end();
}

Test(moe, experts_saturate_at_inputs_of_10000, .timeout = 60)
{
	float z[] = {1e4f, -1e4f, 1e4f, -1e4f}, one[] = {1, 1}, dys[] = {1, 1, 1, 1};
	static const float want[] = {100, 0, 100, 0};
	struct moe_case l = {.t = 4, .d = 1, .r = 1, .f = 1, .n_experts = 1, .k = 1};

	moe_one_group(&l);
	l.x = z;
	l.wr = l.bias = held_random(1, 1, 0, 0);
	l.wdown = l.w13 = l.w2 = one;
	l.shared = z;
	moe_outputs(&l);
	memcpy(l.dys, dys, sizeof(dys));
	moe_route(&l);
	moe_dispatch(&l);
	moe_group_forward(&l, 0);
	moe_group_dgrad(&l, 0);
	moe_group_wgrad(&l, 0, 0);
	for (size_t i = 0; i < 4; i++)
		cr_assert(fabsf(l.ys[i] - want[i]) < 1e-4f && fabsf(l.dwt[i] - want[i]) < 1e-4f &&
				  l.dzs[i] == 0,
			  "row %zu: y %g, dw %g, dz %g", i, (double)l.ys[i], (double)l.dwt[i],
			  (double)l.dzs[i]);
	held_expect_all(l.dw13, 0, 2, "dw13 of saturated rows");
	cr_assert(fabsf(l.dw2[0] - 200) < 1e-3f, "dw2 is %g", (double)l.dw2[0]);
	held_end();
}
