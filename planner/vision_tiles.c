/* Items to vision tiles.  A tile takes at most vision_patches patches, or one merge row when
 * that alone is more; a large item is cut in equal bands, a small one is never cut.  The trap:
 * sizes and number of slots must not depend on the images, so where their patches are bounded,
 * every tile is sized as a full one, and tiles that could be there take their positions.
 *
 * Tiles of at most P patches in all: a tile is opened when the next part does not fit into the
 * last one, so two neighbours hold more than vision_patches together, which is S patches or more
 * when S is the next multiple of a merged token.  So there are at most 2 floor(P / S) tiles, and
 * one more when P leaves room for a merged token.  Images of one merged token between images
 * that fill a tile reach that number. Tiles of several cp ranks have that number, and one more
 * for each of them. */
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "vision_tiles.h"

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

/* All tiles, rank by rank; parts one after the other, as lay_out wants them. */
struct cut {
	struct k3i_vtile *tile;
	size_t n, merged;
	int32_t *part; /* the next */
};

static struct k3i_vtile *
open_tile(struct cut *cut)
{
	struct k3i_vtile *tile = &cut->tile[cut->n];

	*tile = (struct k3i_vtile){.number = (int)cut->n++, .merged0 = cut->merged};
	return tile;
}

/* Adds grid rows row0 .. row0 + band->h - 1 of an item to a tile. */
static void
add_part(struct cut *cut, struct k3i_vtile *tile, const struct k3_config *c,
	 const struct k3_grid *item, size_t number, uint32_t row0, const struct k3_grid *band)
{
	const int32_t values[K3_VP_LEN] = {
		[K3_VP_ITEM] = (int32_t)number,	   [K3_VP_T] = (int32_t)item->t,
		[K3_VP_H] = (int32_t)item->h,	   [K3_VP_W] = (int32_t)item->w,
		[K3_VP_ROW0] = (int32_t)row0,	   [K3_VP_ROWS] = (int32_t)band->h,
		[K3_VP_PATCH0] = (int32_t)tile->n, [K3_VP_MERGED0] = (int32_t)tile->m,
	};

	memcpy(cut->part, values, sizeof(values));
	cut->part += K3_VP_LEN;
	tile->parts++;
	tile->n += k3_grid_patches(band);
	tile->m += k3i_vision_merged(c, band);
	cut->merged += k3i_vision_merged(c, band);
}

/* An item in tiles from `first` on, those of its rank. */
static void
cut_item(struct cut *cut, size_t first, const struct k3_plan_options *o, const struct k3_config *c,
	 const struct k3_grid *grid, size_t number, struct k3i_vitem *item)
{
	uint32_t bands = bands_of(o, c, grid), row0;
	struct k3_grid band = *grid;

	item->merged0 = cut->merged;
	for (uint32_t k = 0; k < bands; k++) {
		struct k3i_vtile *tile = &cut->tile[cut->n - (cut->n > first)];
		k3_vision_rows(grid, c->vision.merge_h, bands, k, &row0, &band.h);
		if (band.h == 0)
			continue;
		/* bands that were asked for by number have a tile of their own */
		if (cut->n == first || o->vision_bands ||
		    tile->n + k3_grid_patches(&band) > o->vision_patches)
			tile = open_tile(cut);
		if (row0 == 0)
			item->place = cut->n - 1;
		add_part(cut, tile, c, grid, number, row0, &band);
	}
}

