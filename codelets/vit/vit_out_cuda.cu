/* Output product of the tower's attention on CUDA, y = x + o Wo^T; backward it makes delta too. */
#include "../cuda/runs.cuh"

extern "C" {
#include "../../common/op/vit.h"
}

enum { THREADS = 256 };

template <typename T>
static void
vit_out_fwd(void *const *buf, const struct k3_vit_out_args *a, const struct k3_cuda *cuda)
{
	if (a->n == 0)
		return;
	k3_cuda_linear_onto(cuda, k3_type<T>::id, buf[0], a->d, buf[1], buf[2], a->dq, buf, &a->w,
			    0, a->d, a->n);
}

/* A warp per patch and head. */
template <typename T, int N>
static __global__ void
head_dots(float *delta, const T *x, const T *y, size_t heads, size_t hd)
{
	size_t i = (size_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
	float sum = 0;

	if (i >= heads)
		return;
	for (size_t c = threadIdx.x % 32 * N; c < hd; c += 32 * N) {
		float u[N], v[N];
		run_load<T, N>(u, x + i * hd + c);
		run_load<T, N>(v, y + i * hd + c);
#pragma unroll
		for (int k = 0; k < N; k++)
			sum += u[k] * v[k];
	}
	sum = warp_sum(sum);
	if (threadIdx.x % 32 == 0)
		delta[i] = sum;
}

template <typename T>
static void
vit_out_bwd_dx(void *const *buf, const struct k3_vit_out_args *a, const struct k3_cuda *cuda)
{
	const int n = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	size_t heads = a->n * a->h, hd = a->dq / a->h;
	float *delta = (float *)buf[1];
	const T *dout = (const T *)buf[0], *o = (const T *)buf[3];

	k3_cuda_linear_dx(cuda, k3_type<T>::id, buf[0], a->dq, 0, buf[2], a->d, buf, &a->w, 0, a->d,
			  a->n);
	if (heads == 0)
		return;
	if (hd % n == 0)
		head_dots<T, n><<<blocks_for(heads, THREADS / 32), THREADS, 0, stream>>>(
			delta, dout, o, heads, hd);
	else
		head_dots<T, 1><<<blocks_for(heads, THREADS / 32), THREADS, 0, stream>>>(
			delta, dout, o, heads, hd);
	K3_CUDA_LAUNCHED("head_dots");
}

template <typename T>
static void
vit_out_bwd_dw(void *const *buf, const struct k3_vit_out_args *a, const struct k3_cuda *cuda)
{
	k3_cuda_linear_dw(cuda, k3_type<T>::id, buf, &a->w, 0, a->d, buf[0], a->d, buf[1], a->dq,
			  a->n);
}

K3_CUDA_BOTH(vit_out_fwd, k3_vit_out_args)
K3_CUDA_BOTH(vit_out_bwd_dx, k3_vit_out_args)
K3_CUDA_BOTH(vit_out_bwd_dw, k3_vit_out_args)
