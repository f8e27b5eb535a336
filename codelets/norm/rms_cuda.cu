/* RMSNorm of rows.  Forward, a warp has a row: no barrier, and the second look at the row comes from
 * the first-level cache.  Backward, a thread block walks over many rows, because the weight's gradient
 * is a sum over rows: each thread keeps its columns' sums in shared memory, and the blocks' sums are
 * added by a second kernel. */
#include "../cuda/runs.cuh"
#include "rms_cuda.h"

enum { THREADS = 256, ROWS = THREADS / 32, PARTS = 1056, PARTS_LEAST = 264 };

template <typename T, int N>
static __device__ __forceinline__ float
warp_square(const T *x, size_t d)
{
	float sum = 0;

#pragma unroll 4
	for (size_t c = threadIdx.x % 32 * N; c < d; c += 32 * N) {
		float v[N];
		run_load<T, N>(v, x + c);
#pragma unroll
		for (int k = 0; k < N; k++)
			sum += v[k] * v[k];
	}
	return warp_sum(sum);
}

/* again: factors are read, not made. */
template <typename T, int N>
static __global__ void
rms_fwd(T *y, float *stat, size_t step, const T *x, const float *w, size_t n, size_t d, float eps,
	bool again)
{
	size_t row = (size_t)blockIdx.x * ROWS + threadIdx.x / 32;

	if (row >= n)
		return;
	float *at = stat + row * step, r;
	x += row * d;
	y += row * d;
	if (again)
		r = at[step - 1];
	else
		r = 1.0f / sqrtf(warp_square<T, N>(x, d) / (float)d + eps);
	if (!again && threadIdx.x % 32 < step)
		at[threadIdx.x % 32] = threadIdx.x % 32 == step - 1 ? r
				       : threadIdx.x % 32 == 0	    ? 1.0f
								    : 0.0f;
#pragma unroll 4
	for (size_t c = threadIdx.x % 32 * N; c < d; c += 32 * N) {
		float v[N], u[N];
		run_load<T, N>(v, x + c);
		run_load<float, N>(u, w + c);
#pragma unroll
		for (int k = 0; k < N; k++)
			v[k] = v[k] * r * u[k];
		run_store<T, N>(y + c, v);
	}
}

/* x += the run at `at` of an addend, or nothing. */
template <typename T, int N>
static __device__ __forceinline__ void
add_run(float *x, const void *addend, size_t at)
{
	float a[N];

	if (!addend)
		return;
	run_load<T, N>(a, (const T *)addend + at);
#pragma unroll
	for (int k = 0; k < N; k++)
		x[k] += a[k];
}

/* Row by row: the dot product of dn = dy w and x, then dx = r (dn - x r mean). */
template <typename T, int N>
static __global__ void
rms_bwd(float *part, const __grid_constant__ struct k3_cuda_rms_bwd b, bool in_shared)
{
	extern __shared__ __align__(16) float shared[];
	__shared__ float warps[32];
	size_t d = b.d, first = threadIdx.x * N, stride = blockDim.x * N;
	float *mine = part + blockIdx.x * d, *sum = in_shared ? shared : mine;

	for (size_t c = first; c < d; c += stride)
		for (int k = 0; k < N; k++)
			sum[c + k] = 0;
	for (size_t row = blockIdx.x; row < b.n; row += gridDim.x) {
		const T *x = (const T *)b.x + row * d, *dy = (const T *)b.dy + row * d;
		float r = b.stat[row * b.step + b.step - 1], dot = 0;
		for (size_t c = first; c < d; c += stride) {
			float v[N], g[N], u[N];
			run_load<T, N>(v, x + c);
			run_load<T, N>(g, dy + c);
			run_load<float, N>(u, b.w + c);
#pragma unroll
			for (int k = 0; k < N; k++)
				dot += g[k] * u[k] * v[k];
		}
		float mean = block_sum(dot, warps) * r / (float)d;
		for (size_t c = first; c < d; c += stride) {
			float v[N], g[N], u[N], s[N];
			run_load<T, N>(v, x + c);
			run_load<T, N>(g, dy + c);
			run_load<float, N>(u, b.w + c);
			run_load<float, N>(s, sum + c);
#pragma unroll
			for (int k = 0; k < N; k++) {
				s[k] += g[k] * (v[k] * r);
				v[k] = r * (g[k] * u[k] - v[k] * r * mean);
			}
			run_store<float, N>(sum + c, s);
			add_run<T, N>(v, b.addend[0], row * d + c);
			add_run<T, N>(v, b.addend[1], row * d + c);
			run_store<T, N>((T *)b.dx + row * d + c, v);
		}
	}
	for (size_t c = first; in_shared && c < d; c += stride)
		for (int k = 0; k < N; k++)
			mine[c + k] = sum[c + k];
}

struct column_sums {
	struct k3_cuda_column_sum s[K3_CUDA_COLUMN_SUMS];
};

/* 32 columns a block; row y of the block adds every 32nd part. */
static __global__ void
column_sums(const __grid_constant__ struct column_sums all, size_t parts, size_t pitch, size_t d)
{
	const struct k3_cuda_column_sum &s = all.s[blockIdx.y];
	__shared__ float sum[32][33];
	size_t c = (size_t)blockIdx.x * 32 + threadIdx.x;
	float x = 0;

	if (c < d)
#pragma unroll 8
		for (size_t p = threadIdx.y; p < parts; p += 32)
			x += s.part[p * pitch + c];
	sum[threadIdx.y][threadIdx.x] = x;
	__syncthreads();
	x = warp_sum(sum[threadIdx.x][threadIdx.y]);
	c = (size_t)blockIdx.x * 32 + threadIdx.y;
	if (threadIdx.x > 0 || c >= d)
		return;
	x *= s.factor ? s.factor[c] : 1.0f;
	s.to[c] = s.accumulate ? s.to[c] + x : x;
}

