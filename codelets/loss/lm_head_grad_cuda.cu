/* Gradients of the LM head by its input and its weight.  The input's is a sum over vocabulary blocks:
 * in bf16 it is kept in float scratch and rounded once, behind the last block. */
#include "../cuda/device.cuh"

extern "C" {
#include "../../common/op/loss.h"
}

enum { THREADS = 256 };

static __global__ void
round_sum(k3_bf16 *to, const float *from, size_t n)
{
	size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * 4;

	for (size_t k = i; k < i + 4 && k < n; k++)
		to[k] = narrow<k3_bf16>(from[k]);
}

/* c [rows, d] float = sum over blocks of dlogits_b W_b. */
template <typename T>
static void
product(float *c, void *const *buf, const struct k3_lm_head_args *a, const struct k3_cuda *cuda)
{
	for (uint32_t v = 0; v < a->logits.n; v++) {
		size_t first = v * a->head.block_rows, rest = a->head.rows - first;
		struct k3_cuda_product p = {};

		p.m = a->rows, p.n = a->d,
		p.k = rest < a->head.block_rows ? rest : a->head.block_rows;
		p.a = buf[a->logits.first + v], p.lda = p.k;
		p.b = buf[a->head.first + v], p.ldb = a->d;
		p.c = c, p.ldc = a->d;
		p.alpha = 1, p.beta = v ? 1.0f : 0.0f;
		p.type = k3_type<T>::id, p.type_c = K3_CUDA_F32;
		k3_cuda_gemm(cuda, &p);
	}
}

static void
dx(float *dh, void *const *buf, const struct k3_lm_head_args *a, const struct k3_cuda *cuda)
{
	product<float>(dh, buf, a, cuda);
}

static void
dx(k3_bf16 *dh, void *const *buf, const struct k3_lm_head_args *a, const struct k3_cuda *cuda)
{
	float *sum = (float *)cuda->scratch;
	size_t n = a->rows * a->d;

	product<k3_bf16>(sum, buf, a, cuda);
	round_sum<<<blocks_for(n, THREADS * 4), THREADS, 0, (cudaStream_t)cuda->stream>>>(dh, sum,
											  n);
	K3_CUDA_LAUNCHED("round_sum");
}

extern "C" size_t
k3_lm_head_dx_cuda_scratch(const struct k3_lm_head_args *a)
{
	return a->rows * a->d * sizeof(float);
}

template <typename T>
static void
lm_head_dx(void *const *buf, const struct k3_lm_head_args *a, const struct k3_cuda *cuda)
{
	if (a->rows)
		dx((T *)buf[0] + a->r0 * a->d, buf, a, cuda);
}

template <typename T>
static void
lm_head_dw(void *const *buf, const struct k3_lm_head_args *a, const struct k3_cuda *cuda)
{
	const T *h = (const T *)buf[1] + a->r0 * a->d;

	k3_cuda_linear_dw(cuda, k3_type<T>::id, buf, &a->head, 0, a->head.rows, buf[0],
			  a->head.rows, h, a->d, a->rows);
}

K3_CUDA_BOTH(lm_head_dx, k3_lm_head_args)
K3_CUDA_BOTH(lm_head_dw, k3_lm_head_args)
