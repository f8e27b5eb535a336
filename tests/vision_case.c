#include "vision_case.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../planner/mesh.h"

void
vision_case_add(struct vision_case *v, struct k3_grid grid, uint32_t row)
{
	size_t n = v->layout.n_items;

	cr_assert_lt(n, VISION_CASE_ITEMS);
	if (row == UINT32_MAX)
		row = n ? v->row[n - 1] + v->grid[n - 1].h * v->grid[n - 1].w / 4 : 0;
	v->grid[n] = grid;
	v->row[n] = row;
	v->layout.n_items++;
}

void
vision_case_init(struct vision_case *v, size_t n_tokens, const char *images)
{
	struct k3_grid g;
	uint32_t row;
	int used;

	memset(v, 0, sizeof(*v));
	v->ids = malloc(n_tokens * sizeof(*v->ids));
	cr_assert_not_null(v->ids);
	for (size_t i = 0; i < n_tokens; i++)
		v->ids[i] = 1;
	v->layout = (struct k3_layout){
		.n_tokens = n_tokens, .doc_ids = v->ids, .grid = v->grid, .item_row = v->row};
	for (; sscanf(images, " %ux%ux%u@%u%n", &g.t, &g.h, &g.w, &row, &used) == 4; images += used)
		vision_case_add(v, g, row);
	cr_assert_eq(*images, '\0', "no image: \"%s\"", images);
}

void
vision_case_fini(struct vision_case *v)
{
	free(v->ids);
}

struct k3_plan_options
vision_case_options(void)
{
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	o.vision = true;
	return o;
}

void
vision_case_config(struct k3_config *config)
{
	struct k3_config small;

	cr_assert_eq(k3_config_preset(config, "tiny"), K3_OK);
	cr_assert_eq(k3_config_preset(&small, "small"), K3_OK);
	config->vision = small.vision;
	config->vision.layers = 2;
	config->vision.max_frames = 4;
}

struct k3_model *
vision_case_model(const char *mesh, uint32_t rank, const struct k3_plan_options *options)
{
	struct k3_plan_options o = *options;
	struct k3_config config;
	struct k3_model *model;

	vision_case_config(&config);
	bool forced = o.mesh.forced;
	cr_assert_eq(k3_mesh_parse(&o.mesh, mesh), K3_OK);
	o.mesh.rank = rank;
	o.mesh.forced = forced;
	cr_assert_eq(k3_model_create(&model, &config, &o), K3_OK);
	return model;
}

struct k3_plan *
vision_case_plan(const struct k3_model *model, size_t n_tokens, const char *images,
		 struct k3_microbatch what)
{
	struct vision_case v;
	struct k3_plan *plan;

	vision_case_init(&v, n_tokens, images);
	cr_assert_eq(k3_plan_microbatch(&plan, model, &v.layout, &what), K3_OK, "%s", images);
	cr_expect_eq(k3_plan_check(plan), K3_OK, "\"%s\"", images);
	vision_case_fini(&v);
	return plan;
}

const struct k3_task *
vision_case_task(const struct k3_plan *plan, enum k3_op op, size_t n)
{
	for (size_t i = 0; i < plan->n_tasks; i++)
		if (plan->task[i].op == op && n-- == 0)
			return &plan->task[i];
	return NULL;
}

size_t
vision_case_count(const struct k3_plan *plan, enum k3_op op)
{
	size_t n = 0;

	while (vision_case_task(plan, op, n))
		n++;
	return n;
}

const int32_t *
vision_case_tile(const struct k3_plan *plan, size_t i)
{
	const struct k3_task *t = vision_case_task(plan, K3_OP_VIT_LOAD, i);

	return t ? ((const struct k3_vit_load_args *)t->args)->layout : NULL;
}
