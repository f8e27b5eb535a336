/* Latent mixture of experts (model.md section 5). k experts active per token, tk = t*k routed rows
 * of a tile.
 *
 * route (int32, one datum per tile):
 *   offs [E+1]  first sorted row of each expert; offs[E] = t*k
 *   ids  [t,k]  experts of a token, higher biased score first, lower id on ties
 *   row  [t,k]  sorted row of (token, slot)
 *   src  [t*k]  sorted row -> token*k + slot; stable: within an expert in ascending (token, slot)
 * routew (f32):
 *   w    [t,k]  weights
 *   s    [t,E]  scores sigmoid(x Wr^T)
 *   cut  [t]    (k+1)-th biased score (-inf when k = E) */
#ifndef K3_OP_MOE_H
#define K3_OP_MOE_H
#include "op.h"

static inline size_t
k3_route_len(size_t t, size_t n_experts, size_t k)
{
	return n_experts + 1 + 3 * t * k;
}
static inline const int32_t *
k3_route_offs(const int32_t *route)
{
	return route;
}
static inline const int32_t *
k3_route_ids(const int32_t *route, size_t n_experts)
{
	return route + n_experts + 1;
}
static inline const int32_t *
k3_route_row(const int32_t *route, size_t n_experts, size_t t, size_t k)
{
	return route + n_experts + 1 + t * k;
}
static inline const int32_t *
k3_route_src(const int32_t *route, size_t n_experts, size_t t, size_t k)
{
	return route + n_experts + 1 + 2 * t * k;
}
static inline size_t
k3_routew_len(size_t t, size_t n_experts, size_t k)
{
	return t * k + t * n_experts + t;
}
static inline const float *
k3_routew_scores(const float *routew, size_t t, size_t k)
{
	return routew + t * k;
}
static inline const float *
k3_routew_cut(const float *routew, size_t n_experts, size_t t, size_t k)
{
	return routew + t * k + t * n_experts;
}

/* moe_route_fwd:
 *    0 W    route
 *    1 W    routew (f32)
 *    2 R    x [t,d]
 *   forced: 0..1 x R i32 [t,k] (ids to take instead of the top k; any order)
 *   wr (E,d), bias (1,E)
 *   w_j = s_j / (sum_j s_j + sum_eps) * scale; the bias never enters the weights. */
struct k3_moe_route_args {
	uint32_t n_buf;
	size_t t, d, n_experts, k;
	float sum_eps, scale;
	struct k3_list forced;
	struct k3_weight wr, bias;
};
void k3_moe_route_fwd_cpu_f32(void *const *buf, const struct k3_moe_route_args *a);

/* moe_count:
 *    0 W/RW balance i32 [E + E*bins] (accumulate): tokens per expert, then the histogram of
 *             model.md 5.4 B (bins = 0: none)
 *    1 R    route
 *    2 R    routew (f32)
 *    3 R    layout
 *   bias (1,E)
 *   Rows without a document do not count.
 *   The bin position is evaluated in double. */
struct k3_moe_count_args {
	uint32_t n_buf;
	size_t t, n_experts, k, bins;
	uint32_t accumulate;
	struct k3_weight bias;
};
void k3_moe_count_cpu(void *const *buf, const struct k3_moe_count_args *a);

/* moe_dispatch_fwd:
 *    0 W    zs [tk,r] (rows of x Wdown^T, sorted by expert)
 *    1 R    x [t,d]
 *    2 R    route
 *    3 W    work [t,r]
 *   wdown (r,d)
 * moe_dispatch_bwd_dx:
 *    0 RW   dx [t,d] (adds)
 *    1 W    dz [t,r] (sum of a token's rows in ascending slot order)
 *    2 W    dl (f32) [t,E] (router logits)
 *    3 R    dzs [tk,r]
 *    4 R    dwt (f32) [tk] (gradient of the weight of each sorted row)
 *    5 R    route
 *    6 R    routew (f32)
 *   wdown, wr (E,d)
 * moe_dispatch_bwd_dw:
 *    0 R    dz
 *    1 R    dl (f32)
 *    2 R    x
 *   wdown, wr = gradients W/RW */
