/* What the mixture's kernels share: a warp per row, N elements a lane and access (1 where rows
 * are not aligned to 16 bytes). */
#ifndef K3_MOE_ROWS_CUH
#define K3_MOE_ROWS_CUH
#include "../cuda/runs.cuh"

enum { ROW_WARPS = 8 };

/** What a float is after it was stored as T. */
template <typename T>
static __device__ __forceinline__ float
as_stored(float x)
{
	return wide(narrow<T>(x));
}

/** Row of this warp in a grid of ROW_WARPS rows a block. */
static __device__ __forceinline__ size_t
warp_row(void)
{
	return (size_t)blockIdx.x * ROW_WARPS + (threadIdx.x >> 5);
}

/* A row in registers, RUNS times N elements a lane: longer rows are left to kernels that read
 * them twice.  What is behind the row is zero. */
template <typename T, int N, int RUNS>
static __device__ __forceinline__ void
row_load(float (&x)[RUNS][N], const T *row, size_t width)
{
#pragma unroll
	for (int i = 0; i < RUNS; i++) {
		size_t c = (size_t)((threadIdx.x & 31) + 32 * i) * N;
#pragma unroll
		for (int q = 0; q < N; q++)
			x[i][q] = 0;
		if (c < width)
			run_load<T, N>(x[i], row + c);
	}
}

template <typename T, int N, int RUNS>
static __device__ __forceinline__ void
row_store(T *row, const float (&x)[RUNS][N], size_t width)
{
#pragma unroll
	for (int i = 0; i < RUNS; i++) {
		size_t c = (size_t)((threadIdx.x & 31) + 32 * i) * N;
		if (c < width)
			run_store<T, N>(row + c, x[i]);
	}
}

template <int N, int RUNS>
static __device__ __forceinline__ float
row_dot(const float (&x)[RUNS][N], const float (&y)[RUNS][N])
{
	float sum = 0;

#pragma unroll
	for (int i = 0; i < RUNS; i++)
#pragma unroll
		for (int q = 0; q < N; q++)
			sum += x[i][q] * y[i][q];
	return warp_sum(sum);
}

/* Launches kernel<T, N> with a warp for each row; rows of width elements decide on N. */
#define LAUNCH_ROWS(kernel, T, width, rows, cuda, ...)                                             \
	do {                                                                                       \
		unsigned blocks_ = blocks_for(rows, ROW_WARPS);                                    \
		cudaStream_t stream_ = (cudaStream_t)(cuda)->stream;                               \
		if ((rows) == 0 || (width) == 0)                                                   \
			break;                                                                     \
		if ((width) % k3_pack<T>::n == 0)                                                  \
			kernel<T, k3_pack<T>::n>                                                   \
				<<<blocks_, 32 * ROW_WARPS, 0, stream_>>>(__VA_ARGS__);            \
		else                                                                               \
			kernel<T, 1><<<blocks_, 32 * ROW_WARPS, 0, stream_>>>(__VA_ARGS__);        \
		K3_CUDA_LAUNCHED(#kernel);                                                         \
	} while (0)

#endif
