/* Final norm, mean over frames, 2x2 neighbours side by side on CUDA.  A merged row has one writer per
 * patch position: the thread block of its first frame, which adds the frames in order. */
#include "../norm/rms_cuda.h"
#include "vit.cuh"

enum { THREADS = 128 };

/* Offset among the tile's merged tokens of the d elements of a position. */
static __device__ __forceinline__ size_t
merged_at(const struct k3_vit_merge_args &a, const struct place &at)
{
	size_t cols = (size_t)at.part[K3_VP_W];
	size_t token = (size_t)at.part[K3_VP_MERGED0] + at.row / a.merge_h * (cols / a.merge_w) +
		       at.col / a.merge_w;
	size_t neighbour = at.row % a.merge_h * a.merge_w + at.col % a.merge_w;

	return (token * a.merge_h * a.merge_w + neighbour) * a.d;
}

template <typename T, int N>
static __global__ void
merge(T *z, const T *xf, const int32_t *layout, const __grid_constant__ struct k3_vit_merge_args a)
{
	struct place at = place_of(layout, blockIdx.x);

	if (!at.part || at.frame > 0)
		return;
	size_t frames = (size_t)at.part[K3_VP_T],
	       step = (size_t)at.part[K3_VP_ROWS] * (size_t)at.part[K3_VP_W] * a.d;
	float share = 1.0f / (float)frames;
	z += merged_at(a, at);
	xf += blockIdx.x * a.d;
	for (size_t c = threadIdx.x * N; c < a.d; c += THREADS * N) {
		float sum[N], x[N];
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

template <typename T, int N>
static __global__ void
spread(T *dxf, const T *dz, const int32_t *layout,
       const __grid_constant__ struct k3_vit_merge_args a)
{
	struct place at = place_of(layout, blockIdx.x);

	if (!at.part)
		return;
	float share = 1.0f / (float)at.part[K3_VP_T];
	dz += merged_at(a, at);
	dxf += blockIdx.x * a.d;
	for (size_t c = threadIdx.x * N; c < a.d; c += THREADS * N) {
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
	const int32_t *layout = (const int32_t *)buf[4];

	if (a->n == 0)
		return;
	k3_cuda_rms_fwd(cuda, k3_type<T>::id, xf, (float *)buf[2], 1, buf[3],
			(const float *)buf[a->norm.first], a->n, a->d, a->eps);
	if (a->d % n == 0)
		merge<T, n><<<(unsigned)a->n, THREADS, 0, stream>>>(z, xf, layout, *a);
	else
		merge<T, 1><<<(unsigned)a->n, THREADS, 0, stream>>>(z, xf, layout, *a);
	K3_CUDA_LAUNCHED("merge");
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

	if (a->n && a->d % n == 0)
		spread<T, n><<<(unsigned)a->n, THREADS, 0, stream>>>(dxf, dz, layout, *a);
	else if (a->n)
		spread<T, 1><<<(unsigned)a->n, THREADS, 0, stream>>>(dxf, dz, layout, *a);
	K3_CUDA_LAUNCHED("spread");
	k3_cuda_rms_bwd(cuda, k3_type<T>::id, &b);
}

K3_CUDA_BOTH(vit_merge_fwd, k3_vit_merge_args)
K3_CUDA_BOTH(vit_merge_bwd, k3_vit_merge_args)
