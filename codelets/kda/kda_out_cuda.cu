/* KDA's output on CUDA: RMS norm of each head, gate, projection.
 *
 * A warp has one head of one row; lane l has columns l*N .. of every 32*N, in the norm's two loops
 * over them, so the sums of `don` can stay with the lanes over all heads and rows of a warp. The
 * second loop finds the values in the first cache.
 */
#include "../cuda/device.cuh"

extern "C" {
#include "../../common/op/kda.h"
}

enum { WARPS = 8, THREADS = 32 * WARPS, PARTS = 512 };

/* N = 4 elements at once where every row of a head is aligned for it. */
template <typename T, int N>
static __device__ __forceinline__ void
load(float *out, const T *from)
{
	if (N == 1) {
		out[0] = wide(from[0]);
	} else if (sizeof(T) == 4) {
		float4 x = *reinterpret_cast<const float4 *>(from);
		out[0] = x.x;
		out[1 % N] = x.y;
		out[2 % N] = x.z;
		out[3 % N] = x.w;
	} else {
		uint2 raw = *reinterpret_cast<const uint2 *>(from);
		const T *x = reinterpret_cast<const T *>(&raw);
#pragma unroll
		for (int i = 0; i < N; i++)
			out[i] = wide(x[i]);
	}
}

template <typename T, int N>
static __device__ __forceinline__ void
store(T *to, const float *in)
{
	if (N == 1) {
		to[0] = narrow<T>(in[0]);
	} else if (sizeof(T) == 4) {
		*reinterpret_cast<float4 *>(to) =
			make_float4(in[0], in[1 % N], in[2 % N], in[3 % N]);
	} else {
		uint2 raw;
		T *x = reinterpret_cast<T *>(&raw);
#pragma unroll
		for (int i = 0; i < N; i++)
			x[i] = narrow<T>(in[i]);
		*reinterpret_cast<uint2 *>(to) = raw;
	}
}

/* Columns of a head group inside rows of all heads. */
struct span {
	size_t t, heads, first, width, v; /* first column; width: of a row of all heads */
	float eps;
};

/* 1 / sqrt(mean(o^2) + eps) of a head; the whole warp takes part. */
template <typename T, int N>
static __device__ __forceinline__ float
rms_factor(const T *o, const struct span &s, int lane)
{
	float sum = 0, x[N];

	for (size_t c = (size_t)lane * N; c < s.v; c += 32 * N) {
		load<T, N>(x, o + c);
#pragma unroll
		for (int i = 0; i < N; i++)
			sum += x[i] * x[i];
	}
	return 1.0f / sqrtf(warp_sum(sum) / (float)s.v + s.eps);
}

