/* Expert loads of a tile on CUDA: integers, whose sums do not depend on the order, so atomics are
 * legal here.  The trap is that of the CPU kernel: a bin's position is evaluated in double. */
#include <math.h>

#include "../cuda/device.cuh"

extern "C" {
#include "../../common/op/moe.h"
}

enum { THREADS = 256, TOKENS = 32 };

/* Lowest and highest bias, in all threads. */
static __device__ void
bias_range(float *lo, float *hi, const float *bias, int n)
{
	__shared__ float low[THREADS / 32], high[THREADS / 32];
	float l = bias[0], h = l;

	for (int e = threadIdx.x; e < n; e += THREADS) {
		l = bias[e] < l ? bias[e] : l;
		h = bias[e] > h ? bias[e] : h;
	}
	l = -warp_max(-l);
	h = warp_max(h);
	if ((threadIdx.x & 31) == 0) {
		low[threadIdx.x >> 5] = l;
		high[threadIdx.x >> 5] = h;
	}
	__syncthreads();
	for (int i = 0; i < THREADS / 32; i++) {
		l = fminf(l, low[i]);
		h = fmaxf(h, high[i]);
	}
	*lo = l;
	*hi = h;
}

static __device__ __forceinline__ int
bin_of(float score, float cut, double lo, double width, int bins)
{
	double at = floor(((double)cut - (double)score - lo) / width);

	return !(at > 0) ? 0 : at >= (double)bins ? bins - 1 : (int)at;
}

static __global__ void
count_tokens(int32_t *count, const int32_t *ids, const float *score, const float *cut,
	     const int32_t *doc, const float *bias, size_t t, int n, int k, int bins)
{
	extern __shared__ int32_t mine[];
	size_t from = (size_t)blockIdx.x * TOKENS;
	int rows = (int)(t - from < TOKENS ? t - from : TOKENS);

	for (int e = threadIdx.x; e < n; e += THREADS)
		mine[e] = 0;
	__syncthreads();
	for (int i = threadIdx.x; i < rows * k; i += THREADS)
		if (doc[from + i / k])
			atomicAdd(&mine[ids[from * k + i]], 1);
	__syncthreads();
	for (int e = threadIdx.x; e < n; e += THREADS)
		if (mine[e])
			atomicAdd(&count[e], mine[e]);
	if (bins == 0)
		return;
	float lo, hi;
	bias_range(&lo, &hi, bias, n);
	double width = ((double)hi - (double)lo + 2) / (double)bins;
	for (int i = threadIdx.x; i < rows * n; i += THREADS) {
		size_t row = from + i / n;
		int e = i % n;
		if (doc[row])
			atomicAdd(&count[n + (size_t)e * bins +
					 bin_of(score[row * n + e], cut[row], (double)lo - 1, width,
						bins)],
				  1);
	}
}

template <typename T>
static void
moe_count(void *const *buf, const struct k3_moe_count_args *a, const struct k3_cuda *cuda)
{
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	int32_t *count = (int32_t *)buf[0];
	const int32_t *ids = k3_route_ids((const int32_t *)buf[1], a->n_experts);
	const float *w = (const float *)buf[2];
	/* the layout's header lies on the device, but its length and the order behind it are known */
	const int32_t *doc = k3_tile_doc((const int32_t *)buf[3]);

	if (!a->accumulate)
		K3_CUDA_CHECK(cudaMemsetAsync(
			count, 0, a->n_experts * (1 + a->bins) * sizeof(*count), stream));
	if (a->t == 0)
		return;
	count_tokens<<<blocks_for(a->t, TOKENS), THREADS, a->n_experts * sizeof(*count), stream>>>(
		count, ids, k3_routew_scores(w, a->t, a->k),
		k3_routew_cut(w, a->n_experts, a->t, a->k), doc, (const float *)buf[a->bias.first],
		a->t, (int)a->n_experts, (int)a->k, (int)a->bins);
	K3_CUDA_LAUNCHED("count_tokens");
}

K3_CUDA_BOTH(moe_count, k3_moe_count_args)
