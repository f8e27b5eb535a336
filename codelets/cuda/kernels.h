/* All operations that have CUDA kernels, and their declarations. */
#ifndef K3_CUDA_KERNELS_H
#define K3_CUDA_KERNELS_H

#include "../../common/ops.h"
#include "../attnres/attnres_cuda.h"
#include "../embed/embed_cuda.h"
#include "../glu/glu_cuda.h"
#include "../kda/kda_cuda.h"
#include "../loss/loss_cuda.h"
#include "../mla/mla_cuda.h"
#include "../moe/moe_cuda.h"
#include "../norm/rms_cuda.h"
#include "../optim/optim_cuda.h"
#include "../vit/vit_attn_cuda.h"
#include "../vit/vit_cuda.h"
#include "cuda.h"

/* X(operation, arguments, stem of its kernels, 1: with a scratch function) */
#define K3_CUDA_OP_MAP(X)                                                                          \
	K3_ATTNRES_CUDA_MAP(X)                                                                     \
	K3_EMBED_CUDA_MAP(X) K3_GLU_CUDA_MAP(X) K3_KDA_CUDA_MAP(X) K3_LOSS_CUDA_MAP(X)             \
		K3_MLA_CUDA_MAP(X) K3_MOE_CUDA_MAP(X) K3_OPTIM_CUDA_MAP(X) K3_VIT_ATTN_CUDA_MAP(X) \
			K3_VIT_CUDA_MAP(X)

#ifdef __cplusplus
extern "C" {
#endif
#define X(op, args, stem, scratch)                                                                 \
	void k3_##stem##_cuda_f32(void *const *buf, const struct args *a,                          \
				  const struct k3_cuda *cuda);                                     \
	void k3_##stem##_cuda_bf16(void *const *buf, const struct args *a,                         \
				   const struct k3_cuda *cuda);                                    \
	size_t k3_##stem##_cuda_scratch(const struct args *a);
K3_CUDA_OP_MAP(X)
#undef X
#ifdef __cplusplus
}
#endif
#endif
