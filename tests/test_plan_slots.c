/* Slots by the rule, looked for one by one; and that planning does not look for them, nor for
 * anything else, one by one: its steps grow like its positions. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../planner/build.h"
#include "vision_case.h"

#define TEST(name) Test(plan_slots, name, .timeout = 60)

static const struct k3_microbatch first = {.backward = true, .first = true, .count = true};

/* Eight sizes to an octave, 256 bytes apart at least. */
static size_t
class_bytes(size_t bytes)
{
	size_t step = 256;

	while (step * 16 < bytes)
		step *= 2;
	return (bytes + step - 1) / step * step;
}

/* First position at which the place of a datum may be taken again. */
static uint64_t
free_from(const struct k3_plan *plan, const struct k3_datum *d)
{
	uint32_t ahead = plan->model->options.run_ahead;

	if (d->keep)
		return UINT64_MAX;
	if (d->kind == K3_DATA_WORK && d->first_pos == d->last_pos && ahead > K3I_WORK_AHEAD)
		ahead = K3I_WORK_AHEAD;
	return (uint64_t)d->last_pos + 1 + (d->kind == K3_DATA_GATHERED ? 0 : ahead);
}

/* The rule: data in the order of their first positions, equal ones in the order of the table; each
 * takes the youngest place of its class that is free, or a new one. */
static void
expect_rule(const struct k3_plan *plan)
{
	uint64_t *free_pos = calloc(plan->n_slots + 1, sizeof(*free_pos));
	uint64_t bytes = 0;
	size_t n = 0;

	cr_assert_not_null(free_pos);
	for (uint32_t pos = 0; pos <= plan->n_pos; pos++)
		for (size_t i = plan->model->n_persist; i < plan->n_data; i++) {
			const struct k3_datum *d = &plan->data[i];
			size_t at = n, size = class_bytes(d->slot_bytes);
			uint32_t ordinal = 0;
			if (d->first_pos != pos || d->first_pos > d->last_pos)
				continue;
			for (size_t s = 0; s < n; s++) {
				if (plan->slot[s].bytes != size)
					continue;
				ordinal++;
				if (free_pos[s] <= pos)
					at = s;
			}
			cr_assert_eq(d->slot, at, "%s at position %u", d->what, pos);
			if (at == n) {
				cr_assert_eq(plan->slot[at].bytes, size);
				cr_assert_eq(plan->slot[at].ordinal, ordinal);
				bytes += size;
				n++;
			}
			free_pos[at] = free_from(plan, d);
		}
	cr_expect_eq(plan->n_slots, n);
	cr_expect_eq(plan->slot_bytes, bytes);
	free(free_pos);
}

TEST(every_datum_has_the_youngest_free_place_of_its_class)
{
	static const uint32_t ahead[] = {1, 24, 500, 100000};

	for (size_t i = 0; i < sizeof(ahead) / sizeof(ahead[0]); i++)
		for (int keep = 0; keep < 2; keep++) {
			struct k3_microbatch what = first;
			struct k3_plan_options o = vision_case_options();
			o.run_ahead = ahead[i];
			o.tile_tokens = 64;
			o.vision_patches = 16;
			what.keep = keep;
			struct k3_model *model =
				vision_case_model(i % 2 ? "dp_shard=2" : "cp=2", 1, &o);
			struct k3_plan *plan = vision_case_plan(
				model, 200, "1x8x8@3 1x4x4@40 2x6x4@60 1x2x2@180", what);
			expect_rule(plan);
			k3_plan_destroy(plan);
			k3_model_destroy(model);
		}
}

/* Steps and positions of a microbatch. */
struct cost {
	double steps, positions;
};

static struct cost
cost_of(const char *mesh, const struct k3_plan_options *o, const struct k3_layout *layout)
{
	struct k3_model *model = vision_case_model(mesh, 0, o);
	struct k3_plan *plan;
	struct cost c;

	cr_assert_eq(k3_plan_microbatch(&plan, model, layout, &first), K3_OK);
	c = (struct cost){(double)plan->steps, plan->n_pos};
	k3_plan_destroy(plan);
	k3_model_destroy(model);
	return c;
}

