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

/* A half unit of the exponent x^2/2 is x^2/2 half units of the tail; Phi(x) =
 * erfc(-x/sqrt(2))/2. */
Test(gelu_erf, values_and_gradients_match_double_precision, .timeout = 60)
{
	const struct k3_vec *table[3];
	size_t n = tables(table);
	float *in = arguments(), *dy = held_random(1, N, -1, 1), *y = held_out(N),
	      *dx = held_out(N);

	for (size_t k = 0; k < n; k++) {
		table[k]->gelu_erf(y, in, N);
		table[k]->gelu_erf_bwd(dx, dy, in, N);
		for (size_t i = 0; i < N; i++) {
			double x = (double)in[i], phi = erfc(-x / sqrt(2)) / 2,
			       bend = x * exp(-x * x / 2) / sqrt(2 * M_PI),
			       unit = 0x1p-23 * (4 + (x < 0 ? x * x : 0)),
			       bend_unit = 0x1p-23 * (4 + x * x);

			cr_assert(fabs((double)y[i] - x * phi) <= unit * fabs(x * phi) + 1e-35,
				  "gelu(%g) is %.9g, expected %.9g", x, (double)y[i], x * phi);
			/* the two terms cancel near x = -0.75 */
			cr_assert(fabs((double)dx[i] - (double)dy[i] * (phi + bend)) <=
					  unit * phi + bend_unit * fabs(bend) + 1e-35,
				  "derivative at %g is %.9g, expected %.9g", x, (double)dx[i],
				  (double)dy[i] * (phi + bend));
		}
	}
	held_end();
}

typedef void gelu_loop(float *y, const float *x, size_t n);
typedef void gelu_bwd_loop(float *dx, const float *dy, const float *x, size_t n);

static void
expect_limits(gelu_loop *gelu, gelu_bwd_loop *gelu_bwd)
{
	static const float x[] = {1e38f, -1e38f, 20, -20}, dy[] = {3, 3, 3, 3},
			   want[] = {1e38f, 0, 20, 0}, slope[] = {3, 0, 3, 0};
	float y[4], dx[4];

	gelu(y, x, 4);
	gelu_bwd(dx, dy, x, 4);
	for (size_t i = 0; i < 4; i++)
		cr_assert(y[i] == want[i] && dx[i] == slope[i],
			  "gelu(%g) is %g, expected %g; derivative %g, expected %g", (double)x[i],
			  (double)y[i], (double)want[i], (double)dx[i] / 3, (double)slope[i] / 3);
}

Test(gelu, huge_arguments_give_limits_without_nan, .timeout = 60)
{
	const struct k3_vec *table[3];
	size_t n = tables(table);

	for (size_t k = 0; k < n; k++) {
		expect_limits(table[k]->gelu_tanh, table[k]->gelu_tanh_bwd);
		expect_limits(table[k]->gelu_erf, table[k]->gelu_erf_bwd);
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
