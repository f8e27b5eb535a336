#include "vision_group.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

const struct k3_vit_load_args *
vision_group_load(const struct k3_plan *plan, size_t n)
{
	const struct k3_task *t = vision_case_task(plan, K3_OP_VIT_LOAD, n);

	return t ? t->args : NULL;
}

/* Notes the merged tokens of a tile; each is named once among all ranks. */
static void
note_tile(struct vision_group *g, uint32_t rank, int number, const int32_t *l)
{
	cr_assert_lt(number, VISION_GROUP_TILES);
	cr_expect_null(g->layout[number], "tile %d has two owners", number);
	g->layout[number] = l;
	g->patches[rank] += (uint64_t)l[K3_VL_PATCHES];
	g->tiles[rank]++;
	for (int32_t p = 0; p < l[K3_VL_PARTS]; p++) {
		const int32_t *part = k3_vit_part(l, p);
		int32_t at = l[K3_VL_MERGED0] + part[K3_VP_MERGED0],
			in_item = part[K3_VP_ROW0] / 2 * (part[K3_VP_W] / 2),
			n = part[K3_VP_ROWS] / 2 * (part[K3_VP_W] / 2);
		for (int32_t m = 0; m < n; m++) {
			cr_assert_lt(at + m, VISION_GROUP_MERGED);
			cr_expect_eq(g->item[at + m], -1, "merged token %d", at + m);
			g->item[at + m] = part[K3_VP_ITEM];
			g->place[at + m] = in_item + m;
		}
	}
}

void
vision_group_init(struct vision_group *g, uint32_t ranks, const struct k3_plan_options *o,
		  size_t n_tokens, const char *images, struct k3_microbatch what)
{
	char mesh[16];

	memset(g, 0, sizeof(*g));
	memset(g->item, -1, sizeof(g->item));
	g->ranks = ranks;
	snprintf(mesh, sizeof(mesh), "cp=%u", ranks);
	vision_case_init(&g->v, n_tokens, images);
	for (uint32_t r = 0; r < ranks; r++) {
		g->model[r] = vision_case_model(mesh, r, o);
		g->plan[r] = vision_case_plan(g->model[r], n_tokens, images, what);
		for (size_t i = 0; vision_group_load(g->plan[r], i); i++) {
			const struct k3_vit_load_args *a = vision_group_load(g->plan[r], i);
			if (!a->placeholder && !a->layout_only)
				note_tile(g, r,
					  vision_case_task(g->plan[r], K3_OP_VIT_LOAD, i)->tile,
					  a->layout);
		}
	}
}

void
vision_group_fini(struct vision_group *g)
{
	for (uint32_t r = 0; r < g->ranks; r++) {
		k3_plan_destroy(g->plan[r]);
		k3_model_destroy(g->model[r]);
	}
	vision_case_fini(&g->v);
}
