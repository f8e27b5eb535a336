/* From golden file to bits: loading, submission, handles, memory; in this process, through StarPU.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/rng.h"
#include "../common/status.h"
#include "../drivers/verify.h"
#include "golden.h"
#include "scratch.h"

#define TEST(name) Test(run_spine, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

#define LAYER1 "language_model.model.layers.1."

/* Runs a file that must pass in all its classes. */
static void
passes(const char *path, uint32_t tile, size_t classes)
{
	struct k3_verify_options options = {.tile_tokens = tile};
	struct k3_verify_report report;
	char *table = NULL;
	size_t bytes;
	FILE *out = open_memstream(&table, &bytes);

	k3_verify_report_init(&report, &options);
	cr_assert_eq(k3_verify_file(path, &options, &report), K3_OK, "%s", scratch_log());
	k3_verify_print(&report, path, out);
	fclose(out);
	cr_assert(report.failed == 0 && report.passed == classes, "tiles of %u:\n%s", tile, table);
	free(table);
	k3_verify_report_fini(&report);
}

TEST(odd_sizes_odd_layers_holes_and_padding_pass_in_tiles_of_64)
{
	passes(golden_path("odd_model"), 64, 11);
}

TEST(odd_sizes_odd_layers_holes_and_padding_pass_in_one_tile)
{
	passes(golden_path("odd_model"), 0, 11);
}

/* Rows without a document put in before the given rows. */
static void
insert_rows(struct golden_tensor *t, const size_t *before, const size_t *count, size_t n,
	    int32_t value)
{
	size_t rows = t->dims[0], more = 0, at = 0;

	for (size_t i = 0; i < n; i++)
		more += count[i];
	int32_t *old = t->data, *data = malloc((rows + more) * sizeof(*data));
	for (size_t r = 0; r <= rows; r++) {
		for (size_t i = 0; i < n; i++)
			for (size_t k = 0; before[i] == r && k < count[i]; k++)
				data[at++] = value;
		if (r < rows)
			data[at++] = old[r];
	}
	cr_assert_eq(at, rows + more);
	free(old);
	t->data = data;
	t->dims[0] = at;
	t->bytes = at * sizeof(*data);
}

/* text_packed with padding around, a hole in a document, and a hole that covers a whole tile: what
 * is learned is the same. */
static void
holes_pass(uint32_t tile)
{
	static const size_t before[] = {0, 20, 90, 169}, count[] = {3, 2, 130, 5};
	static const char *const rows[] = {"embeddings", "prefix.",	    "router_",	   "logits",
					   "token_loss", "grad.embeddings", "grad.prefix."};
	struct golden g;

	golden_load(&g, "golden/text_packed");
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		cr_assert(golden_drop(&g, rows[i]) > 0);
	insert_rows(golden_find(&g, "input.input_ids"), before, count, 4, 127);
	insert_rows(golden_find(&g, "input.labels"), before, count, 4, -100);
	insert_rows(golden_find(&g, "input.doc_ids"), before, count, 4, 0);
	golden_save(&g, scratch_path("holes"));
	golden_free(&g);

	/* results by row would have to be shifted: they are dropped, and nothing else may fail */
	struct k3_verify_options options = {.tile_tokens = tile};
	struct k3_verify_report report;
	char *table, *line;
	size_t bytes, passed = 0;
	FILE *out = open_memstream(&table, &bytes);
	k3_verify_report_init(&report, &options);
	cr_assert_eq(k3_verify_file(scratch_path("holes"), &options, &report), K3_OK, "%s",
		     scratch_log());
	k3_verify_print(&report, "holes", out);
	fclose(out);
	for (line = strtok(table, "\n"); line; line = strtok(NULL, "\n")) {
		cr_assert(!strstr(line, "\tFAIL\t") || strstr(line, ": missing"), "%s", line);
		passed += strstr(line, "\tloss\t") && strstr(line, "\tpass\t");
		passed += strstr(line, "\tgrad.param\t") && strstr(line, "\tpass\t");
	}
	cr_assert_eq(passed, 2, "loss and gradients must pass");
	free(table);
	k3_verify_report_fini(&report);
}

