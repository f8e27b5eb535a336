/* Sums, norms, mixes and convolutions of every register width (codelets/vec); where the numbers are
 * small integers every result is exact. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "held.h"
#include "vec_case.h"

/* Products of small integers are exact, so are all partial sums. */
Test(vec, sums_of_integers_are_exact_at_every_length, .timeout = 60)
{
	const struct k3_vec *table[3];
	size_t n = tables(table);
	float x[70], y[70], w[70];

	for (size_t i = 0; i < 70; i++) {
		x[i] = (float)(i % 7) - 3;
		y[i] = (float)(i % 11) - 4;
		w[i] = (float)(i % 3) + 1;
	}
	for (size_t k = 0; k < n; k++)
		for (size_t len = 0; len <= 70; len++) {
			double xy = 0, xx = 0, xwy = 0, score;

			for (size_t i = 0; i < len; i++) {
				xy += (double)(x[i] * y[i]);
				xx += (double)(x[i] * x[i]);
				xwy += (double)(x[i] * w[i] * y[i]);
			}
			cr_assert_eq(table[k]->dot(x, y, len), xy, "length %zu", len);
			cr_assert_eq(table[k]->square(x, len), xx, "length %zu", len);
			cr_assert_eq(table[k]->dot_weighted(x, w, y, len), xwy, "length %zu", len);
			cr_assert_eq(table[k]->square_score(&score, x, w, y, len), xx, "length %zu",
				     len);
			cr_assert_eq(score, xwy, "length %zu", len);
		}
}

/* In float the sum would stay at 1. */
Test(vec, sums_run_in_double, .timeout = 60)
{
	const struct k3_vec *table[3];
	size_t n = tables(table);
	float x[33] = {1};

	for (size_t i = 1; i < 33; i++)
		x[i] = 0x1p-13f;
	for (size_t k = 0; k < n; k++)
		cr_assert_eq(table[k]->square(x, 33), 1 + 0x1p-21);
}

Test(vec, largest_passes_over_nan_and_knows_no_zero, .timeout = 60)
{
	const struct k3_vec *table[3];
	size_t n = tables(table);
	float x[37];

	for (size_t i = 0; i < 37; i++)
		x[i] = i % 5 ? -(float)(i + 2) : NAN;
	for (size_t k = 0; k < n; k++)
		for (size_t from = 0; from < 37; from++) {
			float want = from % 5 ? -(float)(from + 2) : -(float)(from + 3);
			size_t len = 37 - from;

			if (from + 1 == 37 && from % 5 == 0)
				continue;
			cr_assert_eq(table[k]->largest(x + from, len), want, "from %zu: %g", from,
				     (double)table[k]->largest(x + from, len));
			cr_assert_eq(table[k]->largest(x + from, 0), -INFINITY);
		}
}

Test(vec, weighted_sum_is_in_the_order_of_the_list, .timeout = 60)
{
	/* 1e8 + 1 - 1e8 is 0 in float from left to right, and 1 in another order */
	float a[19], b[19], c[19], y[19];
	const float *v[] = {a, b, c}, w[] = {1, 1, -1};
	const struct k3_vec *table[3];
	size_t n = tables(table);

	for (size_t i = 0; i < 19; i++) {
		a[i] = c[i] = 1e8f;
		b[i] = 1;
	}
	for (size_t k = 0; k < n; k++) {
		table[k]->weighted_sum(y, v, w, 3, 19);
		held_expect_all(y, 0, 19, "sum");
	}
	held_end();
}

Test(vec, norm_of_a_row_and_its_gradient_match_double_precision, .timeout = 60)
{
	enum { N = 53 };
	float *x = held_random(1, N, -2, 2), *w = held_random(2, N, 0.5, 1.5),
	      *dy = held_random(3, N, -1, 1), *y = held_out(N), *dx = held_out(N),
	      *dw = held_out(N);
	const struct k3_vec *table[3];
	size_t n = tables(table);

	for (size_t k = 0; k < n; k++) {
		for (size_t i = 0; i < N; i++)
			dw[i] = -2;
		table[k]->rms_fwd(y, x, w, 0.75f, N);
		table[k]->rms_bwd(dx, dw, dy, x, w, 0.75f, 0.125f, N);
		for (size_t i = 0; i < N; i++) {
			double m = 0.75 * (double)x[i], d = (double)dy[i];

			cr_assert(ulps(y[i], m * (double)w[i]) <= 2, "y: element %zu", i);
			cr_assert(fabs((double)dx[i] - 0.75 * (d * (double)w[i] - m * 0.125)) <
					  5e-7,
				  "dx: element %zu", i);
			cr_assert(fabs((double)dw[i] + 2 - d * m) < 5e-7, "dw: element %zu", i);
		}
	}
	held_end();
}

