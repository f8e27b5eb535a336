/* The program k3_plan: output, exit status, what it refuses. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"
#include "scratch.h"

#define TEST(name)                                                                                 \
	Test(plan_program, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

/* Number in a column of the row (table, name, kind) of a --tsv report; -1: no such row. */
static double
cell(const char *tsv, const char *row, int column)
{
	size_t n = strlen(row);

	for (const char *at = tsv; at && *at; at = strchr(at, '\n'), at += at != NULL) {
		if (strncmp(at, row, n) != 0 || at[n] != '\t')
			continue;
		for (; column > 0; column--)
			at = strchr(at, '\t') + 1;
		return strtod(at, NULL);
	}
	return -1;
}

enum { TASKS = 3, ELEMS, FLOPS, BYTES, COST };

static void
expect_status(const char *arguments, int want, const char *message)
{
	struct program_result r = program_run("", "k3_plan", "%s", arguments);

	cr_expect_eq(r.status, want, "k3_plan %s: status %d, expected %d", arguments, r.status,
		     want);
	cr_expect_not_null(strstr(scratch_log(), message), "k3_plan %s: \"%s\", expected \"%s\"",
			   arguments, scratch_log(), message);
	program_free(&r);
}

TEST(it_says_whether_a_step_fits_and_its_status_says_so_too)
{
	struct program_result r = program_run(
		"", "k3_plan",
		"--model tiny --tokens 100 --documents 30,50 --mesh cp=2,dp_shard=2 --memory 1");

	cr_expect_eq(r.status, 0);
	cr_expect_not_null(strstr(r.out, "\nfits: yes ("));
	cr_expect_not_null(strstr(r.out, "proved on 4 of 4 ranks"));
	cr_expect_not_null(strstr(r.out, "gather_kv"));
	program_free(&r);
	r = program_run("", "k3_plan", "--model tiny --tokens 100 --memory 0.001 --tsv");
	cr_expect_eq(r.status, 1);
	cr_expect_not_null(strstr(r.out, "\nfits\tno\t"));
	double missing = cell(r.out, "memory\tmain\tmissing", BYTES),
	       bound = cell(r.out, "memory\tmain\tbound", BYTES);
	char message[64];
	cr_expect_eq(missing, bound - (double)(long)(0.001 * (1 << 30)));
	snprintf(message, sizeof(message), "%.0f bytes are missing", missing);
	cr_expect_not_null(strstr(scratch_log(), message), "%s", scratch_log());
	program_free(&r);
}

TEST(a_rank_alone_shows_its_communication_when_it_is_forced)
{
	struct program_result r = program_run("", "k3_plan", "--model tiny --tokens 100 --tsv");

	cr_expect_eq(r.status, 0);
	cr_expect_null(strstr(r.out, "\ncomm\t"));
	double parameters = cell(r.out, "memory\tmain\tpersistent_parameters", BYTES);
	program_free(&r);
	r = program_run("", "k3_plan", "--model tiny --tokens 100 --comm nccl --tsv");
	cr_expect_eq(r.status, 0);
	cr_expect_gt(parameters, 0);
	cr_expect_eq(cell(r.out, "comm\tshard0\treduce_scatter_grads", BYTES), parameters);
	cr_expect_eq(cell(r.out, "comm\treplicate0\tallreduce", BYTES), parameters);
	cr_expect_gt(cell(r.out, "comm\tcp0\tgather_kv", TASKS), 0);
	program_free(&r);
	expect_status("--model tiny --comm mpi", 2, "--comm mpi: must be none or nccl");
}

