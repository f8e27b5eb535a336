/* SiTU-GLU feed-forward, dense layer and shared experts (model.md 5.1).
 *
 *   g = x W1^T, u = x W3^T, h = situ(g, u), y = h W2^T (+ p_in)
 *   situ(g,u) = b1 tanh(g/b1) sigmoid(g) b2 tanh(u/b2) */
#ifndef K3_OP_GLU_H
#define K3_OP_GLU_H
#include "op.h"

/* glu_fwd:
 *    0 W    y [t,d]
 *    1 W    gu [t,2f] (g columns, then u columns)
 *    2 R    x [t,d]
 *    3 W    work h [t,f]
 *   p_in: 0..1 x R [t,d]
 *   w1 (f,d), w3 (f,d), w2 (d,f)
 * glu_bwd_dx:
 *    0 W    dx [t,d]
 *    1 W    dgu [t,2f]
 *    2 R    dy [t,d]
 *    3 R    gu
 *    4 W    work [t,f]
 *   w1, w3, w2
 * glu_bwd_dw:
 *    0 R    dgu
 *    1 R    dy
 *    2 R    gu
 *    3 R    x
 *    4 W    work [t,f]
 *   w1, w3, w2 = their gradients W/RW */
struct k3_glu_args {
	uint32_t n_buf;
	size_t t, d, f;
	float beta1, beta2;
	struct k3_list p_in; /* glu_fwd only */
	struct k3_weight w1, w3, w2;
};
/* glu_gu, what a recomputed layer needs again:
 *    0 W    gu [t,2f]
 *    1 R    x [t,d]
 *   w1, w3 */
void k3_glu_gu_cpu_f32(void *const *buf, const struct k3_glu_args *a);
void k3_glu_fwd_cpu_f32(void *const *buf, const struct k3_glu_args *a);
void k3_glu_bwd_dx_cpu_f32(void *const *buf, const struct k3_glu_args *a);
void k3_glu_bwd_dw_cpu_f32(void *const *buf, const struct k3_glu_args *a);
#endif
