/* The family's operations on CUDA: X(operation, arguments, stem of its kernels, needs scratch). */
#ifndef K3_GLU_CUDA_H
#define K3_GLU_CUDA_H

#define K3_GLU_CUDA_MAP(X)                                                                         \
	X(DENSE_FFN_FWD, k3_glu_args, glu_fwd, 0)                                                  \
	X(DENSE_FFN_GU, k3_glu_args, glu_gu, 0)                                                    \
	X(DENSE_FFN_BWD_DX, k3_glu_args, glu_bwd_dx, 0)                                            \
	X(DENSE_FFN_BWD_DW, k3_glu_args, glu_bwd_dw, 0)                                            \
	X(SHARED_FFN_FWD, k3_glu_args, glu_fwd, 0)                                                 \
	X(SHARED_FFN_GU, k3_glu_args, glu_gu, 0)                                                   \
	X(SHARED_FFN_BWD_DX, k3_glu_args, glu_bwd_dx, 0)                                           \
	X(SHARED_FFN_BWD_DW, k3_glu_args, glu_bwd_dw, 0)

#endif