template <typename T, int N>
static __global__ void
gated_norm_fwd(T *y, const T *gg, const T *o, const float *on, struct span s)
{
	size_t i = (size_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
	int lane = (int)(threadIdx.x & 31);

	if (i >= s.t * s.heads)
		return;
	size_t at = i / s.heads * s.width + s.first + i % s.heads * s.v;
	float r = rms_factor<T, N>(o + i * s.v, s, lane);
	for (size_t c = (size_t)lane * N; c < s.v; c += 32 * N) {
		float x[N], g[N];
		load<T, N>(x, o + i * s.v + c);
		load<T, N>(g, gg + at + c);
#pragma unroll
		for (int k = 0; k < N; k++)
			x[k] *= r * on[c + k] * sigmoid(g[k]);
		store<T, N>(y + at + c, x);
	}
}

/* don: [PARTS, v], sums over the rows and heads of a block; sum_wv: the same by warps. */
template <typename T, int N>
static __global__ void
gated_norm_bwd(T *dout, T *dgg, float *don, const T *dy, const T *gg, const T *o, const float *on,
	       struct span s)
{
	extern __shared__ float sum_wv[];
	float *mine = sum_wv + (threadIdx.x >> 5) * s.v;
	int lane = (int)(threadIdx.x & 31);

	for (size_t c = threadIdx.x; c < WARPS * s.v; c += THREADS)
		sum_wv[c] = 0;
	__syncthreads();
	for (size_t i = (size_t)blockIdx.x * WARPS + (threadIdx.x >> 5); i < s.t * s.heads;
	     i += (size_t)gridDim.x * WARPS) {
		size_t at = i / s.heads * s.width + s.first + i % s.heads * s.v;
		float r = rms_factor<T, N>(o + i * s.v, s, lane), dot = 0, x[N], g[N], d[N];

		for (size_t c = (size_t)lane * N; c < s.v; c += 32 * N) {
			float out[N];
			load<T, N>(x, o + i * s.v + c);
			load<T, N>(g, gg + at + c);
			load<T, N>(d, dy + at + c);
#pragma unroll
			for (int k = 0; k < N; k++) {
				float z = sigmoid(g[k]), n = x[k] * r, w = on[c + k];
				out[k] = d[k] * n * w * z * (1.0f - z);
				mine[c + k] += d[k] * z * n;
				dot += d[k] * z * w * n;
			}
			store<T, N>(dgg + at + c, out);
		}
		dot = warp_sum(dot) / (float)s.v;
		for (size_t c = (size_t)lane * N; c < s.v; c += 32 * N) {
			load<T, N>(x, o + i * s.v + c);
			load<T, N>(g, gg + at + c);
			load<T, N>(d, dy + at + c);
#pragma unroll
			for (int k = 0; k < N; k++)
				x[k] = r * (d[k] * sigmoid(g[k]) * on[c + k] - x[k] * r * dot);
			store<T, N>(dout + i * s.v + c, x);
		}
	}
	__syncthreads();
	for (size_t c = threadIdx.x; c < s.v; c += THREADS) {
		float sum = 0;
		for (int w = 0; w < WARPS; w++)
			sum += sum_wv[(size_t)w * s.v + c];
		don[blockIdx.x * s.v + c] = sum;
	}
}

/* A warp has a column: don = (adds ? don : 0) + sum over the parts, lane by lane and then lanes. */
static __global__ void
sum_parts(float *don, const float *part, size_t v, size_t parts, uint32_t adds)
{
	size_t c = (size_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
	float sum = 0;

	if (c >= v)
		return;
	for (size_t i = threadIdx.x & 31; i < parts; i += 32)
		sum += part[i * v + c];
	sum = warp_sum(sum);
	if ((threadIdx.x & 31) == 0)
		don[c] = adds ? don[c] + sum : sum;
}

static struct span
span_at(const struct k3_kda_out_args *a, uint32_t g)
{
	size_t h0 = (size_t)g * a->group_heads, left = a->h - h0;
	struct span s = {
		a->t, left < a->group_heads ? left : a->group_heads, h0 * a->v, a->p, a->v, a->eps};

	return s;
}

template <typename T>
static void
gated_norm(T *y, const T *gg, void *const *buf, const struct k3_kda_out_args *a,
	   const struct k3_cuda *cuda)
{
	const float *on = (const float *)buf[a->on.first];

	for (uint32_t g = 0; a->t && g < a->o.n; g++) {
		struct span s = span_at(a, g);
		unsigned blocks = blocks_for(s.t * s.heads, WARPS);
		cudaStream_t stream = (cudaStream_t)cuda->stream;
		const T *o = (const T *)buf[a->o.first + g];

		if (a->v % 4 == 0)
			gated_norm_fwd<T, 4><<<blocks, THREADS, 0, stream>>>(y, gg, o, on, s);
		else
			gated_norm_fwd<T, 1><<<blocks, THREADS, 0, stream>>>(y, gg, o, on, s);
		K3_CUDA_LAUNCHED("gated_norm_fwd");
	}
}

template <typename T>
static void
kda_out_fwd(void *const *buf, const struct k3_kda_out_args *a, const struct k3_cuda *cuda)
{
	gated_norm<T>((T *)buf[2], (const T *)buf[1], buf, a, cuda);
	if (a->p_in.n && a->t)
		K3_CUDA_CHECK(cudaMemcpyAsync(buf[0], buf[a->p_in.first], a->t * a->d * sizeof(T),
					      cudaMemcpyDeviceToDevice,
					      (cudaStream_t)cuda->stream));
	k3_cuda_linear_fwd(cuda, k3_type<T>::id, buf[0], a->d, a->p_in.n ? 1.0f : 0.0f, buf[2],
			   a->p, buf, &a->wo, 0, a->d, a->t);
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
	const float *on = (const float *)buf[a->on.first];
	const T *gg = (const T *)buf[2], *dy = (const T *)buf[3];
	float *part = (float *)cuda->scratch;
	size_t parts = parts_of(a), shared = WARPS * a->v * sizeof(float);

	k3_cuda_linear_dx(cuda, k3_type<T>::id, buf[3], a->p, 0, buf[1], a->d, buf, &a->wo, 0, a->d,
			  a->t);
	for (uint32_t g = 0; a->t && g < a->o.n; g++) {
		struct span s = span_at(a, g);
		const T *o = (const T *)buf[a->o.first + g];
		T *dout = (T *)buf[a->dout.first + g], *dgg = (T *)buf[0];
		float *mine = part + g * parts * a->v;

		if (a->v % 4 == 0)
			gated_norm_bwd<T, 4><<<(unsigned)parts, THREADS, shared, stream>>>(
				dout, dgg, mine, dy, gg, o, on, s);
		else
			gated_norm_bwd<T, 1><<<(unsigned)parts, THREADS, shared, stream>>>(
				dout, dgg, mine, dy, gg, o, on, s);
		K3_CUDA_LAUNCHED("gated_norm_bwd");
	}
	sum_parts<<<blocks_for(a->v, WARPS), THREADS, 0, stream>>>((float *)buf[a->don.first], part,
								   a->v, a->t ? a->o.n * parts : 0,
								   a->don.accumulate);
	K3_CUDA_LAUNCHED("sum_parts");
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
