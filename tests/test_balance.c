/* Router bias after a step: the sign rule by hand, the quantile rule by hand and against cases that
 * another implementation computed. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../common/op/optim.h"
#include "held.h"

static void
update_in(float *bias, int32_t *balance, size_t n, enum k3_balance_rule rule, size_t k, size_t bins,
	  double state)
{
	double out[K3_OUT_LEN] = {[K3_OUT_STATE] = state, [K3_OUT_COEF] = 1};
	void *buf[] = {out, bias, balance};
	struct k3_router_bias_args a = {.n_buf = 3,
					.rule = rule,
					.n_experts = n,
					.k = k,
					.bins = bins,
					.u = 1e-3,
					.bias = {1, 1},
					.balance = {2, 1}};

	k3_router_bias_update_cpu_f32(buf, &a);
}

static void
sign_update(float *bias, int32_t *counts, size_t n)
{
	update_in(bias, counts, n, K3_BALANCE_SIGN, 2, 0, K3_STEP_OK);
}

Test(sign_rule, moves_towards_balance_and_is_centred, .timeout = 60)
{
	int32_t counts[][4] = {{6, 1, 1, 0}, {4, 0, 2, 2}};
	const double want[][4] = {{-.0015, .0005, .0005, .0005}, {-.001, .001, 0, 0}};

	for (size_t c = 0; c < 2; c++) {
		float bias[4] = {0};
		sign_update(bias, counts[c], 4);
		for (size_t e = 0; e < 4; e++)
			cr_assert_float_eq(bias[e], want[c][e], 1e-9, "case %zu, expert %zu: %g", c,
					   e, (double)bias[e]);
	}
}

Test(sign_rule, adds_to_the_bias, .timeout = 60)
{
	float bias[] = {0.5f, -0.25f, 0, -0.25f};
	int32_t counts[] = {0, 4, 2, 2};

	sign_update(bias, counts, 4);
	cr_assert_float_eq(bias[0], 0.501, 1e-7);
	cr_assert_float_eq(bias[1], -0.251, 1e-7);
	cr_assert(bias[2] == 0 && bias[3] == -0.25f);
}

Test(sign_rule, bias_does_not_drift_over_1000_steps, .timeout = 60)
{
	float bias[6] = {0};
	double sum = 0, most = 0;

	for (uint64_t n = 0; n < 1000; n++) {
		int32_t counts[6];
		for (size_t e = 0; e < 6; e++)
			counts[e] = (int32_t)fixture_uniform(3, 6 * n + e, 0, 50 * (double)(e + 1));
		sign_update(bias, counts, 6);
	}
	for (size_t e = 0; e < 6; e++) {
		sum += (double)bias[e];
		most = fmax(most, fabs((double)bias[e]));
	}
	cr_assert(most > 0.1, "the bias never moved");
	cr_assert(fabs(sum) < 1e-5, "sum of the bias is %g", sum);
}

Test(sign_rule, counts_may_exceed_31_bits_together, .timeout = 60)
{
	float bias[4] = {0};
	int32_t counts[] = {2000000000, 2000000000, 0, 0}; /* a sum that wraps is negative */

	sign_update(bias, counts, 4);
	for (size_t e = 0; e < 4; e++)
		cr_assert_float_eq(bias[e], e < 2 ? -.001 : .001, 1e-9, "expert %zu: %g", e,
				   (double)bias[e]);
}

/* Counts of the experts, then their histograms. */
static void
quantile_update(float *bias, const int32_t *hist, size_t n, size_t k, size_t bins)
{
	int32_t *balance = held_out_ints(n + n * bins);

	for (size_t e = 0; e < n; e++)
		balance[e] = 1000 * (int32_t)(e + 1); /* plays no part */
	memcpy(balance + n, hist, n * bins * sizeof(*hist));
	update_in(bias, balance, n, K3_BALANCE_QUANTILE, k, bins, K3_STEP_OK);
}

static void
golden_quantile(char which)
{
	char name[5][32];
	const char *parts[] = {"bias_in", "hist", "k", "nbins", "bias_out"};
	struct k3_st *st = fixture_open("balance");
	size_t n;

	for (size_t i = 0; i < 5; i++)
		snprintf(name[i], sizeof(name[i]), "quantile.%s.%c", parts[i], which);
	cr_assert_not_null(k3_st_find(st, name[0]));
	n = k3_st_find(st, name[0])->n_elems;
	k3_st_close(st);
	float *bias = held_copy(held_input("balance", name[0]), n);
	quantile_update(bias, held_ints("balance", name[1]), n,
			(size_t)*held_ints("balance", name[2]),
			(size_t)*held_ints("balance", name[3]));
	held_expect(bias, "balance", name[4], 1e-6);
}

Test(quantile_rule, integer_targets_match_the_reference, .timeout = 60)
{
	golden_quantile('a');
	held_end();
}

