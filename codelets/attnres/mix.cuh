/* What both directions of the mix share: the values of a token, brought to shared memory while the
 * token before it is worked on, and sums for all values at once.
 *
 * A thread owns columns: it copies, reads and writes the same packs of every row, so the copies need
 * no barrier.  Rows that are not aligned to 16 bytes, and tokens too large for shared memory, are read
 * from memory each time (N = 1). */
#ifndef K3_ATTNRES_MIX_CUH
#define K3_ATTNRES_MIX_CUH
#include <cuda_pipeline.h>

#include "../cuda/pointers.cuh"
#include "../cuda/runs.cuh"

extern "C" {
#include "../../common/config.h"
#include "../../common/op/attnres.h"
}

enum {
	MIX_STAGED = 20,		  /* rows of a token in shared memory at most */
	MIX_MOST = K3_MAX_LAYERS + 1 + 1, /* values and one more row */
	MIX_THREADS = 512,
	MIX_SHARED = 220 << 10, /* bytes that a block may use */
	MIX_GROUP = 4		/* values whose sums go over the warp together */
};

/* Rows of a token: the blocks, the prefix, and what else comes along. */
template <int MOST> struct mix_rows {
	struct k3_pointers<MOST> row;
	uint32_t n;
};

/* Where a token's rows lie: in shared memory (N > 1) or in memory. */
template <typename T, int N, int MOST> struct mix_token {
	const struct mix_rows<MOST> *rows;
	const T *stage; /* of this token */
	size_t at, d;	/* first element of the token's rows */
};

template <typename T, int N, int MOST>
static __device__ __forceinline__ void
mix_load(float *x, const struct mix_token<T, N, MOST> &token, uint32_t j, size_t c)
{
	if (N == 1)
		run_load<T, N>(x, (const T *)token.rows->row.p[j] + token.at + c);
	else
		run_load<T, N>(x, token.stage + j * token.d + c);
}

/* Begins to copy a token's rows; always one group of copies, even of nothing. */
template <typename T, int N, int MOST>
static __device__ __forceinline__ void
mix_fetch(T *stage, const struct mix_rows<MOST> &rows, size_t token, size_t t, size_t d)
{
	for (uint32_t j = 0; N > 1 && token < t && j < rows.n; j++)
		for (size_t c = threadIdx.x * N; c < d; c += blockDim.x * N)
			__pipeline_memcpy_async(stage + j * d + c,
						(const T *)rows.row.p[j] + token * d + c, 16);
	__pipeline_commit();
}

/* The token's own copies have arrived; those of the next may be under way. */
static __device__ __forceinline__ void
mix_wait(int stages)
{
	if (stages > 1)
		__pipeline_wait_prior(1);
	else
		__pipeline_wait_prior(0);
}

/* Eight sums over a warp at once: each step halves the sums that a lane carries.  Lane l gets the one
 * of number mix_sum_of(l), whole in all four lanes that have it. */
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

/* Threads of a block for rows of width d in runs of N: as even a share for each as can be. */
static inline unsigned
mix_threads(size_t d, size_t n)
{
	size_t runs = (d + n - 1) / n, turns = (runs + MIX_THREADS - 1) / MIX_THREADS;
	size_t threads = (runs + turns - 1) / turns;

	return (unsigned)((threads + 31) / 32 * 32);
}

#endif
