/* Bodies of the two GELUs of vec.h.  The trap of the exact one: 1 + erf(x / sqrt(2)) keeps no digit
 * of a large negative x, so the tail is formed first and subtracted from 1 on the positive side. */
#ifndef K3_VEC_GELU_H
#define K3_VEC_GELU_H
#include "vec_lanes.h"
#include "vec.h"

/* gelu_tanh(x) = x sigmoid(2z), z = sqrt(2/pi) (x + 0.044715 x^3): s is that sigmoid, x becomes at
 * most 16 in size, where the sigmoid is 0 or 1 already and no power overflows. */
K3I_INLINE void
gelu_parts(struct sigmoid_parts *s, k3i_vecf *x)
{
	k3i_vecf most = {0}, z;
	k3i_veci over;

	most += 16.0f;
	over = *x > most;
	*x = PICK(over, most, *x);
	over = *x < -most;
	*x = PICK(over, -most, *x);
	z = *x * (1.59576912f + 0.0713548163f * (*x * *x));
	sigmoid_of(s, &z);
}

K3I_INLINE void
gelu_tanh_step(size_t i, size_t len, float *y, const float *x)
{
	struct sigmoid_parts s;
	k3i_vecf v, c;

	load(&v, x + i, len);
	c = v;
	gelu_parts(&s, &c);
	v = v * s.num / s.den;
	store(y + i, &v, len);
}

static void
gelu_tanh(float *y, const float *x, size_t n)
{
	EACH(n, gelu_tanh_step, y, x);
}

K3I_INLINE void
gelu_tanh_bwd_step(size_t i, size_t len, float *dx, const float *dy, const float *x)
{
	struct sigmoid_parts s;
	k3i_vecf v, d, inv;

	load(&v, x + i, len);
	load(&d, dy + i, len);
	gelu_parts(&s, &v);
	inv = 1.0f / s.den;
	d *= s.num * inv * (1.0f + v * (s.rest * inv) * (1.59576912f + 0.214064449f * (v * v)));
	store(dx + i, &d, len);
}

static void
gelu_tanh_bwd(float *dx, const float *dy, const float *x, size_t n)
{
	EACH(n, gelu_tanh_bwd_step, dx, dy, x);
}

/* Phi of the normal distribution, and its density. */
struct normal_parts {
	k3i_vecf below, density;
};

/* Phi(-a) = exp(-a^2/2) t P(t), t = 1 / (1 + 0.26 a): P is nearly flat, as Phi(-a) falls like
 * exp(-a^2/2) / a.  Its coefficients minimise the largest relative error on 0 <= a <= 13.3,
 * which is 2e-8; beyond 13.19 the exponential is 0. */
K3I_INLINE void
normal_of(struct normal_parts *s, const k3i_vecf *x)
{
	k3i_veci pos = *x >= 0.0f;
	k3i_vecf a = (k3i_vecf)((k3i_veci)*x & INT32_MAX), c = a * -0.5f * a, e, t, p;

	exp_of(&e, &c);
	t = 1.0f / (1.0f + 0.26f * a);
	p = t * 3.08962188e-2f - 1.54740837e-1f;
	p = p * t + 2.55467882e-1f;
	p = p * t - 1.55537286e-1f;
	p = p * t + 1.64153368e-1f;
	p = p * t + 4.96421109e-2f;
	p = p * t + 1.03391428e-1f;
	p = p * t + 1.02964917e-1f;
	p = p * t + 1.03762188e-1f;
	p = p * t * e;
	s->below = PICK(pos, 1.0f - p, p);
	s->density = e * 3.98942280e-1f;
}

K3I_INLINE void
gelu_erf_step(size_t i, size_t len, float *y, const float *x)
{
	struct normal_parts s;
	k3i_vecf v;

	load(&v, x + i, len);
	normal_of(&s, &v);
	v *= s.below;
	store(y + i, &v, len);
}

static void
gelu_erf(float *y, const float *x, size_t n)
{
	EACH(n, gelu_erf_step, y, x);
}

K3I_INLINE void
gelu_erf_bwd_step(size_t i, size_t len, float *dx, const float *dy, const float *x)
{
	struct normal_parts s;
	k3i_vecf v, d;

	load(&v, x + i, len);
	load(&d, dy + i, len);
	normal_of(&s, &v);
	d *= s.below + v * s.density;
	store(dx + i, &d, len);
}

static void
gelu_erf_bwd(float *dx, const float *dy, const float *x, size_t n)
{
	EACH(n, gelu_erf_bwd_step, dx, dy, x);
}

#endif
