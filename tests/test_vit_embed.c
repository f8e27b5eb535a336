/* Patch embedding of the tower, positions for any grid, frames, and their gradients: against the
 * oracle for every cut in tiles, and closed forms where a wrong axis or a band's own table
 * shows. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "vit_case.h"

enum { D = 10, PIXELS = 27, TABLE_H = 4, TABLE_W = 6, TABLE = TABLE_H * TABLE_W };

/* The items of make_vit_ends.py; vit_cuts fits them too. */
static const struct vit_grid items[VIT_PARTS] = {{1, 4, 6}, {4, 6, 2}, {3, 2, 8}};
enum { PATCHES = 24 + 48 + 48 };

static float *
dump(const char *tensor)
{
	return held_input("vit_ends", tensor);
}

static struct k3_vit_embed_args
embed_args(size_t n, size_t d, size_t pixels)
{
	return (struct k3_vit_embed_args){
		.n = n, .d = d, .pixels = pixels, .table_h = TABLE_H, .table_w = TABLE_W};
}

static void
oracle_forward(const struct vit_tile *tile, float *x)
{
	struct k3_vit_embed_args a = embed_args(tile->n, D, PIXELS);
	struct held_task task = {{x, vit_gather(tile, dump("embed.patches"), PIXELS), tile->layout},
				 3};

	a.wpe = held_push_weight(&task, dump("embed.wpe"), D, PIXELS, 4, 0);
	a.pos = held_push_weight(&task, dump("embed.pos"), TABLE, D, 7, 0);
	a.n_buf = task.n;
	k3_vit_patch_embed_fwd_cpu_f32(task.buf, &a);
}

static void
oracle_backward(const struct vit_tile *tile, float *dwpe, float *dpos, int accumulate)
{
	struct k3_vit_embed_args a = embed_args(tile->n, D, PIXELS);
	struct held_task task = {{vit_gather(tile, dump("embed.dx"), D),
				  vit_gather(tile, dump("embed.patches"), PIXELS), tile->layout},
				 3};

	a.wpe = held_push_weight(&task, dwpe, D, PIXELS, 4, accumulate);
	a.pos = held_push_weight(&task, dpos, TABLE, D, 7, accumulate);
	a.n_buf = task.n;
	k3_vit_patch_embed_bwd_cpu_f32(task.buf, &a);
}

/* Every tile of a cut, both ways; gradients are summed over the tiles. */
static void
expect_embed(const struct vit_cut *cut)
{
	float *x = held_out(PATCHES * D), *dwpe = held_out(D * PIXELS), *dpos = held_out(TABLE * D);

	for (size_t i = 0; i < cut->n_tiles; i++) {
		struct vit_tile tile = vit_tile(items, cut->band[i]);
		float *out = held_out(tile.n * D);

		oracle_forward(&tile, out);
		vit_scatter(&tile, x, out, D);
		oracle_backward(&tile, dwpe, dpos, i > 0);
	}
	held_expect(x, "vit_ends", "embed.x", 1e-6);
	held_expect(dwpe, "vit_ends", "embed.dwpe", 1e-6);
	held_expect(dpos, "vit_ends", "embed.dpos", 1e-6);
	held_end();
}

Test(vit_patch_embed, items_of_one_tile_match_the_oracle, .timeout = 60)
{
	expect_embed(&vit_cuts[0]);
}

Test(vit_patch_embed, bands_take_their_rows_of_the_whole_items_positions, .timeout = 60)
{
	expect_embed(&vit_cuts[1]);
	expect_embed(&vit_cuts[2]);
}

/* Patches of zero, so that positions and times are all there is. */
static float *
positions(const struct vit_tile *tile, float *table, size_t d)
{
	struct k3_vit_embed_args a = embed_args(tile->n, d, 1);
	float *x = held_out(tile->n * d), *zero = held_out(tile->n + d);
	struct held_task task = {{x, zero, tile->layout}, 3};

	memset(zero, 0, (tile->n + d) * sizeof(*zero));
	a.wpe = held_push_weight(&task, zero + tile->n, d, 1, d, 0);
	a.pos = held_push_weight(&task, table, TABLE, d, 5, 0);
	k3_vit_patch_embed_fwd_cpu_f32(task.buf, &a);
	return x;
}

/* Position `at` of n_out entries on a table whose entry i is i. */
static double
ramp(size_t at, size_t n_out, size_t n_in)
{
	double source = ((double)at + 0.5) * (double)n_in / (double)n_out - 0.5;

	return fmin(fmax(source, 0), (double)n_in - 1);
}

static void
expect_ramps(int32_t h, int32_t w)
{
	struct vit_grid grid = {1, h, w};
	struct vit_tile tile = vit_tile(&grid, (struct vit_band[VIT_PARTS]){{0, 0, h}});
	float table[TABLE * 2], *x;

	for (size_t i = 0; i < TABLE; i++) {
		table[2 * i] = (float)(i / TABLE_W);
		table[2 * i + 1] = (float)(i % TABLE_W);
	}
	x = positions(&tile, table, 2);
	for (size_t i = 0; i < tile.n; i++) {
		double row = ramp(i / (size_t)w, (size_t)h, TABLE_H),
		       col = ramp(i % (size_t)w, (size_t)w, TABLE_W);

		cr_assert(fabs((double)x[2 * i] - row) < 1e-6 &&
				  fabs((double)x[2 * i + 1] - col) < 1e-6,
			  "grid %dx%d, patch %zu stands at (%g, %g), expected (%g, %g)", h, w, i,
			  (double)x[2 * i], (double)x[2 * i + 1], row, col);
	}
}

