/* Images under context parallelism: each item is encoded on one rank, its features reach the
 * rows of every rank, and their gradients come back. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "../common/status.h"
#include "vision_group.h"

static const struct k3_microbatch first = {.backward = true, .first = true, .count = true},
				  loss_only = {0};

/* Every merged token of every item is on one rank; the heaviest rank is not above the mean and one
 * item. */
static void
expect_shares(const struct vision_group *g)
{
	uint64_t all = 0, largest = 0, merged = 0;

	for (size_t i = 0; i < g->v.layout.n_items; i++) {
		uint64_t n = k3_grid_patches(&g->v.grid[i]);
		largest = n > largest ? n : largest;
		all += n;
		merged += k3_grid_merged(&g->v.grid[i], 2, 2);
	}
	for (uint64_t m = 0; m < merged; m++)
		cr_expect_geq(g->item[m], 0, "merged token %d", (int)m);
	cr_expect_eq(g->item[merged], -1);
	for (uint32_t r = 0; r < g->ranks; r++)
		cr_expect_leq(g->patches[r], all / g->ranks + largest, "rank %u", r);
}

static const struct k3_datum *
datum(const struct k3_plan *plan, const struct k3_task *t, uint32_t i)
{
	return &plan->data[plan->access[t->first_access + i].datum];
}

/* What a rank knows of others' tiles is what their owner says. */
static void
expect_layouts(const struct vision_group *g, uint32_t rank)
{
	size_t others = 0, all = 0;

	for (size_t i = 0; vision_group_load(g->plan[rank], i); i++) {
		const struct k3_vit_load_args *a = vision_group_load(g->plan[rank], i);
		const struct k3_task *t = vision_case_task(g->plan[rank], K3_OP_VIT_LOAD, i);
		if (!a->layout_only)
			continue;
		others++;
		cr_expect_eq(t->n_access, 1);
		cr_expect_eq(a->placeholder, 0);
		cr_assert_not_null(g->layout[t->tile], "tile %d is nobody's", t->tile);
		cr_expect_arr_eq(a->layout, g->layout[t->tile], a->layout_len * sizeof(*a->layout));
	}
	for (uint32_t r = 0; r < g->ranks; r++)
		all += g->tiles[r];
	cr_expect_eq(others, all - g->tiles[rank]);
}

/* Which item, and which of its merged tokens, goes to a row of the stream; -1: none. */
static void
wanted(const struct vision_group *g, size_t row, int *item, int *place)
{
	*item = *place = -1;
	for (size_t k = 0; k < g->v.layout.n_items; k++) {
		size_t n = k3_grid_merged(&g->v.grid[k], 2, 2);
		if (row >= g->v.row[k] && row < g->v.row[k] + n) {
			*item = (int)k;
			*place = (int)(row - g->v.row[k]);
		}
	}
}

/* The batch_load task of an own text tile. */
static const struct k3_batch_load_args *
batch_of(const struct k3_plan *plan, int32_t tile)
{
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_batch_load_args *a = plan->task[i].args;
		if (plan->task[i].op == K3_OP_BATCH_LOAD && plan->task[i].tile == tile &&
		    !a->layout_only)
			return a;
	}
	return NULL;
}

static bool
holds(const int32_t *layout, int32_t merged)
{
	return merged >= layout[K3_VL_MERGED0] &&
	       merged < layout[K3_VL_MERGED0] + layout[K3_VL_MERGED];
}

/* Tiles of a scatter task, by their features or gradients, that hold a merged token. */
static size_t
holders(const struct vision_group *g, const struct k3_plan *plan, const struct k3_task *t,
	const struct k3_list *y, const struct k3_list *layout, int32_t merged)
{
	size_t n = 0;

	for (uint32_t j = 0; j < y->n; j++) {
		int32_t number = datum(plan, t, y->first + j)->tile;
		cr_expect_eq(datum(plan, t, layout->first + j)->tile, number);
		n += holds(g->layout[number], merged);
	}
	return n;
}

