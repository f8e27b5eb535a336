/* Runs of N elements of a row as floats: whole 16-byte packs where rows are aligned, else N = 1. */
#ifndef K3_CUDA_RUNS_CUH
#define K3_CUDA_RUNS_CUH
#include "device.cuh"

template <typename T, int N>
static __device__ __forceinline__ void
run_load(float *x, const T *from)
{
	constexpr int pack = k3_pack<T>::n;

	static_assert(N == 1 || N % pack == 0, "a run is one element or whole packs");
	if constexpr (N == 1) {
		x[0] = wide(from[0]);
	} else {
#pragma unroll
		for (int k = 0; k < N; k += pack)
			pack_load(x + k, from + k);
	}
}

template <typename T, int N>
static __device__ __forceinline__ void
run_store(T *to, const float *x)
{
	constexpr int pack = k3_pack<T>::n;

	if constexpr (N == 1) {
		to[0] = narrow<T>(x[0]);
	} else {
#pragma unroll
		for (int k = 0; k < N; k += pack)
			pack_store(to + k, x + k);
	}
}

#endif
