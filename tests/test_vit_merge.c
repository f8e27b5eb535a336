/* Final norm, mean over frames and merge of neighbours: against the oracle for every cut in tiles,
 * and by hand where an order or a mean in the wrong place shows. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "vit_case.h"

enum { D = 7, C = 4 * D };

/* The items of make_vit_ends.py; vit_cuts fits them too. */
static const struct vit_grid items[VIT_PARTS] = {{1, 4, 6}, {4, 6, 2}, {3, 2, 8}};
enum { PATCHES = 24 + 48 + 48, MERGED = 6 + 3 + 4 };

static float *
dump(const char *tensor)
{
	return held_input("vit_ends", tensor);
}

static struct k3_vit_merge_args
merge_args(const struct vit_tile *tile)
{
	return (struct k3_vit_merge_args){
		.n = tile->n, .m = tile->m, .d = D, .merge_h = 2, .merge_w = 2, .eps = 1e-5f};
}

/* z, xf and rstd of one tile go where they belong among all of the items. */
static void
oracle_forward(const struct vit_tile *tile, float *z, float *xf, float *rstd)
{
	struct k3_vit_merge_args a = merge_args(tile);
	float *out = held_out(tile->m * C), *normed = held_out(tile->n * D), *r = held_out(tile->n);
	struct held_task task = {
		{out, normed, r, vit_gather(tile, dump("merge.x"), D), tile->layout}, 5};

	a.norm = held_push_weight(&task, dump("merge.norm"), 1, D, 1, 0);
	a.n_buf = task.n;
	k3_vit_merge_fwd_cpu_f32(task.buf, &a);
	vit_scatter_merged(tile, z, out, C);
	vit_scatter(tile, xf, normed, D);
	vit_scatter(tile, rstd, r, 1);
}

static void
oracle_backward(const struct vit_tile *tile, float *dx, float *dxf, float *dnorm, int accumulate)
{
	struct k3_vit_merge_args a = merge_args(tile);
	float *out = held_out(tile->n * D), *between = held_out(tile->n * D);
	struct held_task task = {{out, between, vit_gather_merged(tile, dump("merge.dz"), C),
				  vit_gather(tile, dump("merge.x"), D),
				  vit_gather(tile, dump("merge.rstd"), 1), tile->layout},
				 6};

	a.dnorm = held_push_weight(&task, dnorm, 1, D, 1, accumulate);
	a.norm = held_push_weight(&task, dump("merge.norm"), 1, D, 1, 0);
	a.n_buf = task.n;
	k3_vit_merge_bwd_cpu_f32(task.buf, &a);
	vit_scatter(tile, dx, out, D);
	vit_scatter(tile, dxf, between, D);
}

static void
expect_merge(const struct vit_cut *cut)
{
	float *z = held_out(MERGED * C), *xf = held_out(PATCHES * D), *rstd = held_out(PATCHES),
	      *dx = held_out(PATCHES * D), *dxf = held_out(PATCHES * D), *dnorm = held_out(D);

	for (size_t i = 0; i < cut->n_tiles; i++) {
		struct vit_tile tile = vit_tile(items, cut->band[i]);

		oracle_forward(&tile, z, xf, rstd);
		oracle_backward(&tile, dx, dxf, dnorm, i > 0);
	}
	held_expect(z, "vit_ends", "merge.z", 1e-6);
	held_expect(xf, "vit_ends", "merge.xf", 1e-6);
	held_expect(rstd, "vit_ends", "merge.rstd", 1e-6);
	held_expect(dxf, "vit_ends", "merge.dxf", 1e-6);
	held_expect(dx, "vit_ends", "merge.dx", 1e-6);
	held_expect(dnorm, "vit_ends", "merge.dnorm", 1e-6);
	held_end();
}

Test(vit_merge, items_of_one_tile_match_the_oracle, .timeout = 60)
{
	expect_merge(&vit_cuts[0]);
}

Test(vit_merge, bands_hold_whole_merge_rows_of_every_frame, .timeout = 60)
{
	expect_merge(&vit_cuts[1]);
	expect_merge(&vit_cuts[2]);
}

/* One channel; beside this eps the mean square is lost, so the norm changes nothing at all. */
static float *
merged(const struct vit_tile *tile, float *x)
{
	struct k3_vit_merge_args a = merge_args(tile);
	float *z = held_out(tile->n), weight = 0x1p20f;
	struct held_task task = {{z, held_out(tile->n), held_out(tile->n), x, tile->layout}, 5};

	a.d = 1;
	a.eps = 0x1p40f;
	a.norm = held_push_weight(&task, &weight, 1, 1, 1, 0);
	k3_vit_merge_fwd_cpu_f32(task.buf, &a);
	return z;
}

Test(vit_merge, neighbours_stand_side_by_side_in_row_order, .timeout = 60)
{
	struct vit_grid grid = {1, 2, 4};
	struct vit_tile tile = vit_tile(&grid, (struct vit_band[VIT_PARTS]){{0, 0, 2}});
	float x[] = {1, 2, 3, 4, 5, 6, 7, 8}, *z = merged(&tile, x);
	static const float want[] = {1, 2, 5, 6, 3, 4, 7, 8};

	held_expect_same(z, want, 8, "z");
	held_end();
}

/* Frame f holds (f + 1) times what frame 0 does, except in one slot. */
Test(vit_merge, each_slot_is_the_mean_of_its_frames, .timeout = 60)
{
	for (int32_t t = 1; t <= 4; t++) {
		struct vit_grid grid = {t, 2, 2};
		struct vit_tile tile = vit_tile(&grid, (struct vit_band[VIT_PARTS]){{0, 0, 2}});
		float *x = held_out(tile.n), want[4], *z;

		for (int32_t f = 0; f < t; f++)
			for (int32_t i = 0; i < 4; i++)
				x[4 * f + i] = i == 3 ? 4 : (float)((i + 1) * (f + 1));
		for (int32_t i = 0; i < 4; i++)
			want[i] = i == 3 ? 4 : (float)(i + 1) * (float)(t + 1) / 2;
		z = merged(&tile, x);
		held_expect_close(z, want, 4, 1e-7, "mean over frames");
	}
	held_end();
}
