/* Softmax and its gradient on a slice of scores, whole registers at a time; included by
 * attention kernels that are compiled once per vector width (lanes.h).
 *
 * A slice is at most 16 queries against a run of keys.  Columns behind the run and keys that a
 * query must not see are masked by comparison, never by arithmetic: what padding holds may be NaN.
 * The traps: a NaN of a visible key must go on, so that it is seen in the loss (a maximum may lose
 * it, exp may not); a row that has seen no key has maximum -inf, and -inf - -inf is NaN.
 */
#ifndef K3_LINALG_SOFTMAX_BODY_H
#define K3_LINALG_SOFTMAX_BODY_H
#include <math.h>

#include "panel_body.h"

enum { SLICE = 16 };

/** Which keys a slice sees: equal documents, and column j <= the query's row - key_row. */
struct mask {
	const int32_t *key_doc, *query_doc;
	size_t key_row, query_row; /* global rows of column 0 and of the first query */
};

/** Running softmax of the slice's rows: maximum, sum of exponentials. */
struct running {
	float most[SLICE], sum[SLICE];
};

PANEL_INLINE lanes
all_lanes(float x)
{
	lanes v;

	for (size_t i = 0; i < PANEL_LANES; i++)
		v[i] = x;
	return v;
}

PANEL_INLINE lanes
chosen(int_lanes mask, lanes yes, lanes no)
{
	return (lanes)((mask & (int_lanes)yes) | (~mask & (int_lanes)no));
}

/* The greater; y where either is NaN. */
PANEL_INLINE lanes
greater(lanes x, lanes y)
{
	return chosen(x > y, x, y);
}

/* exp(x): Cody-Waite reduction and a polynomial of degree 7, at most 2 ulp.  Below -87.7 it is
 * exactly 0, above 88 it stays at exp(88); NaN stays NaN. */
PANEL_INLINE lanes
exp_lanes(lanes x)
{
	lanes magic = all_lanes(12582912.0f), c = greater(all_lanes(-88.0f), x), t, n, r, p;

	c = chosen(c > 88.0f, all_lanes(88.0f), c);
	t = c * 1.44269504f + magic; /* the nearest integer in the low bits */
	n = t - magic;
	r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
	p = r * 1.9841270e-4f + 1.3888889e-3f;
	p = p * r + 8.3333333e-3f;
	p = p * r + 4.1666668e-2f;
	p = p * r + 1.6666667e-1f;
	p = p * r + 0.5f;
	p = p * (r * r) + r + 1.0f;
	/* without sign: the bits of a NaN may overflow */
	return p * (lanes)(((bit_lanes)t << 23) + 0x3f800000u);
}

typedef float quarter __attribute__((vector_size(16), aligned(4), may_alias));

/* Sum and maximum of a register, by quarters of 512 bits, in a fixed order. */
PANEL_INLINE float
sum_of_lanes(const lanes *v)
{
	const float *x = (const float *)v;
	quarter q = *(const quarter *)x;

	for (size_t i = 4; i < PANEL_LANES; i += 4)
		q += *(const quarter *)(x + i);
	return (q[0] + q[2]) + (q[1] + q[3]);
}

PANEL_INLINE float
most_of_lanes(const lanes *v)
{
	const float *x = (const float *)v;
	quarter q = *(const quarter *)x;

	for (size_t i = 4; i < PANEL_LANES; i += 4) {
		quarter y = *(const quarter *)(x + i);
		typeof(q > y) more = q > y;

		q = (quarter)((more & (typeof(more))q) | (~more & (typeof(more))y));
	}
	float lo = q[0] > q[2] ? q[0] : q[2], hi = q[1] > q[3] ? q[1] : q[3];

	return lo > hi ? lo : hi;
}

/* Columns j .. of query i: all ones where it sees the key. */
PANEL_INLINE int_lanes
seen(const struct mask *mask, size_t i, size_t j)
{
	static const int32_t count[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
	int32_t doc = mask->query_doc[i] ? mask->query_doc[i] : -1,
		last = (int32_t)((ptrdiff_t)(mask->query_row + i) - (ptrdiff_t)(mask->key_row + j));

	return (*(const int_lanes *)(mask->key_doc + j) == doc) &
	       (*(const int_lanes *)count <= last);
}

/* s *= scale, -inf where hidden; the maximum of row i joins run. */
static void
scaled_row(float *s, size_t i, size_t n, const struct mask *mask, float scale, float *most)
{
	lanes top = all_lanes(-INFINITY);

	for (size_t j = 0; j < n; j += PANEL_LANES) {
		lanes x = lanes_of(s + j) * scale;

		if (mask)
			x = chosen(seen(mask, i, j), x, all_lanes(-INFINITY));
		*lanes_at(s + j) = x;
		top = greater(x, top);
	}
	float x = most_of_lanes(&top);
	*most = x > *most ? x : *most;
}

static void
scale_row(float *x, float by, size_t n)
{
	size_t c = 0;

	for (; c + PANEL_LANES <= n; c += PANEL_LANES)
		*lanes_at(x + c) *= by;
	for (; c < n; c++)
		x[c] *= by;
}

/**
 * Scores s [rows, n], leading dimension ld, become exp(scale s - most); the running maximum and sum
 * are brought up to date and acc [rows, v], the sum of weighted values so far (NULL: none yet),
 * leading dimension ldacc, with them.
 *
 * @param n    a multiple of 16
 * @param mask NULL: every query sees every key
 */
static void
softmax_slice(float *s, size_t ld, size_t rows, size_t n, const struct mask *mask, float scale,
	      struct running *run, float *acc, size_t ldacc, size_t v)
{
	float shift[SLICE] = {0}, base[SLICE];

	for (size_t i = 0; i < rows; i++) {
		float before = run->most[i];

		scaled_row(s + i * ld, i, n, mask, scale, &run->most[i]);
		base[i] = run->most[i] == -INFINITY ? 0.0f : run->most[i];
		shift[i] = before - base[i];
	}
	for (size_t i = 0; i < SLICE; i += PANEL_LANES)
		*lanes_at(shift + i) = exp_lanes(lanes_of(shift + i));
	for (size_t i = 0; i < rows; i++) {
		lanes sum = {0};

		for (size_t j = 0; j < n; j += PANEL_LANES) {
			lanes p = exp_lanes(lanes_of(s + i * ld + j) - base[i]);

			*lanes_at(s + i * ld + j) = p;
			sum += p;
		}
		run->sum[i] = run->sum[i] * shift[i] + sum_of_lanes(&sum);
		if (acc)
			scale_row(acc + i * ldacc, shift[i], v);
	}
}

/**
 * Scores p [rows, n] become P = exp(scale p - lse), dp = dA V^T becomes dS = P (dp - delta) scale.
 *
 * @param lse, delta of query i at [i * step]
 */
static void
gradient_slice(float *p, float *dp, size_t ld, size_t rows, size_t n, const struct mask *mask,
	       float scale, const float *lse, const float *delta, size_t step)
{
	for (size_t i = 0; i < rows; i++) {
		float l = lse[i * step], d = delta[i * step];

		for (size_t j = i * ld; j < i * ld + n; j += PANEL_LANES) {
			lanes weight = exp_lanes(lanes_of(p + j) * scale - l),
			      ds = weight * (lanes_of(dp + j) - d) * scale;

			if (mask) {
				int_lanes see = seen(mask, i, j - i * ld);

				weight = chosen(see, weight, (lanes){0});
				ds = chosen(see, ds, (lanes){0});
			}
			*lanes_at(p + j) = weight;
			*lanes_at(dp + j) = ds;
		}
	}
}

#endif
