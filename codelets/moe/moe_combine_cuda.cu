/* Combine of the routed experts on CUDA: a warp per token sums and normalises its rows; the bf16
 * up-projection adds shared experts and prefix itself (moe_task.h), others are cuBLASLt's and one
 * pass more.  The trap: the norm sees the sum as it is stored, since the backward pass has nothing
 * else.
 */
#include "combine_rows.cuh"
#include "combine_short.cuh"
#include "moe_task.h"

extern "C" {
#include "../../common/op/moe.h"
}

enum { ADD_THREADS = 256 };

/* y = sum over slots, and its norm */
template <typename T, int N>
static __global__ void
weigh(T *out, T *y, const T *ys, const int32_t *row, const float *w, const float *norm, size_t t,
      int k, size_t r, float eps)
{
	size_t i = warp_row();

	if (i >= t)
		return;
	for (size_t c = (threadIdx.x & 31) * N; c < r; c += 32 * N) {
		float sum[N], x[N];
		for (int q = 0; q < N; q++)
			sum[q] = 0;
#pragma unroll 4
		for (int j = 0; j < k; j++) {
			float weight = w[i * k + j];
			run_load<T, N>(x, ys + (size_t)row[i * k + j] * r + c);
			for (int q = 0; q < N; q++)
				sum[q] += weight * x[q];
		}
		run_store<T, N>(y + i * r + c, sum);
	}
	normalise_row<T, N>(out + i * r, y + i * r, norm, r, eps);
}

/* out += a + b */
template <typename T, int N>
static __global__ void
add_both(T *out, const T *a, const T *b, size_t total)
{
	size_t i = ((size_t)blockIdx.x * ADD_THREADS + threadIdx.x) * N;
	float x[N], y[N], z[N];

	if (i >= total)
		return;
	run_load<T, N>(x, a + i);
	run_load<T, N>(y, b + i);
	run_load<T, N>(z, out + i);
	for (int q = 0; q < N; q++)
		z[q] += x[q] + y[q];
	run_store<T, N>(out + i, z);
}

template <typename T>
static void
weigh_rows(T *out, T *y, const T *ys, const int32_t *row, const float *w, const float *norm,
	   const struct k3_moe_combine_args *a, const struct k3_cuda *cuda)
{
	if (a->t && short_rows<T>(a->r)) {
		weigh_shorts<<<blocks_for(a->t, ROW_WARPS), 32 * ROW_WARPS, 0,
			       (cudaStream_t)cuda->stream>>>(out, y, ys, row, w, norm, a->t,
							     (int)a->k, a->r, a->eps);
		K3_CUDA_LAUNCHED("weigh_shorts");
		return;
	}
	LAUNCH_ROWS(weigh, T, a->r, a->t, cuda, out, y, ys, row, w, norm, a->t, (int)a->k, a->r,
		    a->eps);
}

/* p_out = work Wup^T + p_in + shared in one pass, if it can be. */
static bool
product_and_sums(void *const *buf, const struct k3_moe_combine_args *a, const struct k3_cuda *cuda)
{
	struct moe_product p = {};

	if (a->wup.n != 1)
		return false;
	p.product = JOIN;
	p.rows = a->t, p.width = a->d, p.depth = a->r;
	p.x = buf[7], p.y = buf[a->wup.first], p.out = buf[0];
	p.add[0] = buf[6], p.add[1] = buf[5];
	return k3i_moe_wgmma(&p, cuda);
}

template <typename T>
static void
moe_combine_fwd(void *const *buf, const struct k3_moe_combine_args *a, const struct k3_cuda *cuda)
{
	const int n = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	T *p_out = (T *)buf[0], *y = (T *)buf[1], *work = (T *)buf[7];
	const T *ys = (const T *)buf[2], *shared = (const T *)buf[5], *p_in = (const T *)buf[6];
	const int32_t *row = k3_route_row((const int32_t *)buf[3], a->n_experts, a->t, a->k);
	size_t total = a->t * a->d;

	weigh_rows(work, y, ys, row, (const float *)buf[4], (const float *)buf[a->norm.first], a,
		   cuda);
	if (k3_type<T>::id == K3_CUDA_BF16 && product_and_sums(buf, a, cuda))
		return;
	k3_cuda_linear_fwd(cuda, k3_type<T>::id, p_out, a->d, 0, work, a->r, buf, &a->wup, 0, a->d,
			   a->t);
	if (total == 0)
		return;
	if (total % n == 0)
		add_both<T, n>
			<<<blocks_for(total, (size_t)ADD_THREADS * n), ADD_THREADS, 0, stream>>>(
				p_out, p_in, shared, total);
	else
		add_both<T, 1><<<blocks_for(total, ADD_THREADS), ADD_THREADS, 0, stream>>>(
			p_out, p_in, shared, total);
	K3_CUDA_LAUNCHED("add_both");
}

K3_CUDA_BOTH(moe_combine_fwd, k3_moe_combine_args)
