/* The family's operations on CUDA: X(operation, arguments, stem of its kernels, needs scratch). */
#ifndef K3_MOE_CUDA_H
#define K3_MOE_CUDA_H

#define K3_MOE_CUDA_MAP(X)                                                                         \
	X(MOE_ROUTE_FWD, k3_moe_route_args, moe_route_fwd, 1)                                      \
	X(MOE_COUNT, k3_moe_count_args, moe_count, 0)                                              \
	X(MOE_DISPATCH_FWD, k3_moe_dispatch_args, moe_dispatch_fwd, 0)                             \
	X(MOE_DISPATCH_BWD_DX, k3_moe_dispatch_args, moe_dispatch_bwd_dx, 0)                       \
	X(MOE_DISPATCH_BWD_DW, k3_moe_dispatch_args, moe_dispatch_bwd_dw, 1)                       \
	X(EXPERT_GU, k3_expert_args, expert_gu, 0)                                                 \
	X(EXPERT_FWD, k3_expert_args, expert_fwd, 0)                                               \
	X(EXPERT_DGRAD, k3_expert_args, expert_dgrad, 1)                                           \
	X(EXPERT_WGRAD, k3_expert_args, expert_wgrad, 1)                                           \
	X(MOE_COMBINE_FWD, k3_moe_combine_args, moe_combine_fwd, 0)                                \
	X(MOE_COMBINE_BWD_DX, k3_moe_combine_args, moe_combine_bwd_dx, 1)                          \
	X(MOE_COMBINE_BWD_DW, k3_moe_combine_args, moe_combine_bwd_dw, 0)

#endif
