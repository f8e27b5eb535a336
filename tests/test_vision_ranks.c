/* Ranks that share images: what each has to do, and how long it keeps what travels. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "vision_group.h"

#define TEST(name) Test(vision_ranks, name, .timeout = 60)

enum { MOST_LIVES = 512 };

static const struct k3_microbatch first = {.backward = true, .first = true, .count = true},
				  loss_only = {0};

/* Arithmetic of all ranks together in a family. */
static double
flops(struct k3_plan *const *plan, uint32_t ranks)
{
	double sum = 0;

	for (uint32_t r = 0; r < ranks; r++)
		for (size_t i = 0; i < plan[r]->n_tasks; i++)
			if (k3_op_family((enum k3_op)plan[r]->task[i].op) == K3_FAMILY_VIT)
				sum += plan[r]->task[i].flops;
	return sum;
}

TEST(the_ranks_share_the_work_of_one)
{
	struct k3_plan_options o = vision_case_options();
	const char *images = "1x8x8@0 1x8x4@16 1x4x4@24 1x8x8@28 1x8x4@44 1x4x4@52";
	struct k3_model *alone = vision_case_model("cp=1", 0, &o), *model[3];
	struct k3_plan *one = vision_case_plan(alone, 90, images, first), *plan[3];
	double all = flops(&one, 1);

	for (uint32_t r = 0; r < 3; r++) {
		model[r] = vision_case_model("cp=3", r, &o);
		plan[r] = vision_case_plan(model[r], 90, images, first);
		double own = flops(&plan[r], 1);
		cr_expect(own > all / 4 && own < all / 2, "rank %u: %g of %g", r, own, all);
	}
	cr_expect_float_eq(flops(plan, 3), all, 1e-6 * all);
	for (uint32_t r = 0; r < 3; r++) {
		k3_plan_destroy(plan[r]);
		k3_model_destroy(model[r]);
	}
	k3_plan_destroy(one);
	k3_model_destroy(alone);
}

TEST(a_rank_without_items_encodes_a_placeholder_that_stays_at_home)
{
	struct k3_plan_options o = vision_case_options();
	struct k3_model *model = vision_case_model("cp=3", 2, &o);
	struct k3_plan *plan = vision_case_plan(model, 90, "1x8x8@0 1x4x4@40", first);

	cr_expect_eq(vision_case_count(plan, K3_OP_VIT_LOAD), 3);
	cr_expect_eq(vision_group_load(plan, 0)->placeholder, 1);
	cr_expect_eq(vision_group_load(plan, 0)->layout[K3_VL_MERGED0], 20,
		     "behind all that rows want");
	cr_expect_eq(vision_case_count(plan, K3_OP_VIT_MLP_FWD), 2);
	cr_expect_eq(vision_case_count(plan, K3_OP_VIT_MLP_BWD_DX), 0);
	cr_expect_gt(vision_case_count(plan, K3_OP_ZERO_GRADS), 0);
	cr_expect_eq(vision_case_count(plan, K3_OP_GATHER_FEATURES), 2);
	cr_expect_eq(vision_case_count(plan, K3_OP_SUM_FEATURE_GRADS), 2);
	cr_expect_eq(vision_case_count(plan, K3_OP_VISION_SCATTER_BWD), 2);
	k3_plan_destroy(plan);
	/* without images nothing travels */
	plan = vision_case_plan(model, 90, "", first);
	cr_expect_eq(vision_case_count(plan, K3_OP_GATHER_FEATURES), 0);
	cr_expect_eq(vision_case_count(plan, K3_OP_SUM_FEATURE_GRADS), 0);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

/* What one rank forgets, the proof of order finds. */
TEST(features_that_one_rank_does_not_take_are_found)
{
	struct k3_plan_options o = vision_case_options();
	struct k3_model *model[2];
	struct k3_plan *plan[2];

	for (uint32_t r = 0; r < 2; r++) {
		model[r] = vision_case_model("cp=2", r, &o);
		plan[r] = vision_case_plan(model[r], 90, "1x8x8@0 1x4x4@40", first);
	}
	cr_expect_eq(k3_plan_check_order(plan, 2), K3_OK);
	for (size_t i = 0; i < plan[1]->n_tasks; i++)
		if (plan[1]->task[i].op == K3_OP_SUM_FEATURE_GRADS) {
			plan[1]->task[i].comm = -1;
			break;
		}
	capture_begin();
	cr_expect_eq(k3_plan_check_order(plan, 2), K3_EPLAN);
	expect_message(capture_end(), "sum_feature_grads");
	for (uint32_t r = 0; r < 2; r++) {
		k3_plan_destroy(plan[r]);
		k3_model_destroy(model[r]);
	}
}

struct life {
	uint32_t first, last;
};

static int
by_life(const void *a, const void *b)
{
	const struct life *x = a, *y = b;

	if (x->first != y->first)
		return x->first < y->first ? -1 : 1;
	return x->last < y->last ? -1 : x->last > y->last;
}

/* Lives of the data of a name, sorted. */
static size_t
lives(const struct k3_plan *plan, const char *what, struct life life[MOST_LIVES])
{
	size_t n = 0;

	for (size_t i = 0; i < plan->n_data; i++)
		if (strcmp(plan->data[i].what, what) == 0) {
			cr_assert_lt(n, MOST_LIVES);
			life[n++] = (struct life){plan->data[i].first_pos, plan->data[i].last_pos};
		}
	qsort(life, n, sizeof(*life), by_life);
	return n;
}

/* Where patches are bounded, what travels lives as long for any images as for none. */
TEST(lives_of_what_travels_do_not_depend_on_the_images)
{
	static const char *const images[] = {"1x8x8@0 1x4x4@40 1x2x2@50", "1x2x2@89",
					     "1x8x4@0 1x8x4@8 1x8x4@16 1x8x4@24"};
	static const char *const names[] = {"vit_features", "dvit_features", "vit_layout"};
	struct k3_plan_options o = vision_case_options();

	o.max_patches = 160;
	o.vision_patches = 32;
	for (uint32_t rank = 0; rank < 3; rank++) {
		struct k3_model *model = vision_case_model("cp=3", rank, &o);
		for (size_t i = 0; i < sizeof(images) / sizeof(images[0]); i++)
			for (int backward = 0; backward < 2; backward++) {
				struct k3_microbatch what = backward ? first : loss_only;
				struct k3_plan *none = vision_case_plan(model, 90, "", what),
					       *some = vision_case_plan(model, 90, images[i], what);
				/* layouts stay for the backward pass, whose pairs are the
				 * images' */
				for (size_t k = 0; k < (backward ? 2 : 3); k++) {
					struct life a[MOST_LIVES], b[MOST_LIVES];
					size_t n = lives(none, names[k], a);
					cr_assert_eq(lives(some, names[k], b), n, "%s", names[k]);
					cr_expect(backward || k == 1 || n > 2);
					cr_expect_arr_eq(a, b, n * sizeof(*a), "rank %u, %s: %s",
							 rank, images[i], names[k]);
				}
				k3_plan_destroy(none);
				k3_plan_destroy(some);
			}
		k3_model_destroy(model);
	}
}
