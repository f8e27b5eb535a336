/* The three input projections of KDA on CUDA: x -> q | k | v side by side in one row. */
#include "../cuda/device.cuh"

extern "C" {
#include "../../common/op/kda.h"
}

template <typename T>
static void
kda_proj_fwd(void *const *buf, const struct k3_kda_proj_args *a, const struct k3_cuda *cuda)
{
	const struct k3_weight *w[] = {&a->wq, &a->wk, &a->wv};
	T *qkvr = (T *)buf[0];

	for (size_t i = 0; i < 3; i++)
		k3_cuda_linear_fwd(cuda, k3_type<T>::id, qkvr + i * a->p, 3 * a->p, 0, buf[1], a->d,
				   buf, w[i], 0, a->p, a->t);
}

template <typename T>
static void
kda_proj_bwd_dx(void *const *buf, const struct k3_kda_proj_args *a, const struct k3_cuda *cuda)
{
	const struct k3_weight *w[] = {&a->wq, &a->wk, &a->wv};
	const T *dqkvr = (const T *)buf[1];

	for (size_t i = 0; i < 3; i++)
		k3_cuda_linear_dx(cuda, k3_type<T>::id, buf[0], a->d, i ? 1.0f : 0.0f,
				  dqkvr + i * a->p, 3 * a->p, buf, w[i], 0, a->p, a->t);
}

template <typename T>
static void
kda_proj_bwd_dw(void *const *buf, const struct k3_kda_proj_args *a, const struct k3_cuda *cuda)
{
	const struct k3_weight *dw[] = {&a->wq, &a->wk, &a->wv};
	const T *dqkvr = (const T *)buf[0];

	for (size_t i = 0; i < 3; i++)
		k3_cuda_linear_dw(cuda, k3_type<T>::id, buf, dw[i], 0, a->p, dqkvr + i * a->p,
				  3 * a->p, buf[1], a->d, a->t);
}

K3_CUDA_BOTH(kda_proj_fwd, k3_kda_proj_args)
K3_CUDA_BOTH(kda_proj_bwd_dx, k3_kda_proj_args)
K3_CUDA_BOTH(kda_proj_bwd_dw, k3_kda_proj_args)
