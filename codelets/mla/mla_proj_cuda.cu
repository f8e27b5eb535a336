/* MLA projections on CUDA (model.md 4): products by cuBLASLt around the norm of the query latent. */
#include "mla_gemm.cuh"
#include "mla_norm.cuh"

extern "C" {
#include "../../common/op/mla.h"
}

/* Heads of group g: rows of Wqb. */
static size_t
group_rows(const struct k3_mla_proj_args *a, uint32_t g, size_t *first)
{
	size_t h0, heads = k3_heads_of_group(a->h, a->group_heads, g, &h0);

	*first = h0 * a->kq;
	return heads * a->kq;
}

template <typename T>
static void
mla_proj_fwd(void *const *buf, const struct k3_mla_proj_args *a, const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	size_t hq = a->h * a->kq, hv = a->h * a->v, ck = a->rkv + a->rope;
	T *qa = (T *)buf[0], *work = (T *)buf[5];

	k3_cuda_linear_fwd(cuda, type, qa, a->rq, 0, buf[4], a->d, buf, &a->wqa, 0, a->rq, a->t);
	norm_forward<T>(work, qa, a->rq, (const float *)buf[a->qn.first], a->t, a->rq, a->eps,
			cuda);
	k3_cuda_linear_fwd(cuda, type, buf[1], hq, 0, work, a->rq, buf, &a->wqb, 0, hq, a->t);
	k3_cuda_linear_fwd(cuda, type, buf[2], ck, 0, buf[4], a->d, buf, &a->wkva, 0, ck, a->t);
	k3_cuda_linear_fwd(cuda, type, buf[3], hv, 0, buf[4], a->d, buf, &a->wgate, 0, hv, a->t);
}

template <typename T>
static void
mla_proj_bwd_dx(void *const *buf, const struct k3_mla_proj_args *a, const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	size_t ck = a->rkv + a->rope, hv = a->h * a->v;
	T *dx = (T *)buf[0], *dqa = (T *)buf[1];
	float *dlat = (float *)buf[5];

	for (uint32_t g = 0; g < a->dq.n; g++) {
		size_t first, n = group_rows(a, g, &first);
		linear_dx_float<T>(cuda, dlat, g > 0, (const T *)buf[a->dq.first + g], n, buf,
				   &a->wqb, first, first + n, a->t);
	}
	norm_backward<T>(dqa, a->rq, (float *)buf[a->dqn.first], (int)a->dqn.accumulate, dlat,
			 (const T *)buf[4], a->rq, (const float *)buf[a->qn.first], a->t, a->rq,
			 a->eps, cuda);
	k3_cuda_linear_dx(cuda, type, dx, a->d, 0, dqa, a->rq, buf, &a->wqa, 0, a->rq, a->t);
	k3_cuda_linear_dx(cuda, type, dx, a->d, 1, buf[2], ck, buf, &a->wkva, 0, ck, a->t);
	k3_cuda_linear_dx(cuda, type, dx, a->d, 1, buf[3], hv, buf, &a->wgate, 0, hv, a->t);
}

template <typename T>
static void
mla_proj_bwd_dw(void *const *buf, const struct k3_mla_proj_args *a, const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	size_t ck = a->rkv + a->rope, hv = a->h * a->v;
	T *work = (T *)buf[5];

	norm_forward<T>(work, (const T *)buf[3], a->rq, (const float *)buf[a->qn.first], a->t,
			a->rq, a->eps, cuda);
	k3_cuda_linear_dw(cuda, type, buf, &a->wqa, 0, a->rq, buf[0], a->rq, buf[4], a->d, a->t);
	for (uint32_t g = 0; g < a->dq.n; g++) {
		size_t first, n = group_rows(a, g, &first);
		k3_cuda_linear_dw(cuda, type, buf, &a->wqb, first, first + n, buf[a->dq.first + g],
				  n, work, a->rq, a->t);
	}
	k3_cuda_linear_dw(cuda, type, buf, &a->wkva, 0, ck, buf[1], ck, buf[4], a->d, a->t);
	k3_cuda_linear_dw(cuda, type, buf, &a->wgate, 0, hv, buf[2], hv, buf[4], a->d, a->t);
}

extern "C" size_t
k3_mla_proj_bwd_dx_cuda_scratch(const struct k3_mla_proj_args *a)
{
	return norm_scratch(a->t, a->rq);
}

K3_CUDA_BOTH(mla_proj_fwd, k3_mla_proj_args)
K3_CUDA_BOTH(mla_proj_bwd_dx, k3_mla_proj_args)
K3_CUDA_BOTH(mla_proj_bwd_dw, k3_mla_proj_args)
