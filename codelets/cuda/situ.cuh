/* SiTU (model.md 5.1) and its gradient in float. */
#ifndef K3_CUDA_SITU_CUH
#define K3_CUDA_SITU_CUH
#include "device.cuh"

struct situ_parts {
	float tg, tu, sg; /* tanh(g/b1), tanh(u/b2), sigmoid(g) */
};

static __device__ __forceinline__ struct situ_parts
situ_parts(float g, float u, float b1, float b2)
{
	struct situ_parts p = {tanhf(g / b1), tanhf(u / b2), 1.0f / (1.0f + expf(-g))};

	return p;
}

static __device__ __forceinline__ float
situ_value(const struct situ_parts *p, float b1, float b2)
{
	return b1 * p->tg * p->sg * b2 * p->tu;
}

/** Derivatives by g and by u. */
static __device__ __forceinline__ void
situ_slopes(const struct situ_parts *p, float b1, float b2, float *dg, float *du)
{
	*dg = b2 * p->tu * p->sg * ((1.0f - p->tg * p->tg) + b1 * p->tg * (1.0f - p->sg));
	*du = b1 * p->tg * p->sg * (1.0f - p->tu * p->tu);
}

#endif
