/* Images that no plan can hold, and the memory of runs with images: no microbatch within the bound needs
 * more slots of a class than the bound says. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/rng.h"
#include "../common/status.h"
#include "vision_case.h"

#define TEST(name) Test(vision_limits, name, .timeout = 60)

static const struct k3_microbatch first = {.backward = true, .first = true, .count = true};

static void
expect_refused(const struct k3_plan_options *o, const char *images, int status, const char *part)
{
	struct k3_model *model = vision_case_model("cp=1", 0, o);
	struct vision_case v;
	struct k3_plan *plan;

	vision_case_init(&v, 100, images);
	capture_begin();
	cr_expect_eq(k3_plan_microbatch(&plan, model, &v.layout, &first), status, "%s", images);
	expect_message(capture_end(), part);
	vision_case_fini(&v);
	k3_model_destroy(model);
}

TEST(grids_that_the_tower_cannot_take_are_refused_with_image_and_values)
{
	struct k3_plan_options o = vision_case_options();

	expect_refused(
		&o, "1x2x2@0 1x3x4@1", K3_ESHAPE,
		"image 1: grid of 3 x 4 patches: must be a multiple of the merge kernel 2 x 2");
	expect_refused(&o, "1x4x3@0", K3_ESHAPE, "image 0: grid of 4 x 3 patches");
	expect_refused(&o, "5x2x2@0", K3_ESHAPE, "image 0: 5 frames: the model knows 4 at most");
	expect_refused(&o, "0x2x2@0", K3_ESHAPE, "image 0: grid 0 x 2 x 2");
	expect_refused(&o, "1x514x2@0", K3_ESHAPE, "sides from 1 to 512");
	/* four frames are possible */
	struct k3_model *model = vision_case_model("cp=1", 0, &o);
	k3_plan_destroy(vision_case_plan(model, 100, "4x2x2@0", first));
	k3_model_destroy(model);
}

TEST(rows_that_overlap_descend_or_leave_the_stream_are_refused_with_both_values)
{
	struct k3_plan_options o = vision_case_options();

	expect_refused(&o, "1x4x4@0 1x2x2@3", K3_ESHAPE,
		       "image 1: features for rows 3 to 3: rows from 4 to 100 are free");
	expect_refused(&o, "1x2x2@9 1x2x2@3", K3_ESHAPE, "image 1: features for rows 3 to 3");
	expect_refused(&o, "1x4x4@97", K3_ESHAPE,
		       "image 0: features for rows 97 to 100: rows from 0 to 100 are free");
	expect_refused(&o, "1x2x2@4294967294", K3_ESHAPE, "image 0");
	struct k3_model *model = vision_case_model("cp=1", 0, &o);
	k3_plan_destroy(vision_case_plan(model, 100, "1x4x4@96", first));
	k3_model_destroy(model);
}

TEST(images_for_a_text_model_are_refused)
{
	struct k3_plan_options o = vision_case_options();

	o.vision = false;
	expect_refused(&o, "1x2x2@0", K3_EINVAL, "1 images: the model is planned without");
}

static void
expect_no_model(const struct k3_plan_options *o, bool tower, const char *part)
{
	struct k3_config config;
	struct k3_model *model;

	vision_case_config(&config);
	config.vision.present = tower;
	capture_begin();
	cr_expect_eq(k3_model_create(&model, &config, o), K3_EINVAL);
	cr_expect_null(model);
	expect_message(capture_end(), part);
}

TEST(options_that_bound_nothing_are_refused)
{
	struct k3_plan_options o = vision_case_options();

	expect_no_model(&o, false, "has no vision tower");
	o.vision_patches = 3;
	expect_no_model(&o, true, "vision tiles of 3 patches: allowed are 4, ");
	o = vision_case_options();
	o.max_patches = 3;
	expect_no_model(&o, true, "3 patches in a microbatch: allowed are 4, ");
	o.max_patches = 64;
	o.vision_bands = 2;
	expect_no_model(&o, true, "2 bands of each image");
	o = vision_case_options();
	o.max_patches = (1u << 30) + 1;
	expect_no_model(&o, true,
			"1073741825 patches in a microbatch: allowed are 4, those of a "
			"merged token, to 1073741824 (--max-patches)");
	o.max_patches = 0;
	o.vision_patches = (1u << 30) + 1;
	expect_no_model(&o, true, "vision tiles of 1073741825 patches");
}