TEST(holes_and_padding_change_neither_loss_nor_gradients_in_tiles_of_64)
{
	holes_pass(64);
}

TEST(holes_and_padding_change_neither_loss_nor_gradients_in_one_tile)
{
	holes_pass(0);
}

TEST(a_result_that_the_model_does_not_have_is_missing)
{
	struct k3_verify_options options = {0};
	struct k3_verify_report report;
	struct golden g;
	FILE *out = fopen("/dev/null", "w");

	golden_load(&g, "odd_model");
	golden_copy(&g, "prefix.4", "prefix.5");
	golden_save(&g, scratch_path("more"));
	golden_free(&g);
	k3_verify_report_init(&report, &options);
	cr_assert_eq(k3_verify_file(scratch_path("more"), &options, &report), K3_OK);
	k3_verify_print(&report, "more", out);
	fclose(out);
	cr_assert_eq(report.failed, 1);
	k3_verify_report_fini(&report);
}

/* What verifying an edited file returns; its table goes to the scratch folder. */
static int
verify_edited(struct golden *g)
{
	struct k3_verify_options options = {.forced_routing = false};
	struct k3_verify_report report;
	FILE *out = fopen(scratch_path("table"), "w");

	golden_save(g, scratch_path("edited"));
	golden_free(g);
	scratch_log();
	k3_verify_report_init(&report, &options);
	int ret = k3_verify_file(scratch_path("edited"), &options, &report);
	k3_verify_print(&report, "edited", out);
	fclose(out);
	k3_verify_report_fini(&report);
	return ret;
}

TEST(a_digest_that_is_not_three_numbers_is_missing)
{
	struct golden g;

	golden_load(&g, "golden/text_tiny");
	struct golden_tensor *t = golden_find(&g, "grad." LAYER1 "self_attn.q_proj.weight");
	snprintf(t->name, sizeof(t->name), "gdigest." LAYER1 "self_attn.q_proj.weight");
	t->n_dims = 1;
	t->dims[0] = 1;
	t->bytes = sizeof(float);
	cr_assert_eq(verify_edited(&g), K3_OK, "%s", scratch_log());
	size_t bytes;
	char *table = (char *)scratch_read("table", &bytes);
	cr_assert(strstr(table, "q_proj.weight: missing"), "%s", table);
	free(table);
}

TEST(every_result_that_the_file_lacks_is_missing)
{
	static const char *const names[] = {"loss",
					    "token_loss",
					    "logits",
					    "embeddings",
					    "prefix.3",
					    "grad.prefix.1",
					    "grad.embeddings",
					    "router_ids.2",
					    "router_weights.1",
					    "router_margin.4"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct golden g;
		char want[64];
		size_t bytes;
		golden_load(&g, "golden/text_tiny");
		struct golden_tensor *t = golden_find(&g, names[i]);
		/* under another name: nobody looks for it, and dropping by prefix would take more
		 */
		snprintf(t->name, sizeof(t->name), "input.unused");
		cr_assert_eq(verify_edited(&g), K3_OK, "%s", scratch_log());
		char *table = (char *)scratch_read("table", &bytes);
		snprintf(want, sizeof(want), "%s: missing", names[i]);
		cr_assert(strstr(table, want), "%s is not missed in\n%s", names[i], table);
		free(table);
	}
}

