/* Items to vision tiles.  A tile takes at most vision_patches patches, or one merge row when that alone
 * is more; a large item is cut in equal bands, a small one is never cut.  The trap: sizes of slots must
 * not depend on the images, so every tile is sized as a full one. */
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "vision_tiles.h"

enum { MOST_TILES_OF_ITEM = 64 };

size_t
k3i_grid_merged(const struct k3_config *c, const struct k3_grid *g)
{
	return (size_t)(g->h / c->vision.merge_h) * (g->w / c->vision.merge_w);
}

static int
check_grid(const struct k3_config *c, const struct k3_grid *g, size_t item)
{
	const struct k3_vision_config *v = &c->vision;

	if (g->t < 1 || g->h < 1 || g->w < 1 || g->h > K3_VISION_MOST_SIDE ||
	    g->w > K3_VISION_MOST_SIDE) {
		k3_error("planner",
			 "image %zu: grid %u x %u x %u: sides from 1 to %d patches are possible",
			 item, g->t, g->h, g->w, K3_VISION_MOST_SIDE);
		return K3_ESHAPE;
	}
	if (g->t > v->max_frames) {
		k3_error("planner", "image %zu: %u frames: the model knows %u at most", item, g->t,
			 v->max_frames);
		return K3_ESHAPE;
	}
	if (g->h % v->merge_h || g->w % v->merge_w) {
		k3_error("planner",
			 "image %zu: grid of %u x %u patches: must be a multiple of the merge "
			 "kernel "
			 "%u x %u",
			 item, g->h, g->w, v->merge_h, v->merge_w);
		return K3_ESHAPE;
	}
	return K3_OK;
}

/* Grids, and rows of the stream that the features go to: in order, inside the stream. */
static int
check_items(struct k3i_vtiles *v, const struct k3_config *c, const struct k3_layout *layout)
{
	size_t end = 0, patches = 0;

	for (size_t i = 0; i < layout->n_items; i++) {
		int ret = check_grid(c, &layout->grid[i], i);
		if (ret != K3_OK)
			return ret;
		size_t row = layout->item_row[i], m = k3i_grid_merged(c, &layout->grid[i]);
		if (row < end || row + m > layout->n_tokens) {
			k3_error("planner",
				 "image %zu: features for rows %zu to %zu: rows from %zu to %zu "
				 "are free",
				 i, row, row + m - 1, end, layout->n_tokens);
			return K3_ESHAPE;
		}
		end = row + m;
		patches += k3_grid_patches(&layout->grid[i]);
		v->n_merged += m;
	}
	if (patches > INT32_MAX) {
		k3_error("planner", "%zu patches in one microbatch: at most %d are possible",
			 patches, INT32_MAX);
		return K3_ELIMIT;
	}
	return K3_OK;
}

/* Bands that an item is cut in. */
static uint32_t
bands_of(const struct k3_plan_options *o, const struct k3_config *c, const struct k3_grid *g)
{
	uint32_t rows = g->h / c->vision.merge_h;
	uint64_t patches = k3_grid_patches(g), bands = o->vision_bands;

	if (!bands)
		bands = (patches + o->vision_patches - 1) / o->vision_patches;
	if (!o->vision_bands && bands > MOST_TILES_OF_ITEM)
		bands = MOST_TILES_OF_ITEM;
	return bands < rows ? (uint32_t)bands : rows;
}

struct cutter {
	struct k3i_vtiles *v;
	struct k3_builder *b;
	size_t cap_parts; /* of the open tile */
	bool open;
};

static struct k3i_vtile *
open_tile(struct cutter *t, size_t merged0)
{
	struct k3i_vtile *tile = &t->v->tile[t->v->n++];

	*tile = (struct k3i_vtile){.merged0 = merged0};
	t->open = true;
	return tile;
}

/* Adds a band to the last tile. */
static void
add_part(struct cutter *t, const struct k3_config *c, const struct k3_grid *g, int32_t item,
	 uint32_t row0, uint32_t rows, int32_t *part)
{
	struct k3i_vtile *tile = &t->v->tile[t->v->n - 1];
	const int32_t values[K3_VP_LEN] = {
		[K3_VP_ITEM] = item,
		[K3_VP_T] = (int32_t)g->t,
		[K3_VP_H] = (int32_t)g->h,
		[K3_VP_W] = (int32_t)g->w,
		[K3_VP_ROW0] = (int32_t)row0,
		[K3_VP_ROWS] = (int32_t)rows,
		[K3_VP_PATCH0] = (int32_t)tile->n,
		[K3_VP_MERGED0] = (int32_t)tile->m,
	};

	memcpy(part, values, sizeof(values));
	tile->parts++;
	tile->n += (size_t)g->t * rows * g->w;
	tile->m += (size_t)(rows / c->vision.merge_h) * (g->w / c->vision.merge_w);
}

