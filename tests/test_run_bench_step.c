/* k3_bench step as a program: its table, its checks, and what it does when a row can't be had. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"
#include "scratch.h"

#define TEST(name)                                                                                 \
	Test(run_bench_step, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

/* The kernels' time is told twice, over moments that other programs may pull apart. */
static bool
times_agree(const char *row)
{
	double tasks_ms = program_number(row, "tasks") * program_number(row, "mean_task_ms"),
	       share_ms = program_number(row, "kernel_share") * 2 * program_number(row, "median_ms");

	return fabs(tasks_ms - share_ms) <= 0.05 * share_ms + 0.1;
}

static struct program_result
small_row(void)
{
	struct program_result r = program_run(
		"STARPU_NCPU=2", "k3_bench",
		"step --model tiny --tokens 192 --tile-tokens 64 --accumulate 2 --steps 2 "
		"--rounds 1");

	cr_assert_eq(r.status, 0, "%s", scratch_log());
	return r;
}

TEST(figures_of_a_row_fit_together)
{
	struct program_result r = small_row();

	for (int again = 0; again < 4 && !times_agree(r.out); again++) {
		program_free(&r);
		r = small_row();
	}
	cr_expect(times_agree(r.out), "not in five rows: %s", r.out);
	double ms = program_number(r.out, "median_ms"), gflop = program_number(r.out, "model_gflop"),
	       rate = program_number(r.out, "gflop_per_s"), share = program_number(r.out, "kernel_share");
	cr_expect_float_eq(rate, gflop / ms * 1e3, 1e-6 * rate);
	cr_expect_float_eq(program_number(r.out, "ratio"), rate / program_number(r.out, "sgemm_gflop_per_s"),
			   1e-3 * rate);
	cr_expect_float_eq(program_number(r.out, "tokens_per_s"), 2 * 192 / ms * 1e3, 1e-3);
	cr_expect(share > 0 && share <= 1, "%g", share);
	cr_expect_eq(program_number(r.out, "workers"), 2);
	/* the plan's tasks also do what is elementwise */
	cr_expect_gt(program_number(r.out, "plan_gflop"), gflop);
	cr_expect_float_eq(program_number(r.out, "first_loss_nats"), program_number(r.out, "expected_loss_nats"),
			   0.2);
	program_free(&r);
}

/* By hand for preset small: 24 and 16 patches, 6 and 4 merged tokens. */
TEST(images_add_the_towers_products_and_keep_the_bits)
{
	static const char step[] =
		"step --model small --tokens 64 --steps 1 --rounds 1 --fingerprint";
	struct program_result with =
		program_run("STARPU_NCPU=2", "k3_bench", "%s --images 1x4x6,1x4x4", step);
	cr_assert_eq(with.status, 0, "%s", scratch_log());
	struct program_result none =
		program_run("STARPU_NCPU=1", "k3_bench", "%s --images none", step);
	cr_assert_eq(none.status, 0, "%s", scratch_log());
	const double n[] = {24, 16}, m[] = {6, 4};
	double want = 0;
	for (int i = 0; i < 2; i++)
		want += 4 * n[i] * 48 * 12 + 6 * n[i] * (4 * 48 * 48 + 2 * 48 * 96) +
			12 * n[i] * n[i] * 48 + 6 * m[i] * 192 * (192 + 64);
	cr_expect_float_eq(program_number(with.out, "model_gflop") - program_number(none.out, "model_gflop"),
			   1e-9 * want, 1e-9);
	/* the same with another number of workers */
	struct program_result again =
		program_run("STARPU_NCPU=1", "k3_bench", "%s --images 1x4x6,1x4x4", step);
	char *one = program_column(with.out, "fingerprint"),
	     *two = program_column(again.out, "fingerprint"),
	     *text = program_column(none.out, "fingerprint");
	cr_expect_str_eq(one, two);
	cr_expect_str_neq(one, text);
	free(one);
	free(two);
	free(text);
	program_free(&with);
	program_free(&none);
	program_free(&again);
}

