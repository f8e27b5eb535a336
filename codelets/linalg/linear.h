/* Products with a weight that is cut in row blocks (BLAS calls, no StarPU).
 *
 * w describes a matrix [rows, cols]; its blocks are buf[w->first] ...  Rows r0 .. r1-1 of it take
 * part. x [t, cols] has leading dimension ldx, y [t, r1-r0] has ldy.  t = 0 is legal. y (dx, dw) =
 * beta * y + ...; beta 0 overwrites without reading.
 */
#ifndef K3_LINALG_LINEAR_H
#define K3_LINALG_LINEAR_H
#include <string.h>

#include "../../common/op/op.h"

/** y = beta y + x W[r0:r1]^T.  Cost: 2 t (r1-r0) cols flop. */
void k3_linear_fwd(float *y, size_t ldy, float beta, const float *x, size_t ldx, void *const *buf,
		   const struct k3_weight *w, size_t r0, size_t r1, size_t t);

/** dx [t, cols] = beta dx + dy W[r0:r1]. */
void k3_linear_dx(float *dx, size_t lddx, float beta, const float *dy, size_t lddy,
		  void *const *buf, const struct k3_weight *w, size_t r0, size_t r1, size_t t);

/**
 * Gradient rows r0 .. r1-1: dw = (w->accumulate ? dw : 0) + dy^T x.
 * With r0 > 0 or r1 < rows only these rows are touched; the caller covers all rows before anything
 * reads them.
 */
void k3_linear_dw(void *const *buf, const struct k3_weight *dw, size_t r0, size_t r1,
		  const float *dy, size_t lddy, const float *x, size_t ldx, size_t t);

/** Row `row` of the matrix. */
static inline float *
k3_weight_row(void *const *buf, const struct k3_weight *w, size_t row)
{
	return (float *)buf[w->first + row / w->block_rows] + row % w->block_rows * w->cols;
}

/** Zeros everywhere, block by block: large ones are cleared around the caches. */
static inline void
k3_weight_clear(void *const *buf, const struct k3_weight *w)
{
	for (size_t b = 0; b < w->n; b++) {
		size_t first = b * w->block_rows,
		       rows = first + w->block_rows < w->rows ? w->block_rows : w->rows - first;
		memset(buf[w->first + b], 0, rows * w->cols * sizeof(float));
	}
}

/** The single block of a vector or small weight; NULL when it is cut. */
static inline float *
k3_weight_ptr(void *const *buf, const struct k3_weight *w)
{
	return w->n == 1 ? (float *)buf[w->first] : NULL;
}

#endif
