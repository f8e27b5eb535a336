/* k3_bench op from outside: its table, its exit statuses, and that no result goes without a
 * comparison: each output of each case is spoilt once. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../tests/bench/bench.h"
#include "program.h"
#include "scratch.h"

#define TEST(name) Test(bench_op, name, .init = scratch_start, .fini = scratch_stop, .timeout = 240)

/* Odd sizes: rows and chunks are not whole blocks. */
#define SMALL "--model tiny --tokens 33 --sequence 130 --repeat 2"
/* A model with a vision tower; 6 x 4 patches of an image. */
#define SMALL_VISION "--model small --tokens 24 --repeat 2"
enum { COLUMNS = 15 };
enum column {
	FAMILY,
	CASE,
	MODEL,
	SHAPE,
	ERROR,
	MEDIAN,
	P10,
	P90,
	RATE,
	UNIT,
	LIMIT,
	LIMIT_RATE,
	SHARE,
	TARGET,
	VERDICT
};

/* The next line of the table at *p, cut in columns in place; false at the end. Comments are passed
 * over. */
static bool
next_line(char **p, char **column, size_t want)
{
	while (**p == '#')
		*p += strcspn(*p, "\n") + 1;
	if (!**p)
		return false;
	char *line = *p;
	*p += strcspn(line, "\n");
	if (**p)
		*(*p)++ = '\0';
	for (size_t i = 0; i < want; i++) {
		column[i] = strsep(&line, "\t");
		cr_assert_not_null(column[i], "a line has %zu columns", i);
	}
	cr_assert_null(line, "a line has more than %zu columns", want);
	return true;
}

static int
status_of(const char *args)
{
	struct program_result r = program_run("", "k3_bench", "%s", args);

	program_free(&r);
	return r.status;
}

static int
status_of_tokens(const char *args, int tokens)
{
	char all[100];

	snprintf(all, sizeof(all), "%s --tokens %d", args, tokens);
	return status_of(all);
}

TEST(a_table_of_all_families_with_a_verdict_that_follows_from_the_share)
{
	static const char *const families[] = {"embed", "attnres", "kda",  "mla",
					       "moe",	"glu",	   "loss", "optim"};
	struct program_result r = program_run("", "k3_bench", "op all " SMALL);
	char *p = r.out, *c[COLUMNS];
	size_t lines = 0, of[8] = {0};

	cr_assert_eq(r.status, 0, "status %d: %s", r.status, scratch_log());
	cr_assert(next_line(&p, c, COLUMNS) && strcmp(c[FAMILY], "family") == 0 &&
		  strcmp(c[VERDICT], "verdict") == 0);
	for (; next_line(&p, c, COLUMNS); lines++) {
		double share = strtod(c[SHARE], NULL), median = strtod(c[MEDIAN], NULL);
		const char *verdict = share >= strtod(c[TARGET], NULL) ? "met" : "short";
		for (size_t i = 0; i < 8; i++)
			of[i] += strcmp(c[FAMILY], families[i]) == 0;
		cr_assert(share > 0 && isfinite(share), "%s has share %s", c[CASE], c[SHARE]);
		cr_assert(strtod(c[P10], NULL) <= median && median <= strtod(c[P90], NULL),
			  "%s has %s %s %s", c[CASE], c[P10], c[MEDIAN], c[P90]);
		cr_assert_str_eq(c[VERDICT], strcmp(c[TARGET], "-") == 0 ? "-" : verdict, "%s",
				 c[CASE]);
		cr_assert(strtod(c[ERROR], NULL) < 1e-3);
	}
	for (size_t i = 0; i < 8; i++)
		cr_assert_gt(of[i], 0, "no case of %s", families[i]);
	program_free(&r);
}

/* The count of a case is its rate times its time. */
static double
amount(const char *name, const char *options, const char *unit)
{
	struct program_result r =
		program_run("", "k3_bench", "op all %s --filter /%s", options, name);
	char *p = r.out, *c[COLUMNS];

	while (next_line(&p, c, COLUMNS))
		if (strcmp(c[CASE], name) == 0) {
			double a = 1e3 * strtod(c[RATE], NULL) * strtod(c[MEDIAN], NULL);
			cr_assert_str_eq(c[UNIT], unit);
			program_free(&r);
			return a;
		}
	program_free(&r);
	cr_assert_fail("no line of %s: %s", name, scratch_log());
	return NAN;
}

