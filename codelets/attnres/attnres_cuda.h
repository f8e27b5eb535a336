/* The family's operations on CUDA: X(operation, arguments, stem of its kernels, needs scratch). */
#ifndef K3_ATTNRES_CUDA_H
#define K3_ATTNRES_CUDA_H

#define K3_ATTNRES_CUDA_MAP(X)                                                                     \
	X(MIX_NORM_FWD, k3_mix_norm_fwd_args, mix_norm_fwd, 0)                                     \
	X(MIX_NORM_BWD, k3_mix_norm_bwd_args, mix_norm_bwd, 1)

#endif
