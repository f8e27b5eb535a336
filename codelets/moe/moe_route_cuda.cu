/* Router on CUDA: fp32 logits by cuBLASLt, a warp chooses a token's experts, and a counting sort in
 * three passes: counts per unit of 32 tokens, running sums over the units for each expert, places.
 *
 * The traps: an order by (value, id) needs no list of what was taken, the next choice is the best one
 * behind the last; NaN ranks as -inf, so that ids are experts whatever a diverged model computes; and
 * places are counted, never drawn by an atomic, or the sort would not be stable.
 */
#include <limits.h>
#include <math.h>

#include "../cuda/device.cuh"

extern "C" {
#include "../../common/op/moe.h"
}

enum { UNIT_TOKENS = 32, CHOOSE_THREADS = 256, SCAN_THREADS = 256 };

struct pick {
	float value;
	int id;
};

/* a is chosen before b */
static __device__ __forceinline__ bool
before(struct pick a, struct pick b)
{
	return a.value > b.value || (a.value == b.value && a.id < b.id);
}

static __device__ __forceinline__ float
biased(const float *s, const float *bias, int e)
{
	float v = s[e] + bias[e];

	return isnan(v) ? -INFINITY : v;
}

static __device__ __forceinline__ struct pick
warp_best(struct pick best)
{
#pragma unroll
	for (int step = 16; step > 0; step >>= 1) {
		struct pick other;
		other.value = __shfl_xor_sync(0xffffffffu, best.value, step);
		other.id = __shfl_xor_sync(0xffffffffu, best.id, step);
		if (before(other, best))
			best = other;
	}
	return best;
}

/* The best expert behind `last`, in all lanes; value -inf when none is left. */
static __device__ struct pick
next_pick(const float *s, const float *bias, int n, struct pick last)
{
	struct pick best = {-INFINITY, INT_MAX};

	for (int e = threadIdx.x & 31; e < n; e += 32) {
		struct pick p = {biased(s, bias, e), e};
		if (before(last, p) && before(p, best))
			best = p;
	}
	return warp_best(best);
}

/* Highest biased score that was not taken, when the ids are given. */
static __device__ float
best_left(const int32_t *ids, const float *s, const float *bias, int n, int k)
{
	struct pick best = {-INFINITY, INT_MAX};

	for (int e = threadIdx.x & 31; e < n; e += 32) {
		struct pick p = {biased(s, bias, e), e};
		bool taken = false;
		for (int j = 0; j < k; j++)
			taken |= ids[j] == e;
		if (!taken && before(p, best))
			best = p;
	}
	return warp_best(best).value;
}

/* Scores, ids, weights and cut of one token, by a warp. */
static __device__ void
choose_token(int32_t *ids, float *w, float *s, float *cut, const float *bias, const int32_t *forced,
	     int n, int k, double sum_eps, double scale)
{
	int lane = threadIdx.x & 31;
	struct pick p = {INFINITY, -1};
	double sum = 0;

	for (int e = lane; e < n; e += 32)
		s[e] = 1.0f / (1.0f + expf(-s[e]));
	__syncwarp();
	for (int j = 0; j < k; j++) {
		if (forced)
			p.id = forced[j];
		else
			p = next_pick(s, bias, n, p);
		sum += (double)s[p.id];
		if (lane == 0)
			ids[j] = p.id;
	}
	__syncwarp();
	float left = forced ? best_left(ids, s, bias, n, k) : next_pick(s, bias, n, p).value;
	if (lane == 0)
		*cut = left;
	for (int j = lane; j < k; j += 32)
		w[j] = (float)((double)s[ids[j]] / (sum + sum_eps) * scale);
}

/* A block per unit: its tokens, and how many of its assignments go to each expert. */
static __global__ void
choose(int32_t *ids, float *routew, int32_t *count, const float *bias, const int32_t *forced,
       size_t t, int n, int k, float sum_eps, float scale)
{
	extern __shared__ int32_t mine[];
	size_t from = (size_t)blockIdx.x * UNIT_TOKENS,
	       to = from + UNIT_TOKENS < t ? from + UNIT_TOKENS : t;
	float *s = routew + t * k, *cut = s + t * n;

	for (int e = threadIdx.x; e < n; e += blockDim.x)
		mine[e] = 0;
	for (size_t i = from + (threadIdx.x >> 5); i < to; i += CHOOSE_THREADS / 32)
		choose_token(ids + i * k, routew + i * k, s + i * n, cut + i, bias,
			     forced ? forced + i * k : NULL, n, k, (double)sum_eps, (double)scale);
	__syncthreads();
	for (size_t i = from * k + threadIdx.x; i < to * k; i += blockDim.x)
		atomicAdd(&mine[ids[i]], 1);
	__syncthreads();
	for (int e = threadIdx.x; e < n; e += blockDim.x)
		count[(size_t)blockIdx.x * n + e] = mine[e];
}

/* Sum of x over lower lanes and this one. */
static __device__ __forceinline__ int32_t
warp_scan(int32_t x)
{
	int lane = threadIdx.x & 31;

#pragma unroll
	for (int step = 1; step < 32; step <<= 1) {
		int32_t below = __shfl_up_sync(0xffffffffu, x, step);
		x += lane >= step ? below : 0;
	}
	return x;
}

