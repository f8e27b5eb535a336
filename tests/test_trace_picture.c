/* The pictures of a trace, drawn here and by viewers. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../common/status.h"
#include "../common/colors.h"
#include "fixture.h"
#include "paje.h"
#include "scratch.h"
#include "trace_case.h"

#define TEST(name)                                                                                 \
	Test(trace_picture, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

/* Elements of an SVG that are opened are closed, and their number. */
static size_t
elements(const char *svg, const char *name)
{
	char open[16], close[16];

	snprintf(open, sizeof(open), "<%s", name);
	snprintf(close, sizeof(close), "</%s>", name);
	cr_assert(strncmp(svg, "<svg ", 5) == 0 && strstr(svg, "</svg>\n"));
	cr_assert_eq(fixture_count(svg, "<text"), fixture_count(svg, "</text>"));
	return fixture_count(svg, open);
}

TEST(the_picture_shows_the_last_complete_step_with_every_task)
{
	struct k3_trace *t = trace_case(0, false);
	char color[16];

	trace_case_two_steps(t);
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
	cr_assert_eq(fixture_count(svg, color), 2 + 1, "two boxes and the legend:\n%s", svg);
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

	trace_case_two_steps(t);
	fake("vite", 0);
	fake("rsvg-convert", 0);
	cr_assert_eq(k3_trace_finish(t), K3_OK);
	k3_trace_destroy(t);
	char *calls = trace_case_file("calls");
	snprintf(want, sizeof(want), "vite offscreen -t 30.000000:50.000000 -e %s %s\n",
		 scratch_path("t/vite.svg"), scratch_path("t/k3-step.paje"));
	cr_assert(strstr(calls, want), "no %s in %s", want, calls);
	cr_assert_eq(fixture_count(calls, "vite offscreen -t 30.000000:50.000000"), 2, "%s",
		     calls);
	cr_assert_eq(fixture_count(calls, "rsvg-convert "), 4, "%s", calls);
	snprintf(want, sizeof(want), "-o %s %s\n", scratch_path("t/trace.png"),
		 scratch_path("t/trace.svg"));
	cr_assert(strstr(calls, want), "no %s in %s", want, calls);
	free(calls);
}

TEST(a_viewer_that_fails_costs_its_picture_only)
{
	struct k3_trace *t = trace_case(0, false);

	trace_case_two_steps(t);
	fake("vite", 3);
	fake("rsvg-convert", 3);
	cr_assert_eq(k3_trace_finish(t), K3_OK);
	k3_trace_destroy(t);
	const char *log = scratch_log();
	cr_assert(strstr(log, "info: trace: no picture by rsvg-convert: it failed"), "%s", log);
	cr_assert(strstr(log, "info: trace: no picture by vite: it failed"), "%s", log);
	char *calls = trace_case_file("calls");
	cr_assert_eq(fixture_count(calls, "\n"), 2, "tried again: %s", calls);
	free(calls);
}
