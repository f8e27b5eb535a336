/* Items to vision tiles.  A tile takes at most vision_patches patches, or one merge row when that alone
 * is more; a large item is cut in equal bands, a small one is never cut.  The trap: sizes and number of
 * slots must not depend on the images, so where their patches are bounded, every tile is sized as a full
 * one, and tiles that could be there take their positions.
 *
 * Tiles of at most P patches in all: a tile is opened when the next part does not fit into the last one,
 * so two neighbours hold more than vision_patches together, which is S patches or more when S is the next
 * multiple of a merged token.  So there are at most 2 floor(P / S) tiles, and one more when P leaves room
 * for a merged token.  Images of one merged token between images that fill a tile reach that number. */
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "vision_tiles.h"

static size_t
merged_of(const struct k3_config *c, const struct k3_grid *g)
{
	return (size_t)k3_grid_merged(g, c->vision.merge_h, c->vision.merge_w);
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
			 "kernel %u x %u",
			 item, g->h, g->w, v->merge_h, v->merge_w);
		return K3_ESHAPE;
	}
	return K3_OK;
}

/* Where slots are bounded, no tile may be larger than they are. */
static int
check_tile(const struct k3_plan_options *o, const struct k3_config *c, const struct k3_grid *g,
	   size_t item)
{
	uint64_t least = k3_vision_least_patches(g, c->vision.merge_h);

	if (least <= o->vision_patches)
		return K3_OK;
	k3_error("planner",
		 "image %zu: grid %u x %u x %u needs vision tiles of %llu patches, they have %u "
		 "(--vision-patches)",
		 item, g->t, g->h, g->w, (unsigned long long)least, o->vision_patches);
	return K3_ELIMIT;
}

