/* RMSNorm of the latents (model.md 2.1): a warp has a row, and the factor is recomputed rather
 * than saved.  The gradient of the norm's weight is summed over the rows of a warp, over the warps
 * of a block, then over the blocks, in ascending order. */
#ifndef K3_MLA_NORM_CUH
#define K3_MLA_NORM_CUH
#include "../cuda/runs.cuh"
#include "mla_gemm.cuh"

enum { NORM_WARPS = 8, NORM_THREADS = 32 * NORM_WARPS, NORM_BLOCKS = 256 };

/* Rows of d elements, ld elements from one to the next. */
template <typename T> struct norm_rows {
	T *x;
	size_t ld;
};

template <typename T, int N>
static __global__ void
latent_norm(T *y, struct norm_rows<const T> in, const float *w, size_t t, size_t d, float eps)
{
	size_t row = (size_t)blockIdx.x * NORM_WARPS + threadIdx.x / 32;
	const T *x = in.x + row * in.ld;
	float square = 0, v[N], r;

	if (row >= t)
		return;
	for (size_t c = threadIdx.x % 32 * N; c < d; c += 32 * N) {
		run_load<T, N>(v, x + c);
#pragma unroll
		for (int k = 0; k < N; k++)
			square += v[k] * v[k];
	}
	r = rsqrtf(warp_sum(square) / (float)d + eps);
	for (size_t c = threadIdx.x % 32 * N; c < d; c += 32 * N) {
		run_load<T, N>(v, x + c);
#pragma unroll
		for (int k = 0; k < N; k++)
			v[k] *= r * w[c + k];
		run_store<T, N>(y + row * d + c, v);
	}
}

/* One row: dx, and its part of dw. */
template <typename T, int N>
static __device__ __forceinline__ void
norm_row_back(T *dx, float *dw, const float *dy, const T *x, const float *w, size_t d, float eps)
{
	float square = 0, dot = 0, v[N], g[N];

	for (size_t c = threadIdx.x % 32 * N; c < d; c += 32 * N) {
		run_load<T, N>(v, x + c);
		load_floats<N>(g, dy + c);
#pragma unroll
		for (int k = 0; k < N; k++) {
			square += v[k] * v[k];
			dot += g[k] * w[c + k] * v[k];
		}
	}
	float r = rsqrtf(warp_sum(square) / (float)d + eps), mean = warp_sum(dot) * r / (float)d;
	for (size_t c = threadIdx.x % 32 * N; c < d; c += 32 * N) {
		run_load<T, N>(v, x + c);
		load_floats<N>(g, dy + c);
#pragma unroll
		for (int k = 0; k < N; k++) {
			float n = v[k] * r;
			dw[c + k] += g[k] * n;
			v[k] = r * (g[k] * w[c + k] - n * mean);
		}
		run_store<T, N>(dx + c, v);
	}
}

/* A warp's rows are blockIdx.x * 8 + warp, and every gridDim.x * 8th; parts [blocks, d]. */
template <typename T, int N>
static __global__ void
latent_norm_back(struct norm_rows<T> dx, float *parts, const float *dy,
		 struct norm_rows<const T> in, const float *w, size_t t, size_t d, float eps)
{
	extern __shared__ float sums[]; /* [warps, d]; a lane's columns are its own */
	float *dw = sums + threadIdx.x / 32 * d;

	for (size_t c = threadIdx.x; c < NORM_WARPS * d; c += NORM_THREADS)
		sums[c] = 0;
	__syncthreads();
	for (size_t row = (size_t)blockIdx.x * NORM_WARPS + threadIdx.x / 32; row < t;
	     row += (size_t)gridDim.x * NORM_WARPS)
		norm_row_back<T, N>(dx.x + row * dx.ld, dw, dy + row * d, in.x + row * in.ld, w, d,
				    eps);
	__syncthreads();
	for (size_t c = threadIdx.x; c < d; c += NORM_THREADS) {
		float sum = 0;
		for (int i = 0; i < NORM_WARPS; i++)
			sum += sums[i * d + c];
		parts[blockIdx.x * d + c] = sum;
	}
}

