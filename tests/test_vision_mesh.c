/* Meshes with images: every rank takes part in the same collectives in the same order, whether
 * its own microbatch has images or not. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../planner/mesh.h"
#include "vision_case.h"

#define TEST(name) Test(vision_mesh, name, .timeout = 60)

/* Collectives of a plan as text: operation, layer, group, elements. */
static char *
collectives(const struct k3_plan *plan)
{
	char *text = calloc(plan->n_tasks + 1, 96);
	size_t n = 0;

	cr_assert_not_null(text);
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		if (t->comm >= 0)
			n += (size_t)sprintf(
				text + n, "%s %d %s %llu\n", k3_op_name((enum k3_op)t->op),
				t->layer, plan->comm[t->comm].name, (unsigned long long)t->count);
	}
	return text;
}

/* Steps of all ranks: images[m][i] of microbatch m of data-parallel rank i. */
static void
prove(const char *mesh, const struct k3_plan_options *o, const char *const images[][4],
      size_t microbatches)
{
	struct k3_mesh m;
	cr_assert_eq(k3_mesh_parse(&m, mesh), K3_OK);
	uint32_t ranks = k3_mesh_ranks(&m);
	struct k3_order *order = k3_order_create(ranks, false);
	char *want[4] = {NULL};

	cr_assert_not_null(order);
	for (uint32_t rank = 0; rank < ranks; rank++) {
		struct k3_model *model = vision_case_model(mesh, rank, o);
		for (size_t i = 0; i < microbatches; i++) {
			struct k3_microbatch what = {
				.backward = true, .first = i == 0, .count = true};
			struct k3_plan *plan =
				vision_case_plan(model, 90, images[i][rank / m.cp], what);
			cr_expect_eq(k3_order_add(order, plan, rank), K3_OK);
			/* without cp the groups' names alone differ; ranks 0 and 1 share them */
			char *got = collectives(plan);
			if (m.cp == 1 && m.dp_replicate == 1 && want[i])
				cr_expect_str_eq(got, want[i], "rank %u, microbatch %zu", rank, i);
			if (want[i])
				free(got);
			else
				want[i] = got;
			k3_plan_destroy(plan);
		}
		struct k3_plan *end;
		cr_assert_eq(k3_plan_optimizer(&end, model, 0), K3_OK);
		cr_expect_eq(k3_order_add(order, end, rank), K3_OK);
		k3_plan_destroy(end);
		k3_model_destroy(model);
	}
	cr_expect_eq(k3_order_check(order), K3_OK, "%s", mesh);
	k3_order_destroy(order);
	for (size_t i = 0; i < microbatches; i++)
		free(want[i]);
}

static const char *const images[][4] = {
	{"1x16x16@3 1x2x2@70", "", "1x2x2@89", "4x8x8@0"},
	{"", "", "1x40x8@2", "1x2x2@1 1x2x2@2 1x2x2@3"},
	{"", "2x4x4@50", "", ""},
};

TEST(ranks_with_and_without_images_have_the_same_collectives)
{
	for (uint32_t ahead = 1; ahead <= 4; ahead++)
		for (uint64_t patches = 0; patches <= 512; patches += 512) {
			struct k3_plan_options o = vision_case_options();
			o.gather_slots = ahead;
			o.max_patches = patches;
			prove("dp_shard=4", &o, images, 3);
			o.block_bytes = 5000;
			o.piece_bytes = 12000;
			prove("dp_shard=4", &o, images, 1);
		}
}

TEST(replicas_and_context_ranks_are_proved_with_images)
{
	struct k3_plan_options o = vision_case_options();

	prove("dp_replicate=4", &o, images, 3);
	prove("dp_replicate=2,dp_shard=2", &o, images, 3);
	prove("dp_shard=2,cp=2", &o, images, 3);
	o.max_patches = 400;
	o.tile_tokens = 64;
	prove("dp_replicate=2,dp_shard=2,cp=2", &o, images, 3);
	o.activations[1] = K3_RECOMPUTE;
	o.gather_slots = 1;
	prove("cp=3", &o, images, 3);
}

/* A loss between steps: no backward walk. */
TEST(evaluation_gathers_the_tower_once_with_and_without_images)
{
	struct k3_plan_options o = vision_case_options();
	char *text[2];

	for (int i = 0; i < 2; i++) {
		struct k3_model *model = vision_case_model("dp_shard=2", (uint32_t)i, &o);
		struct k3_plan *plan =
			vision_case_plan(model, 90, i ? "1x8x8@4" : "", (struct k3_microbatch){0});
		text[i] = collectives(plan);
		k3_plan_destroy(plan);
		k3_model_destroy(model);
	}
	cr_expect_str_eq(text[0], text[1]);
	cr_expect_not_null(strstr(text[0], "gather_params"));
	free(text[0]);
	free(text[1]);
}

static enum k3_unit
unit_of(const struct k3_plan *plan, const struct k3_task *t)
{
	const struct k3_datum *d = &plan->data[plan->access[t->first_access].datum];

	return plan->model->params.param[d->param].unit;
}

/* Gathers of the tower in a pass: the first task, and how many there are. */
static size_t
gathers_of_tower(const struct k3_plan *plan, uint8_t pass, size_t *at)
{
	size_t n = 0;

	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		if (t->op != K3_OP_GATHER_PARAMS || t->pass != pass ||
		    unit_of(plan, t) != K3_UNIT_VISION)
			continue;
		if (n++ == 0)
			*at = i;
	}
	return n;
}

/* While the first layer goes backward the tower is on its way; with one slot it has to wait. */
TEST(the_tower_is_gathered_ahead_of_its_backward_walk)
{
	for (uint32_t slots = 1; slots <= 2; slots++) {
		struct k3_plan_options o = vision_case_options();
		struct k3_microbatch what = {.backward = true, .first = true, .count = true};
		size_t gather = 0, last = 0;
		o.gather_slots = slots;
		struct k3_model *model = vision_case_model("dp_shard=2", 0, &o);
		struct k3_plan *plan = vision_case_plan(model, 90, "1x8x8@4", what);
		cr_assert_gt(gathers_of_tower(plan, K3_PASS_BACKWARD, &gather), 0);
		for (size_t i = 0; i < plan->n_tasks; i++)
			if (plan->task[i].layer == 0 && plan->task[i].pass == K3_PASS_BACKWARD &&
			    plan->task[i].comm < 0)
				last = i;
		cr_expect_eq(gather < last, slots == 2, "%u slots: task %zu, layer 0 ends at %zu",
			     slots, gather, last);
		k3_plan_destroy(plan);
		k3_model_destroy(model);
	}
}

/* Without images the backward pass gathers for nothing; forward that would be a fault. */
TEST(only_the_backward_pass_may_gather_the_tower_and_read_nothing)
{
	struct k3_plan_options o = vision_case_options();
	struct k3_microbatch what = {.backward = true, .first = true, .count = true};
	struct k3_model *model = vision_case_model("dp_shard=2", 0, &o);
	struct k3_plan *plan = vision_case_plan(model, 90, "", what);
	size_t at = 0;

	cr_assert_gt(gathers_of_tower(plan, K3_PASS_BACKWARD, &at), 0);
	plan->task[at].pass = K3_PASS_FORWARD;
	capture_begin();
	cr_expect_eq(k3_plan_check(plan), K3_EPLAN);
	expect_message(capture_end(), "is written and nothing reads it");
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}
