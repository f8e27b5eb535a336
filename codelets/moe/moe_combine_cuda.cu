/* Combine of the routed experts on CUDA: a warp per token sums and normalises its rows; the bf16
 * up-projection adds shared experts and prefix itself (moe_task.h), others are cuBLASLt's and one
 * pass more.
 *
 * The traps: the norm sees the sum as it is stored, since the backward pass has nothing else; and
 * the gradient of the norm's weights is a sum over tokens, for which each block keeps one row of
 * partial sums, added in the order of the blocks.
 */
#include "combine_short.cuh"
#include "moe_task.h"

extern "C" {
#include "../../common/op/moe.h"
}

enum { ADD_THREADS = 256, PARTS = 256, SHARED_BYTES = 192 << 10 };

/* 1 / rms of a row, in all lanes. */
template <typename T, int N>
static __device__ float
rms_factor(const T *y, size_t r, float eps)
{
	float square = 0, x[N];

	for (size_t c = (threadIdx.x & 31) * N; c < r; c += 32 * N) {
		run_load<T, N>(x, y + c);
		for (int q = 0; q < N; q++)
			square += x[q] * x[q];
	}
	return 1.0f / sqrtf(warp_sum(square) / (float)r + eps);
}

/* Elements of a row that a lane wrote are read again by the same lane. */
template <typename T, int N>
static __device__ void
normalise_row(T *out, const T *y, const float *w, size_t r, float eps)
{
	float factor = rms_factor<T, N>(y, r, eps), x[N];

	for (size_t c = (threadIdx.x & 31) * N; c < r; c += 32 * N) {
		run_load<T, N>(x, y + c);
		for (int q = 0; q < N; q++)
			x[q] = x[q] * factor * w[c + q];
		run_store<T, N>(out + c, x);
	}
}

template <typename T, int N>
static __global__ void
normalise(T *out, const T *y, const float *norm, size_t t, size_t r, float eps)
{
	size_t i = warp_row();

	if (i < t)
		normalise_row<T, N>(out + i * r, y + i * r, norm, r, eps);
}

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

/* One token by a warp: dy goes to its k rows, and dnorm += dn n; `mine` is this warp's row. */
template <typename T, int N>
static __device__ void
spread_gradient(T *dys, float *mine, const float *dn, const T *y, const float *norm,
		const int32_t *row, int k, size_t r, float eps)
{
	float factor = rms_factor<T, N>(y, r, eps), dot = 0, x[N], g[N];

	for (size_t c = (threadIdx.x & 31) * N; c < r; c += 32 * N) {
		run_load<T, N>(x, y + c);
		for (int q = 0; q < N; q++)
			dot += dn[c + q] * norm[c + q] * x[q];
	}
	float mean = warp_sum(dot) * factor / (float)r;
	for (size_t c = (threadIdx.x & 31) * N; c < r; c += 32 * N) {
		run_load<T, N>(x, y + c);
		for (int q = 0; q < N; q++) {
			float unit = x[q] * factor, d = dn[c + q];
			mine[c + q] += d * unit;
			g[q] = factor * (d * norm[c + q] - unit * mean);
		}
#pragma unroll 4
		for (int j = 0; j < k; j++)
			run_store<T, N>(dys + (size_t)row[j] * r + c, g);
	}
}

/* A block walks `rows` tokens; its warps' sums of dnorm end in a row of `part`. */
template <typename T, int N>
static __global__ void
combine_gradient(T *dys, float *part, const float *dn, const T *y, const float *norm,
		 const int32_t *row, size_t t, size_t rows, int k, size_t r, float eps)
{
	extern __shared__ float sums[];
	int warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
	size_t from = blockIdx.x * rows, to = from + rows < t ? from + rows : t;

	for (size_t c = threadIdx.x; c < r * warps; c += blockDim.x)
		sums[c] = 0;
	__syncthreads();
	for (size_t i = from + warp; i < to; i += warps)
		spread_gradient<T, N>(dys, sums + warp * r, dn + i * r, y + i * r, norm,
				      row + i * k, k, r, eps);
	__syncthreads();
	for (size_t c = threadIdx.x; c < r; c += blockDim.x) {
		float sum = 0;
		for (int i = 0; i < warps; i++)
			sum += sums[i * r + c];
		part[blockIdx.x * r + c] = sum;
	}
}

/* A block adds up 32 columns: each warp a run of parts, then the warps' sums in order. */
static __global__ void
add_parts(float *dnorm, const float *part, size_t parts, size_t r, int accumulate)
{
	__shared__ float sums[ROW_WARPS][32];
	int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
	size_t c = (size_t)blockIdx.x * 32 + lane, run = (parts + ROW_WARPS - 1) / ROW_WARPS,
	       from = warp * run, to = from + run < parts ? from + run : parts;
	float sum = 0;

	if (c < r)
#pragma unroll 8
		for (size_t i = from; i < to; i++)
			sum += part[i * r + c];
	sums[warp][lane] = sum;
	__syncthreads();
	if (warp > 0 || c >= r)
		return;
	for (int i = 1; i < ROW_WARPS; i++)
		sum += sums[i][lane];
	dnorm[c] = accumulate ? dnorm[c] + sum : sum;
}

