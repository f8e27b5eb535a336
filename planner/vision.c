/* Vision in the plan (model.md 6): every microbatch runs the tower once, over its items or over a
 * placeholder of one merged token, so that the collectives of a rank do not depend on its images.  A
 * placeholder has no gradient: the parameters get exact zeros from a task of their own, whatever the
 * weights hold.
 *
 * Order: operation by operation, tile by tile; forward tiles ascend, backward tiles descend.  A vision
 * tile attends to the tiles that share an item with it, which are its neighbours. */
#include "../common/status.h"
#include "vision.h"

/* Which merged token replaces each row of own tile i; -1: none. */
static const int32_t *
map_of(struct k3i_walk *w, size_t i, const struct k3_layout *layout)
{
	const struct k3_tile *t = k3i_tile(w, i);
	int32_t *map = k3i_arena_alloc(w->b->plan->arena, t->rows * sizeof(*map)), merged = 0;

	if (!map) {
		w->b->status = K3_ENOMEM;
		return NULL;
	}
	for (size_t r = 0; r < t->rows; r++)
		map[r] = -1;
	for (size_t k = 0; k < layout->n_items; k++) {
		size_t n = k3i_grid_merged(w->c, &layout->grid[k]), row = layout->item_row[k];
		for (size_t m = 0; m < n; m++, merged++)
			if (row + m >= t->row0 && row + m < t->row0 + t->rows)
				map[row + m - t->row0] = merged;
	}
	return map;
}

void
k3i_vision_load(struct k3i_walk *w)
{
	struct k3i_vision *v = w->vision;
	struct k3_builder *b = w->b;
	size_t pixels = 3 * (size_t)v->c->patch * v->c->patch;

	for (size_t i = 0; i < k3i_vtiles_n(w); i++) {
		const struct k3i_vtile *t = k3i_vtile(w, i);
		struct k3_vit_load_args *a =
			k3i_task(b, K3_OP_VIT_LOAD, -1, (int)i, -1, sizeof(*a));
		*a = (struct k3_vit_load_args){.n = t->n,
					       .pixels = pixels,
					       .layout = t->layout,
					       .layout_len = k3_vit_layout_len(t->parts),
					       .placeholder = v->tiles.placeholder};
		v->patches[i] = k3i_data(b, "vit_patches", K3_DATA_INPUT, K3_F32, -1, (int)i, -1,
					 t->n, v->tiles.nominal_n, pixels);
		v->layout[i] =
			k3i_data(b, "vit_layout", K3_DATA_INPUT, K3_I32, -1, (int)i, -1,
				 a->layout_len, k3_vit_layout_len(v->tiles.nominal_parts), 1);
		k3i_use(b, v->patches[i], K3_W);
		k3i_use(b, v->layout[i], K3_W);
		k3i_task_end(b, 0, 0);
	}
}

void
k3i_vision_begin(struct k3i_walk *w, const struct k3_layout *layout)
{
	struct k3_arena *arena = w->b->plan->arena;
	struct k3i_vision *v;

	if (!w->b->model->options.vision || w->b->status != K3_OK)
		return;
	v = w->vision = k3i_arena_alloc(arena, sizeof(*v));
	w->map = k3i_arena_alloc(arena, sizeof(uint32_t) * (w->n + 1));
	if (!v || !w->map) {
		w->b->status = K3_ENOMEM;
		return;
	}
	v->c = &w->c->vision;
	w->b->status = k3i_vision_cut(&v->tiles, w->b, layout);
	v->map_rows = k3i_arena_alloc(arena, w->n * sizeof(*v->map_rows));
	v->block = k3i_arena_alloc(arena, v->c->layers * sizeof(*v->block));
	if (!v->map_rows || !v->block)
		w->b->status = K3_ENOMEM;
	for (size_t i = 0; i < w->n && w->b->status == K3_OK; i++)
		v->map_rows[i] = map_of(w, i, layout);
	v->patches = k3i_array(w, v->tiles.n);
	v->layout = k3i_array(w, v->tiles.n);
}

void
k3i_vision_map(struct k3i_walk *w, size_t i, struct k3_batch_load_args *a)
{
	struct k3_builder *b = w->b;

	if (!w->vision || b->status != K3_OK)
		return;
	w->map[i] = k3i_data(b, "map", K3_DATA_INPUT, K3_I32, -1, k3i_tile_no(w, i), -1,
			     k3i_rows(w, i), w->nominal, 1);
	a->map_rows = w->vision->map_rows[i];
	k3i_list_one(b, &a->map, (int32_t)w->map[i], K3_W);
}

