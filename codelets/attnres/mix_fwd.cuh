/* Attention-residual mix and norm forward, for any shape: a thread block walks over tokens and
 * looks at a token's values three times. */
#ifndef K3_ATTNRES_MIX_FWD_CUH
#define K3_ATTNRES_MIX_FWD_CUH
#include <math.h>

#include "mix.cuh"

struct mix_vectors {
	const float *gamma, *rho, *w;
};

/* Squares and scores of all values, to warps; `at` is the token's first element. */
template <typename T>
static __device__ __forceinline__ void
score_sums(float *warps, const struct mix_vectors &vec, const struct mix_rows<MIX_MOST> &rows,
	   size_t at, size_t d)
{
	for (uint32_t j = 0; j < rows.n; j += MIX_GROUP) {
		float sums[2 * MIX_GROUP] = {0};
		for (size_t c = threadIdx.x; c < d; c += blockDim.x) {
			float g = vec.gamma[c] * vec.rho[c];
#pragma unroll
			for (int i = 0; i < MIX_GROUP; i++) {
				if (j + i >= rows.n)
					continue;
				float v = wide(((const T *)rows.row.p[j + i])[at + c]);
				sums[2 * i] += v * v;
				sums[2 * i + 1] += v * g;
			}
		}
		mix_put(warps, sums, j, rows.n);
	}
}

/* By the first warp: factors, scores and shares of n values, to stat [3n] and share. */
static __device__ __forceinline__ void
shares(float *share, float *stat, const float *warps, uint32_t n, size_t d, float eps)
{
	uint32_t lane = threadIdx.x;
	float most = -INFINITY, sum = 0;

	for (uint32_t j = lane; j < n; j += 32) {
		float root = sqrtf(mix_get(warps, 2 * j) / (float)d + eps);
		float s = mix_get(warps, 2 * j + 1) / root;
		stat[n + j] = 1.0f / root;
		stat[2 * n + j] = s;
		share[j] = s;
		most = fmaxf(most, s);
	}
	most = warp_max(most);
	for (uint32_t j = lane; j < n; j += 32) {
		share[j] = expf(share[j] - most);
		sum += share[j];
	}
	sum = warp_sum(sum);
	for (uint32_t j = lane; j < n; j += 32) {
		share[j] /= sum;
		stat[j] = share[j];
	}
}

/* The mix at element `at`. */
template <typename T>
static __device__ __forceinline__ float
mix_at(const float *share, const struct mix_rows<MIX_MOST> &rows, size_t at)
{
	float x = 0;

#pragma unroll 4
	for (uint32_t j = 0; j < rows.n; j++)
		x += share[j] * wide(((const T *)rows.row.p[j])[at]);
	return x;
}

/* Shared memory of a block, in floats: sums by warps, shares. */
static inline size_t
mix_fwd_floats(size_t n, size_t threads)
{
	return 2 * n * (threads / 32) + n;
}

template <typename T>
static __global__ void
mix_fwd_any(T *y, float *stat, const __grid_constant__ struct mix_rows<MIX_MOST> rows,
	    const __grid_constant__ struct mix_vectors vec, size_t t, size_t d, float eps)
{
	extern __shared__ __align__(16) float shared[];
	__shared__ float sums[32];
	uint32_t n = rows.n;
	float *warps = shared, *share = warps + 2 * n * (blockDim.x / 32);
	size_t len = 3 * (size_t)n + 1;

	for (size_t i = blockIdx.x; i < t; i += gridDim.x) {
		float square = 0;
		score_sums<T>(warps, vec, rows, i * d, d);
		__syncthreads();
		if (threadIdx.x < 32)
			shares(share, stat + i * len, warps, n, d, eps);
		__syncthreads();
		for (size_t c = threadIdx.x; c < d; c += blockDim.x) {
			float x = mix_at<T>(share, rows, i * d + c);
			square += x * x;
		}
		float r = 1.0f / sqrtf(block_sum(square, sums) / (float)d + eps);
		if (threadIdx.x == 0)
			stat[i * len + 3 * n] = r;
		for (size_t c = threadIdx.x; c < d; c += blockDim.x)
			y[i * d + c] = narrow<T>(mix_at<T>(share, rows, i * d + c) * r * vec.w[c]);
		__syncthreads();
	}
}

#endif
