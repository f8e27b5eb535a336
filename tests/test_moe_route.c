/* The router and the expert loads: choice, ties, weights and tables against the oracle or by hand,
 * histograms against those of the reference implementation, to the integer. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../common/op/moe.h"
#include "held.h"

/* A tile of t tokens and its routes. */
struct router {
	size_t t, d, n_experts, k;
	float scale;
	float *x, *wr, *bias;
	int32_t *forced;
	size_t block_rows;
	int32_t *route;
	float *routew;
};

static void
route(struct router *r)
{
	struct held_task task = {{NULL}, 0};
	struct k3_moe_route_args a = {.t = r->t,
				      .d = r->d,
				      .n_experts = r->n_experts,
				      .k = r->k,
				      .sum_eps = 1e-20f,
				      .scale = r->scale};

	r->route = held_out_ints(k3_route_len(r->t, r->n_experts, r->k));
	r->routew = held_out(k3_routew_len(r->t, r->n_experts, r->k));
	held_push(&task, r->route);
	held_push(&task, r->routew);
	held_push(&task, r->x);
	a.forced = held_push_list(&task, r->forced);
	a.wr = held_push_weight(&task, r->wr, r->n_experts, r->d, r->block_rows, 0);
	a.bias = held_push_weight(&task, r->bias, 1, r->n_experts, 1, 0);
	a.n_buf = task.n;
	k3_moe_route_fwd_cpu_f32(task.buf, &a);
}

static struct router
golden(void)
{
	struct router r = {.t = 11, .d = 10, .n_experts = 9, .k = 3, .scale = 1, .block_rows = 9};

	r.x = held_input("moe", "chain.x");
	r.wr = held_input("moe", "chain.wr");
	r.bias = held_input("moe", "chain.bias");
	return r;
}

/* Token t has logits[t]: the router matrix is an identity. */
static struct router
with_logits(float *logits, size_t t, size_t n_experts, size_t k)
{
	struct router r = {.t = t,
			   .d = n_experts,
			   .n_experts = n_experts,
			   .k = k,
			   .scale = 1,
			   .x = logits,
			   .block_rows = n_experts};

	r.wr = held_random(1, n_experts * n_experts, 0, 0);
	for (size_t e = 0; e < n_experts; e++)
		r.wr[e * n_experts + e] = 1;
	r.bias = held_random(1, n_experts, 0, 0);
	return r;
}

static void
expect_ids(const struct router *r, size_t token, const int32_t *want)
{
	const int32_t *ids = k3_route_ids(r->route, r->n_experts) + token * r->k;

	for (size_t j = 0; j < r->k; j++)
		cr_assert_eq(ids[j], want[j], "token %zu, slot %zu: expert %d, expected %d", token,
			     j, ids[j], want[j]);
}

/* Offsets, rows and sources describe one stable sort of the assignments by expert. */
static void
expect_sorted(const struct router *r)
{
	size_t tk = r->t * r->k;
	const int32_t *offs = k3_route_offs(r->route), *ids = k3_route_ids(r->route, r->n_experts),
		      *row = k3_route_row(r->route, r->n_experts, r->t, r->k),
		      *src = k3_route_src(r->route, r->n_experts, r->t, r->k);

	cr_assert(offs[0] == 0 && (size_t)offs[r->n_experts] == tk);
	for (size_t e = 0; e < r->n_experts; e++) {
		int32_t last = -1;
		for (int32_t i = offs[e]; i < offs[e + 1]; i++) {
			cr_assert(src[i] > last, "row %d of expert %zu is out of order", i, e);
			cr_assert_eq((size_t)ids[src[i]], e);
			cr_assert_eq(row[src[i]], i);
			last = src[i];
		}
	}
}

