/* Attention-residual mix and norm backward: the formulas, and the kernel for any shape.
 *
 * With g = dy w, the mix x and its gradient dx = r (g - x r m), every <v_j, dx> follows from
 * <v_j, g> and <v_j, x>, so all sums of a token are taken at once and the values are looked at
 * once more, for the outputs. */
#ifndef K3_ATTNRES_MIX_BWD_CUH
#define K3_ATTNRES_MIX_BWD_CUH
#include "mix.cuh"

/* Columns of a block: the sum of dy x r, the sum of e = sum_j scale_j v_j. */
enum { MIX_COLUMNS = 2 };

struct mix_vectors {
	const float *gamma, *rho, *w, *stat;
	const void *addend[2]; /* or NULL */
};

/* Of one token, in shared memory: its statistics and the coefficients of the outputs. */
struct slopes {
	float *stat;	       /* [3n + 1], shares first */
	float *scale, *shrink; /* [n] */
	float *norm;	       /* r, r m */
};

/* A token: its rows (the last one is dy), its first element. */
struct mix_token {
	const struct mix_rows<MIX_MOST> *rows;
	size_t at, d;
	uint32_t n;
};

template <typename T>
static __device__ __forceinline__ float
row_at(const struct mix_token &token, uint32_t j, size_t c)
{
	return wide(((const T *)token.rows->row.p[j])[token.at + c]);
}

template <typename T>
static __device__ __forceinline__ float
mix_at(const float *share, const struct mix_token &token, size_t c)
{
	float x = 0;

#pragma unroll 4
	for (uint32_t j = 0; j < token.n; j++)
		x += share[j] * row_at<T>(token, j, c);
	return x;
}

/* <v_j, g> and <v_j, x> of all values, and <g, x> behind them, to warps. */
template <typename T>
static __device__ __forceinline__ void
value_sums(float *warps, const float *share, const float *w, const struct mix_token &token)
{
	uint32_t n = token.n;
	float gx = 0;

	for (uint32_t j = 0; j < n; j += MIX_GROUP) {
		float sums[2 * MIX_GROUP] = {0};
		for (size_t c = threadIdx.x; c < token.d; c += blockDim.x) {
			float g = row_at<T>(token, n, c) * w[c], x = mix_at<T>(share, token, c);
			gx += j == 0 ? g * x : 0.0f;
#pragma unroll
			for (int i = 0; i < MIX_GROUP; i++) {
				if (j + i >= n)
					continue;
				float v = row_at<T>(token, j + i, c);
				sums[2 * i] += v * g;
				sums[2 * i + 1] += v * x;
			}
		}
		mix_put(warps, sums, j, n);
	}
	gx = warp_sum(gx);
	if (threadIdx.x % 32 == 0)
		warps[2 * n * (blockDim.x / 32) + threadIdx.x / 32] = gx;
}

/* By the first warp: what follows from the sums. */
static __device__ __forceinline__ void
slopes_of(const struct slopes &s, const float *warps, uint32_t n, size_t d)
{
	const float *share = s.stat, *factor = share + n, *score = factor + n;
	float r = s.stat[3 * n], rm = r * (mix_get(warps, 2 * n) * r / (float)d), mean = 0;

	for (uint32_t j = threadIdx.x; j < n; j += 32) {
		float da = r * (mix_get(warps, 2 * j) - rm * mix_get(warps, 2 * j + 1));
		s.scale[j] = da;
		mean += share[j] * da;
	}
	mean = warp_sum(mean);
	for (uint32_t j = threadIdx.x; j < n; j += 32) {
		float ds = share[j] * (s.scale[j] - mean), rj = factor[j];
		s.scale[j] = ds * rj;
		s.shrink[j] = ds * score[j] * rj * rj / (float)d;
	}
	if (threadIdx.x == 0) {
		s.norm[0] = r;
		s.norm[1] = rm;
	}
}

/* Outputs of a token; sums [MIX_COLUMNS][d]. */
template <typename T>
static __device__ __forceinline__ void
outputs(float *sums, const struct mix_rows<MIX_MOST> &grads, const struct mix_vectors &vec,
	const struct slopes &s, const struct mix_token &token, bool adds)
{
	uint32_t n = token.n;

	for (size_t c = threadIdx.x; c < token.d; c += blockDim.x) {
		float x = mix_at<T>(s.stat, token, c), dy = row_at<T>(token, n, c), e = 0;
		float dx = s.norm[0] * (dy * vec.w[c] - x * s.norm[1]);
		float gr = vec.gamma[c] * vec.rho[c];
#pragma unroll 4
		for (uint32_t j = 0; j < n; j++) {
			T *to = (T *)grads.row.p[j] + token.at + c;
			float v = row_at<T>(token, j, c);
			float out = s.stat[j] * dx + s.scale[j] * gr - s.shrink[j] * v;
			e += s.scale[j] * v;
			if (adds && j + 1 < n)
				out += wide(*to);
			for (int k = 0; k < 2; k++)
				if (j + 1 == n && vec.addend[k])
					out += wide(((const T *)vec.addend[k])[token.at + c]);
			*to = narrow<T>(out);
		}
		sums[c] += dy * (x * s.norm[0]);
		sums[token.d + c] += e;
	}
}

/* Shared memory of a block, in floats. */
static inline size_t
mix_bwd_floats(size_t n, size_t threads)
{
	return 2 * (n + 1) * (threads / 32) + 5 * n + 3;
}

/* part: [gridDim.x][MIX_COLUMNS][d], the columns of each block. */
template <typename T>
static __global__ void
mix_bwd_any(float *part, const __grid_constant__ struct mix_rows<MIX_MOST> rows,
	    const __grid_constant__ struct mix_rows<MIX_MOST> grads,
	    const __grid_constant__ struct mix_vectors vec, size_t t, size_t d, bool adds)
{
	extern __shared__ __align__(16) float shared[];
	uint32_t n = rows.n - 1, len = 3 * n + 1;
	float *sums = part + blockIdx.x * MIX_COLUMNS * d;
	float *warps = shared, *own = warps + 2 * (n + 1) * (blockDim.x / 32);
	struct slopes s = {own, own + len, own + len + n, own + len + 2 * n};

	for (size_t c = threadIdx.x; c < d; c += blockDim.x)
		sums[c] = sums[d + c] = 0;
	for (size_t i = blockIdx.x; i < t; i += gridDim.x) {
		struct mix_token token = {&rows, i * d, d, n};
		for (size_t j = threadIdx.x; j < len; j += blockDim.x)
			s.stat[j] = vec.stat[i * len + j];
		__syncthreads();
		value_sums<T>(warps, s.stat, vec.w, token);
		__syncthreads();
		if (threadIdx.x < 32)
			slopes_of(s, warps, n, d);
		__syncthreads();
		outputs<T>(sums, grads, vec, s, token, adds);
		__syncthreads();
	}
}

#endif
