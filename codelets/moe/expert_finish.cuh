/* What becomes of a finished tile (expert_wgmma.cu).
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

/* Two bf16 columns in a word. */
static __device__ __forceinline__ uint32_t
pair(float x, float y)
{
	__nv_bfloat162 both = __floats2bfloat162_rn(x, y);

	return *reinterpret_cast<uint32_t *>(&both);
}

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

/* Word i of lane q becomes word q of lane i, in each four lanes; its own inverse. */
static __device__ __forceinline__ void
turn(uint32_t (&w)[4])
{
	bool odd = threadIdx.x & 1, high = threadIdx.x & 2;

#pragma unroll
	for (int i = 0; i < 4; i += 2) {
		uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[i + 1], 1);
		if (odd)
			w[i] = got;
		else
			w[i + 1] = got;
	}
#pragma unroll
	for (int i = 0; i < 2; i++) {
		uint32_t got = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + 2], 2);
		if (high)
			w[i] = got;
		else
			w[i + 2] = got;
	}
}

static __device__ __forceinline__ void
store_turned(k3_bf16 *to, uint32_t (&w)[4], bool there)
{
	turn(w);
	if (there)
		*reinterpret_cast<uint4 *>(to) = make_uint4(w[0], w[1], w[2], w[3]);
}

/* The pair of columns `col` of a row in the boxes of load_saved(); both within the tile. */
static __device__ __forceinline__ uint32_t
saved_pair(uint32_t boxes, int row, int col)
{
	uint32_t at = boxes + (row / BOX * 2 + col / BOX) * BOX_BYTES + row % BOX * 128, w;

	at += (uint32_t)((col % BOX * 2) ^ (row % 8 * 16));
	asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w) : "r"(at));
	return w;
}

/* First row of this thread; the other is 8 further. */
static __device__ __forceinline__ int
thread_row(const struct tile *t)
{
	return t->row + (int)(threadIdx.x >> 5) * 16 + (int)(threadIdx.x >> 2 & 7);
}

/* First of the 8 columns that this thread stores of the first 32. */
static __device__ __forceinline__ int
thread_col(const struct tile *t)
{
	return t->col + 8 * (int)(threadIdx.x & 3);
}

static __device__ __forceinline__ void
finish_gate_up(const struct expert_task *task, const struct tile *t, const float (&d)[64])
{
	const float b1 = task->beta1, b2 = task->beta2;
	size_t f = (size_t)task->f;

#pragma unroll
	for (int part = 0; part < 4; part++) {
		const int half = part >> 1, block = (part & 1) * 4;
		size_t row = (size_t)(thread_row(t) + 8 * half), col = (size_t)thread_col(t);
		k3_bf16 *gu = (k3_bf16 *)task->out[0] + row * 2 * f + col;
		k3_bf16 *hidden = (k3_bf16 *)task->out[1];
		bool there = row < (size_t)t->end && col + 8 * block < f;
		uint32_t g[4], u[4], h[4];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int at = 4 * (block + i) + 2 * half;
			g[i] = pair(d[at], d[at + 1]);
			u[i] = pair(d[at + 32], d[at + 33]);
			if (!hidden)
				continue;
			struct situ_parts first = fast_situ(pair_first(g[i]), pair_first(u[i]), b1,
							    b2),
					  second = fast_situ(pair_second(g[i]), pair_second(u[i]),
							     b1, b2);
			h[i] = pair(situ_value(&first, b1, b2), situ_value(&second, b1, b2));
		}
		store_turned(gu + 8 * block, g, there);
		store_turned(gu + f + 8 * block, u, there);
		if (hidden)
			store_turned(hidden + row * f + col + 8 * block, h, there);
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
static __device__ __forceinline__ float
hidden_pairs(uint32_t (&g)[4], uint32_t (&u)[4], const float (&d)[64], const int at, float weight,
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
		g[i] = pair(dg[0], dg[1]);
		u[i] = pair(du[0], du[1]);
	}
	return dot;
}

