/* RMSNorm of rows of any width and alignment: a row is looked at twice in memory. */
#ifndef K3_NORM_RMS_ANY_CUH
#define K3_NORM_RMS_ANY_CUH
#include "../cuda/device.cuh"
#include "rms_cuda.h"

enum { RMS_ROWS = 8 }; /* of a block, forward */

/* Factors of rows: the last of `step` floats each; again: they are read, not made. */
struct factors {
	float *stat;
	size_t step;
	float eps;
	bool again;
};

/* The statistics of a row with factor r, by one thread. */
static __device__ __forceinline__ void
put_factor(const struct factors &f, size_t row, float r)
{
	float *at = f.stat + row * f.step;

	for (size_t i = 0; i + 1 < f.step; i++)
		at[i] = i == 0 ? 1.0f : 0.0f;
	at[f.step - 1] = r;
}

/* A row of any width to a warp. */
template <typename T>
static __global__ void
rms_fwd_any(T *y, struct factors f, const T *x, const float *w, size_t n, size_t d)
{
	size_t row = (size_t)blockIdx.x * RMS_ROWS + threadIdx.x / 32, lane = threadIdx.x % 32;
	float sum = 0, r;

	if (row >= n)
		return;
	x += row * d;
	if (f.again) {
		r = f.stat[(row + 1) * f.step - 1];
	} else {
		for (size_t c = lane; c < d; c += 32)
			sum += wide(x[c]) * wide(x[c]);
		r = 1.0f / sqrtf(warp_sum(sum) / (float)d + f.eps);
		if (lane == 0)
			put_factor(f, row, r);
	}
	for (size_t c = lane; c < d; c += 32)
		y[row * d + c] = narrow<T>(wide(x[c]) * r * w[c]);
}

/* A row of any width to a block; its part is its sum. */
template <typename T>
static __global__ void
rms_bwd_any(float *part, const __grid_constant__ struct k3_cuda_rms_bwd b)
{
	__shared__ float warps[32];
	size_t d = b.d;
	float *sum = part + blockIdx.x * d;

	for (size_t c = threadIdx.x; c < d; c += blockDim.x)
		sum[c] = 0;
	for (size_t row = blockIdx.x; row < b.n; row += gridDim.x) {
		const T *x = (const T *)b.x + row * d, *dy = (const T *)b.dy + row * d;
		float r = b.stat[(row + 1) * b.step - 1], dot = 0;
		for (size_t c = threadIdx.x; c < d; c += blockDim.x)
			dot += wide(dy[c]) * b.w[c] * wide(x[c]);
		float mean = block_sum(dot, warps) * r / (float)d;
		for (size_t c = threadIdx.x; c < d; c += blockDim.x) {
			float g = wide(dy[c]), n = wide(x[c]) * r, v = r * (g * b.w[c] - n * mean);
			sum[c] += g * n;
			for (int a = 0; a < 2; a++)
				if (b.addend[a])
					v += wide(((const T *)b.addend[a])[row * d + c]);
			((T *)b.dx)[row * d + c] = narrow<T>(v);
		}
	}
}

#endif
