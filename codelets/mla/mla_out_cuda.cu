/* Gated output of MLA on CUDA (model.md 4).  Groups of heads have outputs of their own, so a group's
 * rows are columns of the gate.  delta is the product of what is stored: da after rounding, as the
 * attention reads it. */
#include "../cuda/device.cuh"

extern "C" {
#include "../../common/op/mla.h"
}

enum { THREADS = 256 };

/* A group of heads: its columns first .. first + n - 1 of the gate. */
struct group {
	size_t first, n, heads;
};

static struct group
group_of(const struct k3_mla_out_args *a, uint32_t g)
{
	size_t h0 = (size_t)g * a->group_heads,
	       h1 = h0 + a->group_heads < a->h ? h0 + a->group_heads : a->h;

	return {h0 * a->v, (h1 - h0) * a->v, h1 - h0};
}

template <typename T, int N>
static __device__ __forceinline__ void
load(float *x, const T *from)
{
	if (N == 1)
		x[0] = wide(from[0]);
	else
		pack_load(x, from);
}

template <typename T, int N>
static __device__ __forceinline__ void
store(T *to, const float *x)
{
	if (N == 1)
		to[0] = narrow<T>(x[0]);
	else
		pack_store(to, x);
}

/* y = o sigmoid(z); y and z have rows of hv, o of n elements. */
template <typename T, int N>
static __global__ void
gate_fwd(T *y, const T *o, const T *z, size_t hv, size_t n, size_t total)
{
	size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * N, at = i / n * hv + i % n;
	float x[N], gate[N];

	if (i >= total)
		return;
	load<T, N>(x, o + i);
	load<T, N>(gate, z + at);
#pragma unroll
	for (int k = 0; k < N; k++)
		x[k] *= sigmoid(gate[k]);
	store<T, N>(y + at, x);
}

/* A warp has one head of one row; delta [t, heads]. */
template <typename T, int N>
static __global__ void
gate_bwd(T *da, float *delta, T *dz, const T *dy, const T *o, const T *z, size_t hv, size_t v,
	 size_t heads, size_t total)
{
	size_t i = (size_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
	float sum = 0;

	if (i >= total)
		return;
	size_t at = i / heads * hv + i % heads * v;
	for (size_t c = threadIdx.x % 32 * N; c < v; c += 32 * N) {
		float g[N], x[N], gate[N], dgate[N];
		load<T, N>(g, dy + at + c);
		load<T, N>(x, o + i * v + c);
		load<T, N>(gate, z + at + c);
#pragma unroll
		for (int k = 0; k < N; k++) {
			float s = sigmoid(gate[k]);
			dgate[k] = g[k] * x[k] * s * (1.0f - s);
			g[k] = wide(narrow<T>(g[k] * s));
			sum += g[k] * x[k];
		}
		store<T, N>(da + i * v + c, g);
		store<T, N>(dz + at + c, dgate);
	}
	sum = warp_sum(sum);
	if (threadIdx.x % 32 == 0)
		delta[i] = sum;
}

template <typename T>
static void
gated(T *y, const T *zg, void *const *buf, const struct k3_mla_out_args *a,
      const struct k3_cuda *cuda)
{
	const int pack = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	size_t hv = a->h * a->v;

	for (uint32_t g = 0; g < a->o.n; g++) {
		struct group of = group_of(a, g);
		const T *o = (const T *)buf[a->o.first + g];
		size_t total = a->t * of.n;
		if (total == 0)
			continue;
		if (a->v % pack == 0)
			gate_fwd<T, pack>
				<<<blocks_for(total, THREADS * pack), THREADS, 0, stream>>>(
					y + of.first, o, zg + of.first, hv, of.n, total);
		else
			gate_fwd<T, 1><<<blocks_for(total, THREADS), THREADS, 0, stream>>>(
				y + of.first, o, zg + of.first, hv, of.n, total);
		K3_CUDA_LAUNCHED("gate_fwd");
	}
}

template <typename T>
static void
mla_out_fwd(void *const *buf, const struct k3_mla_out_args *a, const struct k3_cuda *cuda)
{
	T *p_out = (T *)buf[0], *work = (T *)buf[2];
	size_t hv = a->h * a->v;

	gated<T>(work, (const T *)buf[1], buf, a, cuda);
	if (a->p_in.n && a->t)
		K3_CUDA_CHECK(cudaMemcpyAsync(p_out, buf[a->p_in.first], a->t * a->d * sizeof(T),
					      cudaMemcpyDeviceToDevice,
					      (cudaStream_t)cuda->stream));
	k3_cuda_linear_fwd(cuda, k3_type<T>::id, p_out, a->d, a->p_in.n ? 1.0f : 0.0f, work, hv,
			   buf, &a->wo, 0, a->d, a->t);
}

template <typename T>
static void
mla_out_bwd_dx(void *const *buf, const struct k3_mla_out_args *a, const struct k3_cuda *cuda)
{
	const int pack = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	T *dzg = (T *)buf[0], *work = (T *)buf[3];
	const T *zg = (const T *)buf[2];
	size_t hv = a->h * a->v;

	k3_cuda_linear_dx(cuda, k3_type<T>::id, work, hv, 0, buf[1], a->d, buf, &a->wo, 0, a->d,
			  a->t);
	for (uint32_t g = 0; g < a->o.n; g++) {
		struct group of = group_of(a, g);
		const T *o = (const T *)buf[a->o.first + g];
		T *da = (T *)buf[a->da.first + g];
		float *delta = (float *)buf[a->delta.first + g];
		size_t total = a->t * of.heads, at = of.first;
		unsigned blocks = blocks_for(total, THREADS / 32);
		if (total == 0)
			continue;
		if (a->v % pack == 0)
			gate_bwd<T, pack><<<blocks, THREADS, 0, stream>>>(da, delta, dzg + at,
									  work + at, o, zg + at, hv,
									  a->v, of.heads, total);
		else
			gate_bwd<T, 1><<<blocks, THREADS, 0, stream>>>(da, delta, dzg + at,
								       work + at, o, zg + at, hv,
								       a->v, of.heads, total);
		K3_CUDA_LAUNCHED("gate_bwd");
	}
}

template <typename T>
static void
mla_out_bwd_dw(void *const *buf, const struct k3_mla_out_args *a, const struct k3_cuda *cuda)
{
	T *work = (T *)buf[2];

	gated<T>(work, (const T *)buf[1], buf, a, cuda);
	k3_cuda_linear_dw(cuda, k3_type<T>::id, buf, &a->wo, 0, a->d, buf[0], a->d, work,
			  a->h * a->v, a->t);
}

K3_CUDA_BOTH(mla_out_fwd, k3_mla_out_args)
K3_CUDA_BOTH(mla_out_bwd_dx, k3_mla_out_args)
K3_CUDA_BOTH(mla_out_bwd_dw, k3_mla_out_args)
