/* RMSNorm of one row (model.md 2.1): y = w * x * r, r = 1 / sqrt(mean(x^2) + eps).  Sums in double.
 */
#ifndef K3_NORM_RMS_H
#define K3_NORM_RMS_H
#include <math.h>

#include "../vec/vec.h"

/** r of a row. */
static inline float
k3_rms_factor(const float *x, size_t d, float eps)
{
	return (float)(1.0 / sqrt(k3_vec()->square(x, d) / (double)d + (double)eps));
}

/** y may be x. */
static inline void
k3_rms_fwd_row(float *y, const float *x, const float *w, float r, size_t d)
{
	k3_vec()->rms_fwd(y, x, w, r, d);
}

/** t rows of d; y may be x. */
static inline void
k3_rms_fwd_rows(float *y, const float *x, const float *w, size_t t, size_t d, float eps)
{
	for (size_t i = 0; i < t; i++)
		k3_rms_fwd_row(y + i * d, x + i * d, w, k3_rms_factor(x + i * d, d, eps), d);
}

/**
 * dx of a row, and dw += dy * x * r.  With n = x r, dn = dy w: dx = r (dn - n mean(dn n)).
 * dx may be dy or x.
 */
static inline void
k3_rms_bwd_row(float *dx, float *dw, const float *dy, const float *x, const float *w, float r,
	       size_t d)
{
	const struct k3_vec *vec = k3_vec();
	double dot = vec->dot_weighted(dy, w, x, d) * (double)r;

	vec->rms_bwd(dx, dw, dy, x, w, r, (float)(dot / (double)d), d);
}

#endif
