/* Backward pass of the combine: the gradient goes to a token's rows through norm and sum, and the
 * normalised rows are formed again for the weights of the up-projection.  The trap: the gradient of
 * the norm's weights is a sum over tokens, for which each block keeps one row of partial sums, added
 * in the order of the blocks.
 */
#include "combine_rows.cuh"
#include "combine_short.cuh"

extern "C" {
#include "../../common/op/moe.h"
}

enum { PARTS = 256, SHARED_BYTES = 192 << 10 };

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

template <typename T, int N>
static __global__ void
normalise(T *out, const T *y, const float *norm, size_t t, size_t r, float eps)
{
	size_t i = warp_row();

	if (i < t)
		normalise_row<T, N>(out + i * r, y + i * r, norm, r, eps);
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

K3_CUDA_BOTH(moe_combine_bwd_dx, k3_moe_combine_args)
K3_CUDA_BOTH(moe_combine_bwd_dw, k3_moe_combine_args)
