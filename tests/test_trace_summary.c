/* The summary of a trace: what adds up, what it warns of. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "scratch.h"
#include "trace_case.h"

#define TEST(name)                                                                                 \
	Test(trace_summary, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

TEST(the_summary_adds_up)
{
	struct k3_trace *t = trace_case(0, false);

	trace_case_two_steps(t);
	setenv("PATH", "", 1);
	cr_assert_eq(k3_trace_finish(t), K3_OK);
	k3_trace_destroy(t);
	char *s = trace_case_file("t/summary.txt");
	/* 13 tasks in the steps, not the initial values; workers x wall 80 ms, 42 ms in tasks */
	cr_assert(strstr(s, "trace: 13 tasks on 2 workers in 40.0 ms, steps 1 to 2\n"), "%s", s);
	cr_assert(strstr(s, "kernels 52.50 %, idle 47.50 %"), "%s", s);
	/* from 10.5 ms on cpu1 idles half of each ms while a task is ready: 4.5 ms of 80 */
	cr_assert(strstr(s, "(41.88 % no task was ready, 5.62 % while one was)"), "%s", s);
	/* lengths: ten of 1, then 2, 10, 20 */
	cr_assert(strstr(s, "mean 3.231, median 1.000, p5 1.000, p95 20.000, longest 20.000"), "%s",
		  s);
	cr_assert(!strstr(s, "below 1 ms"), "%s", s);
	cr_assert(strstr(s, "\nkda                10       10.000    12.50      1.000\n"), "%s", s);
	cr_assert(strstr(s, "\nmla                 2       30.000    37.50     15.000\n"), "%s", s);
	cr_assert(strstr(s, "\ncpu0               11       30.000       10.000    25.00\n"), "%s",
		  s);
	cr_assert(strstr(s, "\ncpu1                2       12.000       28.000    70.00\n"), "%s",
		  s);
	cr_assert(strstr(s, "\n1                  10       20.000      30.00\n"), "%s", s);
	cr_assert(strstr(s, "\n2                   3       20.000      75.00\n"), "%s", s);
	const char *log = scratch_log();
	cr_assert(strstr(log, "info: trace: 13 tasks on 2 workers"), "not for people: %s", log);
	free(s);
}

TEST(the_summary_warns_of_tasks_below_a_millisecond)
{
	struct k3_trace *t = trace_case(0, false);

	for (int i = 0; i < 10; i++)
		trace_case_ran(t, K3_OP_KDA_PROJ_FWD, K3_PASS_FORWARD, 0, 0, 1000 * i, 1000 * i,
			       1000 * i + 900);
	setenv("PATH", "", 1);
	cr_assert_eq(k3_trace_finish(t), K3_OK);
	k3_trace_destroy(t);
	const char *log = scratch_log();
	cr_assert(strstr(log, "the mean task is below 1 ms"), "%s", log);
	/* without steps everything counts */
	cr_assert(strstr(log, "kernels 45.") && strstr(log, "10 tasks on 2 workers in 9.9 ms\n"),
		  "%s", log);
}

/* A stream with polling from 10 ms to 10.02 and a launch that comes at 10.05 for what was ready at
 * 10.03; what is ready while the stream is busy waits for the stream. */
static void
fill_stream(struct k3_trace *t)
{
	trace_case_released(t, 0, 0, 0, 1000, 1000);
	trace_case_released(t, 1, 0, 0, 10000, 10020);
	trace_case_released(t, 1, 10030, 10050, 20000, 20000);
	trace_case_released(t, 1, 15000, 20000, 30000, 30010);
}

TEST(the_summary_counts_the_streams_of_devices_apart)
{
	struct k3_trace *t = trace_case_device(scratch_path("t"));

	fill_stream(t);
	setenv("PATH", "", 1);
	cr_assert_eq(k3_trace_finish(t), K3_OK);
	k3_trace_destroy(t);
	char *s = trace_case_file("t/summary.txt");
	cr_assert(strstr(s, "trace: 4 tasks on 2 workers in 30.0 ms\n"), "%s", s);
	cr_assert(strstr(s, "gpu streams x wall: kernels 99.83 %, idle 0.17 % (0.03 % no task was "
			    "ready, 0.13 % while one was)\n"),
		  "%s", s);
	cr_assert(strstr(s, "ready and idle 13.3 us a task\n"), "%s", s);
	cr_assert(strstr(s, "cpu workers x wall: kernels 3.33 %, idle 96.67 %"), "%s", s);
	cr_assert(strstr(s, "   on gpu\nembed               3       29.950    99.83"), "%s", s);
	cr_assert(strstr(s, "   on cpu\nembed               1        1.000     3.33"), "%s", s);
	cr_assert(!strstr(s, "below 1 ms"), "%s", s);
	free(s);
}

TEST(shares_can_be_read_without_files)
{
	struct k3_trace *t = trace_case_device(NULL);
	struct k3_trace_share share;

	fill_stream(t);
	cr_assert_eq(k3_trace_share(t, true, &share), K3_OK);
	cr_expect_eq(share.workers, 1);
	cr_expect_eq(share.tasks, 3);
	cr_expect_float_eq(share.wall_s, 0.03, 1e-8);
	cr_expect_float_eq(share.kernels, 29.95 / 30, 1e-6);
	cr_expect_float_eq(share.runtime, 0.04 / 30, 1e-6);
	cr_assert_eq(k3_trace_share(t, false, &share), K3_OK);
	cr_expect_float_eq(share.kernels, 1.0 / 30, 1e-6);
	cr_expect_eq(k3_trace_finish(t), K3_OK);
	k3_trace_destroy(t);
}

TEST(a_held_out_loss_between_steps_counts_for_none)
{
	struct k3_trace *t = trace_case(0, false);

	k3_trace_step(t, 1, 0);
	trace_case_ran(t, K3_OP_KDA_PROJ_FWD, K3_PASS_FORWARD, 0, 0, 0, 0, 4000);
	k3_trace_step(t, -1, -1);
	trace_case_ran(t, K3_OP_KDA_PROJ_FWD, K3_PASS_FORWARD, 0, 1, 5000, 5000, 9000);
	k3_trace_step(t, 2, 0);
	trace_case_ran(t, K3_OP_KDA_PROJ_FWD, K3_PASS_FORWARD, 0, 0, 10000, 10000, 15000);
	setenv("PATH", "", 1);
	cr_assert_eq(k3_trace_finish(t), K3_OK);
	k3_trace_destroy(t);
	char *s = trace_case_file("t/summary.txt");
	cr_assert(strstr(s, "trace: 2 tasks on 2 workers in 9.0 ms, steps 1 to 2\n"), "%s", s);
	cr_assert(strstr(s, "\n1                   1        4.000      50.00\n"), "%s", s);
	free(s);
}
