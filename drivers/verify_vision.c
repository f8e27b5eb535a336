/* The images of a model file, and the tower's results against the file's.
 *
 * The trap: a vision tile holds bands, each frame by frame, while the file has whole items frame by
 * frame; rows are put in the file's order by the tiles' layouts. */
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "verify_model.h"

static int
read_grids(struct k3i_verify_case *c)
{
	const struct k3_vision_config *v = &c->config.vision;
	struct k3i_verify_items *items = &c->items;
	json_t *grids = NULL;
	size_t n = 0;
	const struct k3_st_tensor *t = k3_st_find(c->st, "input.grid_thw");
	int32_t *thw = k3i_verify_i32(c->st, "input.grid_thw", &n);
	int ret;

	K3_TRY(k3i_verify_metadata(c->st, "image_grids", JSON_ARRAY, &grids));
	if (n / 3 != json_array_size(grids) || (thw && (t->n_dims != 2 || t->dims[1] != 3))) {
		k3_error(
			"drivers",
			"input.grid_thw has %zu numbers, the metadata %zu images: it must be [%zu, "
			"3]",
			n, json_array_size(grids), json_array_size(grids));
		K3_TRY(K3_EFORMAT);
	}
	items->n = n / 3;
	if (items->n > 0 && !v->present) {
		k3_error("drivers", "the case has %zu images and its model no vision tower",
			 items->n);
		K3_TRY(K3_EFORMAT);
	}
	items->grid = calloc(items->n + 1, sizeof(*items->grid));
	K3_TRY(items->grid ? K3_OK : K3_ENOMEM);
	for (size_t i = 0; i < items->n; i++) {
		for (size_t k = 0; k < 3; k++)
			if (thw[3 * i + k] < 1 || thw[3 * i + k] > K3_VISION_MOST_SIDE) {
				k3_error("drivers",
					 "input.grid_thw, image %zu: %d; allowed: 1 to %d", i,
					 thw[3 * i + k], K3_VISION_MOST_SIDE);
				K3_TRY(K3_EFORMAT);
			}
		items->grid[i] = (struct k3_grid){(uint32_t)thw[3 * i], (uint32_t)thw[3 * i + 1],
						  (uint32_t)thw[3 * i + 2]};
		items->n_patches += k3_grid_patches(&items->grid[i]);
	}
out:
	free(thw);
	json_decref(grids);
	return ret;
}

static int
read_pixels(struct k3i_verify_case *c)
{
	struct k3i_verify_items *items = &c->items;
	const struct k3_st_tensor *t = k3_st_find(c->st, "input.pixels");
	size_t pixels = k3_patch_values(c->config.vision.patch), patch0 = 0;

	if (items->n == 0)
		return K3_OK;
	if (!t || t->n_dims != 2 || t->dims[0] != items->n_patches || t->dims[1] != pixels) {
		k3_error("drivers", "input.pixels is missing or not [%zu, %zu], as the grids say",
			 items->n_patches, pixels);
		return K3_EFORMAT;
	}
	items->all = malloc(items->n_patches * pixels * sizeof(*items->all));
	items->pixels = calloc(items->n, sizeof(*items->pixels));
	if (!items->all || !items->pixels)
		return K3_ENOMEM;
	for (size_t i = 0; i < items->n; i++) {
		items->pixels[i] = items->all + patch0 * pixels;
		patch0 += k3_grid_patches(&items->grid[i]);
	}
	return k3_st_read_f32(t, 0, t->n_elems, items->all);
}

/* Features of an item go to a run of placeholders; items in order. */
static int
find_rows(struct k3i_verify_case *c)
{
	const struct k3_vision_config *v = &c->config.vision;
	struct k3i_verify_items *items = &c->items;
	size_t at = 0, there = 0;

	items->row = calloc(items->n + 1, sizeof(*items->row));
	if (!items->row)
		return K3_ENOMEM;
	for (size_t i = 0; v->present && i < c->t; i++)
		there += c->ids[i] == (int32_t)c->config.placeholder;
	for (size_t i = 0; i < items->n; i++)
		items->n_merged += k3_grid_merged(&items->grid[i], v->merge_h, v->merge_w);
	if (there != items->n_merged) {
		k3_error("drivers", "%zu placeholders (id %u) for %zu features of %zu images",
			 there, c->config.placeholder, items->n_merged, items->n);
		return K3_EINVAL;
	}
	for (size_t i = 0; i < items->n; i++) {
		size_t m = k3_grid_merged(&items->grid[i], v->merge_h, v->merge_w), end;
		while (at < c->t && c->ids[at] != (int32_t)c->config.placeholder)
			at++;
		for (end = at;
		     end < c->t && end < at + m && c->ids[end] == (int32_t)c->config.placeholder;)
			end++;
		if (end != at + m) {
			k3_error("drivers",
				 "image %zu: %zu placeholders at position %zu for %zu "
				 "features",
				 i, end - at, at, m);
			return K3_EINVAL;
		}
		items->row[i] = (uint32_t)at;
		at = end;
	}
	return K3_OK;
}

