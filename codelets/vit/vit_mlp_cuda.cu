/* MLP of a tower block on CUDA, y = x + gelu_tanh(RMSNorm(x) Wfc0^T) Wfc1^T.  Only u, the
 * argument of the activation, is saved.  The residual is what the last product adds to. */
#include "../norm/rms_cuda.h"
#include "gelu.cuh"

extern "C" {
#include "../../common/op/vit.h"
}

template <typename T>
static void
vit_mlp_fwd(void *const *buf, const struct k3_vit_mlp_args *a, const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	T *u = (T *)buf[1], *normed = (T *)buf[4], *active = normed + a->n * a->d;

	if (a->n == 0)
		return;
	k3_cuda_rms_fwd(cuda, type, normed, (float *)buf[2], 1, buf[3],
			(const float *)buf[a->norm.first], a->n, a->d, a->eps);
	k3_cuda_linear_fwd(cuda, type, u, a->f, 0, normed, a->d, buf, &a->fc0, 0, a->f, a->n);
	gelu<struct gelu_tanh, T>(active, NULL, u, a->n * a->f, cuda);
	k3_cuda_linear_onto(cuda, type, buf[0], a->d, buf[3], active, a->f, buf, &a->fc1, 0, a->d,
			    a->n);
}

extern "C" size_t
k3_vit_mlp_bwd_dx_cuda_scratch(const struct k3_vit_mlp_args *a)
{
	return k3_cuda_rms_bwd_scratch(a->n, a->d);
}

template <typename T>
static void
vit_mlp_bwd_dx(void *const *buf, const struct k3_vit_mlp_args *a, const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	T *du = (T *)buf[1], *dn = (T *)buf[6];
	struct k3_cuda_rms_bwd b = {buf[0],
				    dn,
				    buf[4],
				    (const float *)buf[a->norm.first],
				    (const float *)buf[5],
				    1,
				    {buf[2], NULL},
				    (float *)buf[a->dnorm.first],
				    a->dnorm.accumulate != 0,
				    a->n,
				    a->d};

	k3_cuda_linear_dx(cuda, type, du, a->f, 0, buf[2], a->d, buf, &a->fc1, 0, a->d, a->n);
	gelu<struct gelu_tanh, T>(du, du, (const T *)buf[3], a->n * a->f, cuda);
	k3_cuda_linear_dx(cuda, type, dn, a->d, 0, du, a->f, buf, &a->fc0, 0, a->f, a->n);
	k3_cuda_rms_bwd(cuda, type, &b);
}

template <typename T>
static void
vit_mlp_bwd_dw(void *const *buf, const struct k3_vit_mlp_args *a, const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	T *normed = (T *)buf[5], *active = normed + a->n * a->d;

	k3_cuda_rms_again(cuda, type, normed, (const float *)buf[4], 1, buf[3],
			  (const float *)buf[a->norm.first], a->n, a->d);
	k3_cuda_linear_dw(cuda, type, buf, &a->fc0, 0, a->f, buf[0], a->f, normed, a->d, a->n);
	gelu<struct gelu_tanh, T>(active, NULL, (const T *)buf[2], a->n * a->f, cuda);
	k3_cuda_linear_dw(cuda, type, buf, &a->fc1, 0, a->d, buf[1], a->d, active, a->f, a->n);
}

K3_CUDA_BOTH(vit_mlp_fwd, k3_vit_mlp_args)
K3_CUDA_BOTH(vit_mlp_bwd_dx, k3_vit_mlp_args)
K3_CUDA_BOTH(vit_mlp_bwd_dw, k3_vit_mlp_args)
