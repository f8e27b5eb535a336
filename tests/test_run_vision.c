/* The golden case with images through planner, submission and StarPU, however the images are
 * cut. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../drivers/verify.h"
#include "golden.h"
#include "scratch.h"

#define TEST(name)                                                                                 \
	Test(run_vision, name, .init = scratch_start, .fini = scratch_stop, .timeout = 120)

enum { CLASSES = 13 };

/* Runs a file; the table, malloc'ed. */
static char *
verify(const char *path, const struct k3_verify_options *options, struct k3_verify_report *report)
{
	char *table;
	size_t bytes;
	FILE *out = open_memstream(&table, &bytes);
	bool keep = report->keep_values;

	k3_verify_report_init(report, options);
	report->keep_values = keep;
	cr_assert_eq(k3_verify_file(path, options, report), K3_OK, "did not run: %s",
		     scratch_log());
	k3_verify_print(report, "mm_tiny", out);
	fclose(out);
	cr_assert_eq(report->passed + report->failed, CLASSES, "%s", table);
	return table;
}

static void
expect_pass(struct k3_verify_options options)
{
	struct k3_verify_report report = {0};
	char *table = verify(golden_path("golden/mm_tiny"), &options, &report);

	cr_expect_eq(report.failed, 0, "bands %u, tile %u:\n%s", options.bands, options.tile_tokens,
		     table);
	free(table);
	k3_verify_report_fini(&report);
}

TEST(images_pass_in_any_bands_with_text_tiles_of_64)
{
	static const uint32_t bands[] = {1, 2, 3, 5, 1000};

	for (size_t i = 0; i < sizeof(bands) / sizeof(bands[0]); i++)
		expect_pass((struct k3_verify_options){.tile_tokens = 64, .bands = bands[i]});
}

TEST(images_pass_in_any_bands_with_one_text_tile)
{
	static const uint32_t bands[] = {0, 1, 2, 3, 1000};

	for (size_t i = 0; i < sizeof(bands) / sizeof(bands[0]); i++)
		expect_pass((struct k3_verify_options){.bands = bands[i]});
}

TEST(images_pass_when_text_layers_are_recomputed)
{
	expect_pass((struct k3_verify_options){
		.tile_tokens = 64, .bands = 2, .activations = "recompute"});
}

static const struct k3_verify_entry *
entry_of(const struct k3_verify_report *r, const char *name)
{
	for (size_t i = 0; i < r->n; i++)
		if (strcmp(r->entry[i].name, name) == 0)
			return &r->entry[i];
	return NULL;
}

/* Largest difference that a cut may make, by class. */
static double
allowed(const struct k3_verify_report *r, const char *cls)
{
	if (strcmp(cls, "vision.") == 0)
		return 1e-6;
	if (strcmp(cls, "logits") == 0)
		return 1e-5;
	if (strncmp(cls, "grad.", 5) == 0)
		return 3 * json_number_value(json_object_get(r->deviation, cls));
	return 0;
}

TEST(bands_change_nothing_but_rounding)
{
	struct k3_verify_report one = {.keep_values = true};
	size_t compared = 0;

	free(verify(golden_path("golden/mm_tiny"),
		    &(struct k3_verify_options){.tile_tokens = 64, .bands = 1}, &one));
	for (uint32_t bands = 2; bands <= 5; bands++) {
		struct k3_verify_options options = {.tile_tokens = 64, .bands = bands};
		struct k3_verify_report other = {.keep_values = true};
		free(verify(golden_path("golden/mm_tiny"), &options, &other));
		for (size_t i = 0; i < one.n; i++) {
			const struct k3_verify_entry *a = &one.entry[i],
						     *b = entry_of(&other, a->name);
			double most = allowed(&one, a->cls), err = 0, ref = 0;
			if (most == 0 || a->n_elems == 0 || a->want_max == 0)
				continue;
			cr_assert(b && b->n_elems == a->n_elems, "%s", a->name);
			for (size_t k = 0; k < a->n_elems; k++) {
				err += (a->got[k] - b->got[k]) * (a->got[k] - b->got[k]);
				ref += a->got[k] * a->got[k];
			}
			cr_expect(sqrt(err / ref) <= most, "%u bands, %s: %g", bands, a->name,
				  sqrt(err / ref));
			compared++;
		}
		k3_verify_report_fini(&other);
	}
	cr_assert(compared >= 4 * 200, "%zu tensors", compared);
	k3_verify_report_fini(&one);
}

static void
expect_red(const char *tensor, const char *place)
{
	struct k3_verify_options options = {.bands = 2, .plant_fault = tensor};
	struct k3_verify_report report = {0};
	char want[200], *table = verify(golden_path("golden/mm_tiny"), &options, &report);

	snprintf(want, sizeof(want), "first difference: %s (%s)", place, tensor);
	cr_expect_eq(report.failed, 1, "%s", table);
	cr_expect(strstr(table, want), "\"%s\" is expected:\n%s", want, table);
	free(table);
	k3_verify_report_fini(&report);
}