TEST(metadata_of_another_form_are_refused_by_name)
{
	static const struct {
		size_t key; /* of golden.c */
		const char *value, *message;
	} edits[] = {
		{3, "{", "metadata eps is no JSON"},
		{3, "5", "metadata eps is 5; it must be a JSON object"},
		{3, "{\"rms_norm\": \"1\"}", "metadata eps: rms_norm must be a number"},
		{4, "", "metadata image_grids is no JSON"},
		{4, "{}", "metadata image_grids is {}; it must be a JSON array"},
		{5, "[]", "metadata float32_run_rms_deviation is []"},
		{6, "[]", "metadata train is []"},
		{6, "{}", "train: steps must be an integer from 1"},
		{6, "{\"steps\": -1}", "train: steps must be an integer from 1"},
		{6, "{\"steps\": 2.5}", "train: steps must be an integer from 1"},
		{6, "{\"steps\": 1, \"accumulation\": 2305843009213693952}",
		 "train: accumulation must be"},
		{6, "{\"steps\": 1, \"warmup\": -1}", "train: warmup must be an integer from 0"},
		{6, "{\"steps\": 1, \"lr\": \"1\"}", "train: lr must be a number"},
		{6, "{\"steps\": 1, \"decay_ratio\": 2}", "train: decay_ratio must be a number"},
		{6, "{\"steps\": 1, \"betas\": [0.9]}", "train: betas must be two numbers"},
		{6, "{\"steps\": 1, \"betas\": [0.9, 1]}", "train: betas must be two numbers"},
		{6, "{\"steps\": 1, \"balance\": \"sing\"}", "train: balance must be quantile"},
		{6, "{\"steps\": 1, \"decay\": \"cosine\"}", "train: decay must be linear"},
	};

	for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
		struct golden g;
		golden_load(&g, "golden/text_tiny");
		free(g.metadata[edits[i].key]);
		g.metadata[edits[i].key] = strdup(edits[i].value);
		cr_assert_eq(verify_edited(&g), K3_EFORMAT, "%s", edits[i].value);
		const char *log = scratch_log();
		cr_assert(strstr(log, edits[i].message), "%s, not %s", log, edits[i].message);
	}
}

TEST(operator_cases_with_a_size_of_0_are_refused)
{
	for (uint32_t empty = 1; empty < 3; empty++) {
		struct golden g;
		golden_load(&g, "golden/kda_ops_d32");
		golden_find(&g, "T15.q")->dims[empty] = golden_find(&g, "T15.v")->dims[empty] = 0;
		golden_find(&g, "T15.q")->bytes = golden_find(&g, "T15.v")->bytes = 0;
		cr_assert_eq(verify_edited(&g), K3_EFORMAT);
		const char *log = scratch_log();
		cr_assert(strstr(log, "T15.q and T15.v") && strstr(log, "without a size of 0"),
			  "%s", log);
	}
}

/* ---- a session of a golden file, without the verdict */
struct spine {
	struct k3_session session;
	struct k3_st *st;
	struct k3_plan *plan;
	int32_t *ids, *labels, *docs;
	size_t t;
};

static void
spine_open(struct spine *s, const char *path, uint32_t tile, uint32_t window)
{
	struct k3_plan_options options;
	struct k3_config config;
	size_t n;

	memset(s, 0, sizeof(*s));
	k3_plan_options_init(&options);
	options.tile_tokens = tile;
	cr_assert_eq(k3_st_open(&s->st, path), K3_OK);
	cr_assert_eq(k3i_verify_config(s->st, &config), K3_OK);
	cr_assert_eq(k3_session_open(&s->session, &config, &options,
				     &(struct k3_runtime_options){.window = window}),
		     K3_OK);
	s->ids = k3i_verify_i32(s->st, "input.input_ids", &s->t);
	s->labels = k3i_verify_i32(s->st, "input.labels", &n);
	s->docs = k3i_verify_i32(s->st, "input.doc_ids", &n);
}

static void
spine_close(struct spine *s)
{
	k3_runtime_drain(s->session.runtime);
	k3_plan_destroy(s->plan);
	k3_session_close(&s->session);
	k3_st_close(s->st);
	free(s->ids);
	free(s->labels);
	free(s->docs);
}

