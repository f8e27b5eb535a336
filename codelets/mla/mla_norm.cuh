/* RMSNorm of the latents (model.md 2.1): a block of the grid has a row, and the factor is recomputed
 * rather than saved.  The gradient of the norm's weight is summed over runs of rows first, then over
 * the runs, in ascending order. */
#ifndef K3_MLA_NORM_CUH
#define K3_MLA_NORM_CUH
#include "../cuda/device.cuh"

enum { NORM_THREADS = 256, NORM_RUNS = 256 };

/* Rows of d elements, ld elements from one to the next. */
template <typename T> struct norm_rows {
	const T *x;
	size_t ld;
};

template <typename T>
static __device__ __forceinline__ float
norm_factor(const T *x, size_t d, float eps, float *part)
{
	float square = 0;

	for (size_t c = threadIdx.x; c < d; c += NORM_THREADS)
		square += wide(x[c]) * wide(x[c]);
	return rsqrtf(block_sum(square, part) / (float)d + eps);
}

template <typename T>
static __global__ void
latent_norm(T *y, struct norm_rows<T> in, const float *w, size_t d, float eps)
{
	__shared__ float part[32];
	const T *x = in.x + blockIdx.x * in.ld;
	float r = norm_factor(x, d, eps, part);

	for (size_t c = threadIdx.x; c < d; c += NORM_THREADS)
		y[blockIdx.x * d + c] = narrow<T>(wide(x[c]) * r * w[c]);
}

/* Rows blockIdx.x * run .. of dx, and their part of dw in parts [blocks, d]. */
template <typename T>
static __global__ void
latent_norm_back(T *dx, size_t lddx, float *parts, const T *dy, struct norm_rows<T> in,
		 const float *w, size_t t, size_t run, size_t d, float eps)
{
	__shared__ float part[32];
	extern __shared__ float dw[];
	size_t end = (blockIdx.x + 1) * run < t ? (blockIdx.x + 1) * run : t;

	for (size_t c = threadIdx.x; c < d; c += NORM_THREADS)
		dw[c] = 0; /* a column belongs to one thread */
	for (size_t row = blockIdx.x * run; row < end; row++) {
		const T *x = in.x + row * in.ld, *g = dy + row * d;
		float r = norm_factor(x, d, eps, part), dot = 0;
		for (size_t c = threadIdx.x; c < d; c += NORM_THREADS)
			dot += wide(g[c]) * w[c] * wide(x[c]);
		float mean = block_sum(dot, part) * r / (float)d;
		for (size_t c = threadIdx.x; c < d; c += NORM_THREADS) {
			float n = wide(x[c]) * r, dn = wide(g[c]);
			dx[row * lddx + c] = narrow<T>(r * (dn * w[c] - n * mean));
			dw[c] += dn * n;
		}
	}
	for (size_t c = threadIdx.x; c < d; c += NORM_THREADS)
		parts[blockIdx.x * d + c] = dw[c];
}

static __global__ void
latent_norm_sum(float *dw, const float *parts, size_t runs, size_t d, int add)
{
	size_t c = (size_t)blockIdx.x * NORM_THREADS + threadIdx.x;
	float sum = 0;

	if (c >= d)
		return;
	for (size_t i = 0; i < runs; i++)
		sum += parts[i * d + c];
	dw[c] = add ? dw[c] + sum : sum;
}

template <typename T>
static void
norm_forward(T *y, const T *x, size_t ldx, const float *w, size_t t, size_t d, float eps,
	     const struct k3_cuda *cuda)
{
	struct norm_rows<T> in = {x, ldx};

	if (t == 0)
		return;
	latent_norm<T><<<(unsigned)t, NORM_THREADS, 0, (cudaStream_t)cuda->stream>>>(y, in, w, d,
										     eps);
	K3_CUDA_LAUNCHED("latent_norm");
}

/** Bytes of scratch of norm_backward. */
static inline size_t
norm_scratch(size_t t, size_t d)
{
	return (t < NORM_RUNS ? t : NORM_RUNS) * d * sizeof(float);
}

template <typename T>
static void
norm_backward(T *dx, size_t lddx, float *dw, int add, const T *dy, const T *x, size_t ldx,
	      const float *w, size_t t, size_t d, float eps, const struct k3_cuda *cuda)
{
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	struct norm_rows<T> in = {x, ldx};
	size_t run = (t + NORM_RUNS - 1) / NORM_RUNS, runs = t ? (t + run - 1) / run : 0;
	float *parts = (float *)cuda->scratch;

	if (runs)
		latent_norm_back<T><<<(unsigned)runs, NORM_THREADS, d * sizeof(float), stream>>>(
			dx, lddx, parts, dy, in, w, t, run, d, eps);
	K3_CUDA_LAUNCHED("latent_norm_back");
	latent_norm_sum<<<blocks_for(d, NORM_THREADS), NORM_THREADS, 0, stream>>>(dw, parts, runs,
										  d, add);
	K3_CUDA_LAUNCHED("latent_norm_sum");
}

#endif
