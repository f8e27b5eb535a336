/* Recording, files, summary and pictures of a trace, with times set by the test. */
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../common/rng.h"
#include "../common/status.h"
#include "../common/colors.h"
#include "paje.h"
#include "plan_case.h"
#include "program.h"
#include "scratch.h"
#include "trace_case.h"

#define TEST(name) Test(trace, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

/* Writes, reads k3.paje, destroys. */
static void
written(struct k3_trace *trace, struct paje *paje)
{
	cr_assert_eq(k3_trace_write(trace), K3_OK, "%s", scratch_log());
	k3_trace_destroy(trace);
	paje_read(paje, "t/k3.paje");
}

TEST(every_task_is_a_state_of_its_worker_including_the_last)
{
	struct k3_trace *t = trace_case(0, false);
	struct paje p;

	trace_case_ran(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, -1, 0, 0, 1, 5);
	trace_case_ran(t, K3_OP_KDA_PROJ_FWD, K3_PASS_FORWARD, 0, 1, 5, 6.5, 9);
	trace_case_ran(t, K3_OP_KDA_GATE_FWD, K3_PASS_FORWARD, 0, 0, 5, 5, 7.25);
	trace_case_ran(t, K3_OP_KDA_OUT_FWD, K3_PASS_FORWARD, 0, 0, 9, 9.5, 9.5);
	trace_case_ran(t, K3_OP_LOSS_SUM, K3_PASS_FORWARD, -1, 1, 9.5, 10, 12);
	written(t, &p);
	cr_assert_eq(paje_count(&p, "cpu0"), 3);
	cr_assert_eq(paje_count(&p, "cpu1"), 2);
	trace_case_expect(&p, "cpu0", 0, "embed_fwd", 0.001, 0.005);
	trace_case_expect(&p, "cpu0", 1, "kda_gate_fwd l0", 0.005, 0.00725);
	trace_case_expect(&p, "cpu0", 2, "kda_out_fwd l0", 0.0095, 0.0095);
	trace_case_expect(&p, "cpu1", 0, "kda_proj_fwd l0", 0.0065, 0.009);
	trace_case_expect(&p, "cpu1", 1, "loss_sum", 0.01, 0.012);
	cr_assert_float_eq(p.end, 0.012, 1e-12);
	paje_free(&p);
}

TEST(what_lies_between_the_tasks_of_a_worker_is_idle)
{
	struct k3_trace *t = trace_case(0, false);
	struct paje p;
	double idle = 0;

	trace_case_ran(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, -1, 0, 0, 1000, 2000);
	trace_case_ran(t, K3_OP_EMBED_BWD, K3_PASS_BACKWARD, -1, 0, 0, 5000, 9000);
	trace_case_ran(t, K3_OP_LOSS_SUM, K3_PASS_FORWARD, -1, 1, 0, 9000, 10000);
	written(t, &p);
	for (size_t i = 0; i < p.n_states; i++)
		if (strcmp(p.state[i].container, "cpu0") == 0 &&
		    strcmp(p.state[i].value, "idle") == 0)
			idle += p.state[i].end - p.state[i].begin;
	cr_assert_float_eq(idle, 1 + 3 + 1, 1e-9, "idle %.9g ms of 5", idle);
	paje_free(&p);
}

