/* Patches to tower inputs on CUDA: positions (and times) first, then the product adds to them.
 *
 * The gradient of the position table is a sum over all patches that read an entry; a thread block
 * has an entry and asks every part for the grid rows and columns whose taps reach it, so that the order of
 * the sum is that of the patches.  Those rows are found by the inverse of the resampling with a margin
 * and judged by the same taps as forward.
 */
#include "../cuda/pointers.cuh"
#include "vit.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, BLOCKS_MOST = 128 };

/* Blocks first .. first + n - 1 of the position table, or of its gradient. */
struct table {
	struct k3_pointers<BLOCKS_MOST> block;
	size_t block_rows, h, w, d;
};

static struct table
table_of(void *const *buf, const struct k3_vit_embed_args *a)
{
	struct table t;

	K3_CUDA_CHECK(a->pos.n <= BLOCKS_MOST ? cudaSuccess : cudaErrorInvalidValue);
	t.block = pointers_of<BLOCKS_MOST>(buf, a->pos.first, a->pos.n);
	t.block_rows = a->pos.block_rows;
	t.h = a->table_h, t.w = a->table_w, t.d = a->d;
	return t;
}

template <typename T>
static __device__ __forceinline__ T *
table_row(const struct table &t, size_t row)
{
	return (T *)t.block.p[row / t.block_rows] + row % t.block_rows * t.d;
}

struct taps {
	size_t at[2];
	float weight[2];
};

/* Position `at` of an axis of n_out entries, on a table of n_in (position.h). */
static __device__ __forceinline__ struct taps
taps_of(size_t at, size_t n_out, size_t n_in)
{
	double source = ((double)at + 0.5) * ((double)n_in / (double)n_out) - 0.5;

	source = source < 0 ? 0 : source;
	size_t low = (size_t)source;
	low = low > n_in - 1 ? n_in - 1 : low;
	float share = (float)(source - (double)low);
	return {{low, low + 1 < n_in ? low + 1 : n_in - 1}, {1 - share, share}};
}

/* Adds the time of a frame: sines, then cosines. */
template <int N>
static __device__ __forceinline__ void
add_time(float *x, size_t c, size_t frame, size_t d)
{
	const double log2_theta = 13.28771237954945; /* log2(10000) */

#pragma unroll
	for (int k = 0; k < N; k++) {
		size_t i = c + k < d / 2 ? c + k : c + k - d / 2;
		float angle =
			(float)((double)frame * exp2(-(double)i / ((double)d / 2) * log2_theta));
		x[k] += c + k < d / 2 ? sinf(angle) : cosf(angle);
	}
}

template <typename T, int N>
static __global__ void
__launch_bounds__(THREADS)
	positions(T *x, const int32_t *layout, const __grid_constant__ struct table table, size_t n)
{
	size_t patch = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
	struct taps ty = {}, tx = {};

	if (patch >= n)
		return;
	struct place at = place_of(layout, patch);
	if (at.part) {
		ty = taps_of((size_t)at.part[K3_VP_ROW0] + at.row, (size_t)at.part[K3_VP_H],
			     table.h);
		tx = taps_of(at.col, (size_t)at.part[K3_VP_W], table.w);
	}
	for (size_t c = threadIdx.x % 32 * N; c < table.d; c += 32 * N) {
		float sum[N], v[N];
#pragma unroll
		for (int k = 0; k < N; k++)
			sum[k] = 0;
#pragma unroll
		for (int tap = 0; tap < 4; tap++) {
			float weight = ty.weight[tap / 2] * tx.weight[tap % 2];
			if (weight == 0.0f)
				continue;
			run_load<T, N>(v, table_row<const T>(table, ty.at[tap / 2] * table.w +
									    tx.at[tap % 2]) +
						  c);
#pragma unroll
			for (int k = 0; k < N; k++)
				sum[k] += weight * v[k];
		}
		if (at.part && at.part[K3_VP_T] > 1) /* a single image has no time */
			add_time<N>(sum, c, at.frame, table.d);
		run_store<T, N>(x + patch * table.d + c, sum);
	}
}

/* Positions from .. to - 1 of an axis may have a tap at entry `at` of the table. */
struct reach {
	size_t from, to;
};

static __device__ __forceinline__ struct reach
reach_of(size_t at, size_t n_out, size_t n_in)
{
	double step = (double)n_out / (double)n_in;
	double low = ((double)at - 0.5) * step - 1.5, high = ((double)at + 1.5) * step + 1.5;
	struct reach r = {low > 0 && at > 0 ? (size_t)low : 0, n_out};

	if (at + 1 < n_in && high < (double)n_out)
		r.to = (size_t)high;
	return r;
}

static __device__ __forceinline__ float
weight_at(const struct taps &t, size_t at)
{
	return (t.at[0] == at ? t.weight[0] : 0.0f) + (t.at[1] == at ? t.weight[1] : 0.0f);
}

/* What row r of a grid adds to the entry's columns c .. c + N - 1, of which a thread may have none; dx
 * is the row's first patch.  Each lane asks one of 32 positions for its weight, and all go through
 * those that have one. */
