/* KDA's output on CUDA: RMS norm of each head, gate, projection.
 *
 * Fast: some neighbouring lanes have a head, one pack each, so that every value is read once and
 * the sums of `don` stay with the lanes over all rows.  Any other shape: kda_out.cuh.
 */
#include "../cuda/pointers.cuh"
#include "../cuda/runs.cuh"
#include "../norm/rms_cuda.h"
#include "kda_out.cuh"

extern "C" {
#include "../../common/op/kda.h"
}

enum { PARTS = 264, AHEAD = 4, AHEAD_BACK = 2 };

/* Where pack i of the group's values lies in rows of all heads. */
template <int N>
static __device__ __forceinline__ size_t
pack_at(const struct span &s, uint32_t i)
{
	uint32_t per_row = (uint32_t)s.heads * (uint32_t)s.lanes, row = i / per_row;

	return row * s.width + s.first + (size_t)(i - row * per_row) * N;
}

template <typename T>
static __global__ void
__launch_bounds__(THREADS)
	norm_fwd_packs(T *y, const T *gg, const T *o, const float *on, struct span s)
{
	constexpr int N = k3_pack<T>::n;
	uint32_t lane = threadIdx.x % 32, total = (uint32_t)(s.t * s.heads) * (uint32_t)s.lanes;
	uint32_t i = (blockIdx.x * WARPS + threadIdx.x / 32) * AHEAD * 32 + lane;
	uint4 x_raw[AHEAD], g_raw[AHEAD];
	float w[N];

#pragma unroll
	for (int k = 0; k < AHEAD; k++) {
		uint32_t at = i + k * 32 < total ? i + k * 32 : 0;
		x_raw[k] = *(const uint4 *)(o + (size_t)at * N);
		g_raw[k] = *(const uint4 *)(gg + pack_at<N>(s, at));
	}
	run_load<float, N>(w, on + lane % s.lanes * N);
#pragma unroll
	for (int k = 0; k < AHEAD; k++) {
		float x[N], g[N], sum = 0;
		pack_load<T>(x, (const T *)&x_raw[k]);
		pack_load<T>(g, (const T *)&g_raw[k]);
#pragma unroll
		for (int j = 0; j < N; j++)
			sum += x[j] * x[j];
		float r = rsqrtf(lanes_sum(sum, s.lanes) / (float)s.v + s.eps);
#pragma unroll
		for (int j = 0; j < N; j++)
			x[j] *= r * w[j] * sigmoid(g[j]);
		if (i + k * 32 < total)
			pack_store(y + pack_at<N>(s, i + k * 32), x);
	}
}

/* Adds what a pack gives to `don`. */
template <typename T>
static __device__ __forceinline__ void
pack_back(float *sums, const struct back_buffers<T> &b, const struct span &s, const uint4 *raw,
	  const float *w, uint32_t i, bool live)
{
	constexpr int N = k3_pack<T>::n;
	float x[N], g[N], d[N], square = 0, dot = 0;

	pack_load<T>(x, (const T *)&raw[0]);
	pack_load<T>(g, (const T *)&raw[1]);
	pack_load<T>(d, (const T *)&raw[2]);
#pragma unroll
	for (int j = 0; j < N; j++) {
		g[j] = sigmoid(g[j]);
		square += x[j] * x[j];
		dot += d[j] * g[j] * w[j] * x[j];
	}
	float r = rsqrtf(lanes_sum(square, s.lanes) / (float)s.v + s.eps);
	float mean = lanes_sum(dot, s.lanes) * r / (float)s.v;
	if (!live)
		return;
#pragma unroll
	for (int j = 0; j < N; j++) {
		float n = x[j] * r, dn = d[j] * g[j];
		sums[j] += dn * n;
		x[j] = r * (dn * w[j] - n * mean);
		g[j] = dn * n * w[j] * (1.0f - g[j]);
	}
	pack_store(b.dout + (size_t)i * N, x);
	pack_store(b.dgg + pack_at<N>(s, i), g);
}

/* A lane keeps its columns. */
template <typename T>
static __global__ void
__launch_bounds__(THREADS, 2) norm_bwd_packs(const __grid_constant__ struct back_buffers<T> b,
					     const __grid_constant__ struct span s)
{
	constexpr int N = k3_pack<T>::n;
	__shared__ float all[THREADS * N];
	uint32_t lane = threadIdx.x % 32, total = (uint32_t)(s.t * s.heads) * (uint32_t)s.lanes;
	float w[N], sums[N] = {};

	run_load<float, N>(w, b.on + lane % s.lanes * N);
	for (uint32_t i = (blockIdx.x * WARPS + threadIdx.x / 32) * AHEAD_BACK * 32; i < total;
	     i += gridDim.x * WARPS * AHEAD_BACK * 32) {
		uint4 raw[AHEAD_BACK][3];
#pragma unroll
		for (int k = 0; k < AHEAD_BACK; k++) {
			uint32_t at = i + k * 32 + lane < total ? i + k * 32 + lane : 0;
			size_t wide_at = pack_at<N>(s, at);
			raw[k][0] = *(const uint4 *)(b.o + (size_t)at * N);
			raw[k][1] = *(const uint4 *)(b.gg + wide_at);
			raw[k][2] = *(const uint4 *)(b.dy + wide_at);
		}
#pragma unroll
		for (int k = 0; k < AHEAD_BACK; k++)
			pack_back(sums, b, s, raw[k], w, i + k * 32 + lane,
				  i + k * 32 + lane < total);
	}
	run_store<float, N>(all + threadIdx.x * N, sums);
	__syncthreads();
	for (uint32_t c = threadIdx.x; c < s.v; c += THREADS) {
		float sum = 0;
		for (uint32_t k = c; k < THREADS * N; k += (uint32_t)s.v)
			sum += all[k];
		b.don[blockIdx.x * s.v + c] = sum;
	}
}

