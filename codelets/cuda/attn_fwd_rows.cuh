/* What a thread of a multiplying warpgroup does with its rows of scores, weights and output: masks,
 * the running softmax, first and last values.  A thread has rows g and g + 8 of its warp's 16, of
 * each eight columns two.  The trap: a row that has seen no key yet has the maximum -inf. */
#ifndef K3_CUDA_ATTN_FWD_ROWS_CUH
#define K3_CUDA_ATTN_FWD_ROWS_CUH
#include "attn_tiles.cuh"

struct softmax {
	float most[2], sum[2]; /* maximum in units of log 2; this thread's columns of the sum */
};

/* Scores become weights; shift is what the output of each row has to be scaled by. */
template <int N>
static __device__ __forceinline__ void
softmax_block(float *s, float *shift, struct softmax *run, float scale)
{
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float most = -INFINITY, base, sum[2] = {0, 0};
#pragma unroll
		for (int j = 0; j < N / 8; j++)
			most = fmaxf(most, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
		most = fmaxf(most * scale, run->most[h]);
		base = most == -INFINITY ? 0.0f : most;
		shift[h] = power_of_2(run->most[h] - base);
		run->most[h] = most;
#pragma unroll
		for (int j = 0; j < N / 8; j++)
#pragma unroll
			for (int c = 0; c < 2; c++) {
				float x = power_of_2(s[4 * j + 2 * h + c] * scale - base);
				s[4 * j + 2 * h + c] = x;
				sum[c] += x;
			}
		run->sum[h] = run->sum[h] * shift[h] + (sum[0] + sum[1]);
	}
}

/* Most blocks raise no maximum. */
template <int V>
static __device__ __forceinline__ void
scale_output(float *out, const float *shift)
{
	if (!__any_sync(0xffffffffu, shift[0] != 1.0f || shift[1] != 1.0f))
		return;
#pragma unroll
	for (int i = 0; i < V / 2; i++)
		out[i] *= shift[i >> 1 & 1];
}

template <int N>
static __device__ __forceinline__ void
round_weights(uint32_t *to, const float *s)
{
#pragma unroll
	for (int i = 0; i < N / 4; i++)
		to[i] = bf16_pair(s[2 * i], s[2 * i + 1]);
}

/* Hides columns behind `last` of each of the two rows. */
template <int N>
static __device__ __forceinline__ void
mask_columns(float *s, int last0, int last1)
{
	int c0 = 2 * (threadIdx.x & 3);

#pragma unroll
	for (int j = 0; j < N / 8; j++)
#pragma unroll
		for (int c = 0; c < 2; c++) {
			s[4 * j + c] = 8 * j + c0 + c <= last0 ? s[4 * j + c] : -INFINITY;
			s[4 * j + 2 + c] = 8 * j + c0 + c <= last1 ? s[4 * j + 2 + c] : -INFINITY;
		}
}

/* Hides columns of other ids. */
template <int N>
static __device__ __forceinline__ void
mask_ids(float *s, const int *key_id, int id0, int id1)
{
	int c0 = 2 * (threadIdx.x & 3);

#pragma unroll
	for (int j = 0; j < N / 8; j++)
#pragma unroll
		for (int c = 0; c < 2; c++) {
			int id = key_id[8 * j + c0 + c];
			s[4 * j + c] = id == id0 ? s[4 * j + c] : -INFINITY;
			s[4 * j + 2 + c] = id == id1 ? s[4 * j + 2 + c] : -INFINITY;
		}
}

/* Sums of earlier ranges, or none. */
template <int V>
static __device__ __forceinline__ void
fwd_begin(float *out, struct softmax *run, const struct k3_attn_fwd &p, int head, int row0)
{
#pragma unroll
	for (int h = 0; h < 2; h++) {
		int row = row0 + 8 * h;
		float lse = -INFINITY;
		if (!p.first && row < p.t)
			lse = p.lse[(size_t)row * p.shape.heads + head];
		bool any = lse != -INFINITY;
		const k3_bf16 *o = (const k3_bf16 *)p.o.x + head * p.o.head + row * p.o.ld;
		run->most[h] = lse * 1.44269504f;
		run->sum[h] = any && (threadIdx.x & 3) == 0 ? 1.0f : 0.0f;
#pragma unroll
		for (int j = 0; j < V / 8; j++)
#pragma unroll
			for (int c = 0; c < 2; c++) {
				int col = 8 * j + 2 * (threadIdx.x & 3) + c;
				out[4 * j + 2 * h + c] =
					any && col < p.shape.v ? wide(o[col]) : 0.0f;
			}
	}
}

template <int V>
static __device__ __forceinline__ void
fwd_end(const float *out, const struct softmax *run, const struct k3_attn_fwd &p, int head,
	int row0, bool whole)
{
#pragma unroll
	for (int h = 0; h < 2; h++) {
		int row = row0 + 8 * h;
		float sum = run->sum[h], by;
		sum += __shfl_xor_sync(0xffffffffu, sum, 1);
		sum += __shfl_xor_sync(0xffffffffu, sum, 2);
		if (row >= p.t)
			continue;
		by = sum == 0.0f ? 0.0f : 1.0f / sum;
		k3_bf16 *o = (k3_bf16 *)p.o.x + head * p.o.head + row * p.o.ld;
		if ((threadIdx.x & 3) == 0)
			p.lse[(size_t)row * p.shape.heads + head] =
				sum == 0.0f ? -INFINITY
					    : (run->most[h] + log2f(sum)) * 0.693147181f;
#pragma unroll
		for (int j = 0; j < V / 8; j++) {
			int col = 8 * j + 2 * (threadIdx.x & 3);
			float x = out[4 * j + 2 * h] * by, y = out[4 * j + 2 * h + 1] * by;
			if (whole && col < p.shape.v) {
				*(uint32_t *)(o + col) = bf16_pair(x, y);
				continue;
			}
			if (col < p.shape.v)
				o[col] = narrow<k3_bf16>(x);
			if (col + 1 < p.shape.v)
				o[col + 1] = narrow<k3_bf16>(y);
		}
	}
}

#endif