/* Plans the first t tokens and runs them forward and backward. */
static void
spine_run(struct spine *s, size_t t)
{
	struct k3_layout layout = {.n_tokens = t, .doc_ids = s->docs};
	struct k3_microbatch what = {.backward = true, .first = true};
	struct k3_host_batch batch = {.ids = s->ids, .labels = s->labels};
	double hyper[K3_HYPER_LEN] = {[K3_HYPER_INV_N] = 1.0 / 64, [K3_HYPER_VALID] = 64};

	k3_plan_destroy(s->plan);
	cr_assert_eq(k3_plan_microbatch(&s->plan, s->session.model, &layout, &what), K3_OK);
	cr_assert_eq(k3_submit_plan(s->session.store, s->plan, &batch, hyper), K3_OK);
	k3_runtime_drain(s->session.runtime);
}

/* Hash over the bits of the loss and of every gradient. */
static uint64_t
result_bits(struct spine *s)
{
	const struct k3_model *m = s->session.model;
	uint64_t hash = K3_FNV_START;
	double acc[K3_LOSS_LEN];

	cr_assert_eq(k3_store_datum_read(s->session.store, NULL, m->loss_acc, acc), K3_OK);
	cr_assert(acc[K3_LOSS_SUM] > 1 && isfinite(acc[K3_LOSS_SUM]));
	hash = k3_fnv1a(hash, acc, sizeof(acc));
	for (uint32_t b = 0; b < m->n_blocks; b++) {
		uint32_t datum = m->param_block[0] + m->n_blocks + b;
		void *block = malloc(m->persist[datum].bytes + 1);
		cr_assert_eq(m->persist[datum].kind, K3_DATA_GRAD);
		cr_assert_eq(k3_store_datum_read(s->session.store, NULL, datum, block), K3_OK);
		hash = k3_fnv1a(hash, block, m->persist[datum].bytes);
		free(block);
	}
	return hash;
}

static uint64_t
bits_under(const char *scheduler, const char *workers, uint32_t window)
{
	struct spine s;
	uint64_t bits;

	setenv("STARPU_SCHED", scheduler, 1);
	setenv("STARPU_NCPU", workers, 1);
	spine_open(&s, golden_path("golden/text_packed"), 64, window);
	cr_assert_str_eq(k3_runtime_scheduler(s.session.runtime), scheduler);
	cr_assert_eq(k3_checkpoint_load_params(s.session.store, s.st), K3_OK);
	spine_run(&s, s.t);
	bits = result_bits(&s);
	spine_close(&s);
	return bits;
}

TEST(loss_and_gradients_have_the_same_bits_under_every_scheduler)
{
	uint64_t bits = bits_under("eager", "1", 0);

	cr_assert_eq(bits_under("eager", "2", 0), bits, "eager, 2 workers");
	cr_assert_eq(bits_under("lws", "2", 0), bits, "lws");
	cr_assert_eq(bits_under("dmdas", "2", 0), bits, "dmdas");
	cr_assert_eq(bits_under("prio", "2", 5), bits, "prio, window 5");
}

TEST(tasks_hold_more_data_than_starpus_compiled_limit)
{
	struct spine s;
	uint32_t most = 0;

	spine_open(&s, golden_path("golden/text_packed"), 64, 0);
	cr_assert_eq(k3_checkpoint_load_params(s.session.store, s.st), K3_OK);
	spine_run(&s, s.t);
	for (size_t i = 0; i < s.plan->n_tasks; i++)
		most = s.plan->task[i].n_access > most ? s.plan->task[i].n_access : most;
	cr_assert_gt(most, STARPU_NMAXBUFS, "the case is too small to try that");
	spine_close(&s);
}

