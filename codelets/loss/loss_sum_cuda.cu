/* Sums of a tile's token losses, one block: numbers in double, threads take every 1024th row and are
 * added in one tree. */
#include "../cuda/device.cuh"
#include "../cuda/pointers.cuh"

extern "C" {
#include "../../common/op/loss.h"
}

enum { THREADS = 1024, TILES_MOST = 256 };

static __device__ double
block_total(double x, double *shared)
{
	shared[threadIdx.x] = x;
	for (unsigned half = THREADS / 2; half > 0; half /= 2) {
		__syncthreads();
		if (threadIdx.x < half)
			shared[threadIdx.x] += shared[threadIdx.x + half];
	}
	__syncthreads();
	x = shared[0];
	__syncthreads();
	return x;
}

/* Rows first .. first + n - 1 of the tile; tstat holds theirs. */
static __global__ void
sum(double *acc, const int32_t *labels, const int32_t *layout,
    const __grid_constant__ struct k3_pointers<TILES_MOST> tstat, size_t first, size_t n,
    size_t each, bool adds)
{
	__shared__ double shared[THREADS];
	const int32_t *doc = layout + K3_TL_HEAD;
	double part[K3_LOSS_LEN] = {0, 0, 0, 0};

	for (size_t i = threadIdx.x; i < n; i += THREADS) {
		const float *at = (const float *)tstat.p[i / each] + 2 * (i % each);
		part[K3_LOSS_TOKENS] += doc[first + i] != 0;
		if (labels[first + i] < 0)
			continue;
		part[K3_LOSS_SUM] += (double)at[0];
		part[K3_LOSS_CORRECT] += (double)at[1];
		part[K3_LOSS_VALID] += 1;
	}
#pragma unroll
	for (int k = 0; k < K3_LOSS_LEN; k++) {
		double total = block_total(part[k], shared);
		if (threadIdx.x == 0)
			acc[k] = adds ? acc[k] + total : total;
	}
}

static void
loss_sum(void *const *buf, const struct k3_loss_sum_args *a, const struct k3_cuda *cuda)
{
	size_t first = 0;
	uint32_t tile = 0;

	do {
		uint32_t left = a->tstat.n - tile, n = left < TILES_MOST ? left : TILES_MOST;
		size_t rows = a->t - first < n * a->rows_each ? a->t - first : n * a->rows_each;
		sum<<<1, THREADS, 0, (cudaStream_t)cuda->stream>>>(
			(double *)buf[0], (const int32_t *)buf[1], (const int32_t *)buf[2],
			pointers_of<TILES_MOST>(buf, a->tstat.first + tile, n), first, rows,
			a->rows_each, a->accumulate || tile > 0);
		K3_CUDA_LAUNCHED("sum");
		first += rows;
		tile += n;
	} while (tile < a->tstat.n);
}

K3_CUDA_SAME(loss_sum, k3_loss_sum_args)
