/* What becomes of a finished tile (expert_wgmma.cu): each warpgroup has one of its own, d[2] for its two
 * halves of 64 rows, and finishes it while the other multiplies.
 *
 * A thread holds pairs of columns, 8 apart, of two rows 8 apart: 4 bytes of each run of 16.  The four
 * lanes of a row trade words, as one transposes a 4 x 4 matrix, after which each stores 16 bytes of
 * its own and a row of 32 columns is 64 bytes together.  The trap: lanes must trade before they ask
 * whether their row or column is there.
 */
#ifndef K3_MOE_EXPERT_FINISH_CUH
#define K3_MOE_EXPERT_FINISH_CUH
#include "expert_tiles.cuh"
#include "fast_situ.cuh"

static __device__ __forceinline__ float
pair_first(uint32_t w)
{
	return __uint_as_float(w << 16);
}

static __device__ __forceinline__ float
pair_second(uint32_t w)
{
	return __uint_as_float(w & 0xffff0000u);
}

/* Word i of lane q becomes word q of lane i, in each four lanes that are STEP apart; its own inverse. */
template <int STEP, typename W>
static __device__ __forceinline__ void
turn(W (&w)[4])
{
	bool odd = threadIdx.x & STEP, high = threadIdx.x & 2 * STEP;

#pragma unroll
	for (int i = 0; i < 4; i += 2) {
		W got = __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[i + 1], STEP);
		if (odd)
			w[i] = got;
		else
			w[i + 1] = got;
	}
#pragma unroll
	for (int i = 0; i < 2; i++) {
		W got = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + 2], 2 * STEP);
		if (high)
			w[i] = got;
		else
			w[i + 2] = got;
	}
}

static __device__ __forceinline__ void
store_turned(k3_bf16 *to, uint32_t (&w)[4], bool there)
{
	turn<1>(w);
	if (there)
		*reinterpret_cast<uint4 *>(to) = make_uint4(w[0], w[1], w[2], w[3]);
}

/* Row of this thread in the tile: part `half` of half `m`. */
static __device__ __forceinline__ int
local_row(int m, int half)
{
	return m * BOX + (int)(threadIdx.x >> 5 & 3) * 16 + (int)(threadIdx.x >> 2 & 7) + 8 * half;
}

/* First of the 8 columns that this thread stores of the first 32. */
static __device__ __forceinline__ int
thread_col(const struct tile *t)
{
	return t->col + 8 * (int)(threadIdx.x & 3);
}

static __device__ __forceinline__ uint32_t
hidden_pair(uint32_t g, uint32_t u, float b1, float b2)
{
	struct situ_parts first = fast_situ(pair_first(g), pair_first(u), b1, b2),
			  second = fast_situ(pair_second(g), pair_second(u), b1, b2);

	return bf16_pair(situ_value(&first, b1, b2), situ_value(&second, b1, b2));
}

/* Columns of g are followed by those of u. */
template <int N>
static __device__ __forceinline__ void
finish_gate_up(const struct expert_task *task, const struct tile *t, const float (&d)[N], int m)
{
	size_t f = (size_t)task->f, col = (size_t)thread_col(t);

#pragma unroll
	for (int half = 0; half < 2; half++) {
		size_t row = (size_t)(t->row + local_row(m, half));
		k3_bf16 *gu = (k3_bf16 *)task->out[0] + row * 2 * f + col;
		k3_bf16 *hidden = (k3_bf16 *)task->out[1];
#pragma unroll
		for (int from = 0; from < N / 2; from += 16) {
			const int cols = 2 * from;
			bool there = row < (size_t)t->end && col + cols < f;
			uint32_t g[4], u[4], h[4];
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const int at = from + 4 * i + 2 * half;
				g[i] = bf16_pair(d[at], d[at + 1]);
				u[i] = bf16_pair(d[at + N / 2], d[at + N / 2 + 1]);
				if (hidden)
					h[i] = hidden_pair(g[i], u[i], task->beta1, task->beta2);
			}
			store_turned(gu + cols, g, there);
			store_turned(gu + f + cols, u, there);
			if (hidden)
				store_turned(hidden + row * f + col + cols, h, there);
		}
	}
}

/* Of this thread's rows; before the tile is computed, as one read waits for another. */
static __device__ __forceinline__ void
load_weights(float (&weight)[2][2], const struct expert_task *task, const struct tile *t)
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		int row = t->row + local_row(i / 2, i % 2);
		if (row < t->end)
			weight[i / 2][i % 2] = task->w[task->src[row]];
	}
}

/* Rows as they are; `width` columns. */
template <int N>
static __device__ __forceinline__ void
finish_rows(const struct expert_task *task, const struct tile *t, const float (&d)[N], int m,
	    int width)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		size_t row = (size_t)(t->row + local_row(m, half));
		k3_bf16 *out = (k3_bf16 *)task->out[0] + row * width + thread_col(t);
#pragma unroll
		for (int from = 0; from < N; from += 16) {
			uint32_t w[4];
#pragma unroll
			for (int i = 0; i < 4; i++)
				w[i] = bf16_pair(d[from + 4 * i + 2 * half],
						 d[from + 4 * i + 2 * half + 1]);
			store_turned(out + 2 * from, w,
				     row < (size_t)t->end && thread_col(t) + 2 * from < width);
		}
	}
}

/* The tile of the first columns adds up dwt of its rows. */
static __device__ __forceinline__ void
sum_parts(const struct expert_task *task, const struct tile *t)
{
	size_t row = (size_t)(t->row + (int)(threadIdx.x & 127));
	float sum = 0;

	if (t->col > 0 || row >= (size_t)t->end)
		return;
	for (int i = 0; i < task->parts; i++)
		sum += task->part[row * task->parts + i];
	task->dwt[row] = sum;
}

#endif
