/* Bodies of the sums, norms, mixes and taps of vec.h. */
#ifndef K3_VEC_SUM_H
#define K3_VEC_SUM_H
#include <math.h>

#include "vec_lanes.h"
#include "vec.h"

K3I_INLINE void
dot_step(size_t i, size_t len, size_t part, struct wide *sum, const float *x, const float *y)
{
	k3i_vecf vx, vy;

	load(&vx, x + i, len);
	load(&vy, y + i, len);
	add_product(sum, part, &vx, &vy);
}

static double
dot(const float *x, const float *y, size_t n)
{
	struct wide sum = {0};

	EACH_BLOCK(n, dot_step, &sum, x, y);
	return total(&sum);
}

static double
square(const float *x, size_t n)
{
	struct wide sum = {0};

	EACH_BLOCK(n, dot_step, &sum, x, x);
	return total(&sum);
}

K3I_INLINE void
dot_weighted_step(size_t i, size_t len, size_t part, struct wide *sum, const float *x,
		  const float *w, const float *y)
{
	k3i_vecf vx, vw, vy;

	load(&vx, x + i, len);
	load(&vw, w + i, len);
	load(&vy, y + i, len);
	vx *= vw;
	add_product(sum, part, &vx, &vy);
}

static double
dot_weighted(const float *x, const float *w, const float *y, size_t n)
{
	struct wide sum = {0};

	EACH_BLOCK(n, dot_weighted_step, &sum, x, w, y);
	return total(&sum);
}

K3I_INLINE void
square_score_step(size_t i, size_t len, size_t part, struct wide *square, struct wide *score,
		  const float *v, const float *gamma, const float *rho)
{
	k3i_vecf x, g, r;

	load(&x, v + i, len);
	load(&g, gamma + i, len);
	load(&r, rho + i, len);
	g *= r;
	add_product(square, part, &x, &x);
	add_product(score, part, &g, &x);
}

static double
square_score(double *score, const float *v, const float *gamma, const float *rho, size_t n)
{
	struct wide square = {0}, sum = {0};

	EACH_BLOCK(n, square_score_step, &square, &sum, v, gamma, rho);
	*score = total(&sum);
	return total(&square);
}

/* Lanes that nothing is left for keep what they had. */
K3I_INLINE void
largest_step(size_t i, size_t len, k3i_vecf *most, const float *x)
{
	k3i_vecf v = *most;

	memcpy(&v, x + i, len * sizeof(*x));
	k3i_veci more = v > *most;
	*most = PICK(more, v, *most);
}

static float
largest(const float *x, size_t n)
{
	k3i_vecf most = {0};
	float result = -INFINITY;

	most -= INFINITY;
	EACH(n, largest_step, &most, x);
	for (size_t i = 0; i < L; i++)
		result = most[i] > result ? most[i] : result;
	return result;
}

K3I_INLINE void
exp_sum_step(size_t i, size_t len, size_t part, struct wide *sum, float *y, const float *x,
	     float most)
{
	k3i_vecf v, e, one = {0};

	load(&v, x + i, len);
	v -= most;
	exp_of(&e, &v);
	if (y)
		store(y + i, &e, len);
	if (len < L)
		memset((float *)&e + len, 0, (L - len) * sizeof(*x));
	one += 1.0f;
	add_product(sum, part, &e, &one);
}

static double
exp_sum(float *y, const float *x, float most, size_t n)
{
	struct wide sum = {0};

	EACH_BLOCK(n, exp_sum_step, &sum, y, x, most);
	return total(&sum);
}

K3I_INLINE void
scale_step(size_t i, size_t len, float *y, float w, const float *x)
{
	k3i_vecf v;

	load(&v, x + i, len);
	v *= w;
	store(y + i, &v, len);
}

static void
scale(float *y, float w, const float *x, size_t n)
{
	EACH(n, scale_step, y, w, x);
}

K3I_INLINE void
axpy_step(size_t i, size_t len, float *y, float w, const float *x)
{
	k3i_vecf vx, vy;

	load(&vx, x + i, len);
	load(&vy, y + i, len);
	vy += w * vx;
	store(y + i, &vy, len);
}

static void
axpy(float *y, float w, const float *x, size_t n)
{
	EACH(n, axpy_step, y, w, x);
}

K3I_INLINE void
add_step(size_t i, size_t len, float *z, const float *x, const float *y)
{
	k3i_vecf vx, vy;

	load(&vx, x + i, len);
	load(&vy, y + i, len);
	vx += vy;
	store(z + i, &vx, len);
}

static void
add(float *z, const float *x, const float *y, size_t n)
{
	EACH(n, add_step, z, x, y);
}