TEST(more_patches_than_the_run_allows_are_refused)
{
	struct k3_plan_options o = vision_case_options();

	o.max_patches = 64;
	expect_refused(&o, "1x8x8@0 1x2x2@16", K3_ELIMIT,
		       "68 patches in one microbatch: at most 64 are possible");
	o.vision_patches = 16;
	expect_refused(&o, "1x2x2@0 1x4x10@1", K3_ELIMIT,
		       "image 1: grid 1 x 4 x 10 needs vision tiles of 20 patches, they have 16");
	/* all at once, and what would do */
	expect_refused(&o, "1x2x2@0 1x8x10@90", K3_ESHAPE, "rows up to 110: --tokens 110 would do");
	expect_refused(&o, "1x2x2@0 1x8x10@90", K3_ESHAPE, "--vision-patches 20 would do");
	expect_refused(&o, "1x2x2@0 1x8x10@90", K3_ESHAPE, "--max-patches 84 would do");
	expect_refused(&o, "5x2x2@0 1x3x2@9", K3_ESHAPE, "image 0: 5 frames");
	expect_refused(&o, "5x2x2@0 1x3x2@9", K3_ESHAPE, "image 1: grid of 3 x 2");
	struct k3_model *model = vision_case_model("cp=1", 0, &o);
	struct k3_run_shape shape = {.tokens = 100, .accumulate = 1, .max_patches = 68};
	struct k3_memory memory;
	capture_begin();
	cr_expect_eq(k3_memory_run(&memory, model, &shape), K3_EINVAL);
	expect_message(capture_end(), "68 patches: the model is planned for 64");
	k3_memory_fini(&memory);
	k3_model_destroy(model);
}

/* Pairs of tiles make tasks; what the images are says how many. */
TEST(images_whose_pairs_of_tiles_are_too_many_are_refused_before_anything_is_planned)
{
	struct k3_plan_options o = vision_case_options();
	struct vision_case v;
	struct k3_plan *plan;

	o.vision_bands = 256;
	struct k3_model *model = vision_case_model("cp=1", 0, &o);
	vision_case_init(&v, 40 * 256, "");
	for (int i = 0; i < 40; i++)
		vision_case_add(&v, (struct k3_grid){1, 512, 2}, UINT32_MAX);
	capture_begin();
	cr_expect_eq(k3_plan_microbatch(&plan, model, &v.layout, &first), K3_ELIMIT);
	expect_message(capture_end(), "images in 10240 vision tiles, 2621440 pairs of which");
	/* a loss alone has no task for each pair */
	cr_expect_eq(
		k3_plan_microbatch(&plan, model, &v.layout, &(struct k3_microbatch){.first = true}),
		K3_OK);
	k3_plan_destroy(plan);
	vision_case_fini(&v);
	k3_model_destroy(model);
}

static uint64_t
hash_of(const char *images)
{
	struct vision_case v;

	vision_case_init(&v, 100, images);
	uint64_t h = k3_layout_hash(&v.layout);
	vision_case_fini(&v);
	return h;
}

/* What refuses a plan before it is built never exceeds what the plan takes. */
TEST(the_least_number_of_positions_is_a_lower_bound_with_images_and_without)
{
	static const char *const images[] = {"", "1x2x2@0", "1x16x16@0 1x16x16@64"};
	struct k3_plan_options o = vision_case_options();

	o.vision_patches = 64;
	o.max_patches = 4096;
	struct k3_model *model = vision_case_model("cp=1", 0, &o);
	for (int backward = 0; backward < 2; backward++)
		for (size_t i = 0; i < 3; i++) {
			struct k3_microbatch what = {.backward = backward, .first = true};
			struct k3_plan *plan = vision_case_plan(model, 128, images[i], what);
			double least = k3_plan_least_positions(model, 128, backward);
			cr_expect_leq(least, plan->n_pos, "%s", images[i]);
			cr_expect_gt(least, plan->n_pos / 8, "%g of %u", least,
				     (unsigned)plan->n_pos);
			k3_plan_destroy(plan);
		}
	k3_model_destroy(model);
}

TEST(the_hash_of_a_layout_knows_grids_and_rows)
{
	static const char *const images[] = {"",	"1x4x4@0",	   "1x4x4@1",
					     "1x2x8@0", "2x4x4@0",	   "1x4x4@0 1x2x2@4",
					     "1x8x2@0", "1x4x4@0 1x2x2@5", "1x2x2@0 1x4x4@4"};
	enum { N = sizeof(images) / sizeof(images[0]) };

	for (size_t i = 0; i < N; i++)
		for (size_t k = 0; k <= i; k++)
			cr_expect_eq(hash_of(images[i]) == hash_of(images[k]), i == k, "%s and %s",
				     images[i], images[k]);
}

