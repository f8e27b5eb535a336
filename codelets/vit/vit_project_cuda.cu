/* Projector on CUDA: two products around an exact GELU, then a norm. */
#include "../norm/rms_cuda.h"
#include "gelu.cuh"

extern "C" {
#include "../../common/op/vit.h"
}

template <typename T>
static void
vit_project_fwd(void *const *buf, const struct k3_vit_project_args *a, const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	T *u = (T *)buf[1], *s = (T *)buf[2], *active = (T *)buf[5];

	k3_cuda_linear_fwd(cuda, type, u, a->c, 0, buf[4], a->c, buf, &a->w1, 0, a->c, a->m);
	gelu<struct gelu_erf, T>(active, NULL, u, a->m * a->c, cuda);
	k3_cuda_linear_fwd(cuda, type, s, a->dt, 0, active, a->c, buf, &a->w2, 0, a->dt, a->m);
	k3_cuda_rms_fwd(cuda, type, buf[0], (float *)buf[3], 1, s,
			(const float *)buf[a->norm.first], a->m, a->dt, a->eps);
}

extern "C" size_t
k3_vit_project_bwd_dx_cuda_scratch(const struct k3_vit_project_args *a)
{
	return k3_cuda_rms_bwd_scratch(a->m, a->dt);
}

template <typename T>
static void
vit_project_bwd_dx(void *const *buf, const struct k3_vit_project_args *a,
		   const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	T *dz = (T *)buf[0], *du = (T *)buf[1], *ds = (T *)buf[2];
	struct k3_cuda_rms_bwd b = {ds,
				    buf[3],
				    buf[5],
				    (const float *)buf[a->norm.first],
				    (const float *)buf[6],
				    1,
				    {NULL, NULL},
				    (float *)buf[a->dnorm.first],
				    a->dnorm.accumulate != 0,
				    a->m,
				    a->dt};

	k3_cuda_rms_bwd(cuda, type, &b);
	k3_cuda_linear_dx(cuda, type, du, a->c, 0, ds, a->dt, buf, &a->w2, 0, a->dt, a->m);
	gelu<struct gelu_erf, T>(du, du, (const T *)buf[4], a->m * a->c, cuda);
	k3_cuda_linear_dx(cuda, type, dz, a->c, 0, du, a->c, buf, &a->w1, 0, a->c, a->m);
}

template <typename T>
static void
vit_project_bwd_dw(void *const *buf, const struct k3_vit_project_args *a,
		   const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	T *active = (T *)buf[4];

	k3_cuda_linear_dw(cuda, type, buf, &a->w1, 0, a->c, buf[0], a->c, buf[3], a->c, a->m);
	gelu<struct gelu_erf, T>(active, NULL, (const T *)buf[2], a->m * a->c, cuda);
	k3_cuda_linear_dw(cuda, type, buf, &a->w2, 0, a->dt, buf[1], a->dt, active, a->c, a->m);
}

K3_CUDA_BOTH(vit_project_fwd, k3_vit_project_args)
K3_CUDA_BOTH(vit_project_bwd_dx, k3_vit_project_args)
K3_CUDA_BOTH(vit_project_bwd_dw, k3_vit_project_args)