Test(moe_route, choice_and_weights_match_the_oracle, .timeout = 60)
{
	struct router r = golden();
	const int32_t *ids = held_ints("moe", "chain.ids");

	route(&r);
	for (size_t i = 0; i < r.t; i++)
		expect_ids(&r, i, ids + 3 * i);
	held_expect(r.routew, "moe", "chain.w", 1e-6);
	held_expect(k3_routew_scores(r.routew, 11, 3), "moe", "chain.s", 1e-6);
	held_expect(k3_routew_cut(r.routew, 9, 11, 3), "moe", "chain.cut", 1e-6);
	held_end();
}

Test(moe_route, assignments_are_sorted_by_expert_and_stable, .timeout = 60)
{
	struct router r = golden();

	route(&r);
	expect_sorted(&r);
	held_end();
}

Test(moe_route, a_router_in_three_row_blocks_chooses_alike, .timeout = 60)
{
	struct router r = golden();
	const int32_t *ids = held_ints("moe", "chain.ids");

	r.block_rows = 4;
	route(&r);
	for (size_t i = 0; i < r.t; i++)
		expect_ids(&r, i, ids + 3 * i);
	held_expect(k3_routew_scores(r.routew, 11, 3), "moe", "chain.s", 1e-6);
	held_end();
}

Test(moe_route, ties_go_to_the_lowest_expert_every_time, .timeout = 60)
{
	float *x = held_random(1, 64, -1, 1);
	static const int32_t first[] = {0, 1};

	for (int again = 0; again < 20; again++) {
		struct router r = with_logits(x, 8, 8, 2);
		memset(r.wr, 0, 64 * sizeof(float));
		route(&r);
		for (size_t i = 0; i < 8; i++)
			expect_ids(&r, i, first);
		held_expect_all(r.routew, 0.5f, 16, "weight");
		held_expect_all(k3_routew_cut(r.routew, 8, 8, 2), 0.5f, 8, "cut");
		cr_assert(r.route[1] == 8 && r.route[2] == 16 && r.route[8] == 16,
			  "six experts are empty");
		held_end();
		x = held_random(1, 64, -1, 1);
	}
	held_end();
}

Test(moe_route, a_tie_at_the_last_place_leaves_the_higher_expert_out, .timeout = 60)
{
	float logits[] = {-1, 2, 3, 2, 2, -1, 2, 2, 2, 9};
	static const int32_t want[2][2] = {{2, 1}, {4, 1}};
	struct router r = with_logits(logits, 2, 5, 2);

	route(&r);
	expect_ids(&r, 0, want[0]);
	expect_ids(&r, 1, want[1]);
	const float *cut = k3_routew_cut(r.routew, 5, 2, 2), *s = k3_routew_scores(r.routew, 2, 2);
	cr_assert(cut[0] == s[3] && cut[1] == s[7], "the cut is the tied score");
	held_end();
}

Test(moe_route, the_bias_chooses_but_does_not_weigh, .timeout = 60)
{
	float logits[] = {0, 0, 0, 1, 1, 0, -1, 0};
	struct router r = with_logits(logits, 2, 4, 2);
	static const int32_t want[2][2] = {{2, 3}, {2, 0}};

	r.bias[2] = 1e3f;
	route(&r);
	expect_ids(&r, 0, want[0]);
	expect_ids(&r, 1, want[1]);
	float up = 1 / (1 + expf(-1)), down = 1 - up;
	float w[] = {0.5f / (0.5f + up), up / (0.5f + up), down / (up + down), up / (up + down)};
	held_expect_close(r.routew, w, 4, 1e-6, "weights");
	held_end();
}

Test(moe_route, all_experts_may_be_active, .timeout = 60)
{
	float logits[] = {0, 2, -1, 1, 3, 0, 1, 2};
	struct router r = with_logits(logits, 2, 4, 4);
	static const int32_t want[2][4] = {{1, 3, 0, 2}, {0, 3, 2, 1}};

	route(&r);
	expect_ids(&r, 0, want[0]);
	expect_ids(&r, 1, want[1]);
	expect_sorted(&r);
	held_expect_all(k3_routew_cut(r.routew, 4, 2, 4), -INFINITY, 2, "cut");
	for (size_t i = 0; i < 8; i += 4)
		cr_assert(fabsf(r.routew[i] + r.routew[i + 1] + r.routew[i + 2] + r.routew[i + 3] -
				1) < 1e-6f);
	held_end();
}

