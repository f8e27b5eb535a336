/* bf16 mode through StarPU: golden cases, copies of matrices, memory; and training as a user runs
 * it. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../codelets/vec/vec.h"
#include "../common/status.h"
#include "../drivers/verify.h"
#include "golden.h"
#include "program.h"
#include "scratch.h"

#define TEST(name) Test(run_bf16, name, .init = scratch_start, .fini = scratch_stop, .timeout = 240)

#define SMALL "--model tiny --tokens 192 --tile-tokens 64 --accumulate 2 --lr 2e-3"

static void
passes(const char *name, struct k3_verify_options options, size_t classes)
{
	struct k3_verify_report report;
	char *table;
	size_t bytes;
	FILE *out = open_memstream(&table, &bytes);

	options.dtype = K3_BF16;
	k3_verify_report_init(&report, &options);
	cr_assert_eq(k3_verify_file(golden_case(name), &options, &report), K3_OK, "%s", scratch_log());
	k3_verify_print(&report, name, out);
	fclose(out);
	cr_assert(report.failed == 0 && report.passed == classes, "%zu of %zu classes pass:\n%s",
		  report.passed, classes, table);
	free(table);
	k3_verify_report_fini(&report);
}

static void
passes_in_tiles(const char *name, size_t classes)
{
	for (uint32_t tile = 0; tile <= 64; tile += 64) {
		passes(name,
		       (struct k3_verify_options){.tile_tokens = tile, .forced_routing = true},
		       classes);
		passes(name, (struct k3_verify_options){.tile_tokens = tile}, classes);
	}
}

TEST(text_tiny_passes_with_forced_and_free_routes)
{
	passes_in_tiles("text_tiny", 11);
}

TEST(text_packed_passes_with_forced_and_free_routes)
{
	passes_in_tiles("text_packed", 11);
}

TEST(mm_tiny_passes_with_forced_and_free_routes)
{
	passes_in_tiles("mm_tiny", 13);
}

TEST(recomputed_activations_pass)
{
	struct k3_verify_options o = {
		.tile_tokens = 64, .activations = "recompute", .forced_routing = true};

	passes("text_packed", o, 11);
}

TEST(the_operator_passes_with_the_ratios_of_its_own)
{
	passes("kda_ops_d32", (struct k3_verify_options){.tile_tokens = 64}, 8);
	passes("kda_ops_d32", (struct k3_verify_options){0}, 8);
}

/* Every copy is its master, rounded. */
static void
expect_copies(struct k3_session *s, const char *when)
{
	const struct k3_model *m = s->model;
	size_t seen = 0;

	for (uint32_t i = 0; i < m->n_blocks; i++) {
		if (m->copy[i] == K3_NO_DATUM)
			continue;
		size_t n = m->persist[i].rows * m->persist[i].row_elems;
		float *master = malloc(n * sizeof(*master));
		uint16_t *want = malloc(n * sizeof(*want)), *copy = malloc(n * sizeof(*copy));
		cr_assert_eq(k3_store_datum_read(s->store, NULL, i, master), K3_OK);
		cr_assert_eq(k3_store_datum_read(s->store, NULL, (uint32_t)m->copy[i], copy),
			     K3_OK);
		k3_vec()->to_bf16(want, master, n);
		cr_assert(memcmp(copy, want, n * sizeof(*copy)) == 0, "%s: block %u", when, i);
		seen += n;
		free(master);
		free(want);
		free(copy);
	}
	cr_assert(2 * seen > m->params.n_elems, "%s: %zu elements have copies", when, seen);
}

/* A step of one microbatch on ascending ids. */
static void
run_step(struct k3_session *s)
{
	enum { T = 128 };
	int32_t ids[T], labels[T], docs[T];
	double hyper[K3_HYPER_LEN] = {[K3_HYPER_VALID] = T,
				      [K3_HYPER_INV_N] = 1.0 / T,
				      [K3_HYPER_LR] = 1e-2,
				      [K3_HYPER_STEP] = 1};
	struct k3_layout layout = {.n_tokens = T, .doc_ids = docs};
	struct k3_host_batch batch = {.ids = ids, .labels = labels};
	struct k3_microbatch what = {.backward = true, .first = true, .count = true};
	const struct k3_plan *plan;

	for (int i = 0; i < T; i++) {
		ids[i] = i % 100;
		labels[i] = (i + 1) % 100;
		docs[i] = 1;
	}
	cr_assert_eq(k3_plan_cache_get(s->cache, &layout, &what, s->clock, &plan), K3_OK);
	cr_assert_eq(k3_submit_plan(s->store, plan, &batch, hyper), K3_OK);
	cr_assert_eq(k3_session_optimizer(s, 0, &plan), K3_OK);
	cr_assert_eq(k3_submit_plan(s->store, plan, NULL, NULL), K3_OK);
	k3_runtime_drain(s->runtime);
}

