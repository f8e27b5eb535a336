/* Conversion between float and bf16 (codelets/vec): every bf16 number, and rounding at every kind of
 * float, against the definition in exact arithmetic. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vec_case.h"

enum { ALL = 1 << 16 };

#define TEST(name) Test(vec_bf16, name, .timeout = 60)

static float
from_bits(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

/* By the definition: of the two neighbours the nearer one, of equally near ones the even one; beyond the
 * largest number the next would be 2^128, which is infinity. */
static uint16_t
rounded(uint32_t bits)
{
	uint32_t low = bits & 0xffff0000u, sign = bits >> 31;
	double x = fabs((double)from_bits(bits)), a = fabs((double)from_bits(low)), b;

	if (isinf(x))
		return (uint16_t)(bits >> 16);
	b = (low & 0x7fffffffu) == 0x7f7f0000u ? ldexp(1, 128)
					       : fabs((double)from_bits(low + 0x10000u));
	bool up = x - a > b - x || (x - a == b - x && (low >> 16 & 1));
	uint16_t r = (uint16_t)((low >> 16) + up);
	cr_assert_eq(r >> 15, sign);
	return r;
}

TEST(every_number_is_widened_exactly_and_comes_back)
{
	const struct k3_vec *table[3];
	size_t n = tables(table);
	uint16_t *in = malloc(ALL * sizeof(*in)), *back = malloc(ALL * sizeof(*back));
	float *wide = malloc(ALL * sizeof(*wide));

	for (uint32_t i = 0; i < ALL; i++)
		in[i] = (uint16_t)i;
	for (size_t k = 0; k < n; k++) {
		table[k]->from_bf16(wide, in, ALL);
		table[k]->to_bf16(back, wide, ALL);
		for (uint32_t i = 0; i < ALL; i++) {
			uint32_t bits;
			memcpy(&bits, &wide[i], sizeof(bits));
			cr_assert_eq(bits, i << 16, "%04x is widened to %08x", i, bits);
			/* a NaN that signals becomes a quiet one */
			uint32_t want = isnan(wide[i]) ? i | 0x40 : i;
			cr_assert_eq(back[i], want, "%04x comes back as %04x", i, back[i]);
		}
	}
	free(in);
	free(back);
	free(wide);
}

/* Above every number, in both signs: ties, their neighbours, both ends. */
TEST(floats_go_to_the_nearest_and_ties_to_the_even)
{
	static const uint32_t low[] = {0,      1,      0x7fff, 0x8000, 0x8001,
				       0xfffe, 0xffff, 0x4000, 0xc000};
	const struct k3_vec *table[3];
	size_t n = tables(table), each = sizeof(low) / sizeof(low[0]);
	uint32_t *in = malloc(ALL * each * sizeof(*in));
	uint16_t *out = malloc(ALL * each * sizeof(*out));
	size_t m = 0;

	for (uint32_t high = 0; high < ALL; high++)
		for (size_t j = 0; j < each; j++)
			in[m++] = high << 16 | low[j];
	for (size_t k = 0; k < n; k++) {
		table[k]->to_bf16(out, (const float *)(const void *)in, m);
		for (size_t i = 0; i < m; i++) {
			if (isnan(from_bits(in[i])))
				cr_assert(isnan(from_bits((uint32_t)out[i] << 16)) &&
						  out[i] >> 15 == in[i] >> 31,
					  "NaN %08x becomes %04x", in[i], out[i]);
			else
				cr_assert_eq(out[i], rounded(in[i]), "%08x becomes %04x", in[i],
					     out[i]);
		}
	}
	free(in);
	free(out);
}

TEST(nothing_is_written_behind_a_row_of_any_length_and_place)
{
	enum { MOST = 70 };
	const struct k3_vec *table[3];
	size_t n = tables(table);
	float x[MOST + 3], wide[MOST + 3];
	uint16_t h[MOST + 3], half[MOST + 3];

	for (size_t i = 0; i < MOST + 3; i++) {
		x[i] = 1 + (float)i / 64;
		h[i] = (uint16_t)(0x3f80 + i);
	}
	for (size_t k = 0; k < n; k++)
		for (size_t from = 0; from < 3; from++)
			for (size_t len = 0; len <= MOST - from; len++) {
				memset(wide, 0xee, sizeof(wide));
				memset(half, 0xee, sizeof(half));
				table[k]->from_bf16(wide + from, h + from, len);
				table[k]->to_bf16(half + from, x + from, len);
				for (size_t i = 0; i < MOST + 3; i++) {
					bool in = i >= from && i < from + len;
					uint32_t bits;
					memcpy(&bits, &wide[i], sizeof(bits));
					cr_assert_eq(bits, in ? (uint32_t)h[i] << 16 : 0xeeeeeeeeu);
					memcpy(&bits, &x[i], sizeof(bits));
					cr_assert_eq(half[i], in ? rounded(bits) : 0xeeee);
				}
			}
}