TEST(names_tell_operation_step_microbatch_layer_tile_and_group)
{
	struct k3_trace *t = trace_case(0, false);
	struct k3_trace_record *r;
	struct paje p;
	char color[32];
	unsigned rgb = k3_family_color[K3_FAMILY_KDA];

	k3_trace_step(t, 3, 1);
	r = trace_case_submit(t, K3_OP_KDA_CHUNK_FWD, K3_PASS_FORWARD, 2, 0, 11);
	k3_trace_end(r, 1, 0, 1000, 2000, 2000);
	k3_trace_step(t, 4, -1);
	r = trace_case_submit(t, K3_OP_CLIP_FACTOR, K3_PASS_OPTIMIZER, -1, -1, -1);
	k3_trace_end(r, 1, 2000, 3000, 4000, 4000);
	written(t, &p);
	trace_case_expect(&p, "cpu1", 0, "kda_chunk_fwd s3 m1 l2 t0 g11", 0.001, 0.002);
	trace_case_expect(&p, "cpu1", 1, "clip_factor s4", 0.003, 0.004);
	trace_case_expect(&p, "steps", 1, "step 3", 0.001, 0.003);
	trace_case_expect(&p, "steps", 2, "step 4", 0.003, 0.004);
	snprintf(color, sizeof(color), "%.3f %.3f %.3f", floor((rgb >> 16) * 1e3 / 255) * 1e-3,
		 floor((rgb >> 8 & 255) * 1e3 / 255) * 1e-3, floor((rgb & 255) * 1e3 / 255) * 1e-3);
	cr_assert_str_eq(paje_nth(&p, "cpu1", 0)->color, color);
	paje_free(&p);
	char *tsv = trace_case_file("t/tasks.tsv");
	cr_assert(strstr(tsv, "\nkda_chunk_fwd s3 m1 l2 t0 g11\tkda_chunk_fwd\tkda\tforward\t3\t1\t"
			      "2\t0\t11\t3\t1000\tdone\tcpu1\t0.000\t1.000\t2.000\n"),
		  "%s", tsv);
	free(tsv);
}

TEST(names_in_a_plan_hold_no_blank_since_starpus_traces_do_not_quote_them)
{
	struct k3_plan_options o;
	struct k3_model *model;
	struct k3_plan *plan;
	size_t cut = 0;

	k3_plan_options_init(&o);
	o.tile_tokens = 64;
	model = case_model("cp=1", 0, &o);
	plan = case_plan(model, "100", true);
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const char *name = plan->task[i].name;
		cr_assert_eq(strcspn(name, " \t\""), strlen(name), "%s", name);
		cut += strchr(name, '.') != NULL;
	}
	cr_assert(cut > 100, "%zu names tell a layer, a tile or a group", cut);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

TEST(no_family_is_red)
{
	for (int i = 0; i < K3_N_FAMILIES; i++) {
		unsigned rgb = k3_family_color[i];
		unsigned r = rgb >> 16, g = rgb >> 8 & 255, b = rgb & 255;
		cr_assert(rgb != 0 && !(r > 180 && g < 90 && b < 90), "%s is #%06x",
			  k3_family_name((enum k3_family)i), rgb);
	}
}

TEST(tasks_that_end_in_any_order_are_written_in_order_of_time)
{
	struct k3_trace *t = trace_case(0, false);
	size_t order[2000];
	struct paje p;

	for (size_t i = 0; i < 2000; i++) {
		size_t j = (size_t)(k3_rng_uniform(5, i) * (double)(i + 1));
		order[i] = order[j];
		order[j] = i;
	}
	for (size_t i = 0; i < 2000; i++) {
		double at = (double)(order[i] / 2) * 10;
		trace_case_ran(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, (int)(order[i] / 2),
			       (int)(order[i] % 2), at, at + 1, at + 10);
	}
	written(t, &p);
	cr_assert_eq(paje_count(&p, "cpu0"), 1000);
	for (size_t i = 0; i < 1000; i++) {
		char name[32];
		snprintf(name, sizeof(name), "embed_fwd l%zu", i);
		trace_case_expect(&p, "cpu1", i, name, 0.01 * (double)i + 0.001,
				  0.01 * (double)i + 0.01);
	}
	paje_free(&p);
}

TEST(tasks_that_overlap_on_one_worker_end_the_earlier_state)
{
	struct k3_trace *t = trace_case(0, false);
	struct paje p;

	trace_case_ran(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, 1, 0, 0, 1000, 5000);
	trace_case_ran(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, 2, 0, 0, 3000, 4000);
	trace_case_ran(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, 3, 0, 0, 6000, 7000);
	written(t, &p);
	trace_case_expect(&p, "cpu0", 0, "embed_fwd l1", 1, 3);
	trace_case_expect(&p, "cpu0", 1, "embed_fwd l2", 3, 4);
	trace_case_expect(&p, "cpu0", 2, "embed_fwd l3", 6, 7);
	paje_free(&p);
}

