/* The family's operations on CUDA: X(operation, arguments, stem of its kernels, needs scratch). */
#ifndef K3_OPTIM_CUDA_H
#define K3_OPTIM_CUDA_H

#define K3_OPTIM_CUDA_MAP(X)                                                                       \
	X(GRAD_NORM, k3_grad_norm_args, grad_norm, 1)                                              \
	X(CLIP_FACTOR, k3_clip_args, clip_factor, 0)                                               \
	X(ADAMW_STEP, k3_adamw_args, adamw_step, 0)                                                \
	X(CAST_PARAMS, k3_cast_args, cast_params, 0)                                               \
	X(ROUTER_BIAS_UPDATE, k3_router_bias_args, router_bias_update, 1)                          \
	X(HASH_DATA, k3_hash_args, hash_data, 0)                                                   \
	X(PARAM_INIT, k3_param_init_args, param_init, 0)

#endif
