/* Latent down-projection and dispatch on CUDA: bf16 products on the tensor cores with the moves
 * of their rows (moe_task.h), others by cuBLASLt with a warp per token for what moves rows.  A
 * token's router gradient has k entries, so dx gathers k rows of Wr instead of a product with
 * zeros.
 *
 * The trap: dl is float where x is bf16.  For dWr it is split in two bf16 halves, whose sum holds
 * 16 bits of the mantissa: far more than x has.
 */
#include "moe_task.h"
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

/* In one pass, if it can be. */
static bool
product_and_spread(void *zs, void *const *buf, const int32_t *row,
		   const struct k3_moe_dispatch_args *a, const struct k3_cuda *cuda)
{
	struct moe_product p = {};

	if (a->wdown.n != 1)
		return false;
	p.product = SPREAD;
	p.rows = a->t, p.width = a->r, p.depth = a->d;
	p.x = buf[1], p.y = buf[a->wdown.first], p.out = zs;
	p.to = row, p.k = a->k;
	return k3i_moe_wgmma(&p, cuda);
}

template <typename T>
static void
moe_dispatch_fwd(void *const *buf, const struct k3_moe_dispatch_args *a, const struct k3_cuda *cuda)
{
	T *zs = (T *)buf[0], *z = (T *)buf[3];
	const int32_t *row = k3_route_row((const int32_t *)buf[2], a->n_experts, a->t, a->k);

	if (k3_type<T>::id == K3_CUDA_BF16 && product_and_spread(zs, buf, row, a, cuda))
		return;
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

struct router {
	const float *routew, *dwt;
	const int32_t *ids, *row;
	int n, k;
	float sum_eps, scale;
};

/* dl and the sum of a token's rows, by a warp */
template <typename T, int N>
static __global__ void
sum_slots(T *dz, float *dl, const T *dzs, struct router o, size_t t, size_t r)
{
	size_t i = warp_row();
	const int32_t *row = o.row + i * o.k;

	if (i >= t)
		return;
	for (size_t c = (threadIdx.x & 31) * N; c < r; c += 32 * N) {
		float sum[N], x[N];
		run_load<T, N>(sum, dzs + (size_t)row[0] * r + c);
#pragma unroll 4
		for (int j = 1; j < o.k; j++) {
			run_load<T, N>(x, dzs + (size_t)row[j] * r + c);
			for (int q = 0; q < N; q++)
				sum[q] += x[q];
		}
		run_store<T, N>(dz + i * r + c, sum);
	}
	router_row(dl + i * o.n, o.routew + i * o.k, o.routew + t * o.k + i * o.n, o.ids + i * o.k,
		   row, o.dwt, o.n, o.k, (double)o.sum_eps, (double)o.scale);
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
add_routers(T *dx, const float *dl, void *const *buf, const int32_t *ids,
	    const struct k3_moe_dispatch_args *a, const struct k3_cuda *cuda)
{
	const int n = (int)a->n_experts, k = (int)a->k;
	size_t rows = a->wr.block_rows;

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

/* dx += dz Wdown + dl Wr in one pass, if it can be. */
static bool
product_and_router(void *const *buf, const int32_t *ids, const struct k3_moe_dispatch_args *a,
		   const struct k3_cuda *cuda)
{
	struct moe_product p = {};

	if (a->wdown.n != 1 || a->wr.n != 1)
		return false;
	p.product = ROUTED;
	p.rows = a->t, p.width = a->d, p.depth = a->r;
	p.x = buf[1], p.y = buf[a->wdown.first], p.out = buf[0];
	p.add[0] = buf[a->wr.first];
	p.dl = (const float *)buf[2], p.ids = ids;
	p.k = a->k, p.n_experts = a->n_experts;
	return k3i_moe_wgmma(&p, cuda);
}

template <typename T>
static void
moe_dispatch_bwd_dx(void *const *buf, const struct k3_moe_dispatch_args *a,
		    const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	const int32_t *route = (const int32_t *)buf[5];
	T *dx = (T *)buf[0], *dz = (T *)buf[1];
	float *dl = (float *)buf[2];
	struct router o = {(const float *)buf[6],
			   (const float *)buf[4],
			   k3_route_ids(route, a->n_experts),
			   k3_route_row(route, a->n_experts, a->t, a->k),
			   (int)a->n_experts,
			   (int)a->k,
			   a->sum_eps,
			   a->scale};

	if (a->t == 0)
		return;
	LAUNCH_ROWS(sum_slots, T, a->r, a->t, cuda, dz, dl, (const T *)buf[3], o, a->t, a->r);
	if (type == K3_CUDA_BF16 && product_and_router(buf, o.ids, a, cuda))
		return;
	k3_cuda_linear_dx(cuda, type, dx, a->d, 1, dz, a->r, buf, &a->wdown, 0, a->r, a->t);
	add_routers(dx, dl, buf, o.ids, a, cuda);
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
