/* The family's operations on CUDA: X(operation, arguments, stem of its kernels, needs scratch). */
#ifndef K3_VIT_CUDA_H
#define K3_VIT_CUDA_H

#define K3_VIT_CUDA_MAP(X)                                                                         \
	X(VIT_PATCH_EMBED_FWD, k3_vit_embed_args, vit_patch_embed_fwd, 0)                          \
	X(VIT_PATCH_EMBED_BWD, k3_vit_embed_args, vit_patch_embed_bwd, 0)                          \
	X(VIT_QKV_FWD, k3_vit_qkv_args, vit_qkv_fwd, 0)                                            \
	X(VIT_QKV_BWD_DX, k3_vit_qkv_args, vit_qkv_bwd_dx, 1)                                      \
	X(VIT_QKV_BWD_DW, k3_vit_qkv_args, vit_qkv_bwd_dw, 0)                                      \
	X(VIT_OUT_FWD, k3_vit_out_args, vit_out_fwd, 0)                                            \
	X(VIT_OUT_BWD_DX, k3_vit_out_args, vit_out_bwd_dx, 0)                                      \
	X(VIT_OUT_BWD_DW, k3_vit_out_args, vit_out_bwd_dw, 0)                                      \
	X(VIT_MLP_FWD, k3_vit_mlp_args, vit_mlp_fwd, 0)                                            \
	X(VIT_MLP_BWD_DX, k3_vit_mlp_args, vit_mlp_bwd_dx, 1)                                      \
	X(VIT_MLP_BWD_DW, k3_vit_mlp_args, vit_mlp_bwd_dw, 0)                                      \
	X(VIT_MERGE_FWD, k3_vit_merge_args, vit_merge_fwd, 0)                                      \
	X(VIT_MERGE_BWD, k3_vit_merge_args, vit_merge_bwd, 1)                                      \
	X(VIT_PROJECT_FWD, k3_vit_project_args, vit_project_fwd, 0)                                \
	X(VIT_PROJECT_BWD_DX, k3_vit_project_args, vit_project_bwd_dx, 1)                          \
	X(VIT_PROJECT_BWD_DW, k3_vit_project_args, vit_project_bwd_dw, 0)                          \
	X(VISION_SCATTER_FWD, k3_vision_scatter_args, vision_scatter_fwd, 0)                       \
	X(VISION_SCATTER_BWD, k3_vision_scatter_args, vision_scatter_bwd, 0)                       \
	X(ZERO_GRADS, k3_zero_args, zero_grads, 0)

#endif
