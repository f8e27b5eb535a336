/* Plans with images: how items are cut, which tiles attend to which, where features go, and what a
 * microbatch without images does. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "vision_case.h"

#define TEST(name) Test(vision_plan, name, .timeout = 60)

static const struct k3_microbatch first = {.backward = true, .first = true, .count = true},
				  next = {.backward = true, .count = true}, loss_only = {0};

/* Parts of all tiles: whole merge rows that cover each item once, in order, and sums that fit. */
static void
expect_cover(const struct k3_plan *plan, const struct vision_case *v)
{
	size_t item = 0;
	int32_t row = 0, merged = 0;

	for (size_t i = 0; vision_case_tile(plan, i); i++) {
		const int32_t *l = vision_case_tile(plan, i);
		int32_t n = 0, m = 0;
		cr_expect_eq(l[K3_VL_MERGED0], merged);
		for (int32_t p = 0; p < l[K3_VL_PARTS]; p++) {
			const int32_t *a = k3_vit_part(l, p);
			const struct k3_grid *g = &v->grid[item];
			cr_assert_eq(a[K3_VP_ITEM], item);
			cr_expect(a[K3_VP_T] == (int32_t)g->t && a[K3_VP_H] == (int32_t)g->h &&
				  a[K3_VP_W] == (int32_t)g->w);
			cr_expect(a[K3_VP_ROW0] == row && a[K3_VP_ROWS] > 0 &&
				  a[K3_VP_ROWS] % 2 == 0);
			cr_expect(a[K3_VP_PATCH0] == n && a[K3_VP_MERGED0] == m);
			n += a[K3_VP_T] * a[K3_VP_ROWS] * a[K3_VP_W];
			m += a[K3_VP_ROWS] * a[K3_VP_W] / 4;
			row += a[K3_VP_ROWS];
			if (row == a[K3_VP_H]) {
				item++;
				row = 0;
			}
		}
		cr_expect(l[K3_VL_PATCHES] == n && l[K3_VL_MERGED] == m);
		merged += m;
	}
	cr_expect_eq(item, v->layout.n_items);
}

static bool
share_an_item(const int32_t *x, const int32_t *y)
{
	for (int32_t p = 0; p < x[K3_VL_PARTS]; p++)
		for (int32_t r = 0; r < y[K3_VL_PARTS]; r++)
			if (k3_vit_part(x, p)[K3_VP_ITEM] == k3_vit_part(y, r)[K3_VP_ITEM])
				return true;
	return false;
}

/* Attention of a tile reads its partners alone, in order; backward there is a task for each
 * pair. */
static void
expect_partners(const struct k3_plan *plan)
{
	size_t n = vision_case_count(plan, K3_OP_VIT_LOAD), pairs = 0;

	for (size_t i = 0; i < n; i++) {
		const struct k3_task *t = vision_case_task(plan, K3_OP_VIT_ATTN_FWD, i);
		const struct k3_vit_attn_args *a = t->args;
		uint32_t k = 0;
		for (size_t j = 0; j < n; j++) {
			if (!share_an_item(vision_case_tile(plan, i), vision_case_tile(plan, j)))
				continue;
			const struct k3_access *at = plan->access + t->first_access;
			cr_assert_lt(k, a->kqkv.n, "tile %zu, key %zu", i, j);
			cr_expect_eq(plan->data[at[a->kqkv.first + k].datum].tile, j);
			cr_expect_eq(plan->data[at[a->klayout.first + k].datum].tile, j);
			pairs++;
			k++;
		}
		cr_expect_eq(a->kqkv.n, k);
		cr_expect_eq(a->klayout.n, k);
	}
	/* two blocks */
	cr_expect_eq(vision_case_count(plan, K3_OP_VIT_ATTN_BWD), 2 * pairs);
}