/* A block per expert: count[unit] becomes the assignments of earlier units, total their number. */
static __global__ void
sum_units(int32_t *total, int32_t *count, size_t units, int n)
{
	__shared__ int32_t part[SCAN_THREADS / 32];
	int e = blockIdx.x, warp = threadIdx.x >> 5;
	int32_t carry = 0;

	for (size_t first = 0; first < units; first += SCAN_THREADS) {
		size_t u = first + threadIdx.x;
		int32_t own = u < units ? count[u * n + e] : 0, upto = warp_scan(own), all = 0;
		if ((threadIdx.x & 31) == 31)
			part[warp] = upto;
		__syncthreads();
		for (int i = 0; i < SCAN_THREADS / 32; i++) {
			upto += i < warp ? part[i] : 0;
			all += part[i];
		}
		if (u < units)
			count[u * n + e] = carry + upto - own;
		carry += all;
		__syncthreads();
	}
	if (threadIdx.x == 0)
		total[e] = carry;
}

/* A warp per unit walks its assignments in order; next[] is the row that an expert gets next. */
static __global__ void
place(int32_t *route, const int32_t *total, const int32_t *count, size_t t, int n, int k)
{
	extern __shared__ int32_t next[];
	int lane = threadIdx.x, carry = 0;
	size_t tk = t * k, from = (size_t)blockIdx.x * UNIT_TOKENS * k,
	       to = from + UNIT_TOKENS * k < tk ? from + UNIT_TOKENS * k : tk;
	int32_t *offs = route, *ids = offs + n + 1, *row = ids + tk, *src = row + tk;

	for (int first = 0; first < n; first += 32) {
		int e = first + lane;
		int32_t own = e < n ? total[e] : 0, upto = warp_scan(own);
		if (e < n) {
			next[e] = carry + upto - own + count[(size_t)blockIdx.x * n + e];
			if (blockIdx.x == 0)
				offs[e] = carry + upto - own;
		}
		carry += __shfl_sync(0xffffffffu, upto, 31);
	}
	if (blockIdx.x == 0 && lane == 0)
		offs[n] = carry;
	for (size_t first = from; first < to; first += 32) {
		size_t i = first + lane;
		int e = i < to ? ids[i] : -1;
		unsigned same = __match_any_sync(0xffffffffu, e);
		int rank = __popc(same & ((1u << lane) - 1));
		__syncwarp();
		int32_t at = e >= 0 ? next[e] + rank : 0;
		__syncwarp();
		if (e < 0)
			continue; /* only in the last round */
		if (rank == 0)
			next[e] = at + __popc(same);
		row[i] = at;
		src[at] = (int32_t)i;
	}
}

static size_t
units_of(const struct k3_moe_route_args *a)
{
	return blocks_for(a->t, UNIT_TOKENS);
}

extern "C" size_t
k3_moe_route_fwd_cuda_scratch(const struct k3_moe_route_args *a)
{
	return (units_of(a) + 1) * a->n_experts * sizeof(int32_t);
}

template <typename T>
static void
logits(float *s, void *const *buf, const struct k3_moe_route_args *a, const struct k3_cuda *cuda)
{
	for (size_t b = 0; b < a->wr.n; b++) {
		size_t first = b * a->wr.block_rows, left = a->n_experts - first;
		struct k3_cuda_product p = {};
		p.m = a->t, p.k = a->d;
		p.n = left < a->wr.block_rows ? left : a->wr.block_rows;
		p.a = buf[2], p.lda = a->d;
		p.b = buf[a->wr.first + b], p.ldb = a->d, p.trans_b = 1;
		p.c = s + first, p.ldc = a->n_experts;
		p.alpha = 1;
		p.type = k3_type<T>::id, p.type_c = K3_CUDA_F32;
		k3_cuda_gemm(cuda, &p);
	}
}

template <typename T>
static void
moe_route_fwd(void *const *buf, const struct k3_moe_route_args *a, const struct k3_cuda *cuda)
{
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	int n = (int)a->n_experts, k = (int)a->k;
	size_t units = units_of(a), shared = a->n_experts * sizeof(int32_t);
	int32_t *route = (int32_t *)buf[0], *total = (int32_t *)cuda->scratch, *count = total + n;
	float *routew = (float *)buf[1];
	const int32_t *forced = a->forced.n ? (const int32_t *)buf[a->forced.first] : NULL;

	logits<T>(routew + a->t * a->k, buf, a, cuda);
	choose<<<(unsigned)units, CHOOSE_THREADS, shared, stream>>>(
		route + n + 1, routew, count, (const float *)buf[a->bias.first], forced, a->t, n, k,
		a->sum_eps, a->scale);
	K3_CUDA_LAUNCHED("choose");
	sum_units<<<(unsigned)n, SCAN_THREADS, 0, stream>>>(total, count, units, n);
	K3_CUDA_LAUNCHED("sum_units");
	place<<<(unsigned)units, 32, shared, stream>>>(route, total, count, a->t, n, k);
	K3_CUDA_LAUNCHED("place");
}

K3_CUDA_BOTH(moe_route_fwd, k3_moe_route_args)
