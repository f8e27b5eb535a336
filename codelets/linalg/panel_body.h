/* Products of small matrices with the right operand in panels; included by kernels that are
 * compiled once per vector width (lanes.h).
 *
 *   c [m, n] (+)= alpha a [m, k] b [k, n]
 *
 * b lies in panels of 32 columns: element (p, j) at [j / 32][p][j % 32], rows of a panel one after
 * the other, zeros behind column n.  So the inner loop reads it in order and keeps a tile of c in
 * registers; a is read where it lies.  Where operands serve several products, which a BLAS call
 * would pack each time, this is faster than BLAS.  Each element of c is one sum in the order of k:
 * its bits depend neither on m, n nor on where the tiles are cut.
 */
#ifndef K3_LINALG_PANEL_BODY_H
#define K3_LINALG_PANEL_BODY_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The including file says how many floats a register holds: 4, 8 or 16. */
enum { PANEL = 32, PANEL_LANES = K3_PANEL_LANES, TILE_ROWS = PANEL_LANES == 16 ? 8 : 4 };

typedef float lanes __attribute__((vector_size(PANEL_LANES * 4), aligned(4), may_alias));
typedef int32_t int_lanes __attribute__((vector_size(PANEL_LANES * 4), aligned(4), may_alias));
typedef uint32_t bit_lanes __attribute__((vector_size(PANEL_LANES * 4), aligned(4), may_alias));

#define PANEL_INLINE static inline __attribute__((always_inline))

PANEL_INLINE lanes *
lanes_at(float *p)
{
	return (lanes *)p;
}

PANEL_INLINE lanes
lanes_of(const float *p)
{
	return *(const lanes *)p;
}

/** n rounded up to whole panels. */
static inline size_t
panel_pad(size_t n)
{
	return (n + PANEL - 1) / PANEL * PANEL;
}

static inline size_t
lower(size_t x, size_t y)
{
	return x < y ? x : y;
}

static inline float *
aligned(float *work)
{
	return (float *)(((uintptr_t)work + 63) / 64 * 64);
}

/** Takes n floats, rounded up to whole cache lines, from an aligned work buffer. */
static inline float *
take(float **work, size_t n)
{
	float *p = *work;

	*work += (n + 15) / 16 * 16;
	return p;
}

/* rows x cols of c, cols whole registers but for the last: `left` columns are there. */
PANEL_INLINE void
tile(size_t rows, size_t regs, float *c, size_t ldc, size_t left, int add, float alpha,
     const float *a, size_t rs, size_t cs, const float *b, size_t k)
{
	lanes acc[8][2];

#pragma GCC unroll 8
	for (size_t i = 0; i < rows; i++)
#pragma GCC unroll 2
		for (size_t r = 0; r < regs; r++)
			acc[i][r] = (lanes){0};
	for (size_t p = 0; p < k; p++, a += cs, b += PANEL) {
		lanes b0 = lanes_of(b), b1 = lanes_of(b + (regs - 1) * PANEL_LANES);

#pragma GCC unroll 8
		for (size_t i = 0; i < rows; i++) {
			acc[i][0] += a[i * rs] * b0;
			if (regs > 1)
				acc[i][1] += a[i * rs] * b1;
		}
	}
	if (left >= regs * PANEL_LANES) {
#pragma GCC unroll 8
		for (size_t i = 0; i < rows; i++)
#pragma GCC unroll 2
			for (size_t r = 0; r < regs; r++) {
				lanes *to = lanes_at(c + i * ldc + r * PANEL_LANES);

				*to = add ? *to + alpha * acc[i][r] : alpha * acc[i][r];
			}
		return;
	}
	for (size_t i = 0; i < rows; i++) {
		float row[2 * PANEL_LANES];

		memcpy(row, acc[i], sizeof(row[0]) * regs * PANEL_LANES);
		for (size_t j = 0; j < left; j++)
			c[i * ldc + j] = (add ? c[i * ldc + j] : 0.0f) + alpha * row[j];
	}
}

#define PANEL_TILE(rows, regs)                                                                     \
	static void __attribute__((noinline))                                                      \
	tile_##rows##_##regs(float *c, size_t ldc, size_t left, int add, float alpha,              \
			     const float *a, size_t rs, size_t cs, const float *b, size_t k)       \
	{                                                                                          \
		tile(rows, regs, c, ldc, left, add, alpha, a, rs, cs, b, k);                       \
	}
PANEL_TILE(8, 2)
PANEL_TILE(8, 1)
PANEL_TILE(4, 2)
PANEL_TILE(4, 1)
PANEL_TILE(2, 2)
PANEL_TILE(2, 1)
PANEL_TILE(1, 2)
PANEL_TILE(1, 1)

