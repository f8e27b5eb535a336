/* Attention-residual mix and norm, forward: one pass over the values.  Thread blocks walk over tokens;
 * while one is worked on, the values of the next are copied to shared memory (mix.cuh). */
#include <math.h>

#include "../norm/rms_cuda.h"
#include "mix.cuh"

struct vectors {
	const float *gamma, *rho, *w;
};

/* Shared memory of a block, in floats: the mix, gamma rho, sums, shares; then the stages. */
static __host__ __device__ inline size_t
mixed_floats(size_t d, size_t values, size_t threads, bool staged)
{
	size_t n = (staged ? 2 * d : 0) + 2 * values * (threads / 32) + values;

	return (n + 3) / 4 * 4;
}

/* Squares and scores of all values, to warps. */
template <typename T, int N, int MOST>
static __device__ __forceinline__ void
score_sums(float *warps, const float *gr, const struct vectors &vec,
	   const struct mix_token<T, N, MOST> &token, uint32_t n)
{
	for (uint32_t j = 0; j < n; j += MIX_GROUP) {
		float sums[2 * MIX_GROUP] = {0};
		for (size_t c = threadIdx.x * N; c < token.d; c += blockDim.x * N) {
			float g[N], v[N];
			if (N == 1)
				g[0] = vec.gamma[c] * vec.rho[c];
			else
				run_load<float, N>(g, gr + c);
#pragma unroll
			for (int i = 0; i < MIX_GROUP; i++) {
				if (j + i >= n)
					continue;
				mix_load(v, token, j + i, c);
#pragma unroll
				for (int k = 0; k < N; k++) {
					sums[2 * i] += v[k] * v[k];
					sums[2 * i + 1] += v[k] * g[k];
				}
			}
		}
		mix_put(warps, sums, j, n);
	}
}

/* By the first warp: factors, scores and shares of n values, to stat [3n] and share. */
static __device__ __forceinline__ void
shares(float *share, float *stat, const float *warps, uint32_t n, size_t d, float eps)
{
	uint32_t lane = threadIdx.x;
	float most = -INFINITY, sum = 0;

	for (uint32_t j = lane; j < n; j += 32) {
		float root = sqrtf(mix_get(warps, 2 * j) / (float)d + eps);
		float s = mix_get(warps, 2 * j + 1) / root;
		stat[n + j] = 1.0f / root;
		stat[2 * n + j] = s;
		share[j] = s;
		most = fmaxf(most, s);
	}
	most = warp_max(most);
	for (uint32_t j = lane; j < n; j += 32) {
		share[j] = expf(share[j] - most);
		sum += share[j];
	}
	sum = warp_sum(sum);
	for (uint32_t j = lane; j < n; j += 32) {
		share[j] /= sum;
		stat[j] = share[j];
	}
}

template <typename T, int N, int MOST>
static __device__ __forceinline__ void
mix_run(float *x, const float *share, const struct mix_token<T, N, MOST> &token, uint32_t n,
	size_t c)
{
#pragma unroll
	for (int k = 0; k < N; k++)
		x[k] = 0;
#pragma unroll 4
	for (uint32_t j = 0; j < n; j++) {
		float v[N], a = share[j];
		mix_load(v, token, j, c);
#pragma unroll
		for (int k = 0; k < N; k++)
			x[k] += a * v[k];
	}
}

/* The mix (kept in shared memory), its norm, the output. */
template <typename T, int N, int MOST>
static __device__ __forceinline__ void
finish(T *y, float *factor, float *mixed, float *warps, const float *share, const float *w,
       const struct mix_token<T, N, MOST> &token, uint32_t n, float eps)
{
	float x[N], u[N], square = 0;

	for (size_t c = threadIdx.x * N; c < token.d; c += blockDim.x * N) {
		mix_run(x, share, token, n, c);
#pragma unroll
		for (int k = 0; k < N; k++)
			square += x[k] * x[k];
		if (N > 1)
			run_store<float, N>(mixed + c, x);
	}
	float r = 1.0f / sqrtf(block_sum(square, warps) / (float)token.d + eps);
	if (threadIdx.x == 0)
		*factor = r;
	for (size_t c = threadIdx.x * N; c < token.d; c += blockDim.x * N) {
		if (N > 1)
			run_load<float, N>(x, mixed + c);
		else
			mix_run(x, share, token, n, c);
		run_load<float, N>(u, w + c);
#pragma unroll
		for (int k = 0; k < N; k++)
			x[k] = x[k] * r * u[k];
		run_store<T, N>(y + token.at + c, x);
	}
}

