/* Latent down-projection and dispatch on CUDA: products by cuBLASLt, a warp per token for what moves
 * rows.  A token's router gradient has k entries, so dx gathers k rows of Wr instead of a product with
 * zeros.
 *
 * The trap: dl is float where x is bf16.  For dWr it is split in two bf16 halves, whose sum holds 16
 * bits of the mantissa: far more than x has.
 */
#include "rows.cuh"

extern "C" {
#include "../../common/op/moe.h"
}

enum { MAX_BLOCKS = 64, SPLIT_THREADS = 256 };

template <typename T, int N>
static __global__ void
spread(T *zs, const T *z, const int32_t *row, size_t t, int k, size_t r)
{
	size_t i = warp_row();

	if (i >= t)
		return;
	for (size_t c = (threadIdx.x & 31) * N; c < r; c += 32 * N) {
		float x[N];
		run_load<T, N>(x, z + i * r + c);
#pragma unroll 4
		for (int j = 0; j < k; j++)
			run_store<T, N>(zs + (size_t)row[i * k + j] * r + c, x);
	}
}

template <typename T>
static void
moe_dispatch_fwd(void *const *buf, const struct k3_moe_dispatch_args *a, const struct k3_cuda *cuda)
{
	T *zs = (T *)buf[0], *z = (T *)buf[3];
	const int32_t *row = k3_route_row((const int32_t *)buf[2], a->n_experts, a->t, a->k);

	k3_cuda_linear_fwd(cuda, k3_type<T>::id, z, a->r, 0, buf[1], a->d, buf, &a->wdown, 0, a->r,
			   a->t);
	LAUNCH_ROWS(spread, T, a->r, a->t, cuda, zs, z, row, a->t, (int)a->k, a->r);
}

/* Gradient of the router logits of one token (model.md 5.2), by a warp. */
static __device__ void
router_row(float *dl, const float *w, const float *score, const int32_t *ids, const int32_t *row,
	   const float *dwt, int n, int k, double sum_eps, double scale)
{
	int lane = threadIdx.x & 31;
	double sum = sum_eps, dot = 0;

	for (int e = lane; e < n; e += 32)
		dl[e] = 0;
	for (int j = 0; j < k; j++) {
		sum += (double)score[ids[j]];
		dot += (double)dwt[row[j]] * ((double)w[j] / scale);
	}
	__syncwarp();
	for (int j = lane; j < k; j += 32) {
		double s = (double)score[ids[j]];
		dl[ids[j]] = (float)(scale * ((double)dwt[row[j]] - dot) / sum * s * (1 - s));
	}
}

template <typename T, int N>
static __global__ void
sum_slots(T *dz, const T *dzs, const int32_t *row, size_t t, int k, size_t r)
{
	size_t i = warp_row();

	if (i >= t)
		return;
	for (size_t c = (threadIdx.x & 31) * N; c < r; c += 32 * N) {
		float sum[N], x[N];
		run_load<T, N>(sum, dzs + (size_t)row[i * k] * r + c);
#pragma unroll 4
		for (int j = 1; j < k; j++) {
			run_load<T, N>(x, dzs + (size_t)row[i * k + j] * r + c);
			for (int q = 0; q < N; q++)
				sum[q] += x[q];
		}
		run_store<T, N>(dz + i * r + c, sum);
	}
}

static __global__ void
router_rows(float *dl, const float *routew, const int32_t *ids, const int32_t *row,
	    const float *dwt, size_t t, int n, int k, float sum_eps, float scale)
{
	size_t i = warp_row();

	if (i < t)
		router_row(dl + i * n, routew + i * k, routew + t * k + i * n, ids + i * k,
			   row + i * k, dwt, n, k, (double)sum_eps, (double)scale);
}

/* Experts e0 .. e1-1 of the router matrix, a buffer for each block of rows. */
struct router_blocks {
	const void *block[MAX_BLOCKS];
	int e0, e1;
	unsigned block_rows;
};

/* dx += sum over a token's experts of dl Wr */
template <typename T, int N>
static __global__ void
add_router(T *dx, const float *dl, const int32_t *ids, struct router_blocks wr, size_t t, int n,
	   int k, size_t d)
{
	size_t i = warp_row();

	if (i >= t)
		return;
	for (size_t c = (threadIdx.x & 31) * N; c < d; c += 32 * N) {
		float sum[N], x[N];
		run_load<T, N>(sum, dx + i * d + c);
		for (int j = 0; j < k; j++) {
			int e = ids[i * k + j];
			if (e < wr.e0 || e >= wr.e1)
				continue;
			unsigned at = (unsigned)(e - wr.e0), b = at / wr.block_rows;
			float g = dl[i * n + e];
			run_load<T, N>(x, (const T *)wr.block[b] +
						  (size_t)(at - b * wr.block_rows) * d + c);
			for (int q = 0; q < N; q++)
				sum[q] += g * x[q];
		}
		run_store<T, N>(dx + i * d + c, sum);
	}
}

