/* The norm of a row of any width by a warp, which reads it twice. */
#ifndef K3_MOE_COMBINE_ROWS_CUH
#define K3_MOE_COMBINE_ROWS_CUH
#include "rows.cuh"

/* 1 / rms of a row, in all lanes. */
template <typename T, int N>
static __device__ float
rms_factor(const T *y, size_t r, float eps)
{
	float square = 0, x[N];

	for (size_t c = (threadIdx.x & 31) * N; c < r; c += 32 * N) {
		run_load<T, N>(x, y + c);
		for (int q = 0; q < N; q++)
			square += x[q] * x[q];
	}
	return 1.0f / sqrtf(warp_sum(square) / (float)r + eps);
}

/* Elements of a row that a lane wrote are read again by the same lane. */
template <typename T, int N>
static __device__ void
normalise_row(T *out, const T *y, const float *w, size_t r, float eps)
{
	float factor = rms_factor<T, N>(y, r, eps), x[N];

	for (size_t c = (threadIdx.x & 31) * N; c < r; c += 32 * N) {
		run_load<T, N>(x, y + c);
		for (int q = 0; q < N; q++)
			x[q] = x[q] * factor * w[c + q];
		run_store<T, N>(out + c, x);
	}
}

#endif
