/* The family's operations on CUDA: X(operation, arguments, stem of its kernels, needs scratch). */
#ifndef K3_LOSS_CUDA_H
#define K3_LOSS_CUDA_H

#define K3_LOSS_CUDA_MAP(X)                                                                        \
	X(LM_HEAD_CE, k3_lm_head_args, lm_head_ce, 0)                                              \
	X(LM_HEAD_DX, k3_lm_head_args, lm_head_dx, 1)                                              \
	X(LM_HEAD_DW, k3_lm_head_args, lm_head_dw, 0)                                              \
	X(LOSS_SUM, k3_loss_sum_args, loss_sum, 0)

#endif
