/* Bodies of the activations of vec.h. */
#ifndef K3_VEC_ACT_H
#define K3_VEC_ACT_H
#include "vec_lanes.h"
#include "vec.h"

K3I_INLINE void
sigmoid_step(size_t i, size_t len, float *z, const float *x)
{
	struct sigmoid_parts s;
	k3i_vecf v;

	load(&v, x + i, len);
	sigmoid_of(&s, &v);
	v = s.num / s.den;
	store(z + i, &v, len);
}

static void
sigmoid(float *z, const float *x, size_t n)
{
	EACH(n, sigmoid_step, z, x);
}

K3I_INLINE void
situ_fwd_step(size_t i, size_t len, float *h, const float *g, const float *u, float weight,
	      float b1, float b2)
{
	struct tanh_parts t1, t2;
	struct sigmoid_parts s;
	k3i_vecf vg, vu, x1, x2, size;

	load(&vg, g + i, len);
	load(&vu, u + i, len);
	x1 = vg * (1.0f / b1);
	x2 = vu * (1.0f / b2);
	tanh_of(&t1, &x1);
	tanh_of(&t2, &x2);
	sigmoid_of(&s, &vg);
	size = (weight * b1 * b2) * (t1.num * t2.num * s.num) / (t1.den * t2.den * s.den);
	size = SIGNED(size, (k3i_veci)vg ^ (k3i_veci)vu);
	store(h + i, &size, len);
}

static void
situ_fwd(float *h, const float *g, const float *u, float weight, float b1, float b2, size_t n)
{
	EACH(n, situ_fwd_step, h, g, u, weight, b1, b2);
}

K3I_INLINE void
situ_bwd_step(size_t i, size_t len, size_t part, struct wide *dot, float *dg, float *du,
	      const float *dy, const float *g, const float *u, float weight, float b1, float b2)
{
	struct tanh_parts t1, t2;
	struct sigmoid_parts s;
	k3i_vecf vg, vu, vy, x1, x2, all, i1, i2, is, y1, y2, z, h, dh, out;

	load(&vg, g + i, len);
	load(&vu, u + i, len);
	load(&vy, dy + i, len);
	x1 = vg * (1.0f / b1);
	x2 = vu * (1.0f / b2);
	tanh_of(&t1, &x1);
	tanh_of(&t2, &x2);
	sigmoid_of(&s, &vg);
	all = 1.0f / (t1.den * t2.den * s.den);
	i1 = t2.den * s.den * all;
	i2 = t1.den * s.den * all;
	is = t1.den * t2.den * all;
	y1 = b1 * SIGNED(t1.num * i1, vg);
	y2 = b2 * SIGNED(t2.num * i2, vu);
	z = s.num * is;
	h = y1 * z * y2;
	add_product(dot, part, &vy, &h);
	dh = weight * vy * z;
	out = dh * y2 * (t1.slope * i1 * i1 + y1 * (s.rest * is));
	store(dg + i, &out, len);
	out = dh * y1 * (t2.slope * i2 * i2);
	store(du + i, &out, len);
}

static double
situ_bwd(float *dg, float *du, const float *dy, const float *g, const float *u, float weight,
	 float b1, float b2, size_t n)
{
	struct wide dot = {0};

	EACH_BLOCK(n, situ_bwd_step, &dot, dg, du, dy, g, u, weight, b1, b2);
	return total(&dot);
}

K3I_INLINE void
gate_fwd_step(size_t i, size_t len, float *y, const float *x, const float *z)
{
	struct sigmoid_parts s;
	k3i_vecf vx, vz;

	load(&vx, x + i, len);
	load(&vz, z + i, len);
	sigmoid_of(&s, &vz);
	vx = vx * s.num / s.den;
	store(y + i, &vx, len);
}

static void
gate_fwd(float *y, const float *x, const float *z, size_t n)
{
	EACH(n, gate_fwd_step, y, x, z);
}

