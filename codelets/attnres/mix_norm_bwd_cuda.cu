/* Attention-residual mix and norm, backward: one pass over values and gradients.  Gradients of the
 * parameters are sums over tokens: a thread block walks over its tokens and keeps the sums of its
 * columns, the blocks' sums are added by a second kernel.  The number of blocks, and with it the order
 * of the sums, depends on the sizes alone. */
#include "../norm/rms_cuda.h"
#include "mix_bwd.cuh"

enum { PARTS_MANY = 528, FEW_VALUES = 4 };

/* part: [gridDim.x][3][d], the columns of each block. */
template <typename T, int N, int MOST>
static __global__ void
mix_bwd(float *part, const __grid_constant__ struct mix_rows<MOST> rows,
	const __grid_constant__ struct mix_rows<MOST> grads,
	const __grid_constant__ struct vectors vec, size_t t, size_t d, bool adds, int shared_rows,
	int stages)
{
	extern __shared__ __align__(16) float shared[];
	uint32_t n = rows.n - 1, len = 3 * n + 1;
	float *to = part + blockIdx.x * COLUMN_ROWS * d;
	float *sums = shared_rows == COLUMN_ROWS ? shared : to;
	float *mixed = shared_rows ? shared + (shared_rows - 1) * d : to + 2 * d;
	float *warps = shared + shared_rows * d, *own = warps + 2 * (n + 1) * (blockDim.x / 32);
	struct slopes s = {own, own + len, own + len + n, own + len + 2 * n};
	T *stage = (T *)(shared + fixed_floats(d, n, blockDim.x, shared_rows));
	size_t stage_elems = rows.n * d, at = blockIdx.x * (size_t)len + threadIdx.x;
	float next = threadIdx.x < len && blockIdx.x < t ? vec.stat[at] : 0.0f;

	for (size_t c = threadIdx.x * N; c < d; c += blockDim.x * N)
		for (int k = 0; k < N; k++)
			sums[c + k] = sums[d + c + k] = 0;
	mix_fetch<T, N>(stage, rows, blockIdx.x, t, d);
	for (size_t i = blockIdx.x, turn = 0; i < t; i += gridDim.x, turn ^= 1) {
		struct mix_token<T, N, MOST> token;
		token.rows = &rows, token.at = i * d, token.d = d;
		token.stage = stage + (stages > 1 ? turn * stage_elems : 0);
		if (threadIdx.x < len)
			s.stat[threadIdx.x] = next;
		for (size_t j = threadIdx.x + blockDim.x; j < len; j += blockDim.x)
			s.stat[j] = vec.stat[i * len + j];
		if (threadIdx.x < len && i + gridDim.x < t)
			next = vec.stat[(i + gridDim.x) * len + threadIdx.x];
		if (stages > 1)
			mix_fetch<T, N>(stage + (turn ^ 1) * stage_elems, rows, i + gridDim.x, t,
					d);
		mix_wait(stages);
		__syncthreads();
		mix_again(mixed, warps, s.stat, vec.w, token, n);
		value_sums(warps, mixed, vec.w, token, n);
		__syncthreads();
		if (threadIdx.x < 32)
			slopes_of(s, warps, n, d);
		__syncthreads();
		outputs(sums, mixed, grads, vec, s, token, n, adds);
		__syncthreads();
		if (stages == 1)
			mix_fetch<T, N>(stage, rows, i + gridDim.x, t, d);
	}
	for (size_t c = threadIdx.x * N; sums != to && c < d; c += blockDim.x * N)
		for (int k = 0; k < N; k++) {
			to[c + k] = sums[c + k];
			to[d + c + k] = sums[d + c + k];
		}
}

/* Thread blocks: as many as are resident together, twice as many where a token is small. */
static size_t
parts_of(const struct k3_mix_norm_bwd_args *a)
{
	size_t parts = k3_cuda_row_parts(a->t, a->d);

	return a->blocks.n + 1 > FEW_VALUES && parts > PARTS_MANY ? (size_t)PARTS_MANY : parts;
}

extern "C" size_t
k3_mix_norm_bwd_cuda_scratch(const struct k3_mix_norm_bwd_args *a)
{
	if (a->blocks.n == 0)
		return k3_cuda_rms_bwd_scratch(a->t, a->d);
	return parts_of(a) * COLUMN_ROWS * a->d * sizeof(float);
}

/* How a token lies in shared memory. */
struct plan {
	int stages; /* of its rows; 0: they are read from memory */
	int shared_rows;
	size_t bytes;
};

