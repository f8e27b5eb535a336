/* k3_bench step as a program: its table, its checks, and what it does when a row can't be had. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"
#include "scratch.h"

#define TEST(name)                                                                                 \
	Test(run_bench_step, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

static double
number(const char *table, const char *column)
{
	char *text = program_column(table, column);

	cr_assert_not_null(text, "no column %s in\n%s", column, table);
	double x = strtod(text, NULL);
	free(text);
	return x;
}

TEST(figures_of_a_row_fit_together)
{
	struct program_result r = program_run(
		"STARPU_NCPU=2", "k3_bench",
		"step --model tiny --tokens 192 --tile-tokens 64 --accumulate 2 --steps 2 "
		"--rounds 1");

	cr_assert_eq(r.status, 0, "%s", scratch_log());
	double ms = number(r.out, "median_ms"), gflop = number(r.out, "model_gflop"),
	       rate = number(r.out, "gflop_per_s"), tasks = number(r.out, "tasks"),
	       mean_ms = number(r.out, "mean_task_ms"), share = number(r.out, "kernel_share");
	cr_expect_float_eq(rate, gflop / ms * 1e3, 1e-6 * rate);
	cr_expect_float_eq(number(r.out, "ratio"), rate / number(r.out, "sgemm_gflop_per_s"),
			   1e-3 * rate);
	cr_expect_float_eq(number(r.out, "tokens_per_s"), 2 * 192 / ms * 1e3, 1e-3);
	/* the kernels' time, told twice */
	cr_expect(share > 0 && share <= 1, "%g", share);
	cr_expect_float_eq(tasks * mean_ms, share * 2 * ms, 0.05 * share * 2 * ms + 0.1);
	cr_expect_eq(number(r.out, "workers"), 2);
	/* the plan's tasks also do what is elementwise */
	cr_expect_gt(number(r.out, "plan_gflop"), gflop);
	cr_expect_float_eq(number(r.out, "first_loss_nats"), number(r.out, "expected_loss_nats"),
			   0.2);
	program_free(&r);
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

TEST(a_process_that_ends_early_is_a_row_with_its_last_words)
{
	struct program_result r = program_run(
		"", "k3_bench", "step --model tiny --tokens 64 --check --trace %s", "/dev/null/x");

	cr_assert_eq(r.status, 1);
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
		{"--model tiny --scheduler fastest", "no such scheduler"},
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