static void
expect_amount(const char *name, const char *options, const char *unit, double want)
{
	double got = amount(name, options, unit);

	cr_expect_float_eq(got, want, 1e-6 * want, "%s counts %.9g, expected %.9g", name, got,
			   want);
}

TEST(counts_are_those_of_the_formulas)
{
	/* tiny: d = 64, P = 2 x 32, f = 128; 33 rows */
	expect_amount("kda_proj_fwd", SMALL, "GFLOP/s", 2.0 * 33 * 64 * 64 * 3);
	expect_amount("dense_ffn_bwd_dw", SMALL, "GFLOP/s", 2.0 * 33 * 64 * 128 * 3);
	/* 130 rows are 3 chunks of 2 heads, each 64 x 64 x 32 five times and 64 x 32 x 32 three
	 * times forward, ten and six times backward */
	expect_amount("kda_chunk", SMALL, "GFLOP/s",
		      2.0 * 6 * 3 * (64 * 64 * 32 * 5 + 64 * 32 * 32 * 3));
	/* 33 x 34 / 2 pairs of 2 heads, key width 24, value width 16 */
	expect_amount("mla_attn", SMALL, "GFLOP/s", 2.0 * 561 * (8 * 24 + 6 * 16));
	/* every token goes to 2 experts, whatever the routes: r = 32, f = 24 */
	expect_amount("expert_ffn_skewed", SMALL, "GFLOP/s", 2.0 * 66 * 3 * 32 * 24);
	expect_amount("adamw_step", SMALL, "GB/s", 28.0 * 64 * 128);
}

TEST(counts_of_the_tower_are_those_of_the_formulas)
{
	/* small: d = dq = 48, f = 96, patches of 12 numbers, 24 of them; 6 merged of 4 x 48 */
	expect_amount("vit_patch_embed_fwd", SMALL_VISION, "GFLOP/s", 2.0 * 24 * 48 * 12);
	expect_amount("vit_qkv_bwd_dx", SMALL_VISION, "GFLOP/s", 2.0 * 24 * 48 * 144);
	expect_amount("vit_mlp_bwd_dw", SMALL_VISION, "GFLOP/s", 2.0 * 24 * 48 * 96 * 2);
	/* two products forward, five backward, all pairs of patches */
	expect_amount("vit_attn", SMALL_VISION, "GFLOP/s", 2.0 * 7 * 24 * 24 * 48);
	expect_amount("vit_project_fwd", SMALL_VISION, "GFLOP/s", 2.0 * 6 * 192 * (192 + 64));
}

/* Spoils the output of a case of the list; c: family, case, output. */
static void
expect_caught(char *const c[3], const char *options)
{
	struct program_result r =
		program_run("", "k3_bench", "op %s %s --filter /%s --plant-fault %s/%s", c[0],
			    options, c[1], c[1], c[2]);
	const char *log = scratch_log();
	char *q = r.out, *row[COLUMNS];
	bool found = false;

	cr_assert_eq(r.status, 1, "%s/%s spoilt: status %d", c[1], c[2], r.status);
	cr_assert(strstr(log, c[1]) && strstr(log, "is wrong"), "the message is %s", log);
	while (next_line(&q, row, COLUMNS))
		if (strcmp(row[CASE], c[1]) == 0) {
			cr_assert_str_eq(row[VERDICT], "wrong");
			cr_assert_str_eq(row[MEDIAN], "-", "a wrong case was timed");
			found = true;
		}
	cr_assert(found, "no line of %s", c[1]);
	program_free(&r);
}

static void
expect_all_compared(const char *family, const char *options, size_t least)
{
	struct program_result list =
		program_run("", "k3_bench", "op %s --list %s", family, options);
	char *p = list.out, *c[3];
	size_t n = 0;

	cr_assert_eq(list.status, 0);
	for (; next_line(&p, c, 3); n++)
		expect_caught(c, options);
	cr_assert_gt(n, least, "only %zu outputs", n);
	program_free(&list);
}

TEST(every_output_of_every_case_is_compared)
{
	expect_all_compared("all", SMALL, 80);
}

TEST(every_output_of_the_tower_is_compared)
{
	expect_all_compared("vit", SMALL_VISION, 38);
}