Test(moe_route, forced_experts_are_taken_in_the_given_order, .timeout = 60)
{
	float logits[] = {3, 0, 0, 2, 1, 5, 0, 4};
	int32_t forced[] = {2, 0, 0, 2};
	struct router r = with_logits(logits, 2, 4, 2);

	r.forced = forced;
	route(&r);
	expect_ids(&r, 0, forced);
	expect_ids(&r, 1, forced + 2);
	expect_sorted(&r);
	const float *s = k3_routew_scores(r.routew, 2, 2);
	float w[] = {s[2] / (s[2] + s[0]), s[0] / (s[2] + s[0]), s[4] / (s[4] + s[6]),
		     s[6] / (s[4] + s[6])};
	held_expect_close(r.routew, w, 4, 1e-6, "weights");
	const float *cut = k3_routew_cut(r.routew, 4, 2, 2);
	cr_assert(cut[0] == s[3] && cut[1] == s[5], "the cut is the best expert that was left");
	held_end();
}

Test(moe_route, weights_carry_the_scale, .timeout = 60)
{
	struct router r = golden();

	r.scale = 2.5f;
	route(&r);
	for (size_t i = 0; i < 33; i++)
		r.routew[i] /= 2.5f;
	held_expect(r.routew, "moe", "chain.w", 1e-6);
	held_end();
}

Test(moe_route, logits_of_30000_give_finite_weights, .timeout = 60)
{
	float logits[] = {30000, -30000, -30000, -30000, -30000, -30000, 30000, 30000, 30000};
	static const float want[] = {1, 0, 0, 0, 0.5f, 0.5f};
	struct router r = with_logits(logits, 3, 3, 2);

	route(&r);
	for (size_t i = 0; i < 6; i++)
		cr_assert(r.routew[i] == want[i], "weight %zu is %g", i, (double)r.routew[i]);
	for (size_t i = 0; i < 9; i++)
		cr_assert(k3_routew_scores(r.routew, 3, 2)[i] == (logits[i] > 0 ? 1 : 0));
	held_end();
}

/* Counts tokens of a tile; doc NULL: no padding. */
static void
count(int32_t *balance, const struct router *r, const int32_t *doc, size_t bins, int accumulate)
{
	int32_t all[256];
	struct held_task task = {{balance, r->route, r->routew}, 3};
	struct k3_moe_count_args a = {.t = r->t,
				      .n_experts = r->n_experts,
				      .k = r->k,
				      .bins = bins,
				      .accumulate = (uint32_t)accumulate};

	for (size_t i = 0; i < r->t; i++)
		all[i] = doc ? doc[i] : 1;
	held_push(&task, held_layout(all, r->t, 0));
	a.bias = held_push_weight(&task, r->bias, 1, r->n_experts, 1, 0);
	a.n_buf = task.n;
	k3_moe_count_cpu(task.buf, &a);
}

static void
expect_counts(const int32_t *got, const int32_t *want, size_t n, const char *what)
{
	for (size_t i = 0; i < n; i++)
		cr_assert_eq(got[i], want[i], "%s[%zu] is %d, expected %d", what, i, got[i],
			     want[i]);
}

Test(moe_count, padding_is_not_counted, .timeout = 60)
{
	static const int32_t doc[] = {1, 1, 0, 1, 2, 2, 2, 2, 0, 0, 0};
	const int32_t *ids = held_ints("moe", "chain.ids");
	struct router r = golden();
	int32_t *balance = held_out_ints(9 * 5), want[9] = {0};

	for (size_t i = 0; i < 33; i++)
		want[ids[i]] += doc[i / 3] != 0;
	route(&r);
	count(balance, &r, doc, 4, 0);
	expect_counts(balance, want, 9, "tokens");
	for (size_t e = 0; e < 9; e++) {
		const int32_t *h = balance + 9 + 4 * e;
		cr_assert_eq(h[0] + h[1] + h[2] + h[3], 7, "expert %zu must count 7 tokens", e);
	}
	held_end();
}

