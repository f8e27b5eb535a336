/* Data of the text model's walk, by what becomes of them between the passes. */
#include "text.h"

#include "../common/log.h"
#include "../common/status.h"

uint32_t *
k3i_array(struct k3i_walk *w, size_t n)
{
	struct k3_builder *b = w->b;
	uint32_t *a = k3i_arena_alloc(b->plan->arena, (n ? n : 1) * sizeof(*a));

	if (a)
		return a;
	b->status = K3_ENOMEM;
	K3_ASSERT(n <= b->array_sink_n);
	return b->array_sink;
}

static uint32_t
tile_data(struct k3i_walk *w, const char *what, enum k3_data_kind kind, enum k3_dtype dtype,
	  int layer, size_t tile, int index, size_t row_elems)
{
	return k3i_data(w->b, what, kind, dtype, layer, (int)(w->b->plan->own_first + tile), index,
			k3i_rows(w, tile), w->nominal, row_elems);
}

uint32_t
k3i_act(struct k3i_walk *w, const char *what, int layer, size_t tile, int index, size_t row_elems)
{
	return tile_data(w, what, K3_DATA_ACT, w->b->act, layer, tile, index, row_elems);
}

uint32_t
k3i_stat(struct k3i_walk *w, const char *what, int layer, size_t tile, int index, size_t row_elems)
{
	return tile_data(w, what, K3_DATA_ACT, K3_F32, layer, tile, index, row_elems);
}

static enum k3_data_kind
saved_kind(const struct k3i_walk *w, int layer)
{
	bool read = w->b->what.backward && (w->again || !k3i_recomputes(w, layer));

	return read ? K3_DATA_ACT : K3_DATA_WORK;
}

uint32_t
k3i_saved(struct k3i_walk *w, const char *what, int layer, size_t tile, int index, size_t row_elems)
{
	return tile_data(w, what, saved_kind(w, layer), w->b->act, layer, tile, index, row_elems);
}

uint32_t
k3i_saved_stat(struct k3i_walk *w, const char *what, int layer, size_t tile, int index,
	       size_t row_elems)
{
	return tile_data(w, what, saved_kind(w, layer), K3_F32, layer, tile, index, row_elems);
}

uint32_t
k3i_kept(struct k3i_walk *w, const char *what, int layer, size_t tile, size_t row_elems)
{
	enum k3_data_kind kind = w->b->what.backward ? K3_DATA_ACT : K3_DATA_WORK;

	return tile_data(w, what, kind, w->b->act, layer, tile, -1, row_elems);
}

bool
k3i_recomputes(const struct k3i_walk *w, int layer)
{
	return w->b->what.backward && layer >= 0 &&
	       w->b->model->options.activations[layer] == K3_RECOMPUTE;
}

void
k3i_keep(struct k3i_walk *w, uint32_t datum)
{
	if (w->b->what.keep && w->b->status == K3_OK)
		w->b->plan->data[datum].keep = true;
}