TEST(handles_hold_no_more_than_the_bound_and_slots_are_shared_by_plans)
{
	static const char *const schedulers[] = {"eager", "random", "lws", "dmdas"};

	for (size_t i = 0; i < 4; i++) {
		struct k3_memory memory;
		struct spine s;
		setenv("STARPU_SCHED", schedulers[i], 1);
		spine_open(&s, golden_path("golden/text_packed"), 64, 0);
		cr_assert_eq(k3_store_bytes_held(s.session.store), 0,
			     "something is held before anything was written");
		cr_assert_eq(k3_session_init(&s.session, 0), K3_OK);
		spine_run(&s, s.t);
		k3_memory_init(&memory, s.session.model);
		cr_assert_eq(k3_memory_add(&memory, s.plan), K3_OK);
		uint64_t bound = k3_memory_bound(&memory),
			 held = k3_store_bytes_held(s.session.store);
		cr_assert(held <= bound, "%s: %llu bytes held, the bound is %llu", schedulers[i],
			  (unsigned long long)held, (unsigned long long)bound);
		cr_assert(held > bound / 2, "%s: the bound of %llu is far from the %llu held",
			  schedulers[i], (unsigned long long)bound, (unsigned long long)held);
		spine_run(&s, s.t);
		cr_assert_eq(k3_store_bytes_held(s.session.store), held,
			     "the same plan again needs new memory");
		k3_memory_fini(&memory);
		spine_close(&s);
	}
}

TEST(communication_is_refused_before_anything_is_submitted)
{
	struct spine s;
	struct k3_plan_options options;
	struct k3_model *shard = NULL;
	struct k3_plan *plan = NULL;
	struct k3_microbatch what = {.backward = true, .first = true};
	const double hyper[K3_HYPER_LEN] = {0};

	spine_open(&s, golden_path("golden/text_packed"), 64, 0);
	k3_plan_options_init(&options);
	options.tile_tokens = 64;
	options.mesh = (struct k3_mesh){1, 2, 1, 0, false};
	cr_assert_eq(k3_model_create(&shard, &s.session.model->config, &options), K3_OK);
	struct k3_layout layout = {.n_tokens = s.t, .doc_ids = s.docs};
	struct k3_host_batch batch = {.ids = s.ids, .labels = s.labels};
	cr_assert_eq(k3_plan_microbatch(&plan, shard, &layout, &what), K3_OK);
	cr_assert_eq(k3_submit_plan(s.session.store, plan, &batch, hyper), K3_ENODEV);
	cr_assert_not_null(strstr(scratch_log(), "one rank"));
	cr_assert_eq(starpu_task_nsubmitted(), 0);
	cr_assert_eq(k3_store_bytes_held(s.session.store), 0);
	k3_plan_destroy(plan);
	k3_model_destroy(shard);
	spine_close(&s);
}

TEST(short_lived_data_that_are_not_kept_cannot_be_read)
{
	struct spine s;
	float x[1];

	spine_open(&s, golden_path("golden/text_packed"), 64, 0);
	cr_assert_eq(k3_session_init(&s.session, 0), K3_OK);
	spine_run(&s, s.t);
	int32_t datum = k3_plan_find(s.plan, "prefix", 1, 0, -1);
	cr_assert_neq(datum, K3_NO_DATUM);
	cr_assert_eq(k3_store_datum_read(s.session.store, s.plan, (uint32_t)datum, x), K3_EINVAL);
	cr_assert_not_null(strstr(scratch_log(), "prefix"));
	spine_close(&s);
}

TEST(data_that_nobody_wrote_cannot_be_read)
{
	struct spine s;
	double acc[K3_LOSS_LEN];

	spine_open(&s, golden_path("golden/text_packed"), 64, 0);
	cr_assert_eq(k3_store_datum_read(s.session.store, NULL, s.session.model->loss_acc, acc),
		     K3_EINVAL);
	cr_assert_not_null(strstr(scratch_log(), "never written"));
	spine_close(&s);
}

TEST(no_worker_is_an_error_and_not_a_hang)
{
	struct k3_runtime *runtime = NULL;

	setenv("STARPU_NCPU", "0", 1);
	cr_assert_eq(k3_runtime_create(&runtime, &(struct k3_runtime_options){0}), K3_ENODEV);
	cr_assert_null(runtime);
	cr_assert_not_null(strstr(scratch_log(), "worker"));
}

/* ---- checkpoints into handles */