TEST(a_step_that_needs_exactly_the_limit_fits)
{
	static const char args[] = "--model tiny --tokens 100 --tsv --activations keep";
	struct program_result r = program_run("", "k3_plan", "%s", args);
	double bound = cell(r.out, "memory\tmain\tbound", BYTES);

	program_free(&r);
	r = program_run("", "k3_plan", "%s --memory %.17g", args, bound / (1 << 30));
	cr_expect_eq(r.status, 0);
	cr_expect_not_null(strstr(r.out, "\nfits\tyes\t"));
	cr_expect_eq(cell(r.out, "memory\tmain\tmissing", BYTES), 0);
	program_free(&r);
	r = program_run("", "k3_plan", "%s --memory %.17g", args, (bound - 1) / (1 << 30));
	cr_expect_eq(r.status, 1);
	cr_expect_eq(cell(r.out, "memory\tmain\tmissing", BYTES), 1);
	program_free(&r);
}

/* Between what is needed when all layers recompute and when none does, some recompute. */
TEST(a_limit_chooses_the_layers_that_recompute)
{
	static const char args[] = "--model tiny --tokens 2048 --tile-tokens 64 --tsv";
	struct program_result keep = program_run("", "k3_plan", "%s --activations keep", args),
			      all = program_run("", "k3_plan", "%s --activations recompute", args);
	double most = cell(keep.out, "memory\tmain\tbound", BYTES),
	       least = cell(all.out, "memory\tmain\tbound", BYTES);

	cr_expect_lt(least, most);
	cr_expect_eq(cell(keep.out, "pass\trecompute\t-", TASKS), -1);
	struct program_result r =
		program_run("", "k3_plan", "%s --memory %.17g", args, (most - 1) / (1 << 30));
	cr_expect_eq(r.status, 0);
	cr_expect_leq(cell(r.out, "memory\tmain\tbound", BYTES), most - 1);
	cr_expect_gt(cell(r.out, "pass\trecompute\t-", TASKS), 0);
	cr_expect_leq(cell(r.out, "pass\trecompute\t-", TASKS),
		      cell(all.out, "pass\trecompute\t-", TASKS));
	cr_expect_not_null(strstr(r.out, "\nstep\tactivations\t0-"));
	program_free(&r);
	r = program_run("", "k3_plan", "%s --memory %.17g", args, (least - 1) / (1 << 30));
	cr_expect_eq(r.status, 1);
	cr_expect_not_null(strstr(r.out, "\nfits\tno\t"));
	cr_expect_not_null(strstr(scratch_log(), "1 bytes are missing"));
	program_free(&r);
	program_free(&all);
	program_free(&keep);
}

/* Published counts: 2.78 e12 parameters in 93 layers; four fp32 copies. */
TEST(the_released_model_is_planned_in_seconds)
{
	struct program_result r =
		program_run("", "k3_plan", "--model Kimi-K3 --tokens 8192 --memory 80 --tsv");

	cr_expect_eq(r.status, 1);
	cr_expect_eq(cell(r.out, "step\tparameters\t-", ELEMS), 2779484379232.0);
	cr_expect_eq(cell(r.out, "memory\tmain\tpersistent_parameters", BYTES),
		     4 * 2779484379232.0);
	cr_expect_geq(cell(r.out, "layer\t92\tmla_moe", TASKS), 1);
	cr_expect_not_null(strstr(r.out, "\nfits\tno\t"));
	program_free(&r);
}

/* 2,048 ranks: the cp ranks of the first and of the last data-parallel rank are proved. */
TEST(a_large_mesh_is_planned_with_its_shards)
{
	struct program_result r = program_run(
		"", "k3_plan",
		"--model Kimi-K3 --layers 2 --tokens 8192 --mesh dp_shard=256,cp=8 --tsv");
	double whole = 4 * cell(r.out, "step\tparameters\t-", ELEMS),
	       shard = cell(r.out, "memory\tmain\tpersistent_parameters", BYTES);

	cr_expect_eq(r.status, 0, "%s", scratch_log());
	cr_expect_eq(cell(r.out, "ranks\tchecked\t-", TASKS), 16);
	cr_expect_eq(cell(r.out, "ranks\tall\t-", TASKS), 2048);
	/* a rank holds at least its share; rows that do not divide add a little */
	cr_expect_geq(shard, whole / 2048);
	cr_expect_leq(shard, 1.2 * whole / 2048);
	cr_expect_gt(cell(r.out, "comm\tworld\tgather_params", BYTES), 0);
	program_free(&r);
}

