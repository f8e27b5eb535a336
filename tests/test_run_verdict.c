/* Verdicts on golden files: odd shapes, holes and padding, results that are missing, files that are
 * refused. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../drivers/verify.h"
#include "golden.h"
#include "scratch.h"

#define TEST(name)                                                                                 \
	Test(run_verdict, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

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
