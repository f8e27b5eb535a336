/* SiTU feed-forward against the oracle; weights come in blocks that do not divide their rows. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "../common/op/glu.h"
#include "held.h"

enum { T = 5, D = 14, F = 9, BLOCK_F = 4, BLOCK_D = 5 };

static float *
input(const char *tensor)
{
	return held_input("blocks", tensor);
}

static void
push_weights(struct held_task *task, struct k3_glu_args *a, float *w1, float *w3, float *w2,
	     int accumulate)
{
	a->w1 = held_push_weight(task, w1, F, D, BLOCK_F, accumulate);
	a->w3 = held_push_weight(task, w3, F, D, BLOCK_F, accumulate);
	a->w2 = held_push_weight(task, w2, D, F, BLOCK_D, accumulate);
	a->n_buf = task->n;
}

static struct k3_glu_args
args_of(size_t t)
{
	return (struct k3_glu_args){.t = t, .d = D, .f = F, .beta1 = 4, .beta2 = 25};
}

static void
forward(float *y, float *gu, float *x, float *p_in)
{
	struct held_task task = {{y, gu, x, held_out(T * F)}, 4};
	struct k3_glu_args a = args_of(T);

	a.p_in = held_push_list(&task, p_in);
	push_weights(&task, &a, input("glu.w1"), input("glu.w3"), input("glu.w2"), 0);
	k3_glu_fwd_cpu_f32(task.buf, &a);
}

Test(glu, forward_matches_the_oracle, .timeout = 60)
{
	float *y = held_out(T * D), *gu = held_out(T * 2 * F);

	forward(y, gu, input("glu.x"), NULL);
	held_expect(gu, "blocks", "glu.gu", 1e-6);
	held_expect(y, "blocks", "glu.y", 2e-6);
	held_end();
}

Test(glu, prefix_is_added_to_the_output, .timeout = 60)
{
	float *y = held_out(T * D), *gu = held_out(T * 2 * F), *p_in = input("glu.p_in");
	float *before = held_copy(p_in, T * D);

	forward(y, gu, input("glu.x"), p_in);
	held_expect_same(p_in, before, T * D, "p_in");
	for (size_t i = 0; i < T * D; i++)
		y[i] -= p_in[i];
	held_expect(y, "blocks", "glu.y", 2e-6);
	held_end();
}

Test(glu, gradients_of_the_input_match_the_oracle, .timeout = 60)
{
	float *dx = held_out(T * D), *dgu = held_out(T * 2 * F);
	struct held_task task = {{dx, dgu, input("glu.dy"), input("glu.gu"), held_out(T * F)}, 5};
	struct k3_glu_args a = args_of(T);

	push_weights(&task, &a, input("glu.w1"), input("glu.w3"), input("glu.w2"), 0);
	k3_glu_bwd_dx_cpu_f32(task.buf, &a);
	held_expect(dgu, "blocks", "glu.dgu", 1e-5);
	held_expect(dx, "blocks", "glu.dx", 1e-5);
	held_end();
}

static void
weight_gradients(size_t t0, size_t t1, float *const dw[3], int accumulate)
{
	struct held_task task = {{input("glu.dgu") + t0 * 2 * F, input("glu.dy") + t0 * D,
				  input("glu.gu") + t0 * 2 * F, input("glu.x") + t0 * D,
				  held_out(T * F)},
				 5};
	struct k3_glu_args a = args_of(t1 - t0);

	push_weights(&task, &a, dw[0], dw[1], dw[2], accumulate);
	k3_glu_bwd_dw_cpu_f32(task.buf, &a);
}

static void
expect_weights(float *const dw[3])
{
	held_expect(dw[0], "blocks", "glu.dw1", 1e-5);
	held_expect(dw[1], "blocks", "glu.dw3", 1e-5);
	held_expect(dw[2], "blocks", "glu.dw2", 1e-5);
}

Test(glu, gradients_of_weights_match_the_oracle, .timeout = 60)
{
	float *dw[] = {held_out(F * D), held_out(F * D), held_out(D * F)};

	weight_gradients(0, T, dw, 0);
	expect_weights(dw);
	held_end();
}

Test(glu, gradients_of_weights_are_summed_over_tiles, .timeout = 60)
{
	float *dw[] = {held_out(F * D), held_out(F * D), held_out(D * F)};

	weight_gradients(0, 2, dw, 0);
	weight_gradients(2, T, dw, 1);
	expect_weights(dw);
	held_end();
}

Test(glu, first_contribution_without_tokens_is_zero, .timeout = 60)
{
	float *dw[] = {held_out(F * D), held_out(F * D), held_out(D * F)};

	weight_gradients(0, 0, dw, 0);
	for (size_t i = 0; i < 3; i++)
		held_expect_all(dw[i], 0, F * D, "dw");
	held_end();
}

/* One unit, both weights 1 and W2 = 1: y = situ(x, x). */
static float
situ_of(float x, float *dx)
{
	float w[] = {1, 1, 1}, y, gu[2], h, dgu[2], one = 1;
	struct held_task task = {{&y, gu, &x, &h}, 4}, back = {{dx, dgu, &one, gu, &h}, 5};
	struct k3_glu_args a = {.t = 1, .d = 1, .f = 1, .beta1 = 4, .beta2 = 25};

	for (uint32_t i = 0; i < 3; i++)
		held_push(&task, w + i);
	a.w1 = fixture_weight(4, 1, 1, 0);
	a.w3 = fixture_weight(5, 1, 1, 0);
	a.w2 = fixture_weight(6, 1, 1, 0);
	k3_glu_fwd_cpu_f32(task.buf, &a);
	for (uint32_t i = 0; i < 3; i++)
		held_push(&back, w + i);
	a.w1.first = 5;
	a.w3.first = 6;
	a.w2.first = 7;
	k3_glu_bwd_dx_cpu_f32(back.buf, &a);
	return y;
}