TEST(a_trace_without_tasks_can_be_read)
{
	struct k3_trace *t = trace_case(0, false);
	struct paje p;

	trace_case_now(0);
	cr_assert_eq(k3_trace_finish(t), K3_OK, "%s", scratch_log());
	written(t, &p);
	cr_assert_eq(paje_count(&p, "cpu0"), 0);
	paje_free(&p);
}

TEST(a_task_that_still_runs_is_open_to_the_end)
{
	struct k3_trace *t = trace_case(0, false);
	struct paje p;

	trace_case_ran(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, 0, 0, 0, 1000, 2000);
	k3_trace_start(trace_case_submit(t, K3_OP_MLA_ATTN_FWD, K3_PASS_FORWARD, 1, 0, 1), 0,
		       3000000);
	trace_case_ran(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, 2, 1, 0, 3500, 4000);
	trace_case_submit(t, K3_OP_MLA_OUT_FWD, K3_PASS_FORWARD, 1, 0, -1);
	trace_case_now(60000);
	written(t, &p);
	trace_case_expect(&p, "cpu0", 1, "mla_attn_fwd l1 t0 g1", 3, 60);
	cr_assert_eq(p.end, 60);
	const char *log = scratch_log();
	cr_assert(strstr(log, "1 tasks have no end and 1 did not start"), "%s", log);
	char *tsv = trace_case_file("t/tasks.tsv");
	cr_assert(strstr(tsv, "\trunning\tcpu0\tnan\t3000.000\tnan\n"), "%s", tsv);
	cr_assert(strstr(tsv, "\nmla_out_fwd l1 t0\t") && strstr(tsv, "\twaiting\tnone\tnan\t"),
		  "%s", tsv);
	free(tsv);
	paje_free(&p);
}

TEST(what_ends_after_the_snapshot_began_is_cut_there)
{
	struct k3_trace *t = trace_case(0, false);
	struct paje p;

	trace_case_ran(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, 1, 0, 0, 1000, 5000);
	trace_case_ran(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, 2, 1, 0, 4500, 5000);
	trace_case_now(4000);
	written(t, &p);
	cr_assert_eq(paje_count(&p, "cpu1"), 0);
	trace_case_expect(&p, "cpu0", 0, "embed_fwd l1", 1, 4);
	paje_free(&p);
}

TEST(a_full_ring_keeps_the_newest_and_says_how_many_made_room)
{
	struct k3_trace *t = trace_case(8, false);
	struct paje p;

	for (int i = 0; i < 21; i++)
		trace_case_ran(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, i, 0, 0, 10 * i, 10 * i + 5);
	written(t, &p);
	cr_assert_eq(paje_count(&p, "cpu0"), 8);
	cr_assert_str_eq(paje_nth(&p, "cpu0", 0)->value, "embed_fwd l13");
	cr_assert_str_eq(paje_nth(&p, "cpu0", 7)->value, "embed_fwd l20");
	const char *log = scratch_log();
	cr_assert(strstr(log, "warning: trace: 8 tasks of 21 are in it; 13 older ones made room "
			      "and 0 found none (--trace-tasks 8)"),
		  "%s", log);
	paje_free(&p);
}

TEST(a_task_that_finds_the_ring_full_of_unfinished_ones_is_counted_as_lost)
{
	struct k3_trace *t = trace_case(4, false);
	struct k3_trace_record *r[4];
	struct paje p;

	for (int i = 0; i < 4; i++)
		r[i] = trace_case_submit(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, i, 0, 0);
	cr_assert_null(trace_case_submit(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, 4, 0, 0));
	cr_assert_null(trace_case_submit(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, 5, 0, 0));
	for (int i = 0; i < 4; i++)
		k3_trace_end(r[i], 0, 0, 1000 * i, 1000 * i + 500, 1000 * i + 500);
	trace_case_ran(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, 6, 1, 0, 50, 60);
	written(t, &p);
	cr_assert_eq(paje_count(&p, "cpu0"), 3);
	cr_assert_eq(paje_count(&p, "cpu1"), 1);
	const char *log = scratch_log();
	cr_assert(strstr(log, "4 tasks of 7 are in it; 1 older ones made room and 2 found none"),
		  "%s", log);
	paje_free(&p);
}