static int
lay_out(struct k3i_vtiles *v, const struct cut *cut, struct k3_arena *arena, const int32_t *parts)
{
	for (size_t i = 0; i < cut->n; i++) {
		struct k3i_vtile *t = &cut->tile[i];
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
find_keys(struct cut *cut)
{
	for (size_t i = 0; i < cut->n; i++) {
		struct k3i_vtile *t = &cut->tile[i];
		size_t first = i, last = i;
		while (first > 0 &&
		       k3i_vtile_item(&cut->tile[first - 1], cut->tile[first - 1].parts - 1) ==
			       k3i_vtile_item(t, 0))
			first--;
		while (last + 1 < cut->n &&
		       k3i_vtile_item(&cut->tile[last + 1], 0) == k3i_vtile_item(t, t->parts - 1))
			last++;
		t->key0 = first;
		t->n_keys = last - first + 1;
	}
}

/* Patches of two neighbours at least. */
static uint64_t
two_tiles(const struct k3_plan_options *o, uint64_t merge)
{
	return (o->vision_patches / merge + 1) * merge;
}

size_t
k3i_vision_most_tiles(const struct k3_plan_options *o, const struct k3_config *c, size_t n)
{
	uint64_t merge = (uint64_t)c->vision.merge_h * c->vision.merge_w;

	if (!o->max_patches)
		return n;
	return (size_t)(2 * (o->max_patches / two_tiles(o, merge)) +
			(o->max_patches % two_tiles(o, merge) >= merge));
}

/* The same of all other cp ranks together. */
static size_t
most_others(const struct k3_plan_options *o, const struct k3_config *c, size_t n)
{
	uint64_t merge = (uint64_t)c->vision.merge_h * c->vision.merge_w,
		 most = o->max_patches / merge, others = o->mesh.cp - 1;

	if (!o->max_patches)
		return n;
	others += others ? 2 * (o->max_patches / two_tiles(o, merge)) : 0;
	return (size_t)(others < most ? others : most);
}

/* Each rank's items one after the other, in the tiles of the rank; ranges count all tiles. */
static int
cut_ranks(struct k3i_vtiles *v, struct cut *cut, struct k3_builder *b,
	  const struct k3_layout *layout)
{
	const struct k3_plan_options *o = &b->model->options;
	uint32_t *owner = k3i_arena_alloc(b->plan->arena, (layout->n_items + 1) * sizeof(*owner));
	uint32_t *next = k3i_arena_alloc(b->plan->arena, (layout->n_items + 1) * sizeof(*next));
	uint32_t *first = k3i_arena_alloc(b->plan->arena, o->mesh.cp * sizeof(*first));
	int ret = owner && next && first ? K3_OK : K3_ENOMEM;

	if (ret == K3_OK)
		ret = k3_vision_balance(owner, layout->grid, layout->n_items, o->mesh.cp);
	if (ret != K3_OK)
		return ret;
	/* chains of items by rank; 0 ends them */
	for (size_t i = layout->n_items; i-- > 0;) {
		next[i] = first[owner[i]];
		first[owner[i]] = (uint32_t)i + 1;
	}
	for (uint32_t r = 0; r < o->mesh.cp; r++) {
		v->rank[r].first = cut->n;
		for (uint32_t i = first[r]; i; i = next[i - 1])
			cut_item(cut, v->rank[r].first, o, b->config, &layout->grid[i - 1], i - 1,
				 &v->item[i - 1]);
		v->rank[r].n = cut->n - v->rank[r].first;
	}
	return K3_OK;
}

/* Place here of a tile that has a place among all of them. */
static size_t
place_of(const struct k3i_vtiles *v, const struct k3i_vrange *own, size_t place)
{
	if (place < own->first)
		return v->n_most + place;
	return place < own->first + own->n ? place - own->first : v->n_most + place - own->n;
}

/* Puts the tiles, which lie rank by rank, in their places. */
static void
place_tiles(struct k3i_vtiles *v, const struct cut *cut, const struct k3_plan_options *o,
	    size_t n_items)
{
	uint32_t mine = o->mesh.rank % o->mesh.cp;
	const struct k3i_vrange own = v->rank[mine];
	size_t others = v->n_most;
	int number = (int)cut->n;

	for (uint32_t r = 0; r < o->mesh.cp; r++) {
		struct k3i_vrange *range = &v->rank[r];
		size_t from = range->first;
		range->first = r == mine ? 0 : others;
		others += r == mine ? 0 : range->n;
		memcpy(&v->tile[range->first], &cut->tile[from], range->n * sizeof(*v->tile));
	}
	for (size_t i = 0; i < n_items; i++)
		v->item[i].place = place_of(v, &own, v->item[i].place);
	for (size_t i = 0; i < own.n; i++)
		v->tile[i].key0 -= own.first;
	if (v->placeholder)
		v->tile[0] = cut->tile[cut->n];
	number += v->placeholder;
	for (size_t i = v->n; i < v->n_most; i++)
		v->tile[i] = (struct k3i_vtile){.number = number++, .key0 = i, .n_keys = 1};
	for (size_t i = v->n_most + v->others; i < v->n_most + v->others_most; i++)
		v->tile[i] = (struct k3i_vtile){.number = number++};
}

/* Behind all tiles: a merged token that no row asks for. */
static int
add_placeholder(struct k3i_vtiles *v, struct cut *cut, struct k3_builder *b)
{
	const struct k3_config *c = b->config;
	const struct k3_grid stand_in = {1, c->vision.merge_h, c->vision.merge_w};
	const int32_t *part = cut->part;
	struct cut last = *cut, one = {.n = 1};

	add_part(&last, open_tile(&last), c, &stand_in, 0, 0, &stand_in);
	one.tile = &cut->tile[cut->n];
	one.tile->n_keys = 1;
	return lay_out(v, &one, b->plan->arena, part);
}

int
k3i_vision_cut(struct k3i_vtiles *v, struct k3_builder *b, const struct k3_layout *layout)
{
	const struct k3_config *c = b->config;
	const struct k3_plan_options *o = &b->model->options;
	struct k3_arena *arena = b->plan->arena;
	struct cut cut = {0};
	size_t most = 1;
	int ret = K3_OK;

	memset(v, 0, sizeof(*v));
	v->nominal_n = o->vision_patches;
	v->nominal_m = v->nominal_parts = v->nominal_n / (c->vision.merge_h * c->vision.merge_w);
	K3_TRY(k3_vision_check_items(c, o, layout));
	for (size_t i = 0; i < layout->n_items; i++) {
		most += bands_of(o, c, &layout->grid[i]);
		v->n_merged += k3i_vision_merged(c, &layout->grid[i]);
	}
	int32_t *parts = cut.part = k3i_arena_alloc(arena, most * K3_VP_LEN * sizeof(*parts));
	cut.tile = k3i_arena_alloc(arena, most * sizeof(*cut.tile));
	v->rank = k3i_arena_alloc(arena, o->mesh.cp * sizeof(*v->rank));
	v->item = k3i_arena_alloc(arena, (layout->n_items + 1) * sizeof(*v->item));
	if (!parts || !cut.tile || !v->rank || !v->item)
		K3_TRY(K3_ENOMEM);
	K3_TRY(cut_ranks(v, &cut, b, layout));
	K3_TRY(lay_out(v, &cut, arena, parts));
	find_keys(&cut);
	size_t own = v->rank[o->mesh.rank % o->mesh.cp].n;
	v->placeholder = own == 0;
	v->n = own + v->placeholder;
	v->others = cut.n - own;
	v->n_most = k3i_vision_most_tiles(o, c, v->n);
	v->others_most = most_others(o, c, v->others);
	K3_ASSERT(v->n <= v->n_most && v->others <= v->others_most);
	v->tile = k3i_arena_alloc(arena, (v->n_most + v->others_most) * sizeof(*v->tile));
	if (!v->tile)
		K3_TRY(K3_ENOMEM);
	if (v->placeholder)
		K3_TRY(add_placeholder(v, &cut, b));
	place_tiles(v, &cut, o, layout->n_items);
out:
	return ret;
}