Test(moe_count, without_bins_there_are_token_counts_only, .timeout = 60)
{
	const int32_t *ids = held_ints("moe", "chain.ids");
	struct router r = golden();
	int32_t *balance = held_out_ints(9), want[9] = {0};

	for (size_t i = 0; i < 33; i++)
		want[ids[i]]++;
	route(&r);
	count(balance, &r, NULL, 0, 0);
	expect_counts(balance, want, 9, "tokens");
	held_end();
}

Test(moe_count, micro_batches_add_up_to_the_whole_batch, .timeout = 60)
{
	struct router whole = {
		.t = 64, .d = 6, .n_experts = 5, .k = 2, .scale = 1, .block_rows = 5};
	enum { N = 5 * 51 };
	int32_t *once = held_out_ints(N), *parts = held_out_ints(N);

	whole.x = held_random(1, 64 * 6, -2, 2);
	whole.wr = held_random(2, 30, -1, 1);
	whole.bias = held_random(3, 5, -0.2, 0.2);
	route(&whole);
	count(once, &whole, NULL, 50, 0);
	for (size_t i = 0; i < 4; i++) {
		struct router part = whole;
		part.t = 16;
		part.x = whole.x + i * 16 * 6;
		route(&part);
		count(parts, &part, NULL, 50, i > 0);
	}
	expect_counts(parts, once, N, "balance");
	cr_assert_eq(once[0] + once[1] + once[2] + once[3] + once[4], 128);
	held_end();
}

/* Scores and cuts by hand; each token is assigned to expert 0. */
static struct router
by_hand(size_t t, size_t n_experts, const float *scores, const float *cuts)
{
	struct router r = {.t = t, .n_experts = n_experts, .k = 1};

	r.route = held_out_ints(k3_route_len(t, n_experts, 1));
	r.routew = held_out(k3_routew_len(t, n_experts, 1));
	r.bias = held_random(1, n_experts, 0, 0);
	memset(r.route + n_experts + 1, 0, t * sizeof(int32_t));
	memcpy(r.routew + t, scores, t * n_experts * sizeof(float));
	memcpy(r.routew + t + t * n_experts, cuts, t * sizeof(float));
	return r;
}

Test(moe_count, a_position_on_an_edge_counts_in_the_bin_above, .timeout = 60)
{
	/* bias 0, 4 bins: [-1, -.5), [-.5, 0), [0, .5), [.5, 1) */
	static const float scores[] = {1, 0.75f, 0.5f, 0.25f, 0},
			   cuts[] = {0, 0.25f, 0.5f, 0.75f, 0.75f};
	static const int32_t want[] = {5, 1, 1, 1, 2};
	struct router r = by_hand(5, 1, scores, cuts);
	int32_t *balance = held_out_ints(5);

	count(balance, &r, NULL, 4, 0);
	expect_counts(balance, want, 5, "balance");
	held_end();
}

Test(moe_count, positions_out_of_range_count_once_in_the_outer_bins, .timeout = 60)
{
	static const float scores[] = {0, 0, 0, 0, 1, 0},
			   cuts[] = {1, 2.5f, 1e30f, -1e30f, -0.001f, -INFINITY};
	static const int32_t want[] = {6, 3, 0, 0, 3};
	struct router r = by_hand(6, 1, scores, cuts);
	int32_t *balance = held_out_ints(5);

	count(balance, &r, NULL, 4, 0);
	expect_counts(balance, want, 5, "balance");
	held_end();
}