TEST(a_submission_that_failed_leaves_no_task)
{
	struct k3_trace *t = trace_case(0, false);
	struct paje p;

	trace_case_ran(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, 1, 0, 0, 1000, 5000);
	k3_trace_cancel(t, trace_case_submit(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, 2, 0, 0));
	trace_case_ran(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, 3, 0, 0, 6000, 7000);
	written(t, &p);
	cr_assert_eq(paje_count(&p, "cpu0"), 2);
	cr_assert_str_empty(scratch_log());
	paje_free(&p);
}

/* The number behind a word of a text. */
static double
number_after(const char *text, const char *word)
{
	const char *p = strstr(text, word);

	cr_assert_not_null(p, "no \"%s\" in:\n%s", word, text);
	return strtod(p + strlen(word), NULL);
}

/* Lines of a large file, and those of k3.paje that begin a task's state; times may not go back. */
static void
stream(const char *name, size_t *lines, size_t *states)
{
	FILE *f = fopen(scratch_path(name), "r");
	char line[512];
	double time, last = 0;

	cr_assert_not_null(f);
	*lines = *states = 0;
	while (fgets(line, sizeof(line), f)) {
		cr_assert(strchr(line, '\n'), "a cut line: %s", line);
		++*lines;
		if (sscanf(line, "5 %lf Task", &time) != 1)
			continue;
		cr_assert_geq(time, last);
		last = time;
		*states += strstr(line, " Task ") && !strstr(line, " idle\n");
	}
	fclose(f);
}

/* files of 220 MB: on a machine that is busy, or with a sanitizer, a minute is not enough */
Test(trace, a_million_tasks_are_all_in_the_files_and_their_bytes_are_told, .init = scratch_start,
     .fini = scratch_stop, .timeout = 240)
{
	enum { N = 1000000 };
	struct k3_trace *t = trace_case(0, false);
	size_t lines, states;

	for (int i = 0; i < N; i++) {
		if (i % 1000 == 0)
			k3_trace_step(t, i / 1000, 0);
		trace_case_ran(t, K3_OP_KDA_CHUNK_FWD, K3_PASS_FORWARD, i % 97, i & 1, i, i + 0.25,
			       i + 1.75);
	}
	/* the summary without the pictures, which this test is not about */
	setenv("PATH", "", 1);
	cr_assert_eq(k3_trace_finish(t), K3_OK, "%s", scratch_log());
	k3_trace_destroy(t);
	cr_assert_not(strstr(scratch_log(), "warning: trace:"));
	stream("t/tasks.tsv", &lines, &states);
	cr_assert_eq(lines, N + 1, "%zu lines", lines);
	stream("t/k3.paje", &lines, &states);
	cr_assert_eq(states, N, "%zu states", states);
	char *summary = trace_case_file("t/summary.txt");
	struct stat paje, tsv;
	cr_assert(stat(scratch_path("t/k3.paje"), &paje) == 0 &&
		  stat(scratch_path("t/tasks.tsv"), &tsv) == 0);
	cr_assert_eq(number_after(summary, "k3.paje "), (double)paje.st_size);
	cr_assert_eq(number_after(summary, "tasks.tsv "), (double)tsv.st_size);
	double each = number_after(summary, " bytes: ");
	cr_assert_float_eq(each, (double)(paje.st_size + tsv.st_size) / N, 0.5);
	cr_assert(each < 300, "%g bytes a task", each);
	cr_assert(strstr(summary, "1000000 tasks submitted, 1000000 in the files"));
	free(summary);
}

