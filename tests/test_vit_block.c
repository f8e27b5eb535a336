/* Products, norms, rotation and MLP of the tower's blocks against the oracle; weights are cut in
 * uneven row blocks. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "vit_case.h"

static float *
dump(const char *tensor)
{
	return held_input("vit_block", tensor);
}

enum { D = 10, HEADS = 2, HD = 12, DQ = HEADS * HD };

static struct k3_vit_qkv_args
qkv_args(size_t n)
{
	return (struct k3_vit_qkv_args){.n = n, .d = D, .dq = DQ, .h = HEADS, .eps = 1e-5f};
}

/* Runs the forward kernel on one tile. */
static void
qkv_forward(const struct vit_tile *tile, float *qkv, float *rstd)
{
	struct k3_vit_qkv_args a = qkv_args(tile->n);
	struct held_task task = {{qkv, rstd, vit_gather(tile, dump("qkv.x"), D), tile->layout,
				  held_out(k3_vit_qkv_work_floats(tile->n, D, HD))},
				 5};

	a.norm = held_push_weight(&task, dump("qkv.norm"), 1, D, 1, 0);
	a.w = held_push_weight(&task, dump("qkv.w"), 3 * DQ, D, 13, 0);
	a.n_buf = task.n;
	k3_vit_qkv_fwd_cpu_f32(task.buf, &a);
}

static void
qkv_backward(const struct vit_tile *tile, float *dx, float *dp, float *dnorm, int accumulate)
{
	struct k3_vit_qkv_args a = qkv_args(tile->n);
	struct held_task task = {
		{dx, dp, vit_gather(tile, dump("qkv.dy"), D), vit_gather(tile, dump("qkv.dq"), DQ),
		 vit_gather(tile, dump("qkv.dkv"), 2 * DQ), vit_gather(tile, dump("qkv.x"), D),
		 vit_gather(tile, dump("qkv.rstd"), 1), tile->layout,
		 held_out(k3_vit_qkv_work_floats(tile->n, D, HD))},
		9};

	a.dnorm = held_push_weight(&task, dnorm, 1, D, 1, accumulate);
	a.norm = held_push_weight(&task, dump("qkv.norm"), 1, D, 1, 0);
	a.w = held_push_weight(&task, dump("qkv.w"), 3 * DQ, D, 13, 0);
	a.n_buf = task.n;
	k3_vit_qkv_bwd_dx_cpu_f32(task.buf, &a);
}

static void
qkv_weights(const struct vit_tile *tile, const float *dp, float *dw, int accumulate)
{
	struct k3_vit_qkv_args a = qkv_args(tile->n);
	struct held_task task = {{vit_gather(tile, dp, 3 * DQ), vit_gather(tile, dump("qkv.x"), D),
				  vit_gather(tile, dump("qkv.rstd"), 1), held_out(tile->n * D)},
				 4};

	a.norm = held_push_weight(&task, dump("qkv.norm"), 1, D, 1, 0);
	a.w = held_push_weight(&task, dw, 3 * DQ, D, 13, accumulate);
	a.n_buf = task.n;
	k3_vit_qkv_bwd_dw_cpu_f32(task.buf, &a);
}

/* Every tile of a cut, both ways; gradients of the parameters are summed over the tiles. */
static void
expect_qkv(const struct vit_cut *cut)
{
	float *qkv = held_out(VIT_PATCHES * 3 * DQ), *rstd = held_out(VIT_PATCHES),
	      *dx = held_out(VIT_PATCHES * D), *dp = held_out(VIT_PATCHES * 3 * DQ),
	      *dnorm = held_out(D), *dw = held_out(3 * DQ * D), *given = dump("qkv.dp");

	for (size_t i = 0; i < cut->n_tiles; i++) {
		struct vit_tile tile = vit_tile(vit_items, cut->band[i]);
		float *out = held_out(tile.n * 3 * DQ), *row = held_out(tile.n * D),
		      *r = held_out(tile.n);

		qkv_forward(&tile, out, r);
		vit_scatter(&tile, qkv, out, 3 * DQ);
		vit_scatter(&tile, rstd, r, 1);
		qkv_backward(&tile, row, out, dnorm, i > 0);
		vit_scatter(&tile, dx, row, D);
		vit_scatter(&tile, dp, out, 3 * DQ);
		qkv_weights(&tile, given, dw, i > 0);
	}
	held_expect(qkv, "vit_block", "qkv.qkv", 1e-6);
	held_expect(rstd, "vit_block", "qkv.rstd", 1e-6);
	held_expect(dp, "vit_block", "qkv.dp", 1e-6);
	held_expect(dx, "vit_block", "qkv.dx", 1e-6);
	held_expect(dnorm, "vit_block", "qkv.dnorm", 1e-6);
	held_expect(dw, "vit_block", "qkv.dw", 1e-6);
	held_end();
}