/* With so many images of a kind, side by side or with text between them. */
static struct cost
images_cost(const char *mesh, const struct k3_plan_options *o, size_t n, struct k3_grid grid,
	    uint32_t between)
{
	uint32_t merged = grid.h * grid.w / 4;
	struct vision_case v;

	vision_case_init(&v, n * (merged + between), "");
	for (uint32_t i = 0; i < n; i++)
		vision_case_add(&v, grid, i * (merged + between));
	struct cost c = cost_of(mesh, o, &v.layout);
	vision_case_fini(&v);
	return c;
}

/* Eight times the input: no position may cost more than before, but for the depth of heaps. */
static void
expect_growth(struct cost small, struct cost large, const char *what)
{
	double before = small.steps / small.positions, after = large.steps / large.positions;

	cr_expect_gt(large.positions, 4 * small.positions, "%s: %g and %g positions", what,
		     small.positions, large.positions);
	cr_expect_leq(after, 1.3 * before + 1, "%s: %g steps a position, then %g", what, before,
		      after);
	cr_expect_leq(after, 24, "%s: %g steps a position", what, after);
}

TEST(steps_grow_like_positions_with_the_number_of_images)
{
	static const struct {
		const char *mesh;
		struct k3_grid grid;
		uint32_t between, tile_tokens;
	} cases[] = {
		{"cp=1", {1, 16, 16}, 0, 0},	  {"cp=1", {1, 16, 16}, 0, 64},
		{"cp=1", {1, 2, 2}, 63, 64},	  {"cp=1", {1, 64, 64}, 0, 512},
		{"cp=1", {4, 8, 8}, 100, 64},	  {"cp=4", {1, 16, 16}, 7, 64},
		{"dp_shard=2", {1, 8, 8}, 0, 64},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct k3_plan_options o = vision_case_options();
		char what[32];
		o.tile_tokens = cases[i].tile_tokens;
		o.vision_patches = 64;
		snprintf(what, sizeof(what), "case %zu", i);
		expect_growth(images_cost(cases[i].mesh, &o, 32, cases[i].grid, cases[i].between),
			      images_cost(cases[i].mesh, &o, 256, cases[i].grid, cases[i].between),
			      what);
	}
}

/* Text alone, in tiles of 64 tokens: positions grow with the pairs of tiles. */
TEST(steps_grow_like_positions_with_the_tokens)
{
	struct k3_plan_options o = vision_case_options();
	struct cost c[2];

	o.tile_tokens = 64;
	o.vision = false;
	for (size_t i = 0; i < 2; i++) {
		struct vision_case v;
		vision_case_init(&v, i ? 8 * 2048 : 2048, "");
		for (size_t r = 0; r < v.layout.n_tokens; r++)
			v.ids[r] = (int32_t)(1 + r / 100);
		c[i] = cost_of("cp=1", &o, &v.layout);
		vision_case_fini(&v);
	}
	expect_growth(c[0], c[1], "text");
}

/* Every row of a stack of experts gets its value from the tensors that hold it, and no others
 * are looked at: one more at the end of a block. */
TEST(initial_values_of_a_block_look_at_its_own_tensors)
{
	struct k3_plan_options o;
	struct k3_config config;
	struct k3_model *model;
	struct k3_plan *plan;
	size_t blocks = 0;

	k3_plan_options_init(&o);
	o.expert_groups = 7;
	cr_assert_eq(k3_config_preset(&config, "debug17"), K3_OK);
	cr_assert_eq(k3_model_create(&model, &config, &o), K3_OK);
	cr_assert_eq(k3_plan_init(&plan, model, 3, false), K3_OK);
	size_t *elems = calloc(model->n_blocks, sizeof(*elems)), parts = 0;
	cr_assert_not_null(elems);
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		const struct k3_param_init_args *a = t->args;
		uint32_t block = plan->access[t->first_access].datum;
		if (t->op != K3_OP_PARAM_INIT || block >= model->n_blocks)
			continue;
		cr_expect_eq(a->offset_elems, elems[block], "%s", t->name);
		elems[block] += a->n_elems;
		parts++;
	}
	for (uint32_t i = 0; i < model->n_blocks; i++) {
		const struct k3_datum *d = &model->persist[i];
		cr_expect_eq(elems[i], d->rows * d->row_elems, "block %u", i);
		blocks += model->params.param[d->param].experts_per_block > 0;
	}
	cr_expect_gt(blocks, 100);
	cr_expect_eq(plan->n_slots, 0, "all is persistent");
	cr_expect_leq(plan->steps, parts + blocks);
	free(elems);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}