TEST(the_tower_alone_is_timed_beside_the_machine)
{
	struct program_result r =
		program_run("STARPU_NCPU=2", "k3_bench",
			    "vision --model small --images 1x8x8,1x4x4 --rounds 1");

	cr_assert_eq(r.status, 0, "%s", scratch_log());
	double ms = program_number(r.out, "median_ms"), gflop = program_number(r.out, "gflop"),
	       sgemm = program_number(r.out, "sgemm512_gflop_per_s");
	cr_expect_eq(program_number(r.out, "patches"), 80);
	cr_expect_float_eq(program_number(r.out, "ratio"), gflop / ms * 1e3 / sgemm / 2,
			   1e-4 * program_number(r.out, "ratio"));
	cr_expect_gt(program_number(r.out, "task_ratio"), program_number(r.out, "ratio"));
	cr_expect_gt(program_number(r.out, "kernel_ratio"), 0);
	/* both ratios have the same products: their quotient is the time that kernels ran */
	cr_expect_float_eq(program_number(r.out, "idle_share"),
			   1 - program_number(r.out, "ratio") / program_number(r.out, "task_ratio"), 0.03);
	/* attention's scores are computed again */
	cr_expect_gt(program_number(r.out, "plan_gflop"), gflop);
	program_free(&r);
}

TEST(images_that_the_tower_cannot_take_are_refused)
{
	static const char *const wrong[] = {"--images none", "--images 1x3x4", "--model tiny", "x"};
	for (size_t i = 0; i < 4; i++) {
		struct program_result r = program_run("", "k3_bench", "vision %s", wrong[i]);
		cr_expect_eq(r.status, 2, "%s: %d, %s", wrong[i], r.status, scratch_log());
		program_free(&r);
	}
}

TEST(workers_are_compared_beside_the_machine)
{
	struct program_result r = program_run(
		"", "k3_bench",
		"step --model tiny --tokens 64 --steps 1 --rounds 1 --warmup 0 --compare-workers");

	cr_assert_eq(r.status, 0, "%s", scratch_log());
	char *workers = program_all(r.out, "workers"), *ms = program_all(r.out, "median_ms"),
	     *speedup = program_all(r.out, "speedup"),
	     *machine = program_all(r.out, "machine_speedup");
	double two, one;
	cr_expect_str_eq(workers, "2 1");
	cr_assert_eq(sscanf(ms, "%lf %lf", &two, &one), 2);
	cr_expect_float_eq(atof(speedup), one / two, 1e-4);
	cr_expect_gt(atof(machine), 0.3);
	free(workers);
	free(ms);
	free(speedup);
	free(machine);
	program_free(&r);
}

TEST(a_row_that_takes_too_long_is_given_up_with_the_reason)
{
	struct program_result r =
		program_run("", "k3_bench", "step --model debug17 --tokens 4096 --limit 1");

	cr_assert_eq(r.status, 1);
	char *status = program_all(r.out, "status");
	cr_assert_str_eq(status, "not done after 1 s");
	free(status);
	program_free(&r);
}

TEST(a_process_that_refuses_its_case_is_a_row_with_its_last_words)
{
	struct program_result r = program_run(
		"", "k3_bench", "step --model tiny --tokens 64 --check --trace %s", "/dev/null/x");

	cr_assert_eq(r.status, 2);
	char *status = program_all(r.out, "status"), *ms = program_column(r.out, "median_ms");
	cr_assert(strstr(status, "/dev/null/x"), "%s", status);
	cr_assert_str_eq(ms, "-");
	free(status);
	free(ms);
	program_free(&r);
}

TEST(wrong_usage_is_refused_before_anything_runs)
{
	static const struct {
		const char *args, *message;
	} wrong[] = {
		{"", "--model is missing"},
		{"--model tiny --scheduler fastest", "--scheduler \"fastest\": must be up to"},
		{"--model tiny --documents 64,x", "--documents 64,x"},
		{"--model tiny --documents 1", "lengths from 2"},
		{"--model tiny --trace x --compare-workers", "one scheduler"},
		{"--model tiny --rounds 0", "--rounds 0"},
		{"--model tiny more", "takes options only"},
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct program_result r = program_run("", "k3_bench", "step %s", wrong[i].args);
		const char *log = scratch_log();
		cr_expect_eq(r.status, 2, "%s: %d", wrong[i].args, r.status);
		cr_expect(strstr(log, wrong[i].message), "%s: %s", wrong[i].args, log);
		cr_expect_str_eq(r.out, "");
		program_free(&r);
	}
}
