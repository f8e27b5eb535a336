/* Token embedding on CUDA.
 *
 * Backward, tokens are sorted by id and then by place, so that each row of the table has one
 * owner, who adds the gradients of its tokens in ascending order: the sum of the CPU kernel, bit
 * for bit in float.  A token's place in the sorted list is the number of smaller keys; counting
 * them costs t^2 comparisons, which at the lengths of a tile is less than the launches of a radix
 * sort.  The trap: one id may have every token of a tile (padding) and a few percent of any text,
 * and its sum is one chain: its rows are under way together, and their places before them.
 */
#include "../cuda/pointers.cuh"
#include "../cuda/runs.cuh"

extern "C" {
#include "../../common/op/embed.h"
}

enum { THREADS = 256, BLOCKS_MOST = 128, ADD_THREADS = 128, IN_FLIGHT = 8, RANKED = 4 };
static const uint32_t NO_ID = INT32_MAX;

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

static __device__ __forceinline__ uint32_t
id_of(const int32_t *ids, const int32_t *map, size_t i)
{
	return map && map[i] >= 0 ? NO_ID : (uint32_t)ids[i];
}

/* A warp has RANKED tokens: their places in the sorted list. */
static __global__ void
rank(int32_t *sorted, uint32_t *sorted_id, const int32_t *ids, const int32_t *map, size_t t)
{
	size_t first = ((size_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * RANKED;
	size_t lane = threadIdx.x % 32;
	uint32_t id[RANKED];
	int place[RANKED] = {};

	if (first >= t)
		return;
#pragma unroll
	for (int k = 0; k < RANKED; k++)
		id[k] = id_of(ids, map, first + k < t ? first + k : first);
		/* of equal ids those before count, so bounds differ by one on the two sides */
#pragma unroll 8
	for (size_t j = lane; j < first; j += 32) {
		uint32_t other = id_of(ids, map, j);
#pragma unroll
		for (int k = 0; k < RANKED; k++)
			place[k] += other < id[k] + 1;
	}
#pragma unroll 8
	for (size_t j = first + RANKED + lane; j < t; j += 32) {
		uint32_t other = id_of(ids, map, j);
#pragma unroll
		for (int k = 0; k < RANKED; k++)
			place[k] += other < id[k];
	}
	if (lane < RANKED && first + lane < t) {
		uint32_t other = id_of(ids, map, first + lane);
#pragma unroll
		for (int k = 0; k < RANKED; k++)
			place[k] += other < id[k] + (lane < (size_t)k);
	}
#pragma unroll
	for (int k = 0; k < RANKED; k++) {
		int to = (int)__reduce_add_sync(0xffffffffu, (unsigned)place[k]);
		if (lane == 0 && first + k < t) {
			sorted[to] = (int32_t)(first + k);
			sorted_id[to] = id[k];
		}
	}
}

/* N columns as they lie in memory: words, as an array of bf16 would be moved one by one. */
template <typename T, int N> struct alignas(sizeof(T) * N) columns {
	uint32_t word[sizeof(T) * N / 4];
};
template <> struct columns<k3_bf16, 1> {
	uint16_t word;
};

/* The lane's place from r on, or -1: another id. */
static __device__ __forceinline__ int
place_at(const int32_t *sorted, const uint32_t *sorted_id, uint32_t id, size_t r, size_t t)
{
	size_t at = r + threadIdx.x % 32;

	return at < t && sorted_id[at] == id ? sorted[at] : -1;
}

/* row += the rows of dy whose places follow each other from `from` on under one id; columns c ..
 * c+N-1, none if c is not below d. */
template <typename T, int N>
static __device__ __forceinline__ void
add_rows(float *row, const T *dy, const int32_t *sorted, const uint32_t *sorted_id, size_t from,
	 size_t t, size_t c, size_t d)
{
	uint32_t id = sorted_id[from];
	int place = place_at(sorted, sorted_id, id, from, t), n;
	float sum[N] = {}, x[N];

	if (c < d)
		run_load<float, N>(sum, row + c);
	for (size_t r = from; (n = __popc(__ballot_sync(0xffffffffu, place >= 0))) > 0; r += 32) {
		int next = place_at(sorted, sorted_id, id, r + 32, t);

		for (int first = 0; first < n; first += IN_FLIGHT) {
			struct columns<T, N> raw[IN_FLIGHT];
#pragma unroll
			for (int f = 0; f < IN_FLIGHT; f++) {
				int at = __shfl_sync(0xffffffffu, place, first + f);
				if (first + f < n && c < d)
					raw[f] =
						*(const struct columns<T, N> *)(dy +
										(size_t)at * d + c);
			}
#pragma unroll
			for (int f = 0; f < IN_FLIGHT; f++) {
				if (first + f >= n)
					continue;
				run_load<T, N>(x, (const T *)&raw[f]);
#pragma unroll
				for (int k = 0; k < N; k++)
					sum[k] += x[k];
			}
		}
		place = next;
	}
	if (c < d)
		run_store<float, N>(row + c, sum);
}

/* Blocks of a place of the sorted list: the first of an id adds all of them. */
template <typename T, int N>
static __global__ void
__launch_bounds__(ADD_THREADS) add(const __grid_constant__ struct table table, const T *dy,
				   const int32_t *sorted, const uint32_t *sorted_id, size_t t)
{
	size_t from = blockIdx.x, c = ((size_t)blockIdx.y * ADD_THREADS + threadIdx.x) * N;
	uint32_t id = sorted_id[from];

	if (id == NO_ID || (from > 0 && sorted_id[from - 1] == id))
		return;
	float *row = table_row<float>(table, (int32_t)id);
	if (row)
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

/* Adds the sorted rows to the blocks of the table, N columns a lane. */
template <typename T, int N>
static void
add_all(void *const *buf, const struct k3_embed_args *a, const int32_t *sorted,
	const uint32_t *sorted_id, cudaStream_t stream)
{
	dim3 grid((unsigned)a->t, blocks_for(a->d, ADD_THREADS * N));

	for (uint32_t first = 0; first < a->table.n; first += BLOCKS_MOST) {
		add<T, N><<<grid, ADD_THREADS, 0, stream>>>(table_part(buf, &a->table, first),
							    (const T *)buf[0], sorted, sorted_id,
							    a->t);
		K3_CUDA_LAUNCHED("add");
	}
}

template <typename T>
static void
embed_bwd(void *const *buf, const struct k3_embed_args *a, const struct k3_cuda *cuda)
{
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	const int32_t *map = a->map.n ? (const int32_t *)buf[a->map.first] : nullptr;
	int32_t *sorted = (int32_t *)cuda->scratch;
	uint32_t *sorted_id = (uint32_t *)(sorted + a->t);

	if (!a->table.accumulate)
		clear_table(buf, &a->table, stream);
	if (a->t == 0 || a->d == 0)
		return;
	rank<<<blocks_for(a->t, THREADS / 32 * RANKED), THREADS, 0, stream>>>(
		sorted, sorted_id, (const int32_t *)buf[1], map, a->t);
	K3_CUDA_LAUNCHED("rank");
	if (a->d % k3_pack<T>::n == 0)
		add_all<T, k3_pack<T>::n>(buf, a, sorted, sorted_id, stream);
	else
		add_all<T, 1>(buf, a, sorted, sorted_id, stream);
}

K3_CUDA_BOTH(embed_fwd, k3_embed_args)
K3_CUDA_BOTH(embed_bwd, k3_embed_args)