/* Every own row gets the feature that the layout wants there, from one of the tiles that its task
 * reads; no task reads a tile that none of its rows wants. */
static void
expect_rows(const struct vision_group *g, uint32_t rank)
{
	const struct k3_plan *plan = g->plan[rank];

	for (size_t i = plan->own_first; i < plan->own_first + plan->own_n; i++) {
		const int32_t *map = batch_of(plan, (int32_t)i)->map_rows;
		const struct k3_task *t = NULL;
		bool read[VISION_GROUP_TILES] = {false};
		size_t n_read = 0;
		for (size_t k = 0; k < plan->n_tasks; k++)
			if (plan->task[k].op == K3_OP_VISION_SCATTER_FWD &&
			    plan->task[k].tile == (int32_t)i)
				t = &plan->task[k];
		for (size_t r = 0; r < plan->tile[i].rows; r++) {
			int item, place;
			wanted(g, plan->tile[i].row0 + r, &item, &place);
			if (item < 0) {
				cr_expect_eq(map[r], -1, "row %zu of tile %zu", r, i);
				continue;
			}
			cr_assert(map[r] >= 0 && t, "row %zu of tile %zu", r, i);
			cr_expect_eq(g->item[map[r]], item);
			cr_expect_eq(g->place[map[r]], place);
			const struct k3_vision_scatter_args *a = t->args;
			cr_expect_eq(holders(g, plan, t, &a->y, &a->layout, map[r]), 1);
			for (int n = 0; n < VISION_GROUP_TILES && g->layout[n]; n++)
				if (holds(g->layout[n], map[r]) && !read[n]) {
					read[n] = true;
					n_read++;
				}
		}
		cr_expect_eq(t ? ((const struct k3_vision_scatter_args *)t->args)->y.n : 0, n_read);
	}
}

/* Does any row of an own text tile want a feature of a tile? */
static bool
wants(const struct vision_group *g, const struct k3_plan *plan, size_t text, int32_t number)
{
	const int32_t *map = batch_of(plan, (int32_t)text)->map_rows;

	for (size_t r = 0; r < plan->tile[text].rows; r++)
		if (map[r] >= 0 && holds(g->layout[number], map[r]))
			return true;
	return false;
}

/* Backward every rank has a gradient of every tile, from the text tiles that wanted its
 * features. */
static void
expect_gradients(const struct vision_group *g, uint32_t rank)
{
	const struct k3_plan *plan = g->plan[rank];
	size_t n = 0, all = 0;

	for (; vision_case_task(plan, K3_OP_VISION_SCATTER_BWD, n); n++) {
		const struct k3_task *t = vision_case_task(plan, K3_OP_VISION_SCATTER_BWD, n);
		const struct k3_vision_scatter_args *a = t->args;
		uint32_t k = 0;
		cr_assert_not_null(g->layout[t->tile]);
		cr_expect_eq(a->m, g->layout[t->tile][K3_VL_MERGED]);
		for (size_t i = plan->own_first; i < plan->own_first + plan->own_n; i++) {
			if (!wants(g, plan, i, t->tile))
				continue;
			cr_assert_lt(k, a->dp.n, "tile %d", t->tile);
			cr_expect_eq(datum(plan, t, a->dp.first + k)->tile, i);
			cr_expect_eq(datum(plan, t, a->map.first + k)->tile, i);
			cr_expect_eq(a->rows[k], plan->tile[i].rows);
			k++;
		}
		cr_expect_eq(a->dp.n, k);
	}
	for (uint32_t r = 0; r < g->ranks; r++)
		all += g->tiles[r];
	cr_expect_eq(n, all);
}

