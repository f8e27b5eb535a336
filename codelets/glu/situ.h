/* SiTU (model.md 5.1): situ(g, u) = b1 tanh(g/b1) sigmoid(g) * b2 tanh(u/b2), at most b1 b2 in
 * size. The sigmoid sees the unsaturated g. */
#ifndef K3_GLU_SITU_H
#define K3_GLU_SITU_H
#include <math.h>

static inline float
k3_sigmoid(float x)
{
	/* exp of a non-positive number alone: no overflow at either end */
	float e = expf(-fabsf(x)), s = 1.0f / (1.0f + e);

	return x >= 0 ? s : e * s;
}

static inline float
k3_situ_fwd(float g, float u, float b1, float b2)
{
	return b1 * tanhf(g / b1) * k3_sigmoid(g) * b2 * tanhf(u / b2);
}

/** Gradients of g and u from dy. */
static inline void
k3_situ_bwd(float dy, float g, float u, float b1, float b2, float *dg, float *du)
{
	float t1 = tanhf(g / b1), z = k3_sigmoid(g), t2 = tanhf(u / b2);

	*dg = dy * b2 * t2 * ((1 - t1 * t1) * z + b1 * t1 * z * (1 - z));
	*du = dy * b1 * t1 * z * (1 - t2 * t2);
}

#endif