/* All rows of one strip of two registers, in tiles of at most 8. */
static void
strip(size_t rows, float *c, size_t ldc, size_t left, int add, float alpha, const float *a,
      size_t rs, size_t cs, const float *b, size_t k)
{
	int two = left > PANEL_LANES;

	for (size_t i = 0; i < rows;) {
		size_t rest = rows - i, n = rest >= TILE_ROWS ? TILE_ROWS
					    : rest >= 4	      ? 4
					    : rest >= 2	      ? 2
							      : 1;
		float *to = c + i * ldc;
		const float *from = a + i * rs;

		if (n == 8)
			(two ? tile_8_2 : tile_8_1)(to, ldc, left, add, alpha, from, rs, cs, b, k);
		else if (n == 4)
			(two ? tile_4_2 : tile_4_1)(to, ldc, left, add, alpha, from, rs, cs, b, k);
		else if (n == 2)
			(two ? tile_2_2 : tile_2_1)(to, ldc, left, add, alpha, from, rs, cs, b, k);
		else
			(two ? tile_1_2 : tile_1_1)(to, ldc, left, add, alpha, from, rs, cs, b, k);
		i += n;
	}
}

/**
 * c [m, n] = (add ? c : 0) + alpha a b.
 *
 * @param a   element (i, p) at a[i * rs + p * cs]: (ld, 1) for a matrix as it lies, (1, ld) for its
 *            transpose
 * @param b   row 0 of the first panel; to begin at row p, move it by p * 32
 * @param ldb rows of a panel as it was packed
 * Nothing behind column n of c is touched.
 */
static void
panel_product(float *c, size_t ldc, int add, float alpha, const float *a, size_t rs, size_t cs,
	      const float *b, size_t ldb, size_t m, size_t n, size_t k)
{
	for (size_t j = 0; j < n; j += 2 * PANEL_LANES)
		strip(m, c + j, ldc, n - j, add, alpha, a, rs, cs,
		      b + j / PANEL * ldb * PANEL + j % PANEL, k);
}

/**
 * Panels of the rows x [k, n]; rows whose keep[p] is 0 become zeros, as a sum must not meet what
 * they hold (0 * NaN is NaN).  keep = NULL keeps all.
 */
static void
panel_rows(float *b, size_t ldb, const float *x, size_t ld, size_t k, size_t n, const int32_t *keep)
{
	for (size_t j = 0; j < n; j += PANEL) {
		size_t cols = n - j < PANEL ? n - j : PANEL;
		float *to = b + j * ldb;

		for (size_t p = 0; p < k; p++, to += PANEL) {
			const float *from = x + p * ld + j;

			if (cols == PANEL && (!keep || keep[p])) {
				for (size_t i = 0; i < PANEL; i += PANEL_LANES)
					*lanes_at(to + i) = lanes_of(from + i);
				continue;
			}
			memset(to, 0, PANEL * sizeof(*to));
			if (!keep || keep[p])
				memcpy(to, from, cols * sizeof(*to));
		}
	}
}

/* to[q][i] = x[i][q] for 8 x 8 elements. */
static inline void
transpose_8(float *to, const float *x, size_t ld)
{
#if defined(__AVX__)
	typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));
	typedef int32_t pick __attribute__((vector_size(32)));
	const pick lo = {0, 8, 1, 9, 4, 12, 5, 13}, hi = {2, 10, 3, 11, 6, 14, 7, 15},
		   even = {0, 1, 8, 9, 4, 5, 12, 13}, odd = {2, 3, 10, 11, 6, 7, 14, 15},
		   left = {0, 1, 2, 3, 8, 9, 10, 11}, right = {4, 5, 6, 7, 12, 13, 14, 15};
	eight r[8], s[8];

	for (size_t i = 0; i < 8; i += 2) {
		eight x0 = *(const eight *)(x + i * ld), x1 = *(const eight *)(x + (i + 1) * ld);

		r[i] = __builtin_shuffle(x0, x1, lo);
		r[i + 1] = __builtin_shuffle(x0, x1, hi);
	}
	for (size_t i = 0; i < 8; i += 4) {
		s[i] = __builtin_shuffle(r[i], r[i + 2], even);
		s[i + 1] = __builtin_shuffle(r[i], r[i + 2], odd);
		s[i + 2] = __builtin_shuffle(r[i + 1], r[i + 3], even);
		s[i + 3] = __builtin_shuffle(r[i + 1], r[i + 3], odd);
	}
	for (size_t i = 0; i < 4; i++) {
		*(eight *)(to + i * PANEL) = __builtin_shuffle(s[i], s[i + 4], left);
		*(eight *)(to + (i + 4) * PANEL) = __builtin_shuffle(s[i], s[i + 4], right);
	}
#else
	for (size_t q = 0; q < 8; q++)
		for (size_t i = 0; i < 8; i++)
			to[q * PANEL + i] = x[i * ld + q];
#endif
}

/** Panels of the transpose of x [n, k]: element (p, j) is x[j * ld + p].  Columns behind n up to a
 * multiple of 8 become zeros; b may begin at such a multiple inside a panel. */
static void
panel_columns(float *b, size_t ldb, const float *x, size_t ld, size_t n, size_t k)
{
	for (size_t j = 0; j < n; j += 8) {
		size_t rows = n - j < 8 ? n - j : 8, p = 0;
		float *to = b + j / PANEL * ldb * PANEL + j % PANEL;
		const float *from = x + j * ld;

		for (; rows == 8 && p + 8 <= k; p += 8)
			transpose_8(to + p * PANEL, from + p, ld);
		for (; p < k; p++)
			for (size_t i = 0; i < 8; i++)
				to[p * PANEL + i] = i < rows ? from[i * ld + p] : 0.0f;
	}
}

#endif
