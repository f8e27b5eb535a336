/* Rows of a chunk from the task's buffers to tiles, and its decays.
 *
 * Decays are exponents of 2 and never positive: l is the sum of g inside a sub-block of 16 rows,
 * inclusive; before[b] sums the sub-blocks in front of b and behind[b] those after it.  The
 * trap: the difference of two long sums would lose what the last rows say, so behind[] is summed
 * by itself.
 */
#ifndef K3_KDA_ROWS_CUH
#define K3_KDA_ROWS_CUH

#include "kda_chunk.cuh"

static const float LOG2_E = 1.44269504f;

enum { PIVOT = 7 }; /* row of a sub-block, in its middle */

/** Whether decays inside a sub-block can be taken from its pivot in both directions. */
static __device__ __forceinline__ bool
kda_bounded(const struct k3_kda_chunk_args &a)
{
	return !a.raw && a.lower_bound >= -5.0f;
}

/** Columns of one head. */
template <typename T> struct kda_head {
	const T *q, *k, *v, *f, *br;
	size_t ld_qkv, ld_f, ld_br;
	const float *dt;
	float exp_a;
};

template <typename T>
static __device__ __forceinline__ struct kda_head<T>
kda_head_of(const struct kda_task &x, size_t i) {
	const struct k3_kda_chunk_args &a = x.a;
	size_t h = a.h0 + x.first + i;
	struct kda_head<T> r;

	r.ld_qkv = a.h * (2 * a.k + a.v);
	r.ld_f = a.h * a.k;
	r.ld_br = a.h;
	r.q = (const T *)x.qkv + h * a.k;
	r.k = (const T *)x.qkv + (a.h + h) * a.k;
	r.v = (const T *)x.qkv + 2 * a.h * a.k + h * a.v;
	r.f = (const T *)x.f + h * a.k;
	r.br = (const T *)x.br + h;
	r.dt = a.raw ? NULL : x.dt_bias + h * a.k;
	r.exp_a = a.raw ? 1.0f : expf(x.a_log[h]);
	return r;
}

/** to[64, COLS] = columns first .. first+COLS-1, of n rows in a matrix of `cols` used columns;
 * zeros elsewhere. */
template <typename S, typename T, int COLS, int THREADS>
static __device__ __forceinline__ void
rows_load(S *to, const T *from, size_t ld, const int32_t *order, int n, int first, int cols)
{
	const int pack = 16 / sizeof(T), packs = COLS / pack, ld_to = tile_ld<S>(COLS);
	/* every row and column block at 16 bytes */
	bool aligned = ((uintptr_t)from | ld * sizeof(T)) % 16 == 0 && cols % pack == 0;

	for (int i = (int)threadIdx.x; i < KDA_CHUNK * packs; i += THREADS) {
		int r = i / packs, c = i % packs * pack;
		const T *src = r < n ? from + (size_t)order[r] * ld + first + c : from;
		float x[pack];

		if (aligned && r < n && first + c < cols) {
			pack_load<T>(x, src);
		} else {
#pragma unroll
			for (int j = 0; j < pack; j++)
				x[j] = r < n && first + c + j < cols ? wide(src[j]) : 0.0f;
		}
#pragma unroll
		for (int j = 0; j < pack; j++)
			to[r * ld_to + c + j] = narrow<S>(x[j]);
	}
}

/** What rounding to bf16 takes from x. */
static __device__ __forceinline__ float
lost_in_bf16(float x)
{
	return x - wide(narrow<k3_bf16>(x));
}

/** 1 / (1 + exp(-x)), not by the fast division: gates are summed up. */
static __device__ __forceinline__ float
kda_sigmoid(float x)
{
	return 1.0f / (1.0f + expf(-x));
}

/** Its derivative, without the cancellation in 1 - beta; expf(|x|) may be infinite. */
static __device__ __forceinline__ float
kda_sigmoid_slope(float x)
{
	return kda_sigmoid(x) * kda_sigmoid(-x);
}

/** beta[64] of n rows, zeros behind. */
template <typename T, int THREADS>
static __device__ __forceinline__ void
beta_load(float *beta, const struct kda_head<T> &h, const struct k3_kda_chunk_args &a,
	  const int32_t *order, int n)
{
	for (int r = (int)threadIdx.x; r < KDA_CHUNK; r += THREADS) {
		float b = r < n ? wide(h.br[(size_t)order[r] * h.ld_br]) : 0.0f;

		beta[r] = r >= n ? 0.0f : a.raw ? b : kda_sigmoid(b);
	}
}

/** l[64, KP] = g in units of log 2 of n rows, zeros behind. */
template <typename T, int KP, int THREADS>
static __device__ __forceinline__ void
gates_load(float *l, const struct kda_head<T> &h, const struct k3_kda_chunk_args &a,
	   const int32_t *order, int n)
{
	const int ld = tile_ld<float>(KP);

	rows_load<float, T, KP, THREADS>(l, h.f, h.ld_f, order, n, 0, (int)a.k);
	__syncthreads();
	for (int i = (int)threadIdx.x; i < n * KP; i += THREADS) {
		int r = i / KP, c = i % KP;
		float g = l[r * ld + c];

		if (c < (int)a.k)
			l[r * ld + c] =
				LOG2_E *
				(a.raw ? g : a.lower_bound * kda_sigmoid(h.exp_a * (g + h.dt[c])));
	}
	__syncthreads();
}

/** g in l becomes its sums; before [5, KP], behind [4, KP]. */
template <int KP, int THREADS>
static __device__ __forceinline__ void
decays(float *l, float *before, float *behind)
{
	const int ld = tile_ld<float>(KP);

	for (int i = (int)threadIdx.x; i < 4 * KP; i += THREADS) {
		float sum = 0, *at = l + i / KP * KDA_SUB * ld + i % KP;

#pragma unroll
		for (int r = 0; r < KDA_SUB; r++) {
			sum += at[r * ld];
			at[r * ld] = sum;
		}
	}
	__syncthreads();
	for (int c = (int)threadIdx.x; c < KP; c += THREADS) {
		float sum = 0;

		for (int b = 0; b < 4; b++) {
			before[b * KP + c] = sum;
			sum += l[(b * KDA_SUB + KDA_SUB - 1) * ld + c];
		}
		before[4 * KP + c] = sum;
		sum = 0;
		for (int b = 3; b >= 0; b--) {
			behind[b * KP + c] = sum;
			sum += l[(b * KDA_SUB + KDA_SUB - 1) * ld + c];
		}
	}
	__syncthreads();
}

#endif
