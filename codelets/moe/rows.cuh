/* What the mixture's kernels share: a warp per row, N elements a lane and access (1 where rows are not
 * aligned to 16 bytes). */
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
