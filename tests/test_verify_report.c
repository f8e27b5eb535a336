/* The judge of k3_verify: it must be red when something is wrong, and by the rules of the golden files only. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../drivers/verify.h"

#define TEST(name) Test(verify_report, name, .timeout = 60)

static struct k3_verify_report report;

static void
begin(const char *deviation)
{
	struct k3_verify_options options = {0};

	k3_verify_report_init(&report, &options);
	report.deviation = deviation ? json_loads(deviation, 0, NULL) : NULL;
}

/* Prints and judges; the table, malloc'ed. */
static char *
end(size_t passed, size_t failed)
{
	char *table = NULL;
	size_t bytes;
	FILE *out = open_memstream(&table, &bytes);

	k3_verify_print(&report, "some/folder/case", out);
	fclose(out);
	cr_assert(report.passed == passed && report.failed == failed,
		  "%zu passed and %zu failed in:\n%s", report.passed, report.failed, table);
	k3_verify_report_fini(&report);
	return table;
}

static void
compare(const char *name, int layer, const double *got, const double *want, size_t n,
	double tolerance)
{
	char cls[32];

	snprintf(cls, sizeof(cls), "%.*s", (int)strcspn(name, "0123456789"), name);
	k3_verify_compare(&report, cls, name, K3_PLACE_LAYERS + layer, got, want, n, tolerance,
			  false);
}

TEST(the_error_is_a_ratio_of_root_mean_squares)
{
	/* error (3e-5, 4e-5), size (3, 4): the ratio is exactly 1e-5 */
	const double want[] = {3, 4}, got[] = {3 + 3e-5, 4 - 4e-5};

	begin(NULL);
	compare("a1", 0, got, want, 2, 1.001e-5);
	free(end(1, 0));
	begin(NULL);
	compare("a1", 0, got, want, 2, 0.999e-5);
	free(end(0, 1));
}

TEST(not_a_number_fails_whatever_the_tolerance)
{
	const double want[] = {1, 2, 3}, nan[] = {1, 2, NAN}, inf[] = {INFINITY, 2, 3};

	begin(NULL);
	compare("a1", 0, nan, want, 3, 1e9);
	compare("b1", 0, inf, want, 3, 1e9);
	char *table = end(0, 2);
	cr_assert(strstr(table, "not finite at 2") && strstr(table, "not finite at 0"), "%s",
		  table);
	free(table);
}

TEST(an_expected_value_that_is_not_a_number_fails)
{
	const double got[] = {1, 2}, nan[] = {1, NAN}, inf[] = {-INFINITY, 2};

	begin(NULL);
	compare("a1", 0, got, nan, 2, 1e9);
	compare("b1", 0, got, inf, 2, 1e9);
	char *table = end(0, 2);
	cr_assert(strstr(table, "expected value is not finite at 1"), "%s", table);
	cr_assert(strstr(table, "expected value is not finite at 0"), "%s", table);
	free(table);
}

TEST(a_tiny_tensor_gets_a_second_chance_by_the_largest_of_its_class)
{
	const double big[] = {1000}, zero[] = {0}, near[] = {0.99e-4}, off[] = {1.01e-4};

	begin(NULL);
	compare("a1", 0, big, big, 1, 1e-5);
	compare("a2", 0, near, zero, 1, 1e-5);
	free(end(1, 0));
	begin(NULL);
	compare("a1", 0, big, big, 1, 1e-5);
	compare("a2", 0, off, zero, 1, 1e-5);
	free(end(0, 1));
	begin(NULL); /* another class does not help */
	compare("b1", 0, big, big, 1, 1e-5);
	compare("a2", 0, near, zero, 1, 1e-5);
	free(end(1, 1));
}

TEST(zero_by_definition_has_no_second_chance)
{
	const double big[] = {1000}, zero[] = {0}, near[] = {1e-30};

	begin(NULL);
	k3_verify_compare(&report, "a", "a1", 0, big, big, 1, 1e-5, true);
	k3_verify_compare(&report, "a", "a2", 0, near, zero, 1, 1e-5, true);
	char *table = end(0, 1);
	cr_assert(strstr(table, "a2: must be exactly 0"), "%s", table);
	free(table);
}

