/* Kimi Delta Attention (model.md section 3). P = h * k; head group = heads h0 .. h1-1,
 * hg = h1 - h0.
 *
 * Data of one tile that the steps hand on:
 *   qkvr [t,3P]  conv inputs q | k | v
 *   qkv  [t,3P]  after conv, SiLU and (q, k) l2 norm
 *   rstd [t,2h]  factors of the l2 norm, q heads then k heads (f32)
 *   f    [t,P]   gate input
 *   br   [t,h]   beta input
 *   gg   [t,P]   output gate input
 *   fa   [t,k]   low-rank gate latent
 * Rows without a document get zeros in every output, and contribute nothing to any gradient.
 * Halo [taps-1, 3P]: the last conv-input rows of a document that goes on, right-aligned, zeros
 * before.
 * State [hg,k,v] (f32) per tile and head group: state after the tile's last segment. */
#ifndef K3_OP_KDA_H
#define K3_OP_KDA_H
#include "op.h"

/* kda_proj_fwd:
 *    0 W    qkvr [t,3P]
 *    1 R    x [t,d]
 *   wq, wk, wv (P,d)
 * kda_proj_bwd_dx:
 *    0 W    dx [t,d]
 *    1 R    dqkvr [t,3P]
 *   wq, wk, wv
 * kda_proj_bwd_dw:
 *    0 R    dqkvr
 *    1 R    x
 *   wq, wk, wv = gradients W/RW */
struct k3_kda_proj_args {
	uint32_t n_buf;
	size_t t, d, p;
	struct k3_weight wq, wk, wv;
};
void k3_kda_proj_fwd_cpu_f32(void *const *buf, const struct k3_kda_proj_args *a);
void k3_kda_proj_bwd_dx_cpu_f32(void *const *buf, const struct k3_kda_proj_args *a);
void k3_kda_proj_bwd_dw_cpu_f32(void *const *buf, const struct k3_kda_proj_args *a);

/* kda_gate_fwd:
 *    0 W    fa [t,k]
 *    1 W    f [t,P]
 *    2 W    br [t,h]
 *    3 W    gg [t,P]
 *    4 R    x [t,d]
 *   wfa (k,d), wfb (P,k), wb (h,d), wg (P,d)
 * kda_gate_bwd_dx:
 *    0 RW   dx [t,d] (adds)
 *    1 W    dfa [t,k]
 *    2 R    dgg [t,P]
 *   df: groups x R [t,hg*k]
 *   dbr: groups x R [t,hg]
 *   wfa, wfb, wb, wg
 *   Groups are in head order and have group_heads heads each (the last may have fewer).
 * kda_gate_bwd_dw:
 *    0 R    dfa
 *    1 R    dgg
 *    2 R    x
 *    3 R    fa
 *   df, dbr
 *   dab: groups x R [hg + hg*k] (f32) (dA_log, ddt_bias of the tile)
 *   wfa, wfb, wb, wg, a_log (1,h), dt_bias (1,P) = gradients W/RW */
struct k3_kda_gate_args {
	uint32_t n_buf;
	size_t t, d, p, h, k;
	uint32_t group_heads;
	struct k3_list df, dbr, dab;
	struct k3_weight wfa, wfb, wb, wg, a_log, dt_bias;
};
void k3_kda_gate_fwd_cpu_f32(void *const *buf, const struct k3_kda_gate_args *a);
void k3_kda_gate_bwd_dx_cpu_f32(void *const *buf, const struct k3_kda_gate_args *a);
void k3_kda_gate_bwd_dw_cpu_f32(void *const *buf, const struct k3_kda_gate_args *a);

