/* Activations of every register width (codelets/vec) against double precision and the SiTU oracle.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "held.h"
#include "vec_case.h"

static double
logistic(double x)
{
	return 1 / (1 + exp(-x));
}

enum { GRID = 20011 };

/* lo .. hi evenly, then both ends times 1 .. 1e-12. */
static float *
grid(double lo, double hi)
{
	float *x = held_out(2 * GRID);

	for (size_t i = 0; i < GRID; i++) {
		x[i] = (float)(lo + (hi - lo) * (double)i / (GRID - 1));
		x[GRID + i] = (float)(pow(10, -12.0 * (double)i / GRID) * (i % 2 ? lo : hi));
	}
	return x;
}

Test(vec, exponentials_are_good_to_two_units, .timeout = 60)
{
	const struct k3_vec *table[3];
	size_t n = tables(table);
	float *x = grid(-86.9, 0), *y = held_out(2 * GRID);

	for (size_t k = 0; k < n; k++) {
		double sum = table[k]->exp_sum(y, x, 0, 2 * GRID), want = 0;

		for (size_t i = 0; i < 2 * GRID; i++) {
			double e = exp((double)x[i]);

			cr_assert(ulps(y[i], e) <= 2, "exp(%.9g) is %.9g, expected %.9g",
				  (double)x[i], (double)y[i], e);
			want += (double)y[i];
		}
		cr_assert(fabs(sum / want - 1) < 1e-13, "sum %.17g, expected %.17g", sum, want);
		cr_assert_eq(sum, table[k]->exp_sum(NULL, x, 0, 2 * GRID), "without values");
	}
	held_end();
}

Test(vec, exponentials_below_minus_87_are_zero, .timeout = 60)
{
	const struct k3_vec *table[3];
	size_t n = tables(table);
	float x[] = {-87.5f, -1000, -INFINITY, 0}, y[4];

	for (size_t k = 0; k < n; k++) {
		cr_assert_eq(table[k]->exp_sum(y, x, 0, 4), 1);
		cr_assert(y[0] == 0 && y[1] == 0 && y[2] == 0 && y[3] == 1);
	}
}

Test(vec, sigmoid_is_good_to_three_units, .timeout = 60)
{
	const struct k3_vec *table[3];
	size_t n = tables(table);
	float *x = grid(-86.9, 100), *z = held_out(2 * GRID);

	for (size_t k = 0; k < n; k++) {
		table[k]->sigmoid(z, x, 2 * GRID);
		for (size_t i = 0; i < 2 * GRID; i++)
			cr_assert(ulps(z[i], logistic((double)x[i])) <= 3,
				  "sigmoid(%.9g) is %.9g, expected %.9g", (double)x[i],
				  (double)z[i], logistic((double)x[i]));
	}
	held_end();
}

/* With b1 = 1 and g = 60 the gate's factors are exactly 1. */
Test(vec, hyperbolic_tangent_is_good_to_four_units, .timeout = 60)
{
	const struct k3_vec *table[3];
	size_t n = tables(table);
	float *u = grid(-50, 50), *g = held_out(2 * GRID), *h = held_out(2 * GRID);

	for (size_t i = 0; i < 2 * GRID; i++)
		g[i] = 60;
	for (size_t k = 0; k < n; k++) {
		table[k]->situ_fwd(h, g, u, 1, 1, 1, 2 * GRID);
		for (size_t i = 0; i < 2 * GRID; i++)
			cr_assert(ulps(h[i], tanh((double)u[i])) <= 4,
				  "tanh(%.9g) is %.9g, expected %.9g", (double)u[i], (double)h[i],
				  tanh((double)u[i]));
	}
	held_end();
}

Test(situ, values_match_the_oracle, .timeout = 60)
{
	const struct k3_vec *table[3];
	size_t n = tables(table);
	float *g = held_input("moe", "situ.g"), *u = held_input("moe", "situ.u"), *y = held_out(72);

	for (size_t k = 0; k < n; k++) {
		table[k]->situ_fwd(y, g, u, 1, 4, 25, 72);
		held_expect(y, "moe", "situ.y", 1e-6);
	}
	held_end();
}

Test(situ, gradients_match_the_oracle, .timeout = 60)
{
	const struct k3_vec *table[3];
	size_t n = tables(table);
	float *g = held_input("moe", "situ.g"), *u = held_input("moe", "situ.u"),
	      *dy = held_input("moe", "situ.dy"), *dg = held_out(72), *du = held_out(72);

	for (size_t k = 0; k < n; k++) {
		table[k]->situ_bwd(dg, du, dy, g, u, 1, 4, 25, 72);
		held_expect(dg, "moe", "situ.dg", 1e-6);
		held_expect(du, "moe", "situ.du", 1e-6);
	}
	held_end();
}

/* A weight of 2 is exact: twice the gradients, and it has no part in the sum. */
Test(situ, weight_scales_values_and_gradients_but_not_the_sum, .timeout = 60)
{
	float *g = held_random(1, 37, -9, 9), *u = held_random(2, 37, -40, 40),
	      *dy = held_random(3, 37, -1, 1), *h1 = held_out(37), *h2 = held_out(37),
	      *dg1 = held_out(37), *du1 = held_out(37), *dg2 = held_out(37), *du2 = held_out(37);
	const struct k3_vec *vec = k3_vec();
	double dot = 0, size = 0, sum1 = vec->situ_bwd(dg1, du1, dy, g, u, 1, 4, 25, 37),
	       sum2 = vec->situ_bwd(dg2, du2, dy, g, u, 2, 4, 25, 37);

	vec->situ_fwd(h1, g, u, 1, 4, 25, 37);
	vec->situ_fwd(h2, g, u, 2, 4, 25, 37);
	for (size_t i = 0; i < 37; i++) {
		dot += (double)h1[i] * (double)dy[i];
		size += fabs((double)h1[i] * (double)dy[i]);
		cr_assert(h2[i] == 2 * h1[i] && dg2[i] == 2 * dg1[i] && du2[i] == 2 * du1[i],
			  "element %zu", i);
	}
	cr_assert_eq(sum1, sum2);
	cr_assert(fabs(sum1 - dot) < 1e-6 * size, "sum %.9g, expected %.9g", sum1, dot);
	held_end();
}

