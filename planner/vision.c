/* Vision in the plan (model.md 6): every microbatch runs the tower once, over its items or over
 * a placeholder of one merged token, so that the collectives of a rank do not depend on its
 * images.  A placeholder has no gradient: the parameters get exact zeros from a task of their
 * own, whatever the weights hold.
 *
 * Order: operation by operation, tile by tile; forward tiles ascend, backward tiles descend.  A
 * vision tile attends to the tiles that share an item with it, which are its neighbours. */
#include "../common/log.h"
#include "../common/status.h"
#include "vision.h"

/* Items before `item` end before the tile at hand; they have `merged` tokens. */
struct cursor {
	size_t item, merged;
};

/* Which merged token replaces each row of own tile i; -1: none.  Items and rows both ascend, so what a
 * tile takes is one run of them, and the next tile goes on where this one ends. */
static const int32_t *
map_of(struct k3i_walk *w, size_t i, const struct k3_layout *layout, struct cursor *at,
       struct k3i_merged *run)
{
	const struct k3_vision_config *c = &w->c->vision;
	const struct k3_tile *t = k3i_tile(w, i);
	int32_t *map = k3i_arena_alloc(w->b->plan->arena, t->rows * sizeof(*map));
	size_t end = t->row0 + t->rows;

	if (!map) {
		w->b->status = K3_ENOMEM;
		return NULL;
	}
	for (size_t r = 0; r < t->rows; r++)
		map[r] = -1;
	*run = (struct k3i_merged){0};
	for (; at->item < layout->n_items && layout->item_row[at->item] < end; at->item++) {
		size_t n = k3_grid_merged(&layout->grid[at->item], c->merge_h, c->merge_w),
		       row = layout->item_row[at->item], m = row < t->row0 ? t->row0 - row : 0;
		w->b->plan->steps++;
		if (m < n && run->end == 0)
			run->first = at->merged + m;
		for (; m < n && row + m < end; m++) {
			map[row + m - t->row0] = (int32_t)(at->merged + m);
			run->end = at->merged + m + 1;
		}
		if (row + n > end)
			break;
		at->merged += n;
	}
	return map;
}

/* Who takes features of whom.  Runs and vision tiles both ascend, so two neighbours share one at most. */
static void
find_readers(struct k3i_walk *w)
{
	struct k3i_vision *v = w->vision;
	size_t j = 0;

	for (size_t i = 0; i < w->n; i++) {
		struct k3i_merged *run = &v->merged[i];
		if (run->first == run->end)
			continue;
		for (; k3i_vtile(w, j)->merged0 + k3i_vtile(w, j)->m <= run->first; j++)
			w->b->plan->steps++;
		run->tile0 = j;
		for (size_t k = j; k < v->tiles.n && k3i_vtile(w, k)->merged0 < run->end; k++) {
			struct k3i_readers *r = &v->readers[k];
			r->first = r->n ? r->first : i;
			r->n = i - r->first + 1;
			run->tiles++;
			w->b->plan->steps++;
		}
	}
}

static bool
make_arrays(struct k3i_walk *w)
{
	struct k3i_vision *v = w->vision;
	struct k3_arena *arena = w->b->plan->arena;
	size_t n = v->tiles.n_most;

	v->map_rows = k3i_arena_alloc(arena, w->n * sizeof(*v->map_rows));
	v->merged = k3i_arena_alloc(arena, w->n * sizeof(*v->merged));
	v->readers = k3i_arena_alloc(arena, n * sizeof(*v->readers));
	v->block = k3i_arena_alloc(arena, v->c->layers * sizeof(*v->block));
	if (n > w->b->array_sink_n) {
		w->b->array_sink_n = n;
		w->b->array_sink = k3i_arena_alloc(arena, n * sizeof(uint32_t));
	}
	return v->map_rows && v->merged && v->readers && v->block && w->b->array_sink;
}

