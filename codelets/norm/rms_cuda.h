/* RMSNorm of rows on CUDA, and sums over rows in two stages of fixed order.
 *
 * `type` is that of x, y and their gradients; weights, factors and gradients of weights are float.
 * stat holds `step` floats per row, of which the last is the row's factor r = 1 / sqrt(mean x^2 + eps);
 * with a step of 4 the others are those of a mix of one value (attnres.h): 1, 0, 0.  n = 0 is legal. */
#ifndef K3_NORM_RMS_CUDA_H
#define K3_NORM_RMS_CUDA_H
#include "../cuda/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

/** y = w x r; r is saved. */
void k3_cuda_rms_fwd(const struct k3_cuda *cuda, enum k3_cuda_type type, void *y, float *stat,
		     size_t step, const void *x, const float *w, size_t n, size_t d, float eps);
/** y again, from the saved factors. */
void k3_cuda_rms_again(const struct k3_cuda *cuda, enum k3_cuda_type type, void *y,
		       const float *stat, size_t step, const void *x, const float *w, size_t n,
		       size_t d);

struct k3_cuda_rms_bwd {
	void *dx; /* gradient of x plus the addends */
	const void *dy, *x;
	const float *w, *stat;
	size_t step;
	const void *addend[2]; /* or NULL; may be dx */
	float *dw;
	int accumulate; /* dw += */
	size_t n, d;
};
/** Uses scratch. */
void k3_cuda_rms_bwd(const struct k3_cuda *cuda, enum k3_cuda_type type,
		     const struct k3_cuda_rms_bwd *b);
size_t k3_cuda_rms_bwd_scratch(size_t n, size_t d);

/** Thread blocks that share n rows of width d, each with its own partial sum over rows; the same on
 * every device, so that the order of a sum depends on sizes alone. */
size_t k3_cuda_row_parts(size_t n, size_t d);

/* to = (accumulate ? to : 0) + factor * sum of parts; parts are `pitch` floats apart.  The kernel
 * that makes them may call let_successor_start (cuda/device.cuh). */
struct k3_cuda_column_sum {
	float *to;
	const float *factor; /* NULL: 1 */
	const float *part;
	int accumulate;
};
enum { K3_CUDA_COLUMN_SUMS = 3 };
void k3_cuda_column_sums(const struct k3_cuda *cuda, const struct k3_cuda_column_sum *sums,
			 size_t n_sums, size_t parts, size_t pitch, size_t d);

#ifdef __cplusplus
}
#endif
#endif
