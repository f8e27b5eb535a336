/* Gradients that stay float between a product and what follows it, so that bf16 rounds a result
 * once. */
#ifndef K3_MLA_GEMM_CUH
#define K3_MLA_GEMM_CUH
#include "../cuda/device.cuh"

/** dx [t, cols] = (add ? dx : 0) + dy W[r0:r1], dx float, dy and W of type T. */
template <typename T>
static void
linear_dx_float(const struct k3_cuda *cuda, float *dx, int add, const T *dy, size_t lddy,
		void *const *buf, const struct k3_weight *w, size_t r0, size_t r1, size_t t)
{
	for (size_t r = r0; r < r1;) {
		size_t block = r / w->block_rows, end = (block + 1) * w->block_rows;
		struct k3_cuda_product p = {};

		end = end < r1 ? end : r1;
		p.m = t, p.n = w->cols, p.k = end - r;
		p.a = dy + (r - r0), p.lda = lddy;
		p.b = (const T *)buf[w->first + block] + (r - block * w->block_rows) * w->cols;
		p.ldb = w->cols;
		p.c = dx, p.ldc = w->cols;
		p.alpha = 1, p.beta = add || r > r0 ? 1.0f : 0.0f;
		p.type = k3_type<T>::id, p.type_c = K3_CUDA_F32;
		k3_cuda_gemm(cuda, &p);
		r = end;
	}
}

/** N floats from an address that is aligned as N elements of T are. */
template <int N>
static __device__ __forceinline__ void
load_floats(float *x, const float *from)
{
	if (N % 4 == 0) {
#pragma unroll
		for (int i = 0; i < N; i += 4)
			pack_load(x + i, from + i);
	} else {
		x[0] = from[0];
	}
}

#endif