/* kda_conv_fwd:
 *    0 W    qkv [t,3P]
 *    1 W    rstd [t,2h] (f32)
 *    2 R    qkvr
 *    3 R    layout
 *   halo_in: 0..1 x R (present iff CONT_IN)
 *   halo_out: 0..1 x W (present iff CONT_OUT)
 *   cq, ck, cv (P,taps)
 *   Tap taps-1 multiplies the current token; 1 <= taps <= K3_MAX_TAPS (64).
 *   halo_out takes rows of halo_in where the tile has fewer than taps-1 valid rows of that
 *   document.
 * kda_conv_bwd:
 *    0 W    dqkvr [t,3P]
 *    1 R    qkv
 *    2 R    rstd (f32)
 *    3 R    qkvr
 *    4 R    layout
 *   dqkv: groups x R [t, 3*hg*k] (dq | dk | dv)
 *   halo_in: 0..1 x R
 *   dhalo_out: 0..1 x R (gradient of halo_out)
 *   dhalo_in: 0..1 x W
 *   dcq, dck, dcv (P,taps) W/RW
 *   cq, ck, cv
 *   qkv and rstd are those of qkvr: a kernel may form qkv again in place of reading it. */
struct k3_kda_conv_args {
	uint32_t n_buf;
	size_t t, p, h, k, taps;
	float l2_eps;
	uint32_t group_heads;
	struct k3_list halo_in, halo_out;	  /* forward; halo_in backward too */
	struct k3_list dqkv, dhalo_out, dhalo_in; /* backward */
	struct k3_weight dcq, dck, dcv, cq, ck, cv;
};
void k3_kda_conv_fwd_cpu_f32(void *const *buf, const struct k3_kda_conv_args *a);
void k3_kda_conv_bwd_cpu_f32(void *const *buf, const struct k3_kda_conv_args *a);

/* kda_chunk_fwd:
 *    0 W    o [t, hg*v]
 *    1 R    qkv [t,3P]
 *    2 R    f [t,P]
 *    3 R    br [t,h]
 *    4 R    layout
 *    5 W    work
 *   s_in: 0..1 x R [hg,k,v] (f32): state before the tile's first segment
 *   s_out: 0..1 x W [hg,k,v] (f32): state after the last
 *   a_log (1,h), dt_bias (1,P)
 *   g = lb sigmoid(exp(a_log)(f + dt_bias)), beta = sigmoid(br).
 *   raw = 1: f holds g and br holds beta as they are; a_log and dt_bias are absent.
 *   s_in present iff the first segment continues a document or a start state is given.
 * kda_chunk_bwd:
 *    0 W    dqkv [t,3*hg*k] (dq | dk | dv)
 *    1 W    df [t,hg*k] (raw: dg)
 *    2 W    dbr [t,hg] (raw: dbeta)
 *    3 W    dab [hg + hg*k] (f32) (raw: zeros)
 *    4 R    do [t,hg*v]
 *    5 R    qkv
 *    6 R    f
 *    7 R    br
 *    8 R    layout
 *    9 W    work
 *   s_in: 0..1 x R (f32)
 *   ds_out: 0..1 x R (f32) (gradient of s_out)
 *   ds_in: 0..1 x W (f32) (gradient of s_in)
 *   a_log, dt_bias
 * The model has v = k; the kernels take any: a row of qkv has h(2k + v) elements, of dqkv
 * hg(2k + v).
 * Domain: g <= 0 and finite (raw mode checks nothing), beta finite.
 * A tile without a segment hands its states on: s_out = s_in, ds_in = ds_out, zeros where the
 * source is absent; kda_conv does the same with its halos. */
struct k3_kda_chunk_args {
	uint32_t n_buf;
	size_t t, h, k, v; /* all heads of the layer; widths of a head */
	uint32_t h0, h1;
	uint32_t raw;
	float lower_bound, scale; /* scale = k^-1/2 */
	struct k3_list s_in, s_out, ds_out, ds_in;
	struct k3_weight a_log, dt_bias;
};
void k3_kda_chunk_fwd_cpu_f32(void *const *buf, const struct k3_kda_chunk_args *a);
void k3_kda_chunk_bwd_cpu_f32(void *const *buf, const struct k3_kda_chunk_args *a);
/* Token by token; the oracle of the chunk kernels, same contract. */
void k3_kda_recurrent_fwd_cpu_f32(void *const *buf, const struct k3_kda_chunk_args *a);
void k3_kda_recurrent_bwd_cpu_f32(void *const *buf, const struct k3_kda_chunk_args *a);