extern "C" size_t
k3_cuda_row_parts(size_t n, size_t d)
{
	size_t parts = (size_t)PARTS * 1024 / (d ? d : 1);

	if (parts > PARTS)
		parts = PARTS;
	if (parts < PARTS_LEAST)
		parts = PARTS_LEAST;
	return parts < n ? parts : n;
}

extern "C" void
k3_cuda_column_sums(const struct k3_cuda *cuda, const struct k3_cuda_column_sum *sums,
		    size_t n_sums, size_t parts, size_t pitch, size_t d)
{
	struct column_sums all = {};

	if (d == 0 || n_sums == 0)
		return;
	for (size_t i = 0; i < n_sums; i++)
		all.s[i] = sums[i];
	column_sums<<<dim3(blocks_for(d, 32), (unsigned)n_sums), dim3(32, 32), 0,
		      (cudaStream_t)cuda->stream>>>(all, parts, pitch, d);
	K3_CUDA_LAUNCHED("column_sums");
}

/* Rows of 16-byte packs at aligned addresses? */
static bool
packs_fit(const void *a, const void *b, const void *c, const void *d, size_t row_bytes)
{
	return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | row_bytes) & 15) == 0;
}

template <typename T>
static void
forward(const struct k3_cuda *cuda, void *y, float *stat, size_t step, const void *x,
	const float *w, size_t n, size_t d, float eps, bool again)
{
	unsigned blocks = blocks_for(n, ROWS);
	cudaStream_t stream = (cudaStream_t)cuda->stream;

	if (n == 0 || d == 0)
		return;
	if (packs_fit(y, x, w, NULL, d * sizeof(T)))
		rms_fwd<T, k3_pack<T>::n><<<blocks, THREADS, 0, stream>>>(
			(T *)y, stat, step, (const T *)x, w, n, d, eps, again);
	else
		rms_fwd<T, 1><<<blocks, THREADS, 0, stream>>>((T *)y, stat, step, (const T *)x, w,
							      n, d, eps, again);
	K3_CUDA_LAUNCHED("rms_fwd");
}

extern "C" void
k3_cuda_rms_fwd(const struct k3_cuda *cuda, enum k3_cuda_type type, void *y, float *stat,
		size_t step, const void *x, const float *w, size_t n, size_t d, float eps)
{
	if (type == K3_CUDA_BF16)
		forward<k3_bf16>(cuda, y, stat, step, x, w, n, d, eps, false);
	else
		forward<float>(cuda, y, stat, step, x, w, n, d, eps, false);
}

extern "C" void
k3_cuda_rms_again(const struct k3_cuda *cuda, enum k3_cuda_type type, void *y, const float *stat,
		  size_t step, const void *x, const float *w, size_t n, size_t d)
{
	float *at = (float *)(uintptr_t)stat; /* read alone */

	if (type == K3_CUDA_BF16)
		forward<k3_bf16>(cuda, y, at, step, x, w, n, d, 0, true);
	else
		forward<float>(cuda, y, at, step, x, w, n, d, 0, true);
}

extern "C" size_t
k3_cuda_rms_bwd_scratch(size_t n, size_t d)
{
	return k3_cuda_row_parts(n, d) * d * sizeof(float);
}

template <typename T, int N>
static void
backward(const struct k3_cuda *cuda, const struct k3_cuda_rms_bwd *b, float *part, size_t parts)
{
	size_t packs = (b->d + N - 1) / N, threads = (packs + 31) / 32 * 32;
	size_t bytes = b->d * sizeof(float);
	bool in_shared = bytes <= 48 << 10;

	threads = threads < THREADS ? threads : (size_t)THREADS;
	rms_bwd<T, N><<<(unsigned)parts, (unsigned)threads, in_shared ? bytes : 0,
			(cudaStream_t)cuda->stream>>>(part, *b, in_shared);
	K3_CUDA_LAUNCHED("rms_bwd");
}

template <typename T>
static void
backward_of(const struct k3_cuda *cuda, const struct k3_cuda_rms_bwd *b, float *part, size_t parts)
{
	if (packs_fit(b->dx, b->dy, b->x, b->w, b->d * sizeof(T)) &&
	    packs_fit(b->addend[0], b->addend[1], part, NULL, 0))
		backward<T, k3_pack<T>::n>(cuda, b, part, parts);
	else
		backward<T, 1>(cuda, b, part, parts);
}

extern "C" void
k3_cuda_rms_bwd(const struct k3_cuda *cuda, enum k3_cuda_type type, const struct k3_cuda_rms_bwd *b)
{
	float *part = (float *)cuda->scratch;
	size_t parts = k3_cuda_row_parts(b->n, b->d);
	struct k3_cuda_column_sum sum = {b->dw, NULL, part, b->accumulate};

	if (parts && b->d && type == K3_CUDA_BF16)
		backward_of<k3_bf16>(cuda, b, part, parts);
	else if (parts && b->d)
		backward_of<float>(cuda, b, part, parts);
	if (parts || !b->accumulate)
		k3_cuda_column_sums(cuda, &sum, 1, parts, b->d, b->d);
}