TEST(copies_are_the_rounded_masters_from_the_first_value_on)
{
	struct k3_session s;
	struct k3_config config;
	struct k3_plan_options o;
	struct k3_st *st = NULL;

	k3_plan_options_init(&o);
	o.tile_tokens = 64;
	o.dtype = K3_BF16;
	cr_assert_eq(k3_config_preset(&config, "tiny"), K3_OK);
	cr_assert_eq(k3_session_open(&s, &config, &o, NULL), K3_OK);
	cr_assert_eq(k3_session_init(&s, 7), K3_OK);
	expect_copies(&s, "initial values");
	float before, after;
	uint32_t head = s.model->param_block[k3_params_find(&s.model->params, K3_P_NORM, -1)];
	float *row = malloc(s.model->persist[head].bytes);
	cr_assert_eq(k3_store_datum_read(s.store, NULL, head, row), K3_OK);
	before = row[0];
	run_step(&s);
	cr_assert_eq(k3_store_datum_read(s.store, NULL, head, row), K3_OK);
	after = row[0];
	cr_assert_neq(before, after, "the step changed nothing");
	free(row);
	expect_copies(&s, "after a step");
	k3_session_close(&s);

	/* and after a checkpoint was read, whose values are others */
	cr_assert_eq(k3_st_open(&st, golden_case("text_tiny")), K3_OK);
	cr_assert_eq(k3i_verify_config(st, &config), K3_OK);
	cr_assert_eq(k3_session_open(&s, &config, &o, NULL), K3_OK);
	cr_assert_eq(k3_session_init(&s, 7), K3_OK);
	cr_assert_eq(k3_checkpoint_load_params(s.store, st), K3_OK);
	expect_copies(&s, "after a checkpoint");
	k3_session_close(&s);
	k3_st_close(st);
}

static char *
prints(const char *environment, const char *more)
{
	struct program_result r = program_run(environment, "k3_train",
					      SMALL " --dtype bf16 --data %s --fingerprint %s",
					      scratch_path("text.k3t"), more);
	cr_assert_eq(r.status, 0, "status %d: %s", r.status, scratch_log());
	char *all = program_all(r.out, "fingerprint");
	cr_assert(strlen(all) >= 16, "no fingerprints in:\n%s", r.out);
	program_free(&r);
	return all;
}

TEST(bits_do_not_depend_on_workers_and_schedulers)
{
	static const char *const environment[] = {"STARPU_SCHED=eager STARPU_NCPU=1",
						  "STARPU_SCHED=lws STARPU_NCPU=2",
						  "STARPU_SCHED=dmdas STARPU_NCPU=2"};
	char *first = NULL;

	program_dataset();
	for (size_t i = 0; i < 3; i++) {
		char *now = prints(environment[i], "--steps 4");
		if (first)
			cr_assert_str_eq(now, first, "%s: other bits", environment[i]);
		else
			first = strdup(now);
		free(now);
	}
	free(first);
}