static size_t
part_rows(size_t t)
{
	size_t rows = (t + PARTS - 1) / PARTS;

	return rows < ROW_WARPS ? ROW_WARPS : rows;
}

extern "C" size_t
k3_moe_combine_bwd_dx_cuda_scratch(const struct k3_moe_combine_args *a)
{
	return blocks_for(a->t, part_rows(a->t)) * a->r * sizeof(float);
}

/* dn = dp Wup in float, whatever the type. */
template <typename T>
static void
up_gradient(float *dn, void *const *buf, const struct k3_moe_combine_args *a,
	    const struct k3_cuda *cuda)
{
	for (size_t b = 0; b < a->wup.n; b++) {
		size_t first = b * a->wup.block_rows, left = a->d - first;
		struct k3_cuda_product p = {};
		p.m = a->t, p.n = a->r;
		p.k = left < a->wup.block_rows ? left : a->wup.block_rows;
		p.a = (const T *)buf[1] + first, p.lda = a->d;
		p.b = buf[a->wup.first + b], p.ldb = a->r;
		p.c = dn, p.ldc = a->r;
		p.alpha = 1, p.beta = b ? 1.0f : 0.0f;
		p.type = k3_type<T>::id, p.type_c = K3_CUDA_F32;
		k3_cuda_gemm(cuda, &p);
	}
}

template <typename T, int N>
static void
launch_gradient(void *const *buf, const float *dn, const struct k3_moe_combine_args *a,
		const struct k3_cuda *cuda)
{
	size_t rows = part_rows(a->t), warps = ROW_WARPS;
	float *part = (float *)cuda->scratch;
	const int32_t *row = k3_route_row((const int32_t *)buf[3], a->n_experts, a->t, a->k);

	if (short_rows<T>(a->r)) {
		combine_gradient_short<<<blocks_for(a->t, rows), 32 * ROW_WARPS, 0,
					 (cudaStream_t)cuda->stream>>>(
			(T *)buf[0], part, dn, (const T *)buf[2], (const float *)buf[a->norm.first],
			row, a->t, rows, (int)a->k, a->r, a->eps);
		K3_CUDA_LAUNCHED("combine_gradient_short");
		return;
	}
	while (warps > 1 && warps * a->r * sizeof(float) > SHARED_BYTES / 2)
		warps /= 2;
	K3_CUDA_CHECK(cudaFuncSetAttribute(
		combine_gradient<T, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
	combine_gradient<T, N><<<blocks_for(a->t, rows), (unsigned)(32 * warps),
				 warps * a->r * sizeof(float), (cudaStream_t)cuda->stream>>>(
		(T *)buf[0], part, dn, (const T *)buf[2], (const float *)buf[a->norm.first], row,
		a->t, rows, (int)a->k, a->r, a->eps);
	K3_CUDA_LAUNCHED("combine_gradient");
}

template <typename T>
static void
moe_combine_bwd_dx(void *const *buf, const struct k3_moe_combine_args *a,
		   const struct k3_cuda *cuda)
{
	const int n = k3_pack<T>::n;
	float *dn = (float *)buf[4], *dnorm = (float *)buf[a->dnorm.first];
	size_t parts = a->t ? blocks_for(a->t, part_rows(a->t)) : 0;

	up_gradient<T>(dn, buf, a, cuda);
	if (a->t && a->r % n == 0)
		launch_gradient<T, n>(buf, dn, a, cuda);
	else if (a->t)
		launch_gradient<T, 1>(buf, dn, a, cuda);
	add_parts<<<blocks_for(a->r, 32), 32 * ROW_WARPS, 0, (cudaStream_t)cuda->stream>>>(
		dnorm, (const float *)cuda->scratch, parts, a->r, (int)a->dnorm.accumulate);
	K3_CUDA_LAUNCHED("add_parts");
}

template <typename T>
static void
moe_combine_bwd_dw(void *const *buf, const struct k3_moe_combine_args *a,
		   const struct k3_cuda *cuda)
{
	T *work = (T *)buf[2];

	if (a->t && short_rows<T>(a->r)) {
		normalise_shorts<<<blocks_for(a->t, ROW_WARPS), 32 * ROW_WARPS, 0,
				   (cudaStream_t)cuda->stream>>>(work, (const T *)buf[1],
								 (const float *)buf[a->norm.first],
								 a->t, a->r, a->eps);
		K3_CUDA_LAUNCHED("normalise_shorts");
	} else {
		LAUNCH_ROWS(normalise, T, a->r, a->t, cuda, work, (const T *)buf[1],
			    (const float *)buf[a->norm.first], a->t, a->r, a->eps);
	}
	k3_cuda_linear_dw(cuda, k3_type<T>::id, buf, &a->wup, 0, a->d, buf[0], a->d, work, a->r,
			  a->t);
}

K3_CUDA_BOTH(moe_combine_fwd, k3_moe_combine_args)
K3_CUDA_BOTH(moe_combine_bwd_dx, k3_moe_combine_args)
K3_CUDA_BOTH(moe_combine_bwd_dw, k3_moe_combine_args)
