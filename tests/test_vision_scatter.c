/* Features into text tiles and their gradients back, and the zeros of a microbatch without
 * images; by hand.  Seven merged tokens lie in two vision tiles (0..2 and 3..6), two text tiles
 * hold them. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "../common/op/vit.h"
#include "held.h"

enum { D = 3, M0 = 3, M1 = 4, T0 = 5, T1 = 4 };

static int32_t layout0[] = {12, M0, 0, 0}, layout1[] = {16, M1, 0, M0};
/* The second image begins in the first text tile and ends in the second; token 5 is nowhere. */
static int32_t map0[T0] = {-1, 1, 2, 3, -1}, map1[T1] = {4, -1, 6, 0};

/* Row i is first + 10 i, and 1, 2 more. */
static float *
counted(size_t rows, float first)
{
	float *x = held_out(rows * D);

	for (size_t i = 0; i < rows * D; i++)
		x[i] = first + (float)(10 * (i / D) + i % D);
	return x;
}

static void
expect_row(const float *row, float first, const char *what, size_t i)
{
	for (size_t c = 0; c < D; c++)
		cr_assert_eq(row[c], first + (float)c, "%s, row %zu, column %zu is %g", what, i, c,
			     (double)row[c]);
}

static void
forward(float *p, int32_t *map, size_t t, float *const *y, int32_t *const *layout, uint32_t n)
{
	struct k3_vision_scatter_args a = {.t = t, .d = D};
	struct held_task task = {{p, map}, 2};

	a.y = (struct k3_list){2, n};
	for (uint32_t j = 0; j < n; j++)
		held_push(&task, y[j]);
	a.layout = (struct k3_list){task.n, n};
	for (uint32_t j = 0; j < n; j++)
		held_push(&task, layout[j]);
	a.n_buf = task.n;
	k3_vision_scatter_fwd_cpu_f32(task.buf, &a);
	held_guards();
}

Test(vision_scatter, rows_are_replaced_from_the_tile_that_holds_them, .timeout = 60)
{
	float *y[] = {counted(M0, 1000), counted(M1, 2000)}, *p = counted(T0, 0);
	int32_t *layout[] = {layout0, layout1};

	forward(p, map0, T0, y, layout, 2);
	expect_row(p, 0, "no image", 0);
	expect_row(p + D, 1010, "token 1", 1);
	expect_row(p + 2 * D, 1020, "token 2", 2);
	expect_row(p + 3 * D, 2000, "token 3", 3);
	expect_row(p + 4 * D, 40, "no image", 4);
	held_end();
}

Test(vision_scatter, what_stood_in_a_replaced_row_does_not_matter, .timeout = 60)
{
	float *y[] = {counted(M1, 2000)}, *p = counted(T1, 0);
	int32_t *layout[] = {layout1};

	for (size_t c = 0; c < D; c++) {
		p[c] = NAN; /* token 4 comes here */
		p[2 * D + c] = INFINITY;
		y[0][2 * D + c] = NAN; /* token 5: nobody wants it */
	}
	forward(p, map1, T1, y, layout, 1);
	expect_row(p, 2010, "token 4", 0);
	expect_row(p + D, 10, "no image", 1);
	expect_row(p + 2 * D, 2030, "token 6", 2);
	expect_row(p + 3 * D, 30, "token of a tile that is not here", 3);
	held_end();
}

static void
backward(float *dy, size_t m, int32_t *layout, float *const *dp, int32_t *const *map,
	 const uint32_t *rows, uint32_t n)
{
	struct k3_vision_scatter_args a = {.m = m, .d = D, .rows = rows};
	struct held_task task = {{dy, layout}, 2};

	a.dp = (struct k3_list){2, n};
	for (uint32_t j = 0; j < n; j++)
		held_push(&task, dp[j]);
	a.map = (struct k3_list){task.n, n};
	for (uint32_t j = 0; j < n; j++)
		held_push(&task, map[j]);
	a.n_buf = task.n;
	k3_vision_scatter_bwd_cpu_f32(task.buf, &a);
	held_guards();
}

Test(vision_scatter, gradients_come_back_from_every_text_tile, .timeout = 60)
{
	float *dp[] = {counted(T0, 100), counted(T1, 500)}, *dy = held_out(M1 * D);
	int32_t *map[] = {map0, map1};

	for (size_t c = 0; c < D; c++)
		dp[0][c] = dp[0][4 * D + c] = dp[1][D + c] = NAN; /* rows without an image */
	backward(dy, M1, layout1, dp, map, (uint32_t[]){T0, T1}, 2);
	expect_row(dy, 130, "token 3", 0);
	expect_row(dy + D, 500, "token 4", 1);
	held_expect_all(dy + 2 * D, 0, D, "token 5, which no row asks for");
	expect_row(dy + 3 * D, 520, "token 6", 3);
	dy = held_out(M0 * D);
	backward(dy, M0, layout0, dp, map, (uint32_t[]){T0, T1}, 2);
	expect_row(dy, 530, "token 0", 0);
	expect_row(dy + D, 110, "token 1", 1);
	expect_row(dy + 2 * D, 120, "token 2", 2);
	held_end();
}

Test(vision_scatter, tokens_without_rows_get_exact_zeros, .timeout = 60)
{
	float *dy = held_out(M1 * D);

	backward(dy, M1, layout1, NULL, NULL, NULL, 0);
	held_expect_all(dy, 0, M1 * D, "dy");
	held_end();
}

/* Three gradients of 5, 1 and 70 floats. */
static void
zero(float *const *grad, uint32_t accumulate)
{
	static const size_t elems[] = {5, 1, 70};
	struct k3_zero_args a = {3, accumulate, elems};
	void *buf[] = {grad[0], grad[1], grad[2]};

	k3_zero_grads_cpu_f32(buf, &a);
	held_guards();
}

Test(zero_grads, nan_and_infinities_become_exact_zeros, .timeout = 60)
{
	float *grad[] = {held_out(5), held_out(1), held_out(70)};

	grad[0][2] = INFINITY;
	grad[2][69] = -INFINITY;
	zero(grad, 0);
	held_expect_all(grad[0], 0, 5, "first");
	held_expect_all(grad[1], 0, 1, "second");
	held_expect_all(grad[2], 0, 70, "third");
	held_end();
}

Test(zero_grads, what_others_have_added_stays, .timeout = 60)
{
	float *grad[] = {held_random(1, 5, -1, 1), held_random(2, 1, -1, 1),
			 held_random(3, 70, -1, 1)},
	      *before[] = {held_copy(grad[0], 5), held_copy(grad[1], 1), held_copy(grad[2], 70)};

	zero(grad, 1);
	held_expect_same(grad[0], before[0], 5, "first");
	held_expect_same(grad[1], before[1], 1, "second");
	held_expect_same(grad[2], before[2], 70, "third");
	held_end();
}
