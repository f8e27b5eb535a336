/* The family's operations on CUDA: X(operation, arguments, stem of its kernels, needs scratch). */
#ifndef K3_MLA_CUDA_H
#define K3_MLA_CUDA_H

#define K3_MLA_CUDA_MAP(X)                                                                         \
	X(MLA_PROJ_FWD, k3_mla_proj_args, mla_proj_fwd, 0)                                         \
	X(MLA_PROJ_BWD_DX, k3_mla_proj_args, mla_proj_bwd_dx, 1)                                   \
	X(MLA_PROJ_BWD_DW, k3_mla_proj_args, mla_proj_bwd_dw, 0)                                   \
	X(MLA_EXPAND_FWD, k3_mla_expand_args, mla_expand_fwd, 0)                                   \
	X(MLA_EXPAND_BWD_DX, k3_mla_expand_args, mla_expand_bwd_dx, 1)                             \
	X(MLA_EXPAND_BWD_DW, k3_mla_expand_args, mla_expand_bwd_dw, 0)                             \
	X(MLA_ATTN_FWD, k3_mla_attn_args, mla_attn_fwd, 0)                                         \
	X(MLA_ATTN_BWD, k3_mla_attn_args, mla_attn_bwd, 1)                                         \
	X(MLA_OUT_FWD, k3_mla_out_args, mla_out_fwd, 0)                                            \
	X(MLA_OUT_BWD_DX, k3_mla_out_args, mla_out_bwd_dx, 0)                                      \
	X(MLA_OUT_BWD_DW, k3_mla_out_args, mla_out_bwd_dw, 0)

#endif
