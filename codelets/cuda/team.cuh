/* Teams: the threads of a block that share threadIdx.y, whole warps, work on a row of memory
 * together.  A team of one warp needs no barrier. */
#ifndef K3_CUDA_TEAM_CUH
#define K3_CUDA_TEAM_CUH
#include "device.cuh"

enum { TEAMS_MOST = 8 };

/** Waits for the team; one of several warps has a barrier of its own. */
static __device__ __forceinline__ void
team_sync(void)
{
	if (blockDim.x == 32)
		__syncwarp();
	else
		asm volatile("bar.sync %0, %1;"
			     :
			     : "r"(1 + threadIdx.y), "r"(blockDim.x)
			     : "memory");
}

/**
 * Behind a loop over rows threadIdx.y * gridDim.x + blockIdx.x, .. + gridDim.x * blockDim.y, ..: a
 * team that had a row fewer than the block's first passes the barriers of one more.  Nothing needs
 * that but compute-sanitizer: for its racecheck a warp's time is the number of barriers that it
 * has passed, whichever they are, and teams at different times race at the block's next one.
 */
static __device__ __forceinline__ void
team_catch_up(size_t row, size_t rows, int barriers)
{
	if (row - (size_t)threadIdx.y * gridDim.x < rows)
		for (int i = 0; i < barriers; i++)
			team_sync();
}

/**
 * N sums over the team, in all its threads.
 * @param part  shared, [warps of the team][N]; the next call has to take another one
 */
template <int N>
static __device__ __forceinline__ void
team_sums(float *x, float *part)
{
	unsigned warp = threadIdx.x / 32, warps = blockDim.x / 32;

#pragma unroll
	for (int i = 0; i < N; i++)
		x[i] = warp_sum(x[i]);
	if (warps == 1)
		return;
	if (threadIdx.x % 32 == 0)
#pragma unroll
		for (int i = 0; i < N; i++)
			part[warp * N + i] = x[i];
	team_sync();
#pragma unroll
	for (int i = 0; i < N; i++)
		x[i] = 0;
	for (unsigned k = 0; k < warps; k++)
#pragma unroll
		for (int i = 0; i < N; i++)
			x[i] += part[k * N + i];
}

/** Sums over the block's teams, to n values: what each has left at shared, [teams][n]. */
static __device__ __forceinline__ void
teams_add(float *to, const float *shared, uint32_t n)
{
	__syncthreads();
	for (uint32_t i = threadIdx.y * blockDim.x + threadIdx.x; i < n;
	     i += blockDim.x * blockDim.y) {
		float sum = 0;
		for (unsigned team = 0; team < blockDim.y; team++)
			sum += shared[team * n + i];
		to[i] = sum;
	}
}

/** Threads of a team for rows of `packs` packs, `each` to a thread at most. */
static inline unsigned
team_threads(size_t packs, size_t each)
{
	return (unsigned)((packs + 32 * each - 1) / (32 * each) * 32);
}

#endif