/* Slots of each class that a plan needs, against the bound's. */
static void
expect_within(const struct k3_memory *bound, const struct k3_plan *plan, const char *what)
{
	struct k3_memory m;

	k3_memory_init(&m, plan->model);
	cr_assert_eq(k3_memory_add(&m, plan), K3_OK);
	for (size_t i = 0; i < m.n_classes; i++) {
		uint32_t have = 0;
		for (size_t k = 0; k < bound->n_classes; k++)
			if (bound->cls[k].bytes == m.cls[i].bytes)
				have = bound->cls[k].n;
		cr_expect_leq(m.cls[i].n, have, "%s: %u slots of %zu bytes, bound %u", what,
			      m.cls[i].n, m.cls[i].bytes, have);
	}
	k3_memory_fini(&m);
}

static uint32_t
draw(uint64_t key, uint64_t *i, uint32_t n)
{
	return (uint32_t)(k3_rng_bits(key, (*i)++) % n);
}

/* Images of at most `patches` in all, until one does not fit. */
static void
random_images(struct vision_case *v, uint64_t key, uint64_t patches, uint32_t most_patches)
{
	uint64_t i = 0, used = 0;
	uint32_t style = draw(key, &i, 4); /* small ones, any, videos, alternating */

	for (uint32_t k = 0; k < VISION_CASE_ITEMS; k++) {
		uint32_t side = style == 0 ? 3 : 12;
		struct k3_grid g = {style == 2 ? 1 + draw(key, &i, 4) : 1,
				    2 + 2 * draw(key, &i, side), 2 + 2 * draw(key, &i, side)};
		if (style == 3)
			g = k % 2 ? (struct k3_grid){1, 2, most_patches / 2}
				  : (struct k3_grid){1, 2, 2};
		if (g.t * 2 * g.w > most_patches)
			g = (struct k3_grid){1, g.h, 2};
		used += k3_grid_patches(&g);
		if (used > patches)
			break;
		vision_case_add(v, g, UINT32_MAX);
	}
}

/* What the run's bound says, on the rank of the mesh. */
static void
expect_bound_of(const char *mesh, uint32_t rank, const struct k3_plan_options *o, uint64_t seeds)
{
	struct k3_model *model = vision_case_model(mesh, rank, o);
	struct k3_run_shape shape = {
		.tokens = 300, .accumulate = 2, .evaluates = true, .max_patches = o->max_patches};
	static const struct k3_microbatch what[] = {
		{.backward = true, .first = true, .count = true},
		{.backward = true, .count = true},
		{0}};
	struct k3_memory bound;

	cr_assert_eq(k3_memory_run(&bound, model, &shape), K3_OK);
	for (uint64_t seed = 0; seed < seeds; seed++) {
		struct vision_case v;
		struct k3_plan *plan;
		char name[64];
		vision_case_init(&v, 300, "");
		random_images(&v, k3_rng_key("images", seed), o->max_patches, o->vision_patches);
		snprintf(name, sizeof(name), "seed %u, %zu images", (unsigned)seed,
			 v.layout.n_items);
		cr_assert_eq(k3_plan_microbatch(&plan, model, &v.layout, &what[seed % 3]), K3_OK,
			     "%s", name);
		if (seed % 16 < 3)
			cr_expect_eq(k3_plan_check(plan), K3_OK, "%s", name);
		expect_within(&bound, plan, name);
		k3_plan_destroy(plan);
		vision_case_fini(&v);
	}
	k3_memory_fini(&bound);
	k3_model_destroy(model);
}

static void
expect_bound(const char *mesh, const struct k3_plan_options *o, uint64_t seeds)
{
	expect_bound_of(mesh, 0, o, seeds);
}

TEST(no_microbatch_needs_more_slots_of_a_class_than_the_bound)
{
	static const struct {
		uint32_t tile;
		uint64_t patches;
	} cases[] = {{256, 1024}, {16, 160}, {48, 500}, {64, 64},
		     {64, 20},	  {16, 40},  {16, 24},	{32, 80}};
	struct k3_plan_options o = vision_case_options();

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		o.vision_patches = cases[i].tile;
		o.max_patches = cases[i].patches;
		expect_bound("cp=1", &o, 100);
	}
	o.tile_tokens = 64;
	expect_bound("cp=1", &o, 30);
	/* without room for running ahead a lifetime that depends on the images shows */
	o.run_ahead = 1;
	o.vision_patches = 16;
	o.max_patches = 300;
	expect_bound("cp=1", &o, 60);
	o.tile_tokens = 0;
	o.run_ahead = 200;
	o.vision_patches = 16;
	o.max_patches = 200;
	expect_bound("cp=1", &o, 60);
	expect_bound("dp_shard=2", &o, 30);
	for (uint32_t rank = 0; rank < 2; rank++)
		expect_bound_of("cp=2", rank, &o, 30);
}

/* Few patches for many ranks: tiles of others, and whether there are any of one's own, change
 * with the images. */
