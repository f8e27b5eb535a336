/* The two GELUs of the tower and their gradients, one pass over memory; output and input may be the
 * same.  Element by element where an address is not aligned. */
#ifndef K3_VIT_GELU_CUH
#define K3_VIT_GELU_CUH
#include "../cuda/runs.cuh"

enum { GELU_THREADS = 256 };

/* gelu_tanh(x) = x sigmoid(2z), z = sqrt(2/pi) (x + 0.044715 x^3).  Beyond 16 the sigmoid is 0 or 1;
 * the cut keeps powers finite. */
struct gelu_tanh {
	static __device__ __forceinline__ float
	sigmoid_of(float x)
	{
		return 1.0f / (1.0f + __expf(-x * (1.59576912f + 0.0713548163f * x * x)));
	}
	static __device__ __forceinline__ float
	value(float x)
	{
		return x * sigmoid_of(fminf(fmaxf(x, -16.0f), 16.0f));
	}
	static __device__ __forceinline__ float
	slope(float x)
	{
		float c = fminf(fmaxf(x, -16.0f), 16.0f), s = sigmoid_of(c);

		return s * (1.0f + c * (1.0f - s) * (1.59576912f + 0.214064449f * c * c));
	}
};

/* x Phi(x) of the normal distribution. */
struct gelu_erf {
	static __device__ __forceinline__ float
	value(float x)
	{
		return x * normcdff(x);
	}
	static __device__ __forceinline__ float
	slope(float x)
	{
		return normcdff(x) + x * 0.398942280f * __expf(-0.5f * x * x);
	}
};

/* y = gelu(x), or y = dy gelu'(x). */
template <typename G, typename T, int N>
static __global__ void
gelu_run(T *y, const T *dy, const T *x, size_t n)
{
	size_t i = ((size_t)blockIdx.x * GELU_THREADS + threadIdx.x) * N;
	float v[N], d[N];

	if (i >= n)
		return;
	run_load<T, N>(v, x + i);
	if (dy)
		run_load<T, N>(d, dy + i);
#pragma unroll
	for (int k = 0; k < N; k++)
		v[k] = dy ? d[k] * G::slope(v[k]) : G::value(v[k]);
	run_store<T, N>(y + i, v);
}

/** dy NULL: the function itself. */
template <typename G, typename T>
static void
gelu(T *y, const T *dy, const T *x, size_t n, const struct k3_cuda *cuda)
{
	const int pack = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	uintptr_t bits = (uintptr_t)y | (uintptr_t)dy | (uintptr_t)x;

	if (n == 0)
		return;
	if (bits % 16 == 0 && n % pack == 0)
		gelu_run<G, T, pack>
			<<<blocks_for(n, (size_t)GELU_THREADS * pack), GELU_THREADS, 0, stream>>>(
				y, dy, x, n);
	else
		gelu_run<G, T, 1>
			<<<blocks_for(n, GELU_THREADS), GELU_THREADS, 0, stream>>>(y, dy, x, n);
	K3_CUDA_LAUNCHED("gelu");
}

#endif
