/* Lanes: loading and storing them, sums in double, and the functions that activations are made of.
 * Each vec*_cpu.c sets the width of its registers; rows are walked in blocks of sixteen elements
 * whatever it is, so that sums have sixteen lanes everywhere.
 *
 * tanh and sigmoid come as numerator and denominator, because a product of several needs one
 * division, not one each.  The traps: exp takes arguments that are never positive, so nothing
 * overflows; and tanh(x) = -t / (2 + t), t = exp(-2|x|) - 1, keeps small arguments only because t
 * is never formed by subtracting 1 from an exponential near it.
 *
 * Vectors go through pointers, as passing them by value depends on the target's ABI.
 */
#ifndef K3_VEC_LANES_H
#define K3_VEC_LANES_H
#include <stdint.h>
#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

enum { BLOCK = 16, L = K3I_VEC_BYTES / 4, PARTS = BLOCK / L, QUADS = L / 4 };

typedef float k3i_vecf __attribute__((vector_size(K3I_VEC_BYTES), aligned(4), may_alias));
typedef int32_t k3i_veci __attribute__((vector_size(K3I_VEC_BYTES), aligned(4), may_alias));
typedef float k3i_quad __attribute__((vector_size(16), aligned(4), may_alias));
typedef double k3i_vecd __attribute__((vector_size(32), aligned(8), may_alias));

#define K3I_INLINE static inline __attribute__((always_inline))

/* a where all bits of m are set, b where none is. */
#define PICK(m, a, b) ((k3i_vecf)(((m) & (k3i_veci)(a)) | (~(m) & (k3i_veci)(b))))

/* x times the sign of s. */
#define SIGNED(x, s) ((k3i_vecf)((k3i_veci)(x) ^ ((k3i_veci)(s)&INT32_MIN)))

/* step(first, number, ...) over n elements by whole lanes, then once with what is left. The number
 * is a constant but there, so whole lanes cost no test. */
#define EACH(n, step, ...)                                                                         \
	do {                                                                                       \
		size_t whole_n = (n) - (n) % L;                                                    \
		for (size_t first = 0; first < whole_n; first += L)                                \
			step(first, L, __VA_ARGS__);                                               \
		if ((n) > whole_n)                                                                 \
			step(whole_n, (n)-whole_n, __VA_ARGS__);                                   \
	} while (0)

/* The same by blocks, for sums: step(first, number, part of the block, ...). */
#define EACH_BLOCK(n, step, ...)                                                                   \
	do {                                                                                       \
		size_t whole_n = (n) - (n) % BLOCK;                                                \
		for (size_t first = 0; first < whole_n; first += BLOCK)                            \
			for (size_t part = 0; part < PARTS; part++)                                \
				step(first + part * L, L, part, __VA_ARGS__);                      \
		for (size_t part = 0, at = whole_n; at < (n); at += L, part++)                     \
			step(at, (n)-at < L ? (n)-at : L, part, __VA_ARGS__);                      \
	} while (0)

/* len elements, zeros behind them. */
K3I_INLINE void
load(k3i_vecf *v, const float *p, size_t len)
{
	if (len == L) {
		*v = *(const k3i_vecf *)p;
	} else {
		*v = (k3i_vecf){0};
		memcpy(v, p, len * sizeof(*p));
	}
}

K3I_INLINE void
store(float *p, const k3i_vecf *v, size_t len)
{
	if (len == L)
		*(k3i_vecf *)p = *v;
	else
		memcpy(p, v, len * sizeof(*p));
}

/* Lane i of a sum holds what comes from elements i, i + 16, ... */
struct wide {
	k3i_vecd quad[BLOCK / 4];
};

K3I_INLINE void
widen(k3i_vecd *w, const k3i_quad *x)
{
#ifdef __AVX__
	*w = (k3i_vecd)_mm256_cvtps_pd((__m128)*x); /* gcc 12 converts pairs */
#else
	*w = __builtin_convertvector(*x, k3i_vecd);
#endif
}

