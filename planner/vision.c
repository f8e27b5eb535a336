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

/* Where arrays go when memory is out: lists of tiles and of who takes them. */
static bool
make_sink(struct k3i_walk *w, size_t n_items)
{
	struct k3_builder *b = w->b;
	size_t n = k3i_vplaces_n(w) + n_items + w->n + 1;

	if (n > b->array_sink_n) {
		b->array_sink_n = n;
		b->array_sink = k3i_arena_alloc(b->plan->arena, n * sizeof(uint32_t));
	}
	return b->array_sink != NULL;
}

void
k3i_vision_load(struct k3i_walk *w, int block, size_t i)
{
	struct k3i_vision *v = w->vision;
	struct k3_builder *b = w->b;
	const struct k3i_vtile *t = k3i_vtile(w, i);
	bool own = i < k3i_vtiles_n(w);
	size_t pixels = k3_patch_values(v->c->patch), layout_len = k3_vit_layout_len(t->parts);
	struct k3_vit_load_args *a =
		k3i_task(b, K3_OP_VIT_LOAD, -1, k3i_vtile_no(w, i), block, sizeof(*a));

	*a = (struct k3_vit_load_args){.n = t->n,
				       .pixels = pixels,
				       .layout = t->layout,
				       .layout_len = layout_len,
				       .placeholder = own && v->tiles.placeholder,
				       .layout_only = !own};
	if (own) {
		v->patches[i] = k3i_data(b, "vit_patches", K3_DATA_INPUT, b->act, -1,
					 k3i_vtile_no(w, i), -1, t->n, v->tiles.nominal_n, pixels);
	}
	v->layout[i] = k3i_data(b, "vit_layout", K3_DATA_INPUT, K3_I32, -1, k3i_vtile_no(w, i), -1,
				layout_len, k3_vit_layout_len(v->tiles.nominal_parts), 1);
	if (own)
		k3i_use(b, v->patches[i], K3_W);
	k3i_use(b, v->layout[i], K3_W);
	k3i_task_end(b, 0, 0);
}

void
k3i_vision_begin(struct k3i_walk *w, const struct k3_layout *layout)
{
	struct k3_arena *arena = w->b->plan->arena;
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
	if (w->b->status == K3_OK)
		w->b->status = k3i_vision_check_size(&v->tiles, w->b);
	v->block = k3i_arena_alloc(arena, v->c->layers * sizeof(*v->block));
	if (w->b->status == K3_OK && (!make_sink(w, layout->n_items) || !v->block))
		w->b->status = K3_ENOMEM;
	if (w->b->status != K3_OK) {
		w->vision = NULL;
		return;
	}
	k3i_vision_make_maps(w, layout);
	v->patches = k3i_array(w, k3i_vtiles_n(w));
	v->layout = k3i_array(w, k3i_vplaces_n(w));
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

/* Data [at[k]] of an array. */
static void
list_of(struct k3_builder *b, struct k3_list *list, const uint32_t *datum, const uint32_t *at,
	size_t n)
{
	list->first = b->cur ? b->cur->n_access : 0;
	list->n = (uint32_t)n;
	for (size_t k = 0; k < n; k++)
		k3i_use(b, datum[at[k]], K3_R);
}

void
k3i_vision_scatter(struct k3i_walk *w)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;

	if (!v || b->status != K3_OK)
		return;
	for (size_t i = 0; i < w->n; i++) {
		const uint32_t *at = v->takes.at + v->takes.first[i];
		size_t n = v->takes.first[i + 1] - v->takes.first[i];
		/* a text tile may ask for the features of all tiles */
		k3i_wide_most(b, w->p[i], 1, v->features[0], k3i_vplaces_n(w));
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
			list_of(b, &a->y, v->features, at, n);
			list_of(b, &a->layout, v->layout, at, n);
			k3i_task_end(b, 0, 0);
		}
		k3i_keep(w, w->p[i]);
	}
	/* whichever rows they go to */
	k3i_vit_touch_places(w, v->features);
	k3i_vit_touch_places(w, v->layout);
}

static void
scatter_bwd(struct k3i_walk *w, int block, size_t j)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	const uint32_t *at = v->readers.at + v->readers.first[j];
	size_t n = v->readers.first[j + 1] - v->readers.first[j];
	uint32_t *rows = k3i_arena_alloc(b->plan->arena, (n + 1) * sizeof(*rows));

	if (!rows)
		b->status = K3_ENOMEM;
	for (size_t k = 0; k < n && b->status == K3_OK; k++)
		rows[k] = (uint32_t)k3i_rows(w, at[k]);
	v->dy[j] = k3i_vit_merged_data(w, "dvit_features", j, w->c->width, false);
	/* its rows may lie in all text tiles */
	k3i_wide_most(b, v->dy[j], 1, w->dp[0], w->n);
	struct k3_vision_scatter_args *a =
		k3i_task(b, K3_OP_VISION_SCATTER_BWD, -1, k3i_vtile_no(w, j), block, sizeof(*a));
	a->m = k3i_vtile(w, j)->m;
	a->d = w->c->width;
	a->rows = rows;
	k3i_use(b, v->dy[j], K3_W);
	k3i_use(b, v->layout[j], K3_R);
	list_of(b, &a->dp, w->dp, at, n);
	list_of(b, &a->map, w->map, at, n);
	k3i_task_end(b, 0, 0);
	k3i_keep(w, v->dy[j]);
}

void
k3i_vision_scatter_bwd(struct k3i_walk *w)
{
	k3i_vit_down_others(w, -1, scatter_bwd);
	k3i_vit_down(w, -1, scatter_bwd);
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