Test(vit_qkv, items_of_one_tile_match_the_oracle, .timeout = 60)
{
	expect_qkv(&vit_cuts[0]);
}

Test(vit_qkv, bands_turn_by_the_row_in_their_whole_item, .timeout = 60)
{
	expect_qkv(&vit_cuts[1]);
	expect_qkv(&vit_cuts[2]);
}

/* Heads of (1, 0, 1, 0) turn into (cos column, sin column, cos row, sin row). */
Test(vit_qkv, positions_far_from_the_corner_are_exact, .timeout = 60)
{
	static const struct vit_grid large[] = {{1, 512, 400}};
	struct vit_tile tile = vit_tile(large, (struct vit_band[VIT_PARTS]){{0, 508, 4}});
	struct k3_vit_qkv_args a = {.n = tile.n, .d = 1, .dq = 4, .h = 1, .eps = 0};
	float *x = held_out(tile.n), *qkv = held_out(tile.n * 12), one = 1,
	      w[12] = {1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0};
	struct held_task task = {{qkv, held_out(tile.n), x, tile.layout,
				  held_out(k3_vit_qkv_work_floats(tile.n, 1, 4))},
				 5};

	for (size_t i = 0; i < tile.n; i++)
		x[i] = 1;
	a.norm = held_push_weight(&task, &one, 1, 1, 1, 0);
	a.w = held_push_weight(&task, w, 12, 1, 12, 0);
	k3_vit_qkv_fwd_cpu_f32(task.buf, &a);
	for (size_t i = 0; i < tile.n; i++) {
		double row = 508 + (double)(i / 400), col = (double)(i % 400);
		double want[] = {cos(col), sin(col), cos(row), sin(row)};

		for (size_t c = 0; c < 8; c++)
			cr_assert(fabs((double)qkv[12 * i + c] - want[c % 4]) < 1e-7,
				  "patch %zu, component %zu is %.9g, expected %.9g", i, c,
				  (double)qkv[12 * i + c], want[c % 4]);
		cr_assert(qkv[12 * i + 8] == 1 && qkv[12 * i + 9] == 0, "values do not turn");
	}
	held_end();
}

Test(vit_out, values_and_gradients_match_the_oracle, .timeout = 60)
{
	struct k3_vit_out_args a = {.n = 9, .d = 7, .dq = 10, .h = 2};
	float *y = held_out(63), *dout = held_out(90), *delta = held_out(18), *dw = held_out(70);
	struct held_task fwd = {{y, dump("out.x"), dump("out.o")}, 3},
			 dx = {{dout, delta, dump("out.dy"), dump("out.o")}, 4},
			 grad = {{dump("out.dy"), dump("out.o")}, 2};

	a.w = held_push_weight(&fwd, dump("out.w"), 7, 10, 3, 0);
	k3_vit_out_fwd_cpu_f32(fwd.buf, &a);
	held_expect(y, "vit_block", "out.y", 1e-6);
	a.w = held_push_weight(&dx, dump("out.w"), 7, 10, 3, 0);
	k3_vit_out_bwd_dx_cpu_f32(dx.buf, &a);
	held_expect(dout, "vit_block", "out.do", 1e-6);
	held_expect(delta, "vit_block", "out.delta", 1e-6);
	a.w = held_push_weight(&grad, dw, 7, 10, 3, 0);
	k3_vit_out_bwd_dw_cpu_f32(grad.buf, &a);
	held_expect(dw, "vit_block", "out.dw", 1e-6);
	held_end();
}