void
k3i_vision_load(struct k3i_walk *w, int block, size_t i)
{
	struct k3i_vision *v = w->vision;
	struct k3_builder *b = w->b;
	const struct k3i_vtile *t = k3i_vtile(w, i);
	size_t pixels = k3_patch_values(v->c->patch), layout_len = k3_vit_layout_len(t->parts);
	struct k3_vit_load_args *a = k3i_task(b, K3_OP_VIT_LOAD, -1, (int)i, block, sizeof(*a));

	*a = (struct k3_vit_load_args){.n = t->n,
				       .pixels = pixels,
				       .layout = t->layout,
				       .layout_len = layout_len,
				       .placeholder = v->tiles.placeholder};
	v->patches[i] = k3i_data(b, "vit_patches", K3_DATA_INPUT, b->act, -1, (int)i, -1, t->n,
				 v->tiles.nominal_n, pixels);
	v->layout[i] = k3i_data(b, "vit_layout", K3_DATA_INPUT, K3_I32, -1, (int)i, -1, layout_len,
				k3_vit_layout_len(v->tiles.nominal_parts), 1);
	k3i_use(b, v->patches[i], K3_W);
	k3i_use(b, v->layout[i], K3_W);
	k3i_task_end(b, 0, 0);
}

void
k3i_vision_begin(struct k3i_walk *w, const struct k3_layout *layout)
{
	struct k3_arena *arena = w->b->plan->arena;
	struct cursor at = {0};
	struct k3i_vision *v;

	if (!w->b->model->options.vision && layout->n_items > 0 && w->b->status == K3_OK) {
		k3_error("planner", "%zu images: the model is planned without its vision tower",
			 layout->n_items);
		w->b->status = K3_EINVAL;
	}
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
	if (w->b->status == K3_OK && !make_arrays(w))
		w->b->status = K3_ENOMEM;
	if (w->b->status != K3_OK) {
		w->vision = NULL;
		return;
	}
	for (size_t i = 0; i < w->n && w->b->status == K3_OK; i++)
		v->map_rows[i] = map_of(w, i, layout, &at, &v->merged[i]);
	if (w->b->status == K3_OK)
		find_readers(w);
	v->patches = k3i_array(w, v->tiles.n_most);
	v->layout = k3i_array(w, v->tiles.n_most);
}

void
k3i_vision_map(struct k3i_walk *w, size_t i, struct k3_batch_load_args *a)
{
	struct k3_builder *b = w->b;
	bool read =
		b->what.backward; /* by embed_bwd; the scatter asks for it where there are rows */

	if (!w->vision || b->status != K3_OK)
		return;
	w->map[i] = k3i_data(b, "map", K3_DATA_INPUT, K3_I32, -1, k3i_tile_no(w, i), -1,
			     k3i_rows(w, i), w->nominal, 1);
	a->map_rows = w->vision->map_rows[i];
	for (size_t r = 0; !read && r < k3i_rows(w, i); r++)
		read = a->map_rows[r] >= 0;
	k3i_touch(b, w->map[i]);
	k3i_list_one(b, &a->map, read ? (int32_t)w->map[i] : K3_NO_DATUM, K3_W);
}

