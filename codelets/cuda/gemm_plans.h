/* How products of known shapes are run (inside codelets/cuda/). */
#ifndef K3_CUDA_GEMM_PLANS_H
#define K3_CUDA_GEMM_PLANS_H

struct k3_cuda_gemm_plans;
/** NULL when memory is out. */
struct k3_cuda_gemm_plans *k3i_cuda_gemm_plans_create(void);
void k3i_cuda_gemm_plans_destroy(struct k3_cuda_gemm_plans *plans); /* NULL is legal */

#endif
