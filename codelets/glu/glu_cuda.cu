/* SiTU-GLU feed-forward on CUDA: products by cuBLASLt, one pass over memory for the activation.
 * Rows of gu hold g and then u, so a thread reads two runs of 16 bytes that are f elements apart.
 */
#include "../cuda/device.cuh"
#include "../cuda/situ.cuh"

extern "C" {
#include "../../common/op/glu.h"
}

enum { THREADS = 256 };

/* N elements a thread: 1 where rows are not aligned to 16 bytes. */
template <typename T, int N>
static __global__ void
situ_fwd(T *h, const T *gu, size_t f, size_t total, float b1, float b2)
{
	size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * N;

	if (i >= total)
		return;
	const T *from = gu + i / f * 2 * f + i % f;
	float g[N], u[N], y[N];
	if (N == 1) {
		g[0] = wide(from[0]);
		u[0] = wide(from[f]);
	} else {
		pack_load(g, from);
		pack_load(u, from + f);
	}
#pragma unroll
	for (int k = 0; k < N; k++) {
		struct situ_parts p = situ_parts(g[k], u[k], b1, b2);
		y[k] = situ_value(&p, b1, b2);
	}
	if (N == 1)
		h[i] = narrow<T>(y[0]);
	else
		pack_store(h + i, y);
}

template <typename T, int N>
static __global__ void
situ_bwd(T *dgu, const T *dh, const T *gu, size_t f, size_t total, float b1, float b2)
{
	size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * N;

	if (i >= total)
		return;
	size_t at = i / f * 2 * f + i % f;
	float g[N], u[N], d[N];
	if (N == 1) {
		g[0] = wide(gu[at]);
		u[0] = wide(gu[at + f]);
		d[0] = wide(dh[i]);
	} else {
		pack_load(g, gu + at);
		pack_load(u, gu + at + f);
		pack_load(d, dh + i);
	}
#pragma unroll
	for (int k = 0; k < N; k++) {
		struct situ_parts p = situ_parts(g[k], u[k], b1, b2);
		float dg, du;
		situ_slopes(&p, b1, b2, &dg, &du);
		g[k] = d[k] * dg;
		u[k] = d[k] * du;
	}
	if (N == 1) {
		dgu[at] = narrow<T>(g[0]);
		dgu[at + f] = narrow<T>(u[0]);
	} else {
		pack_store(dgu + at, g);
		pack_store(dgu + at + f, u);
	}
}

template <typename T>
static void
activate(T *h, const T *gu, const struct k3_glu_args *a, const struct k3_cuda *cuda)
{
	const int n = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	size_t total = a->t * a->f;

	if (total == 0)
		return;
	if (a->f % n == 0)
		situ_fwd<T, n><<<blocks_for(total, (size_t)THREADS * n), THREADS, 0, stream>>>(
			h, gu, a->f, total, a->beta1, a->beta2);
	else
		situ_fwd<T, 1><<<blocks_for(total, THREADS), THREADS, 0, stream>>>(
			h, gu, a->f, total, a->beta1, a->beta2);
	K3_CUDA_LAUNCHED("situ_fwd");
}

template <typename T>
static void
glu_gu(void *const *buf, const struct k3_glu_args *a, const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	T *gu = (T *)buf[0];

	k3_cuda_linear_fwd(cuda, type, gu, 2 * a->f, 0, buf[1], a->d, buf, &a->w1, 0, a->f, a->t);
	k3_cuda_linear_fwd(cuda, type, gu + a->f, 2 * a->f, 0, buf[1], a->d, buf, &a->w3, 0, a->f,
			   a->t);
}

template <typename T>
static void
glu_fwd(void *const *buf, const struct k3_glu_args *a, const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	T *gu = (T *)buf[1], *h = (T *)buf[3];

	k3_cuda_linear_fwd(cuda, type, gu, 2 * a->f, 0, buf[2], a->d, buf, &a->w1, 0, a->f, a->t);
	k3_cuda_linear_fwd(cuda, type, gu + a->f, 2 * a->f, 0, buf[2], a->d, buf, &a->w3, 0, a->f,
			   a->t);
	activate<T>(h, gu, a, cuda);
	k3_cuda_linear_onto(cuda, type, buf[0], a->d, a->p_in.n ? buf[a->p_in.first] : NULL, h,
			    a->f, buf, &a->w2, 0, a->d, a->t);
}

template <typename T>
static void
glu_bwd_dx(void *const *buf, const struct k3_glu_args *a, const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	const int n = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	T *dx = (T *)buf[0], *dgu = (T *)buf[1], *dh = (T *)buf[4];
	const T *gu = (const T *)buf[3];
	size_t total = a->t * a->f;

	k3_cuda_linear_dx(cuda, type, dh, a->f, 0, buf[2], a->d, buf, &a->w2, 0, a->d, a->t);
	if (total && a->f % n == 0)
		situ_bwd<T, n><<<blocks_for(total, (size_t)THREADS * n), THREADS, 0, stream>>>(
			dgu, dh, gu, a->f, total, a->beta1, a->beta2);
	else if (total)
		situ_bwd<T, 1><<<blocks_for(total, THREADS), THREADS, 0, stream>>>(
			dgu, dh, gu, a->f, total, a->beta1, a->beta2);
	K3_CUDA_LAUNCHED("situ_bwd");
	k3_cuda_linear_dx(cuda, type, dx, a->d, 0, dgu, 2 * a->f, buf, &a->w1, 0, a->f, a->t);
	k3_cuda_linear_dx(cuda, type, dx, a->d, 1, dgu + a->f, 2 * a->f, buf, &a->w3, 0, a->f,
			  a->t);
}

template <typename T>
static void
glu_bwd_dw(void *const *buf, const struct k3_glu_args *a, const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	const T *dgu = (const T *)buf[0];
	T *h = (T *)buf[4];

	activate<T>(h, (const T *)buf[2], a, cuda);
	k3_cuda_linear_dw(cuda, type, buf, &a->w1, 0, a->f, dgu, 2 * a->f, buf[3], a->d, a->t);
	k3_cuda_linear_dw(cuda, type, buf, &a->w3, 0, a->f, dgu + a->f, 2 * a->f, buf[3], a->d,
			  a->t);
	k3_cuda_linear_dw(cuda, type, buf, &a->w2, 0, a->d, buf[1], a->d, h, a->f, a->t);
}

K3_CUDA_BOTH(glu_gu, k3_glu_args)
K3_CUDA_BOTH(glu_fwd, k3_glu_args)
K3_CUDA_BOTH(glu_bwd_dx, k3_glu_args)
K3_CUDA_BOTH(glu_bwd_dw, k3_glu_args)
