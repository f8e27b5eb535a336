/* SiTU where the result is rounded to bf16.  tanhf costs more than the products around it; the
 * special function unit's tanh is within 2^-11 of the value, a quarter of half a unit of bf16.
 * The sigmoid is computed from the exponential, as its tail needs the relative precision. */
#ifndef K3_MOE_FAST_SITU_CUH
#define K3_MOE_FAST_SITU_CUH
#include "../cuda/situ.cuh"

static __device__ __forceinline__ float
fast_tanh(float x)
{
	float y;

	asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

static __device__ __forceinline__ struct situ_parts
fast_situ(float g, float u, float b1, float b2)
{
	struct situ_parts p = {fast_tanh(g * (1.0f / b1)), fast_tanh(u * (1.0f / b2)),
			       sigmoid(g)};

	return p;
}

/** The form for results of type T. */
template <typename T>
static __device__ __forceinline__ struct situ_parts
situ_for(float g, float u, float b1, float b2)
{
	if (k3_type<T>::id == K3_CUDA_BF16)
		return fast_situ(g, u, b1, b2);
	return situ_parts(g, u, b1, b2);
}

#endif