static __global__ void
latent_norm_sum(float *dw, const float *parts, size_t blocks, size_t d, int add)
{
	size_t c = (size_t)blockIdx.x * NORM_THREADS + threadIdx.x;
	float sum = 0;

	if (c >= d)
		return;
#pragma unroll 8
	for (size_t i = 0; i < blocks; i++)
		sum += parts[i * d + c];
	dw[c] = add ? dw[c] + sum : sum;
}

/* Do rows begin at multiples of 16 bytes? */
static inline bool
norm_whole(const void *x, size_t ld, size_t d, size_t pack)
{
	return (uintptr_t)x % 16 == 0 && ld % pack == 0 && d % pack == 0;
}

template <typename T>
static void
norm_forward(T *y, const T *x, size_t ldx, const float *w, size_t t, size_t d, float eps,
	     const struct k3_cuda *cuda)
{
	const int n = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	struct norm_rows<const T> in = {
		x, ldx
	};
	unsigned blocks = blocks_for(t, NORM_WARPS);

	if (t == 0)
		return;
	if (norm_whole(x, ldx, d, n))
		latent_norm<T, n><<<blocks, NORM_THREADS, 0, stream>>>(y, in, w, t, d, eps);
	else
		latent_norm<T, 1><<<blocks, NORM_THREADS, 0, stream>>>(y, in, w, t, d, eps);
	K3_CUDA_LAUNCHED("latent_norm");
}

/** Blocks of norm_backward: the more rows, the more, up to a limit. */
static inline size_t
norm_blocks(size_t t)
{
	size_t blocks = (t + NORM_WARPS - 1) / NORM_WARPS;

	return blocks < NORM_BLOCKS ? blocks : NORM_BLOCKS;
}

/** Bytes of scratch of norm_backward. */
static inline size_t
norm_scratch(size_t t, size_t d)
{
	return norm_blocks(t) * d * sizeof(float);
}

template <typename T, int N>
static void
launch_back(struct norm_rows<T> dx, const float *dy, struct norm_rows<const T> x, const float *w,
	    size_t t, size_t d, float eps, const struct k3_cuda *cuda)
{
	size_t bytes = NORM_WARPS * d * sizeof(float);

	K3_CUDA_CHECK(cudaFuncSetAttribute((const void *)latent_norm_back<T, N>,
					   cudaFuncAttributeMaxDynamicSharedMemorySize,
					   (int)bytes));
	latent_norm_back<T, N>
		<<<(unsigned)norm_blocks(t), NORM_THREADS, bytes, (cudaStream_t)cuda->stream>>>(
			dx, (float *)cuda->scratch, dy, x, w, t, d, eps);
	K3_CUDA_LAUNCHED("latent_norm_back");
}

/** dx with rows lddx apart; dw is added to or written; dy [t, d]. */
template <typename T>
static void
norm_backward(T *dx, size_t lddx, float *dw, int add, const float *dy, const T *x, size_t ldx,
	      const float *w, size_t t, size_t d, float eps, const struct k3_cuda *cuda)
{
	const int n = k3_pack<T>::n;
	struct norm_rows<T> to = {
		dx, lddx
	};
	struct norm_rows<const T> in = {
		x, ldx
	};

	if (t && norm_whole(x, ldx, d, n) && norm_whole(dx, lddx, d, n))
		launch_back<T, n>(to, dy, in, w, t, d, eps, cuda);
	else if (t)
		launch_back<T, 1>(to, dy, in, w, t, d, eps, cuda);
	latent_norm_sum<<<blocks_for(d, NORM_THREADS), NORM_THREADS, 0,
			  (cudaStream_t)cuda->stream>>>(dw, (const float *)cuda->scratch,
							norm_blocks(t), d, add);
	K3_CUDA_LAUNCHED("latent_norm_sum");
}

#endif
