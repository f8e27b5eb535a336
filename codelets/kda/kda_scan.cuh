/* What the walks over the states share: a block has BV columns of one head's state and goes from
 * chunk to chunk; the state stays in registers, KP / 16 row blocks dealt to four warps.  For
 * products it is rounded to the type of tiles in shared memory; sums are float.
 */
#ifndef K3_KDA_SCAN_CUH
#define K3_KDA_SCAN_CUH

#include "kda_chunk.cuh"

enum { SCAN_THREADS = 128, SCAN_WARPS = 4 };

/* Element i < 8 of a lane in a 16 x 16 piece: its row and column. */
static __device__ __forceinline__ int
piece_row(int i)
{
	return (int)(threadIdx.x & 31) / 4 + (i >> 1 & 1) * 8;
}

static __device__ __forceinline__ int
piece_col(int i)
{
	return (int)(threadIdx.x & 3) * 2 + (i & 1) + (i >> 2) * 8;
}

/** Columns col .. col+15 of a state [KP, 16]; m(i): row block i of this warp. */
template <int KP> struct scan_state {
	static const int blocks = KP / 16, mine = (blocks + SCAN_WARPS - 1) / SCAN_WARPS;
	float x[mine][2][4];
};

/* What a chunk needs beside its tiles; asked for long before it is used. */
template <int KP> struct scan_ahead {
	float last[KP];
	int order[64];
};

/** Copies exp(G_last) and the row numbers of a chunk; part of the caller's group of copies. */
template <int KP>
static __device__ __forceinline__ void
ahead_fetch(struct scan_ahead<KP> *to, const struct kda_task &x, const struct kda_entry &e,
	    size_t head)
{
	size_t slot = e.to >= 0 ? (size_t)e.to : x.work.slots;
	const float *last = x.work.last + (head * (x.work.slots + 1) + slot) * KP;
	const int32_t *order = kda_order(x.layout) + e.row;
	int i = (int)threadIdx.x;

	if (e.to != KDA_NONE && i < KP / 4)
		copy_async(to->last + 4 * i, last + 4 * i, true);
	if (i < e.n)
		copy_async_word(to->order + i, order + i);
}

/** Columns of a block in rows of an array by position, n of them. */
template <typename T>
static __device__ __forceinline__ void
columns_fetch(T *to, const T *from, size_t vp, int n)
{
	const int pack = 16 / sizeof(T), packs = KDA_BV / pack;

	for (int i = (int)threadIdx.x; i < 64 * packs; i += SCAN_THREADS) {
		int r = i / packs, c = i % packs * pack;

		copy_async(to + r * tile_ld<T>(KDA_BV) + c, from + (r < n ? (size_t)r * vp + c : 0),
			   r < n);
	}
}

#define EACH_STATE_BLOCK(m)                                                                        \
	for (int m = 0; m < scan_state<KP>::mine; m++)                                             \
		if (m * SCAN_WARPS + (int)(threadIdx.x >> 5) < scan_state<KP>::blocks)

/** First row of the warp's row block m. */
static __device__ __forceinline__ int
state_row(int m)
{
	return (m * SCAN_WARPS + (int)(threadIdx.x >> 5)) * 16;
}

/** From a float state [k, v] of one head, or zeros (NULL). */
template <int KP>
static __device__ __forceinline__ void
state_load(struct scan_state<KP> *s, const float *from, int col, size_t k, size_t v)
{
#pragma unroll
	EACH_STATE_BLOCK(m)
#pragma unroll
	for (int i = 0; i < 8; i++) {
		size_t r = (size_t)(state_row(m) + piece_row(i)), c = (size_t)(col + piece_col(i));

		s->x[m][i >> 2][i & 3] = from && r < k && c < v ? from[r * v + c] : 0.0f;
	}
}

template <int KP>
static __device__ __forceinline__ void
state_store(float *to, const struct scan_state<KP> &s, int col, size_t k, size_t v)
{
#pragma unroll
	EACH_STATE_BLOCK(m)
#pragma unroll
	for (int i = 0; i < 8; i++) {
		size_t r = (size_t)(state_row(m) + piece_row(i)), c = (size_t)(col + piece_col(i));

		if (r < k && c < v)
			to[r * v + c] = s.x[m][i >> 2][i & 3];
	}
}

/** Rounded, into a tile [KP, 16] (rows of ld) or a slot [KP, VP] (ld = VP). */
template <typename T, int KP>
static __device__ __forceinline__ void
state_round(T *to, size_t ld, const struct scan_state<KP> &s)
{
#pragma unroll
	EACH_STATE_BLOCK(m)
#pragma unroll
	for (int i = 0; i < 8; i++)
		to[(size_t)(state_row(m) + piece_row(i)) * ld + piece_col(i)] =
			narrow<T>(s.x[m][i >> 2][i & 3]);
}

/** Row r times decay[r]; NULL: all become zero. */
template <int KP>
static __device__ __forceinline__ void
state_decay(struct scan_state<KP> *s, const float *decay)
{
#pragma unroll
	EACH_STATE_BLOCK(m)
#pragma unroll
	for (int i = 0; i < 8; i++)
		s->x[m][i >> 2][i & 3] =
			decay ? s->x[m][i >> 2][i & 3] * decay[state_row(m) + piece_row(i)] : 0.0f;
}

/** s += a^T b with a [64, KP] and b [64, 16]. */
template <typename T, int KP>
static __device__ __forceinline__ void
state_add(struct scan_state<KP> *s, const T *a, const T *b)
{
#pragma unroll
	EACH_STATE_BLOCK(m)
	product<true, false, sizeof(T) == 4, 1>(s->x[m], a + state_row(m), tile_ld<T>(KP), b,
						tile_ld<T>(16), 4);
}

#endif
