/* SiTU (model.md 5.1): situ(g, u) = b1 tanh(g/b1) sigmoid(g) * b2 tanh(u/b2), at most b1 b2 in
 * size. The sigmoid sees the unsaturated g.
 *
 * exp and tanh are written out, as libm's calls took a tenth of a training step; these take about
 * half of that. Errors: at most 2 ulp for exp, 3 ulp for tanh. The traps: exp takes arguments that
 * are never positive and flushes to 0 below -87; tanh by exp alone would lose small arguments,
 * which have a polynomial (the one of Cephes' tanhf). */
#ifndef K3_GLU_SITU_H
#define K3_GLU_SITU_H
#include <math.h>
#include <stdint.h>

/** exp(x) for x <= 0; NaN stays NaN. */
static inline float
k3_exp_neg(float x)
{
	union {
		float f;
		uint32_t i;
	} power;
	float c = x >= -87.0f ? x : -87.0f;	       /* NaN must not reach the conversion */
	int32_t n = (int32_t)(c * 1.44269504f - 0.5f); /* towards zero: nearest */
	float f = (float)n, r = (c - f * 0.693359375f) - f * -2.12194440e-4f;
	float p = r * 1.9841270e-4f + 1.3888889e-3f;

	p = p * r + 8.3333333e-3f;
	p = p * r + 4.1666668e-2f;
	p = p * r + 1.6666667e-1f;
	p = p * r + 0.5f;
	p = p * (r * r) + r + 1.0f;
	power.i = (uint32_t)(n + 127) << 23;
	return x >= -87.0f ? p * power.f : x < -87.0f ? 0.0f : x;
}

static inline float
k3_tanh(float x)
{
	float a = fabsf(x), z = x * x, e = k3_exp_neg(-2.0f * a);
	float p = z * -5.70498872745e-3f + 2.06390887954e-2f;

	p = p * z - 5.37397155531e-2f;
	p = p * z + 1.33314422036e-1f;
	p = p * z - 3.33332819422e-1f;
	return a < 0.625f ? x + x * (z * p) : copysignf((1.0f - e) / (1.0f + e), x);
}

static inline float
k3_sigmoid(float x)
{
	/* exp of a non-positive number alone: no overflow at either end */
	float e = k3_exp_neg(-fabsf(x)), s = 1.0f / (1.0f + e);

	return x >= 0 ? s : e * s;
}

static inline float
k3_situ_fwd(float g, float u, float b1, float b2)
{
	return b1 * k3_tanh(g / b1) * k3_sigmoid(g) * b2 * k3_tanh(u / b2);
}

/** Gradients of g and u from dy. */
static inline void
k3_situ_bwd(float dy, float g, float u, float b1, float b2, float *dg, float *du)
{
	float t1 = k3_tanh(g / b1), z = k3_sigmoid(g), t2 = k3_tanh(u / b2);

	*dg = dy * b2 * t2 * ((1 - t1 * t1) * z + b1 * t1 * z * (1 - z));
	*du = dy * b1 * t1 * z * (1 - t2 * t2);
}

#endif
