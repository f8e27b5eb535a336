/* The 2-D rotation of queries and keys (model.md 6.3): of the pairs of a head, pair 2i turns by
 * column f_i, pair 2i+1 by row f_i, f_i = 10000^(-4i/hd); rows and columns count in the whole item.
 *
 * A row of factors is [2hd]: what multiplies an element, then what multiplies its partner.  Axis
 * tables hold zeros in the pairs of the other axis, so the factors of a patch are a sum.  The trap:
 * angles reach hundreds of turns, and their rounding in float alone would cost four digits; one
 * sine per frequency in double and steps by addition theorem are exact enough and cheap.
 */
#ifndef K3_VIT_ROPE_H
#define K3_VIT_ROPE_H
#include <math.h>
#include <string.h>

#include "../../common/op/vit.h"
#include "../vec/vec.h"

struct rope {
	const int32_t *part;
	size_t hd;
	float *cols, *rows, *patch; /* [W, 2hd], [ROWS, 2hd], [2hd] */
};

/* Positions from .. from + n - 1 of axis 0 (columns) or 1 (rows); sign -1 turns back. */
static inline void
rope_axis(float *table, size_t hd, size_t axis, int32_t from, int32_t n, double sign)
{
	memset(table, 0, (size_t)n * 2 * hd * sizeof(*table));
	for (size_t i = 0; i < hd / 4; i++) {
		double f = pow(10000.0, -4.0 * (double)i / (double)hd), c = cos(from * f),
		       s = sin(from * f), cf = cos(f), sf = sin(f);
		float *at = table + 4 * i + 2 * axis;

		for (int32_t p = 0; p < n; p++, at += 2 * hd) {
			double next = c * cf - s * sf;

			at[0] = at[1] = (float)c;
			at[hd] = (float)(-sign * s);
			at[hd + 1] = (float)(sign * s);
			s = s * cf + c * sf;
			c = next;
		}
	}
}

/** Tables of a part; work holds 2hd (ROWS + W + 1) floats. */
static inline struct rope
rope_of(const int32_t *part, size_t hd, double sign, float *work)
{
	struct rope r = {.part = part, .hd = hd, .cols = work};

	r.rows = r.cols + (size_t)part[K3_VP_W] * 2 * hd;
	r.patch = r.rows + (size_t)part[K3_VP_ROWS] * 2 * hd;
	rope_axis(r.cols, hd, 0, 0, part[K3_VP_W], sign);
	rope_axis(r.rows, hd, 1, part[K3_VP_ROW0], part[K3_VP_ROWS], sign);
	return r;
}

/** Factors of the part's i-th patch. */
static inline const float *
rope_patch(const struct rope *r, size_t i)
{
	size_t w = (size_t)r->part[K3_VP_W], row = i / w % (size_t)r->part[K3_VP_ROWS];

	k3_vec()->add(r->patch, r->cols + i % w * 2 * r->hd, r->rows + row * 2 * r->hd, 2 * r->hd);
	return r->patch;
}

/** Turns the heads of one row, [heads, hd]; y may be x. */
static inline void
rope_turn(const struct rope *r, const float *factors, float *y, const float *x, size_t heads)
{
	k3_vec()->rotate(y, x, factors, factors + r->hd, heads, r->hd);
}

#endif
