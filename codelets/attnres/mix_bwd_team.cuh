/* Attention-residual mix and norm backward, fast: a team of warps keeps a token's values in
 * registers and walks over tokens.  It keeps the sums of its columns in shared memory, and the
 * thread block adds those of its teams. */
#ifndef K3_ATTNRES_MIX_BWD_TEAM_CUH
#define K3_ATTNRES_MIX_BWD_TEAM_CUH
#include "mix_bwd.cuh"

enum { THREADS = 256 };

/* Blocks that are resident together on an H200. */
template <int VALUES>
static constexpr __host__ __device__ int
blocks_of(void)
{
	return VALUES <= MIX_FEW ? 2 : 1;
}

/* Coefficients of a token's outputs. */
template <int VALUES> struct slopes_in {
	float share[VALUES], scale[VALUES], shrink[VALUES], r, rm;
};

/* Sums over the thread's packs: <v_j, g>, <v_j, x> of all values, then <g, x>. */
template <typename T, int VALUES, int PACKS>
static __device__ __forceinline__ void
sum_packs(float *sums, const uint4 (*raw)[PACKS], const uint4 *dy, const float *share,
	  const float *w, size_t d)
{
	constexpr int N = k3_pack<T>::n;

#pragma unroll
	for (int j = 0; j <= 2 * VALUES; j++)
		sums[j] = 0;
#pragma unroll
	for (int i = 0; i < PACKS; i++) {
		size_t c = (threadIdx.x + i * blockDim.x) * N;
		float x[N], g[N], u[N], v[N];
		if (c >= d)
			continue;
		mix_of<T, VALUES, PACKS>(x, raw, i, share);
		mix_widen<T>(g, dy[i]);
		run_load<float, N>(u, w + c);
#pragma unroll
		for (int k = 0; k < N; k++) {
			g[k] *= u[k];
			sums[2 * VALUES] += g[k] * x[k];
		}
#pragma unroll
		for (int j = 0; j < VALUES; j++) {
			mix_widen<T>(v, raw[j][i]);
#pragma unroll
			for (int k = 0; k < N; k++) {
				sums[2 * j] += v[k] * g[k];
				sums[2 * j + 1] += v[k] * x[k];
			}
		}
	}
}

/* stat: the lane's of the token's statistics [3n + 1]. */
template <int VALUES>
static __device__ __forceinline__ void
coefficients(struct slopes_in<VALUES> *s, const float *sums, float stat, int n, size_t d)
{
	float mean = 0, by_d = 1.0f / (float)d;

	s->r = __shfl_sync(0xffffffffu, stat, 3 * n);
	s->rm = s->r * s->r * sums[2 * VALUES] * by_d;
#pragma unroll
	for (int j = 0; j < VALUES; j++) {
		s->scale[j] = s->r * (sums[2 * j] - s->rm * sums[2 * j + 1]);
		mean += s->share[j] * s->scale[j];
	}
#pragma unroll
	for (int j = 0; j < VALUES; j++) {
		float factor = __shfl_sync(0xffffffffu, stat, n + j),
		      score = __shfl_sync(0xffffffffu, stat, 2 * n + j);
		s->scale[j] = s->share[j] * (s->scale[j] - mean) * factor;
		s->shrink[j] = s->scale[j] * score * factor * by_d;
		if (j >= n)
			s->scale[j] = s->shrink[j] = 0;
	}
}

/* to += x of a thread's columns. */
template <int N>
static __device__ __forceinline__ void
add_columns(float *to, const float *x)
{
	float old[N];

	run_load<float, N>(old, to);
#pragma unroll
	for (int k = 0; k < N; k++)
		old[k] += x[k];
	run_store<float, N>(to, old);
}

/* What is added to the gradients of the values, pack i of each. */
template <typename T, int VALUES>
static __device__ __forceinline__ void
old_packs(uint4 *old, uint4 *addend, const struct mix_rows<VALUES> &grads,
	  const struct mix_vectors &vec, size_t at, bool adds)
{
#pragma unroll
	for (int j = 0; j < VALUES; j++) {
		old[j] = make_uint4(0, 0, 0, 0);
		if (adds && j + 1 < (int)grads.n)
			old[j] = mix_raw<T>(grads, j, at);
	}
#pragma unroll
	for (int k = 0; k < 2; k++) {
		addend[k] = make_uint4(0, 0, 0, 0);
		if (vec.addend[k])
			addend[k] = *(const uint4 *)((const T *)vec.addend[k] + at);
	}
}