/** Widths and buffers are padded to whole panels of 32 floats. */
static inline size_t
k3_kda_pad(size_t n)
{
	return (n + 31) / 32 * 32;
}

/** One chunk of 64 rows: what is kept of it, and the forward's scratch beside that. */
static inline size_t
k3_kda_chunk_kept_floats(size_t k, size_t v)
{
	size_t kp = k3_kda_pad(k), vp = k3_kda_pad(v);

	return 3 * 64 * 64 + 64 * (kp + 2 * vp) + kp * vp;
}
static inline size_t
k3_kda_chunk_scratch_floats(size_t k, size_t v)
{
	size_t kp = k3_kda_pad(k), vp = k3_kda_pad(v);

	return kp * vp + 13 * 64 * kp + 5 * 64 * vp + 14 * kp + 64 + 32;
}

/** Floats of the work buffer for a tile of at most t rows; the heads of a group take turns in it.
 */
static inline size_t
k3_kda_chunk_fwd_work_floats(size_t t, size_t hg, size_t k, size_t v)
{
	(void)t;
	(void)hg;
	return k3_kda_chunk_kept_floats(k, v) + k3_kda_chunk_scratch_floats(k, v);
}
static inline size_t
k3_kda_chunk_bwd_work_floats(size_t t, size_t hg, size_t k, size_t v)
{
	size_t kp = k3_kda_pad(k), vp = k3_kda_pad(v);

	(void)hg;
	return (t + 63) / 64 * k3_kda_chunk_kept_floats(k, v) + k3_kda_chunk_scratch_floats(k, v) +
	       12 * 64 * kp + 6 * 64 * vp + 4 * 64 * 64 + kp * vp + 4 * kp + 128;
}
/** The recurrent kernels keep a state every 64 tokens and those of the 64 tokens at work. */
static inline size_t
k3_kda_recurrent_fwd_work_floats(size_t k, size_t v)
{
	return k * v + k + v;
}
static inline size_t
k3_kda_recurrent_bwd_work_floats(size_t t, size_t k, size_t v)
{
	return ((t + 63) / 64 + 64 + 2) * k * v + 4 * (k + v);
}

/* kda_out_fwd:
 *    0 W    p_out [t,d] = p_in + (rmsnorm(o; on) * sigmoid(gg)) wo^T
 *    1 R    gg [t,P]
 *    2 W    work [t,P]
 *   o: groups x R [t,hg*v]
 *   p_in: 0..1 x R [t,d]
 *   on (1,v), wo (d,P)
 * kda_out_bwd_dx:
 *    0 W    dgg [t,P]
 *    1 R    dp [t,d]
 *    2 R    gg
 *    3 W    work [t,P]
 *   dout: groups x W [t,hg*v] (gradient of o)
 *   o: groups x R
 *   don (1,v) W/RW
 *   on, wo
 * kda_out_bwd_dw:
 *    0 R    dp
 *    1 R    gg
 *    2 W    work [t,P]
 *   o
 *   on
 *   wo = gradient W/RW */
struct k3_kda_out_args {
	uint32_t n_buf;
	size_t t, d, p, h, v;
	float eps;
	uint32_t group_heads;
	struct k3_list dout, o, p_in;
	struct k3_weight don, on, wo;
};
void k3_kda_out_fwd_cpu_f32(void *const *buf, const struct k3_kda_out_args *a);
void k3_kda_out_bwd_dx_cpu_f32(void *const *buf, const struct k3_kda_out_args *a);
void k3_kda_out_bwd_dw_cpu_f32(void *const *buf, const struct k3_kda_out_args *a);
#endif
