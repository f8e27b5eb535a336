/* RMSNorm of all rows of a tile, as the blocks of the tower need it (../norm/rms.h has the row).
 * The factors are saved; the normed rows are made again where a product needs them, which costs
 * less than keeping them. */
#ifndef K3_VIT_NORM_ROWS_H
#define K3_VIT_NORM_ROWS_H
#include <string.h>

#include "../norm/rms.h"

/** y [n,d] with the saved factors rstd [n]. */
static inline void
norm_rows_again(float *y, const float *x, const float *w, const float *rstd, size_t n, size_t d)
{
	for (size_t i = 0; i < n; i++)
		k3_rms_fwd_row(y + i * d, x + i * d, w, rstd[i], d);
}

static inline void
norm_rows(float *y, float *rstd, const float *x, const float *w, size_t n, size_t d, float eps)
{
	for (size_t i = 0; i < n; i++) {
		rstd[i] = k3_rms_factor(x + i * d, d, eps);
		k3_rms_fwd_row(y + i * d, x + i * d, w, rstd[i], d);
	}
}

/** dx = dy + gradient of the norm's input from dn, that of its output; dw (+)= its weight's. */
static inline void
norm_rows_back(float *dx, float *dw, int accumulate, const float *dy, const float *dn,
	       const float *x, const float *w, const float *rstd, size_t n, size_t d)
{
	const struct k3_vec *vec = k3_vec();

	if (!accumulate)
		memset(dw, 0, d * sizeof(*dw));
	for (size_t i = 0; i < n * d; i += d) {
		k3_rms_bwd_row(dx + i, dw, dn + i, x + i, w, rstd[i / d], d);
		vec->add(dx + i, dx + i, dy + i, d);
	}
}

#endif