TEST(counts_grow_with_the_microbatches_of_a_step)
{
	struct program_result one = program_run("", "k3_plan", "--model tiny --tokens 100 --tsv"),
			      five = program_run("", "k3_plan",
						 "--model tiny --tokens 100 --accumulate 5 --tsv");

	cr_expect_eq(cell(five.out, "family\tkda\t-", FLOPS),
		     5 * cell(one.out, "family\tkda\t-", FLOPS));
	cr_expect_eq(cell(five.out, "pass\toptimizer\t-", TASKS),
		     cell(one.out, "pass\toptimizer\t-", TASKS));
	cr_expect_eq(cell(five.out, "plan\tnext\t4", TASKS) + 1,
		     cell(five.out, "plan\tfirst\t1", TASKS), "step_load is the first's alone");
	program_free(&one);
	program_free(&five);
}

TEST(the_json_file_holds_all_plans_of_a_step)
{
	struct program_result r =
		program_run("", "k3_plan", "--model tiny --tokens 100 --accumulate 3 --json %s",
			    scratch_path("plan.json"));
	static const char *const name[] = {"first", "next", "end"};
	static const int times[] = {1, 2, 1};
	json_t *root = json_load_file(scratch_path("plan.json"), 0, NULL),
	       *plans = json_object_get(root, "plans");

	cr_expect_eq(r.status, 0);
	cr_assert_eq(json_array_size(plans), 3);
	for (size_t i = 0; i < 3; i++) {
		json_t *p = json_array_get(plans, i), *plan = json_object_get(p, "plan");
		cr_expect_eq(json_integer_value(json_object_get(p, "times")), times[i]);
		cr_expect_str_eq(json_string_value(json_object_get(plan, "plan")), name[i]);
		cr_expect_gt(json_array_size(json_object_get(plan, "tasks")), 0);
	}
	json_decref(root);
	program_free(&r);
}

TEST(the_critical_path_is_listed_when_it_is_asked_for)
{
	struct program_result r =
		program_run("", "k3_plan", "--model tiny --tokens 100 --critical-path --tsv");
	double tasks = 0;

	for (const char *at = r.out; (at = strstr(at, "\npath\t")); at++)
		tasks++;
	cr_expect_eq(tasks, cell(r.out, "step\tall\t-", 8));
	cr_expect_gt(tasks, 10);
	program_free(&r);
}

/* 512 MiB of data are enough to refuse (libraries that are mapped do not count, cuBLAS has more);
 * AddressSanitizer reserves terabytes. */
#ifdef __SANITIZE_ADDRESS__
#define LITTLE_MEMORY ""
#else
#define LITTLE_MEMORY "ulimit -d 524288;"
#endif

TEST(sizes_beyond_the_limits_are_refused_before_they_eat_the_machine)
{
	struct program_result r = program_run(LITTLE_MEMORY, "k3_plan",
					      "--model tiny --tokens 2147483647 --tile-tokens 64");

	cr_expect_eq(r.status, 2, "status %d: %s", r.status, scratch_log());
	cr_expect_not_null(
		strstr(scratch_log(), "2147483647 tokens: a microbatch has 67108864 at"));
	program_free(&r);
	r = program_run(LITTLE_MEMORY, "k3_plan",
			"--model tiny --tokens 67108864 --tile-tokens 64");
	cr_expect_eq(r.status, 2, "status %d: %s", r.status, scratch_log());
	cr_expect_not_null(strstr(scratch_log(), "tasks or more, a plan has 4194304 at most"));
	program_free(&r);
}

