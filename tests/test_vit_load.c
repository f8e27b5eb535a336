/* Patches of a vision tile out of the host's arrays: bands of several items, frames, bytes, and the
 * placeholder of a microbatch without images. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "../common/op/io.h"
#include "vit_case.h"

enum { PIXELS = 5 };

/* Pixel p of patch i of an item stands as item 10^4 + 10 i + p. */
static float
counted(int32_t item, size_t patch, size_t pixel)
{
	return (float)(item * 10000) + (float)(10 * patch + pixel);
}

static float *
item_pixels(int32_t item)
{
	const struct vit_grid *g = &vit_items[item];
	size_t n = (size_t)(g->t * g->h * g->w);
	float *x = held_out(n * PIXELS);

	for (size_t i = 0; i < n * PIXELS; i++)
		x[i] = counted(item, i / PIXELS, i % PIXELS);
	return x;
}

static void
load(const struct vit_tile *tile, float *out, const struct k3_host_batch *batch, int placeholder)
{
	struct k3_vit_load_args a = {.n_buf = 2,
				     .n = tile->n,
				     .pixels = PIXELS,
				     .layout = tile->layout,
				     .layout_len =
					     k3_vit_layout_len((size_t)tile->layout[K3_VL_PARTS]),
				     .placeholder = (uint32_t)placeholder};
	int32_t *layout = held_out_ints(a.layout_len);

	k3_vit_load_cpu((void *[]){out, layout}, &a, batch);
	held_guards();
	cr_assert(memcmp(layout, tile->layout, a.layout_len * sizeof(*layout)) == 0,
		  "the layout is the plan's");
}

Test(vit_load, bands_take_their_rows_of_every_frame, .timeout = 60)
{
	const float *pixels[] = {item_pixels(0), item_pixels(1), item_pixels(2)};
	const struct k3_host_batch batch = {.item_pixels = pixels};
	static const size_t first[] = {0, 24, 48}; /* rows of the items in a dump of all */

	for (size_t c = 0; c < 3; c++)
		for (size_t i = 0; i < vit_cuts[c].n_tiles; i++) {
			struct vit_tile tile = vit_tile(vit_items, vit_cuts[c].band[i]);
			float *out = held_out(tile.n * PIXELS);

			load(&tile, out, &batch, 0);
			for (size_t k = 0; k < tile.n * PIXELS; k++) {
				size_t row = (size_t)tile.row[k / PIXELS];
				int32_t item = row >= 48 ? 2 : row >= 24;
				float want = counted(item, row - first[item], k % PIXELS);
				cr_assert_eq(out[k], want, "cut %zu, tile %zu, pixel %zu is %g", c,
					     i, k, (double)out[k]);
			}
		}
	held_end();
}

Test(vit_load, bytes_stand_for_normalised_pixels, .timeout = 60)
{
	struct vit_grid grid = {2, 6, 8}; /* a band of 64 patches, 320 bytes */
	struct vit_tile tile = vit_tile(&grid, (struct vit_band[VIT_PARTS]){{0, 2, 4}});
	uint8_t bytes[2 * 6 * 8 * PIXELS];
	const uint8_t *item[] = {bytes};
	float *out = held_out(tile.n * PIXELS);

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 7);
	load(&tile, out, &(struct k3_host_batch){.item_bytes = item}, 0);
	for (size_t k = 0; k < tile.n * PIXELS; k++) {
		size_t at = (size_t)tile.row[k / PIXELS] * PIXELS + k % PIXELS;
		double want = ((double)bytes[at] / 255 - 0.5) / 0.5;
		cr_assert(fabs((double)out[k] - want) <= 1.2e-7, "byte %d gives %.9g, not %.9g",
			  bytes[at], (double)out[k], want);
		cr_assert(bytes[at] != 0 || out[k] == -1, "black is -1");
		cr_assert(bytes[at] != 255 || out[k] == 1, "white is 1");
	}
	held_end();
}

Test(vit_load, a_placeholder_has_patches_of_zero_and_needs_no_items, .timeout = 60)
{
	struct vit_tile tile = vit_tile(&vit_items[2], (struct vit_band[VIT_PARTS]){{0, 0, 2}});
	float *out = held_out(tile.n * PIXELS);

	load(&tile, out, &(struct k3_host_batch){0}, 1);
	held_expect_all(out, 0, tile.n * PIXELS, "patches");
	held_end();
}

/* Of another rank's tile: its one buffer is the layout, and no pixels are asked for. */
Test(vit_load, a_tile_of_another_rank_has_a_layout_alone, .timeout = 60)
{
	const int32_t layout[K3_VL_HEAD + K3_VP_LEN] = {24, 6, 1, 9, 3, 1, 8, 6, 2, 4, 0, 0};
	enum { LEN = sizeof(layout) / sizeof(layout[0]) };
	struct k3_vit_load_args a = {.n_buf = 1,
				     .n = 24,
				     .pixels = 12,
				     .layout = layout,
				     .layout_len = LEN,
				     .layout_only = 1};
	struct k3_host_batch batch = {0};
	int32_t got[LEN + 1];

	got[LEN] = -7;
	k3_vit_load_cpu((void *[]){got}, &a, &batch);
	cr_expect_arr_eq(got, layout, sizeof(layout));
	cr_expect_eq(got[LEN], -7);
}
