/* Optimizer step (model.md 7, 5.4): norm, clip, AdamW, router bias, fingerprint. */
#ifndef K3_OP_OPTIM_H
#define K3_OP_OPTIM_H
#include "op.h"

/* grad_norm:
 *    0 W    partial f64 [1]: sum of squares
 *   grads: n x R (f32), n_elems[i] floats each
 *   Accumulates in double, in order. */
struct k3_grad_norm_args {
	uint32_t n_buf;
	struct k3_list grads;
	const size_t *n_elems;
};
void k3_grad_norm_cpu_f32(void *const *buf, const struct k3_grad_norm_args *a);

/* What a step tells the driver, float64, one datum per parity of the step. */
enum k3_step_out {
	K3_OUT_STATE, /* enum k3_step_state */
	K3_OUT_NORM,  /* global 2-norm of the gradient before the clip */
	K3_OUT_COEF,  /* min(1, max_norm / (norm + eps)) */
	K3_OUT_LOSS_SUM,
	K3_OUT_VALID,
	K3_OUT_CORRECT,
	K3_OUT_TOKENS, /* of the step */
	K3_OUT_LEN = 8
};
enum k3_step_state {
	K3_STEP_OK = 0,
	K3_STEP_NOT_FINITE = 1, /* loss or norm: no update */
	K3_STEP_NO_LABELS = 2	/* nothing to learn from: no update */
};

/* clip_factor:
 *    0 W    out f64 [K3_OUT_LEN]
 *    1 R    acc f64 [K3_LOSS_LEN]
 *    2 R    hyper
 *   partials: n x R f64 [1], summed in order
 *   max_norm 0: no clip (coefficient 1). */
struct k3_clip_args {
	uint32_t n_buf;
	double max_norm, eps;
	struct k3_list partials;
};
void k3_clip_factor_cpu(void *const *buf, const struct k3_clip_args *a);

/* adamw_step:
 *    0 R    out (state, coefficient)
 *    1 R    hyper
 *   params, exp_avg, exp_avg_sq: n x RW (f32); bf16 where half[i]: computed in float, then rounded
 *   to nearest even
 *   grads: n x R (f32), n_elems[i] floats each
 *   copies: 0..n x W bf16: copy copy[i] is parameter i rounded to nearest even, after the update
 *   turn: 0..1 RW f64 [1]: not touched; of tasks that name the same one, each waits for the last
 *   Nothing is updated unless the state is K3_STEP_OK; copies are written whatever it is.
 *   theta -= lr*wd*theta; m, v updates; theta -= lr*m^/(sqrt(v^)+eps). */
struct k3_adamw_args {
	uint32_t n_buf;
	double beta1, beta2, eps, weight_decay;
	struct k3_list params, exp_avg, exp_avg_sq, grads, copies;
	const size_t *n_elems;
	const int32_t *copy; /* [params.n] index in copies, -1: none; read where copies.n > 0 */
	const bool *half;    /* [params.n] parameter and moments i are bf16; NULL: none are */
};
void k3_adamw_step_cpu_f32(void *const *buf, const struct k3_adamw_args *a);

/* cast_params:
 *   copies: 0..n x W bf16
 *   params: n x R (f32), n_elems[i] floats each
 *   Copy copy[i] is parameter i rounded to nearest even. */
struct k3_cast_args {
	uint32_t n_buf;
	struct k3_list copies, params;
	const size_t *n_elems;
	const int32_t *copy; /* [params.n] index in copies, -1: none; read where copies.n > 0 */
};
void k3_cast_params_cpu(void *const *buf, const struct k3_cast_args *a);

enum k3_balance_rule { K3_BALANCE_NONE, K3_BALANCE_SIGN, K3_BALANCE_QUANTILE };

/* router_bias_update, of some layers:
 *    0 R    out (state)
 *   bias: n x RW (f32) [E]
 *   balance: n x R i32 [E + E*bins]
 *   Does nothing unless the state is K3_STEP_OK.
 *   sign:     d_e = u sign(mean(n) - n_e); b += d - mean(d)
 *   quantile: model.md 5.4 B (b is replaced) */
struct k3_router_bias_args {
	uint32_t n_buf;
	uint32_t rule;
	size_t n_experts, k, bins;
	double u;
	struct k3_list bias, balance;
};
void k3_router_bias_update_cpu_f32(void *const *buf, const struct k3_router_bias_args *a);

/* hash_data:
 *    0 W    u64 [1]: K3_FNV_START plus the sum, modulo 2^64, of k3_rng_bits(word, place)
 *   data: n x R, n_bytes[i] each
 *   A datum is its 64-bit words, of the lowest byte first; 1 to 7 bytes that are left at its end
 *   are one more, with their number in the top byte.  Places count words over all data from 0, so
 *   the order of the sum does not matter and that of the words does. */
struct k3_hash_args {
	uint32_t n_buf;
	struct k3_list data;
	const size_t *n_bytes;
};
void k3_hash_data_cpu(void *const *buf, const struct k3_hash_args *a);

/* param_init:
 *   data: one block of a parameter W (f32; bf16 if half: rounded to nearest even) [rows, cols]
 *   Element i of the whole tensor (row-major, row0*cols onwards here) takes its value from the
 *   generator keyed by (seed, name); experts' stacks are keyed by the checkpoint tensors' names.
 *   Kinds: model.md 1.3. */
enum k3_init_kind {
	K3_INIT_ZERO,
	K3_INIT_ONE,
	K3_INIT_NORMAL,	     /* normal(0, scale) truncated at +-2 (absolute) */
	K3_INIT_NORMAL_FREE, /* normal(0, scale) */
	K3_INIT_NORMAL_3S,   /* normal(0, scale) truncated at +-3 scale */
	K3_INIT_LOG_UNIFORM  /* log(u), u uniform in (1, 16) */
};
struct k3_param_init_args {
	uint32_t n_buf;
	uint32_t kind;
	double scale;
	uint64_t key;
	uint64_t first_elem; /* index in the tensor of the first element to fill */
	/* part of the block that is filled; a block is filled by one task or several in order (RW)
	 */
	size_t offset_elems, n_elems;
	bool half;
};
void k3_param_init_cpu_f32(void *const *buf, const struct k3_param_init_args *a);
#endif
