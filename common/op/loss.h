/* LM head with cross entropy (model.md 7). The head's weight (vocab, d) is cut in vocabulary
 * blocks; a task covers rows r0 .. r0+rows-1 of a tile, so that logits of a whole microbatch never
 * exist.
 *
 *   logits = h W^T;  loss_t = lse_t - logit_label
 *   dlogits = (softmax - onehot) * inv_n, 0 where label < 0 */
#ifndef K3_OP_LOSS_H
#define K3_OP_LOSS_H
#include "op.h"

/* The step's scalars, float64, one datum: written by step_load at the start of a step. */
enum k3_hyper {
	/* 1 / valid labels of the step over all microbatches and ranks; 0 when there is none */
	K3_HYPER_INV_N,
	K3_HYPER_VALID, /* valid labels of the step */
	K3_HYPER_LR,	/* learning rate */
	K3_HYPER_STEP,	/* 1-based number of the update, for the bias correction */
	K3_HYPER_LEN = 8
};

/* Sums over the step, float64, one datum. */
enum k3_loss_acc {
	K3_LOSS_SUM,	 /* sum of token losses over valid labels */
	K3_LOSS_VALID,	 /* valid labels seen */
	K3_LOSS_CORRECT, /* of them, argmax equal to the label (lowest id on ties) */
	K3_LOSS_TOKENS,	 /* rows seen, padding (document 0) excluded */
	K3_LOSS_LEN = 4
};

/* lm_head_ce:
 *    0 W    tstat (f32) [rows,2] (loss or 0, 1 if correct)
 *    1 R    h [t,d] of the tile
 *    2 R    labels i32 [t] of the tile
 *    3 R    hyper
 *   logits: one W [rows, block rows] per vocabulary block: dlogits when grad = 1, else logits
 *   keep: 0..1 x W [rows,vocab] copy of the logits
 *   head (vocab,d)
 * lm_head_dx:
 *    0 W/RW dh [t,d]: rows r0.. are set
 *   logits: R dlogits
 *   head
 * lm_head_dw:
 *    0 R    dlogits of one block [rows, cols]
 *    1 R    h [t,d]
 *   head = gradient of that block, a weight of one block W/RW */
struct k3_lm_head_args {
	uint32_t n_buf;
	size_t t, d, r0, rows;
	uint32_t grad;
	struct k3_list logits, keep;
	struct k3_weight head;
};
void k3_lm_head_ce_cpu_f32(void *const *buf, const struct k3_lm_head_args *a);
void k3_lm_head_dx_cpu_f32(void *const *buf, const struct k3_lm_head_args *a);
void k3_lm_head_dw_cpu_f32(void *const *buf, const struct k3_lm_head_args *a);

/* loss_sum:
 *    0 W/RW acc f64 [K3_LOSS_LEN] (accumulate)
 *    1 R    labels i32 [t]
 *    2 R    layout
 *   tstat: R (f32) [rows,2] each, covering the tile's rows in order, rows_each rows each (the last may
 *       be short) */
struct k3_loss_sum_args {
	uint32_t n_buf;
	size_t t, rows_each;
	uint32_t accumulate;
	struct k3_list tstat;
};
void k3_loss_sum_cpu(void *const *buf, const struct k3_loss_sum_args *a);
#endif
