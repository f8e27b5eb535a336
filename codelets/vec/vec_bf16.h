/* Conversion between float and bf16, the upper half of a float.
 *
 * Rounding adds 0x7fff, and one more when the kept half is odd, to the bits: a carry goes from the
 * fraction into the exponent, and from the largest numbers to infinity, as it should.  The trap: it
 * would carry a NaN over into a number, so NaN is cut, with its quiet bit set. */
#ifndef K3_VEC_BF16_H
#define K3_VEC_BF16_H
#include "vec_lanes.h"

typedef uint16_t k3i_half __attribute__((vector_size(K3I_VEC_BYTES / 2), aligned(2), may_alias));

K3I_INLINE void
from_bf16_step(size_t i, size_t len, float *y, const uint16_t *x)
{
	k3i_half h = {0};
	k3i_vecf v;

	if (len == L)
		h = *(const k3i_half *)(x + i);
	else
		memcpy(&h, x + i, len * sizeof(*x));
	v = (k3i_vecf)(__builtin_convertvector(h, k3i_veci) << 16);
	store(y + i, &v, len);
}

static void
from_bf16(float *y, const uint16_t *x, size_t n)
{
	EACH(n, from_bf16_step, y, x);
}

K3I_INLINE void
to_bf16_step(size_t i, size_t len, uint16_t *y, const float *x)
{
	/* without sign: the bits of a NaN may overflow, and are not taken then */
	typedef uint32_t vecu __attribute__((vector_size(K3I_VEC_BYTES), aligned(4), may_alias));
	k3i_vecf v;
	vecu bits, nan;

	load(&v, x + i, len);
	bits = (vecu)v;
	nan = (vecu)(v != v);
	bits = (nan & (bits | 0x400000)) | (~nan & (bits + 0x7fff + ((bits >> 16) & 1)));
	k3i_half h = __builtin_convertvector(bits >> 16, k3i_half);
	if (len == L)
		*(k3i_half *)(y + i) = h;
	else
		memcpy(y + i, &h, len * sizeof(*y));
}

static void
to_bf16(uint16_t *y, const float *x, size_t n)
{
	EACH(n, to_bf16_step, y, x);
}

#endif
