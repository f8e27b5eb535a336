/* What the tasks of the vision walk read and write: pairs of attention, gradients of features.
 * By hand, so that a wrong tile or a wrong first contribution shows before anything runs. */
#include <criterion/criterion.h>
#include <string.h>

#include "vision_case.h"

#define TEST(name) Test(vision_walk, name, .timeout = 60)

static const struct k3_microbatch first = {.backward = true, .first = true, .count = true};

static const struct k3_datum *
operand(const struct k3_plan *plan, const struct k3_task *t, size_t i)
{
	cr_assert_lt(i, t->n_access, "%s", t->name);
	return &plan->data[plan->access[t->first_access + i].datum];
}

static void
expect_operand(const struct k3_plan *plan, const struct k3_task *t, size_t i, const char *what,
	       size_t tile, uint8_t mode)
{
	const struct k3_datum *d = operand(plan, t, i);

	cr_expect(strcmp(d->what, what) == 0 && d->tile == (int32_t)tile,
		  "%s, operand %zu is %s of tile %d, expected %s of tile %zu", t->name, i, d->what,
		  d->tile, what, tile);
	cr_expect_eq(plan->access[t->first_access + i].mode, mode, "%s, operand %zu", t->name, i);
}

/* Tiles 0 to 2 hold the first image, 2 and 3 the second: {queries, keys}, both descending. */
static const size_t pairs[][2] = {{3, 3}, {3, 2}, {2, 3}, {2, 2}, {2, 1}, {2, 0},
				  {1, 2}, {1, 1}, {1, 0}, {0, 2}, {0, 1}, {0, 0}};
enum { PAIRS = sizeof(pairs) / sizeof(pairs[0]), TILES = 4 };

static void
expect_pair(const struct k3_plan *plan, const struct k3_task *t, const size_t pair[2], bool *dq,
	    bool *dkv)
{
	static const char *const what[] = {"vit_qkv",	 "vit_qkv",    "dvit_o",    "vit_lse",
					   "dvit_delta", "vit_layout", "vit_layout"};
	static const int of[] = {0, 1, 0, 0, 0, 0, 1};
	const struct k3_vit_attn_args *a = t->args;
	size_t q = pair[0], k = pair[1];

	cr_expect_eq(a->init_dq, !dq[q], "%s", t->name);
	cr_expect_eq(a->init_dkv, !dkv[k], "%s", t->name);
	expect_operand(plan, t, 0, "dvit_q", q, dq[q] ? K3_RW : K3_W);
	expect_operand(plan, t, 1, "dvit_kv", k, dkv[k] ? K3_RW : K3_W);
	for (size_t i = 0; i < sizeof(what) / sizeof(what[0]); i++)
		expect_operand(plan, t, 2 + i, what[i], pair[of[i]], K3_R);
	cr_expect_eq(a->n, vision_case_tile(plan, q)[K3_VL_PATCHES]);
	cr_expect_eq(a->nk, vision_case_tile(plan, k)[K3_VL_PATCHES]);
	dq[q] = dkv[k] = true;
}

TEST(pairs_of_attention_descend_and_the_first_of_a_sum_writes)
{
	struct k3_plan_options o = vision_case_options();

	o.vision_patches = 48;
	/* bands of 3, 3 and 1 merge rows of 16 patches, and of 2 and 2: the middle ones share a
	 * tile */
	struct k3_model *model = vision_case_model("cp=1", 0, &o);
	struct k3_plan *plan = vision_case_plan(model, 200, "1x14x8@0 1x8x8@60", first);
	cr_assert_eq(vision_case_count(plan, K3_OP_VIT_LOAD), TILES);
	cr_assert_eq(vision_case_count(plan, K3_OP_VIT_ATTN_BWD), 2 * PAIRS);
	for (size_t block = 0; block < 2; block++) {
		bool dq[TILES] = {false}, dkv[TILES] = {false};
		for (size_t i = 0; i < PAIRS; i++)
			expect_pair(plan,
				    vision_case_task(plan, K3_OP_VIT_ATTN_BWD, block * PAIRS + i),
				    pairs[i], dq, dkv);
	}
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

/* Text tiles that the gradient of each vision tile's features reads: first to last. */
static void
expect_sources(const char *images, const size_t want[2][2])
{
	struct k3_plan_options o = vision_case_options();

	o.tile_tokens = 64;
	struct k3_model *model = vision_case_model("cp=1", 0, &o);
	struct k3_plan *plan = vision_case_plan(model, 200, images, first);
	cr_assert_eq(vision_case_count(plan, K3_OP_VISION_SCATTER_BWD), 2);
	for (size_t i = 0; i < 2; i++) {
		const struct k3_task *t = vision_case_task(plan, K3_OP_VISION_SCATTER_BWD, i);
		const struct k3_vision_scatter_args *a = t->args;
		size_t tile = 1 - i, n = want[tile][1] - want[tile][0] + 1;
		cr_expect_eq(t->tile, (int)tile);
		cr_assert(a->dp.n == n && a->map.n == n, "%s, vision tile %zu: %u tiles, not %zu",
			  images, tile, a->dp.n, n);
		expect_operand(plan, t, 1, "vit_layout", tile, K3_R);
		for (size_t k = 0; k < n; k++) {
			const struct k3_datum *dp = operand(plan, t, a->dp.first + k);
			cr_expect_eq(dp->tile, (int32_t)(want[tile][0] + k));
			cr_expect_eq(a->rows[k], dp->rows);
			expect_operand(plan, t, a->map.first + k, "map", want[tile][0] + k, K3_R);
		}
	}
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

/* One merged token and 40 of the second image lie in vision tile 0, the other 40 in tile 1. */
TEST(gradients_of_features_come_from_the_text_tiles_that_hold_their_rows)
{
	expect_sources("1x2x2@0 1x32x10@60", (const size_t[2][2]){{0, 1}, {1, 2}});
	/* the tiles' border is that of the text */
	expect_sources("1x2x2@0 1x32x10@24", (const size_t[2][2]){{0, 0}, {1, 1}});
	expect_sources("1x2x2@0 1x32x10@25", (const size_t[2][2]){{0, 1}, {1, 1}});
	expect_sources("1x2x2@0 1x32x10@23", (const size_t[2][2]){{0, 0}, {0, 1}});
}
