/* Token embedding on CUDA.
 *
 * Backward, tokens are sorted by id and then by place, so that each row of the table has one owner,
 * who adds the gradients of its tokens in ascending order: the sum of the CPU kernel, bit for bit in
 * float.  A token's place in the sorted list is the number of smaller keys; counting them costs t^2
 * comparisons, which at the lengths of a tile is less than the launches of a radix sort.  The trap:
 * one id may have every token of a tile (padding), so the sum keeps several rows in flight.
 */
#include "../cuda/pointers.cuh"
#include "../cuda/runs.cuh"

extern "C" {
#include "../../common/op/embed.h"
}

enum { THREADS = 256, BLOCKS_MOST = 128, ADD_THREADS = 128, IN_FLIGHT = 8, NO_ID = INT32_MAX };

/* Blocks first .. first + n - 1 of the table. */
struct table {
	struct k3_pointers<BLOCKS_MOST> block;
	size_t first_row, rows, block_rows, d;
};

static struct table
table_part(void *const *buf, const struct k3_weight *w, uint32_t first)
{
	uint32_t n = w->n - first < BLOCKS_MOST ? w->n - first : BLOCKS_MOST;
	struct table t;

	t.block = pointers_of<BLOCKS_MOST>(buf, w->first + first, n);
	t.first_row = first * w->block_rows;
	t.rows = n * w->block_rows;
	t.block_rows = w->block_rows;
	t.d = w->cols;
	return t;
}

/* The row of an id, or NULL: it lies in another part. */
template <typename T>
static __device__ __forceinline__ T *
table_row(const struct table &t, int32_t id)
{
	size_t row = (size_t)id - t.first_row;

	if ((size_t)id < t.first_row || row >= t.rows)
		return nullptr;
	return (T *)t.block.p[row / t.block_rows] + row % t.block_rows * t.d;
}

/* N elements a thread; per_row threads share a row. */
template <typename T, int N>
static __global__ void
gather(T *y, const int32_t *ids, const __grid_constant__ struct table table, size_t per_row,
       size_t total)
{
	size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

	if (i >= total)
		return;
	size_t c = i % per_row * N;
	const T *row = table_row<const T>(table, ids[i / per_row]);
	if (!row)
		return;
	if (N == 1)
		y[i] = row[c];
	else
		*(uint4 *)(y + i * N) = *(const uint4 *)(row + c);
}

template <typename T>
static void
embed_fwd(void *const *buf, const struct k3_embed_args *a, const struct k3_cuda *cuda)
{
	const int n = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	T *y = (T *)buf[0];
	const int32_t *ids = (const int32_t *)buf[1];

	for (uint32_t first = 0; a->t * a->d && first < a->table.n; first += BLOCKS_MOST) {
		struct table table = table_part(buf, &a->table, first);
		if (a->d % n == 0)
			gather<T, n><<<blocks_for(a->t * a->d / n, THREADS), THREADS, 0, stream>>>(
				y, ids, table, a->d / n, a->t * a->d / n);
		else
			gather<T, 1><<<blocks_for(a->t * a->d, THREADS), THREADS, 0, stream>>>(
				y, ids, table, a->d, a->t * a->d);
		K3_CUDA_LAUNCHED("gather");
	}
}

static __device__ __forceinline__ int32_t
id_of(const int32_t *ids, const int32_t *map, size_t i)
{
	return map && map[i] >= 0 ? (int32_t)NO_ID : ids[i];
}

