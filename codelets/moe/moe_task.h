/* Products of the layer around the experts, on the tensor cores with what is done to their rows:
 *
 *   product  rows x      weights y    out
 *   SPREAD   x [t,d]     wdown [r,d]  zs [tk,r]: each row goes to the k places in src
 *   JOIN     n [t,r]     wup [d,r]    p_out [t,d] = product + p_in + shared
 *   ROUTED   dz [t,r]    wdown [r,d]  dx [t,d] += product + sum over slots of dl Wr
 *
 * The trap: these take a weight in one block of rows; with more blocks products go to cuBLAS.
 */
#ifndef K3_MOE_MOE_TASK_H
#define K3_MOE_MOE_TASK_H
#include "expert_task.h"

/* [rows, depth] times [width, depth] transposed, or of ROUTED times [depth, width]. */
struct moe_product {
	enum expert_product product;
	size_t rows, width, depth;
	const void *x, *y;
	void *out;
	const int32_t *to;  /* SPREAD: [rows, k] */
	const void *add[2]; /* JOIN: both [rows, width]; ROUTED: Wr [n_experts, width] */
	const float *dl;    /* ROUTED: [rows, n_experts] */
	const int32_t *ids; /* ROUTED: [rows, k] */
	size_t k, n_experts;
};

/** False when the device or an operand's shape or place is not for it: nothing was done. */
bool k3i_moe_wgmma(const struct moe_product *p, const struct k3_cuda *cuda);

#endif
