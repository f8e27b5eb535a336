/* The row loops of the vision tower (codelets/vec): GELU and rotation of pairs against double
 * precision at every register width. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "held.h"
#include "vec_case.h"

enum { N = 4001 };

/* -12 .. 12, denser towards 0 */
static float *
arguments(void)
{
	float *x = held_out(N);

	for (size_t i = 0; i < N; i++) {
		double t = (double)i / (N - 1) * 2 - 1;
		x[i] = (float)(12 * t * fabs(t));
	}
	return x;
}

/* Argument of tanh. */
static double
inner(double x)
{
	return sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
}

/* 1 + tanh(z) = 2 / (1 + exp(-2z)); an error of z counts 2z times in the exponential. */
Test(gelu, values_and_gradients_match_double_precision, .timeout = 60)
{
	const struct k3_vec *table[3];
	size_t n = tables(table);
	float *in = arguments(), *dy = held_random(1, N, -1, 1), *y = held_out(N),
	      *dx = held_out(N);

	for (size_t k = 0; k < n; k++) {
		table[k]->gelu_tanh(y, in, N);
		table[k]->gelu_tanh_bwd(dx, dy, in, N);
		for (size_t i = 0; i < N; i++) {
			double x = (double)in[i], z = inner(x), s = 1 / (1 + exp(-2 * z)),
			       rest = 1 / (1 + exp(2 * z)), unit = 2e-7 * (1 + fabs(2 * z)),
			       bend = 2 * x * s * rest * sqrt(2 / M_PI) * (1 + 0.134145 * x * x);

			cr_assert(fabs((double)y[i] - x * s) <= unit * fabs(x * s) + 1e-35,
				  "gelu(%g) is %.9g, expected %.9g", x, (double)y[i], x * s);
			/* the two terms cancel near x = -0.75 */
			cr_assert(fabs((double)dx[i] - (double)dy[i] * (s + bend)) <=
					  unit * (s + fabs(bend)) + 1e-35,
				  "derivative at %g is %.9g, expected %.9g", x, (double)dx[i],
				  (double)dy[i] * (s + bend));
		}
	}
	held_end();
}

Test(gelu, huge_arguments_give_limits_without_nan, .timeout = 60)
{
	static const float x[] = {1e38f, -1e38f, 20, -20}, dy[] = {3, 3, 3, 3},
			   want[] = {1e38f, 0, 20, 0}, slope[] = {3, 0, 3, 0};
	const struct k3_vec *table[3];
	size_t n = tables(table);

	for (size_t k = 0; k < n; k++) {
		float y[4], dx[4];

		table[k]->gelu_tanh(y, x, 4);
		table[k]->gelu_tanh_bwd(dx, dy, x, 4);
		for (size_t i = 0; i < 4; i++)
			cr_assert(y[i] == want[i] && dx[i] == slope[i],
				  "gelu(%g) is %g, expected %g; derivative %g, expected %g",
				  (double)x[i], (double)y[i], (double)want[i], (double)dx[i] / 3,
				  (double)slope[i] / 3);
	}
}

/* Three rows of n elements, in place or not; what follows them stays. */
static void
expect_turned(const struct k3_vec *vec, size_t n, int in_place)
{
	float *x = held_random(1, 3 * n, -2, 2), *c = held_random(2, n, -1, 1),
	      *s = held_random(3, n, -1, 1), *y = held_out(3 * n);

	memcpy(y, x, 3 * n * sizeof(*y));
	vec->rotate(y, in_place ? y : x, c, s, 3, n);
	for (size_t i = 0; i < 3 * n; i++) {
		double want = (double)x[i] * (double)c[i % n] + (double)x[i ^ 1] * (double)s[i % n];

		cr_assert(fabs((double)y[i] - want) < 4e-7,
			  "element %zu of %zu is %.9g, expected %.9g", i, n, (double)y[i], want);
	}
	held_end();
}

Test(rotate, pairs_of_every_row_turn_by_their_own_angles, .timeout = 60)
{
	const struct k3_vec *table[3];
	size_t n_tables = tables(table);

	for (size_t k = 0; k < n_tables; k++)
		for (size_t n = 2; n <= 52; n += 2) {
			expect_turned(table[k], n, 0);
			expect_turned(table[k], n, 1);
		}
}