/* Rows of the stream that features replace, from all text tiles. */
static void
expect_map(const struct k3_plan *plan, const struct vision_case *v, bool backward)
{
	int32_t want[1024], merged = 0;

	memset(want, -1, sizeof(want));
	for (size_t k = 0; k < v->layout.n_items; k++)
		for (uint32_t m = 0; m < v->grid[k].h * v->grid[k].w / 4; m++)
			want[v->row[k] + m] = merged++;
	for (size_t i = 0; i < plan->own_n; i++) {
		const struct k3_batch_load_args *a =
			vision_case_task(plan, K3_OP_BATCH_LOAD, i)->args;
		const struct k3_tile *t = &plan->tile[i];
		bool any = backward;
		for (size_t r = 0; r < t->rows; r++)
			any = any || want[t->row0 + r] >= 0;
		cr_expect_eq(a->map.n, any, "text tile %zu", i);
		cr_expect_arr_eq(a->map_rows, want + t->row0, t->rows * sizeof(*want),
				 "text tile %zu", i);
	}
}

static void
expect_sound(const struct k3_plan_options *o, size_t n_tokens, const char *images)
{
	struct k3_model *model = vision_case_model("cp=1", 0, o);
	const struct k3_microbatch what[] = {first, next, loss_only};
	struct vision_case v;

	vision_case_init(&v, n_tokens, images);
	for (size_t i = 0; i < 3; i++) {
		struct k3_plan *plan = vision_case_plan(model, n_tokens, images, what[i]);
		expect_cover(plan, &v);
		expect_map(plan, &v, what[i].backward);
		if (what[i].backward)
			expect_partners(plan);
		k3_plan_destroy(plan);
	}
	vision_case_fini(&v);
	k3_model_destroy(model);
}