/* Vision tiles whose features go to rows of own tile i: first and number. */
static size_t
wanted(const struct k3i_walk *w, size_t i, size_t *first)
{
	const int32_t *map = w->vision->map_rows[i];
	size_t last = 0;
	bool any = false;

	for (size_t r = 0; r < k3i_rows(w, i); r++) {
		if (map[r] < 0)
			continue;
		size_t j = any ? last : 0;
		while (k3i_vtile(w, j)->merged0 + k3i_vtile(w, j)->m <= (size_t)map[r])
			j++;
		if (!any)
			*first = j;
		any = true;
		last = j;
	}
	return any ? last - *first + 1 : 0;
}

void
k3i_vision_scatter(struct k3i_walk *w)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;

	if (!v || b->status != K3_OK)
		return;
	for (size_t i = 0; i < w->n; i++) {
		size_t first = 0, n = wanted(w, i, &first);
		if (n == 0) {
			k3i_skip(b);
		} else {
			struct k3_vision_scatter_args *a = k3i_task(
				b, K3_OP_VISION_SCATTER_FWD, -1, k3i_tile_no(w, i), -1, sizeof(*a));
			a->t = k3i_rows(w, i);
			a->d = w->c->width;
			k3i_use(b, w->p[i], K3_RW);
			k3i_use(b, w->map[i], K3_R);
			k3i_list(b, &a->y, &v->features[first], n, K3_R);
			k3i_list(b, &a->layout, &v->layout[first], n, K3_R);
			k3i_task_end(b, 0, 0);
		}
		k3i_keep(w, w->p[i]);
	}
}

/* Own text tiles that hold rows of vision tile j, in order. */
static size_t
holders(const struct k3i_walk *w, size_t j, uint32_t *own)
{
	const struct k3i_vtile *t = k3i_vtile(w, j);
	size_t n = 0;

	for (size_t i = 0; i < w->n; i++) {
		const int32_t *map = w->vision->map_rows[i];
		bool holds = false;
		for (size_t r = 0; r < k3i_rows(w, i) && !holds; r++)
			holds = map[r] >= (int32_t)t->merged0 &&
				map[r] < (int32_t)(t->merged0 + t->m);
		if (holds)
			own[n++] = (uint32_t)i;
	}
	return n;
}

uint32_t
k3i_vision_scatter_bwd(struct k3i_walk *w, size_t j)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	uint32_t dy = k3i_vit_merged_data(w, "dvit_features", j, w->c->width, false);
	uint32_t *own = k3i_array(w, w->n),
		 *rows = k3i_arena_alloc(b->plan->arena, (w->n + 1) * sizeof(*rows));

	if (!rows)
		b->status = K3_ENOMEM;
	if (b->status != K3_OK)
		return dy;
	size_t n = holders(w, j, own);
	struct k3_vision_scatter_args *a =
		k3i_task(b, K3_OP_VISION_SCATTER_BWD, -1, (int)j, -1, sizeof(*a));
	a->m = k3i_vtile(w, j)->m;
	a->d = w->c->width;
	a->rows = rows;
	k3i_use(b, dy, K3_W);
	k3i_use(b, v->layout[j], K3_R);
	a->dp.first = b->cur ? b->cur->n_access : 0;
	a->dp.n = a->map.n = (uint32_t)n;
	for (size_t k = 0; k < n; k++) {
		rows[k] = (uint32_t)k3i_rows(w, own[k]);
		k3i_use(b, w->dp[own[k]], K3_R);
	}
	a->map.first = b->cur ? b->cur->n_access : 0;
	for (size_t k = 0; k < n; k++)
		k3i_use(b, w->map[own[k]], K3_R);
	k3i_task_end(b, 0, 0);
	k3i_keep(w, dy);
	return dy;
}

/* Zeros for all vision parameters, a handful of blocks a task. */
void
k3i_vision_zero_grads(struct k3i_walk *w)
{
	enum { BLOCKS_OF_TASK = 32 };
	struct k3_builder *b = w->b;
	const struct k3_params *ps = &b->model->params;
	struct k3_zero_args *a = NULL;
	size_t *elems = NULL, n = 0;

	for (size_t i = 0; i < ps->n && b->status == K3_OK; i++) {
		const struct k3_view *g = &b->grad[i];
		if (ps->param[i].unit != K3_UNIT_VISION)
			continue;
		for (size_t k = 0; k < g->n && b->status == K3_OK; k++, n++) {
			if (n % BLOCKS_OF_TASK == 0) {
				if (a)
					k3i_task_end(b, 0, 0);
				a = k3i_task(b, K3_OP_ZERO_GRADS, -1, -1, (int)(n / BLOCKS_OF_TASK),
					     sizeof(*a));
				elems = k3i_arena_alloc(b->plan->arena,
							BLOCKS_OF_TASK * sizeof(*elems));
				if (!elems) {
					b->status = K3_ENOMEM;
					return;
				}
				a->elems = elems;
			}
			elems[n % BLOCKS_OF_TASK] =
				b->plan->data[g->datum[k]].rows * ps->param[i].cols;
			a->accumulate = k3i_use_sum(b, g->datum[k]);
		}
	}
	if (a)
		k3i_task_end(b, 0, 0);
}
