/* Sums over rows in their second stage: the parts that thread blocks left, column by column,
 * always in the same order.  The kernel is launched while the one that makes the parts still runs,
 * since it takes less time than a launch. */
#include "../cuda/device.cuh"
#include "rms_cuda.h"

enum { PARTS = 1056, PARTS_LEAST = 264 };

struct column_sums {
	struct k3_cuda_column_sum s[K3_CUDA_COLUMN_SUMS];
};

/* 32 columns a block; row y of the block adds every 32nd part. */
static __global__ void
column_sums(const __grid_constant__ struct column_sums all, size_t parts, size_t pitch, size_t d)
{
	const struct k3_cuda_column_sum &s = all.s[blockIdx.y];
	__shared__ float sum[32][33];
	size_t c = (size_t)blockIdx.x * 32 + threadIdx.x;
	float x = 0;

	wait_for_predecessor();
	if (c < d)
#pragma unroll 8
		for (size_t p = threadIdx.y; p < parts; p += 32)
			x += s.part[p * pitch + c];
	sum[threadIdx.y][threadIdx.x] = x;
	__syncthreads();
	x = warp_sum(sum[threadIdx.x][threadIdx.y]);
	c = (size_t)blockIdx.x * 32 + threadIdx.y;
	if (threadIdx.x > 0 || c >= d)
		return;
	x *= s.factor ? s.factor[c] : 1.0f;
	s.to[c] = s.accumulate ? s.to[c] + x : x;
}

extern "C" size_t
k3_cuda_row_parts(size_t n, size_t d)
{
	size_t parts = (size_t)PARTS * 1024 / (d ? d : 1);

	if (parts > PARTS)
		parts = PARTS;
	if (parts < PARTS_LEAST)
		parts = PARTS_LEAST;
	return parts < n ? parts : n;
}

extern "C" void
k3_cuda_column_sums(const struct k3_cuda *cuda, const struct k3_cuda_column_sum *sums,
		    size_t n_sums, size_t parts, size_t pitch, size_t d)
{
	struct column_sums all = {};
	cudaLaunchAttribute early = {};
	cudaLaunchConfig_t launch = {};

	if (d == 0 || n_sums == 0)
		return;
	for (size_t i = 0; i < n_sums; i++)
		all.s[i] = sums[i];
	launch.gridDim = dim3(blocks_for(d, 32), (unsigned)n_sums);
	launch.blockDim = dim3(32, 32);
	launch.stream = (cudaStream_t)cuda->stream;
	may_start_early(&launch, &early);
	K3_CUDA_CHECK(cudaLaunchKernelEx(&launch, column_sums, all, parts, pitch, d));
	K3_CUDA_LAUNCHED("column_sums");
}
