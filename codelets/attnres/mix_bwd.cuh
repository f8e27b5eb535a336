/* One token of the backward mix.
 *
 * With g = dy w, the mix x and its gradient dx = r (g - x r m), every <v_j, dx> follows from <v_j, g>
 * and <v_j, x>, so all sums of a token are taken at once and the values are looked at once more, for
 * the outputs. */
#ifndef K3_ATTNRES_MIX_BWD_CUH
#define K3_ATTNRES_MIX_BWD_CUH
#include "mix.cuh"

struct vectors {
	const float *gamma, *rho, *w, *stat;
	const void *addend[2]; /* or NULL */
};

/* Of one token, in shared memory: its statistics and the coefficients of the outputs. */
struct slopes {
	float *stat;	       /* [3n + 1], shares first */
	float *scale, *shrink; /* [n] */
	float *norm;	       /* r, r m */
};

/* Columns of a block: the sum of dy x r, the sum of e, the mix of the token.  So many of the last lie
 * in shared memory: all, or the mix alone, or (N = 1) none. */
enum { COLUMN_ROWS = 3 };

/* Shared memory before the stages, in floats. */
static __host__ __device__ inline size_t
fixed_floats(size_t d, size_t n, size_t threads, int shared_rows)
{
	size_t sums = 2 * (n + 1) * (threads / 32), token = 5 * n + 3;

	return ((size_t)shared_rows * d + sums + token + 3) / 4 * 4;
}

/* g = dy w and x of a run; the last row of a token is dy. */
template <typename T, int N, int MOST>
static __device__ __forceinline__ void
gradient_run(float *g, const float *w, const struct mix_token<T, N, MOST> &token, uint32_t n,
	     size_t c)
{
	float u[N];

	mix_load(g, token, n, c);
	run_load<float, N>(u, w + c);
#pragma unroll
	for (int k = 0; k < N; k++)
		g[k] *= u[k];
}

/* The mix of each column, to mixed; sum of g x over the warp, to warps. */
template <typename T, int N, int MOST>
static __device__ __forceinline__ void
mix_again(float *mixed, float *warps, const float *share, const float *w,
	  const struct mix_token<T, N, MOST> &token, uint32_t n)
{
	float sum = 0;

	for (size_t c = threadIdx.x * N; c < token.d; c += blockDim.x * N) {
		float x[N], g[N], v[N];
#pragma unroll
		for (int k = 0; k < N; k++)
			x[k] = 0;
#pragma unroll 4
		for (uint32_t j = 0; j < n; j++) {
			float a = share[j];
			mix_load(v, token, j, c);
#pragma unroll
			for (int k = 0; k < N; k++)
				x[k] += a * v[k];
		}
		run_store<float, N>(mixed + c, x);
		gradient_run(g, w, token, n, c);
#pragma unroll
		for (int k = 0; k < N; k++)
			sum += g[k] * x[k];
	}
	sum = warp_sum(sum);
	if (threadIdx.x % 32 == 0)
		warps[2 * n * (blockDim.x / 32) + threadIdx.x / 32] = sum;
}