K3I_INLINE void
weighted_sum_step(size_t i, size_t len, float *y, const float *const *v, const float *w,
		  size_t n_values)
{
	k3i_vecf sum, x;

	load(&sum, v[0] + i, len);
	sum *= w[0];
	for (size_t j = 1; j < n_values; j++) {
		load(&x, v[j] + i, len);
		sum += w[j] * x;
	}
	store(y + i, &sum, len);
}

static void
weighted_sum(float *y, const float *const *v, const float *w, size_t n_values, size_t n)
{
	EACH(n, weighted_sum_step, y, v, w, n_values);
}

K3I_INLINE void
rms_fwd_step(size_t i, size_t len, float *y, const float *x, const float *w, float r)
{
	k3i_vecf vx, vw;

	load(&vx, x + i, len);
	load(&vw, w + i, len);
	vx = vx * r * vw;
	store(y + i, &vx, len);
}

static void
rms_fwd(float *y, const float *x, const float *w, float r, size_t n)
{
	EACH(n, rms_fwd_step, y, x, w, r);
}

K3I_INLINE void
rms_bwd_step(size_t i, size_t len, float *dx, float *dw, const float *dy, const float *x,
	     const float *w, float r, float mean)
{
	k3i_vecf vx, vy, vw, sum;

	load(&vx, x + i, len);
	load(&vy, dy + i, len);
	load(&vw, w + i, len);
	load(&sum, dw + i, len);
	vx *= r;
	sum += vy * vx;
	vx = r * (vy * vw - vx * mean);
	store(dw + i, &sum, len);
	store(dx + i, &vx, len);
}

static void
rms_bwd(float *dx, float *dw, const float *dy, const float *x, const float *w, float r, float mean,
	size_t n)
{
	EACH(n, rms_bwd_step, dx, dw, dy, x, w, r, mean);
}

K3I_INLINE void
mix_bwd_step(size_t i, size_t len, const struct k3_vec_mix *m)
{
	k3i_vecf dx, gamma, rho, v, old, sum = {0}, e = {0};
	size_t last = m->n_values - 1;

	load(&dx, m->dx + i, len);
	load(&gamma, m->gamma + i, len);
	load(&rho, m->rho + i, len);
	for (size_t j = 0; j <= last; j++) {
		k3i_vecf g;

		load(&v, m->v[j] + i, len);
		g = m->share[j] * dx + m->scale[j] * (gamma * rho) - m->shrink[j] * v;
		e += m->scale[j] * v;
		if (j == last) {
			for (size_t k = 0; k < m->n_addends; k++) {
				load(&old, m->addend[k] + i, len);
				sum += old;
			}
			g += sum;
		} else if (m->accumulate) {
			load(&old, m->dv[j] + i, len);
			g += old;
		}
		store(m->dv[j] + i, &g, len);
	}
	load(&old, m->dgamma + i, len);
	old += e * rho;
	store(m->dgamma + i, &old, len);
	load(&old, m->drho + i, len);
	old += e * gamma;
	store(m->drho + i, &old, len);
}

static void
mix_bwd(const struct k3_vec_mix *m, size_t n)
{
	EACH(n, mix_bwd_step, m);
}

K3I_INLINE void
taps_fwd_step(size_t i, size_t len, float *y, const float *const *u, const float *c, size_t at,
	      size_t taps, size_t n)
{
	k3i_vecf sum = {0}, x, w;

	for (size_t j = 0; j < taps; j++) {
		load(&x, u[j] + at + i, len);
		load(&w, c + j * n + i, len);
		sum += w * x;
	}
	store(y + at + i, &sum, len);
}

static void
taps_fwd(float *y, const float *const *u, const float *c, size_t ld, size_t rows, size_t taps,
	 size_t n)
{
	for (size_t r = 0; r < rows; r++)
		EACH(n, taps_fwd_step, y, u, c, r * ld, taps, n);
}

K3I_INLINE void
taps_grad_step(size_t i, size_t len, float *dc, const float *const *u, const float *da, size_t at,
	       size_t taps, size_t n)
{
	k3i_vecf d, x, sum;

	load(&d, da + at + i, len);
	for (size_t j = 0; j < taps; j++) {
		load(&x, u[j] + at + i, len);
		load(&sum, dc + j * n + i, len);
		sum += x * d;
		store(dc + j * n + i, &sum, len);
	}
}

static void
taps_grad(float *dc, const float *const *u, const float *da, size_t ld, size_t rows, size_t taps,
	  size_t n)
{
	for (size_t r = 0; r < rows; r++)
		EACH(n, taps_grad_step, dc, u, da, r * ld, taps, n);
}

#endif
