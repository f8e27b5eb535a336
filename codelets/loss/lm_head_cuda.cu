/* LM head and cross entropy on CUDA: logits by cuBLASLt, block of the vocabulary by block; then one
 * thread block per row, which reads the row once for maximum and sum together and once more to
 * replace each logit by its gradient.
 *
 * The sum runs beside the maximum: a thread's sum is scaled down when its maximum rises, and the
 * threads' pairs are merged in one fixed tree.  The trap: a row is correct only if no lower id has
 * the label's value too, so the maximum of the ids before the label is kept apart.
 */
#include <math.h>

#include "../cuda/pointers.cuh"
#include "../cuda/runs.cuh"

extern "C" {
#include "../../common/op/loss.h"
}

enum { THREADS = 512, BLOCKS_MOST = 512 };

/* The vocabulary blocks of a row. */
struct blocks {
	struct k3_pointers<BLOCKS_MOST> logits;
	uint32_t n;
	size_t vocab, block_rows;
};

static __device__ __forceinline__ size_t
block_cols(const struct blocks &b, size_t block)
{
	size_t first = block * b.block_rows;

	return first + b.block_rows < b.vocab ? b.block_rows : b.vocab - first;
}

struct row_stat {
	float most, sum; /* maximum; sum of exp(logit - most) */
	float before;	 /* maximum of the ids before the label */
};

static __device__ __forceinline__ float
shifted_exp(float x, float most)
{
	return __expf(x - (most == -INFINITY ? 0.0f : most));
}

template <int N>
static __device__ __forceinline__ void
take(struct row_stat *st, const float *x, size_t id, size_t label)
{
	float most = st->most;

#pragma unroll
	for (int k = 0; k < N; k++)
		most = fmaxf(most, x[k]);
	if (most > st->most) {
		st->sum *= shifted_exp(st->most, most);
		st->most = most;
	}
#pragma unroll
	for (int k = 0; k < N; k++)
		st->sum += shifted_exp(x[k], most);
	if (id >= label)
		return;
#pragma unroll
	for (int k = 0; k < N; k++)
		st->before = id + k < label ? fmaxf(st->before, x[k]) : st->before;
}

static __device__ __forceinline__ void
merge(struct row_stat *a, float most, float sum, float before)
{
	float both = fmaxf(a->most, most);

	a->sum = a->sum * shifted_exp(a->most, both) + sum * shifted_exp(most, both);
	a->most = both;
	a->before = fmaxf(a->before, before);
}

/* Over the block, in all threads. */
static __device__ struct row_stat
merge_block(struct row_stat st)
{
	__shared__ struct row_stat part[THREADS / 32];

#pragma unroll
	for (int step = 16; step > 0; step >>= 1) {
		float most = __shfl_xor_sync(0xffffffffu, st.most, step),
		      sum = __shfl_xor_sync(0xffffffffu, st.sum, step),
		      before = __shfl_xor_sync(0xffffffffu, st.before, step);
		merge(&st, most, sum, before);
	}
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = st;
	__syncthreads();
	st = part[0];
	for (int w = 1; w < THREADS / 32; w++)
		merge(&st, part[w].most, part[w].sum, part[w].before);
	return st;
}

template <typename T, int N>
static __device__ struct row_stat
row_statistics(const struct blocks &b, size_t row, size_t label)
{
	struct row_stat st = {-INFINITY, 0, -INFINITY};

	for (uint32_t v = 0; v < b.n; v++) {
		size_t cols = block_cols(b, v), first = v * b.block_rows;
		const T *x = (const T *)b.logits.p[v] + row * cols;
#pragma unroll 4
		for (size_t c = threadIdx.x * N; c < cols; c += THREADS * N) {
			float here[N];
			run_load<T, N>(here, x + c);
			take<N>(&st, here, first + c, label);
		}
	}
	return merge_block(st);
}

/* Logits become gradients: weight exp(logit - most), less inv_n at the label. */
template <typename T, int N>
static __device__ void
row_gradient(const struct blocks &b, size_t row, int32_t label, float most, float weight,
	     float inv_n)
{
	for (uint32_t v = 0; v < b.n; v++) {
		size_t cols = block_cols(b, v), first = v * b.block_rows;
		T *x = (T *)b.logits.p[v] + row * cols;
#pragma unroll 4
		for (size_t c = threadIdx.x * N; c < cols; c += THREADS * N) {
			float here[N];
			run_load<T, N>(here, x + c);
#pragma unroll
			for (int k = 0; k < N; k++) {
				here[k] = label < 0 ? 0.0f : weight * shifted_exp(here[k], most);
				here[k] -= (size_t)label == first + c + k ? inv_n : 0.0f;
			}
			run_store<T, N>(x + c, here);
		}
	}
}