K3I_INLINE void
gate_bwd_step(size_t i, size_t len, size_t part, struct wide *dot, float *dx, float *dz,
	      const float *dy, const float *x, const float *z)
{
	struct sigmoid_parts s;
	k3i_vecf vx, vy, vz, inv;

	load(&vx, x + i, len);
	load(&vy, dy + i, len);
	load(&vz, z + i, len);
	sigmoid_of(&s, &vz);
	inv = 1.0f / s.den;
	vy = vy * (s.num * inv);
	add_product(dot, part, &vy, &vx);
	vz = vy * vx * (s.rest * inv);
	store(dx + i, &vy, len);
	store(dz + i, &vz, len);
}

static double
gate_bwd(float *dx, float *dz, const float *dy, const float *x, const float *z, size_t n)
{
	struct wide dot = {0};

	EACH_BLOCK(n, gate_bwd_step, &dot, dx, dz, dy, x, z);
	return total(&dot);
}

K3I_INLINE void
norm_gate_fwd_step(size_t i, size_t len, float *y, const float *x, const float *w, const float *z,
		   float r)
{
	struct sigmoid_parts s;
	k3i_vecf vx, vw, vz;

	load(&vx, x + i, len);
	load(&vw, w + i, len);
	load(&vz, z + i, len);
	sigmoid_of(&s, &vz);
	vx = vx * r * vw * s.num / s.den;
	store(y + i, &vx, len);
}

static void
norm_gate_fwd(float *y, const float *x, const float *w, const float *z, float r, size_t n)
{
	EACH(n, norm_gate_fwd_step, y, x, w, z, r);
}

/* dx holds dm for now. */
K3I_INLINE void
norm_gate_bwd_step(size_t i, size_t len, size_t part, struct wide *dot, float *dx, float *dz,
		   float *dw, const float *dy, const float *x, const float *w, const float *z,
		   float r)
{
	struct sigmoid_parts s;
	k3i_vecf vx, vy, vw, vz, sum, inv, dm;

	load(&vx, x + i, len);
	load(&vy, dy + i, len);
	load(&vw, w + i, len);
	load(&vz, z + i, len);
	load(&sum, dw + i, len);
	sigmoid_of(&s, &vz);
	inv = 1.0f / s.den;
	vy = vy * (s.num * inv);
	dm = vy * vw;
	add_product(dot, part, &dm, &vx);
	vx = vx * r;
	sum += vy * vx;
	vz = dm * vx * (s.rest * inv);
	store(dx + i, &dm, len);
	store(dz + i, &vz, len);
	store(dw + i, &sum, len);
}

K3I_INLINE void
norm_bwd_step(size_t i, size_t len, float *dx, const float *x, float r, float mean)
{
	k3i_vecf vx, dm;

	load(&vx, x + i, len);
	load(&dm, dx + i, len);
	dm = r * (dm - vx * r * mean);
	store(dx + i, &dm, len);
}

static void
norm_gate_bwd(float *dx, float *dz, float *dw, const float *dy, const float *x, const float *w,
	      const float *z, float r, size_t n)
{
	struct wide dot = {0};

	EACH_BLOCK(n, norm_gate_bwd_step, &dot, dx, dz, dw, dy, x, w, z, r);
	float mean = (float)(total(&dot) * (double)r / (double)n);
	EACH(n, norm_bwd_step, dx, x, r, mean);
}

static void
silu(float *y, const float *x, size_t n)
{
	EACH(n, gate_fwd_step, y, x, x);
}

K3I_INLINE void
silu_bwd_step(size_t i, size_t len, float *a, const float *dy, const float *y, float f, float dot)
{
	struct sigmoid_parts s;
	k3i_vecf va, vdy, vy, inv, z;

	load(&va, a + i, len);
	load(&vdy, dy + i, len);
	load(&vy, y + i, len);
	sigmoid_of(&s, &va);
	inv = 1.0f / s.den;
	z = s.num * inv;
	va = f * (vdy - dot * vy) * (z + va * z * (s.rest * inv));
	store(a + i, &va, len);
}

static void
silu_bwd(float *a, const float *dy, const float *y, float f, float dot, size_t n)
{
	EACH(n, silu_bwd_step, a, dy, y, f, dot);
}

#endif