/* Two steps on two workers, 20 ms each: 10 tasks in the first, 2 in the second. */
static void
two_steps(struct k3_trace *t)
{
	k3_trace_step(t, -1, -1);
	trace_case_ran(t, K3_OP_PARAM_INIT, K3_PASS_SETUP, -1, 0, 0, 1000, 9000);
	k3_trace_step(t, 1, 0);
	/* cpu0: 1 ms each, back to back; ready 0.5 ms before they start while cpu1 is idle */
	for (int i = 0; i < 10; i++)
		trace_case_ran(t, K3_OP_KDA_PROJ_FWD, K3_PASS_FORWARD, 0, 0, 10000 + 1000 * i - 500,
			       10000 + 1000 * i, 11000 + 1000 * i);
	/* the load of the next step begins nothing */
	k3_trace_step(t, 2, 0);
	trace_case_ran(t, K3_OP_BATCH_LOAD, K3_PASS_FORWARD, -1, 1, 20000, 20000, 22000);
	trace_case_ran(t, K3_OP_MLA_ATTN_FWD, K3_PASS_FORWARD, 1, 0, 30000, 30000, 50000);
	trace_case_ran(t, K3_OP_MLA_ATTN_BWD, K3_PASS_BACKWARD, 1, 1, 40000, 40000, 50000);
}