template <typename T>
static __device__ float
logit_of(const struct blocks &b, size_t row, size_t id)
{
	size_t v = id / b.block_rows;

	return wide(((const T *)b.logits.p[v])[row * block_cols(b, v) + id % b.block_rows]);
}

template <typename T, int N>
static __global__ void
cross_entropy(float *tstat, const __grid_constant__ struct blocks b, const int32_t *labels,
	      const double *hyper, uint32_t grad)
{
	size_t row = blockIdx.x;
	int32_t label = labels[row];
	float at = label < 0 ? 0.0f : logit_of<T>(b, row, (size_t)label);
	struct row_stat st = row_statistics<T, N>(b, row, label < 0 ? 0 : (size_t)label);

	if (threadIdx.x == 0) {
		tstat[2 * row] = label < 0 ? 0.0f : logf(st.sum) + (st.most - at);
		tstat[2 * row + 1] = label >= 0 && at == st.most && st.before < st.most;
	}
	if (!grad)
		return;
	double inv_n = hyper[K3_HYPER_INV_N];
	row_gradient<T, N>(b, row, label, st.most, (float)(inv_n / (double)st.sum), (float)inv_n);
}

/* Rows of all blocks begin at 16-byte boundaries. */
template <typename T>
static bool
packs_fit(void *const *buf, const struct k3_lm_head_args *a)
{
	const size_t n = k3_pack<T>::n, full = a->logits.n ? a->logits.n - 1 : 0;

	if (!all_aligned(buf, a->logits.first, a->logits.n) ||
	    (a->head.rows - full * a->head.block_rows) % n)
		return false;
	return full == 0 || a->head.block_rows % n == 0;
}

template <typename T>
static void
keep_logits(T *keep, void *const *buf, const struct k3_lm_head_args *a, cudaStream_t stream)
{
	for (uint32_t v = 0; v < a->logits.n; v++) {
		size_t first = v * a->head.block_rows, rest = a->head.rows - first,
		       cols = rest < a->head.block_rows ? rest : a->head.block_rows;
		K3_CUDA_CHECK(cudaMemcpy2DAsync(keep + first, a->head.rows * sizeof(T),
						buf[a->logits.first + v], cols * sizeof(T),
						cols * sizeof(T), a->rows, cudaMemcpyDeviceToDevice,
						stream));
	}
}

template <typename T>
static void
lm_head_ce(void *const *buf, const struct k3_lm_head_args *a, const struct k3_cuda *cuda)
{
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	const T *h = (const T *)buf[1] + a->r0 * a->d;
	const int32_t *labels = (const int32_t *)buf[2] + a->r0;
	struct blocks b;

	if (a->rows == 0)
		return;
	K3_CUDA_CHECK(a->logits.n <= BLOCKS_MOST ? cudaSuccess : cudaErrorInvalidValue);
	b.logits = pointers_of<BLOCKS_MOST>(buf, a->logits.first, a->logits.n);
	b.n = a->logits.n, b.vocab = a->head.rows, b.block_rows = a->head.block_rows;
	for (uint32_t v = 0; v < b.n; v++) {
		size_t first = v * b.block_rows, rest = b.vocab - first,
		       cols = rest < b.block_rows ? rest : b.block_rows;
		k3_cuda_linear_fwd(cuda, k3_type<T>::id, buf[a->logits.first + v], cols, 0, h, a->d,
				   buf, &a->head, first, first + cols, a->rows);
	}
	if (a->keep.n)
		keep_logits((T *)buf[a->keep.first], buf, a, stream);
	if (packs_fit<T>(buf, a))
		cross_entropy<T, k3_pack<T>::n><<<(unsigned)a->rows, THREADS, 0, stream>>>(
			(float *)buf[0], b, labels, (const double *)buf[3], a->grad);
	else
		cross_entropy<T, 1><<<(unsigned)a->rows, THREADS, 0, stream>>>(
			(float *)buf[0], b, labels, (const double *)buf[3], a->grad);
	K3_CUDA_LAUNCHED("cross_entropy");
}

K3_CUDA_BOTH(lm_head_ce, k3_lm_head_args)