static void
expect_resumed(const char *options)
{
	char more[512];

	program_dataset();
	snprintf(more, sizeof(more), "--steps 6 %s", options);
	char *straight = prints("", more);
	snprintf(more, sizeof(more), "--steps 6 --stop-after 3 --save %s %s", scratch_path("ck"),
		 options);
	char *first = prints("", more);
	cr_assert_eq(strncmp(straight, first, strlen(first)), 0, "the first steps differ");
	struct program_result r = program_run("", "k3_train", "--resume %s", scratch_path("ck"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	char *second = program_all(r.out, "fingerprint");
	cr_assert_str_eq(straight + strlen(first) + 1, second, "the resumed steps differ");
	program_free(&r);
	free(straight);
	free(first);
	free(second);
}

static void
expect_refused(const char *options, const char *says)
{
	struct program_result r =
		program_run("", "k3_train", "--data %s %s", scratch_path("text.k3t"), options);

	cr_assert_eq(r.status, 2, "%s: status %d", options, r.status);
	cr_assert_not_null(strstr(scratch_log(), says), "%s: %s", options, scratch_log());
	program_free(&r);
}

TEST(a_resumed_run_goes_on_in_bf16_with_the_same_bits)
{
	char more[512];

	expect_resumed("");
	snprintf(more, sizeof(more), "--resume %s --dtype fp32", scratch_path("ck"));
	expect_refused(more, "--dtype");
}

TEST(an_optimizer_in_bf16_has_one_result_too_and_resumes)
{
	char *eager, *lws;

	program_dataset();
	eager = prints("STARPU_SCHED=eager STARPU_NCPU=1", "--steps 4 --optimizer-dtype bf16");
	lws = prints("STARPU_SCHED=lws STARPU_NCPU=2", "--steps 4 --optimizer-dtype bf16");
	cr_assert_str_eq(eager, lws);
	free(lws);
	lws = prints("STARPU_SCHED=lws STARPU_NCPU=2", "--steps 4");
	cr_assert_str_neq(eager, lws, "the state's type changes no bit");
	free(eager);
	free(lws);
	expect_resumed("--optimizer-dtype bf16");
	expect_refused("--model tiny --optimizer-dtype bf16", "optimizer");
	expect_refused("--model tiny --dtype bf16 --optimizer-dtype fp16",
		       "--optimizer-dtype fp16: must be fp32 or bf16");
}

TEST(handles_stay_below_the_bound_which_is_below_that_of_fp32)
{
	double most[2], held[2];

	program_dataset();
	for (int i = 0; i < 2; i++) {
		scratch_log();
		struct program_result r = program_run(
			"STARPU_NCPU=2", "k3_train",
			"--model tiny --tokens 512 --tile-tokens 64 --steps 3 --data %s --dtype %s",
			scratch_path("text.k3t"), i ? "bf16" : "fp32");
		cr_assert_eq(r.status, 0);
		const char *log = scratch_log();
		most[i] = program_logged(log, "at most ");
		held[i] = program_logged(strstr(log, "layouts planned"), "; ");
		cr_expect(held[i] <= most[i] + 0.05 && held[i] >= 0.8 * most[i], "%g of %g MiB",
			  held[i], most[i]);
		if (i)
			cr_expect(program_logged(log, "CPU workers take ") > 0);
		program_free(&r);
	}
	cr_expect(most[1] < 0.8 * most[0], "%g MiB in bf16, %g in fp32", most[1], most[0]);
}

TEST(the_loss_falls_as_in_fp32_and_evaluation_runs_in_either_type)
{
	double last[2];

	program_dataset();
	for (int i = 0; i < 2; i++) {
		struct program_result r =
			program_run("", "k3_train", SMALL " --data %s --steps 12 --save %s %s",
				    scratch_path("text.k3t"), scratch_path(i ? "ck1" : "ck0"),
				    i ? "--dtype bf16" : "--dtype fp32");
		cr_assert_eq(r.status, 0, "%s", scratch_log());
		char *loss = program_column(r.out, "loss_nats");
		last[i] = atof(loss);
		free(loss);
		program_free(&r);
	}
	cr_expect_float_eq(last[1], last[0], 0.02 * last[0], "%g in bf16, %g in fp32", last[1],
			   last[0]);
	for (int i = 0; i < 2; i++) {
		struct program_result r = program_run(
			"", "k3_eval", "--load %s --data %s --dtype %s", scratch_path("ck1"),
			scratch_path("text.val.k3t"), i ? "bf16" : "fp32");
		cr_assert_eq(r.status, 0, "%s", scratch_log());
		char *loss = program_column(r.out, "loss_nats");
		last[i] = atof(loss);
		free(loss);
		program_free(&r);
	}
	cr_expect(last[0] != last[1], "the types give the same bits");
	cr_expect_float_eq(last[1], last[0], 0.01 * last[0]);
}

TEST(another_type_is_refused_by_name)
{
	struct program_result r = program_run("", "k3_plan", "--model tiny --dtype fp16");

	cr_assert_eq(r.status, 2);
	cr_assert_not_null(strstr(scratch_log(), "--dtype fp16: must be fp32 or bf16"));
	program_free(&r);
}
