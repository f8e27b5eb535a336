#include "vit_case.h"

#include <string.h>

const struct vit_grid vit_items[VIT_PARTS] = {{1, 4, 6}, {2, 6, 2}, {1, 2, 2}};

const struct vit_cut vit_cuts[3] = {
	{1, {{{0, 0, 4}, {1, 0, 6}, {2, 0, 2}}}},
	{2, {{{0, 0, 4}, {1, 0, 2}}, {{1, 2, 4}, {2, 0, 2}}}},
	{4, {{{0, 0, 2}}, {{0, 2, 2}, {1, 0, 2}}, {{1, 2, 2}}, {{1, 4, 2}, {2, 0, 2}}}},
};

/* Rows of a band in the dumps: patches of every frame, merged tokens once. */
static void
number_rows(int32_t *row, int32_t *merged_row, const struct vit_grid *items,
	    const struct vit_band *band)
{
	const struct vit_grid *g = &items[band->item];
	int32_t first = 0, merged = 0, patches = band->rows * g->w;

	for (int32_t i = 0; i < band->item; i++) {
		first += items[i].t * items[i].h * items[i].w;
		merged += items[i].h * items[i].w / 4;
	}
	for (int32_t f = 0; f < g->t; f++)
		for (int32_t i = 0; i < patches; i++)
			*row++ = first + (f * g->h + band->row0) * g->w + i;
	for (int32_t i = 0; i < patches / 4; i++)
		*merged_row++ = merged + band->row0 * g->w / 4 + i;
}

struct vit_tile
vit_tile(const struct vit_grid *items, const struct vit_band *band)
{
	int32_t parts = 0, n = 0, merged = 0;

	while (parts < VIT_PARTS && band[parts].rows)
		parts++;
	int32_t *layout = held_out_ints(k3_vit_layout_len((size_t)parts)),
		*to = layout + K3_VL_HEAD, *row = held_out_ints(4096),
		*merged_row = held_out_ints(1024);
	for (int32_t p = 0; p < parts; p++, to += K3_VP_LEN) {
		const struct vit_grid *g = &items[band[p].item];
		int32_t patches = band[p].rows * g->w;

		memcpy(to,
		       ((int32_t[]){band[p].item, g->t, g->h, g->w, band[p].row0, band[p].rows, n,
				    merged}),
		       K3_VP_LEN * sizeof(*to));
		number_rows(row + n, merged_row + merged, items, &band[p]);
		n += g->t * patches;
		merged += patches / 4;
	}
	memcpy(layout, ((int32_t[]){n, merged, parts, 0}), K3_VL_HEAD * sizeof(*layout));
	return (struct vit_tile){(size_t)n, (size_t)merged, layout, row, merged_row};
}

static float *
gather(const int32_t *row, size_t n, const float *x, size_t width)
{
	float *to = held_out(n * width);

	for (size_t i = 0; i < n; i++)
		memcpy(to + i * width, x + (size_t)row[i] * width, width * sizeof(*to));
	return to;
}

static void
scatter(const int32_t *row, size_t n, float *to, const float *x, size_t width)
{
	for (size_t i = 0; i < n; i++)
		memcpy(to + (size_t)row[i] * width, x + i * width, width * sizeof(*to));
}

float *
vit_gather(const struct vit_tile *tile, const float *x, size_t width)
{
	return gather(tile->row, tile->n, x, width);
}

void
vit_scatter(const struct vit_tile *tile, float *to, const float *x, size_t width)
{
	scatter(tile->row, tile->n, to, x, width);
}

float *
vit_gather_merged(const struct vit_tile *tile, const float *x, size_t width)
{
	return gather(tile->merged_row, tile->m, x, width);
}

void
vit_scatter_merged(const struct vit_tile *tile, float *to, const float *x, size_t width)
{
	scatter(tile->merged_row, tile->m, to, x, width);
}

int
vit_meet(const struct vit_tile *x, const struct vit_tile *y)
{
	for (int32_t p = 0; p < x->layout[K3_VL_PARTS]; p++)
		for (int32_t r = 0; r < y->layout[K3_VL_PARTS]; r++)
			if (k3_vit_part(x->layout, p)[K3_VP_ITEM] ==
			    k3_vit_part(y->layout, r)[K3_VP_ITEM])
				return 1;
	return 0;
}
