/* t = (I + l)^-1 of a strictly lower triangular l [64, 64], float: 16 x 16 on the diagonal by
 * substitution, the rest by halves, t21 = -t22 l21 t11, in products of three TF32 parts.  What is
 * above the diagonal blocks is neither read nor written.
 */
#ifndef K3_KDA_INVERSE_CUH
#define K3_KDA_INVERSE_CUH

#include "kda_mma.cuh"

enum { INVERSE_LD = 68 };

/* Column i of (I + L)^-1 in its diagonal block. */
static __device__ __forceinline__ void
invert_diagonal(float *t, const float *l, int i)
{
	int at = i / 16 * 16;
	float x[16] = {};

#pragma unroll
	for (int r = 0; r < 16; r++) {
		float sum[4] = {r == i % 16 ? 1.0f : 0.0f, 0, 0, 0};

		/* l is zero from the diagonal on, and so is what x does not have yet */
#pragma unroll
		for (int j = 0; j < r; j += 4) {
			float4 row = *reinterpret_cast<const float4 *>(l + (at + r) * INVERSE_LD +
								       at + j);

			sum[0] -= row.x * x[j];
			sum[1] -= row.y * x[j + 1];
			sum[2] -= row.z * x[j + 2];
			sum[3] -= row.w * x[j + 3];
		}
		x[r] = sum[0] + sum[1] + (sum[2] + sum[3]);
		t[(at + r) * INVERSE_LD + i] = x[r];
	}
}

/* t [16, 16] at a block = sign c. */
static __device__ __forceinline__ void
block_put(float *t, const float (*c)[4], float sign)
{
	int g = (int)(threadIdx.x & 31) / 4, col = (int)(threadIdx.x & 3) * 2;

#pragma unroll
	for (int i = 0; i < 4; i++)
		*reinterpret_cast<float2 *>(t + (g + (i & 1) * 8) * INVERSE_LD + col +
					    (i >> 1) * 8) =
			make_float2(sign * c[i >> 1][(i & 1) * 2],
				    sign * c[i >> 1][(i & 1) * 2 + 1]);
	__syncwarp();
}

/* Blocks (1, 0) and (3, 2), then the lower left half. */
static __device__ __forceinline__ void
invert_halves(float *t, const float *l)
{
	int warp = (int)threadIdx.x / 32, row = (2 + warp / 2) * 16, col = warp % 2 * 16;
	float c[2][4] = {}, d[2][4] = {};

	if (warp < 2) {
		int at = warp * 32;
		float *to = t + (at + 16) * INVERSE_LD + at;

		product<false, false, true, 1>(c, l + (at + 16) * INVERSE_LD + at, INVERSE_LD,
					       t + at * INVERSE_LD + at, INVERSE_LD, 1);
		block_put(to, c, 1);
		product<false, false, true, 1>(d, t + (at + 16) * INVERSE_LD + at + 16, INVERSE_LD,
					       to, INVERSE_LD, 1);
		__syncwarp();
		block_put(to, d, -1);
	}
	__syncthreads();
#pragma unroll
	for (int i = 0; i < 8; i++)
		c[i / 4][i % 4] = d[i / 4][i % 4] = 0;
	if (warp < 4) {
		product<false, false, true, 1>(c, l + row * INVERSE_LD + col, INVERSE_LD,
					       t + col * INVERSE_LD + col, INVERSE_LD,
					       2 - col / 16);
		block_put(t + row * INVERSE_LD + col, c, 1);
	}
	__syncthreads();
	if (warp < 4)
		product<false, false, true, 1>(d, t + row * INVERSE_LD + 32, INVERSE_LD,
					       t + 32 * INVERSE_LD + col, INVERSE_LD, row / 16 - 1);
	__syncthreads();
	if (warp < 4)
		block_put(t + row * INVERSE_LD + col, d, -1);
	__syncthreads();
}

/** All threads of a block of four warps or more; ends with a barrier. */
static __device__ __forceinline__ void
invert(float *t, const float *l)
{
	if (threadIdx.x < 64)
		invert_diagonal(t, l, (int)threadIdx.x);
	__syncthreads();
	invert_halves(t, l);
}

#endif