/* What loading an edited text_tiny returns; the log is left for the caller. */
static int
load_status(struct golden *g)
{
	struct spine s;
	int ret;

	golden_save(g, scratch_path("edited"));
	golden_free(g);
	spine_open(&s, scratch_path("edited"), 64, 0);
	scratch_log();
	ret = k3_checkpoint_load_params(s.session.store, s.st);
	spine_close(&s);
	return ret;
}

/* Written in turns, so that each write finds others in its handle. */
TEST(data_that_share_a_handle_keep_each_other)
{
	struct spine s;
	const struct k3_model *m;
	size_t shared = 0;

	spine_open(&s, golden_path("golden/text_tiny"), 64, 0);
	m = s.session.model;
	for (int again = 0; again < 2; again++)
		for (uint32_t i = 0; i < 4 * m->n_blocks; i++) {
			void *fill = malloc(m->persist[i].bytes + 1);
			memset(fill, (int)(i + (uint32_t)again) % 251, m->persist[i].bytes);
			cr_assert_eq(k3_store_datum_write(s.session.store, NULL, i, fill), K3_OK);
			free(fill);
		}
	for (uint32_t i = 0; i < 4 * m->n_blocks; i++) {
		const struct k3_datum *d = &m->persist[i];
		unsigned char *got = malloc(d->bytes + 1);
		cr_assert_eq(k3_store_datum_read(s.session.store, NULL, i, got), K3_OK);
		for (size_t k = 0; k < d->bytes; k++)
			cr_assert_eq(got[k], (i + 1) % 251, "%s of block %u, byte %zu", d->what,
				     i % m->n_blocks, k);
		shared += d->whole > 0;
		free(got);
	}
	cr_expect_gt(shared, m->n_blocks);
	spine_close(&s);
}

TEST(every_element_of_every_parameter_comes_from_the_file)
{
	struct spine s;
	const struct k3_model *m;
	size_t seen = 0;

	spine_open(&s, golden_path("golden/text_tiny"), 64, 0);
	m = s.session.model;
	for (uint32_t i = 0; i < m->n_persist; i++) {
		const struct k3_datum *d = &m->persist[i];
		void *ones = malloc(d->bytes + 1);
		memset(ones, 0xff, d->bytes); /* NaN */
		if (d->kind == K3_DATA_PARAM)
			cr_assert_eq(k3_store_datum_write(s.session.store, NULL, i, ones), K3_OK);
		free(ones);
	}
	cr_assert_eq(k3_checkpoint_load_params(s.session.store, s.st), K3_OK);
	for (size_t i = 0; i < k3_params_n_tensors(&m->params); i++) {
		struct k3_ckpt_tensor t;
		size_t n, n_want;
		k3_params_tensor(&m->params, i, &t);
		if (t.kind != K3_CKPT_PARAM)
			continue;
		double *got = k3i_verify_tensor(s.session.store, &t, 0, &n),
		       *want = k3i_verify_f64(s.st, t.name, &n_want);
		cr_assert(got && want && n == n_want, "%s", t.name);
		for (size_t k = 0; k < n; k++)
			cr_assert(got[k] == want[k], "%s[%zu] is %g, the file has %g", t.name, k,
				  got[k], want[k]);
		seen += t.n_elems;
		free(got);
		free(want);
	}
	cr_assert_eq(seen, m->params.n_elems);
	spine_close(&s);
}

TEST(a_missing_expert_is_refused_by_its_key)
{
	struct golden g;

	golden_load(&g, "golden/text_tiny");
	cr_assert_eq(golden_drop(&g, LAYER1 "block_sparse_moe.experts.3.w2.weight"), 1);
	cr_assert_eq(load_status(&g), K3_EFORMAT);
	const char *log = scratch_log();
	cr_assert(strstr(log, "missing key: " LAYER1 "block_sparse_moe.experts.3.w2.weight"), "%s",
		  log);
}

