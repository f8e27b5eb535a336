/* Queries, keys and values of a tower block on CUDA: norm, one product, 2-D rotation.
 *
 * Pair 2i of a head turns by column f_i, pair 2i+1 by row f_i, f_i = 10000^(-4i/hd).  A thread block
 * has a patch: its angles are the same for all heads, so their sines are made once, in double, because
 * angles reach hundreds of turns.
 */
#include "../norm/rms_cuda.h"
#include "vit.cuh"

enum { THREADS = 128 };

/* Cosine and sine of each pair of a patch, [hd / 2]; sign -1 turns back. */
static __device__ __forceinline__ void
angles(float2 *turn, const struct place &at, size_t hd, double sign)
{
	const double log2_theta = 13.28771237954945; /* log2(10000) */

	for (size_t m = threadIdx.x; m < hd / 2; m += THREADS) {
		size_t i = m / 2, where = m % 2 ? (size_t)at.part[K3_VP_ROW0] + at.row : at.col;
		double s, c, f = exp2(-4.0 * (double)i / (double)hd * log2_theta);

		sincos((double)where * f, &s, &c);
		turn[m] = make_float2((float)c, (float)(sign * s));
	}
}

/* Turns `heads` heads that follow each other; to may be from. */
template <typename T, int N>
static __device__ __forceinline__ void
turn_heads(T *to, const T *from, const float2 *turn, size_t heads, size_t hd)
{
	for (size_t c = threadIdx.x * N; c < heads * hd; c += THREADS * N) {
		float x[N];
		run_load<T, N>(x, from + c);
#pragma unroll
		for (int k = 0; k < N; k += 2) {
			float2 t = turn[(c + k) % hd / 2];
			float even = x[k], odd = x[k + 1];
			x[k] = even * t.x - odd * t.y;
			x[k + 1] = odd * t.x + even * t.y;
		}
		run_store<T, N>(to + c, x);
	}
}

/* Rows that are not aligned: a thread has a pair. */
template <typename T>
static __device__ __forceinline__ void
turn_pairs(T *to, const T *from, const float2 *turn, size_t heads, size_t hd)
{
	for (size_t c = threadIdx.x * 2; c < heads * hd; c += THREADS * 2) {
		float2 t = turn[c % hd / 2];
		float even = wide(from[c]), odd = wide(from[c + 1]);
		to[c] = narrow<T>(even * t.x - odd * t.y);
		to[c + 1] = narrow<T>(odd * t.x + even * t.y);
	}
}

template <typename T, int N>
static __device__ __forceinline__ void
turn(T *to, const T *from, const float2 *turn, size_t heads, size_t hd)
{
	if constexpr (N == 1)
		turn_pairs<T>(to, from, turn, heads, hd);
	else
		turn_heads<T, N>(to, from, turn, heads, hd);
}

template <typename T, int N>
static __global__ void
turn_qk(T *qkv, const int32_t *layout, size_t dq, size_t h)
{
	extern __shared__ float2 table[];
	struct place at = place_of(layout, blockIdx.x);
	T *row = qkv + blockIdx.x * 3 * dq;

	if (!at.part)
		return;
	angles(table, at, dq / h, 1);
	__syncthreads();
	turn<T, N>(row, row, table, 2 * h, dq / h);
}

/* dp = queries and keys turned back, values as they are. */
template <typename T, int N>
static __global__ void
turn_back(T *dp, const T *dq_in, const T *dkv, const int32_t *layout, size_t dq, size_t h)
{
	extern __shared__ float2 table[];
	struct place at = place_of(layout, blockIdx.x);
	T *row = dp + blockIdx.x * 3 * dq;

	if (!at.part)
		return;
	dkv += blockIdx.x * 2 * dq;
	angles(table, at, dq / h, -1);
	__syncthreads();
	turn<T, N>(row, dq_in + blockIdx.x * dq, table, h, dq / h);
	turn<T, N>(row + dq, dkv, table, h, dq / h);
	for (size_t c = threadIdx.x * N; c < dq; c += THREADS * N) {
		float x[N];
		run_load<T, N>(x, dkv + dq + c);
		run_store<T, N>(row + 2 * dq + c, x);
	}
}

