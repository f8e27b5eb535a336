/* Attention by plain multiplications, for float and for widths that no warpgroup product has.
 *
 * Blocks of 64 rows and 64 columns; a thread has 4 x 4 elements of whatever is being multiplied.
 * One primitive does all products: acc[i][j] += sum_p a[p][i] b[p][j], operands staged as float in
 * shared memory, 32 p at a time.  Sums over blocks lie in shared memory, so any width works that
 * fits there.
 */
#ifndef K3_CUDA_ATTN_PLAIN_CUH
#define K3_CUDA_ATTN_PLAIN_CUH
#include "attn.cuh"

enum { SIDE = 64, DEPTH = 32, PITCH = SIDE + 4 };

extern __shared__ float4 attn_plain_shared[];

/* Shared memory of a block of the grid. */
struct plain_shared {
	float a[DEPTH][PITCH], b[DEPTH][PITCH];
	float p[SIDE][PITCH], ds[SIDE][PITCH]; /* [column][row] */
	int row_id[SIDE], column_id[SIDE];
	/* then the sums [SIDE][width] */
};

static __device__ __forceinline__ void
multiply(float acc[4][4], const float (*a)[PITCH], const float (*b)[PITCH])
{
	int i0 = (threadIdx.x >> 4) * 4, j0 = (threadIdx.x & 15) * 4;

#pragma unroll 8
	for (int p = 0; p < DEPTH; p++) {
		float4 x = *(const float4 *)&a[p][i0], y = *(const float4 *)&b[p][j0];
		const float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
		for (int i = 0; i < 4; i++)
#pragma unroll
			for (int j = 0; j < 4; j++)
				acc[i][j] += xs[i] * ys[j];
	}
}

static __device__ __forceinline__ bool
holds(const struct tile_rows &t, const struct run &run, int row)
{
	return row >= run.from && row < run.to && (run.even || row_id(&t, row));
}

/* Columns c0 .. c0 + DEPTH - 1 of 64 rows, transposed: to[p][row]. */
template <typename T, bool Y>
static __device__ __forceinline__ void
stage_columns(float (*to)[PITCH], const struct side<T> &s, const struct tile_rows &t,
	      const struct run &run, int row0, int c0)
{
	for (int i = threadIdx.x; i < SIDE * DEPTH; i += THREADS) {
		int r = i / DEPTH, p = i % DEPTH, row = row0 + r;
		bool there = holds(t, run, row);
		to[p][r] = !there ? 0.0f : wide(Y ? y_at(&s, row, c0 + p) : x_at(&s, row, c0 + p));
	}
}

/* Columns c0 .. c0 + 63 of DEPTH rows: to[row][column]. */
template <typename T, bool Y>
static __device__ __forceinline__ void
stage_rows(float (*to)[PITCH], const struct side<T> &s, const struct tile_rows &t,
	   const struct run &run, int row0, int c0)
{
	for (int i = threadIdx.x; i < SIDE * DEPTH; i += THREADS) {
		int p = i / SIDE, c = i % SIDE, row = row0 + p;
		bool there = holds(t, run, row);
		to[p][c] = !there ? 0.0f : wide(Y ? y_at(&s, row, c0 + c) : x_at(&s, row, c0 + c));
	}
}

/* The two sides of a block of scores. */
template <typename T> struct plain_work {
	struct side<T> of_rows, of_cols;
	struct tile_rows rows, cols;
	struct run all, run;
	int row0, column0;
};

/* acc = x x^T or y y^T */
template <typename T, bool Y>
static __device__ __forceinline__ void
plain_scores(float acc[4][4], struct plain_shared *sh, const struct plain_work<T> &w)
{
	int width = Y ? w.of_rows.ny : w.of_rows.na + w.of_rows.nb;

#pragma unroll
	for (int i = 0; i < 16; i++)
		acc[i / 4][i % 4] = 0;
	for (int c = 0; c < width; c += DEPTH) {
		__syncthreads();
		stage_columns<T, Y>(sh->a, w.of_rows, w.rows, w.all, w.row0, c);
		stage_columns<T, Y>(sh->b, w.of_cols, w.cols, w.run, w.column0, c);
		__syncthreads();
		multiply(acc, sh->a, sh->b);
	}
}

/* sum[row][column] = sum * shift[row] + weights^T x or y over the 64 columns of a block. */
template <typename T, bool Y>
static __device__ __forceinline__ void
plain_sum(float *sum, int width, const float (*weights)[PITCH], const float shift[4],
	  struct plain_shared *sh, const struct plain_work<T> &w)
{
	int i0 = (threadIdx.x >> 4) * 4, j0 = (threadIdx.x & 15) * 4;

	for (int c = 0; c < width; c += SIDE) {
		float acc[4][4];
#pragma unroll
		for (int i = 0; i < 16; i++) {
			int col = c + j0 + i % 4;
			acc[i / 4][i % 4] =
				col < width ? sum[(i0 + i / 4) * width + col] * shift[i / 4] : 0.0f;
		}
		for (int half = 0; half < SIDE; half += DEPTH) {
			__syncthreads();
			stage_rows<T, Y>(sh->b, w.of_cols, w.cols, w.run, w.column0 + half, c);
			__syncthreads();
			multiply(acc, weights + half, sh->b);
		}
#pragma unroll
		for (int i = 0; i < 16; i++) {
			int col = c + j0 + i % 4;
			if (col < width)
				sum[(i0 + i / 4) * width + col] = acc[i / 4][i % 4];
		}
	}
}

static __device__ __forceinline__ void
plain_ids(int *id, const struct tile_rows &t, const struct run &run, int row0, int none)
{
	for (int i = threadIdx.x; i < SIDE; i += THREADS) {
		int row = row0 + i, x = row >= run.from && row < run.to ? row_id(&t, row) : 0;
		id[i] = x ? x : none;
	}
}

/** Bytes of shared memory for sums of `width` columns. */
static inline size_t
plain_bytes(int width)
{
	return sizeof(struct plain_shared) + (size_t)width * SIDE * sizeof(float);
}

#endif
