/* Attention-residual mix followed by RMSNorm (model.md 2.1, 2.2), one pass over the values.
 *
 *   v_j = B_j (j < n), v_n = p;  r_j = rsqrt(mean_d v_j^2 + eps);  s_j = r_j <v_j, gamma*rho>
 *   a = softmax_j(s);  x = sum_j a_j v_j;  y = w * x * rsqrt(mean_d x^2 + eps)
 *
 * Without values (blocks.n = 0) x = p, and gamma, rho are absent: plain RMSNorm (the attention
 * norm of layer 0).  Statistics and softmax in fp32 or wider. */
#ifndef K3_OP_ATTNRES_H
#define K3_OP_ATTNRES_H
#include "op.h"

/** Floats per token of the saved statistics: a, r, s of each of n+1 values, then the factor of the
 * norm. */
static inline size_t
k3_mix_stat_len(size_t n_blocks)
{
	return 3 * (n_blocks + 1) + 1;
}

/* mix_norm_fwd:
 *    0 W    y [t,d]
 *    1 W    stat (f32) [t, stat_len] (a[n+1], r[n+1], s[n+1], r_x)
 *    2 R    p [t,d]
 *   blocks: n x R [t,d], oldest first
 *   gamma, rho (1,d) when blocks.n > 0
 *   w (1,d) */
struct k3_mix_norm_fwd_args {
	uint32_t n_buf;
	size_t t, d;
	float eps;
	struct k3_list blocks;
	struct k3_weight gamma, rho, w;
};
void k3_mix_norm_fwd_cpu_f32(void *const *buf, const struct k3_mix_norm_fwd_args *a);

/* mix_norm_bwd:
 *    0 W    dp [t,d] = gradient of p through the mix plus the sum of the addends
 *    1 R    dy [t,d]
 *    2 R    stat (f32)
 *    3 R    p
 *   addends: 0..2 x R [t,d]
 *   blocks: n x R
 *   dblocks: n x W/RW [t,d] (blocks_accumulate)
 *   dgamma, drho (1,d) W/RW when blocks.n > 0
 *   dw (1,d) W/RW
 *   gamma, rho, w as above */
struct k3_mix_norm_bwd_args {
	uint32_t n_buf;
	size_t t, d;
	float eps;
	uint32_t blocks_accumulate;
	struct k3_list addends, blocks, dblocks;
	struct k3_weight dgamma, drho, dw, gamma, rho, w;
};
void k3_mix_norm_bwd_cpu_f32(void *const *buf, const struct k3_mix_norm_bwd_args *a);
#endif