/* sum += x y in one part of the block */
K3I_INLINE void
add_product(struct wide *sum, size_t part, const k3i_vecf *x, const k3i_vecf *y)
{
	union {
		k3i_vecf all;
		k3i_quad quad[QUADS];
	} a = {*x}, b = {*y};

	for (size_t i = 0; i < QUADS; i++) {
		k3i_vecd wa, wb;

		widen(&wa, &a.quad[i]);
		widen(&wb, &b.quad[i]);
		sum->quad[part * QUADS + i] += wa * wb;
	}
}

/* Sum of the lanes in a fixed order. */
K3I_INLINE double
total(const struct wide *sum)
{
	k3i_vecd v = (sum->quad[0] + sum->quad[2]) + (sum->quad[1] + sum->quad[3]);

	return (v[0] + v[2]) + (v[1] + v[3]);
}

/* power (1 + em) = exp(c), -87 <= c <= 0: Cody-Waite reduction to [-ln2/2, ln2/2] and a polynomial
 * of degree 7. power is exact, em is as small as c; NaN stays NaN in em. */
K3I_INLINE void
exp_parts(k3i_vecf *power, k3i_vecf *em, const k3i_vecf *c)
{
	/* towards zero: nearest; NaN has no integer, and stays NaN in r */
	k3i_vecf scaled = (k3i_vecf)((*c == *c) & (k3i_veci)(*c * 1.44269504f - 0.5f));
	k3i_veci n = __builtin_convertvector(scaled, k3i_veci);
	k3i_vecf f = __builtin_convertvector(n, k3i_vecf);
	k3i_vecf r = (*c - f * 0.693359375f) - f * -2.12194440e-4f;
	k3i_vecf p = r * 1.9841270e-4f + 1.3888889e-3f;

	p = p * r + 8.3333333e-3f;
	p = p * r + 4.1666668e-2f;
	p = p * r + 1.6666667e-1f;
	p = p * r + 0.5f;
	*em = p * (r * r) + r;
	*power = (k3i_vecf)((n + 127) << 23);
}

/* y = exp(x), x <= 0; exactly 0 below -87. */
K3I_INLINE void
exp_of(k3i_vecf *y, const k3i_vecf *x)
{
	k3i_veci low = *x < -87.0f;
	k3i_vecf c = (k3i_vecf)(~low & (k3i_veci)*x), power, em;

	exp_parts(&power, &em, &c);
	*y = (k3i_vecf)(~low & (k3i_veci)((em + 1.0f) * power));
}

/* sigmoid = num / den, 1 - sigmoid = rest / den */
struct sigmoid_parts {
	k3i_vecf num, rest, den;
};

K3I_INLINE void
sigmoid_of(struct sigmoid_parts *s, const k3i_vecf *x)
{
	k3i_veci pos = *x >= 0.0f;
	k3i_vecf minus = (k3i_vecf)((k3i_veci)*x | INT32_MIN), e, one = {0};

	one += 1.0f;
	exp_of(&e, &minus);
	s->den = 1.0f + e;
	s->num = PICK(pos, one, e);
	s->rest = PICK(pos, e, one);
}

/* |tanh| = num / den, 1 - tanh^2 = slope / den^2 */
struct tanh_parts {
	k3i_vecf num, slope, den;
};

K3I_INLINE void
tanh_of(struct tanh_parts *t, const k3i_vecf *x)
{
	k3i_vecf c = -2.0f * (k3i_vecf)((k3i_veci)*x & INT32_MAX), least = {0}, power, em;
	k3i_veci low = c < -87.0f;

	least -= 87.0f;
	c = PICK(low, least, c);
	exp_parts(&power, &em, &c);
	t->slope = 4.0f * (k3i_vecf)(~low & (k3i_veci)(power * em + power));
	t->num = (1.0f - power) - power * em;
	t->den = 2.0f - t->num;
}

#endif
