/* What both directions of the mix share: the list of a token's rows, and sums for all values at
 * once.
 *
 * Fast: a team of warps has a token, whose values are in registers or in shared memory.  Any other
 * shape: a thread block has a token and reads its rows from memory each time. */
#ifndef K3_ATTNRES_MIX_CUH
#define K3_ATTNRES_MIX_CUH
#include "../cuda/pointers.cuh"
#include "../cuda/runs.cuh"
#include "../cuda/team.cuh"

extern "C" {
#include "../../common/config.h"
#include "../../common/op/attnres.h"
}

enum {
	MIX_MOST = K3_MAX_LAYERS + 1 + 1, /* values and one more row */
	MIX_THREADS = 512,		  /* of the kernels for any shape */
	MIX_GROUP = 4			  /* values whose sums go over the warp together */
};

/* Rows of a token: the blocks, the prefix, and what else comes along. */
template <int MOST> struct mix_rows {
	struct k3_pointers<MOST> row;
	uint32_t n;
};

/** Hides from the compiler that raw was widened before: it would rather keep the floats. */
template <int VALUES, int PACKS>
static __device__ __forceinline__ void
mix_narrow(uint4 (*raw)[PACKS])
{
#pragma unroll
	for (int j = 0; j < VALUES; j++)
#pragma unroll
		for (int i = 0; i < PACKS; i++)
			asm volatile(""
				     : "+r"(raw[j][i].x), "+r"(raw[j][i].y), "+r"(raw[j][i].z),
				       "+r"(raw[j][i].w));
}

/* Eight sums over a warp at once: each step halves the sums that a lane carries.  Lane l gets the
 * one of number mix_sum_of(l), whole in all four lanes that have it. */
static __device__ __forceinline__ float
mix_fold(float *x)
{
#pragma unroll
	for (int half = 4, step = 16; half > 0; half >>= 1, step >>= 1) {
		bool upper = threadIdx.x & step;
#pragma unroll
		for (int i = 0; i < half; i++) {
			float keep = upper ? x[i + half] : x[i], give = upper ? x[i] : x[i + half];
			x[i] = keep + __shfl_xor_sync(0xffffffffu, give, step);
		}
	}
	x[0] += __shfl_xor_sync(0xffffffffu, x[0], 2);
	x[0] += __shfl_xor_sync(0xffffffffu, x[0], 1);
	return x[0];
}

static __device__ __forceinline__ uint32_t
mix_sum_of(uint32_t lane)
{
	return lane >> 2 & 7;
}

/* Two sums of each of MIX_GROUP values from j on, over the warp, to warps [2n][blockDim.x / 32]. */
static __device__ __forceinline__ void
mix_put(float *warps, float *sums, uint32_t j, uint32_t n)
{
	uint32_t lane = threadIdx.x % 32, which = mix_sum_of(lane);
	float x = mix_fold(sums);

	if (lane % 4 == 0 && j + which / 2 < n)
		warps[(2 * j + which) * (blockDim.x / 32) + threadIdx.x / 32] = x;
}

/* One of them over the block. */
static __device__ __forceinline__ float
mix_get(const float *warps, uint32_t i)
{
	uint32_t n = blockDim.x / 32;
	float x = 0;

	for (uint32_t w = 0; w < n; w++)
		x += warps[i * n + w];
	return x;
}

/* Threads of a block for rows of width d: as even a share for each as can be. */
static inline unsigned
mix_threads(size_t d)
{
	size_t turns = (d + MIX_THREADS - 1) / MIX_THREADS, threads = (d + turns - 1) / turns;

	return (unsigned)((threads + 31) / 32 * 32);
}

#endif
