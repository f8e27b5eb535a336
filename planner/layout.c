/* Documents to tiles.  The trap: a masked hole does not end a document, so a tile of holes inside a
 * document has no segment and state passes it by (prev, next), and ids that come back later are an
 * error. */
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/rng.h"
#include "../common/status.h"
#include "build.h"

int
k3_layout_check(const struct k3_layout *layout)
{
	int32_t current = 0, most = 0;

	if (layout->n_tokens < 1 || layout->n_tokens > INT32_MAX) {
		k3_error("planner", "layout of %zu tokens: 1 to %d are possible", layout->n_tokens,
			 INT32_MAX);
		return K3_ESHAPE;
	}
	for (size_t i = 0; i < layout->n_tokens; i++) {
		int32_t id = layout->doc_ids[i];
		if (id < 0) {
			k3_error("planner", "document id %d at token %zu: must not be negative", id,
				 i);
			return K3_EINVAL;
		}
		if (id == 0 || id == current)
			continue;
		if (id <= most) {
			k3_error("planner",
				 "document id %d at token %zu comes after document %d: ids must "
				 "ascend, each in one run",
				 id, i, most);
			return K3_EINVAL;
		}
		current = most = id;
	}
	return K3_OK;
}

uint64_t
k3_layout_hash(const struct k3_layout *layout)
{
	uint64_t h = k3_fnv1a(K3_FNV_START, &layout->n_tokens, sizeof(layout->n_tokens));

	h = k3_fnv1a(h, layout->doc_ids, layout->n_tokens * sizeof(*layout->doc_ids));
	h = k3_fnv1a(h, layout->grid, layout->n_items * sizeof(*layout->grid));
	return k3_fnv1a(h, layout->item_row, layout->n_items * sizeof(*layout->item_row));
}

static int32_t
doc_at(const struct k3_layout *layout, size_t row)
{
	return row < layout->n_tokens ? layout->doc_ids[row] : 0;
}

/* Header, document ids, order and segments of one tile. */
static void
fill(struct k3_tile *t, const struct k3_layout *layout)
{
	int32_t *l = t->layout, *doc = l + K3_TL_HEAD, *order = doc + t->rows,
		*seg = order + t->rows, last = 0;

	l[K3_TL_ROWS] = (int32_t)t->rows;
	l[K3_TL_ROW0] = (int32_t)t->row0;
	for (size_t r = 0; r < t->rows; r++) {
		doc[r] = doc_at(layout, t->row0 + r);
		if (doc[r] == 0)
			continue;
		if (doc[r] != last)
			seg[l[K3_TL_SEGMENTS]++] = l[K3_TL_VALID];
		if (!t->first_doc)
			t->first_doc = doc[r];
		t->last_doc = last = doc[r];
		order[l[K3_TL_VALID]++] = (int32_t)r;
	}
	seg[l[K3_TL_SEGMENTS]] = l[K3_TL_VALID];
}

/* Links the tiles of documents that are cut, and counts the halo rows that enter and leave. */
static void
link_tiles(struct k3_plan *p, uint32_t taps, bool cut)
{
	int32_t before = -1,
		rows = 0; /* last tile with a document; rows of its last document so far */

	for (size_t i = 0; i < p->n_tiles; i++) {
		struct k3_tile *t = &p->tile[i];
		t->prev = t->next = -1;
		if (!t->first_doc)
			continue;
		int32_t most = (int32_t)taps - 1;
		bool cont = !cut && before >= 0 && p->tile[before].last_doc == t->first_doc;
		if (cont) {
			struct k3_tile *s = &p->tile[before];
			t->prev = before;
			s->next = (int32_t)i;
			s->layout[K3_TL_CONT_OUT] = t->layout[K3_TL_CONT_IN] = 1;
			s->layout[K3_TL_HIST_OUT] = t->layout[K3_TL_HIST_IN] =
				rows < most ? rows : most;
		}
		const int32_t *seg = k3_tile_segments(t->layout);
		int32_t segments = t->layout[K3_TL_SEGMENTS];
		int32_t own = seg[segments] - seg[segments - 1];
		rows = cont && segments == 1 ? rows + own : own;
		before = (int32_t)i;
	}
}

int
k3i_layout_tiles(struct k3_builder *b, const struct k3_layout *layout)
{
	struct k3_plan *p = b->plan;
	const struct k3_mesh *mesh = &b->model->options.mesh;
	size_t per_rank = (layout->n_tokens + mesh->cp - 1) / mesh->cp;
	size_t tile_rows = b->model->options.tile_tokens ? b->model->options.tile_tokens : per_rank;
	size_t per_rank_tiles = (per_rank + tile_rows - 1) / tile_rows;
	uint32_t mine = mesh->rank % mesh->cp;

	if (mesh->cp > 1 && per_rank + 1 < b->config->conv_taps) {
		k3_error("planner",
			 "%zu tokens on %u cp ranks: %zu rows a rank, at least %u are needed for "
			 "the convolution's halo",
			 layout->n_tokens, mesh->cp, per_rank, b->config->conv_taps - 1);
		return K3_ESHAPE;
	}
	p->n_tokens = per_rank * mesh->cp;
	p->own_rows = per_rank;
	p->n_tiles = per_rank_tiles * mesh->cp;
	p->own_n = per_rank_tiles;
	p->own_first = mine * per_rank_tiles;
	p->layout_hash = k3_layout_hash(layout);
	p->tile = k3i_arena_alloc(p->arena, p->n_tiles * sizeof(*p->tile));
	if (!p->tile)
		return K3_ENOMEM;
	for (size_t i = 0; i < p->n_tiles; i++) {
		struct k3_tile *t = &p->tile[i];
		size_t in_rank = i % per_rank_tiles * tile_rows;
		t->owner_cp = (uint32_t)(i / per_rank_tiles);
		t->row0 = t->owner_cp * per_rank + in_rank;
		t->rows = in_rank + tile_rows < per_rank ? tile_rows : per_rank - in_rank;
		t->layout =
			k3i_arena_alloc(p->arena, k3_tile_layout_len(t->rows) * sizeof(*t->layout));
		if (!t->layout)
			return K3_ENOMEM;
		fill(t, layout);
	}
	link_tiles(p, b->config->conv_taps, b->model->options.cut_state);
	return K3_OK;
}