/* Three values, two addends; small integers, so every sum is exact. */
static void
mix_of_integers(const struct k3_vec *vec, int accumulate)
{
	enum { N = 21 };
	float v[3][N], dv[3][N], add[2][N], dx[N], gamma[N], rho[N], dgamma[N], drho[N];
	static const float share[] = {2, 3, 4}, scale[] = {1, -2, 5}, shrink[] = {3, 1, -1};
	const float *vp[] = {v[0], v[1], v[2]}, *ap[] = {add[0], add[1]};
	float *dp[] = {dv[0], dv[1], dx};
	struct k3_vec_mix m = {vp, dp, 3,     2,   share,  scale, shrink,
			       ap, dx, gamma, rho, dgamma, drho,  accumulate};

	for (int i = 0; i < N; i++) {
		for (int j = 0; j < 3; j++) {
			v[j][i] = (float)((i * 5 + j * 3) % 7 - 3);
			dv[j][i] = accumulate ? (float)(i - j) : NAN;
		}
		add[0][i] = (float)(i % 4);
		add[1][i] = (float)(i % 6);
		dx[i] = (float)(i % 5 - 2);
		gamma[i] = (float)(i % 3 + 1);
		rho[i] = (float)(i % 2 + 1);
		dgamma[i] = drho[i] = 1;
	}
	vec->mix_bwd(&m, N);
	for (int i = 0; i < N; i++) {
		float e = 0, d = (float)(i % 5 - 2);
		for (int j = 0; j < 3; j++) {
			float g = share[j] * d + scale[j] * gamma[i] * rho[i] - shrink[j] * v[j][i];
			g += j == 2 ? add[0][i] + add[1][i] : accumulate ? (float)(i - j) : 0;
			cr_assert_eq(dp[j][i], g, "value %d, element %d: %g, expected %g", j, i,
				     (double)dp[j][i], (double)g);
			e += scale[j] * v[j][i];
		}
		cr_assert_eq(dgamma[i], 1 + e * rho[i], "dgamma: element %d", i);
		cr_assert_eq(drho[i], 1 + e * gamma[i], "drho: element %d", i);
	}
}

Test(vec, gradient_of_a_mix_is_exact_for_integers, .timeout = 60)
{
	const struct k3_vec *table[3];
	size_t n = tables(table);

	for (size_t k = 0; k < n; k++) {
		mix_of_integers(table[k], 0);
		mix_of_integers(table[k], 1);
	}
}

/* Rows 0 .. 5 of 19 columns, 3 taps, distance of rows 23; in place as the gradient of inputs does
 * it: row r reads r, r + 1, r + 2. */
Test(vec, taps_are_exact_for_integers_and_may_work_in_place, .timeout = 60)
{
	enum { N = 19, LD = 23, ROWS = 6, TAPS = 3 };
	const struct k3_vec *table[3];
	size_t n = tables(table);

	for (size_t k = 0; k < n; k++) {
		float x[(ROWS + TAPS) * LD], old[(ROWS + TAPS) * LD], c[TAPS * N], dc[TAPS * N];
		const float *u[] = {x + 2 * LD, x + LD, x};

		for (size_t i = 0; i < (ROWS + TAPS) * LD; i++)
			x[i] = old[i] = (float)(i * i % 13);
		for (size_t i = 0; i < TAPS * N; i++) {
			c[i] = (float)(i % 5) - 2;
			dc[i] = 3;
		}
		table[k]->taps_grad(dc, u, x + LD, LD, ROWS, TAPS, N);
		table[k]->taps_fwd(x, u, c, LD, ROWS, TAPS, N);
		for (size_t i = 0; i < N; i++) {
			float grad[TAPS] = {3, 3, 3};

			for (size_t r = 0; r < ROWS; r++) {
				float sum = 0;
				for (size_t j = 0; j < TAPS; j++) {
					float in = old[(r + 2 - j) * LD + i];
					sum += c[j * N + i] * in;
					grad[j] += in * old[(r + 1) * LD + i];
				}
				cr_assert_eq(x[r * LD + i], sum, "row %zu, column %zu", r, i);
			}
			for (size_t j = 0; j < TAPS; j++)
				cr_assert_eq(dc[j * N + i], grad[j], "tap %zu, column %zu", j, i);
		}
		for (size_t i = 0; i < (ROWS + TAPS) * LD; i++)
			cr_assert(i / LD < ROWS && i % LD < N ? 1 : x[i] == old[i],
				  "element %zu was written", i);
	}
}
