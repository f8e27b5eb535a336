/* Gated multi-head latent attention without positions (model.md section 4).
 * kq = nope + rope: width of a query or key head. Head group = heads h0 .. h1-1, hg = h1 - h0.
 *
 *   qa [t,rq]                  query latent before its norm
 *   q  [t,h*kq]
 *   c  [t,rkv+rope]            latent | shared key part
 *   zg [t,h*v]                 gate input
 *   kv [t, h*(nope+v) + rope]  per head (k_nope | v), then the shared key part copied from c */
#ifndef K3_OP_MLA_H
#define K3_OP_MLA_H
#include "op.h"

/* mla_proj_fwd:
 *    0 W    qa [t,rq]
 *    1 W    q [t,h*kq]
 *    2 W    c [t,rkv+rope]
 *    3 W    zg [t,h*v]
 *    4 R    x [t,d]
 *    5 W    work [t,rq]
 *   wqa (rq,d), qn (1,rq), wqb (h*kq,rq), wkva (rkv+rope,d), wgate (h*v,d)
 * mla_proj_bwd_dx:
 *    0 W    dx [t,d]
 *    1 W    dqa [t,rq]
 *    2 R    dc [t,rkv+rope]
 *    3 R    dzg [t,h*v]
 *    4 R    qa
 *    5 W    work [t,rq]
 *   dq: groups x R [t,hg*kq]
 *   dqn (1,rq) W/RW
 *   wqa, qn, wqb, wkva, wgate
 * mla_proj_bwd_dw:
 *    0 R    dqa
 *    1 R    dc
 *    2 R    dzg
 *    3 R    qa
 *    4 R    x
 *    5 W    work [t,rq]
 *   dq
 *   qn
 *   wqa, wqb, wkva, wgate = gradients W/RW */
struct k3_mla_proj_args {
	uint32_t n_buf;
	size_t t, d, h, kq, v, rq, rkv, rope;
	float eps;
	uint32_t group_heads;
	struct k3_list dq;
	struct k3_weight dqn, qn, wqa, wqb, wkva, wgate;
};
void k3_mla_proj_fwd_cpu_f32(void *const *buf, const struct k3_mla_proj_args *a);
void k3_mla_proj_bwd_dx_cpu_f32(void *const *buf, const struct k3_mla_proj_args *a);
void k3_mla_proj_bwd_dw_cpu_f32(void *const *buf, const struct k3_mla_proj_args *a);

/* mla_expand_fwd:
 *    0 W    kv
 *    1 R    c
 *    2 W    work [t,rkv]
 *   kn (1,rkv), wkvb (h*(nope+v),rkv)
 * mla_expand_bwd_dx:
 *    0 W    dc [t,rkv+rope]
 *    1 R    c
 *    2 W    work [t,rkv]
 *   dkv: groups x R [t, hg*(nope+v) + rope]
 *   dkn (1,rkv) W/RW
 *   kn, wkvb
 *   The shared key part sums over groups in order.
 * mla_expand_bwd_dw:
 *    0 R    c
 *    1 W    work [t,rkv]
 *   dkv
 *   kn
 *   wkvb = gradient W/RW */
struct k3_mla_expand_args {
	uint32_t n_buf;
	size_t t, h, nope, rope, v, rkv;
	float eps;
	uint32_t group_heads;
	struct k3_list dkv;
	struct k3_weight dkn, kn, wkvb;
};
void k3_mla_expand_fwd_cpu_f32(void *const *buf, const struct k3_mla_expand_args *a);
void k3_mla_expand_bwd_dx_cpu_f32(void *const *buf, const struct k3_mla_expand_args *a);
void k3_mla_expand_bwd_dw_cpu_f32(void *const *buf, const struct k3_mla_expand_args *a);

