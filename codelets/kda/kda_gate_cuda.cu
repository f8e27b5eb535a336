/* The projections that feed KDA's gates on CUDA; kda_gate_cpu.c has the explanation. */
#include "../cuda/device.cuh"

extern "C" {
#include "../../common/op/kda.h"
}

enum { THREADS = 256 };

struct group {
	size_t h0, heads;
	const void *df, *dbr;
};

static struct group
group_at(void *const *buf, const struct k3_kda_gate_args *a, uint32_t i)
{
	struct group g = {.df = buf[a->df.first + i], .dbr = buf[a->dbr.first + i]};

	g.heads = k3_heads_of_group(a->h, a->group_heads, i, &g.h0);
	return g;
}

template <typename T>
static void
kda_gate_fwd(void *const *buf, const struct k3_kda_gate_args *a, const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;

	k3_cuda_linear_fwd(cuda, type, buf[0], a->k, 0, buf[4], a->d, buf, &a->wfa, 0, a->k, a->t);
	k3_cuda_linear_fwd(cuda, type, buf[1], a->p, 0, buf[0], a->k, buf, &a->wfb, 0, a->p, a->t);
	k3_cuda_linear_fwd(cuda, type, buf[2], a->h, 0, buf[4], a->d, buf, &a->wb, 0, a->h, a->t);
	k3_cuda_linear_fwd(cuda, type, buf[3], a->p, 0, buf[4], a->d, buf, &a->wg, 0, a->p, a->t);
}

template <typename T>
static void
kda_gate_bwd_dx(void *const *buf, const struct k3_kda_gate_args *a, const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;

	for (uint32_t i = 0; i < a->df.n; i++) {
		struct group g = group_at(buf, a, i);

		k3_cuda_linear_dx(cuda, type, buf[1], a->k, i ? 1.0f : 0.0f, g.df, g.heads * a->k,
				  buf, &a->wfb, g.h0 * a->k, (g.h0 + g.heads) * a->k, a->t);
		k3_cuda_linear_dx(cuda, type, buf[0], a->d, 1, g.dbr, g.heads, buf, &a->wb, g.h0,
				  g.h0 + g.heads, a->t);
	}
	k3_cuda_linear_dx(cuda, type, buf[0], a->d, 1, buf[1], a->k, buf, &a->wfa, 0, a->k, a->t);
	k3_cuda_linear_dx(cuda, type, buf[0], a->d, 1, buf[2], a->p, buf, &a->wg, 0, a->p, a->t);
}

static __global__ void
add_or_set(float *dst, const float *src, size_t n, uint32_t adds)
{
	size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

	if (i < n)
		dst[i] = adds ? dst[i] + src[i] : src[i];
}

static void
hand_over(const struct k3_cuda *cuda, float *dst, const float *src, size_t n, uint32_t adds)
{
	add_or_set<<<blocks_for(n, THREADS), THREADS, 0, (cudaStream_t)cuda->stream>>>(dst, src, n,
										       adds);
	K3_CUDA_LAUNCHED("add_or_set");
}

template <typename T>
static void
kda_gate_bwd_dw(void *const *buf, const struct k3_kda_gate_args *a, const struct k3_cuda *cuda)
{
	const enum k3_cuda_type type = k3_type<T>::id;
	const void *x = buf[2], *fa = buf[3];
	float *da = (float *)buf[a->a_log.first], *db = (float *)buf[a->dt_bias.first];

	k3_cuda_linear_dw(cuda, type, buf, &a->wfa, 0, a->k, buf[0], a->k, x, a->d, a->t);
	k3_cuda_linear_dw(cuda, type, buf, &a->wg, 0, a->p, buf[1], a->p, x, a->d, a->t);
	for (uint32_t i = 0; i < a->df.n; i++) {
		struct group g = group_at(buf, a, i);
		const float *dab = (const float *)buf[a->dab.first + i];

		k3_cuda_linear_dw(cuda, type, buf, &a->wfb, g.h0 * a->k, (g.h0 + g.heads) * a->k,
				  g.df, g.heads * a->k, fa, a->k, a->t);
		k3_cuda_linear_dw(cuda, type, buf, &a->wb, g.h0, g.h0 + g.heads, g.dbr, g.heads, x,
				  a->d, a->t);
		hand_over(cuda, da + g.h0, dab, g.heads, a->a_log.accumulate);
		hand_over(cuda, db + g.h0 * a->k, dab + g.heads, g.heads * a->k,
			  a->dt_bias.accumulate);
	}
}

K3_CUDA_BOTH(kda_gate_fwd, k3_kda_gate_args)
K3_CUDA_BOTH(kda_gate_bwd_dx, k3_kda_gate_args)
K3_CUDA_BOTH(kda_gate_bwd_dw, k3_kda_gate_args)