Test(situ, arguments_of_10000_give_limits_without_nan, .timeout = 60)
{
	static const float g[] = {1e4f, 1e4f, -1e4f, -1e4f}, u[] = {1e4f, -1e4f, 1e4f, -1e4f},
			   dy[] = {1, 1, 1, 1}, want[] = {100, -100, 0, 0};
	const struct k3_vec *table[3];
	size_t n = tables(table);

	for (size_t k = 0; k < n; k++) {
		float y[4], dg[4], du[4];

		table[k]->situ_fwd(y, g, u, 1, 4, 25, 4);
		table[k]->situ_bwd(dg, du, dy, g, u, 1, 4, 25, 4);
		for (size_t i = 0; i < 4; i++) {
			cr_assert(fabsf(y[i] - want[i]) < 1e-4f, "situ(%g, %g) = %g", (double)g[i],
				  (double)u[i], (double)y[i]);
			cr_assert(dg[i] == 0 && du[i] == 0, "gradients %g and %g", (double)dg[i],
				  (double)du[i]);
		}
	}
}

Test(vec, gates_and_their_gradients_match_double_precision, .timeout = 60)
{
	enum { N = 1013 };
	float *x = held_random(1, N, -2, 2), *z = held_random(2, N, -20, 20),
	      *dy = held_random(3, N, -1, 1), *y = held_out(N), *dx = held_out(N),
	      *dz = held_out(N), *a = held_copy(z, N);
	const struct k3_vec *table[3];
	size_t n = tables(table);

	for (size_t k = 0; k < n; k++) {
		double sum = table[k]->gate_bwd(dx, dz, dy, x, z, N), want = 0;

		table[k]->gate_fwd(y, x, z, N);
		memcpy(a, z, N * sizeof(*a));
		table[k]->silu_bwd(a, dy, x, 3, 0.5f, N);
		for (size_t i = 0; i < N; i++) {
			double s = logistic((double)z[i]), rest = logistic(-(double)z[i]),
			       d = (double)dy[i], v = (double)x[i], zi = (double)z[i];
			double silu = s + zi * s * rest;

			cr_assert(ulps(y[i], v * s) <= 5, "gate: element %zu", i);
			cr_assert(ulps(dx[i], d * s) <= 5, "dx: element %zu", i);
			cr_assert(ulps(dz[i], d * v * s * rest) <= 8, "dz: element %zu", i);
			/* the two terms of silu' cancel near z = -1.28 */
			cr_assert(fabs((double)a[i] - 3 * (d - 0.5 * v) * silu) <
					  4e-6 * (s + fabs(zi) * s * rest),
				  "silu: element %zu", i);
			want += d * s * v;
		}
		cr_assert(fabs(sum - want) < 1e-5, "sum %.9g, expected %.9g", sum, want);
	}
	held_end();
}

/* Reference of norm_gate_bwd in double; m = x r. */
static void
norm_gate_reference(double *dx, double *dz, const float *dy, const float *x, const float *w,
		    const float *z, double r, size_t n)
{
	double mean = 0;

	for (size_t i = 0; i < n; i++)
		mean += (double)dy[i] * logistic((double)z[i]) * (double)w[i] * (double)x[i] * r;
	mean /= (double)n;
	for (size_t i = 0; i < n; i++) {
		double s = logistic((double)z[i]), m = (double)x[i] * r, d = (double)dy[i];

		dz[i] = d * m * (double)w[i] * s * (1 - s);
		dx[i] = r * (d * s * (double)w[i] - m * mean);
	}
}

Test(vec, gated_norm_matches_double_precision, .timeout = 60)
{
	enum { N = 117 };
	float *x = held_random(1, N, -2, 2), *z = held_random(2, N, -4, 4), r = 0.75f,
	      *dy = held_random(3, N, -1, 1), *w = held_random(4, N, 0.5, 1.5), *y = held_out(N),
	      *dx = held_out(N), *dz = held_out(N), *dw = held_out(N);
	const struct k3_vec *table[3];
	size_t n = tables(table);
	double want_dx[N], want_dz[N];

	norm_gate_reference(want_dx, want_dz, dy, x, w, z, (double)r, N);
	for (size_t k = 0; k < n; k++) {
		for (size_t i = 0; i < N; i++)
			dw[i] = 7;
		table[k]->norm_gate_fwd(y, x, w, z, r, N);
		table[k]->norm_gate_bwd(dx, dz, dw, dy, x, w, z, r, N);
		for (size_t i = 0; i < N; i++) {
			double m = (double)x[i] * (double)r * logistic((double)z[i]);

			cr_assert(ulps(y[i], m * (double)w[i]) <= 6, "y: element %zu", i);
			cr_assert(fabs((double)dx[i] - want_dx[i]) < 1e-6, "dx: element %zu", i);
			cr_assert(fabs((double)dz[i] - want_dz[i]) < 1e-6, "dz: element %zu", i);
			cr_assert(fabs((double)dw[i] - 7 - m * (double)dy[i]) < 2e-6,
				  "dw: element %zu", i);
		}
	}
	held_end();
}