TEST(a_wrong_result_of_the_tower_is_red_and_named)
{
	expect_red("vision.embed", "patch embedding");
	expect_red("vision.block.1", "tower block 1");
	expect_red("vision.final", "tower's final norm");
	expect_red("vision.features", "projector");
	expect_red("grad.vision.block.0", "tower block 0");
	expect_red("grad.vision_tower.patch_embed.pos_emb.weight", "patch embedding");
	expect_red("grad.vision_tower.encoder.blocks.1.wqkv.weight", "tower block 1");
	expect_red("grad.mm_projector.post_norm.weight", "projector");
}

/* A copy of the golden file, in which an element of 4 bytes of a tensor differs. */
static const char *
spoilt(const char *tensor, size_t element, const void *value)
{
	struct golden g;

	golden_load(&g, "golden/mm_tiny");
	memcpy((char *)golden_find(&g, tensor)->data + 4 * element, value, 4);
	golden_save(&g, scratch_path("mm.safetensors"));
	golden_free(&g);
	return scratch_path("mm.safetensors");
}

/* The tower's blocks differ by one weight: everything before it is right. */
TEST(the_first_block_that_computes_something_else_is_found)
{
	struct k3_verify_options options = {.first_difference = true};
	struct k3_verify_report report = {0};
	const float weight = 3;
	const char *file = spoilt("vision_tower.encoder.blocks.1.mlp.fc0.weight", 100, &weight);
	char *table = verify(file, &options, &report);

	cr_expect(strstr(table, "first difference: tower block 1 (vision.block.1)"), "%s", table);
	cr_expect(strstr(table, "forward, tower block 0: vision.block.0"), "%s", table);
	cr_expect(strstr(table, "backward, layer 4: "), "%s", table);
	free(table);
	k3_verify_report_fini(&report);
}

static void
expect_refused(const char *file, const char *message)
{
	struct k3_verify_options options = {0};
	struct k3_verify_report report;
	const char *log;

	k3_verify_report_init(&report, &options);
	scratch_log();
	cr_expect_neq(k3_verify_file(file, &options, &report), K3_OK);
	log = scratch_log();
	cr_expect(strstr(log, message), "\"%s\" is expected: %s", message, log);
	k3_verify_report_fini(&report);
}

TEST(images_that_do_not_fit_the_text_are_refused_with_both_counts)
{
	const int32_t other = 5, none = 0, huge = 1 << 20;
	struct k3_st *st;
	int32_t *ids;
	size_t n, at = 0;

	cr_assert_eq(k3_st_open(&st, golden_path("golden/mm_tiny")), K3_OK);
	ids = k3i_verify_i32(st, "input.input_ids", &n);
	k3_st_close(st);
	while (ids[at] != 126)
		at++;
	expect_refused(spoilt("input.input_ids", at, &other),
		       "25 placeholders (id 126) for 26 features of 2 images");
	expect_refused(spoilt("input.input_ids", 0, &(const int32_t){126}),
		       "27 placeholders (id 126) for 26 features of 2 images");
	expect_refused(spoilt("input.grid_thw", 1, &none), "image 0: 0; allowed: 1 to 512");
	expect_refused(spoilt("input.grid_thw", 5, &huge), "image 1: 1048576; allowed: 1 to 512");
	expect_refused(spoilt("input.grid_thw", 2, &(const int32_t){8}), "input.pixels");
	free(ids);
}

TEST(a_key_of_the_tower_without_a_place_is_refused)
{
	static const char *const keys[] = {"vision_tower.encoder.blocks.2.norm0.weight",
					   "mm_projector.post_norm.bias"};

	for (size_t i = 0; i < 2; i++) {
		char message[128];
		struct golden g;
		golden_load(&g, "golden/mm_tiny");
		golden_copy(&g, "vision_tower.encoder.blocks.1.norm0.weight", keys[i]);
		golden_save(&g, scratch_path("more.safetensors"));
		golden_free(&g);
		snprintf(message, sizeof(message), "unknown key: %s", keys[i]);
		expect_refused(scratch_path("more.safetensors"), message);
	}
}

/* The golden file with another shape of a tensor, of as many elements; b 0: one dimension. */
static const char *
reshaped(const char *tensor, uint64_t a, uint64_t b)
{
	struct golden_tensor *t;
	struct golden g;

	golden_load(&g, "golden/mm_tiny");
	t = golden_find(&g, tensor);
	t->n_dims = b ? 2 : 1;
	t->dims[0] = a;
	t->dims[1] = b;
	golden_save(&g, scratch_path("mm.safetensors"));
	golden_free(&g);
	return scratch_path("mm.safetensors");
}

TEST(tensors_of_another_shape_are_no_golden_values)
{
	struct k3_verify_options options = {0};
	struct k3_verify_report report = {0};

	expect_refused(reshaped("input.grid_thw", 3, 2), "it must be [2, 3]");
	expect_refused(reshaped("input.input_ids", 4, 29),
		       "input.input_ids has 2 dimensions; one is allowed");
	expect_refused(reshaped("input.doc_ids", 1, 116),
		       "input.doc_ids has 2 dimensions; one is allowed");
	scratch_log();
	free(verify(reshaped("grad.vision_tower.encoder.blocks.0.mlp.fc1.weight", 96, 48), &options,
		    &report));
	cr_expect_eq(report.failed, 1);
	cr_expect(strstr(scratch_log(), "blocks.0.mlp.fc1.weight has not the shape"));
	k3_verify_report_fini(&report);
}
