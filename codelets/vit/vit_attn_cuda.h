/* The tower's attention on CUDA: X(operation, arguments, stem of its kernels, needs scratch). */
#ifndef K3_VIT_ATTN_CUDA_H
#define K3_VIT_ATTN_CUDA_H

#define K3_VIT_ATTN_CUDA_MAP(X)                                                                    \
	X(VIT_ATTN_FWD, k3_vit_attn_args, vit_attn_fwd, 0)                                         \
	X(VIT_ATTN_BWD, k3_vit_attn_args, vit_attn_bwd, 0)

#endif
