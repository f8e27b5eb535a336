/* Gated output of MLA on CUDA (model.md 4).  Groups of heads have outputs of their own, so a
 * group's rows are columns of the gate.  The gradient of the gated output stays float, and delta
 * is the product of da before rounding. */
#include "../cuda/runs.cuh"
#include "mla_gemm.cuh"

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
	size_t h0, heads = k3_heads_of_group(a->h, a->group_heads, g, &h0);

	return {h0 * a->v, heads * a->v, heads};
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
	run_load<T, N>(x, o + i);
	run_load<T, N>(gate, z + at);
#pragma unroll
	for (int k = 0; k < N; k++)
		x[k] *= sigmoid(gate[k]);
	run_store<T, N>(y + at, x);
}

/* LANES lanes have one head of one row; delta [t, heads]. */
template <typename T, int N, int LANES>
static __global__ void
gate_bwd(T *da, float *delta, T *dz, const float *dy, const T *o, const T *z, size_t hv, size_t v,
	 size_t heads, size_t total)
{
	size_t i = (size_t)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
	size_t at = i / heads * hv + i % heads * v, from = threadIdx.x % LANES * N;
	float sum = 0;

	for (size_t c = i < total ? from : v; c < v; c += LANES * N) {
		float g[N], x[N], gate[N], dgate[N];
		load_floats<N>(g, dy + at + c);
		run_load<T, N>(x, o + i * v + c);
		run_load<T, N>(gate, z + at + c);
#pragma unroll
		for (int k = 0; k < N; k++) {
			float s = sigmoid(gate[k]);
			dgate[k] = g[k] * x[k] * s * (1.0f - s);
			g[k] *= s;
			sum += g[k] * x[k];
		}
		run_store<T, N>(da + i * v + c, g);
		run_store<T, N>(dz + at + c, dgate);
	}
#pragma unroll
	for (int step = LANES / 2; step > 0; step >>= 1)
		sum += __shfl_xor_sync(0xffffffffu, sum, step);
	if (i < total && from == 0)
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
	T *work = (T *)buf[2];
	size_t hv = a->h * a->v;

	gated<T>(work, (const T *)buf[1], buf, a, cuda);
	k3_cuda_linear_onto(cuda, k3_type<T>::id, buf[0], a->d,
			    a->p_in.n ? buf[a->p_in.first] : NULL, work, hv, buf, &a->wo, 0, a->d,
			    a->t);
}

/* One group; work holds the gradient of the gated output. */
template <typename T, int N, int LANES>
static void
launch_bwd(void *const *buf, const struct k3_mla_out_args *a, uint32_t g, const float *work,
	   const struct k3_cuda *cuda)
{
	struct group of = group_of(a, g);
	size_t total = a->t * of.heads;

	gate_bwd<T, N, LANES>
		<<<blocks_for(total, THREADS / LANES), THREADS, 0, (cudaStream_t)cuda->stream>>>(
			(T *)buf[a->da.first + g], (float *)buf[a->delta.first + g],
			(T *)buf[0] + of.first, work + of.first, (const T *)buf[a->o.first + g],
			(const T *)buf[2] + of.first, a->h * a->v, a->v, of.heads, total);
	K3_CUDA_LAUNCHED("gate_bwd");
}

template <typename T>
static void
mla_out_bwd_dx(void *const *buf, const struct k3_mla_out_args *a, const struct k3_cuda *cuda)
{
	const int pack = k3_pack<T>::n;
	float *work = (float *)buf[3];

	linear_dx_float<T>(cuda, work, 0, (const T *)buf[1], a->d, buf, &a->wo, 0, a->d, a->t);
	for (uint32_t g = 0; a->t && g < a->o.n; g++) {
		if (a->v % pack)
			launch_bwd<T, 1, 32>(buf, a, g, work, cuda);
		else if (a->v <= (size_t)8 * pack)
			launch_bwd<T, pack, 8>(buf, a, g, work, cuda);
		else if (a->v <= (size_t)16 * pack)
			launch_bwd<T, pack, 16>(buf, a, g, work, cuda);
		else
			launch_bwd<T, pack, 32>(buf, a, g, work, cuda);
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
