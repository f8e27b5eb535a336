/* What a thread of a multiplying warpgroup does with its rows of scores and gradients: masks,
 * powers, slopes, and where gradients go.  A thread has rows g and g + 8 of its warp's 16, of each
 * eight columns two.
 */
#ifndef K3_CUDA_ATTN_BWD_ROWS_CUH
#define K3_CUDA_ATTN_BWD_ROWS_CUH
#include "attn_bwd_load.cuh"

/* The thread's two rows of a warpgroup: the first one in the block, ids, and statistics where they
 * are queries. */
struct bwd_rows {
	int group, row, id[2];
	float lse[2], delta[2];
};

template <bool KEYS>
static __device__ __forceinline__ void
bwd_rows_of(struct bwd_rows *r, const struct k3_attn_bwd &p, const struct bwd_work &w)
{
#pragma unroll
	for (int h = 0; h < 2; h++) {
		int row = w.first + r->row + 8 * h, id = w.run.even ? 1 : row_id(&w.rows, row);
		size_t at = (size_t)row * p.shape.heads + w.head;
		bool there = !KEYS && row < w.rows.n && id;
		r->id[h] = id ? id : -1;
		r->lse[h] = there ? p.lse[at] * 1.44269504f : 0.0f;
		r->delta[h] = there ? p.delta[at] : 0.0f;
	}
}

/* Can a warpgroup see anything of a block? */
template <bool KEYS>
static __device__ __forceinline__ bool
sees(const struct bwd_work &w, const struct bwd_block &b, int group)
{
	int diagonal = w.shift + 64 * group - b.column; /* column of the first row */

	return !w.causal || (KEYS ? diagonal < BWD_COLS : diagonal + 63 >= 0);
}

/* Powers of other ids become zeros. */
static __device__ __forceinline__ void
bwd_mask_ids(float *s, const struct bwd_work &w, const struct bwd_rows &r,
	     const struct bwd_block &b)
{
	int *id = w.control->id[r.group], thread = threadIdx.x & (GROUP - 1);

	group_sync(2 + r.group, GROUP);
	if (thread < BWD_COLS)
		id[thread] = row_id(&w.cols, b.column + thread);
	group_sync(2 + r.group, GROUP);
#pragma unroll
	for (int i = 0; i < BWD_COLS / 2; i++) {
		int col = 8 * (i / 4) + 2 * (threadIdx.x & 3) + (i & 1);
		s[i] = id[col] == r.id[i >> 1 & 1] ? s[i] : 0.0f;
	}
}

/* Powers of what must not be seen become zeros, where there is any. */
template <bool KEYS>
static __device__ __forceinline__ bool
bwd_mask(float *s, const struct bwd_work &w, const struct bwd_rows &r, const struct bwd_block &b)
{
	int end = w.run.to - 1 - b.column, diagonal = w.shift + 64 * r.group - b.column;
	bool any = end < BWD_COLS - 1 ||
		   (w.causal && (KEYS ? diagonal > -64 : diagonal < BWD_COLS - 1));

	if (any) {
		int of_row = w.causal ? w.shift + r.row - b.column : KEYS ? -8 : BWD_COLS;
#pragma unroll
		for (int i = 0; i < BWD_COLS / 2; i++) {
			int col = 8 * (i / 4) + 2 * (threadIdx.x & 3) + (i & 1),
			    edge = of_row + (i & 2 ? 8 : 0);
			bool hidden = (KEYS ? col < edge : col > edge) | (col > end);
			s[i] = hidden ? 0.0f : s[i];
		}
	}
	if (!w.run.even)
		bwd_mask_ids(s, w, r, b);
	return any || !w.run.even;
}

/* S becomes P; returns whether something of it is hidden. */
template <bool KEYS>
static __device__ __forceinline__ bool
bwd_powers(float *s, const struct bwd_work &w, const struct bwd_rows &r, const struct bwd_block &b,
	   float scale)
{
	const struct bwd_columns *c = w.control->columns + b.at;

#pragma unroll
	for (int i = 0; i < BWD_COLS / 2; i++) {
		int col = 8 * (i / 4) + 2 * (threadIdx.x & 3) + (i & 1);
		float lse = KEYS ? c->lse[col] * 1.44269504f : r.lse[i >> 1 & 1];
		s[i] = power_of_2(s[i] * scale - lse);
	}
	return bwd_mask<KEYS>(s, w, r, b);
}

/* D becomes dS without its factor, with rounded powers.  Queries that are hidden may have a delta
 * that is no number. */