TEST(the_summary_adds_up)
{
	struct k3_trace *t = trace_case(0, false);

	two_steps(t);
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

TEST(the_clock_of_one_worker_can_be_corrected)
{
	struct k3_trace *t = trace_case_device(scratch_path("t"));
	struct paje p;

	trace_case_ran(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, 0, 0, 0, 1000, 5000);
	trace_case_ran(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, 0, 1, 0, 1000, 5000);
	k3_trace_rescale(t, 1, 1000000, 0.5);
	written(t, &p);
	trace_case_expect(&p, "cpu0", 0, "embed_fwd l0", 1, 5);
	trace_case_expect(&p, "gpu1", 0, "embed_fwd l0", 1, 3);
	paje_free(&p);
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

/* Elements of an SVG that are opened are closed, and their number. */
static size_t
elements(const char *svg, const char *name)
{
	char open[16], close[16];

	snprintf(open, sizeof(open), "<%s", name);
	snprintf(close, sizeof(close), "</%s>", name);
	cr_assert(strncmp(svg, "<svg ", 5) == 0 && strstr(svg, "</svg>\n"));
	cr_assert_eq(trace_case_count(svg, "<text"), trace_case_count(svg, "</text>"));
	return trace_case_count(svg, open);
}

TEST(the_picture_shows_the_last_complete_step_with_every_task)
{
	struct k3_trace *t = trace_case(0, false);
	char color[16];

	two_steps(t);
	k3_trace_step(t, 3, 0);
	k3_trace_start(trace_case_submit(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, -1, 0, 0), 0,
		       51000000);
	trace_case_now(60000);
	setenv("PATH", "", 1);
	cr_assert_eq(k3_trace_finish(t), K3_OK);
	k3_trace_destroy(t);
	char *svg = trace_case_file("t/trace.svg"), *layer = trace_case_file("t/trace-layer.svg");
	cr_assert(strstr(svg, ">step 2: 21.0 ms, 3 tasks, kernels 71.4 % of 2 workers x wall<"),
		  "%s", svg);
	snprintf(color, sizeof(color), "#%06x", k3_family_color[K3_FAMILY_MLA]);
	cr_assert_eq(trace_case_count(svg, color), 2 + 1, "two boxes and the legend:\n%s", svg);
	cr_assert(strstr(svg, ">mla 71.4 %<") && strstr(svg, ">idle 28.6 %<"), "%s", svg);
	cr_assert(strstr(svg, ">forward<") && strstr(svg, ">cpu1<"), "%s", svg);
	cr_assert(elements(svg, "rect") > 5);
	/* of layers 0 and 1 only the second is in step 2 */
	cr_assert(strstr(layer, ">layer 1 forward: 20.00 ms<"), "%s", layer);
	cr_assert(strstr(layer, ">layer 1 backward: 10.00 ms<"), "%s", layer);
	free(svg);
	free(layer);
	char *log = trace_case_file(".log");
	cr_assert(strstr(log, "no picture by rsvg-convert: No such file"), "%s", log);
	cr_assert(strstr(log, "no picture by vite: No such file"), "%s", log);
	free(log);
}

/* The first n texts of a picture after its title. */
static void
assert_strips(const char *svg, const char *const *labels, size_t n)
{
	const char *p = strstr(svg, "wall<");

	for (size_t i = 0; i < n; i++) {
		char want[32];
		const char *text = strstr(p, "<text");
		snprintf(want, sizeof(want), ">%s</text>", labels[i]);
		p = strstr(text, "</text>") + 7;
		cr_assert_eq(strncmp(p - strlen(want), want, strlen(want)), 0,
			     "label %zu is not %s: %.*s", i, labels[i], (int)(p - text), text);
	}
}

TEST(the_picture_tells_passes_and_layers_in_order)
{
	static const struct {
		enum k3_op op;
		enum k3_pass pass;
		int layer;
	} walk[] = {
		{K3_OP_EMBED_FWD, K3_PASS_FORWARD, -1},
		{K3_OP_KDA_PROJ_FWD, K3_PASS_FORWARD, 0},
		{K3_OP_MLA_PROJ_FWD, K3_PASS_FORWARD, 1},
		{K3_OP_MIX_NORM_FWD, K3_PASS_FORWARD, -1},
		{K3_OP_LM_HEAD_CE, K3_PASS_FORWARD, -1},
		{K3_OP_LM_HEAD_DX, K3_PASS_BACKWARD, -1},
		{K3_OP_MIX_NORM_BWD, K3_PASS_BACKWARD, -1},
		{K3_OP_MLA_PROJ_FWD, K3_PASS_RECOMPUTE, 1},
		{K3_OP_MLA_PROJ_BWD_DX, K3_PASS_BACKWARD, 1},
		{K3_OP_GRAD_NORM, K3_PASS_OPTIMIZER, -1},
		{K3_OP_KDA_PROJ_BWD_DX, K3_PASS_BACKWARD, 0},
		{K3_OP_EMBED_BWD, K3_PASS_BACKWARD, -1},
		{K3_OP_ADAMW_STEP, K3_PASS_OPTIMIZER, -1},
	};
	static const char *const labels[] = {"pass",  "forward", "backward", "optimizer",
					     "layer", "embed",	 "0",	     "1",
					     "head",  "1",	 "0",	     "embed"};
	struct k3_trace *t = trace_case(0, false);

	for (size_t i = 0; i < sizeof(walk) / sizeof(walk[0]); i++) {
		k3_trace_step(t, 1, walk[i].pass == K3_PASS_OPTIMIZER ? -1 : 0);
		trace_case_ran(t, walk[i].op, walk[i].pass, walk[i].layer, 0, 0, 1000.0 * (double)i,
			       1000.0 * (double)(i + 1));
	}
	setenv("PATH", "", 1);
	cr_assert_eq(k3_trace_finish(t), K3_OK);
	k3_trace_destroy(t);
	char *svg = trace_case_file("t/trace.svg");
	assert_strips(svg, labels, sizeof(labels) / sizeof(labels[0]));
	free(svg);
	char *tsv = trace_case_file("t/tasks.tsv");
	cr_assert(strstr(tsv, "\nmla_proj_fwd s1 m0 l1 again\tmla_proj_fwd\tmla\trecompute\t"),
		  "%s", tsv);
	free(tsv);
}

/* Tiles of the second microbatch's images and the zeros of a placeholder come early, the
 * optimizer of the step before ends late. */
TEST(the_picture_tells_the_tower_and_nothing_of_what_comes_early_or_late)
{
	static const struct {
		enum k3_op op;
		enum k3_pass pass;
		int step, microbatch, layer, tile;
	} walk[] = {
		{K3_OP_ADAMW_STEP, K3_PASS_OPTIMIZER, 1, -1, -1, -1},
		{K3_OP_VIT_PATCH_EMBED_FWD, K3_PASS_FORWARD, 2, 0, -1, 0},
		{K3_OP_VIT_PATCH_EMBED_FWD, K3_PASS_FORWARD, 2, 1, -1, 1},
		{K3_OP_ZERO_GRADS, K3_PASS_BACKWARD, 2, 1, -1, -1},
		{K3_OP_EMBED_FWD, K3_PASS_FORWARD, 2, 0, -1, 0},
		{K3_OP_VISION_SCATTER_FWD, K3_PASS_FORWARD, 2, 0, -1, 0},
		{K3_OP_KDA_PROJ_FWD, K3_PASS_FORWARD, 2, 0, 0, 0},
		{K3_OP_LM_HEAD_DX, K3_PASS_BACKWARD, 2, 0, -1, 0},
		{K3_OP_KDA_PROJ_BWD_DX, K3_PASS_BACKWARD, 2, 0, 0, 0},
		{K3_OP_EMBED_BWD, K3_PASS_BACKWARD, 2, 0, -1, 0},
		{K3_OP_VIT_MLP_BWD_DX, K3_PASS_BACKWARD, 2, 0, -1, 0},
		{K3_OP_VIT_MLP_FWD, K3_PASS_FORWARD, 2, 1, -1, 0},
		{K3_OP_ADAMW_STEP, K3_PASS_OPTIMIZER, 2, -1, -1, -1},
	};
	static const char *const labels[] = {"pass",  "forward", "backward", "forward", "optimizer",
					     "layer", "tower",	 "embed",    "0",	"head",
					     "0",     "embed",	 "tower"};
	struct k3_trace *t = trace_case(0, false);

	for (size_t i = 0; i < sizeof(walk) / sizeof(walk[0]); i++) {
		/* the first runs on while the second begins */
		int64_t start = 1000000 * (int64_t)i, end = start + 1000000 + (i == 0) * 500000;
		int worker = i > 0;
		k3_trace_step(t, walk[i].step, walk[i].microbatch);
		struct k3_trace_record *r = trace_case_submit(t, walk[i].op, walk[i].pass,
							      walk[i].layer, walk[i].tile, -1);
		k3_trace_start(r, worker, start);
		k3_trace_end(r, worker, start, start, end, end);
	}
	setenv("PATH", "", 1);
	cr_assert_eq(k3_trace_finish(t), K3_OK);
	k3_trace_destroy(t);
	char *svg = trace_case_file("t/trace.svg");
	cr_assert(strstr(svg, ">step 2: "), "%s", svg);
	assert_strips(svg, labels, sizeof(labels) / sizeof(labels[0]));
	free(svg);
}

TEST(the_layer_picture_names_its_tasks)
{
	struct k3_trace *t = trace_case(0, false);

	for (int layer = 0; layer < 3; layer++)
		trace_case_ran(t, K3_OP_KDA_CHUNK_FWD, K3_PASS_FORWARD, layer, layer % 2, 0,
			       1000 * layer, 1000 * layer + 1000);
	for (int layer = 3; layer-- > 0;)
		trace_case_ran(t, K3_OP_KDA_CHUNK_BWD, K3_PASS_BACKWARD, layer, layer % 2, 0,
			       6000 - 1000 * layer, 7000 - 1000 * layer);
	setenv("PATH", "", 1);
	cr_assert_eq(k3_trace_finish(t), K3_OK);
	k3_trace_destroy(t);
	char *svg = trace_case_file("t/trace-layer.svg");
	cr_assert(strstr(svg, ">layer 1 forward: 1.00 ms<"), "%s", svg);
	cr_assert(strstr(svg, ">layer 1 backward: 1.00 ms<"), "%s", svg);
	cr_assert(strstr(svg, ">kda_chunk_fwd<") && strstr(svg, ">kda_chunk_bwd<"), "%s", svg);
	elements(svg, "rect");
	free(svg);
	/* the step alone, for ViTE */
	struct paje p;
	paje_read(&p, "t/k3-step.paje");
	cr_assert_eq(paje_count(&p, "cpu0"), 4);
	cr_assert_eq(paje_count(&p, "cpu1"), 2);
	paje_free(&p);
}

/* Puts a program first in the search path that notes how it was called. */
static void
fake(const char *name, int status)
{
	char script[400], path[9000], in_bin[64];
	int n = snprintf(script, sizeof(script),
			 "#!/bin/sh\necho \"%s $QT_QPA_PLATFORM $*\" >>'%s'\nexit %d\n", name,
			 scratch_path("calls"), status);

	mkdir(scratch_path("bin"), 0700);
	snprintf(in_bin, sizeof(in_bin), "bin/%s", name);
	scratch_write(in_bin, script, (size_t)n);
	cr_assert_eq(chmod(scratch_path(in_bin), 0700), 0);
	snprintf(path, sizeof(path), "%s:%s", scratch_path("bin"), getenv("PATH"));
	setenv("PATH", path, 1);
}

TEST(vite_draws_the_last_step_and_a_layer_of_it_off_screen)
{
	struct k3_trace *t = trace_case(0, false);
	char want[4400];

	two_steps(t);
	fake("vite", 0);
	fake("rsvg-convert", 0);
	cr_assert_eq(k3_trace_finish(t), K3_OK);
	k3_trace_destroy(t);
	char *calls = trace_case_file("calls");
	snprintf(want, sizeof(want), "vite offscreen -t 30.000000:50.000000 -e %s %s\n",
		 scratch_path("t/vite.svg"), scratch_path("t/k3-step.paje"));
	cr_assert(strstr(calls, want), "no %s in %s", want, calls);
	cr_assert_eq(trace_case_count(calls, "vite offscreen -t 30.000000:50.000000"), 2, "%s",
		     calls);
	cr_assert_eq(trace_case_count(calls, "rsvg-convert "), 4, "%s", calls);
	snprintf(want, sizeof(want), "-o %s %s\n", scratch_path("t/trace.png"),
		 scratch_path("t/trace.svg"));
	cr_assert(strstr(calls, want), "no %s in %s", want, calls);
	free(calls);
}

TEST(a_viewer_that_fails_costs_its_picture_only)
{
	struct k3_trace *t = trace_case(0, false);

	two_steps(t);
	fake("vite", 3);
	fake("rsvg-convert", 3);
	cr_assert_eq(k3_trace_finish(t), K3_OK);
	k3_trace_destroy(t);
	const char *log = scratch_log();
	cr_assert(strstr(log, "info: trace: no picture by rsvg-convert: it failed"), "%s", log);
	cr_assert(strstr(log, "info: trace: no picture by vite: it failed"), "%s", log);
	char *calls = trace_case_file("calls");
	cr_assert_eq(trace_case_count(calls, "\n"), 2, "tried again: %s", calls);
	free(calls);
}

TEST(a_folder_that_cannot_be_is_refused)
{
	static const char *const names[] = {"cpu0"};
	struct k3_trace_options o = {.dir = scratch_path("file/below"),
				     .n_workers = 1,
				     .worker_name = names,
				     .now_ns = NULL};
	struct k3_trace *t;

	scratch_write("file", "x", 1);
	cr_assert_eq(k3_trace_create(&t, &o), K3_EIO);
	cr_assert_null(t);
	cr_assert(strstr(scratch_log(), "file"));
	o.dir = scratch_path("t");
	o.n_workers = 0;
	cr_assert_eq(k3_trace_create(&t, &o), K3_EINVAL);
}

TEST(a_trace_that_cannot_be_written_is_a_failure)
{
	struct k3_trace *t = trace_case(0, false);

	trace_case_ran(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, 1, 0, 0, 1000, 5000);
	cr_assert_eq(rmdir(scratch_path("t")), 0);
	cr_assert_eq(k3_trace_finish(t), K3_EIO);
	cr_assert(strstr(scratch_log(), "could not be written"));
	k3_trace_destroy(t);
}