/* One warp per token: its place in the sorted list. */
static __global__ void
rank(int32_t *sorted, int32_t *sorted_id, const int32_t *ids, const int32_t *map, size_t t)
{
	size_t i = (size_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
	size_t lane = threadIdx.x % 32;
	int place = 0;

	if (i >= t)
		return;
	int32_t id = id_of(ids, map, i);
#pragma unroll 8
	for (size_t j = lane; j < t; j += 32) {
		int32_t other = id_of(ids, map, j);
		place += other < id || (other == id && j < i);
	}
#pragma unroll
	for (int step = 16; step > 0; step >>= 1)
		place += __shfl_xor_sync(0xffffffffu, place, step);
	if (lane == 0) {
		sorted[place] = (int32_t)i;
		sorted_id[place] = id;
	}
}

/* Adds the rows of dy that follow each other in the sorted list under one id, columns c .. c+N-1. */
template <typename T, int N>
static __device__ __forceinline__ void
add_rows(float *row, const T *dy, const int32_t *sorted, const int32_t *sorted_id, size_t from,
	 size_t t, size_t c, size_t d)
{
	struct alignas(sizeof(T) * N) part {
		T x[N];
	} x[IN_FLIGHT];
	int32_t id = sorted_id[from];
	float sum[N];
	int n = IN_FLIGHT;

	run_load<float, N>(sum, row + c);
	for (size_t r = from; n == IN_FLIGHT; r += IN_FLIGHT) {
		int32_t place[IN_FLIGHT];
		n = 0;
		/* all places first: a load that waits for the one before it costs a round trip */
#pragma unroll
		for (int f = 0; f < IN_FLIGHT; f++) {
			size_t at = r + f < t ? r + f : t - 1;
			place[f] = sorted[at];
			n += r + f < t && sorted_id[at] == id;
		}
#pragma unroll
		for (int f = 0; f < IN_FLIGHT; f++)
			if (f < n)
				x[f] = *(const struct part *)(dy + (size_t)place[f] * d + c);
#pragma unroll
		for (int f = 0; f < IN_FLIGHT; f++)
#pragma unroll
			for (int k = 0; k < N; k++)
				if (f < n)
					sum[k] += wide(x[f].x[k]);
	}
	run_store<float, N>(row + c, sum);
}

/* One block per place of the sorted list: the first of an id adds all of them. */
template <typename T, int N>
static __global__ void
add(const __grid_constant__ struct table table, const T *dy, const int32_t *sorted,
    const int32_t *sorted_id, size_t t)
{
	size_t from = blockIdx.x;
	int32_t id = sorted_id[from];

	if (id == NO_ID || (from > 0 && sorted_id[from - 1] == id))
		return;
	float *row = table_row<float>(table, id);
	if (!row)
		return;
	for (size_t c = threadIdx.x * N; c < table.d; c += ADD_THREADS * N)
		add_rows<T, N>(row, dy, sorted, sorted_id, from, t, c, table.d);
}

extern "C" size_t
k3_embed_bwd_cuda_scratch(const struct k3_embed_args *a)
{
	return 2 * a->t * sizeof(int32_t);
}

static void
clear_table(void *const *buf, const struct k3_weight *w, cudaStream_t stream)
{
	for (uint32_t b = 0; b < w->n; b++) {
		size_t first = b * w->block_rows,
		       rows = first + w->block_rows < w->rows ? w->block_rows : w->rows - first;
		K3_CUDA_CHECK(cudaMemsetAsync(buf[w->first + b], 0, rows * w->cols * sizeof(float),
					      stream));
	}
}

template <typename T>
static void
embed_bwd(void *const *buf, const struct k3_embed_args *a, const struct k3_cuda *cuda)
{
	const int n = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	const T *dy = (const T *)buf[0];
	const int32_t *ids = (const int32_t *)buf[1];
	const int32_t *map = a->map.n ? (const int32_t *)buf[a->map.first] : nullptr;
	int32_t *sorted = (int32_t *)cuda->scratch, *sorted_id = sorted + a->t;

	if (!a->table.accumulate)
		clear_table(buf, &a->table, stream);
	if (a->t == 0)
		return;
	rank<<<blocks_for(a->t, THREADS / 32), THREADS, 0, stream>>>(sorted, sorted_id, ids, map,
								     a->t);
	K3_CUDA_LAUNCHED("rank");
	for (uint32_t first = 0; first < a->table.n; first += BLOCKS_MOST) {
		struct table table = table_part(buf, &a->table, first);
		if (a->d % n == 0)
			add<T, n><<<(unsigned)a->t, ADD_THREADS, 0, stream>>>(table, dy, sorted,
									      sorted_id, a->t);
		else
			add<T, 1><<<(unsigned)a->t, ADD_THREADS, 0, stream>>>(table, dy, sorted,
									      sorted_id, a->t);
		K3_CUDA_LAUNCHED("add");
	}
}

K3_CUDA_BOTH(embed_fwd, k3_embed_args)
K3_CUDA_BOTH(embed_bwd, k3_embed_args)