/* <v_j, g> and <v_j, x> of all values, to warps. */
template <typename T, int N, int MOST>
static __device__ __forceinline__ void
value_sums(float *warps, const float *mixed, const float *w,
	   const struct mix_token<T, N, MOST> &token, uint32_t n)
{
	for (uint32_t j = 0; j < n; j += MIX_GROUP) {
		float sums[2 * MIX_GROUP] = {0};
		for (size_t c = threadIdx.x * N; c < token.d; c += blockDim.x * N) {
			float g[N], x[N], v[N];
			gradient_run(g, w, token, n, c);
			run_load<float, N>(x, mixed + c);
#pragma unroll
			for (int i = 0; i < MIX_GROUP; i++) {
				if (j + i >= n)
					continue;
				mix_load(v, token, j + i, c);
#pragma unroll
				for (int k = 0; k < N; k++) {
					sums[2 * i] += v[k] * g[k];
					sums[2 * i + 1] += v[k] * x[k];
				}
			}
		}
		mix_put(warps, sums, j, n);
	}
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

/* What is added to the gradient of value j. */
template <typename T, int N>
static __device__ __forceinline__ void
add_old(float *out, const T *from)
{
	float old[N];

	run_load<T, N>(old, from);
#pragma unroll
	for (int k = 0; k < N; k++)
		out[k] += old[k];
}

/* The gradients of the values in a run of columns, and e = sum_j scale_j v_j. */
template <typename T, int N, int MOST>
static __device__ __forceinline__ void
value_gradients(float *e, const struct mix_rows<MOST> &grads, const struct vectors &vec,
		const struct slopes &s, const float *dx, const float *gr,
		const struct mix_token<T, N, MOST> &token, uint32_t n, size_t c, bool adds)
{
#pragma unroll 1
	for (uint32_t first = 0; first < n; first += MIX_GROUP) {
		float old[MIX_GROUP][N], v[N];
#pragma unroll
		for (int i = 0; i < MIX_GROUP; i++) {
#pragma unroll
			for (int k = 0; k < N; k++)
				old[i][k] = 0;
			if (adds && first + i + 1 < n)
				run_load<T, N>(old[i],
					       (const T *)grads.row.p[first + i] + token.at + c);
		}
		if (first + MIX_GROUP >= n) {
#pragma unroll
			for (int i = 0; i < MIX_GROUP; i++)
				for (int k = 0; k < 2; k++)
					if (first + i + 1 == n && vec.addend[k])
						add_old<T, N>(old[i], (const T *)vec.addend[k] +
									      token.at + c);
		}
#pragma unroll
		for (int i = 0; i < MIX_GROUP; i++) {
			uint32_t j = first + i;
			if (j >= n)
				continue;
			float share = s.stat[j], scale = s.scale[j], shrink = s.shrink[j];
			mix_load(v, token, j, c);
#pragma unroll
			for (int k = 0; k < N; k++) {
				e[k] += scale * v[k];
				old[i][k] += share * dx[k] + scale * gr[k] - shrink * v[k];
			}
			run_store<T, N>((T *)grads.row.p[j] + token.at + c, old[i]);
		}
	}
}

/* Outputs of a token; sums [2][d] holds that of dy x r and that of e. */
template <typename T, int N, int MOST>
static __device__ __forceinline__ void
outputs(float *sums, const float *mixed, const struct mix_rows<MOST> &grads,
	const struct vectors &vec, const struct slopes &s,
	const struct mix_token<T, N, MOST> &token, uint32_t n, bool adds)
{
	float r = s.norm[0], rm = s.norm[1];

	for (size_t c = threadIdx.x * N; c < token.d; c += blockDim.x * N) {
		float x[N], dy[N], g[N], gr[N], sum[N];
		run_load<float, N>(x, mixed + c);
		run_load<float, N>(sum, sums + c);
		mix_load(dy, token, n, c);
#pragma unroll
		for (int k = 0; k < N; k++)
			sum[k] += dy[k] * (x[k] * r);
		run_store<float, N>(sums + c, sum);
		run_load<float, N>(g, vec.w + c);
#pragma unroll
		for (int k = 0; k < N; k++)
			x[k] = r * (dy[k] * g[k] - x[k] * rm);
		run_load<float, N>(gr, vec.gamma + c);
		run_load<float, N>(g, vec.rho + c);
		run_load<float, N>(sum, sums + token.d + c);
#pragma unroll
		for (int k = 0; k < N; k++)
			gr[k] *= g[k];
		value_gradients<T, N>(sum, grads, vec, s, x, gr, token, n, c, adds);
		run_store<float, N>(sums + token.d + c, sum);
	}
}

#endif
