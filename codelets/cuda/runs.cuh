/* Runs of N elements of a row as floats: where rows are aligned whole 16-byte packs, or four bf16;
 * else N = 1. */
#ifndef K3_CUDA_RUNS_CUH
#define K3_CUDA_RUNS_CUH
#include "device.cuh"

template <typename T, int N>
static __device__ __forceinline__ void
run_load(float *x, const T *from)
{
	constexpr int pack = k3_pack<T>::n;

	static_assert(N == 1 || N % pack == 0 || (N == 4 && sizeof(T) == 2),
		      "a run is one element, whole packs or half a pack of bf16");
	if constexpr (N == 1) {
		x[0] = wide(from[0]);
	} else if constexpr (N < pack) {
		uint2 raw = *reinterpret_cast<const uint2 *>(from);
		x[0] = __uint_as_float(raw.x << 16), x[1] = __uint_as_float(raw.x & 0xffff0000u);
		x[2] = __uint_as_float(raw.y << 16), x[3] = __uint_as_float(raw.y & 0xffff0000u);
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
	} else if constexpr (N < pack) {
		uint2 raw;
#pragma unroll
		for (int k = 0; k < N; k++)
			reinterpret_cast<T *>(&raw)[k] = narrow<T>(x[k]);
		*reinterpret_cast<uint2 *>(to) = raw;
	} else {
#pragma unroll
		for (int k = 0; k < N; k += pack)
			pack_store(to + k, x + k);
	}
}

#endif