TEST(of_many_missing_keys_the_first_ten_and_the_count_are_told)
{
	struct golden g;
	size_t told = 0;

	golden_load(&g, "golden/text_tiny");
	size_t dropped = golden_drop(&g, LAYER1);
	cr_assert_eq(load_status(&g), K3_EFORMAT);
	const char *log = scratch_log();
	for (const char *at = log; (at = strstr(at, "missing key")); at++)
		told++;
	char count[64];
	snprintf(count, sizeof(count), "%zu keys are missing", dropped);
	cr_assert(told == 10 && strstr(log, count), "%zu of %zu are told: %s", told, dropped, log);
}

TEST(a_missing_router_bias_is_refused)
{
	struct golden g;

	golden_load(&g, "golden/text_tiny");
	cr_assert_eq(golden_drop(&g, LAYER1 "block_sparse_moe.gate.e_score_correction_bias"), 1);
	cr_assert_eq(load_status(&g), K3_EFORMAT);
	cr_assert_not_null(strstr(scratch_log(), "e_score_correction_bias"));
}

TEST(a_transposed_weight_is_refused_with_both_shapes)
{
	struct golden g;

	golden_load(&g, "golden/text_tiny");
	struct golden_tensor *t =
		golden_find(&g, "language_model.model.layers.0.mlp.gate_proj.weight");
	cr_assert(t->dims[0] == 128 && t->dims[1] == 64);
	t->dims[0] = 64;
	t->dims[1] = 128;
	cr_assert_eq(load_status(&g), K3_EFORMAT);
	const char *log = scratch_log();
	cr_assert(strstr(log, "mlp.gate_proj.weight: is [64, 128], must be [128, 64]"), "%s", log);
}

TEST(a_key_without_a_place_is_refused)
{
	struct golden g;

	golden_load(&g, "golden/text_tiny");
	golden_copy(&g, LAYER1 "input_layernorm.weight",
		    "language_model.model.layers.5.input_layernorm.weight");
	cr_assert_eq(load_status(&g), K3_EFORMAT);
	const char *log = scratch_log();
	cr_assert(strstr(log, "unknown key: language_model.model.layers.5.input_layernorm.weight"),
		  "%s", log);
}

TEST(a_key_that_is_there_twice_is_refused_by_name)
{
	struct k3_st *st = NULL;
	struct golden g;

	golden_load(&g, "golden/text_tiny");
	golden_copy(&g, LAYER1 "input_layernorm.weight", LAYER1 "input_layernorm.weight");
	golden_save(&g, scratch_path("twice"));
	golden_free(&g);
	cr_assert_eq(k3_st_open(&st, scratch_path("twice")), K3_EFORMAT);
	const char *log = scratch_log();
	cr_assert(strstr(log, "duplicate key") && strstr(log, LAYER1 "input_layernorm.weight"),
		  "%s", log);
}

TEST(keys_of_the_vision_tower_and_inverse_frequencies_are_passed_over)
{
	struct golden g;

	golden_load(&g, "golden/text_tiny");
	golden_copy(&g, LAYER1 "input_layernorm.weight", LAYER1 "self_attn.rotary_emb.inv_freq");
	golden_copy(&g, LAYER1 "input_layernorm.weight",
		    "vision_tower.encoder.final_layernorm.weight");
	golden_copy(&g, LAYER1 "input_layernorm.weight", "mm_projector.post_norm.weight");
	cr_assert_eq(load_status(&g), K3_OK, "%s", scratch_log());
	cr_assert_not_null(strstr(scratch_log(), "2 tensors of the vision tower"));
}

TEST(a_log_without_its_padding_is_taken)
{
	struct golden g;

	golden_load(&g, "golden/text_tiny");
	struct golden_tensor *t = golden_find(&g, LAYER1 "self_attn.A_log");
	cr_assert_eq(t->dims[0], 128);
	t->dims[0] = 2;
	t->bytes = 2 * sizeof(float);
	cr_assert_eq(load_status(&g), K3_OK, "%s", scratch_log());
}