/* One task for each rank that has tiles, over all its merged tokens, which only it gives. */
static void
expect_exchange(const struct vision_group *g, uint32_t rank, enum k3_op op, uint8_t mine,
		uint8_t other)
{
	const struct k3_plan *plan = g->plan[rank];
	size_t n = 0;

	for (uint32_t root = 0; root < g->ranks; root++) {
		uint64_t rows = 0;
		if (g->tiles[root] == 0)
			continue;
		const struct k3_task *t = vision_case_task(plan, op, n++);
		cr_assert_not_null(t);
		const struct k3_kv_args *a = t->args;
		cr_expect_eq(t->peer, root);
		cr_assert_eq(t->n_access, g->tiles[root]);
		cr_expect(a->tiles.first == 0 && a->tiles.n == t->n_access && a->work.n == 0);
		for (uint32_t i = 0; i < t->n_access; i++) {
			cr_expect_eq(plan->access[t->first_access + i].mode,
				     root == rank ? mine : other);
			cr_expect_eq(a->tile[i].row0, rows);
			cr_expect_eq(a->tile[i].rows, datum(plan, t, i)->rows);
			rows += datum(plan, t, i)->rows;
		}
		cr_expect_eq(t->count, rows * plan->model->config.width);
	}
	cr_expect_null(vision_case_task(plan, op, n));
}

static void
expect_group(uint32_t ranks, const struct k3_plan_options *o, size_t n_tokens, const char *images)
{
	struct vision_group *g = malloc(sizeof(*g));

	cr_assert_not_null(g);
	vision_group_init(g, ranks, o, n_tokens, images, first);
	expect_shares(g);
	for (uint32_t r = 0; r < ranks; r++) {
		expect_layouts(g, r);
		expect_rows(g, r);
		expect_gradients(g, r);
		expect_exchange(g, r, K3_OP_GATHER_FEATURES, K3_R, K3_W);
		expect_exchange(g, r, K3_OP_SUM_FEATURE_GRADS, K3_RW, K3_R);
	}
	cr_expect_eq(k3_plan_check_order(g->plan, ranks), K3_OK, "%s", images);
	vision_group_fini(g);
	vision_group_init(g, ranks, o, n_tokens, images, loss_only);
	for (uint32_t r = 0; r < ranks; r++) {
		expect_rows(g, r);
		expect_exchange(g, r, K3_OP_GATHER_FEATURES, K3_R, K3_W);
		cr_expect_eq(vision_case_count(g->plan[r], K3_OP_SUM_FEATURE_GRADS), 0);
	}
	cr_expect_eq(k3_plan_check_order(g->plan, ranks), K3_OK, "%s", images);
	vision_group_fini(g);
	free(g);
}

Test(vision_cp, each_item_is_encoded_on_one_rank_and_its_features_reach_every_row, .timeout = 60)
{
	static const char *const images[] = {
		"1x8x8@3",
		"1x4x4@0 1x4x4@4 1x4x4@8 1x4x4@12 1x4x4@16 1x4x4@20 1x4x4@24",
		"1x2x2@0 4x8x6@5 1x12x6@30 2x2x10@60 1x2x2@65 1x2x2@66 1x24x6@100 1x4x4@191",
		"1x2x2@1 1x2x2@3 1x2x2@5 1x2x2@63 1x2x2@64 1x2x2@127 1x2x2@128 1x2x2@194",
		"1x40x18@10", /* rows 10 to 189: all of the text tiles */
	};

	for (size_t i = 0; i < sizeof(images) / sizeof(images[0]); i++)
		for (uint32_t ranks = 1; ranks <= 5; ranks++)
			for (uint32_t tile = 0; tile <= 64; tile += 64) {
				struct k3_plan_options o = vision_case_options();
				o.mesh.forced = true;
				o.tile_tokens = tile;
				o.vision_patches = i % 2 ? 0 : 48;
				expect_group(ranks, &o, 195, images[i]);
				o.max_patches = 800;
				o.vision_patches = 64;
				expect_group(ranks, &o, 195, images[i]);
				o.max_patches = 0;
				o.vision_bands = 2;
				expect_group(ranks, &o, 195, images[i]);
			}
}