/* g and u lie in two stages.  Columns that are not there have d = 0. */
template <int HALF>
static __device__ __forceinline__ void
finish_hidden_half(const struct expert_task *task, const struct tile *t, const float (&d)[64],
		   uint32_t saved_g, uint32_t saved_u)
{
	int local = thread_row(t) - t->row + 8 * HALF, f = task->f;
	size_t row = (size_t)(t->row + local);
	bool live = row < (size_t)t->end;
	float weight = live ? task->w[task->src[row]] : 0.0f, dot = 0;
	k3_bf16 *dgu = (k3_bf16 *)task->out[0] + row * 2 * f + thread_col(t);

#pragma unroll
	for (int block = 0; block < 16; block += 4) {
		bool there = live && thread_col(t) + 8 * block < f;
		uint32_t g[4], u[4];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int in = 8 * (block + i) + 2 * (int)(threadIdx.x & 3);
			g[i] = saved_pair(saved_g, local, in);
			u[i] = saved_pair(saved_u, local, in);
		}
		dot += hidden_pairs(g, u, d, 4 * block + 2 * HALF, weight, task);
		store_turned(dgu + 8 * block, g, there);
		store_turned(dgu + f + 8 * block, u, there);
	}
	dot += __shfl_xor_sync(0xffffffffu, dot, 1);
	dot += __shfl_xor_sync(0xffffffffu, dot, 2);
	if (live && (threadIdx.x & 3) == 0)
		task->part[row * task->parts + t->col / TILE] = dot;
}

static __device__ __forceinline__ void
finish_hidden(const struct expert_task *task, const struct tile *t, const float (&d)[64],
	      uint32_t saved_g, uint32_t saved_u)
{
	finish_hidden_half<0>(task, t, d, saved_g, saved_u);
	finish_hidden_half<1>(task, t, d, saved_g, saved_u);
}

/* Rows as they are; `width` columns. */
static __device__ __forceinline__ void
finish_rows(const struct expert_task *task, const struct tile *t, const float (&d)[64], int width)
{
#pragma unroll
	for (int part = 0; part < 8; part++) {
		const int half = part >> 2, block = (part & 3) * 4;
		size_t row = (size_t)(thread_row(t) + 8 * half);
		k3_bf16 *out = (k3_bf16 *)task->out[0] + row * width + thread_col(t);
		uint32_t w[4];
#pragma unroll
		for (int i = 0; i < 4; i++)
			w[i] = pair(d[4 * (block + i) + 2 * half],
				    d[4 * (block + i) + 2 * half + 1]);
		store_turned(out + 8 * block, w,
			     row < (size_t)t->end && thread_col(t) + 8 * block < width);
	}
}

/* The tile of the first columns adds up dwt of its rows. */
static __device__ __forceinline__ void
sum_parts(const struct expert_task *task, const struct tile *t)
{
	size_t row = (size_t)t->row + threadIdx.x;
	float sum = 0;

	if (t->col > 0 || threadIdx.x >= tile_rows<D_LATENT>() || row >= (size_t)t->end)
		return;
	for (int i = 0; i < task->parts; i++)
		sum += task->part[row * task->parts + i];
	task->dwt[row] = sum;
}

/* Before the tile is computed: what it adds to comes nearer. */
static __device__ __forceinline__ void
expect_weights(const struct expert_task *task, const struct tile *t)
{
	size_t width = (size_t)(t->side ? task->f : task->r);
	int row = t->row + (int)(threadIdx.x >> 1), col = t->col + (int)(threadIdx.x & 1) * 64;
	const float *from = (const float *)task->out[t->side] +
			    ((size_t)t->expert * t->end + row) * width + col;

	if (!task->accumulate[t->side] || row >= t->end)
		return;
	for (int i = 0; i < 64; i += 32)
		if (col + i < (int)width)
			asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
}

static __device__ __forceinline__ void
finish_weights(const struct expert_task *task, const struct tile *t, const float (&d)[64])
{
	size_t width = (size_t)(t->side ? task->f : task->r);
	float *out = (float *)task->out[t->side] + (size_t)t->expert * t->end * width;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int row = thread_row(t) + 8 * half;
#pragma unroll
		for (int block = 0; block < 16; block++) {
			size_t col = (size_t)(t->col + 8 * block + 2 * (int)(threadIdx.x & 3));
			float2 *to = reinterpret_cast<float2 *>(out + row * width + col);
			float2 x =
				make_float2(d[4 * block + 2 * half], d[4 * block + 2 * half + 1]);
			if (row >= t->end || col >= width)
				continue;
			if (task->accumulate[t->side]) {
				float2 old = *to;
				x.x += old.x;
				x.y += old.y;
			}
			*to = x;
		}
	}
}

template <int PRODUCT>
static __device__ __forceinline__ void
finish(const struct expert_task *task, const struct tile *t, const float (&d)[64])
{
	if (PRODUCT == GATE_UP)
		finish_gate_up(task, t, d);
	else if (PRODUCT == WEIGHTS)
		finish_weights(task, t, d);
	else
		finish_rows(task, t, d, task->r);
	if (PRODUCT == D_LATENT)
		sum_parts(task, t);
}

#endif