Test(vit_patch_embed, rows_and_columns_of_the_table_are_those_of_the_grid, .timeout = 60)
{
	expect_ramps(2, 8);
	expect_ramps(8, 2);
	expect_ramps(6, 4);
	expect_ramps(40, 36);
	held_end();
}

/* Halving reads the two middle entries of an axis, whatever lies around them. */
Test(vit_patch_embed, a_smaller_grid_reads_two_entries_an_axis, .timeout = 60)
{
	struct vit_grid grid = {1, 2, 2};
	struct vit_tile tile = vit_tile(&grid, (struct vit_band[VIT_PARTS]){{0, 0, 2}});
	float table[TABLE], *x;

	for (size_t i = 0; i < TABLE; i++)
		table[i] = (float)(1 << i % 12) * (i < 12 ? 1 : 4096);
	x = positions(&tile, table, 1);
	/* columns at 1 and 4 exactly, rows half between 0 and 1, 2 and 3 */
	for (size_t i = 0; i < 4; i++) {
		size_t at = i / 2 * 12 + (i % 2 ? 4 : 1);
		cr_assert_eq(x[i], (table[at] + table[at + TABLE_W]) / 2, "patch %zu is %g", i,
			     (double)x[i]);
	}
	held_end();
}

Test(vit_patch_embed, a_grid_of_the_tables_size_takes_the_table_itself, .timeout = 60)
{
	struct vit_tile tile = vit_tile(items, (struct vit_band[VIT_PARTS]){{0, 2, 2}});
	float *table = held_random(1, TABLE * D, -1, 1), *x;

	table[(3 * TABLE_W + 2) * D] = INFINITY; /* neighbours would see 0 * inf */
	x = positions(&tile, table, D);
	held_expect_same(x, table + 2 * TABLE_W * D, 2 * TABLE_W * D, "positions of the band");
	held_end();
}

Test(vit_patch_embed, positions_of_bands_have_the_bits_of_the_whole, .timeout = 60)
{
	float *table = held_random(2, TABLE * D, -1, 1), *whole = NULL;

	for (size_t c = 0; c < 3; c++) {
		float *all = held_out(PATCHES * D);

		for (size_t i = 0; i < vit_cuts[c].n_tiles; i++) {
			struct vit_tile tile = vit_tile(items, vit_cuts[c].band[i]);
			vit_scatter(&tile, all, positions(&tile, table, D), D);
		}
		if (whole)
			held_expect_same(all, whole, PATCHES * D, "positions");
		whole = all;
	}
	held_end();
}

/* sin and cos side by side over more channels than one block of them. */
static void
expect_times(int32_t t)
{
	enum { WIDE = 134, HALF = WIDE / 2, FRAME = 2 * 8 };
	struct vit_grid grid = {t, 2, 8};
	struct vit_tile tile = vit_tile(&grid, (struct vit_band[VIT_PARTS]){{0, 0, 2}});
	float *table = held_out(TABLE * WIDE), *x;

	memset(table, 0, TABLE * WIDE * sizeof(*table));
	x = positions(&tile, table, WIDE);
	for (size_t i = 0; i < tile.n * WIDE; i++) {
		size_t c = i % WIDE, k = c % HALF;
		double angle = (double)(i / WIDE / FRAME) * exp(-log(10000) * (double)k / HALF),
		       want = t == 1	 ? 0
			      : c < HALF ? sin(angle)
					 : cos(angle);

		cr_assert(fabs((double)x[i] - want) < 1e-7,
			  "%d frames, patch %zu, channel %zu: %.9g, expected %.9g", t, i / WIDE, c,
			  (double)x[i], want);
	}
	held_end();
}

Test(vit_patch_embed, frames_get_their_time_and_a_single_image_gets_none, .timeout = 60)
{
	for (int32_t t = 1; t <= 4; t++)
		expect_times(t);
}

/* One patch in the corner: its gradient goes to the corner's entry, all others are zeros or
 * stay. */
static void
expect_one_entry(int accumulate)
{
	struct vit_grid grid = {1, TABLE_H, TABLE_W};
	struct vit_tile tile = vit_tile(&grid, (struct vit_band[VIT_PARTS]){{0, 2, 2}});
	struct k3_vit_embed_args a = embed_args(tile.n, 1, 1);
	float *dx = held_out(tile.n), *pixel = held_out(tile.n), *dpos = held_out(TABLE), dwpe = 8;
	struct held_task task = {{dx, pixel, tile.layout}, 3};

	for (size_t i = 0; i < tile.n; i++) {
		dx[i] = i == 1 ? 3 : 0;
		pixel[i] = 2;
	}
	for (size_t i = 0; accumulate && i < TABLE; i++)
		dpos[i] = 100;
	a.wpe = held_push_weight(&task, &dwpe, 1, 1, 1, accumulate);
	a.pos = held_push_weight(&task, dpos, TABLE, 1, 5, accumulate);
	k3_vit_patch_embed_bwd_cpu_f32(task.buf, &a);
	for (size_t i = 0; i < TABLE; i++) {
		float want = (accumulate ? 100.0f : 0.0f) + (i == 2 * TABLE_W + 1 ? 3.0f : 0.0f);
		cr_assert_eq(dpos[i], want, "entry %zu is %g, expected %g", i, (double)dpos[i],
			     (double)want);
	}
	cr_assert_eq(dwpe, accumulate ? 14 : 6);
	held_end();
}

Test(vit_patch_embed, entries_nobody_reads_get_exact_zeros_or_stay, .timeout = 60)
{
	expect_one_entry(0);
	expect_one_entry(1);
}