static __device__ __forceinline__ void
bwd_slopes_of_keys(float *d, const uint32_t *powers, const float *delta, bool hidden)
{
	int c0 = 2 * (threadIdx.x & 3);

#pragma unroll
	for (int i = 0; i < BWD_COLS / 4; i++) {
		float x = __uint_as_float(powers[i] << 16),
		      y = __uint_as_float(powers[i] & 0xffff0000);
		d[2 * i] = x * (d[2 * i] - delta[8 * (i / 2) + c0]);
		d[2 * i + 1] = y * (d[2 * i + 1] - delta[8 * (i / 2) + c0 + 1]);
	}
	if (!hidden)
		return;
#pragma unroll
	for (int i = 0; i < BWD_COLS / 4; i++) {
		d[2 * i] = powers[i] << 16 ? d[2 * i] : 0.0f;
		d[2 * i + 1] = powers[i] >> 16 ? d[2 * i + 1] : 0.0f;
	}
}

static __device__ __forceinline__ void
bwd_round(uint32_t *left, const float *s)
{
#pragma unroll
	for (int i = 0; i < BWD_COLS / 4; i++)
		left[i] = bf16_pair(s[2 * i], s[2 * i + 1]);
}

/* Two neighbouring elements of a gradient, of which `n` exist. */
static __device__ __forceinline__ void
store_pair(k3_bf16 *to, float x, float y, bool add, bool whole, int n)
{
	if (whole && n > 0) {
		uint32_t *pair = (uint32_t *)to, old = add ? *pair : 0;
		*pair = bf16_pair(x + __uint_as_float(old << 16),
				  y + __uint_as_float(old & 0xffff0000));
		return;
	}
	if (n > 0)
		to[0] = narrow<k3_bf16>(x + (add ? wide(to[0]) : 0.0f));
	if (n > 1)
		to[1] = narrow<k3_bf16>(y + (add ? wide(to[1]) : 0.0f));
}

/* One row of dQ, or of dK in its two places. */
template <int KQ, bool KEYS>
static __device__ __forceinline__ void
store_x(const float *dx, int h, const struct k3_attn_bwd &p, const struct bwd_work &w, int row)
{
	int nope = p.shape.nope, kq = nope + p.shape.rope, own = KEYS ? nope : kq;
	k3_bf16 *to = KEYS ? (k3_bf16 *)p.dkv + row * p.dkeys.ld + w.head * p.dkeys.head + p.dkeys.k
			   : (k3_bf16 *)p.dq.x + row * p.dq.ld + w.head * p.dq.head;
	float *shared = p.drope + ((size_t)w.head * p.tk + row) * p.shape.rope;

#pragma unroll
	for (int j = 0; j < KQ / 8; j++) {
		int c = 8 * j + 2 * (threadIdx.x & 3);
		float x = dx[4 * j + 2 * h] * p.shape.scale,
		      y = dx[4 * j + 2 * h + 1] * p.shape.scale;
		if (c < own)
			store_pair(to + c, x, y, KEYS ? p.add_dkv : p.add_dq, w.whole, own - c);
		if (KEYS && c >= own && c < kq)
			shared[c - own] = x;
		if (KEYS && c + 1 >= own && c + 1 < kq)
			shared[c + 1 - own] = y;
	}
}

template <int V>
static __device__ __forceinline__ void
store_y(const float *dy, int h, const struct k3_attn_bwd &p, const struct bwd_work &w, int row)
{
	k3_bf16 *to = (k3_bf16 *)p.dkv + row * p.dkeys.ld + w.head * p.dkeys.head + p.dkeys.v;

#pragma unroll
	for (int j = 0; j < V / 8; j++) {
		int c = 8 * j + 2 * (threadIdx.x & 3);
		store_pair(to + c, dy[4 * j + 2 * h], dy[4 * j + 2 * h + 1], p.add_dkv, w.whole,
			   p.shape.v - c);
	}
}

template <int KQ, bool KEYS, int V>
static __device__ __forceinline__ void
bwd_store(const float *dx, const float *dy, const struct k3_attn_bwd &p, const struct bwd_work &w,
	  const struct bwd_rows &r)
{
#pragma unroll
	for (int h = 0; h < 2; h++) {
		int row = w.first + r.row + 8 * h;
		if (row >= w.rows.n)
			continue;
		store_x<KQ, KEYS>(dx, h, p, w, row);
		if (KEYS)
			store_y<V>(dy, h, p, w, row);
	}
}

#endif
