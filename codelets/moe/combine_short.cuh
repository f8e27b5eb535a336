/* Combine of rows that a warp holds in registers: each is read once.  The trap: the norm sees the
 * sum as it is stored, since the backward pass has nothing else. */
#ifndef K3_MOE_COMBINE_SHORT_CUH
#define K3_MOE_COMBINE_SHORT_CUH
#include "rows.cuh"

enum { LANE_ELEMENTS = 16 };

/* Rows of a pack's multiple of elements that a warp holds in registers. */
template <typename T>
static bool
short_rows(size_t r)
{
	return r % k3_pack<T>::n == 0 && r <= 32 * LANE_ELEMENTS;
}

/* 1 / rms of a row in registers. */
template <int N, int RUNS>
static __device__ __forceinline__ float
rms_factor(const float (&y)[RUNS][N], size_t r, float eps)
{
	return 1.0f / sqrtf(row_dot(y, y) / (float)r + eps);
}

template <typename T, int N>
static __device__ __forceinline__ void
normalise_short(T *out, const float (&y)[LANE_ELEMENTS / N][N], const float *norm, size_t r,
		float eps)
{
	float factor = rms_factor(y, r, eps), x[LANE_ELEMENTS / N][N];

	row_load<float, N>(x, norm, r);
#pragma unroll
	for (int i = 0; i < LANE_ELEMENTS; i++)
		x[i / N][i % N] = y[i / N][i % N] * factor * x[i / N][i % N];
	row_store<T, N>(out, x, r);
}

template <typename T>
static __global__ void
normalise_shorts(T *out, const T *y, const float *norm, size_t t, size_t r, float eps)
{
	const int n = k3_pack<T>::n;
	size_t i = warp_row();
	float x[LANE_ELEMENTS / n][n];

	if (i >= t)
		return;
	row_load<T, n>(x, y + i * r, r);
	normalise_short<T, n>(out + i * r, x, norm, r, eps);
}

/* y = sum over slots, and its norm */
template <typename T>
static __global__ void
weigh_shorts(T *out, T *y, const T *ys, const int32_t *row, const float *w, const float *norm,
	     size_t t, int k, size_t r, float eps)
{
	const int n = k3_pack<T>::n, runs = LANE_ELEMENTS / n;
	size_t i = warp_row();
	float sum[runs][n] = {};

	if (i >= t)
		return;
#pragma unroll 4
	for (int j = 0; j < k; j++) {
		float weight = w[i * k + j], x[runs][n];
		row_load<T, n>(x, ys + (size_t)row[i * k + j] * r, r);
#pragma unroll
		for (int q = 0; q < LANE_ELEMENTS; q++)
			sum[q / n][q % n] += weight * x[q / n][q % n];
	}
	row_store<T, n>(y + i * r, sum, r);
#pragma unroll
	for (int q = 0; q < LANE_ELEMENTS; q++)
		sum[q / n][q % n] = as_stored<T>(sum[q / n][q % n]);
	normalise_short<T, n>(out + i * r, sum, norm, r, eps);
}

/* A block walks `rows` tokens; its warps' sums of dnorm stay in registers until their last row
 * and end in a row of `part`. */
template <typename T>
static __global__ void __launch_bounds__(32 * ROW_WARPS)
	combine_gradient_short(T *dys, float *part, const float *dn, const T *y, const float *norm,
			       const int32_t *row, size_t t, size_t rows, int k, size_t r,
			       float eps)
{
	const int n = k3_pack<T>::n, runs = LANE_ELEMENTS / n, all = LANE_ELEMENTS;
	__shared__ float sums[ROW_WARPS][32 * LANE_ELEMENTS];
	int warp = threadIdx.x >> 5;
	size_t from = blockIdx.x * rows, to = from + rows < t ? from + rows : t;
	float w[runs][n], mine[runs][n] = {};

	row_load<float, n>(w, norm, r);
	for (size_t i = from + warp; i < to; i += ROW_WARPS) {
		float x[runs][n], d[runs][n], g[runs][n], factor, mean;
		row_load<T, n>(x, y + i * r, r);
		row_load<float, n>(d, dn + i * r, r);
		factor = rms_factor(x, r, eps);
#pragma unroll
		for (int q = 0; q < all; q++)
			g[q / n][q % n] = d[q / n][q % n] * w[q / n][q % n];
		mean = row_dot(g, x) * factor / (float)r;
#pragma unroll
		for (int q = 0; q < all; q++) {
			float unit = x[q / n][q % n] * factor;
			mine[q / n][q % n] += d[q / n][q % n] * unit;
			g[q / n][q % n] = factor * (g[q / n][q % n] - unit * mean);
		}
		for (int j = 0; j < k; j++)
			row_store<T, n>(dys + (size_t)row[i * k + j] * r, g, r);
	}
	row_store<float, n>(sums[warp], mine, r);
	__syncthreads();
	for (size_t c = threadIdx.x; c < r; c += blockDim.x) {
		float sum = 0;
		for (int i = 0; i < ROW_WARPS; i++)
			sum += sums[i][c];
		part[blockIdx.x * r + c] = sum;
	}
}

#endif
