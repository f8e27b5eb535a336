/* Final norm, mean over frames, 2x2 neighbours side by side on CUDA.  A merged row has one writer per
 * patch position: the warp of its first frame, which has the rows of all frames, normalises them, and
 * adds them in order.  A row is looked at twice; it is in the first-level cache then. */
#include "../cuda/pointers.cuh"
#include "../norm/rms_cuda.h"
#include "vit.cuh"

enum { THREADS = 128 };

/* Offset among the tile's merged tokens of the d elements of a position. */
static __device__ __forceinline__ size_t
merged_at(const struct k3_vit_merge_args &a, const struct place &at)
{
	uint32_t h = (uint32_t)a.merge_h, w = (uint32_t)a.merge_w, row = (uint32_t)at.row,
		 col = (uint32_t)at.col, cols = (uint32_t)at.part[K3_VP_W] / w;
	size_t token = (size_t)at.part[K3_VP_MERGED0] + row / h * cols + col / w;

	return (token * h * w + row % h * w + col % w) * a.d;
}

/* Norm of a row by a warp; z, if any, gets the result too. */
template <typename T, int N>
static __device__ __forceinline__ void
norm_row(T *xf, T *z, float *rstd, const T *x, const float *w, const struct k3_vit_merge_args &a)
{
	size_t lane = threadIdx.x % 32;
	float square = 0, v[N], u[N];

	for (size_t c = lane * N; c < a.d; c += 32 * N) {
		run_load<T, N>(v, x + c);
#pragma unroll
		for (int k = 0; k < N; k++)
			square += v[k] * v[k];
	}
	float r = 1.0f / sqrtf(warp_sum(square) / (float)a.d + a.eps);
	if (lane == 0)
		*rstd = r;
	for (size_t c = lane * N; c < a.d; c += 32 * N) {
		run_load<T, N>(v, x + c);
		run_load<float, N>(u, w + c);
#pragma unroll
		for (int k = 0; k < N; k++)
			v[k] *= r * u[k];
		run_store<T, N>(xf + c, v);
		if (z)
			run_store<T, N>(z + c, v);
	}
}

/* The mean over frames of rows that this warp has written, `step` elements apart. */
template <typename T, int N>
static __device__ __forceinline__ void
mean_rows(T *z, const T *xf, size_t frames, size_t step, size_t d)
{
	float share = 1.0f / (float)frames, sum[N], x[N];

	for (size_t c = threadIdx.x % 32 * N; c < d; c += 32 * N) {
		run_load<T, N>(sum, xf + c);
#pragma unroll
		for (int k = 0; k < N; k++)
			sum[k] *= share;
		for (size_t f = 1; f < frames; f++) {
			run_load<T, N>(x, xf + f * step + c);
#pragma unroll
			for (int k = 0; k < N; k++)
				sum[k] += share * x[k];
		}
		run_store<T, N>(z + c, sum);
	}
}

/* A warp has a patch in all frames, or one that is in no part. */
template <typename T, int N>
static __global__ void
__launch_bounds__(THREADS)
	norm_merge(T *z, T *xf, float *rstd, const T *x, const float *w, const int32_t *layout,
		   const __grid_constant__ struct k3_vit_merge_args a)
{
	size_t i = (size_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, frames = 1, step = 0;

	if (i >= a.n)
		return;
	struct place at = place_of(layout, i);
	if (at.part && at.frame > 0)
		return;
	if (at.part) {
		frames = (size_t)at.part[K3_VP_T];
		step = (size_t)at.part[K3_VP_ROWS] * (size_t)at.part[K3_VP_W];
		z += merged_at(a, at);
	}
	for (size_t f = 0; f < frames; f++) {
		size_t row = i + f * step;
		norm_row<T, N>(xf + row * a.d, at.part && frames == 1 ? z : (T *)NULL, rstd + row,
			       x + row * a.d, w, a);
	}
	if (frames > 1)
		mean_rows<T, N>(z, xf + i * a.d, frames, step * a.d, a.d);
}

template <typename T, int N>
static __global__ void
__launch_bounds__(THREADS) spread(T *dxf, const T *dz, const int32_t *layout,
				  const __grid_constant__ struct k3_vit_merge_args a)
{
	size_t i = (size_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;

	if (i >= a.n)
		return;
	struct place at = place_of(layout, i);
	if (!at.part)
		return;
	float share = 1.0f / (float)at.part[K3_VP_T];
	dz += merged_at(a, at);
	dxf += i * a.d;
	for (size_t c = threadIdx.x % 32 * N; c < a.d; c += 32 * N) {
		float x[N];
		run_load<T, N>(x, dz + c);
#pragma unroll
		for (int k = 0; k < N; k++)
			x[k] *= share;
		run_store<T, N>(dxf + c, x);
	}
}

template <typename T>
static void
vit_merge_fwd(void *const *buf, const struct k3_vit_merge_args *a, const struct k3_cuda *cuda)
{
	const int n = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	T *z = (T *)buf[0], *xf = (T *)buf[1];
	float *rstd = (float *)buf[2];
	const T *x = (const T *)buf[3];
	const float *w = (const float *)buf[a->norm.first];
	const int32_t *layout = (const int32_t *)buf[4];

	if (a->n == 0)
		return;
	unsigned blocks = blocks_for(a->n, THREADS / 32);
	if (a->d % n == 0 && all_aligned(buf, 0, a->n_buf))
		norm_merge<T, n><<<blocks, THREADS, 0, stream>>>(z, xf, rstd, x, w, layout, *a);
	else
		norm_merge<T, 1><<<blocks, THREADS, 0, stream>>>(z, xf, rstd, x, w, layout, *a);
	K3_CUDA_LAUNCHED("norm_merge");
}

extern "C" size_t
k3_vit_merge_bwd_cuda_scratch(const struct k3_vit_merge_args *a)
{
	return k3_cuda_rms_bwd_scratch(a->n, a->d);
}

template <typename T>
static void
vit_merge_bwd(void *const *buf, const struct k3_vit_merge_args *a, const struct k3_cuda *cuda)
{
	const int n = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	T *dxf = (T *)buf[1];
	const T *dz = (const T *)buf[2];
	const int32_t *layout = (const int32_t *)buf[5];
	struct k3_cuda_rms_bwd b = {buf[0],
				    dxf,
				    buf[3],
				    (const float *)buf[a->norm.first],
				    (const float *)buf[4],
				    1,
				    {NULL, NULL},
				    (float *)buf[a->dnorm.first],
				    a->dnorm.accumulate != 0,
				    a->n,
				    a->d};

	unsigned blocks = blocks_for(a->n, THREADS / 32);
	if (a->n && a->d % n == 0 && all_aligned(buf, 0, a->n_buf))
		spread<T, n><<<blocks, THREADS, 0, stream>>>(dxf, dz, layout, *a);
	else if (a->n)
		spread<T, 1><<<blocks, THREADS, 0, stream>>>(dxf, dz, layout, *a);
	K3_CUDA_LAUNCHED("spread");
	k3_cuda_rms_bwd(cuda, k3_type<T>::id, &b);
}

K3_CUDA_BOTH(vit_merge_fwd, k3_vit_merge_args)
K3_CUDA_BOTH(vit_merge_bwd, k3_vit_merge_args)