struct k3_moe_dispatch_args {
	uint32_t n_buf;
	size_t t, d, r, n_experts, k;
	float sum_eps, scale;
	struct k3_weight wdown, wr;
};
void k3_moe_dispatch_fwd_cpu_f32(void *const *buf, const struct k3_moe_dispatch_args *a);
void k3_moe_dispatch_bwd_dx_cpu_f32(void *const *buf, const struct k3_moe_dispatch_args *a);
void k3_moe_dispatch_bwd_dw_cpu_f32(void *const *buf, const struct k3_moe_dispatch_args *a);

/* Experts e0 .. e1-1 of a tile: rows offs[e0] .. offs[e1]-1 of the sorted buffers, no other row is
 * touched (a group without rows does nothing, but a gradient that writes gets exact zeros).
 *   w13 ((e1-e0)*2f, r): per expert W1 rows, then W3 rows
 *   w2  ((e1-e0)*r, f):  per expert W2
 * Each is a single block.
 *
 * expert_fwd:
 *    0 W/RW gu [tk,2f]
 *    1 W/RW ys [tk,r]
 *    2 R    zs [tk,r]
 *    3 R    route
 *    4 W    work [tk,f]
 *   w13, w2
 * expert_dgrad:
 *    0 W/RW dgu [tk,2f]
 *    1 W/RW dzs [tk,r]
 *    2 W/RW dwt (f32) [tk]
 *    3 R    dys [tk,r] (gradient of the token's sum, unscaled)
 *    4 R    gu
 *    5 R    route
 *    6 R    routew (f32)
 *    7 W    work [tk,f]
 *   w13, w2
 *   dwt = <h, W2^T dy>; dh = w W2^T dy.
 * expert_wgrad:
 *    0 R    dgu
 *    1 R    dys
 *    2 R    gu
 *    3 R    zs
 *    4 R    route
 *    5 R    routew (f32)
 *    6 W    work [tk,f]
 *   w13, w2 = gradients W/RW */
struct k3_expert_args {
	uint32_t n_buf;
	size_t t, n_experts, k, r, f;
	uint32_t e0, e1;
	float beta1, beta2;
	struct k3_weight w13, w2;
};
/* expert_gu, what a recomputed layer needs again:
 *    0 W/RW gu [tk,2f]
 *    1 R    zs [tk,r]
 *    2 R    route
 *   w13 */
void k3_expert_gu_cpu_f32(void *const *buf, const struct k3_expert_args *a);
void k3_expert_fwd_cpu_f32(void *const *buf, const struct k3_expert_args *a);
void k3_expert_dgrad_cpu_f32(void *const *buf, const struct k3_expert_args *a);
void k3_expert_wgrad_cpu_f32(void *const *buf, const struct k3_expert_args *a);

/* moe_combine_fwd:
 *    0 W    p_out [t,d] = p_in + shared + rmsnorm(y; norm) wup^T
 *    1 W    y [t,r] = sum_j w_tj ys_tj
 *    2 R    ys [tk,r]
 *    3 R    route
 *    4 R    routew (f32)
 *    5 R    shared [t,d]
 *    6 R    p_in [t,d]
 *    7 W    work [t,r]
 *   norm (1,r), wup (d,r)
 * moe_combine_bwd_dx:
 *    0 W    dys [tk,r] (dy of the token of each sorted row, unscaled)
 *    1 R    dp [t,d]
 *    2 R    y
 *    3 R    route
 *    4 W    work [2t,r]
 *   dnorm (1,r) W/RW
 *   norm, wup
 * moe_combine_bwd_dw:
 *    0 R    dp
 *    1 R    y
 *    2 W    work [t,r]
 *   norm
 *   wup = gradient W/RW */
struct k3_moe_combine_args {
	uint32_t n_buf;
	size_t t, d, r, n_experts, k;
	float eps;
	struct k3_weight dnorm, norm, wup;
};
void k3_moe_combine_fwd_cpu_f32(void *const *buf, const struct k3_moe_combine_args *a);
void k3_moe_combine_bwd_dx_cpu_f32(void *const *buf, const struct k3_moe_combine_args *a);
void k3_moe_combine_bwd_dw_cpu_f32(void *const *buf, const struct k3_moe_combine_args *a);
#endif