void
k3i_vision_scatter(struct k3i_walk *w)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;

	if (!v || b->status != K3_OK)
		return;
	for (size_t i = 0; i < w->n; i++) {
		size_t first = v->merged[i].tile0, n = v->merged[i].tiles;
		/* a text tile may ask for the features of all tiles */
		k3i_wide_most(b, w->p[i], 1, v->features[0], v->tiles.n_most);
		if (n == 0) {
			k3i_skip(b);
			k3i_touch(b, w->map[i]);
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
	/* whichever rows they go to */
	k3i_vit_touch(w, v->features);
	k3i_vit_touch(w, v->layout);
}

/* Does own text tile i hold rows of vision tile j? */
static bool
holds(const struct k3i_walk *w, size_t i, size_t j)
{
	const struct k3i_vtile *t = k3i_vtile(w, j);
	const struct k3i_merged *run = &w->vision->merged[i];

	return run->first < t->merged0 + t->m && run->end > t->merged0;
}

bool
k3i_vision_is_read(const struct k3i_walk *w, size_t j)
{
	return w->vision->readers[j].n > 0;
}

void
k3i_vision_scatter_bwd(struct k3i_walk *w, int block, size_t j)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	const struct k3i_readers *r = &v->readers[j];
	uint32_t *own = k3i_array(w, r->n),
		 *rows = k3i_arena_alloc(b->plan->arena, (r->n + 1) * sizeof(*rows));
	size_t n = 0;

	if (!rows)
		b->status = K3_ENOMEM;
	for (size_t i = r->first; i < r->first + r->n && !b->phantom && b->status == K3_OK; i++) {
		b->plan->steps++;
		if (holds(w, i, j)) {
			rows[n] = (uint32_t)k3i_rows(w, i);
			own[n++] = (uint32_t)i;
		}
	}
	v->dy[j] = k3i_vit_merged_data(w, "dvit_features", j, w->c->width, false);
	/* its rows may lie in all text tiles */
	k3i_wide_most(b, v->dy[j], 1, w->dp[0], w->n);
	struct k3_vision_scatter_args *a =
		k3i_task(b, K3_OP_VISION_SCATTER_BWD, -1, (int)j, block, sizeof(*a));
	a->m = k3i_vtile(w, j)->m;
	a->d = w->c->width;
	a->rows = rows;
	k3i_use(b, v->dy[j], K3_W);
	k3i_use(b, v->layout[j], K3_R);
	a->dp.first = b->cur ? b->cur->n_access : 0;
	a->dp.n = a->map.n = (uint32_t)n;
	for (size_t k = 0; k < n; k++)
		k3i_use(b, w->dp[own[k]], K3_R);
	a->map.first = b->cur ? b->cur->n_access : 0;
	for (size_t k = 0; k < n; k++)
		k3i_use(b, w->map[own[k]], K3_R);
	k3i_task_end(b, 0, 0);
	k3i_keep(w, v->dy[j]);
}

void
k3i_vision_scatter_bwd_end(struct k3i_walk *w)
{
	/* whichever rows were asked for, and by whom */
	for (size_t i = 0; i < w->n; i++) {
		k3i_touch(w->b, w->dp[i]);
		k3i_touch(w->b, w->map[i]);
	}
}

/* Zeros for these gradient blocks of one or more parameters. */
static void
zero_task(struct k3i_walk *w, const uint32_t *datum, size_t n, size_t number)
{
	struct k3_builder *b = w->b;
	size_t *elems = k3i_arena_alloc(b->plan->arena, (n + 1) * sizeof(*elems));
	struct k3_zero_args *a = k3i_task(b, K3_OP_ZERO_GRADS, -1, -1, (int)number, sizeof(*a));

	if (!elems)
		b->status = K3_ENOMEM;
	a->elems = elems;
	for (size_t i = 0; i < n && b->status == K3_OK; i++) {
		const struct k3_datum *d = &b->plan->data[datum[i]];
		elems[i] = d->rows * d->row_elems;
		a->accumulate = k3i_use_sum(b, datum[i]);
	}
	k3i_task_end(b, 0, 0);
}

void
k3i_vision_zero_grads(struct k3i_walk *w)
{
	enum { BLOCKS_OF_TASK = 32 };
	const struct k3_params *ps = &w->b->model->params;
	uint32_t datum[BLOCKS_OF_TASK];
	size_t n = 0, tasks = 0;

	w->b->phantom = !w->vision->tiles.placeholder;
	for (size_t i = 0; i < ps->n; i++) {
		const struct k3_view *g = &w->b->grad[i];
		for (size_t k = 0; k < g->n && ps->param[i].unit == K3_UNIT_VISION; k++) {
			datum[n++] = g->datum[k];
			if (n == BLOCKS_OF_TASK) {
				zero_task(w, datum, n, tasks++);
				n = 0;
			}
		}
	}
	if (n)
		zero_task(w, datum, n, tasks);
	w->b->phantom = false;
}