template <typename T, int N>
static __device__ __forceinline__ void
add_row(float *sum, const T *dx, const struct reach &reach, float wy, size_t cols, size_t x,
	size_t c, const struct table &table)
{
	for (size_t from = reach.from; from < reach.to; from += 32) {
		size_t mine = from + threadIdx.x % 32;
		float share = mine < reach.to ? wy * weight_at(taps_of(mine, cols, table.w), x) : 0;
		for (unsigned left = __ballot_sync(0xffffffffu, share != 0.0f); left;
		     left &= left - 1) {
			int j = __ffs((int)left) - 1;
			float w = __shfl_sync(0xffffffffu, share, j), v[N];
			if (c >= table.d)
				continue;
			run_load<T, N>(v, dx + (from + (size_t)j) * table.d + c);
#pragma unroll
			for (int k = 0; k < N; k++)
				sum[k] += w * v[k];
		}
	}
}

template <typename T, int N>
static __device__ __forceinline__ void
add_part(float *sum, const T *dx, const int32_t *part, size_t y, size_t x, size_t c,
	 const struct table &table)
{
	size_t row0 = (size_t)part[K3_VP_ROW0], rows = (size_t)part[K3_VP_ROWS],
	       cols = (size_t)part[K3_VP_W], grid_h = (size_t)part[K3_VP_H];
	struct reach ry = reach_of(y, grid_h, table.h), rx = reach_of(x, cols, table.w);
	size_t from = ry.from > row0 ? ry.from : row0,
	       to = ry.to < row0 + rows ? ry.to : row0 + rows;

	for (size_t frame = 0; frame < (size_t)part[K3_VP_T]; frame++)
		for (size_t r = from; r < to; r++) {
			float wy = weight_at(taps_of(r, grid_h, table.h), y);
			size_t first =
				(size_t)part[K3_VP_PATCH0] + (frame * rows + r - row0) * cols;
			if (wy != 0.0f)
				add_row<T, N>(sum, dx + first * table.d, rx, wy, cols, x, c, table);
		}
}

/* A block has an entry; its warps go on together, so that lanes may ask each other. */
template <typename T, int N>
static __global__ void
__launch_bounds__(THREADS) position_grads(const __grid_constant__ struct table table, const T *dx,
					  const int32_t *layout, bool adds)
{
	size_t y = blockIdx.x / table.w, x = blockIdx.x % table.w;
	float *row = table_row<float>(table, blockIdx.x);

	for (size_t first = 0; first < table.d; first += blockDim.x * N) {
		size_t c = first + threadIdx.x * N;
		float sum[N] = {};
		if (adds && c < table.d)
			run_load<float, N>(sum, row + c);
		for (int32_t p = 0; p < layout[K3_VL_PARTS]; p++)
			add_part<T, N>(sum, dx, part_at(layout, p), y, x, c, table);
		if (c < table.d)
			run_store<float, N>(row + c, sum);
	}
}

/* Threads for N columns each of d. */
static unsigned
threads_for(size_t d, size_t n)
{
	size_t threads = (d / n + 31) / 32 * 32;

	return threads < THREADS ? (unsigned)threads : (unsigned)THREADS;
}

template <typename T>
static void
vit_patch_embed_fwd(void *const *buf, const struct k3_vit_embed_args *a, const struct k3_cuda *cuda)
{
	const int n = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	struct table table = table_of(buf, a);
	T *x = (T *)buf[0];
	const int32_t *layout = (const int32_t *)buf[2];

	if (a->n == 0)
		return;
	unsigned blocks = blocks_for(a->n, WARPS);
	if (a->d % n == 0)
		positions<T, n><<<blocks, THREADS, 0, stream>>>(x, layout, table, a->n);
	else
		positions<T, 1><<<blocks, THREADS, 0, stream>>>(x, layout, table, a->n);
	K3_CUDA_LAUNCHED("positions");
	k3_cuda_linear_fwd(cuda, k3_type<T>::id, x, a->d, 1, buf[1], a->pixels, buf, &a->wpe, 0,
			   a->d, a->n);
}

template <typename T>
static void
vit_patch_embed_bwd(void *const *buf, const struct k3_vit_embed_args *a, const struct k3_cuda *cuda)
{
	const int n = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	struct table table = table_of(buf, a);
	const T *dx = (const T *)buf[0];
	const int32_t *layout = (const int32_t *)buf[2];
	unsigned entries = (unsigned)(a->table_h * a->table_w);

	k3_cuda_linear_dw(cuda, k3_type<T>::id, buf, &a->wpe, 0, a->d, dx, a->d, buf[1], a->pixels,
			  a->n);
	if (a->d % n == 0)
		position_grads<T, n><<<entries, threads_for(a->d, n), 0, stream>>>(
			table, dx, layout, a->pos.accumulate != 0);
	else
		position_grads<T, 1><<<entries, threads_for(a->d, 1), 0, stream>>>(
			table, dx, layout, a->pos.accumulate != 0);
	K3_CUDA_LAUNCHED("position_grads");
}

K3_CUDA_BOTH(vit_patch_embed_fwd, k3_vit_embed_args)
K3_CUDA_BOTH(vit_patch_embed_bwd, k3_vit_embed_args)