Test(quantile_rule, the_update_after_that_matches_the_reference, .timeout = 60)
{
	golden_quantile('b');
	held_end();
}

Test(quantile_rule, an_odd_number_of_experts_matches_the_reference, .timeout = 60)
{
	golden_quantile('c');
	held_end();
}

Test(quantile_rule, position_lies_inside_the_bin, .timeout = 60)
{
	/* width .5, target 4 * 1/2: positions 1 + 2/4 and 2 + 2/2, mean 2.25 */
	const int32_t hist[] = {0, 4, 0, 0, 0, 0, 2, 2};
	float bias[] = {0, 0};

	quantile_update(bias, hist, 2, 1, 4);
	cr_assert_float_eq(bias[0], -.375, 1e-7);
	cr_assert_float_eq(bias[1], .375, 1e-7);
	held_end();
}

Test(quantile_rule, rank_of_a_fractional_target_is_rounded_up, .timeout = 60)
{
	/* target 4/3, rank 2: 1 + 1/3, 0 + 4/9, 3 + 1/3; the mean is 46/27, width 1/2 */
	const int32_t hist[] = {1, 1, 2, 0, 3, 0, 0, 1, 0, 0, 0, 4};
	float bias[] = {0, 0, 0};
	const double pos[] = {4.0 / 3, 4.0 / 9, 10.0 / 3}, mean = 46.0 / 27;

	quantile_update(bias, hist, 3, 1, 4);
	for (size_t e = 0; e < 3; e++)
		cr_assert_float_eq(bias[e], (pos[e] - mean) / 2, 1e-6, "expert %zu: %g", e,
				   (double)bias[e]);
	held_end();
}

Test(quantile_rule, a_target_at_the_end_of_a_bin_stays_in_it, .timeout = 60)
{
	/* 100 * 7 / 25 is 28, but 100 times the double next to 7 / 25 is more */
	enum { EXPERTS = 25, BINS = 4 };
	int32_t hist[EXPERTS * BINS] = {28, 0, 0, 72};
	float bias[EXPERTS] = {0};
	double mean = (1 + 24 * .28) / EXPERTS;

	for (size_t e = 1; e < EXPERTS; e++)
		hist[e * BINS] = 100;
	quantile_update(bias, hist, EXPERTS, 7, BINS);
	for (size_t e = 0; e < EXPERTS; e++)
		cr_assert_float_eq(bias[e], ((e ? .28 : 1) - mean) / 2, 1e-6, "expert %zu: %g", e,
				   (double)bias[e]);
	held_end();
}

Test(quantile_rule, an_empty_histogram_gives_a_finite_bias, .timeout = 60)
{
	const int32_t hist[] = {0, 4, 0, 0, 0, 0, 0, 0}; /* positions 1.5 and 0 */
	float bias[] = {0, 0};

	quantile_update(bias, hist, 2, 1, 4);
	cr_assert_float_eq(bias[0], .375, 1e-7);
	cr_assert_float_eq(bias[1], -.375, 1e-7);
	held_end();
}

Test(quantile_rule, old_bias_sets_the_width_and_is_replaced, .timeout = 60)
{
	const int32_t hist[] = {0, 4, 0, 0, 0, 0, 2, 2};
	float bias[] = {3, 1}; /* width (2 + 2) / 4 = 1 */

	quantile_update(bias, hist, 2, 1, 4);
	cr_assert_float_eq(bias[0], -.75, 1e-7);
	cr_assert_float_eq(bias[1], .75, 1e-7);
	held_end();
}

static void
stays(enum k3_balance_rule rule, const int32_t *balance, double state)
{
	float bias[] = {0.25f, -0.5f}, before[] = {0.25f, -0.5f};
	int32_t copy[10];

	memcpy(copy, balance, sizeof(copy));
	update_in(bias, copy, 2, rule, 1, 4, state);
	held_expect_same(bias, before, 2, "bias");
}

Test(balance, a_step_that_is_not_ok_leaves_the_bias, .timeout = 60)
{
	const int32_t balance[] = {6, 1, 0, 4, 0, 0, 0, 0, 2, 2};

	for (int rule = K3_BALANCE_NONE; rule <= K3_BALANCE_QUANTILE; rule++) {
		stays(rule, balance, K3_STEP_NOT_FINITE);
		stays(rule, balance, K3_STEP_NO_LABELS);
	}
}

Test(balance, a_step_without_routed_tokens_leaves_the_bias, .timeout = 60)
{
	const int32_t none[10] = {0};

	stays(K3_BALANCE_SIGN, none, K3_STEP_OK);
	stays(K3_BALANCE_QUANTILE, none, K3_STEP_OK);
}

Test(balance, rule_none_leaves_the_bias, .timeout = 60)
{
	const int32_t balance[] = {6, 1, 0, 4, 0, 0, 0, 0, 2, 2};

	stays(K3_BALANCE_NONE, balance, K3_STEP_OK);
}