TEST(no_tolerance_lies_below_three_times_the_files_own_deviation)
{
	const double want[] = {1}, got[] = {1 + 2.9e-3};

	begin("{\"a\": 1e-3}");
	compare("a1", 0, got, want, 1, 1e-6);
	compare("b1", 0, got, want, 1, 1e-6);
	free(end(1, 1));
}

TEST(integers_are_equal_or_fail)
{
	const int32_t want[] = {1, 2, 3}, got[] = {1, 2, 4};

	begin("{\"ids\": 1}");
	k3_verify_compare_ints(&report, "ids", "ids.1", K3_PLACE_LAYERS + 1, got, want, 3);
	char *table = end(0, 1);
	cr_assert(strstr(table, "1 differ, first at 2: 4, want 3"), "%s", table);
	free(table);
}

TEST(a_missing_tensor_fails)
{
	begin(NULL);
	k3_verify_missing(&report, "a", "a1");
	cr_assert(k3_verify_compared(&report, "a1") && !k3_verify_compared(&report, "a2"));
	char *table = end(0, 1);
	cr_assert(strstr(table, "FAIL\ta1: missing"), "%s", table);
	free(table);
}

TEST(one_bad_tensor_among_good_ones_turns_its_class)
{
	const double want[] = {1}, bad[] = {1.1};

	begin(NULL);
	compare("a1", 1, want, want, 1, 1e-5);
	compare("a2", 2, bad, want, 1, 1e-5);
	compare("a3", 3, want, want, 1, 1e-5);
	char *table = end(0, 1);
	cr_assert(strstr(table, "case\ta\t3\t") && strstr(table, "FAIL\ta2"), "%s", table);
	free(table);
}

TEST(the_first_difference_is_at_the_lowest_layer_of_the_forward_pass)
{
	const double want[] = {1}, bad[] = {1.1};

	begin(NULL);
	compare("prefix.4", 4, bad, want, 1, 1e-5);
	compare("prefix.3", 3, bad, want, 1, 1e-5);
	compare("grad.prefix.0", 0, bad, want, 1, 1e-4);
	char *table = end(0, 2);
	cr_assert(strstr(table, "# case: first difference: layer 3 (prefix.3)"), "%s", table);
	free(table);
}

TEST(of_the_backward_pass_the_highest_layer_is_the_first)
{
	const double want[] = {1}, bad[] = {1.1};

	begin(NULL);
	compare("prefix.4", 4, want, want, 1, 1e-5);
	compare("grad.prefix.1", 1, bad, want, 1, 1e-4);
	compare("grad.prefix.2", 2, bad, want, 1, 1e-4);
	char *table = end(1, 1);
	cr_assert(strstr(table, "first difference: layer 2 (grad.prefix.2)"), "%s", table);
	free(table);
}

TEST(a_planted_fault_of_one_percent_turns_the_verdict)
{
	struct k3_verify_options options = {.plant_fault = "a2"};
	const double want[] = {1, -2};

	k3_verify_report_init(&report, &options);
	compare("a1", 1, want, want, 2, 1e-4);
	cr_assert_not(report.planted);
	compare("a2", 2, want, want, 2, 1e-4);
	cr_assert(report.planted);
	free(end(0, 1));
}

/* ---- bf16 */

static void
begin_bf16(bool forced_routing)
{
	struct k3_verify_options options = {.dtype = K3_BF16, .forced_routing = forced_routing};

	k3_verify_report_init(&report, &options);
	report.layers = 5;
	report.bf16_deviation = json_loads("{\"grad.param\": 0.2, \"grad.prefix\": 0.8}", 0, NULL);
	report.bf16_median = json_loads("{\"grad.param\": 0.05, \"grad.prefix\": 0.5}", 0, NULL);
}

/* One tensor of a class that is off by a share of its value. */
static void
off(const char *cls, const char *name, double share)
{
	const double want[] = {3, -4}, got[] = {3 * (1 + share), -4 * (1 + share)};

	k3_verify_compare(&report, cls, name, K3_PLACE_LAYERS, got, want, 2, 2e-5, false);
}