template <typename T>
static void
moe_dispatch_bwd_dx(void *const *buf, const struct k3_moe_dispatch_args *a,
		    const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	const int n = (int)a->n_experts, k = (int)a->k;
	T *dx = (T *)buf[0], *dz = (T *)buf[1];
	float *dl = (float *)buf[2];
	const int32_t *route = (const int32_t *)buf[5], *ids = k3_route_ids(route, a->n_experts),
		      *row = k3_route_row(route, a->n_experts, a->t, a->k);
	size_t rows = a->wr.block_rows;

	if (a->t == 0)
		return;
	LAUNCH_ROWS(sum_slots, T, a->r, a->t, cuda, dz, (const T *)buf[3], row, a->t, k, a->r);
	router_rows<<<blocks_for(a->t, ROW_WARPS), 32 * ROW_WARPS, 0, (cudaStream_t)cuda->stream>>>(
		dl, (const float *)buf[6], ids, row, (const float *)buf[4], a->t, n, k, a->sum_eps,
		a->scale);
	K3_CUDA_LAUNCHED("router_rows");
	k3_cuda_linear_dx(cuda, type, dx, a->d, 1, dz, a->r, buf, &a->wdown, 0, a->r, a->t);
	for (size_t b = 0; b < a->wr.n; b += MAX_BLOCKS) {
		size_t end = (b + MAX_BLOCKS) * rows;
		struct router_blocks wr = {};
		for (size_t i = 0; i < MAX_BLOCKS && b + i < a->wr.n; i++)
			wr.block[i] = buf[a->wr.first + b + i];
		wr.e0 = (int)(b * rows);
		wr.e1 = end < a->n_experts ? (int)end : n;
		wr.block_rows = (unsigned)rows;
		LAUNCH_ROWS(add_router, T, a->d, a->t, cuda, dx, dl, ids, wr, a->t, n, k, a->d);
	}
}

/* x = high + low + what bf16 times 2^-8 cannot hold */
static __global__ void
split(k3_bf16 *high, k3_bf16 *low, const float *x, size_t n)
{
	size_t i = (size_t)blockIdx.x * SPLIT_THREADS + threadIdx.x;

	if (i >= n)
		return;
	high[i] = narrow<k3_bf16>(x[i]);
	low[i] = narrow<k3_bf16>(x[i] - wide(high[i]));
}

static size_t
half_bytes(const struct k3_moe_dispatch_args *a)
{
	return (a->t * a->n_experts * sizeof(k3_bf16) + 255) / 256 * 256;
}

extern "C" size_t
k3_moe_dispatch_bwd_dw_cuda_scratch(const struct k3_moe_dispatch_args *a)
{
	return 2 * half_bytes(a);
}

/* dWr from float logit gradients and bf16 rows: the two halves of dl one after the other. */
static void
router_weights(void *const *buf, const struct k3_moe_dispatch_args *a, const struct k3_cuda *cuda)
{
	size_t n = a->t * a->n_experts;
	k3_bf16 *high = (k3_bf16 *)cuda->scratch,
		*low = (k3_bf16 *)((char *)cuda->scratch + half_bytes(a));
	struct k3_weight more = a->wr;

	if (n) {
		split<<<blocks_for(n, SPLIT_THREADS), SPLIT_THREADS, 0,
			(cudaStream_t)cuda->stream>>>(high, low, (const float *)buf[1], n);
		K3_CUDA_LAUNCHED("split");
	}
	k3_cuda_linear_dw(cuda, K3_CUDA_BF16, buf, &a->wr, 0, a->n_experts, high, a->n_experts,
			  buf[2], a->d, a->t);
	more.accumulate = 1;
	k3_cuda_linear_dw(cuda, K3_CUDA_BF16, buf, &more, 0, a->n_experts, low, a->n_experts,
			  buf[2], a->d, a->t);
}

template <typename T>
static void
moe_dispatch_bwd_dw(void *const *buf, const struct k3_moe_dispatch_args *a,
		    const struct k3_cuda *cuda)
{
	k3_cuda_linear_dw(cuda, k3_type<T>::id, buf, &a->wdown, 0, a->r, buf[0], a->r, buf[2], a->d,
			  a->t);
	if (k3_type<T>::id == K3_CUDA_BF16)
		router_weights(buf, a, cuda);
	else
		k3_cuda_linear_dw(cuda, K3_CUDA_F32, buf, &a->wr, 0, a->n_experts, buf[1],
				  a->n_experts, buf[2], a->d, a->t);
}

K3_CUDA_BOTH(moe_dispatch_fwd, k3_moe_dispatch_args)
K3_CUDA_BOTH(moe_dispatch_bwd_dx, k3_moe_dispatch_args)
K3_CUDA_BOTH(moe_dispatch_bwd_dw, k3_moe_dispatch_args)
