/* Products by cuBLASLt: row-major matrices, float accumulation, no TF32 (CUDA only).
 *
 * The counterpart of linalg/linear.h: a weight is a matrix [rows, cols] in row blocks, rows r0 ..
 * r1-1 take part.  `type` is that of the operands and of activations that result; gradients of
 * weights are float.  beta is 0 (the old content is not read) or 1.  t = 0 is legal: it writes
 * nothing, but gradients that are to be written become zero.
 */
#ifndef K3_CUDA_GEMM_H
#define K3_CUDA_GEMM_H

#ifdef __cplusplus
extern "C" {
#endif
#include "../../common/op/op.h"
#include "cuda.h"

enum k3_cuda_type { K3_CUDA_F32, K3_CUDA_BF16 };

/** y [t, r1-r0] = beta y + x W[r0:r1]^T. */
void k3_cuda_linear_fwd(const struct k3_cuda *cuda, enum k3_cuda_type type, void *y, size_t ldy,
			float beta, const void *x, size_t ldx, void *const *buf,
			const struct k3_weight *w, size_t r0, size_t r1, size_t t);
/** y [t, r1-r0] = from + x W[r0:r1]^T, rows of `from` as far apart as those of y; NULL: zero. */
void k3_cuda_linear_onto(const struct k3_cuda *cuda, enum k3_cuda_type type, void *y, size_t ldy,
			 const void *from, const void *x, size_t ldx, void *const *buf,
			 const struct k3_weight *w, size_t r0, size_t r1, size_t t);
/** dx [t, cols] = beta dx + dy W[r0:r1]. */
void k3_cuda_linear_dx(const struct k3_cuda *cuda, enum k3_cuda_type type, void *dx, size_t lddx,
		       float beta, const void *dy, size_t lddy, void *const *buf,
		       const struct k3_weight *w, size_t r0, size_t r1, size_t t);
/** Rows r0 .. r1-1 of a float gradient: dw = (w->accumulate ? dw : 0) + dy^T x. */
void k3_cuda_linear_dw(const struct k3_cuda *cuda, enum k3_cuda_type type, void *const *buf,
		       const struct k3_weight *dw, size_t r0, size_t r1, const void *dy,
		       size_t lddy, const void *x, size_t ldx, size_t t);

/* One product.  c [m, n] = beta from + alpha op(a) op(b); op(a) is [m, k]: a is [m, k] or,
 * transposed, [k, m]; op(b) is [k, n]: b is [k, n] or, transposed, [n, k]. */
struct k3_cuda_product {
	size_t m, n, k;
	const void *a, *b;
	void *c;
	const void *from;     /* NULL: c */
	size_t lda, ldb, ldc; /* elements from row to row */
	int trans_a, trans_b;
	float alpha, beta;
	enum k3_cuda_type type, type_c; /* of a and b; of c */
	/* several of the same shape; 0 is 1: elements from one matrix to the next */
	size_t batch;
	size_t stride_a, stride_b, stride_c;
};
void k3_cuda_gemm(const struct k3_cuda *cuda, const struct k3_cuda_product *p);

#ifdef __cplusplus
}
#endif
#endif