TEST(no_microbatch_needs_more_slots_on_any_context_parallel_rank)
{
	static const uint64_t patches[] = {8, 40, 200, 500};
	struct k3_plan_options o = vision_case_options();

	for (size_t i = 0; i < sizeof(patches) / sizeof(patches[0]); i++)
		for (uint32_t rank = 0; rank < 4; rank++) {
			o.vision_patches = 16 + 16 * (uint32_t)(i % 3);
			o.max_patches = patches[i];
			o.run_ahead = rank % 2 ? 1 : 24;
			o.mesh.forced = i % 2;
			expect_bound_of("cp=4", rank, &o, 24);
		}
}

/* Most vision tiles that images of at most `patches` can have: 4 and a full tile in turns. */
TEST(the_worst_images_reach_the_number_of_tiles_that_is_planned_for)
{
	struct k3_plan_options o = vision_case_options();

	o.vision_patches = 32;
	for (uint64_t patches = 4; patches <= 300; patches += 4) {
		struct vision_case v;
		struct k3_plan *plan, *none;
		o.max_patches = patches;
		struct k3_model *model = vision_case_model("cp=1", 0, &o);
		vision_case_init(&v, 300, "");
		uint64_t used = 0;
		for (size_t k = 0; used < patches; k++) {
			struct k3_grid g = {1, 2, k % 2 ? 16 : 2};
			if (used + k3_grid_patches(&g) > patches)
				g.w = 2;
			used += k3_grid_patches(&g);
			vision_case_add(&v, g, UINT32_MAX);
		}
		cr_assert_eq(k3_plan_microbatch(&plan, model, &v.layout, &first), K3_OK);
		cr_expect_eq(k3_plan_check(plan), K3_OK);
		none = vision_case_plan(model, 300, "", first);
		size_t tiles = vision_case_count(plan, K3_OP_VIT_LOAD),
		       want = 2 * (patches / 36) + (patches % 36 >= 4);
		cr_expect_eq(tiles, want, "%zu tiles of %u patches", tiles, (unsigned)patches);
		/* and a microbatch without images takes the slots of all of them */
		cr_expect_eq(plan->slot_bytes, none->slot_bytes, "%u patches", (unsigned)patches);
		cr_expect_eq(plan->n_pos >= none->n_pos, 1);
		k3_plan_destroy(plan);
		k3_plan_destroy(none);
		vision_case_fini(&v);
		k3_model_destroy(model);
	}
}

/* Names of data that are there once in each layer, tile and group. */
static bool
is_of_vision(const char *what)
{
	return strstr(what, "vit_") || strcmp(what, "map") == 0 || strcmp(what, "dembeddings") == 0;
}

/* Lives of the tower's data with images and without: each end moves by none, one or two times
 * what a block has more pairs. */
static void
expect_lives(struct k3_microbatch what, uint32_t more, size_t least)
{
	struct k3_plan_options o = vision_case_options();
	size_t compared = 0;
	char label[96];

	o.vision_patches = 16;
	o.max_patches = 192;
	struct k3_model *model = vision_case_model("cp=1", 0, &o);
	struct k3_plan *none = vision_case_plan(model, 100, "", what),
		       *image = vision_case_plan(model, 100, "1x14x8@7 1x10x8@40", what);
	cr_assert_eq(image->n_pos - none->n_pos, 2 * more);
	for (size_t i = model->n_persist; i < image->n_data; i++) {
		const struct k3_datum *d = &image->data[i];
		if (!is_of_vision(d->what))
			continue;
		int32_t k = k3_plan_find(none, d->what, d->layer, d->tile, d->index);
		cr_assert_geq(k, 0, "%s", k3_datum_label(d, label, sizeof(label)));
		uint32_t begin = d->first_pos - none->data[k].first_pos,
			 end = d->last_pos - none->data[k].last_pos;
		cr_expect((begin == 0 || begin == more || begin == 2 * more) &&
				  (end == 0 || end == more || end == 2 * more),
			  "%s: begins %d, ends %d positions later",
			  k3_datum_label(d, label, sizeof(label)), (int)begin, (int)end);
		cr_expect_eq(d->slot_bytes, none->data[k].slot_bytes);
		compared++;
	}
	cr_expect_gt(compared, least);
	k3_plan_destroy(none);
	k3_plan_destroy(image);
	k3_model_destroy(model);
}

/* Images in seven and five tiles have 74 pairs of attention a block backward, where none has a
 * pair for each of 19 tiles; nothing else may move the lives of data. */
TEST(images_move_lifetimes_by_their_pairs_of_attention_alone)
{
	/* nineteen tiles of some twenty data a block */
	expect_lives(first, 49 + 25 + 7 - 19, 700);
}

TEST(without_a_backward_pass_images_move_no_lifetime)
{
	expect_lives((struct k3_microbatch){0}, 0, 300);
}
