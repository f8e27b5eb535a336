/* Attention-residual mix and norm forward, fast: a team of warps keeps a token's values in
 * registers and walks over tokens.  The next token's loads start as soon as the mix is formed,
 * before its norm: the trap is that memory rests while a team reduces, and there are no registers
 * for two tokens. */
#ifndef K3_ATTNRES_MIX_FWD_TEAM_CUH
#define K3_ATTNRES_MIX_FWD_TEAM_CUH
#include "mix_fwd.cuh"

/* Threads of a block at most, and if a team does not need more; packs of a thread at most. */
enum { FWD_THREADS = 512, FWD_SMALL = 256, FWD_PACKS = 2 };

/* Rows of a token, by value. */
template <int VALUES> struct fwd_rows {
	struct k3_pointers<VALUES> row;
	int n;
};

/** raw[j][i] = the thread's pack i of value j of a token, zeros where there is none. */
template <int VALUES, int PACKS>
static __device__ __forceinline__ void
value_packs(uint4 (*raw)[PACKS], const struct fwd_rows<VALUES> &rows, size_t token,
	    const uint32_t *at, uint32_t bytes)
{
#pragma unroll
	for (int j = 0; j < VALUES; j++)
#pragma unroll
		for (int i = 0; i < PACKS; i++) {
			const char *from = (const char *)rows.row.p[j] + token * bytes;
			raw[j][i] = make_uint4(0, 0, 0, 0);
			if (j < rows.n && at[i] < bytes)
				raw[j][i] = *(const uint4 *)(from + at[i]);
		}
}

/* Squares and scores of the values by warps, to warps. */
template <typename T, int VALUES, int PACKS>
static __device__ __forceinline__ void
score_packs(float *warps, const uint4 (*raw)[PACKS], const struct mix_vectors &vec,
	    const uint32_t *at, uint32_t bytes, int n)
{
	constexpr int N = k3_pack<T>::n, GROUPS = (VALUES + MIX_GROUP - 1) / MIX_GROUP;
	float sums[GROUPS][2 * MIX_GROUP] = {};

#pragma unroll
	for (int i = 0; i < PACKS; i++) {
		uint32_t c = at[i] < bytes ? at[i] / sizeof(T) : 0;
		float g[N], r[N];
		run_load<float, N>(g, vec.gamma + c);
		run_load<float, N>(r, vec.rho + c);
#pragma unroll
		for (int k = 0; k < N; k++)
			g[k] *= r[k];
#pragma unroll
		for (int j = 0; j < VALUES; j++) {
			float v[N], *sum = &sums[j / MIX_GROUP][2 * (j % MIX_GROUP)];
			pack_wide<T>(v, raw[j][i]);
#pragma unroll
			for (int k = 0; k < N; k++) {
				sum[0] += v[k] * v[k];
				sum[1] += v[k] * g[k];
			}
		}
	}
#pragma unroll
	for (int q = 0; q < GROUPS; q++)
		mix_put(warps, sums[q], q * MIX_GROUP, (uint32_t)n);
}

/* Lane j's share of value j, in every warp; the statistics to memory. */
static __device__ __forceinline__ float
lane_share(float *stat, const float *warps, int n, float by_d, float eps)
{
	int lane = threadIdx.x % 32;
	float r = 0, score = -INFINITY;

	if (lane < n) {
		r = 1.0f / sqrtf(mix_get(warps, 2 * lane) * by_d + eps);
		score = mix_get(warps, 2 * lane + 1) * r;
	}
	float most = warp_max(score), share = lane < n ? expf(score - most) : 0.0f;
	share /= warp_sum(share);
	if (lane < n && threadIdx.x < 32) {
		stat[lane] = share;
		stat[n + lane] = r;
		stat[2 * n + lane] = score;
	}
	return share;
}

/* x = sum of the values by their shares; its square. */
template <typename T, int VALUES, int PACKS>
static __device__ __forceinline__ float
mix_packs_of(float (*x)[k3_pack<T>::n], const uint4 (*raw)[PACKS], float share)
{
	constexpr int N = k3_pack<T>::n;
	float square = 0;

#pragma unroll
	for (int j = 0; j < VALUES; j++) {
		float a = __shfl_sync(0xffffffffu, share, j);
#pragma unroll
		for (int i = 0; i < PACKS; i++) {
			float v[N];
			pack_wide<T>(v, raw[j][i]);
#pragma unroll
			for (int k = 0; k < N; k++)
				x[i][k] = j == 0 ? a * v[k] : x[i][k] + a * v[k];
		}
	}
#pragma unroll
	for (int i = 0; i < PACKS; i++)
#pragma unroll
		for (int k = 0; k < N; k++)
			square += x[i][k] * x[i][k];
	return square;
}

/* BLOCKS of FWD_THREADS threads have registers on a multiprocessor, or more smaller ones. */
template <typename T, int VALUES, int BLOCKS>
static __global__ void
__launch_bounds__(FWD_THREADS, BLOCKS)
	mix_fwd(T *y, float *stat, const __grid_constant__ struct fwd_rows<VALUES> rows,
		const __grid_constant__ struct mix_vectors vec, size_t t, uint32_t bytes, float eps)
{
	constexpr int N = k3_pack<T>::n, PACKS = FWD_PACKS;
	extern __shared__ float shared[];
	unsigned warps = blockDim.x / 32;
	float *sums = shared + threadIdx.y * warps * (2 * VALUES + 1),
	      by_d = 1.0f / (float)(bytes / sizeof(T));
	size_t token = (size_t)threadIdx.y * gridDim.x + blockIdx.x;
	size_t step = (size_t)gridDim.x * blockDim.y, len = 3 * (size_t)rows.n + 1;
	uint4 raw[VALUES][PACKS];
	uint32_t at[PACKS];

#pragma unroll
	for (int i = 0; i < PACKS; i++)
		at[i] = (threadIdx.x + i * blockDim.x) * 16;
	if (token < t)
		value_packs<VALUES, PACKS>(raw, rows, token, at, bytes);
	for (; token < t; token += step) {
		float x[PACKS][N];
		score_packs<T, VALUES, PACKS>(sums, raw, vec, at, bytes, rows.n);
		mix_narrow<VALUES, PACKS>(raw);
		team_sync();
		float share = lane_share(stat + token * len, sums, rows.n, by_d, eps);
		float square = mix_packs_of<T, VALUES, PACKS>(x, raw, share);
		if (token + step < t)
			value_packs<VALUES, PACKS>(raw, rows, token + step, at, bytes);
		team_sums<1>(&square, sums + warps * 2 * VALUES);
		float r = 1.0f / sqrtf(square * by_d + eps);
		if (threadIdx.x == 0)
			stat[token * len + len - 1] = r;
#pragma unroll
		for (int i = 0; i < PACKS; i++) {
			float w[N];
			if (at[i] >= bytes)
				continue;
			run_load<float, N>(w, vec.w + at[i] / sizeof(T));
#pragma unroll
			for (int k = 0; k < N; k++)
				x[i][k] *= r * w[k];
			pack_store((T *)((char *)y + token * bytes + at[i]), x[i]);
		}
	}
}

#endif
