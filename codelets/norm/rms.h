/* RMSNorm of one row (model.md 2.1): y = w * x * r, r = 1 / sqrt(mean(x^2) + eps).  Sums in double.
 */
#ifndef K3_NORM_RMS_H
#define K3_NORM_RMS_H
#include <math.h>
#include <stddef.h>

/** r of a row. */
static inline float
k3_rms_factor(const float *x, size_t d, float eps)
{
	double sum = 0;

	for (size_t i = 0; i < d; i++)
		sum += (double)x[i] * (double)x[i];
	return (float)(1.0 / sqrt(sum / (double)d + (double)eps));
}

/** y may be x. */
static inline void
k3_rms_fwd_row(float *y, const float *x, const float *w, float r, size_t d)
{
	for (size_t i = 0; i < d; i++)
		y[i] = x[i] * r * w[i];
}

/**
 * dx (= or += with add) of a row, and dw += dy * x * r.  With n = x r, dn = dy w: dx = r (dn - n
 * mean(dn n)). dx may be dy when add is 0.
 */
static inline void
k3_rms_bwd_row(float *dx, float *dw, const float *dy, const float *x, const float *w, float r,
	       size_t d, int add)
{
	double dot = 0;

	for (size_t i = 0; i < d; i++)
		dot += (double)(dy[i] * w[i]) * (double)(x[i] * r);
	float mean = (float)(dot / (double)d);
	for (size_t i = 0; i < d; i++) {
		float n = x[i] * r, g = r * (dy[i] * w[i] - n * mean);
		dw[i] += dy[i] * n;
		dx[i] = add ? dx[i] + g : g;
	}
}

#endif