/* All parts one after the other in parts[]; tiles point into it by number until they are laid out. */
static void
cut_items(struct cutter *t, const struct k3_config *c, const struct k3_grid *grid, size_t n_items,
	  int32_t *parts)
{
	const struct k3_plan_options *o = &t->b->model->options;
	size_t merged = 0, n_parts = 0;

	for (size_t i = 0; i < n_items; i++) {
		uint32_t bands = bands_of(o, c, &grid[i]), row0, rows;
		for (uint32_t band = 0; band < bands; band++) {
			k3_vision_rows(&grid[i], c->vision.merge_h, bands, band, &row0, &rows);
			if (rows == 0)
				continue;
			size_t more = (size_t)grid[i].t * rows * grid[i].w;
			/* bands that were asked for by number have a tile of their own */
			if (!t->open || o->vision_bands ||
			    t->v->tile[t->v->n - 1].n + more > o->vision_patches)
				open_tile(t, merged);
			add_part(t, c, &grid[i], (int32_t)i, row0, rows,
				 parts + K3_VP_LEN * n_parts++);
			merged += (size_t)(rows / c->vision.merge_h) *
				  (grid[i].w / c->vision.merge_w);
		}
	}
}

static int
lay_out(struct k3i_vtiles *v, struct k3_arena *arena, const int32_t *parts)
{
	for (size_t i = 0; i < v->n; i++) {
		struct k3i_vtile *t = &v->tile[i];
		t->layout = k3i_arena_alloc(arena, k3_vit_layout_len(t->parts) * sizeof(int32_t));
		if (!t->layout)
			return K3_ENOMEM;
		t->layout[K3_VL_PATCHES] = (int32_t)t->n;
		t->layout[K3_VL_MERGED] = (int32_t)t->m;
		t->layout[K3_VL_PARTS] = (int32_t)t->parts;
		t->layout[K3_VL_MERGED0] = (int32_t)t->merged0;
		memcpy(t->layout + K3_VL_HEAD, parts, t->parts * K3_VP_LEN * sizeof(*parts));
		parts += t->parts * K3_VP_LEN;
		v->nominal_n = t->n > v->nominal_n ? t->n : v->nominal_n;
		v->nominal_m = t->m > v->nominal_m ? t->m : v->nominal_m;
		v->nominal_parts = t->parts > v->nominal_parts ? t->parts : v->nominal_parts;
	}
	return K3_OK;
}

static int32_t
item_of(const struct k3i_vtile *t, size_t part)
{
	return k3_vit_part(t->layout, (int32_t)part)[K3_VP_ITEM];
}

/* Only the first and the last item of a tile can go on in its neighbours. */
static void
find_keys(struct k3i_vtiles *v)
{
	for (size_t i = 0; i < v->n; i++) {
		struct k3i_vtile *t = &v->tile[i];
		size_t first = i, last = i;
		while (first > 0 &&
		       item_of(&v->tile[first - 1], v->tile[first - 1].parts - 1) == item_of(t, 0))
			first--;
		while (last + 1 < v->n &&
		       item_of(&v->tile[last + 1], 0) == item_of(t, t->parts - 1))
			last++;
		t->key0 = first;
		t->n_keys = last - first + 1;
	}
}

int
k3i_vision_cut(struct k3i_vtiles *v, struct k3_builder *b, const struct k3_layout *layout)
{
	const struct k3_config *c = b->config;
	const struct k3_grid stand_in = {1, c->vision.merge_h, c->vision.merge_w};
	const struct k3_grid *grid = layout->n_items ? layout->grid : &stand_in;
	size_t n_items = layout->n_items ? layout->n_items : 1, most = 0;
	struct k3_arena *arena = b->plan->arena;
	struct cutter t = {.v = v, .b = b};
	int ret = K3_OK;

	memset(v, 0, sizeof(*v));
	v->placeholder = layout->n_items == 0;
	v->nominal_n = b->model->options.vision_patches;
	v->nominal_m = v->nominal_n / (c->vision.merge_h * c->vision.merge_w);
	v->nominal_parts = v->nominal_m;
	if (!v->placeholder)
		K3_TRY(check_items(v, c, layout));
	for (size_t i = 0; i < n_items; i++)
		most += bands_of(&b->model->options, c, &grid[i]);
	int32_t *parts = k3i_arena_alloc(arena, most * K3_VP_LEN * sizeof(*parts));
	v->tile = k3i_arena_alloc(arena, most * sizeof(*v->tile));
	if (!parts || !v->tile)
		K3_TRY(K3_ENOMEM);
	cut_items(&t, c, grid, n_items, parts);
	K3_TRY(lay_out(v, arena, parts));
	find_keys(v);
out:
	return ret;
}