int
k3i_verify_read_items(struct k3i_verify_case *c)
{
	int ret;

	K3_TRY(read_grids(c));
	K3_TRY(read_pixels(c));
	K3_TRY(find_rows(c));
out:
	return ret;
}

void
k3i_verify_free_items(struct k3i_verify_case *c)
{
	free(c->items.grid);
	free(c->items.row);
	free(c->items.pixels);
	free(c->items.all);
	memset(&c->items, 0, sizeof(c->items));
}

/* Rows [n, width] of a tile's patches to their places in the file. */
static void
place_patches(const struct k3i_verify_case *c, const int32_t *layout, const float *rows,
	      size_t width, double *out)
{
	for (int32_t p = 0; p < layout[K3_VL_PARTS]; p++) {
		const int32_t *part = k3_vit_part(layout, p);
		size_t run = k3_vit_frame_patches(part), patch0 = 0;
		for (int32_t i = 0; i < part[K3_VP_ITEM]; i++)
			patch0 += k3_grid_patches(&c->items.grid[i]);
		for (int32_t f = 0; f < part[K3_VP_T]; f++) {
			size_t to = patch0 + k3_vit_item_patch(part, f),
			       from = (size_t)part[K3_VP_PATCH0] + (size_t)f * run;
			for (size_t k = 0; k < run * width; k++)
				out[to * width + k] = (double)rows[from * width + k];
		}
	}
}

static const int32_t *
layout_of(const struct k3_plan *plan, int32_t tile)
{
	for (size_t i = 0; i < plan->n_tasks; i++)
		if (plan->task[i].op == K3_OP_VIT_LOAD && plan->task[i].tile == tile)
			return ((const struct k3_vit_load_args *)plan->task[i].args)->layout;
	return NULL;
}

/* A kept datum of all vision tiles in the file's order, malloc'ed; NULL: some of it is not
 * there. */
static double *
gather_tiles(struct k3i_verify_case *c, const char *what, int block, bool merged, size_t *n)
{
	size_t rows = merged ? c->items.n_merged : c->items.n_patches, have = 0;
	double *out = NULL;

	for (size_t i = 0; i < c->plan->n_data; i++) {
		const struct k3_datum *d = &c->plan->data[i];
		if (!d->keep || d->index != block || strcmp(d->what, what) != 0)
			continue;
		const int32_t *layout = layout_of(c->plan, d->tile);
		float *part = malloc(d->rows * d->row_elems * sizeof(*part) + 1);
		if (!out)
			out = malloc((rows * d->row_elems + 1) * sizeof(*out));
		K3_ASSERT(part && out && layout);
		if (k3_store_floats_read(c->session.store, c->plan, (uint32_t)i, part) == K3_OK) {
			size_t at = (size_t)layout[K3_VL_MERGED0] * d->row_elems;
			for (size_t k = 0; merged && k < d->rows * d->row_elems; k++)
				out[at + k] = (double)part[k];
			if (!merged)
				place_patches(c, layout, part, d->row_elems, out);
			have += d->rows;
		}
		*n = rows * d->row_elems;
		free(part);
	}
	if (have == rows)
		return out;
	free(out);
	return NULL;
}

static void
compare(struct k3i_verify_case *c, bool backward, const char *suffix, const char *what, int block,
	bool merged, int place)
{
	const char *cls = backward ? "grad.vision." : "vision.";
	size_t n_want = 0, n_got = 0;
	char name[64], datum[32];

	snprintf(name, sizeof(name), "%s%s", cls, suffix);
	snprintf(datum, sizeof(datum), "%s%s", backward ? "d" : "", what);
	double *want = k3i_verify_f64(c->st, name, &n_want),
	       *got = want ? gather_tiles(c, datum, block, merged, &n_got) : NULL;
	if (!want || !got || n_got != n_want)
		k3_verify_missing(c->report, cls, name);
	else
		k3_verify_compare(c->report, cls, name, place, got, want, n_want,
				  backward ? 1e-4 : 2e-5, false);
	free(want);
	free(got);
}

static void
compare_tower(struct k3i_verify_case *c, bool backward)
{
	char suffix[32];

	if (c->items.n == 0)
		return;
	compare(c, backward, "embed", "vit_embed", -1, false, K3_PLACE_TOWER);
	for (int b = 0; b < (int)c->config.vision.layers; b++) {
		snprintf(suffix, sizeof(suffix), "block.%d", b);
		compare(c, backward, suffix, "vit_block", b, false, K3_PLACE_TOWER + 1 + b);
	}
	compare(c, backward, "final", "vit_final", -1, false, K3_PLACE_TOWER_END);
	compare(c, backward, "features", "vit_features", -1, true, K3_PLACE_FEATURES);
}

void
k3i_verify_vision_forward(struct k3i_verify_case *c)
{
	compare_tower(c, false);
}

void
k3i_verify_vision_backward(struct k3i_verify_case *c)
{
	compare_tower(c, true);
}