Test(glu, saturates_at_the_product_of_both_bounds, .timeout = 60)
{
	float dx = NAN;

	cr_assert_float_eq(situ_of(1e4f, &dx), 100, 1e-4f);
	cr_assert_eq(dx, 0, "gradient %g in saturation", (double)dx);
	dx = NAN;
	cr_assert_eq(situ_of(-1e4f, &dx), 0);
	cr_assert_eq(dx, 0);
	dx = NAN;
	cr_assert_eq(situ_of(0, &dx), 0);
	cr_assert_eq(dx, 0);
}

Test(glu, sigmoid_sees_the_unsaturated_gate, .timeout = 60)
{
	double x = 12, t1 = tanh(x / 4), t2 = tanh(x / 25), s = 1 / (1 + exp(-x));
	float dx, y = situ_of(12, &dx);

	cr_assert_float_eq(y, 4 * t1 * s * 25 * t2, 1e-4);
	cr_assert(fabs((double)y - 4 * t1 * 25 * t2 / (1 + exp(-4 * t1))) > 0.5,
		  "the test cannot tell the two forms apart");
	double dg = (1 - t1 * t1) * s + 4 * t1 * s * (1 - s), du = 4 * t1 * s * (1 - t2 * t2);
	cr_assert_float_eq(dx, 25 * t2 * dg + du, 1e-5);
}

/* The magnitudes of the terms of the gradient bound its error: 1 - tanh^2 cancels in saturation. */
static void
expect_accurate(float at)
{
	double x = (double)at, t1 = tanh(x / 4), t2 = tanh(x / 25), s = 1 / (1 + exp(-x));
	double y = 100 * t1 * s * t2;
	double dg = 25 * t2 * s * (1 - t1 * t1 + 4 * t1 * (1 - s)), du = 4 * t1 * s * (1 - t2 * t2);
	double size = 25 * fabs(t2) * s * (1 + 4 * fabs(t1) * (1 - s)) + 4 * fabs(t1) * s;
	float dx = NAN, got = situ_of(at, &dx);

	cr_assert(fabs((double)got / y - 1) < 1.5e-6, "situ(%g) is %.9g, expected %.9g", x,
		  (double)got, y);
	cr_assert(fabs((double)dx - dg - du) < 1.5e-6 * size, "situ'(%g) is %.9g, expected %.9g", x,
		  (double)dx, dg + du);
}

Test(glu, activation_has_the_digits_of_a_float_at_every_size, .timeout = 60)
{
	for (double x = 1e-6; x < 80; x *= 1.003) {
		expect_accurate((float)x);
		expect_accurate((float)-x);
	}
}

Test(glu, a_value_that_is_not_a_number_stays_one, .timeout = 60)
{
	float dx = 0;

	cr_assert(isnan(situ_of(NAN, &dx)));
	cr_assert(isnan(dx));
}