/* Grids, and rows of the stream that the features go to: in order, inside the stream. */
static int
check_items(struct k3i_vtiles *v, const struct k3_builder *b, const struct k3_layout *layout)
{
	const struct k3_config *c = b->config;
	const struct k3_plan_options *o = &b->model->options;
	uint64_t most = o->max_patches ? o->max_patches : K3_VISION_MOST_PATCHES;
	size_t end = 0, patches = 0;

	for (size_t i = 0; i < layout->n_items; i++) {
		int ret = check_grid(c, &layout->grid[i], i);
		if (ret == K3_OK && o->max_patches)
			ret = check_tile(o, c, &layout->grid[i], i);
		if (ret != K3_OK)
			return ret;
		size_t row = layout->item_row[i], m = merged_of(c, &layout->grid[i]);
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
	if (patches > most) {
		k3_error("planner", "%zu patches in one microbatch: at most %llu are possible",
			 patches, (unsigned long long)most);
		return K3_ELIMIT;
	}
	return K3_OK;
}

/* Bands that an item is cut in. */
static uint32_t
bands_of(const struct k3_plan_options *o, const struct k3_config *c, const struct k3_grid *g)
{
	uint32_t rows = g->h / c->vision.merge_h, bands = o->vision_bands;

	if (!bands) {
		uint64_t least = k3_vision_least_patches(g, c->vision.merge_h),
			 most = least > o->vision_patches ? least : o->vision_patches,
			 row = k3_grid_patches(g) / rows;
		uint32_t rows_of_band = most / row < rows ? (uint32_t)(most / row) : rows;
		bands = (rows + rows_of_band - 1) / rows_of_band;
	}
	return bands < rows ? bands : rows;
}

static void
open_tile(struct k3i_vtiles *v)
{
	struct k3i_vtile *tile = &v->tile[v->n];

	*tile = (struct k3i_vtile){.merged0 = v->n ? tile[-1].merged0 + tile[-1].m : 0};
	v->n++;
}

/* Adds grid rows row0 .. row0 + band->h - 1 of an item to a tile. */
static void
add_part(struct k3i_vtile *tile, const struct k3_config *c, const struct k3_grid *item,
	 size_t number, uint32_t row0, const struct k3_grid *band, int32_t *part)
{
	const int32_t values[K3_VP_LEN] = {
		[K3_VP_ITEM] = (int32_t)number,	   [K3_VP_T] = (int32_t)item->t,
		[K3_VP_H] = (int32_t)item->h,	   [K3_VP_W] = (int32_t)item->w,
		[K3_VP_ROW0] = (int32_t)row0,	   [K3_VP_ROWS] = (int32_t)band->h,
		[K3_VP_PATCH0] = (int32_t)tile->n, [K3_VP_MERGED0] = (int32_t)tile->m,
	};

	memcpy(part, values, sizeof(values));
	tile->parts++;
	tile->n += k3_grid_patches(band);
	tile->m += merged_of(c, band);
}

/* All parts one after the other in parts[]; lay_out gives each tile its own. */
static void
cut_items(struct k3i_vtiles *v, const struct k3_plan_options *o, const struct k3_config *c,
	  const struct k3_grid *grid, size_t n_items, int32_t *parts)
{
	for (size_t i = 0; i < n_items; i++) {
		uint32_t bands = bands_of(o, c, &grid[i]), row0;
		struct k3_grid band = grid[i];
		for (uint32_t k = 0; k < bands; k++) {
			k3_vision_rows(&grid[i], c->vision.merge_h, bands, k, &row0, &band.h);
			if (band.h == 0)
				continue;
			/* bands that were asked for by number have a tile of their own */
			if (v->n == 0 || o->vision_bands ||
			    v->tile[v->n - 1].n + k3_grid_patches(&band) > o->vision_patches)
				open_tile(v);
			add_part(&v->tile[v->n - 1], c, &grid[i], i, row0, &band, parts);
			parts += K3_VP_LEN;
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

/* Only the first and the last item of a tile can go on in its neighbours. */
static void
find_keys(struct k3i_vtiles *v)
{
	for (size_t i = 0; i < v->n; i++) {
		struct k3i_vtile *t = &v->tile[i];
		size_t first = i, last = i;
		while (first > 0 &&
		       k3i_vtile_item(&v->tile[first - 1], v->tile[first - 1].parts - 1) ==
			       k3i_vtile_item(t, 0))
			first--;
		while (last + 1 < v->n &&
		       k3i_vtile_item(&v->tile[last + 1], 0) == k3i_vtile_item(t, t->parts - 1))
			last++;
		t->key0 = first;
		t->n_keys = last - first + 1;
	}
}

size_t
k3i_vision_most_tiles(const struct k3_plan_options *o, const struct k3_config *c, size_t n)
{
	uint64_t merge = (uint64_t)c->vision.merge_h * c->vision.merge_w,
		 two = (o->vision_patches / merge + 1) * merge;

	if (!o->max_patches)
		return n;
	return (size_t)(2 * (o->max_patches / two) + (o->max_patches % two >= merge));
}

int
k3i_vision_cut(struct k3i_vtiles *v, struct k3_builder *b, const struct k3_layout *layout)
{
	const struct k3_config *c = b->config;
	const struct k3_plan_options *o = &b->model->options;
	const struct k3_grid stand_in = {1, c->vision.merge_h, c->vision.merge_w};
	const struct k3_grid *grid = layout->n_items ? layout->grid : &stand_in;
	size_t n_items = layout->n_items ? layout->n_items : 1, most = 0;
	struct k3_arena *arena = b->plan->arena;
	int ret = K3_OK;

	memset(v, 0, sizeof(*v));
	v->placeholder = layout->n_items == 0;
	v->nominal_n = o->vision_patches;
	v->nominal_m = v->nominal_parts = v->nominal_n / (c->vision.merge_h * c->vision.merge_w);
	if (!v->placeholder)
		K3_TRY(check_items(v, b, layout));
	for (size_t i = 0; i < n_items; i++)
		most += bands_of(o, c, &grid[i]);
	size_t any = k3i_vision_most_tiles(o, c, 0);
	most = any > most ? any : most;
	int32_t *parts = k3i_arena_alloc(arena, most * K3_VP_LEN * sizeof(*parts));
	v->tile = k3i_arena_alloc(arena, most * sizeof(*v->tile));
	if (!parts || !v->tile)
		K3_TRY(K3_ENOMEM);
	cut_items(v, o, c, grid, n_items, parts);
	K3_TRY(lay_out(v, arena, parts));
	find_keys(v);
	v->n_most = k3i_vision_most_tiles(o, c, v->n);
	K3_ASSERT(v->n <= v->n_most);
	for (size_t i = v->n; i < v->n_most; i++)
		v->tile[i] = (struct k3i_vtile){.key0 = i, .n_keys = 1};
out:
	return ret;
}