TEST(bad_options_are_refused_with_the_value_and_status_two)
{
	static const struct {
		const char *arguments, *message;
	} bad[] = {
		{"", "--model is missing"},
		{"--model nosuch", "nosuch"},
		{"--model tiny --tokens 0", "--tokens 0: must be an integer from 1"},
		{"--model tiny --tokens -5", "--tokens -5: must be an integer from 1"},
		{"--model tiny --tokens ten", "ten"},
		{"--model tiny --tokens 1e300", "1e300"},
		{"--model tiny --tokens 2147483648", "from 1 to 2147483647"},
		{"--model tiny --tile-tokens 65", "multiple of 64"},
		{"--model tiny --tile-tokens 0", "a multiple of 64 up to"},
		{"--model tiny --tile-tokens -64", "-64"},
		{"--model tiny --accumulate 0", "--accumulate 0: must be an integer from 1"},
		{"--model tiny --mesh tp=2", "tp=2"},
		{"--model tiny --mesh cp=0", "cp=0"},
		{"--model tiny --mesh dp_shard=65536,cp=2", "more than 65536 ranks"},
		{"--model tiny --documents 10,-1", "-1"},
		{"--model tiny --documents ,", "integers from 1"},
		{"--model tiny --documents 3,", "integers from 1"},
		{"--model tiny --documents 1x", "1x"},
		{"--model tiny --tokens 5 --documents 3,3", "6 tokens together"},
		{"--model tiny --memory NaN", "NaN"},
		{"--model tiny --activations 0-5:recompute", "layers from 0 to 4"},
		{"--model tiny --memory -1", "--memory -1"},
		{"--model tiny --memory 0", "--memory 0"},
		{"--model tiny extra", "extra"},
		{"--model tiny --layers 0", "--layers 0"},
		{"--model tiny --tokens 7 --mesh cp=4", "7 tokens on 4 cp ranks"},
		{"--model tiny --dot-layers 0-1", "needs --dot"},
		{"--model tiny --dot /dev/null --dot-layers 0-5", "0 <= A <= B <= 4"},
		{"--model tiny --dot /dev/null --dot-layers 3-1", "0 <= A <= B <= 4"},
		{"--model tiny --dot /dev/null --dot-layers 1-", "0 <= A <= B <= 4"},
		{"--model tiny --dot /dev/null --dot-layers -1", "0 <= A <= B <= 4"},
		{"--model tiny --dot /dev/null --dot-layers one", "one: allowed is A-B"},
		{"--nosuch", "nosuch"},
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		expect_status(bad[i].arguments, 2, bad[i].message);
	expect_status("--help", 0, "");
	expect_status("--model tiny --dot /nosuch/folder/file", 1, "/nosuch/folder/file");
	expect_status("--model tiny --json /nosuch/folder/file", 1, "/nosuch/folder/file");
	expect_status("--model tiny --dot /dev/null --dot-layers 4", 0, "");
}

/* A vision tile of 256 patches takes ten tasks a block at least, and two tiles may hold 260. */
TEST(more_patches_than_a_plan_can_have_are_refused_before_they_eat_the_machine)
{
	struct program_result r = program_run(
		LITTLE_MEMORY "timeout 20", "k3_plan",
		"--model small --images 1x4x4 --max-patches 1000000000 --tile-tokens all");

	cr_expect_eq(r.status, 2, "status %d: %s", r.status, scratch_log());
	cr_expect_not_null(strstr(scratch_log(), "1000000000 patches in vision tiles of 256: "));
	program_free(&r);
}

TEST(images_are_planned_counted_and_written)
{
	struct program_result r = program_run("", "k3_plan",
					      "--model small --images 1x4x6,1x2x2 --tsv --bands 2 "
					      "--tile-tokens all --json %s --dot %s",
					      scratch_path("plan.json"), scratch_path("plan.dot"));
	size_t bytes;

	cr_assert_eq(r.status, 0, "%s", scratch_log());
	/* the block's tasks on two tiles of the first image, one of the second: forward 4 each,
	 * backward 6 each and a pair of attention for each two tiles that share an image */
	cr_expect_eq(cell(r.out, "tower\t0\tblock", TASKS), 3 * 4 + 3 * 6 + 4 + 1);
	double n[] = {24, 4}, flops = 0;
	for (int i = 0; i < 2; i++)
		flops += 6 * n[i] * (4 * 48 * 48 + 2 * 48 * 96) + 14 * n[i] * n[i] * 48;
	cr_expect_float_eq(cell(r.out, "tower\t0\tblock", FLOPS), flops, 0.5);
	cr_expect_gt(cell(r.out, "tower\taround\t-", FLOPS), 0);
	program_free(&r);
	char *dot = (char *)scratch_read("plan.dot", &bytes);
	cr_expect_not_null(strstr(dot, "vit_attn_fwd"));
	cr_expect_not_null(strstr(dot, "vision_scatter_bwd"));
	free(dot);
	json_t *plans = json_load_file(scratch_path("plan.json"), 0, NULL);
	cr_assert_not_null(plans);
	json_t *options = json_object_get(
		json_object_get(json_array_get(json_object_get(plans, "plans"), 0), "plan"),
		"options");
	cr_expect(json_is_true(json_object_get(options, "vision")));
	cr_expect_eq(json_integer_value(json_object_get(options, "vision_bands")), 2);
	json_decref(plans);
}

TEST(the_bound_with_max_patches_is_that_of_any_images)
{
	static const char *const images[] = {"none", "1x4x4", "1x16x16", "1x2x2,1x8x30,1x2x2"};
	double first = 0;

	for (size_t i = 0; i < 4; i++) {
		struct program_result r = program_run(
			"", "k3_plan",
			"--model small --images %s --max-patches 256 --tile-tokens all --tsv",
			images[i]);
		double bound = cell(r.out, "memory\tmain\tbound", BYTES);
		cr_assert_eq(r.status, 0, "%s", scratch_log());
		if (i == 0)
			first = bound;
		cr_expect_eq(bound, first, "%s: %.0f bytes, expected %.0f", images[i], bound,
			     first);
		program_free(&r);
	}
	expect_status("--model small --images 1x16x18 --max-patches 256", 2, "288 patches");
}

TEST(images_that_are_none_are_refused)
{
	expect_status("--model small --images 1x4", 2, "--images");
	expect_status("--model small --images 1x4x4,", 2, "--images");
	expect_status("--model small --images 1x4x4x4", 2, "--images");
	expect_status("--model small --images 0x4x4", 2, "--images");
	expect_status("--model small --images -1x4x4", 2, "--images");
	expect_status("--model small --images 1x4x99999999999999999999", 2, "--images");
	expect_status("--model small --images 1x4x5", 2, "\"1x4x5\"");
	expect_status("--model small --images 2x4x4", 2, "frames T from 1 to 1");
	/* every word is judged by every rule */
	expect_status("--model small --images 1x4x5,1x4x4,x", 2, "\"1x4x5\"");
	expect_status("--model small --images 1x4x5,1x4x4,x", 2, "\"x\"");
	expect_status("--model small --images 1x514x4", 2,
		      "patches H and W up to 512 that are multiples of 2 and 2");
	expect_status("--model small --images 1x16x16 --tokens 63 --max-patches 100", 2,
		      "--max-patches 256 would do");
	expect_status("--model small --images 1x16x16 --vision-patches 1 --max-patches 1", 2,
		      "(--vision-patches)");
	expect_status("--model small --images 1x16x16 --vision-patches 1 --max-patches 1", 2,
		      "--max-patches 256 would do");
	expect_status("--model tiny --images 1x4x4", 2, "no vision tower");
	expect_status("--model small --bands 2", 2, "need --images");
	expect_status("--model small --images 1x16x16 --tokens 63", 2,
		      "rows from 0 to 63 are free");
}
