/* Recording and files of a trace, with times set by the test. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/rng.h"
#include "../common/status.h"
#include "../common/colors.h"
#include "paje.h"
#include "plan_case.h"
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
