/* Attention-residual mix and norm, forward: one pass over the values, which a team of warps keeps
 * in registers.  The trap: what is in flight is what the teams on a processor load before their
 * first use, so registers decide between bandwidth and the number of values. */
#include "../norm/rms_cuda.h"
#include "mix_fwd.cuh"

enum { THREADS = 256 };

/* Squares and scores of the values: sums[2j], sums[2j + 1]. */
template <typename T, int VALUES, int PACKS>
static __device__ __forceinline__ void
score_packs(float *sums, const uint4 (*raw)[PACKS], const struct mix_vectors &vec, size_t d)
{
	constexpr int N = k3_pack<T>::n;

#pragma unroll
	for (int j = 0; j < 2 * VALUES; j++)
		sums[j] = 0;
#pragma unroll
	for (int i = 0; i < PACKS; i++) {
		size_t c = (threadIdx.x + i * blockDim.x) * N;
		float g[N], r[N], v[N];
		if (c >= d)
			continue;
		run_load<float, N>(g, vec.gamma + c);
		run_load<float, N>(r, vec.rho + c);
#pragma unroll
		for (int k = 0; k < N; k++)
			g[k] *= r[k];
#pragma unroll
		for (int j = 0; j < VALUES; j++) {
			mix_widen<T>(v, raw[j][i]);
#pragma unroll
			for (int k = 0; k < N; k++) {
				sums[2 * j] += v[k] * v[k];
				sums[2 * j + 1] += v[k] * g[k];
			}
		}
	}
}

/* Shares of n values from their sums, in all threads; the statistics to memory. */
template <int VALUES>
static __device__ __forceinline__ void
softmax(float *share, float *stat, const float *sums, int n, size_t d, float eps)
{
	float most = -INFINITY, sum = 0;

#pragma unroll
	for (int j = 0; j < VALUES; j++) {
		float r = 1.0f / sqrtf(sums[2 * j] / (float)d + eps);
		share[j] = j < n ? sums[2 * j + 1] * r : -INFINITY;
		most = fmaxf(most, share[j]);
		if (j < n && threadIdx.x == 0) {
			stat[n + j] = r;
			stat[2 * n + j] = share[j];
		}
	}
#pragma unroll
	for (int j = 0; j < VALUES; j++) {
		share[j] = j < n ? expf(share[j] - most) : 0.0f;
		sum += share[j];
	}
#pragma unroll
	for (int j = 0; j < VALUES; j++) {
		share[j] /= sum;
		if (j < n && threadIdx.x == 0)
			stat[j] = share[j];
	}
}

template <typename T, int VALUES>
static __global__ void
__launch_bounds__(THREADS)
	mix_fwd(T *y, float *stat, const __grid_constant__ struct mix_rows<VALUES> rows,
		const __grid_constant__ struct mix_vectors vec, size_t t, size_t d, float eps)
{
	constexpr int N = k3_pack<T>::n, PACKS = mix_packs<VALUES>();
	extern __shared__ float shared[];
	float *part = shared + threadIdx.y * (blockDim.x / 32) * (2 * VALUES + 1);
	size_t token = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
	int n = (int)rows.n;
	uint4 raw[VALUES][PACKS];
	float sums[2 * VALUES], share[VALUES], x[PACKS][N], square = 0;

	if (token >= t)
		return;
	stat += token * (3 * (size_t)n + 1);
	mix_values<T, VALUES, PACKS>(raw, rows, token, d, n);
	score_packs<T, VALUES, PACKS>(sums, raw, vec, d);
	mix_narrow<VALUES, PACKS>(raw);
	team_sums<2 * VALUES>(sums, part);
	softmax<VALUES>(share, stat, sums, n, d, eps);
#pragma unroll
	for (int i = 0; i < PACKS; i++) {
		mix_of<T, VALUES, PACKS>(x[i], raw, i, share);
#pragma unroll
		for (int k = 0; k < N; k++)
			square += x[i][k] * x[i][k];
	}
	team_sums<1>(&square, part + (blockDim.x / 32) * 2 * VALUES);
	float r = 1.0f / sqrtf(square / (float)d + eps);
	if (threadIdx.x == 0)
		stat[3 * n] = r;
#pragma unroll
	for (int i = 0; i < PACKS; i++) {
		size_t c = (threadIdx.x + i * blockDim.x) * N;
		float w[N];
		if (c >= d)
			continue;
		run_load<float, N>(w, vec.w + c);
#pragma unroll
		for (int k = 0; k < N; k++)
			x[i][k] *= r * w[k];
		pack_store(y + token * d + c, x[i]);
	}
}

template <int MOST>
static struct mix_rows<MOST>
rows_of(void *const *buf, const struct k3_mix_norm_fwd_args *a) {
	struct mix_rows<MOST> rows;

	rows.row = pointers_of<MOST>(buf, a->blocks.first, a->blocks.n);
	rows.row.p[a->blocks.n] = buf[2];
	rows.n = a->blocks.n + 1;
	return rows;
}

template <typename T, int VALUES>
static void
run(void *const *buf, const struct k3_mix_norm_fwd_args *a, const struct mix_vectors &vec,
    unsigned team, cudaStream_t stream)
{
	unsigned teams = THREADS / team < TEAMS_MOST ? THREADS / team : TEAMS_MOST;
	size_t shared = teams * (team / 32) * (2 * VALUES + 1) * sizeof(float);

	mix_fwd<T, VALUES><<<blocks_for(a->t, teams), dim3(team, teams), shared, stream>>>(
		(T *)buf[0], (float *)buf[1], rows_of<VALUES>(buf, a), vec, a->t, a->d, a->eps);
	K3_CUDA_LAUNCHED("mix_fwd");
}

template <typename T>
static void
run_any(void *const *buf, const struct k3_mix_norm_fwd_args *a, const struct mix_vectors &vec,
	const struct k3_cuda *cuda)
{
	unsigned threads = mix_threads(a->d);
	size_t blocks = 8 * (size_t)cuda->processors, n = a->blocks.n + 1;

	mix_fwd_any<T><<<(unsigned)(a->t < blocks ? a->t : blocks), threads,
			 mix_fwd_floats(n, threads) * sizeof(float), (cudaStream_t)cuda->stream>>>(
		(T *)buf[0], (float *)buf[1], rows_of<MIX_MOST>(buf, a), vec, a->t, a->d, a->eps);
	K3_CUDA_LAUNCHED("mix_fwd_any");
}

template <typename T>
static void
mix_norm_fwd(void *const *buf, const struct k3_mix_norm_fwd_args *a, const struct k3_cuda *cuda)
{
	size_t values = a->blocks.n + 1;
	unsigned team = all_aligned(buf, 0, a->n_buf) ? mix_team(a->d, sizeof(T), values) : 0;

	if (a->t == 0 || a->d == 0)
		return;
	if (values == 1) {
		k3_cuda_rms_fwd(cuda, k3_type<T>::id, buf[0], (float *)buf[1], 4, buf[2],
				(const float *)buf[a->w.first], a->t, a->d, a->eps);
		return;
	}
	struct mix_vectors vec = {(const float *)buf[a->gamma.first],
				  (const float *)buf[a->rho.first], (const float *)buf[a->w.first]};
	if (team && values <= MIX_FEW)
		run<T, MIX_FEW>(buf, a, vec, team, (cudaStream_t)cuda->stream);
	else if (team)
		run<T, MIX_VALUES>(buf, a, vec, team, (cudaStream_t)cuda->stream);
	else
		run_any<T>(buf, a, vec, cuda);
}

K3_CUDA_BOTH(mix_norm_fwd, k3_mix_norm_fwd_args)
