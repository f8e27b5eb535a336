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

/* dg and du of one element from its dh; returns h dh. */
static __device__ __forceinline__ float
hidden_gradient(float *dg, float *du, float dh, float g, float u, float weight, float b1, float b2)
{
	struct situ_parts p = fast_situ(g, u, b1, b2);
	float slope_g, slope_u;

	situ_slopes(&p, b1, b2, &slope_g, &slope_u);
	*dg = weight * dh * slope_g;
	*du = weight * dh * slope_u;
	return situ_value(&p, b1, b2) * dh;
}

/* Four pairs of g and u, d[at] on, become those of dg and du; returns the sum of h dh. */
template <int N>
static __device__ __forceinline__ float
hidden_pairs(uint32_t (&g)[4], uint32_t (&u)[4], const float (&d)[N], const int at, float weight,
	     const struct expert_task *task)
{
	const float b1 = task->beta1, b2 = task->beta2;
	float dot = 0;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int k = at + 4 * i;
		float dg[2], du[2];
		dot += hidden_gradient(dg, du, d[k], pair_first(g[i]), pair_first(u[i]), weight, b1,
				       b2);
		dot += hidden_gradient(dg + 1, du + 1, d[k + 1], pair_second(g[i]),
				       pair_second(u[i]), weight, b1, b2);
		g[i] = bf16_pair(dg[0], dg[1]);
		u[i] = bf16_pair(du[0], du[1]);
	}
	return dot;
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

/* Eight columns of g or u that this thread would store, as the pairs that it has. */
static __device__ __forceinline__ void
load_turned(uint32_t (&w)[4], const k3_bf16 *from, bool there)
{
	uint4 x = there ? __ldcg(reinterpret_cast<const uint4 *>(from)) : make_uint4(0, 0, 0, 0);

	w[0] = x.x, w[1] = x.y, w[2] = x.z, w[3] = x.w;
}

/* All of a row's g and u are read before the first is used. */
template <int N>
static __device__ __forceinline__ void
finish_hidden(const struct expert_task *task, const struct tile *t, const float (&d)[N], int m,
	      const float (&weights)[2])
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int f = task->f, col = thread_col(t);
		size_t row = (size_t)(t->row + local_row(m, half)), at = row * 2 * f + col;
		bool live = row < (size_t)t->end;
		const k3_bf16 *gu = (const k3_bf16 *)task->gu + at;
		k3_bf16 *dgu = (k3_bf16 *)task->out[0] + at;
		uint32_t g[N / 16][4], u[N / 16][4];
		float dot = 0;
#pragma unroll
		for (int i = 0; i < N / 16; i++) {
			load_turned(g[i], gu + 32 * i, live && col + 32 * i < f);
			load_turned(u[i], gu + f + 32 * i, live && col + 32 * i < f);
		}
#pragma unroll
		for (int i = 0; i < N / 16; i++) {
			bool there = live && col + 32 * i < f;
			turn<1>(g[i]);
			turn<1>(u[i]);
			dot += hidden_pairs(g[i], u[i], d, 16 * i + 2 * half, weights[half], task);
			store_turned(dgu + 32 * i, g[i], there);
			store_turned(dgu + f + 32 * i, u[i], there);
		}
		dot += __shfl_xor_sync(0xffffffffu, dot, 1);
		dot += __shfl_xor_sync(0xffffffffu, dot, 2);
		if (live && (threadIdx.x & 3) == 0)
			task->part[row * task->parts + t->col / tile_columns<D_HIDDEN>()] = dot;
	}
}

/* Before the tile is computed: its g and u come nearer. */
static __device__ __forceinline__ void
expect_hidden(const struct expert_task *task, const struct tile *t)
{
	const int line = 64, lines = tile_columns<D_HIDDEN>() / line;
	size_t f = (size_t)task->f;

	for (int i = threadIdx.x & 127; i < 2 * lines * TILE_ROWS; i += 128) {
		int row = t->row + i / (2 * lines), col = t->col + i % lines * line;
		const k3_bf16 *from =
			(const k3_bf16 *)task->gu + row * 2 * f + col + (i / lines % 2 ? f : 0);
		if (row < t->end && col < (int)f)
			asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
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
