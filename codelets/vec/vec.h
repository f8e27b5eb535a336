/* Elementwise loops and sums over rows of floats, for any length and alignment.
 *
 * An element's value depends on its inputs alone, never on its place in the row or on the
 * alignment. Sums run in double over sixteen lanes that are added in one fixed tree, so that they
 * depend on the length alone.  The compilations with fused multiply-add (AVX2, AVX-512) give the
 * same bits; the one without differs from them in rounding.  Products, quotients and sums are
 * single precision where no double is named.  exp is good to 2 ulp, sigmoid to 3, tanh to 4; NaN
 * stays NaN, and no finite argument gives one.
 *
 * An output may be one of the inputs of the same call unless a line says otherwise.
 */
#ifndef K3_VEC_VEC_H
#define K3_VEC_VEC_H
#include <stddef.h>
#include <stdint.h>

#include "../linalg/lanes.h"

/** One row of the gradient of a weighted sum x = sum_j share_j v_j whose scores saw v too:
 *  dv_j = share_j dx + scale_j gamma rho - shrink_j v_j, added to dv_j (accumulate) or in its
 * place; the last one is added to the addends instead.  e = sum_j scale_j v_j; dgamma += e rho,
 * drho += e gamma.  dx may be the last dv. */
struct k3_vec_mix {
	const float *const *v;
	float *const *dv;
	size_t n_values, n_addends;
	const float *share, *scale, *shrink;
	const float *const *addend;
	const float *dx, *gamma, *rho;
	float *dgamma, *drho;
	int accumulate;
};

struct k3_vec {
	/** sum x y */
	double (*dot)(const float *x, const float *y, size_t n);
	/** sum x x */
	double (*square)(const float *x, size_t n);
	/** sum (x w) y, the product of x and w rounded to float. */
	double (*dot_weighted)(const float *x, const float *w, const float *y, size_t n);
	/** sum v v; *score = sum (gamma rho) v, the product of gamma and rho rounded to float. */
	double (*square_score)(double *score, const float *v, const float *gamma, const float *rho,
			       size_t n);
	/** The largest element, -inf of none; NaN is passed over. */
	float (*largest)(const float *x, size_t n);
	/** y = exp(x - most), x <= most; returns sum y.  y may be NULL. */
	double (*exp_sum)(float *y, const float *x, float most, size_t n);
	/** y = w x */
	void (*scale)(float *y, float w, const float *x, size_t n);
	/** y += w x */
	void (*axpy)(float *y, float w, const float *x, size_t n);
	/** z = x + y */
	void (*add)(float *z, const float *x, const float *y, size_t n);
	/** y = sum_j w_j v_j in ascending j, n_values >= 1; y is none of the v. */
	void (*weighted_sum)(float *y, const float *const *v, const float *w, size_t n_values,
			     size_t n);
	/** y = x r w */
	void (*rms_fwd)(float *y, const float *x, const float *w, float r, size_t n);
	/** dx = r (dy w - x r mean), dw += dy x r; dw overlaps nothing. */
	void (*rms_bwd)(float *dx, float *dw, const float *dy, const float *x, const float *w,
			float r, float mean, size_t n);
	void (*mix_bwd)(const struct k3_vec_mix *m, size_t n);
	/** z = sigmoid(x) */
	void (*sigmoid)(float *z, const float *x, size_t n);
	/** h = weight situ(g, u), situ = b1 tanh(g/b1) sigmoid(g) b2 tanh(u/b2) */
	void (*situ_fwd)(float *h, const float *g, const float *u, float weight, float b1, float b2,
			 size_t n);
	/** dg, du from dh = weight dy; returns sum dy situ(g, u). */
	double (*situ_bwd)(float *dg, float *du, const float *dy, const float *g, const float *u,
			   float weight, float b1, float b2, size_t n);
	/** y = x sigmoid(z) */
	void (*gate_fwd)(float *y, const float *x, const float *z, size_t n);
	/** dx = dy sigmoid(z), dz = dy x sigmoid'(z); returns sum dx x. */
	double (*gate_bwd)(float *dx, float *dz, const float *dy, const float *x, const float *z,
			   size_t n);
	/** y = x r w sigmoid(z) */
	void (*norm_gate_fwd)(float *y, const float *x, const float *w, const float *z, float r,
			      size_t n);
	/** The same backward, with m = x r: dm = dy sigmoid(z) w, dx = r (dm - m mean(dm m)), dz =
	 * dy m w sigmoid'(z), dw += dy sigmoid(z) m; dx is none of the inputs, dw overlaps nothing.
	 */
	void (*norm_gate_bwd)(float *dx, float *dz, float *dw, const float *dy, const float *x,
			      const float *w, const float *z, float r, size_t n);
	/** y = x sigmoid(x) */
	void (*silu)(float *y, const float *x, size_t n);
	/** a = f (dy - dot y) silu'(a) */
	void (*silu_bwd)(float *a, const float *dy, const float *y, float f, float dot, size_t n);
	/** y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
	void (*gelu_tanh)(float *y, const float *x, size_t n);
	/** dx = dy gelu_tanh'(x) */
	void (*gelu_tanh_bwd)(float *dx, const float *dy, const float *x, size_t n);
	/** y = x Phi(x), Phi that of the normal distribution (erf): the exact GELU, good to
	 * 4 + x^2 units in the last place. */
	void (*gelu_erf)(float *y, const float *x, size_t n);
	/** dx = dy (Phi(x) + x phi(x)) */
	void (*gelu_erf_bwd)(float *dx, const float *dy, const float *x, size_t n);
	/** y = x, exactly. */
	void (*from_bf16)(float *y, const uint16_t *x, size_t n);
	/** y = x rounded to nearest, ties to even; NaN stays NaN.  y is not x. */
	void (*to_bf16)(uint16_t *y, const float *x, size_t n);
	/** Turns the pairs of each row of n elements (even) by the same angles: y[i] = x[i] c[i] +
	 * x[i^1] s[i]; rows follow each other. */
	void (*rotate)(float *y, const float *x, const float *c, const float *s, size_t rows,
		       size_t n);
	/** y[r] = sum_j c[j] u_j[r] in ascending j on n columns of each row; rows of y and u are ld
	 * floats apart, those of c n floats.  y may be a u_j: each of its rows is written once it
	 * was read. */
	void (*taps_fwd)(float *y, const float *const *u, const float *c, size_t ld, size_t rows,
			 size_t taps, size_t n);
	/** dc[j] += sum_r u_j[r] da[r] in ascending r. */
	void (*taps_grad)(float *dc, const float *const *u, const float *da, size_t ld, size_t rows,
			  size_t taps, size_t n);
};

extern const struct k3_vec k3_vec_base, k3_vec_avx2, k3_vec_avx512;

/** The widest implementation that this processor runs. */
const struct k3_vec *k3_vec(void);

#endif