/* mla_attn_fwd:
 *    0 W/RW o [t,hg*v]
 *    1 W/RW lse (f32) [t,hg]
 *    2 R    q [t,h*kq]
 *    3 R    layout of the query tile
 *    4 W    work
 *   kv: n x R kv of the key tiles in row order
 *   klayout: n x R their layouts
 *   first = 1 starts with an empty range, else (o, lse) of the earlier ranges are merged:
 *   o normalised, lse = m + log l (-inf: no key yet).
 *   Query i sees key j iff global row j <= i and equal document != 0.
 *   A query without any key (padding) gets o = 0, lse = -inf.
 * mla_attn_bwd:
 *    0 W/RW dq [t,hg*kq] (init_dq)
 *    1 W/RW dkv [tj, hg*(nope+v)+rope] (init_dkv)
 *    2 R    q
 *    3 R    kv of key tile j
 *    4 R    da [t,hg*v]
 *    5 R    lse (f32) [t,hg]
 *    6 R    delta (f32) [t,hg]
 *    7 R    layout of the query tile
 *    8 R    layout of the key tile
 *    9 W    work
 *   P_ij = exp(scale q_i.k_j - lse_i); one (query tile, key tile) pair. */
struct k3_mla_attn_args {
	uint32_t n_buf;
	size_t t, tk_max; /* query rows; most rows of a key tile */
	size_t h, nope, rope, v;
	uint32_t h0, h1;
	uint32_t first;		    /* forward */
	uint32_t init_dq, init_dkv; /* backward */
	float scale;		    /* kq^-1/2 */
	struct k3_list kv, klayout; /* forward */
};
void k3_mla_attn_fwd_cpu_f32(void *const *buf, const struct k3_mla_attn_args *a);
void k3_mla_attn_bwd_cpu_f32(void *const *buf, const struct k3_mla_attn_args *a);

/* Blocks of the CPU kernels; the second-level cache holds what is at work of them. */
enum { K3_MLA_QUERY_BLOCK = 128, K3_MLA_FWD_KEY_BLOCK = 256, K3_MLA_BWD_KEY_BLOCK = 128 };

/** Floats of the work buffer: a packed key tile of one head and the state of a query block. */
static inline size_t
k3_mla_attn_fwd_work_floats(size_t tk_max, size_t nope, size_t rope, size_t v)
{
	size_t keys = (tk_max + 31) / 32 * 32, vp = (v + 31) / 32 * 32;

	return keys * (nope + rope + vp + 1) + 16 * K3_MLA_FWD_KEY_BLOCK + K3_MLA_QUERY_BLOCK * vp +
	       64;
}
/** A key block, a query block and their scores; the size of the tile does not matter. */
static inline size_t
k3_mla_attn_bwd_work_floats(size_t tk_max, size_t nope, size_t rope, size_t v)
{
	size_t kqp = (nope + rope + 31) / 32 * 32, vp = (v + 31) / 32 * 32;

	(void)tk_max;
	return K3_MLA_BWD_KEY_BLOCK * (4 * kqp + 2 * vp + 1) +
	       K3_MLA_QUERY_BLOCK * (kqp + vp + 2 * K3_MLA_BWD_KEY_BLOCK) + 64;
}

/* mla_out_fwd:
 *    0 W    p_out [t,d] = p_in + (o * sigmoid(zg)) wo^T
 *    1 R    zg [t,h*v]
 *    2 W    work [t,h*v]
 *   o: groups x R [t,hg*v]
 *   p_in: 0..1 x R
 *   wo (d,h*v)
 * mla_out_bwd_dx:
 *    0 W    dzg [t,h*v]
 *    1 R    dp [t,d]
 *    2 R    zg
 *    3 W    work [t,h*v]
 *   da: groups x W [t,hg*v]
 *   delta: groups x W (f32) [t,hg] (delta_i = <da_i, a_i>)
 *   o: groups x R
 *   wo
 * mla_out_bwd_dw:
 *    0 R    dp
 *    1 R    zg
 *    2 W    work [t,h*v]
 *   o
 *   wo = gradient W/RW */
struct k3_mla_out_args {
	uint32_t n_buf;
	size_t t, d, h, v;
	uint32_t group_heads;
	struct k3_list da, delta, o, p_in;
	struct k3_weight wo;
};
void k3_mla_out_fwd_cpu_f32(void *const *buf, const struct k3_mla_out_args *a);
void k3_mla_out_bwd_dx_cpu_f32(void *const *buf, const struct k3_mla_out_args *a);
void k3_mla_out_bwd_dw_cpu_f32(void *const *buf, const struct k3_mla_out_args *a);
#endif