template <typename T, int N, int MOST>
static __global__ void
mix_fwd(T *y, float *stat, const __grid_constant__ struct mix_rows<MOST> rows,
	const __grid_constant__ struct vectors vec, size_t t, size_t d, float eps, int stages)
{
	extern __shared__ __align__(16) float shared[];
	__shared__ float sums[32];
	uint32_t n = rows.n;
	float *mixed = shared, *gr = mixed + (N > 1 ? d : 0), *warps = gr + (N > 1 ? d : 0),
	      *share = warps + 2 * n * (blockDim.x / 32);
	T *stage = (T *)(shared + mixed_floats(d, n, blockDim.x, N > 1));
	size_t len = 3 * (size_t)n + 1, stage_elems = n * d;

	for (size_t c = threadIdx.x * N; N > 1 && c < d; c += blockDim.x * N)
		for (int k = 0; k < N; k++)
			gr[c + k] = vec.gamma[c + k] * vec.rho[c + k];
	mix_fetch<T, N>(stage, rows, blockIdx.x, t, d);
	for (size_t i = blockIdx.x, turn = 0; i < t; i += gridDim.x, turn ^= 1) {
		struct mix_token<T, N, MOST> token;
		token.rows = &rows, token.at = i * d, token.d = d;
		token.stage = stage + (stages > 1 ? turn * stage_elems : 0);
		if (stages > 1)
			mix_fetch<T, N>(stage + (turn ^ 1) * stage_elems, rows, i + gridDim.x, t,
					d);
		mix_wait(stages);
		score_sums(warps, gr, vec, token, n);
		__syncthreads();
		if (threadIdx.x < 32)
			shares(share, stat + i * len, warps, n, d, eps);
		__syncthreads();
		finish(y, stat + i * len + 3 * n, mixed, sums, share, vec.w, token, n, eps);
		if (stages == 1)
			mix_fetch<T, N>(stage, rows, i + gridDim.x, t, d);
	}
}

template <typename T, int N, int MOST>
static void
run(void *const *buf, const struct k3_mix_norm_fwd_args *a, const struct k3_cuda *cuda, int stages)
{
	uint32_t n = a->blocks.n + 1;
	unsigned threads = mix_threads(a->d, N);
	int resident;
	size_t bytes = mixed_floats(a->d, n, threads, N > 1) * sizeof(float) +
		       (N > 1 ? (size_t)stages * n * a->d * sizeof(T) : 0);
	struct vectors vec = {(const float *)buf[a->gamma.first], (const float *)buf[a->rho.first],
			      (const float *)buf[a->w.first]};
	struct mix_rows<MOST> rows;

	rows.row = pointers_of<MOST>(buf, a->blocks.first, a->blocks.n);
	rows.row.p[a->blocks.n] = buf[2];
	rows.n = n;
	K3_CUDA_CHECK(cudaFuncSetAttribute(
		mix_fwd<T, N, MOST>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
	K3_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, mix_fwd<T, N, MOST>,
								    (int)threads, bytes));
	size_t blocks = (size_t)resident * cuda->processors;
	mix_fwd<T, N, MOST><<<(unsigned)(a->t < blocks ? a->t : blocks), threads, bytes,
			      (cudaStream_t)cuda->stream>>>((T *)buf[0], (float *)buf[1], rows, vec,
							    a->t, a->d, a->eps, stages);
	K3_CUDA_LAUNCHED("mix_fwd");
}

/* Stages of a token's values that fit in shared memory, two at most; 0: read from memory. */
template <typename T>
static int
stages_of(void *const *buf, const struct k3_mix_norm_fwd_args *a)
{
	const size_t n = k3_pack<T>::n, values = a->blocks.n + 1;
	size_t fixed = mixed_floats(a->d, values, mix_threads(a->d, n), true) * sizeof(float),
	       stage = values * a->d * sizeof(T);

	if (a->d % n || values > MIX_STAGED || !all_aligned(buf, 0, 3) ||
	    !all_aligned(buf, a->blocks.first, a->blocks.n) || !all_aligned(buf, a->w.first, 1))
		return 0;
	return fixed + 2 * stage <= MIX_SHARED ? 2 : fixed + stage <= MIX_SHARED ? 1 : 0;
}

template <typename T>
static void
mix_norm_fwd(void *const *buf, const struct k3_mix_norm_fwd_args *a, const struct k3_cuda *cuda)
{
	int stages = stages_of<T>(buf, a);

	if (a->t == 0 || a->d == 0)
		return;
	if (a->blocks.n == 0)
		k3_cuda_rms_fwd(cuda, k3_type<T>::id, buf[0], (float *)buf[1], 4, buf[2],
				(const float *)buf[a->w.first], a->t, a->d, a->eps);
	else if (stages)
		run<T, k3_pack<T>::n, MIX_STAGED>(buf, a, cuda, stages);
	else
		run<T, 1, MIX_MOST>(buf, a, cuda, 0);
}

K3_CUDA_BOTH(mix_norm_fwd, k3_mix_norm_fwd_args)
