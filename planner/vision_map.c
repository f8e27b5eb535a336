/* Which features go where: rows and items both ascend, so one walk over the text tiles meets
 * every item once.  The trap: an item's tiles may be another cp rank's, and small items of a
 * rank share a tile although items of other ranks lie between them; so a text tile has a list of
 * vision tiles, no run. */
#include "../common/status.h"
#include "vision.h"

/* Where the walk stands: items before `item` end before the tile at hand; of `item`, tiles before
 * `place` do. */
struct cursor {
	size_t item, place;
	size_t n_takes;
	uint32_t *last; /* [places] own text tile + 1 that took it last */
};

static size_t
merged_end(const struct k3i_vtile *t)
{
	return t->merged0 + t->m;
}

/* Own text tile i takes merged tokens first .. end - 1, all of the item at hand. */
static void
take_tiles(struct k3i_walk *w, size_t i, size_t first, size_t end, struct cursor *at)
{
	struct k3i_vision *v = w->vision;
	for (; merged_end(k3i_vtile(w, at->place)) <= first; at->place++)
		w->b->plan->steps++;
	for (size_t place = at->place;; place++) {
		w->b->plan->steps++;
		if (at->last[place] != i + 1) {
			at->last[place] = (uint32_t)i + 1;
			v->takes.at[at->n_takes++] = (uint32_t)place;
			v->readers.first[place + 1]++;
		}
		if (merged_end(k3i_vtile(w, place)) >= end)
			break;
	}
}

/* Merged token that replaces each row of own tile i; -1: none. */
static const int32_t *
map_of(struct k3i_walk *w, size_t i, const struct k3_layout *layout, struct cursor *at)
{
	const struct k3_tile *t = k3i_tile(w, i);
	const struct k3i_vitem *item = w->vision->tiles.item;
	int32_t *map = k3i_arena_alloc(w->b->plan->arena, t->rows * sizeof(*map));
	size_t end = t->row0 + t->rows;

	if (!map) {
		w->b->status = K3_ENOMEM;
		return NULL;
	}
	for (size_t r = 0; r < t->rows; r++)
		map[r] = -1;
	while (at->item < layout->n_items && layout->item_row[at->item] < end) {
		size_t n = k3i_vision_merged(w->c, &layout->grid[at->item]),
		       row = layout->item_row[at->item], m = row < t->row0 ? t->row0 - row : 0,
		       stop = row + n < end ? n : end - row, merged0 = item[at->item].merged0;
		w->b->plan->steps++;
		if (m < stop)
			take_tiles(w, i, merged0 + m, merged0 + stop, at);
		for (; m < stop; m++)
			map[row + m - t->row0] = (int32_t)(merged0 + m);
		if (row + n > end)
			break; /* goes on in the next tile */
		if (++at->item < layout->n_items)
			at->place = item[at->item].place;
	}
	return map;
}

/* The other way round. */
static void
find_readers(struct k3i_walk *w)
{
	const struct k3i_lists *takes = &w->vision->takes;
	struct k3i_lists *readers = &w->vision->readers;
	size_t n = k3i_vplaces_n(w);

	for (size_t j = 0; j < n; j++)
		readers->first[j + 1] += readers->first[j];
	for (size_t i = 0; i < w->n; i++)
		for (uint32_t k = takes->first[i]; k < takes->first[i + 1]; k++)
			readers->at[readers->first[takes->at[k]]++] = (uint32_t)i;
	/* each beginning has become its end, which is the next one's beginning */
	for (size_t j = n; j > 0; j--)
		readers->first[j] = readers->first[j - 1];
	readers->first[0] = 0;
}

void
k3i_vision_make_maps(struct k3i_walk *w, const struct k3_layout *layout)
{
	struct k3i_vision *v = w->vision;
	struct k3_arena *arena = w->b->plan->arena;
	size_t places = k3i_vplaces_n(w);
	/* an item's tiles once, and one more wherever a text tile ends */
	size_t most = places + layout->n_items + w->n;
	struct cursor at = {.last = k3i_array(w, places)};

	v->map_rows = k3i_arena_alloc(arena, w->n * sizeof(*v->map_rows));
	v->takes = (struct k3i_lists){k3i_array(w, w->n + 1), k3i_array(w, most)};
	v->readers = (struct k3i_lists){k3i_array(w, places + 1), k3i_array(w, most)};
	if (!v->map_rows)
		w->b->status = K3_ENOMEM;
	if (w->b->status == K3_OK && layout->n_items)
		at.place = v->tiles.item[0].place;
	for (size_t i = 0; i < w->n && w->b->status == K3_OK; i++) {
		v->map_rows[i] = map_of(w, i, layout, &at);
		v->takes.first[i + 1] = (uint32_t)at.n_takes;
	}
	if (w->b->status == K3_OK)
		find_readers(w);
}