Test(moe_count, the_cutoff_expert_without_bias_lies_in_the_middle_bin, .timeout = 60)
{
	/* its position is exactly 500 of 1000: in float some of these scores would fall into bin
	 * 499 */
	enum { N = 97 };
	float *scores = held_random(5, N, 0.01, 0.99);
	struct router r = by_hand(N, 1, scores, scores);
	int32_t *balance = held_out_ints(1001);

	count(balance, &r, NULL, 1000, 0);
	for (int i = 0; i < 1000; i++)
		cr_assert_eq(balance[1 + i], i == 500 ? N : 0, "bin %d holds %d", i,
			     balance[1 + i]);
	held_end();
}

Test(moe_count, bins_span_the_biases_and_one_more_on_either_side, .timeout = 60)
{
	/* bias -1 and 3: from -2 to 4 in 6 bins of width 1 */
	static const float scores[] = {0.5f, 0.25f, 0.5f, 0.25f}, cuts[] = {-1.25f, 4.25f};
	static const int32_t want[] = {2, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1};
	struct router r = by_hand(2, 2, scores, cuts);
	int32_t *balance = held_out_ints(14);

	r.bias[0] = -1;
	r.bias[1] = 3;
	count(balance, &r, NULL, 6, 0);
	expect_counts(balance, want, 14, "balance");
	held_end();
}

Test(moe_count, with_all_experts_active_every_token_counts_in_the_first_bin, .timeout = 60)
{
	float logits[] = {0, 2, -1, 1, 3, 0, 1, 2};
	static const int32_t want[] = {2, 2, 2, 2, 2, 0, 0, 2, 0, 0, 2, 0, 0, 2, 0, 0};
	struct router r = with_logits(logits, 2, 4, 4);
	int32_t *balance = held_out_ints(16);

	route(&r);
	count(balance, &r, NULL, 3, 0);
	expect_counts(balance, want, 16, "balance");
	held_end();
}

/* A case of the reference implementation: scores and bias in, histogram out, no padding. */
static void
expect_reference_histogram(const char *letter, size_t t, size_t n_experts)
{
	char name[16];
	float *bias, *scores, cuts[256];

	snprintf(name, sizeof(name), "scores.%s", letter);
	scores = held_input("moe_quantile", name);
	snprintf(name, sizeof(name), "bias_in.%s", letter);
	bias = held_input("moe_quantile", name);
	snprintf(name, sizeof(name), "k.%s", letter);
	size_t k = (size_t)held_ints("moe_quantile", name)[0];
	snprintf(name, sizeof(name), "nbins.%s", letter);
	size_t bins = (size_t)held_ints("moe_quantile", name)[0];
	for (size_t i = 0; i < t; i++) {
		/* the (k+1)-th biased score is the one that exactly k others beat, ties by number
		 */
		for (size_t e = 0; e < n_experts; e++) {
			size_t above = 0;
			float own = scores[i * n_experts + e] + bias[e];
			for (size_t o = 0; o < n_experts; o++) {
				float other = scores[i * n_experts + o] + bias[o];
				above += other > own || (other == own && o < e);
			}
			if (above == k)
				cuts[i] = own;
		}
	}
	struct router r = by_hand(t, n_experts, scores, cuts);
	r.bias = bias;
	int32_t *balance = held_out_ints(n_experts * (1 + bins));
	count(balance, &r, NULL, bins, 0);
	snprintf(name, sizeof(name), "hist.%s", letter);
	expect_counts(balance + n_experts, held_ints("moe_quantile", name), n_experts * bins, name);
}

Test(moe_count, histogram_of_150_tokens_equals_the_reference, .timeout = 60)
{
	expect_reference_histogram("a", 150, 6);
	held_end();
}

Test(moe_count, histogram_of_a_thousand_bins_equals_the_reference, .timeout = 60)
{
	expect_reference_histogram("b", 97, 6);
	held_end();
}

Test(moe_count, histogram_of_five_experts_equals_the_reference, .timeout = 60)
{
	expect_reference_histogram("c", 37, 5);
	held_end();
}