template <typename T>
static void
vit_qkv_fwd(void *const *buf, const struct k3_vit_qkv_args *a, const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	const int n = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	T *qkv = (T *)buf[0];
	const int32_t *layout = (const int32_t *)buf[3];
	size_t ld = 3 * a->dq, hd = a->dq / a->h, bytes = hd / 2 * sizeof(float2);

	if (a->n == 0)
		return;
	k3_cuda_rms_fwd(cuda, type, buf[4], (float *)buf[1], 1, buf[2],
			(const float *)buf[a->norm.first], a->n, a->d, a->eps);
	k3_cuda_linear_fwd(cuda, type, qkv, ld, 0, buf[4], a->d, buf, &a->w, 0, ld, a->n);
	if (hd % n == 0)
		turn_qk<T, n><<<(unsigned)a->n, THREADS, bytes, stream>>>(qkv, layout, a->dq, a->h);
	else
		turn_qk<T, 1><<<(unsigned)a->n, THREADS, bytes, stream>>>(qkv, layout, a->dq, a->h);
	K3_CUDA_LAUNCHED("turn_qk");
}

extern "C" size_t
k3_vit_qkv_bwd_dx_cuda_scratch(const struct k3_vit_qkv_args *a)
{
	return k3_cuda_rms_bwd_scratch(a->n, a->d);
}

template <typename T>
static void
vit_qkv_bwd_dx(void *const *buf, const struct k3_vit_qkv_args *a, const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	const int n = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	T *dp = (T *)buf[1];
	const T *dq = (const T *)buf[3], *dkv = (const T *)buf[4];
	const int32_t *layout = (const int32_t *)buf[7];
	size_t ld = 3 * a->dq, hd = a->dq / a->h, bytes = hd / 2 * sizeof(float2);
	struct k3_cuda_rms_bwd b = {buf[0],
				    buf[8],
				    buf[5],
				    (const float *)buf[a->norm.first],
				    (const float *)buf[6],
				    1,
				    {buf[2], NULL},
				    (float *)buf[a->dnorm.first],
				    a->dnorm.accumulate != 0,
				    a->n,
				    a->d};

	if (a->n && hd % n == 0)
		turn_back<T, n><<<(unsigned)a->n, THREADS, bytes, stream>>>(dp, dq, dkv, layout,
									    a->dq, a->h);
	else if (a->n)
		turn_back<T, 1><<<(unsigned)a->n, THREADS, bytes, stream>>>(dp, dq, dkv, layout,
									    a->dq, a->h);
	K3_CUDA_LAUNCHED("turn_back");
	k3_cuda_linear_dx(cuda, type, buf[8], a->d, 0, dp, ld, buf, &a->w, 0, ld, a->n);
	k3_cuda_rms_bwd(cuda, type, &b);
}

template <typename T>
static void
vit_qkv_bwd_dw(void *const *buf, const struct k3_vit_qkv_args *a, const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	size_t ld = 3 * a->dq;

	k3_cuda_rms_again(cuda, type, buf[3], (const float *)buf[2], 1, buf[1],
			  (const float *)buf[a->norm.first], a->n, a->d);
	k3_cuda_linear_dw(cuda, type, buf, &a->w, 0, ld, buf[0], ld, buf[3], a->d, a->n);
}

K3_CUDA_BOTH(vit_qkv_fwd, k3_vit_qkv_args)
K3_CUDA_BOTH(vit_qkv_bwd_dx, k3_vit_qkv_args)
K3_CUDA_BOTH(vit_qkv_bwd_dw, k3_vit_qkv_args)
