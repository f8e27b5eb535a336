/* Products with row-blocked weights: one sgemm per block.  The trap: BLAS with beta = 0 must not
 * read y, which may hold NaN; OpenBLAS honours that.  A product over no tokens still has to write
 * zeros. */
#include "linear.h"

#include <cblas.h>
#include <string.h>

typedef blasint bint;

/* Rows of block b that lie in r0 .. r1-1: first row in the matrix, first row in the block, number.
 */
static size_t
block_rows(const struct k3_weight *w, size_t b, size_t r0, size_t r1, size_t *first,
	   size_t *in_block)
{
	size_t lo = b * w->block_rows,
	       hi = lo + w->block_rows < w->rows ? lo + w->block_rows : w->rows;
	size_t from = lo > r0 ? lo : r0, to = hi < r1 ? hi : r1;

	*first = from;
	*in_block = from - lo;
	return to > from ? to - from : 0;
}

void
k3_linear_fwd(float *y, size_t ldy, float beta, const float *x, size_t ldx, void *const *buf,
	      const struct k3_weight *w, size_t r0, size_t r1, size_t t)
{
	if (t == 0)
		return;
	for (size_t b = 0; b < w->n; b++) {
		size_t first, in, n = block_rows(w, b, r0, r1, &first, &in);
		if (n == 0)
			continue;
		const float *block = buf[w->first + b];
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (bint)t, (bint)n,
			    (bint)w->cols, 1.0f, x, (bint)ldx, block + in * w->cols, (bint)w->cols,
			    beta, y + (first - r0), (bint)ldy);
	}
}

void
k3_linear_dx(float *dx, size_t lddx, float beta, const float *dy, size_t lddy, void *const *buf,
	     const struct k3_weight *w, size_t r0, size_t r1, size_t t)
{
	if (t == 0)
		return;
	for (size_t b = 0; b < w->n; b++) {
		size_t first, in, n = block_rows(w, b, r0, r1, &first, &in);
		if (n == 0)
			continue;
		const float *block = buf[w->first + b];
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (bint)t, (bint)w->cols,
			    (bint)n, 1.0f, dy + (first - r0), (bint)lddy, block + in * w->cols,
			    (bint)w->cols, beta, dx, (bint)lddx);
		beta = 1.0f;
	}
}

void
k3_linear_dw(void *const *buf, const struct k3_weight *dw, size_t r0, size_t r1, const float *dy,
	     size_t lddy, const float *x, size_t ldx, size_t t)
{
	for (size_t b = 0; b < dw->n; b++) {
		size_t first, in, n = block_rows(dw, b, r0, r1, &first, &in);
		if (n == 0)
			continue;
		float *block = (float *)buf[dw->first + b] + in * dw->cols;
		if (t == 0) {
			if (!dw->accumulate)
				memset(block, 0, n * dw->cols * sizeof(float));
			continue;
		}
		cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (bint)n, (bint)dw->cols,
			    (bint)t, 1.0f, dy + (first - r0), (bint)lddy, x, (bint)ldx,
			    dw->accumulate ? 1.0f : 0.0f, block, (bint)dw->cols);
	}
}