/* Patches and parts of each vision tile, "24:1 8:2". */
static void
expect_tiles(const struct k3_plan_options *o, const char *images, const char *want)
{
	struct k3_model *model = vision_case_model("cp=1", 0, o);
	struct k3_plan *plan = vision_case_plan(model, 600, images, first);
	char got[512] = "";

	for (size_t i = 0; vision_case_tile(plan, i); i++) {
		const int32_t *l = vision_case_tile(plan, i);
		size_t n = strlen(got);
		snprintf(got + n, sizeof(got) - n, "%s%d:%d", i ? " " : "", l[K3_VL_PATCHES],
			 l[K3_VL_PARTS]);
	}
	cr_expect_str_eq(got, want, "%s: tiles %s, expected %s", images, got, want);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

TEST(an_image_in_one_two_three_and_all_rows_bands_is_sound)
{
	static const uint32_t bands[] = {0, 1, 2, 3, 6, 100};

	for (size_t i = 0; i < sizeof(bands) / sizeof(bands[0]); i++)
		for (uint32_t tile = 0; tile <= 64; tile += 64) {
			struct k3_plan_options o = vision_case_options();
			o.vision_bands = bands[i];
			o.tile_tokens = tile;
			expect_sound(&o, 150, "1x12x6@3");
			expect_sound(&o, 150, "1x12x6@3 1x2x2@21 1x4x10@22 1x8x2@100");
		}
}

TEST(images_lie_across_the_borders_of_text_tiles)
{
	struct k3_plan_options o = vision_case_options();

	o.tile_tokens = 64;
	expect_sound(&o, 250, "1x16x8@50 1x40x16@82");
	/* the second image covers one text tile and parts of two others */
	struct k3_model *model = vision_case_model("cp=1", 0, &o);
	struct k3_plan *plan = vision_case_plan(model, 200, "1x2x2@0 1x32x10@60", first);
	/* vision tiles: the small image with a band of 160 patches, the other band */
	static const uint32_t tiles_read[] = {1, 2, 1};
	for (size_t i = 0; i < 3; i++) {
		const struct k3_task *t = vision_case_task(plan, K3_OP_VISION_SCATTER_FWD, i);
		const struct k3_vision_scatter_args *a = t->args;
		cr_expect_eq(t->tile, i);
		cr_expect_eq(a->y.n, tiles_read[i], "text tile %zu reads %u tiles", i, a->y.n);
	}
	cr_expect_eq(vision_case_count(plan, K3_OP_VISION_SCATTER_FWD), 3);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

TEST(frames_stay_together_in_every_band)
{
	for (uint32_t frames = 1; frames <= 4; frames++) {
		struct k3_plan_options o = vision_case_options();
		char images[64];
		snprintf(images, sizeof(images), "%ux10x8@5 1x2x2@25", frames);
		expect_sound(&o, 80, images);
		o.vision_bands = 3;
		expect_sound(&o, 80, images);
	}
}

TEST(small_images_share_a_tile_and_large_ones_are_cut_in_equal_bands)
{
	struct k3_plan_options o = vision_case_options();

	expect_tiles(&o, "1x2x2@0", "4:1");
	expect_tiles(&o, "1x2x2@0 1x4x4@1 2x4x6@5", "68:3");
	expect_tiles(&o, "1x16x16@0 1x2x2@64", "256:1 4:1");
	expect_tiles(&o, "1x32x32@0", "256:1 256:1 256:1 256:1");
	/* nine merge rows of 32 patches: bands of five and four; the next image joins the last */
	expect_tiles(&o, "1x18x16@0 1x4x4@72", "160:1 144:2");
	expect_tiles(&o, "1x4x4@0 1x18x16@4", "176:2 128:1");
	/* a merge row that is more than a tile has a tile of its own */
	expect_tiles(&o, "1x2x2@0 4x4x40@1 1x2x2@81", "4:1 320:1 320:1 4:1");
	o.vision_patches = 16;
	expect_tiles(&o, "1x6x4@0 1x2x2@6 1x2x4@7", "16:1 12:2 8:1");
	o.vision_bands = 2;
	expect_tiles(&o, "1x6x4@0 1x2x2@6", "16:1 8:1 4:1");
}

TEST(an_image_has_at_most_64_tiles)
{
	struct k3_plan_options o = vision_case_options();
	char want[512] = "";

	o.vision_patches = 4;
	/* 130 merge rows of one merged token: three rows a band, the last has one */
	for (int i = 0; i < 44; i++)
		strcat(want, i == 0 ? "12:1" : i < 43 ? " 12:1" : " 4:1");
	expect_tiles(&o, "1x260x2@0", want);
}

TEST(all_policies_of_activations_leave_the_tower_alone)
{
	struct k3_plan_options o = vision_case_options();
	size_t tasks[2];

	for (int i = 0; i < 2; i++) {
		memset(o.activations, i ? K3_RECOMPUTE : K3_KEEP, sizeof(o.activations));
		struct k3_model *model = vision_case_model("cp=1", 0, &o);
		struct k3_plan *plan = vision_case_plan(model, 90, "1x8x8@3 1x4x4@60", first);
		tasks[i] = 0;
		for (size_t k = 0; k < plan->n_tasks; k++)
			tasks[i] += k3_op_family((enum k3_op)plan->task[k].op) == K3_FAMILY_VIT;
		k3_plan_destroy(plan);
		k3_model_destroy(model);
	}
	cr_expect_eq(tasks[0], tasks[1]);
	/* one tile: embed, merge, project, scatter, and per block qkv, attention, out, mlp */
	cr_expect_eq(tasks[0], 1 + 1 + 1 + 1 + 2 * 4 + 1 + 1 + 2 + 1 + 2 * (2 + 1 + 2 + 2));
}

/* Modes in which a plan's zero tasks touch gradients; their number. */
static size_t
zeros(const struct k3_plan *plan, uint8_t mode)
{
	size_t n = 0;

	for (size_t i = 0; vision_case_task(plan, K3_OP_ZERO_GRADS, i); i++) {
		const struct k3_task *t = vision_case_task(plan, K3_OP_ZERO_GRADS, i);
		const struct k3_zero_args *a = t->args;
		cr_expect_eq(a->accumulate, mode == K3_RW);
		for (uint32_t k = 0; k < t->n_access; k++, n++) {
			const struct k3_access *at = &plan->access[t->first_access + k];
			const struct k3_datum *d = &plan->data[at->datum];
			const struct k3_param *p = &plan->model->params.param[d->param];
			cr_expect_eq(at->mode, mode, "%s", p->name);
			cr_expect(p->unit == K3_UNIT_VISION && d->kind == K3_DATA_GRAD);
			cr_expect_eq(a->elems[k] * sizeof(float), d->bytes);
		}
	}
	return n;
}

TEST(without_images_the_tower_runs_once_over_one_merged_token_and_gives_zeros)
{
	struct k3_plan_options o = vision_case_options();
	struct k3_model *model = vision_case_model("cp=1", 0, &o);
	const struct k3_microbatch what[] = {first, next};
	size_t blocks = 0;

	for (size_t i = 0; i < model->params.n; i++)
		if (model->params.param[i].unit == K3_UNIT_VISION)
			blocks += model->params.param[i].n_blocks;
	for (size_t i = 0; i < 2; i++) {
		struct k3_plan *plan = vision_case_plan(model, 100, "", what[i]);
		const int32_t *l = vision_case_tile(plan, 0);
		cr_assert_eq(vision_case_count(plan, K3_OP_VIT_LOAD), 1);
		const struct k3_vit_load_args *a = vision_case_task(plan, K3_OP_VIT_LOAD, 0)->args;
		cr_expect_eq(a->placeholder, 1);
		cr_expect(l[K3_VL_PATCHES] == 4 && l[K3_VL_MERGED] == 1 && l[K3_VL_PARTS] == 1);
		const int32_t *p = k3_vit_part(l, 0);
		cr_expect(p[K3_VP_T] == 1 && p[K3_VP_H] == 2 && p[K3_VP_W] == 2);
		cr_expect_eq(vision_case_count(plan, K3_OP_VIT_MLP_FWD), 2);
		cr_expect_eq(vision_case_count(plan, K3_OP_VIT_PROJECT_FWD), 1);
		cr_expect_eq(vision_case_count(plan, K3_OP_VISION_SCATTER_FWD), 0);
		cr_expect_eq(vision_case_count(plan, K3_OP_VIT_MLP_BWD_DX), 0);
		cr_expect_eq(vision_case_count(plan, K3_OP_VIT_PATCH_EMBED_BWD), 0);
		cr_expect_eq(zeros(plan, i ? K3_RW : K3_W), blocks);
		k3_plan_destroy(plan);
	}
	struct k3_plan *plan = vision_case_plan(model, 100, "1x2x2@7", first);
	cr_expect_eq(zeros(plan, K3_W), 0, "images give the gradients themselves");
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

/* What k3_bench vision runs: embeddings, tower and their gradients. */
TEST(the_tower_alone_is_a_plan_without_text_layers)
{
	struct k3_plan_options o = vision_case_options();
	struct k3_microbatch what = {.backward = true, .first = true, .tower = true};

	o.tile_tokens = 64;
	struct k3_model *model = vision_case_model("cp=1", 0, &o);
	struct k3_plan *all = vision_case_plan(model, 100, "1x16x16@0 1x4x4@70", first),
		       *tower = vision_case_plan(model, 100, "1x16x16@0 1x4x4@70", what);
	size_t vit[2] = {0, 0};
	for (size_t i = 0; i < all->n_tasks; i++)
		vit[0] += k3_op_family((enum k3_op)all->task[i].op) == K3_FAMILY_VIT;
	for (size_t i = 0; i < tower->n_tasks; i++) {
		enum k3_family f = k3_op_family((enum k3_op)tower->task[i].op);
		vit[1] += f == K3_FAMILY_VIT;
		cr_expect(f == K3_FAMILY_VIT || f == K3_FAMILY_EMBED || f == K3_FAMILY_IO, "%s",
			  tower->task[i].name);
	}
	cr_expect_eq(vit[0], vit[1]);
	k3_plan_destroy(all);
	k3_plan_destroy(tower);
	k3_model_destroy(model);
}