/* The group's columns; n elements a pack. */
static struct span
span_at(void *const *buf, const struct k3_kda_out_args *a, uint32_t g, size_t n)
{
	size_t h0, heads = k3_heads_of_group(a->h, a->group_heads, g, &h0), lanes = a->v / n;
	bool whole = a->v % n == 0 && lanes && lanes <= 32 && (lanes & (lanes - 1)) == 0 &&
		     all_aligned(buf, 0, a->n_buf) && a->t * a->p / n < UINT32_MAX / 2;
	struct span s = {a->t, heads, h0 * a->v, a->p, a->v, a->eps, whole ? (int)lanes : 0};

	return s;
}

template <typename T>
static void
gated_norm(T *y, const T *gg, void *const *buf, const struct k3_kda_out_args *a,
	   const struct k3_cuda *cuda)
{
	const float *on = (const float *)buf[a->on.first];
	cudaStream_t stream = (cudaStream_t)cuda->stream;

	for (uint32_t g = 0; a->t && g < a->o.n; g++) {
		struct span s = span_at(buf, a, g, k3_pack<T>::n);
		const T *o = (const T *)buf[a->o.first + g];
		size_t heads = s.t * s.heads, packs = heads * (size_t)s.lanes;

		if (s.lanes)
			norm_fwd_packs<T>
				<<<blocks_for(packs, AHEAD * THREADS), THREADS, 0, stream>>>(
					y, gg, o, on, s);
		else
			norm_fwd_any<T>
				<<<blocks_for(heads, WARPS), THREADS, 0, stream>>>(y, gg, o, on, s);
		K3_CUDA_LAUNCHED("norm_fwd");
	}
}

template <typename T>
static void
kda_out_fwd(void *const *buf, const struct k3_kda_out_args *a, const struct k3_cuda *cuda)
{
	gated_norm<T>((T *)buf[2], (const T *)buf[1], buf, a, cuda);
	k3_cuda_linear_onto(cuda, k3_type<T>::id, buf[0], a->d,
			    a->p_in.n ? buf[a->p_in.first] : NULL, buf[2], a->p, buf, &a->wo, 0,
			    a->d, a->t);
}

/* Blocks of the backward: each leaves a part of don. */
static size_t
parts_of(const struct k3_kda_out_args *a)
{
	size_t all = (a->t * a->h + WARPS - 1) / WARPS;

	return all < PARTS ? all : PARTS;
}

extern "C" size_t
k3_kda_out_bwd_dx_cuda_scratch(const struct k3_kda_out_args *a)
{
	return a->o.n * parts_of(a) * a->v * sizeof(float);
}

template <typename T>
static void
kda_out_bwd_dx(void *const *buf, const struct k3_kda_out_args *a, const struct k3_cuda *cuda)
{
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	size_t parts = parts_of(a), shared = WARPS * a->v * sizeof(float);
	struct back_buffers<T> b = {
		NULL, (T *)buf[0], (float *)cuda->scratch, (const T *)buf[3],
			(const T *)buf[2], NULL, (const float *)buf[a->on.first]
	};
	struct k3_cuda_column_sum sum = {(float *)buf[a->don.first], NULL, b.don,
					 a->don.accumulate != 0};

	k3_cuda_linear_dx(cuda, k3_type<T>::id, buf[3], a->p, 0, buf[1], a->d, buf, &a->wo, 0, a->d,
			  a->t);
	for (uint32_t g = 0; a->t && g < a->o.n; g++) {
		struct span s = span_at(buf, a, g, k3_pack<T>::n);

		b.o = (const T *)buf[a->o.first + g];
		b.dout = (T *)buf[a->dout.first + g];
		if (s.lanes)
			norm_bwd_packs<T><<<(unsigned)parts, THREADS, 0, stream>>>(b, s);
		else
			norm_bwd_any<T><<<(unsigned)parts, THREADS, shared, stream>>>(b, s);
		K3_CUDA_LAUNCHED("norm_bwd");
		b.don += parts * a->v;
	}
	k3_cuda_column_sums(cuda, &sum, 1, a->t ? a->o.n * parts : 0, a->v, a->v);
}

template <typename T>
static void
kda_out_bwd_dw(void *const *buf, const struct k3_kda_out_args *a, const struct k3_cuda *cuda)
{
	gated_norm<T>((T *)buf[2], (const T *)buf[1], buf, a, cuda);
	k3_cuda_linear_dw(cuda, k3_type<T>::id, buf, &a->wo, 0, a->d, buf[0], a->d, buf[2], a->p,
			  a->t);
}

K3_CUDA_BOTH(kda_out_fwd, k3_kda_out_args)
K3_CUDA_BOTH(kda_out_bwd_dx, k3_kda_out_args)
K3_CUDA_BOTH(kda_out_bwd_dw, k3_kda_out_args)