/* Outputs of pack i, columns c .. of the token that begins at element `at`. */
template <typename T, int VALUES, int PACKS>
static __device__ __forceinline__ void
output_packs(float *columns, const uint4 (*raw)[PACKS], const uint4 &dy, int i,
	     const struct mix_rows<VALUES> &grads, const struct mix_vectors &vec,
	     const struct slopes_in<VALUES> &s, size_t at, size_t c, size_t d, bool adds)
{
	constexpr int N = k3_pack<T>::n;
	uint4 old[VALUES], addend[2];
	float x[N], dx[N], u[N], gr[N], e[N] = {};

	old_packs<T, VALUES>(old, addend, grads, vec, at + c, adds);
	mix_of<T, VALUES, PACKS>(x, raw, i, s.share);
	mix_widen<T>(dx, dy);
	run_load<float, N>(u, vec.w + c);
#pragma unroll
	for (int k = 0; k < N; k++) {
		gr[k] = dx[k] * x[k] * s.r;
		dx[k] = s.r * (dx[k] * u[k] - x[k] * s.rm);
	}
	add_columns<N>(columns + c, gr);
	run_load<float, N>(gr, vec.gamma + c);
	run_load<float, N>(u, vec.rho + c);
#pragma unroll
	for (int k = 0; k < N; k++)
		gr[k] *= u[k];
#pragma unroll
	for (int j = 0; j < VALUES; j++) {
		float v[N], out[N], more[N];
		if (j >= (int)grads.n)
			continue;
		mix_widen<T>(v, raw[j][i]);
		mix_widen<T>(out, old[j]);
#pragma unroll
		for (int k = 0; k < N; k++) {
			e[k] += s.scale[j] * v[k];
			out[k] += s.share[j] * dx[k] + s.scale[j] * gr[k] - s.shrink[j] * v[k];
		}
		for (int a = 0; j + 1 == (int)grads.n && a < 2; a++) {
			mix_widen<T>(more, addend[a]);
#pragma unroll
			for (int k = 0; k < N; k++)
				out[k] += more[k];
		}
		pack_store((T *)grads.row.p[j] + at + c, out);
	}
	add_columns<N>(columns + d + c, e);
}

/* Shared memory of a team, in floats: its columns, sums by warps for two tokens. */
template <int VALUES>
static __host__ __device__ inline size_t
team_floats(size_t d, size_t team)
{
	return MIX_COLUMNS * d + (2 * (team / 32) * (2 * VALUES + 1) + 3) / 4 * 4;
}

/* part: [gridDim.x][MIX_COLUMNS][d], the columns of each block. */
template <typename T, int VALUES>
static __global__ void
__launch_bounds__(THREADS, blocks_of<VALUES>())
	mix_bwd(float *part, const T *dy_td, const __grid_constant__ struct mix_rows<VALUES> rows,
		const __grid_constant__ struct mix_rows<VALUES> grads,
		const __grid_constant__ struct mix_vectors vec, size_t t, size_t d, bool adds)
{
	constexpr int N = k3_pack<T>::n, PACKS = mix_packs<VALUES>(), SUMS = 2 * VALUES + 1;
	extern __shared__ __align__(16) float shared[];
	size_t pitch = team_floats<VALUES>(d, blockDim.x);
	float *columns = shared + threadIdx.y * pitch, *sums_at = columns + MIX_COLUMNS * d;
	int n = (int)rows.n, lane = (int)(threadIdx.x % 32), len = 3 * n + 1, turn = 0;

	for (size_t c = threadIdx.x; c < MIX_COLUMNS * d; c += blockDim.x)
		columns[c] = 0;
	team_sync();
	for (size_t i = (size_t)blockIdx.x * blockDim.y + threadIdx.y; i < t;
	     i += (size_t)gridDim.x * blockDim.y, turn ^= 1) {
		uint4 raw[VALUES][PACKS], dy[1][PACKS];
		float sums[SUMS], stat = lane < len ? vec.stat[i * len + lane] : 0.0f;
		struct slopes_in<VALUES> s;

		mix_values<T, VALUES, PACKS>(raw, rows, i, d, n);
#pragma unroll
		for (int k = 0; k < PACKS; k++) {
			size_t c = (threadIdx.x + k * blockDim.x) * N;
			dy[0][k] = make_uint4(0, 0, 0, 0);
			if (c < d)
				dy[0][k] = *(const uint4 *)(dy_td + i * d + c);
		}
#pragma unroll
		for (int j = 0; j < VALUES; j++)
			s.share[j] = __shfl_sync(0xffffffffu, j < n ? stat : 0.0f, j);
		sum_packs<T, VALUES, PACKS>(sums, raw, dy[0], s.share, vec.w, d);
		mix_narrow<VALUES, PACKS>(raw);
		mix_narrow<1, PACKS>(dy);
		team_sums<SUMS>(sums, sums_at + turn * SUMS * (blockDim.x / 32));
		coefficients<VALUES>(&s, sums, stat, n, d);
#pragma unroll
		for (int k = 0; k < PACKS; k++) {
			size_t c = (threadIdx.x + k * blockDim.x) * N;
			if (c < d)
				output_packs<T, VALUES, PACKS>(columns, raw, dy[0][k], k, grads,
							       vec, s, i * d, c, d, adds);
		}
	}
	__syncthreads();
	for (size_t c = threadIdx.y * blockDim.x + threadIdx.x; c < MIX_COLUMNS * d;
	     c += blockDim.x * blockDim.y) {
		float sum = 0;
		for (unsigned k = 0; k < blockDim.y; k++)
			sum += shared[k * pitch + c];
		part[blockIdx.x * MIX_COLUMNS * d + c] = sum;
	}
}

#endif