TEST(cases_of_the_tower_are_right_for_any_grid)
{
	static const int tokens[] = {1, 7, 50};

	for (size_t i = 0; i < 3; i++)
		cr_assert_eq(status_of_tokens("op vit --model small --repeat 1", tokens[i]), 0,
			     "%d tokens: %s", tokens[i], scratch_log());
}

TEST(a_check_alone_tells_errors_and_no_times)
{
	struct program_result r = program_run("", "k3_bench", "op kda --check " SMALL),
			      bad = program_run("", "k3_bench",
						"op kda --check --filter /kda_conv_fwd "
						"--plant-fault kda_conv_fwd/rstd " SMALL);
	char *p = r.out, *q = bad.out, *c[COLUMNS];
	size_t lines = 0;

	cr_assert_eq(r.status, 0, "%s", scratch_log());
	cr_assert_eq(bad.status, 1);
	for (next_line(&p, c, COLUMNS); next_line(&p, c, COLUMNS); lines++) {
		cr_assert_str_eq(c[VERDICT], "right");
		cr_assert_str_eq(c[MEDIAN], "-");
	}
	cr_assert_gt(lines, 10);
	cr_assert(next_line(&q, c, COLUMNS) && next_line(&q, c, COLUMNS));
	cr_assert_str_eq(c[VERDICT], "wrong");
	program_free(&r);
	program_free(&bad);
}

TEST(heads_and_payloads_may_be_others_than_the_models)
{
	/* 3 heads of 32 instead of 2: 3 products of 33 x 64 x 96 */
	expect_amount("kda_proj_fwd", SMALL " --heads 3", "GFLOP/s", 2.0 * 33 * 64 * 96 * 3);
	/* seven rows are read, the result and its statistics are written */
	expect_amount("mix_norm_fwd", SMALL " --payloads 6", "GB/s",
		      4.0 * 33 * (7 * 64 + 2 * (64 + 22)));
}

TEST(attention_of_eight_documents_counts_pairs_within_them)
{
	/* 33 rows in documents of 5: six whole ones of 15 pairs, three rows of 6 pairs */
	expect_amount("mla_attn_packed", SMALL, "GFLOP/s", 2.0 * 96 * (8 * 24 + 6 * 16));
}

TEST(wrong_usage_has_status_2_and_a_message)
{
	static const char *const args[] = {
		"",
		"oops",
		"op",
		"op kda mla",
		"op conv",
		"op kda --tokens 0",
		"op kda --repeat x",
		"op kda --model nothing",
		"op kda --speed 3",
		"op kda --filter nothing " SMALL,
		"op vit " SMALL,
		"op kda --device all " SMALL,
		"op kda --device tpu " SMALL,
		"op kda --dtype bf16 " SMALL, /* cores compute in fp32 */
		"op kda --heads 0 " SMALL,
		"op kda --filter kda_proj --plant-fault kda_proj_fwd/nothing " SMALL,
	};

	for (size_t i = 0; i < sizeof(args) / sizeof(args[0]); i++) {
		cr_assert_eq(status_of(args[i]), 2, "k3_bench %s", args[i]);
		cr_assert(strlen(scratch_log()) > 20, "k3_bench %s says nothing", args[i]);
	}
	cr_assert_eq(status_of("--help"), 0);
	cr_assert_eq(status_of("--version"), 0);
	cr_assert_eq(status_of("op --help"), 0);
}

TEST(the_machine_is_named)
{
	struct program_result r =
		program_run("", "k3_bench", "op optim " SMALL " --filter grad_norm");

	cr_assert_not_null(strstr(r.out, "\n# processor "));
	cr_assert_not_null(strstr(r.out, "1 thread"));
#ifdef K3_HAVE_OPENBLAS
	cr_assert_not_null(strstr(r.out, "\n# OpenBLAS core "));
#endif
	program_free(&r);
}

TEST(a_quantile_lies_between_the_neighbours)
{
	double x[] = {3, 1, 2}, y[] = {10, 0}, z[] = {7};

	cr_assert_float_eq(bench_quantile(x, 3, 0.5), 2, 0);
	cr_assert(x[0] == 1 && x[2] == 3, "the numbers are sorted");
	cr_assert_float_eq(bench_quantile(x, 3, 0.1), 1.2, 1e-12);
	cr_assert_float_eq(bench_quantile(y, 2, 0.9), 9, 1e-12);
	cr_assert_float_eq(bench_quantile(z, 1, 0.9), 7, 0);
}
