/* Router bias after a step, a block for each layer: experts need each other's mean.  Counts are
 * whole numbers and their sums exact, so their order is free; positions are summed expert by
 * expert. */
#include "../cuda/device.cuh"
#include "../cuda/pointers.cuh"

extern "C" {
#include "../../common/op/optim.h"
}

enum { THREADS = 1024, WARPS = THREADS / 32, LAYERS = 32 };

/** Sum over the block, in all threads; shared holds WARPS numbers and may be used again. */
static __device__ int64_t
block_count(int64_t x, int64_t *shared)
{
	int64_t sum = 0;

#pragma unroll
	for (int step = 16; step > 0; step >>= 1)
		x += __shfl_xor_sync(0xffffffffu, x, step);
	if (threadIdx.x % 32 == 0)
		shared[threadIdx.x / 32] = x;
	__syncthreads();
	for (int i = 0; i < WARPS; i++)
		sum += shared[i];
	__syncthreads();
	return sum;
}

static __device__ void
sign_rule(float *bias, const int32_t *count, size_t n, int64_t tokens, double u, int64_t *shared)
{
	double mean = (double)tokens / (double)n;
	int64_t signs = 0;

	for (size_t e = threadIdx.x; e < n; e += THREADS)
		signs += (mean > count[e]) - (mean < count[e]);
	double drift = u * (double)block_count(signs, shared) / (double)n;
	for (size_t e = threadIdx.x; e < n; e += THREADS)
		bias[e] = (float)((double)bias[e] +
				  u * (double)((mean > count[e]) - (mean < count[e])) - drift);
}

/* Position of the k/n quantile in a histogram, in bins, by one warp, in all lanes. */
static __device__ double
quantile(const int32_t *hist, size_t bins, size_t k, size_t n)
{
	size_t lane = threadIdx.x % 32;
	int64_t total = 0, before = 0, below;

	for (size_t b = lane; b < bins; b += 32)
		total += hist[b];
#pragma unroll
	for (int step = 16; step > 0; step >>= 1)
		total += __shfl_xor_sync(0xffffffffu, total, step);
	double target = (double)total * (double)k / (double)n, rank = ceil(target);
	for (size_t first = 0;; first += 32) {
		size_t b = first + lane;
		int64_t here = b < bins ? hist[b] : 0, sum = here;
#pragma unroll
		for (int step = 1; step < 32; step <<= 1) {
			below = __shfl_up_sync(0xffffffffu, sum, step);
			sum += lane >= (size_t)step ? below : 0;
		}
		bool found = b + 1 >= bins || (double)(before + sum) >= rank;
		unsigned who = __ballot_sync(0xffffffffu, found);
		if (who == 0) {
			before += __shfl_sync(0xffffffffu, sum, 31);
			continue;
		}
		int at = __ffs((int)who) - 1;
		before += __shfl_sync(0xffffffffu, sum - here, at);
		here = __shfl_sync(0xffffffffu, here, at);
		double bin = (double)(first + (size_t)at);
		return here > 0 ? bin + (target - (double)before) / (double)here : bin;
	}
}

/* Smallest and largest bias, in all threads. */
static __device__ void
range(double *lo, double *hi, const float *bias, size_t n)
{
	__shared__ float least[WARPS], most[WARPS];
	float a = bias[0], b = a;

	for (size_t e = threadIdx.x; e < n; e += THREADS) {
		a = fminf(a, bias[e]);
		b = fmaxf(b, bias[e]);
	}
	a = -warp_max(-a);
	b = warp_max(b);
	if (threadIdx.x % 32 == 0) {
		least[threadIdx.x / 32] = a;
		most[threadIdx.x / 32] = b;
	}
	__syncthreads();
	a = -warp_max(-least[threadIdx.x % 32]);
	b = warp_max(most[threadIdx.x % 32]);
	*lo = (double)a;
	*hi = (double)b;
}

static __device__ void
quantile_rule(float *bias, const int32_t *hist, size_t n, size_t bins, size_t k, double *at)
{
	__shared__ double mean;
	double lo, hi;

	range(&lo, &hi, bias, n);
	for (size_t e = threadIdx.x / 32; e < n; e += WARPS) {
		double q = quantile(hist + e * bins, bins, k, n);
		if (threadIdx.x % 32 == 0)
			at[e] = q;
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		double sum = 0;
		for (size_t e = 0; e < n; e++)
			sum += at[e];
		mean = sum / (double)n;
	}
	__syncthreads();
	double width = (hi - lo + 2) / (double)bins;
	for (size_t e = threadIdx.x; e < n; e += THREADS)
		bias[e] = (float)((at[e] - mean) * width);
}

static __global__ void
router_bias(const __grid_constant__ struct k3_pointers<LAYERS> biases,
	    const __grid_constant__ struct k3_pointers<LAYERS> balances, const double *out,
	    double *at, const __grid_constant__ struct k3_router_bias_args a)
{
	__shared__ int64_t shared[WARPS];
	float *bias = (float *)biases.p[blockIdx.x];
	const int32_t *balance = (const int32_t *)balances.p[blockIdx.x];
	int64_t tokens = 0;

	if (out[K3_OUT_STATE] != K3_STEP_OK)
		return;
	for (size_t e = threadIdx.x; e < a.n_experts; e += THREADS)
		tokens += balance[e];
	tokens = block_count(tokens, shared);
	if (tokens <= 0)
		return;
	if (a.rule == K3_BALANCE_SIGN)
		sign_rule(bias, balance, a.n_experts, tokens, a.u, shared);
	else
		quantile_rule(bias, balance + a.n_experts, a.n_experts, a.bins, a.k,
			      at + blockIdx.x * a.n_experts);
}

extern "C" size_t
k3_router_bias_update_cuda_scratch(const struct k3_router_bias_args *a)
{
	uint32_t layers = a->bias.n < LAYERS ? a->bias.n : LAYERS;

	return layers * a->n_experts * sizeof(double);
}

static void
router_bias_update(void *const *buf, const struct k3_router_bias_args *a,
		   const struct k3_cuda *cuda)
{
	if (a->n_experts == 0 || (a->rule != K3_BALANCE_SIGN && a->rule != K3_BALANCE_QUANTILE))
		return;
	for (uint32_t first = 0; first < a->bias.n; first += LAYERS) {
		uint32_t n = a->bias.n - first < LAYERS ? a->bias.n - first : LAYERS;

		router_bias<<<n, THREADS, 0, (cudaStream_t)cuda->stream>>>(
			pointers_of<LAYERS>(buf, a->bias.first + first, n),
			pointers_of<LAYERS>(buf, a->balance.first + first, n),
			(const double *)buf[0], (double *)cuda->scratch, *a);
		K3_CUDA_LAUNCHED("router_bias");
	}
}

K3_CUDA_SAME(router_bias_update, k3_router_bias_args)