/* Two stages and all columns if they fit, then less. */
static struct plan
plan_of(const struct k3_mix_norm_bwd_args *a, size_t pack, size_t unit)
{
	static const int stages[] = {2, 1, 1}, rows[] = {COLUMN_ROWS, COLUMN_ROWS, 1};
	size_t n = a->blocks.n + 1, threads = mix_threads(a->d, pack);
	struct plan p;

	for (int i = 0; i < 3; i++) {
		p.stages = stages[i], p.shared_rows = rows[i];
		p.bytes = fixed_floats(a->d, n, threads, rows[i]) * sizeof(float) +
			  (size_t)stages[i] * (n + 1) * a->d * unit;
		if (pack > 1 && n + 1 <= MIX_STAGED && p.bytes <= MIX_SHARED)
			return p;
	}
	p.stages = p.shared_rows = 0;
	p.bytes = fixed_floats(a->d, n, mix_threads(a->d, 1), 0) * sizeof(float);
	return p;
}

template <typename T, int N, int MOST>
static void
run(void *const *buf, const struct k3_mix_norm_bwd_args *a, const struct k3_cuda *cuda,
    const struct plan *p)
{
	uint32_t n = a->blocks.n + 1;
	struct vectors vec = {(const float *)buf[a->gamma.first], (const float *)buf[a->rho.first],
			      (const float *)buf[a->w.first], (const float *)buf[2]};
	struct mix_rows<MOST> rows, grads;

	rows.row = pointers_of<MOST>(buf, a->blocks.first, a->blocks.n);
	grads.row = pointers_of<MOST>(buf, a->dblocks.first, a->blocks.n);
	rows.row.p[n - 1] = buf[3], rows.row.p[n] = buf[1], rows.n = n + 1;
	grads.row.p[n - 1] = buf[0], grads.n = n;
	for (uint32_t k = 0; k < a->addends.n; k++)
		vec.addend[k] = buf[a->addends.first + k];
	K3_CUDA_CHECK(cudaFuncSetAttribute(
		mix_bwd<T, N, MOST>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)p->bytes));
	mix_bwd<T, N, MOST><<<(unsigned)parts_of(a), mix_threads(a->d, N), p->bytes,
			      (cudaStream_t)cuda->stream>>>(
		(float *)cuda->scratch, rows, grads, vec, a->t, a->d, a->blocks_accumulate != 0,
		p->shared_rows, p->stages);
	K3_CUDA_LAUNCHED("mix_bwd");
}

/* The gradient of gamma is rho times the sum of e, that of rho gamma times it. */
static void
parameter_gradients(void *const *buf, const struct k3_mix_norm_bwd_args *a,
		    const struct k3_cuda *cuda)
{
	const float *part = (const float *)cuda->scratch, *e = part + a->d;
	struct k3_cuda_column_sum sums[3] = {
		{(float *)buf[a->dw.first], NULL, part, a->dw.accumulate != 0},
		{(float *)buf[a->dgamma.first], (const float *)buf[a->rho.first], e,
		 a->dgamma.accumulate != 0},
		{(float *)buf[a->drho.first], (const float *)buf[a->gamma.first], e,
		 a->drho.accumulate != 0}};

	k3_cuda_column_sums(cuda, sums, 3, a->t ? parts_of(a) : 0, COLUMN_ROWS * a->d, a->d);
}

/* Without blocks: the gradient of a norm. */
static void
norm_alone(enum k3_cuda_type type, void *const *buf, const struct k3_mix_norm_bwd_args *a,
	   const struct k3_cuda *cuda)
{
	struct k3_cuda_rms_bwd b = {.dx = buf[0],
				    .dy = buf[1],
				    .x = buf[3],
				    .w = (const float *)buf[a->w.first],
				    .stat = (const float *)buf[2],
				    .step = 4};

	for (uint32_t k = 0; k < a->addends.n; k++)
		b.addend[k] = buf[a->addends.first + k];
	b.dw = (float *)buf[a->dw.first];
	b.accumulate = a->dw.accumulate != 0;
	b.n = a->t, b.d = a->d;
	k3_cuda_rms_bwd(cuda, type, &b);
}

template <typename T>
static void
mix_norm_bwd(void *const *buf, const struct k3_mix_norm_bwd_args *a, const struct k3_cuda *cuda)
{
	const size_t pack = k3_pack<T>::n;
	bool packs = a->d % pack == 0 && all_aligned(buf, 0, a->n_buf);
	struct plan p = plan_of(a, packs ? pack : 1, sizeof(T));

	if (a->d == 0)
		return;
	if (a->blocks.n == 0) {
		norm_alone(k3_type<T>::id, buf, a, cuda);
		return;
	}
	if (a->t && p.stages)
		run<T, k3_pack<T>::n, MIX_STAGED>(buf, a, cuda, &p);
	else if (a->t)
		run<T, 1, MIX_MOST>(buf, a, cuda, &p);
	parameter_gradients(buf, a, cuda);
}

K3_CUDA_BOTH(mix_norm_bwd, k3_mix_norm_bwd_args)