TEST(in_bf16_every_class_has_its_own_tolerance)
{
	begin_bf16(true);
	off("prefix", "prefix.0", 0.059);
	off("loss", "loss", 0.019);
	off("gsample", "gsample.a", 0.24);
	off("gdigest.dot", "gdigest.a", 0.9);
	off("dg", "T1.dg", 0.019);
	free(end(5, 0));
	begin_bf16(true);
	off("prefix", "prefix.0", 0.061);
	off("loss", "loss", 0.021);
	off("gsample", "gsample.a", 0.26);
	off("dg", "T1.dg", 0.021);
	free(end(0, 4));
	begin_bf16(true);
	report.layers = 13;
	off("prefix", "prefix.0", 0.079);
	free(end(1, 0));
}

TEST(in_bf16_gradients_are_bounded_each_and_in_the_median)
{
	begin_bf16(true);
	off("grad.param", "grad.a", 0.29);
	off("grad.param", "grad.b", 0.09);
	off("grad.param", "grad.c", 0.01);
	free(end(1, 0));
	begin_bf16(true);
	off("grad.param", "grad.a", 0.31);
	off("grad.param", "grad.b", 0.01);
	off("grad.param", "grad.c", 0.01);
	free(end(0, 1));
	begin_bf16(true);
	off("grad.param", "grad.a", 0.11);
	off("grad.param", "grad.b", 0.11);
	off("grad.param", "grad.c", 0.01);
	char *table = end(0, 1);
	cr_assert(strstr(table, "median 0.11 of 0.1"), "%s", table);
	free(table);
}

/* 1.5 times the file's own figure would be 1.2, and 1 is what no gradient at all has. */
TEST(in_bf16_a_gradient_of_zeros_is_red_whatever_the_file_allows)
{
	begin_bf16(true);
	off("grad.prefix", "grad.prefix.0", -1);
	off("grad.prefix", "grad.prefix.1", 0.01);
	off("grad.prefix", "grad.prefix.2", 0.01);
	free(end(0, 1));
}

/* The same error beside the same gradients: of A_log it may be measured by all layers' size. */
TEST(in_bf16_sums_that_cancel_are_measured_by_all_layers)
{
	static const char *const name[] = {"self_attn.A_log", "self_attn.dt_bias"};
	const double small[] = {0.01, -0.01}, large[] = {0.3, 0.2}, got[] = {0.02, 0};

	for (size_t i = 0; i < 2; i++) {
		char layer[2][64];
		begin_bf16(true);
		for (int l = 0; l < 2; l++)
			snprintf(layer[l], sizeof(layer[l]), "grad.layers.%d.%s", l, name[i]);
		k3_verify_compare(&report, "grad.param", layer[0], K3_PLACE_LAYERS, got, small, 2,
				  1e-4, false);
		k3_verify_compare(&report, "grad.param", layer[1], K3_PLACE_LAYERS + 1, large,
				  large, 2, 1e-4, false);
		k3_verify_compare(&report, "grad.param", "grad.other", K3_PLACE_LAYERS + 1, large,
				  large, 2, 1e-4, false);
		free(i == 0 ? end(1, 0) : end(0, 1));
	}
}

TEST(in_bf16_free_routes_may_differ_a_little_and_excuse_what_comes_behind_them)
{
	int32_t want[100], got[100];

	for (int i = 0; i < 100; i++)
		want[i] = got[i] = i;
	for (int i = 0; i < 4; i++)
		got[i] = -1;
	begin_bf16(false);
	k3_verify_compare_ints(&report, "router_ids", "router_ids.1", K3_PLACE_LAYERS, got, want,
			       100);
	off("prefix", "prefix.1", 0.5);
	off("grad.param", "grad.a", 0.5);
	free(end(3, 0));
	begin_bf16(false);
	got[4] = -1;
	k3_verify_compare_ints(&report, "router_ids", "router_ids.1", K3_PLACE_LAYERS, got, want,
			       100);
	off("loss", "loss", 0.03);
	free(end(0, 2));
	begin_bf16(true);
	got[1] = 1;
	k3_verify_compare_ints(&report, "router_ids", "router_ids.1", K3_PLACE_LAYERS, got, want,
			       100);
	free(end(0, 1));
}
