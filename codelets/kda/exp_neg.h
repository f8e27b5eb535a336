/* exp for arguments that are never positive, sixteen channels at a time.
 *
 * Cody-Waite reduction to [-ln2/2, ln2/2], a polynomial of degree 7, and the power of two added to
 * the exponent bits. Error at most 2 ulp.  The traps: below -87 the result is exactly 0 (no
 * denormals), NaN stays NaN, and there is no libm call or branch that would keep the compiler from
 * using whole registers. Lanes go through pointers, as passing such vectors by value depends on the
 * target's ABI.
 */
#ifndef K3_KDA_EXP_NEG_H
#define K3_KDA_EXP_NEG_H
#include <stdint.h>

enum { K3I_LANES = 16 };
typedef float k3i_vf __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t k3i_vi __attribute__((vector_size(64), aligned(4), may_alias));

#define K3I_INLINE static inline __attribute__((always_inline))

/** y = exp(x) lane by lane, x <= 0 (-inf and NaN are legal). */
K3I_INLINE void
k3i_exp_neg(k3i_vf *y, const k3i_vf *x)
{
	k3i_vi low = *x < -87.0f; /* all ones where the result is flushed */
	k3i_vf c = (k3i_vf)(~low & (k3i_vi)*x);
	/* towards zero: nearest; NaN has no integer, and stays NaN in r */
	k3i_vf scaled = (k3i_vf)((c == c) & (k3i_vi)(c * 1.44269504f - 0.5f));
	k3i_vi n = __builtin_convertvector(scaled, k3i_vi);
	k3i_vf f = __builtin_convertvector(n, k3i_vf);
	k3i_vf r = (c - f * 0.693359375f) - f * -2.12194440e-4f;
	k3i_vf p = r * 1.9841270e-4f + 1.3888889e-3f;

	p = p * r + 8.3333333e-3f;
	p = p * r + 4.1666668e-2f;
	p = p * r + 1.6666667e-1f;
	p = p * r + 0.5f;
	p = p * (r * r) + r + 1.0f;
	*y = (k3i_vf)(~low & (k3i_vi)(p * (k3i_vf)((n + 127) << 23)));
}

#endif