static struct k3_vit_mlp_args
mlp_args(void)
{
	return (struct k3_vit_mlp_args){.n = 9, .d = 7, .f = 21, .eps = 1e-5f};
}

Test(vit_mlp, values_match_the_oracle, .timeout = 60)
{
	struct k3_vit_mlp_args a = mlp_args();
	float *y = held_out(63), *u = held_out(189), *rstd = held_out(9);
	struct held_task task = {{y, u, rstd, dump("mlp.x"), held_out(9 * 28)}, 5};

	a.norm = held_push_weight(&task, dump("mlp.norm"), 1, 7, 1, 0);
	a.fc0 = held_push_weight(&task, dump("mlp.fc0"), 21, 7, 8, 0);
	a.fc1 = held_push_weight(&task, dump("mlp.fc1"), 7, 21, 3, 0);
	k3_vit_mlp_fwd_cpu_f32(task.buf, &a);
	held_expect(y, "vit_block", "mlp.y", 1e-6);
	held_expect(u, "vit_block", "mlp.u", 1e-6);
	held_expect(rstd, "vit_block", "mlp.rstd", 1e-6);
	held_end();
}

Test(vit_mlp, data_gradients_match_the_oracle, .timeout = 60)
{
	struct k3_vit_mlp_args a = mlp_args();
	float *dx = held_out(63), *du = held_out(189), *dnorm = held_out(7);
	struct held_task task = {{dx, du, dump("mlp.dy"), dump("mlp.u"), dump("mlp.x"),
				  dump("mlp.rstd"), held_out(63)},
				 7};

	a.dnorm = held_push_weight(&task, dnorm, 1, 7, 1, 0);
	a.norm = held_push_weight(&task, dump("mlp.norm"), 1, 7, 1, 0);
	a.fc0 = held_push_weight(&task, dump("mlp.fc0"), 21, 7, 8, 0);
	a.fc1 = held_push_weight(&task, dump("mlp.fc1"), 7, 21, 3, 0);
	k3_vit_mlp_bwd_dx_cpu_f32(task.buf, &a);
	held_expect(dx, "vit_block", "mlp.dx", 1e-6);
	held_expect(du, "vit_block", "mlp.du", 1e-6);
	held_expect(dnorm, "vit_block", "mlp.dnorm", 1e-6);
	held_end();
}

static void
mlp_weights(float *dfc0, float *dfc1, int accumulate)
{
	struct k3_vit_mlp_args a = mlp_args();
	struct held_task task = {{dump("mlp.du"), dump("mlp.dy"), dump("mlp.u"), dump("mlp.x"),
				  dump("mlp.rstd"), held_out(9 * 28)},
				 6};

	a.norm = held_push_weight(&task, dump("mlp.norm"), 1, 7, 1, 0);
	a.fc0 = held_push_weight(&task, dfc0, 21, 7, 8, accumulate);
	a.fc1 = held_push_weight(&task, dfc1, 7, 21, 3, accumulate);
	k3_vit_mlp_bwd_dw_cpu_f32(task.buf, &a);
}

Test(vit_mlp, weight_gradients_match_the_oracle_and_are_added_when_told, .timeout = 60)
{
	float *dfc0 = held_out(147), *dfc1 = held_out(147);

	mlp_weights(dfc0, dfc1, 0);
	held_expect(dfc0, "vit_block", "mlp.dfc0", 1e-6);
	held_expect(dfc1, "vit_block", "mlp.dfc1", 1e-6);
	mlp_weights(dfc0, dfc1, 1);
	for (size_t i = 0; i < 147; i++) {
		dfc0[i] /= 2;
		dfc1[i] /= 2;
	}
	held_expect(dfc0, "vit_block", "mlp.dfc0", 1e-6);
	held_expect(dfc1, "vit_block", "mlp.dfc1", 1e-6);
	held_end();
}
