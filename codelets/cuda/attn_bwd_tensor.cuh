/* Backward attention in bf16 through warpgroup products.
 *
 * One pass has keys as rows and sums dK and dV over blocks of queries, the other has queries as
 * rows and sums dQ over blocks of keys; nothing is shared between blocks of the grid, so sums have
 * one order.  Both are the same algorithm on (rows x, y) and (columns x, y), where a key's x and y
 * are K and V, a query's Q and dA: S = x x^T, D = y y^T, P = exp(scale S - lse), dS = P (D -
 * delta), then dx = scale dS x and, for keys, dy = P y.  128 rows stay in shared memory, 64
 * columns at a time pass by; P and dS are rounded as left operands in registers.
 */
#ifndef K3_CUDA_ATTN_BWD_TENSOR_CUH
#define K3_CUDA_ATTN_BWD_TENSOR_CUH
#include "attn_tiles.cuh"

enum { BWD_ROWS = 128, BWD_COLS = 64 };

/* Ids and statistics of the columns at work. */
struct bwd_columns {
	int id[BWD_COLS];
	float lse[BWD_COLS], delta[BWD_COLS];
};

template <int KQ, int V> struct bwd_shared {
	static const int x = tile_bytes(BWD_ROWS, KQ), y = tile_bytes(BWD_ROWS, V),
			 column_x = tile_bytes(BWD_COLS, KQ),
			 stage = column_x + tile_bytes(BWD_COLS, V),
			 bytes = 1024 + x + y + 2 * stage + 2 * (int)sizeof(struct bwd_columns) +
				 BWD_ROWS * 4;
};

/* A block of the grid: its side of the scores and the other one. */
struct bwd_work {
	struct side<k3_bf16> of_rows, of_cols;
	struct tile_rows rows, cols;
	struct run all, run;  /* of rows, of columns */
	int head, first, row; /* rows: the block's first; the thread's first in the block */
	bool causal, whole;
	uint32_t own, stages; /* tiles */
	struct bwd_columns *columns;
	int *row_ids;
};

/* Where things lie in shared memory. */
template <int KQ, int V>
static __device__ __forceinline__ void
bwd_place(struct bwd_work *w)
{
	using sizes = bwd_shared<KQ, V>;
	unsigned char *base = shared_base();

	w->own = shared_address(base);
	w->stages = w->own + sizes::x + sizes::y;
	w->columns = (struct bwd_columns *)(base + sizes::x + sizes::y + 2 * sizes::stage);
	w->row_ids = (int *)(w->columns + 2);
	w->row = (threadIdx.x >> 5) * 16 + (threadIdx.x & 31) / 4;
}

template <bool KEYS>
static __device__ __forceinline__ void
bwd_begin(struct bwd_work *w, const struct k3_attn_bwd &p, bool whole)
{
	w->head = blockIdx.x;
	w->first = (int)(KEYS ? blockIdx.y : gridDim.y - 1 - blockIdx.y) * BWD_ROWS;
	w->whole = whole;
	w->causal = p.shape.ids == K3_ATTN_DOCUMENTS;
	struct side<k3_bf16> keys = key_side<k3_bf16>(&p.shape, &p.keys, p.kv, w->head),
			     queries = query_side<k3_bf16>(&p.shape, &p.q, &p.da, w->head);
	w->of_rows = KEYS ? keys : queries;
	w->of_cols = KEYS ? queries : keys;
	w->rows = tile_rows(KEYS ? p.klayout : p.layout, p.shape.ids);
	w->cols = tile_rows(KEYS ? p.layout : p.klayout, p.shape.ids);
	struct ids ids = block_ids(&w->rows, w->first, BWD_ROWS);
	int shift = w->rows.row0 + w->first - w->cols.row0; /* column of the first row */
	int begin = 0, end = w->cols.n;
	if (w->causal && KEYS)
		begin = shift;
	else if (w->causal)
		end = shift + BWD_ROWS;
	w->all = {0, w->rows.n, ids.one};
	w->run = partners(&w->cols, ids, begin, end);
}

/* Columns c0 .. into stage `at`. */
template <int KQ, int V, bool KEYS>
static __device__ __forceinline__ void
bwd_load(const struct k3_attn_bwd &p, const struct bwd_work &w, int c0, int at)
{
	uint32_t stage = w.stages + at * bwd_shared<KQ, V>::stage;
	struct bwd_columns *c = w.columns + at;
	uint32_t present = rows_present<BWD_COLS>(w.cols, w.run, c0);

	tile_load<BWD_COLS, KQ>(stage, x_of(&w.of_cols), present, c0, w.whole);
	tile_load<BWD_COLS, V>(stage + bwd_shared<KQ, V>::column_x, y_of(&w.of_cols), present, c0,
			       w.whole);
	ids_load<BWD_COLS>(c->id, w.cols, w.run, c0, -1);
	for (int i = threadIdx.x; KEYS && i < BWD_COLS; i += THREADS) {
		int row = c0 + i;
		size_t at = (size_t)row * p.shape.heads + w.head;
		bool there = row >= w.run.from && row < w.run.to;
		c->lse[i] = there ? p.lse[at] * 1.44269504f : 0.0f;
		c->delta[i] = there ? p.delta[at] : 0.0f;
	}
}

/* s = x x^T, d = y y^T of a warpgroup's 64 rows. */
template <int KQ, int V>
static __device__ __forceinline__ void
bwd_scores(float *s, float *d, uint32_t rows, uint32_t cols)
{
	using sizes = bwd_shared<KQ, V>;
	int row = 64 * (threadIdx.x >> 7);

	wgmma_fence();
#pragma unroll
	for (int i = 0; i < KQ / 16; i++)
		wgmma_shared<BWD_COLS>(s, k_major(rows, BWD_ROWS, row, i),
				       k_major(cols, BWD_COLS, 0, i), i > 0);
#pragma unroll
	for (int i = 0; i < V / 16; i++)
		wgmma_shared<BWD_COLS>(d, k_major(rows + sizes::x, BWD_ROWS, row, i),
				       k_major(cols + sizes::column_x, BWD_COLS, 0, i), i > 0);
	wgmma_commit();
}

/* What decides whether a thread's scores are seen: ids of its two rows; columns first .. last that
 * either may see. */
struct bwd_mask {
	bool any;
	int id[2], first[2], last[2];
};

/* Statistics of rows, where they are queries. */
struct bwd_stats {
	float lse[2], delta[2];
};

/* S becomes P, D becomes dS without its factor. */
template <bool KEYS>
static __device__ __forceinline__ void
bwd_weights(float *s, float *d, const struct bwd_columns *c, const struct bwd_mask &mask,
	    const struct bwd_stats &stats, float scale)
{
#pragma unroll
	for (int i = 0; i < BWD_COLS / 2; i++) {
		int col = 8 * (i / 4) + 2 * (threadIdx.x & 3) + (i & 1), h = i >> 1 & 1;
		float lse = KEYS ? c->lse[col] : stats.lse[h],
		      delta = KEYS ? c->delta[col] : stats.delta[h];
		float weight = power_of_2(s[i] * scale - lse), slope = weight * (d[i] - delta);
		if (mask.any) {
			bool seen = c->id[col] == mask.id[h] && col >= mask.first[h] &&
				    col <= mask.last[h];
			weight = seen ? weight : 0.0f;
			slope = seen ? slope : 0.0f;
		}
		s[i] = weight;
		d[i] = slope;
	}
}

template <int COLS>
static __device__ __forceinline__ void
bwd_sum(float *to, const float *s, uint32_t cols)
{
	uint32_t left[BWD_COLS / 4];

#pragma unroll
	for (int i = 0; i < BWD_COLS / 4; i++)
		left[i] = bf16_pair(s[2 * i], s[2 * i + 1]);
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < BWD_COLS / 16; i++)
		wgmma_rows<COLS>(to, left + 4 * i, cols, BWD_COLS, i);
	wgmma_commit();
}

/* One row of dQ, or of dK in its two places. */
template <int KQ, bool KEYS>
static __device__ __forceinline__ void
store_x(const float *dx, int h, const struct k3_attn_bwd &p, const struct bwd_work &w, int row)
{
	int nope = p.shape.nope, kq = nope + p.shape.rope;
	k3_bf16 *to = KEYS ? (k3_bf16 *)p.dkv + row * p.dkeys.ld + w.head * p.dkeys.head + p.dkeys.k
			   : (k3_bf16 *)p.dq.x + row * p.dq.ld + w.head * p.dq.head;
	float *shared = p.drope + ((size_t)w.head * p.tk + row) * p.shape.rope;

#pragma unroll
	for (int j = 0; j < KQ / 4; j++) {
		int c = 8 * (j / 2) + 2 * (threadIdx.x & 3) + (j & 1);
		float x = dx[4 * (j / 2) + 2 * h + (j & 1)] * p.shape.scale;
		bool add = KEYS ? p.add_dkv : p.add_dq;
		if (c < (KEYS ? nope : kq))
			to[c] = narrow<k3_bf16>(x + (add ? wide(to[c]) : 0.0f));
		else if (KEYS && c < kq)
			shared[c - nope] = x;
	}
}

template <int V>
static __device__ __forceinline__ void
store_y(const float *dy, int h, const struct k3_attn_bwd &p, const struct bwd_work &w, int row)
{
	k3_bf16 *to = (k3_bf16 *)p.dkv + row * p.dkeys.ld + w.head * p.dkeys.head + p.dkeys.v;

#pragma unroll
	for (int j = 0; j < V / 4; j++) {
		int c = 8 * (j / 2) + 2 * (threadIdx.x & 3) + (j & 1);
		float x = dy[4 * (j / 2) + 2 * h + (j & 1)];
		if (c < p.shape.v)
			to[c] = narrow<k3_bf16>(x + (p.add_dkv ? wide(to[c]) : 0.0f));
	}
}

/* The block's own rows. */
template <int KQ, int V>
static __device__ __forceinline__ void
bwd_load_rows(const struct bwd_work &w)
{
	uint32_t present = rows_present<BWD_ROWS>(w.rows, w.all, w.first);

	tile_load<BWD_ROWS, KQ>(w.own, x_of(&w.of_rows), present, w.first, w.whole);
	tile_load<BWD_ROWS, V>(w.own + bwd_shared<KQ, V>::x, y_of(&w.of_rows), present, w.first,
			       w.whole);
	ids_load<BWD_ROWS>(w.row_ids, w.rows, w.all, w.first, 0);
}

static __device__ __forceinline__ struct bwd_stats
row_stats(const struct k3_attn_bwd &p, const struct bwd_work &w)
{
	struct bwd_stats stats;

#pragma unroll
	for (int h = 0; h < 2; h++) {
		int row = w.first + w.row + 8 * h;
		size_t at = (size_t)row * p.shape.heads + w.head;
		stats.lse[h] = row < w.rows.n ? p.lse[at] * 1.44269504f : 0.0f;
		stats.delta[h] = row < w.rows.n ? p.delta[at] : 0.0f;
	}
	return stats;
}

/* Masks of the columns from c0 on. */
template <bool KEYS>
static __device__ __forceinline__ struct bwd_mask
mask_of(const struct bwd_work &w, int c0)
{
	int shift = w.rows.row0 + w.first - w.cols.row0 - c0; /* column of the first row */
	struct bwd_mask mask;

	mask.any = !w.run.even || c0 < w.run.from || c0 + BWD_COLS > w.run.to ||
		   (w.causal && (KEYS ? shift + BWD_ROWS > 1 : shift < BWD_COLS - 1));
#pragma unroll
	for (int h = 0; h < 2; h++) {
		int diagonal = shift + w.row + 8 * h;
		mask.id[h] = w.row_ids[w.row + 8 * h];
		mask.first[h] = w.causal && KEYS ? diagonal : 0;
		mask.last[h] = w.causal && !KEYS ? diagonal : BWD_COLS;
	}
	return mask;
}

template <int KQ, int V, bool KEYS>
static __global__
__launch_bounds__(THREADS, 1) void attn_bwd_tensor(const __grid_constant__ struct k3_attn_bwd p,
						   bool whole)
{
	using sizes = bwd_shared<KQ, V>;
	struct bwd_work w;
	struct bwd_stats stats = {};
	float dx[KQ / 2], dy[KEYS ? V / 2 : 1], s[BWD_COLS / 2], d[BWD_COLS / 2];
	int at = 0;

	bwd_place<KQ, V>(&w);
	bwd_begin<KEYS>(&w, p, whole);
	if (w.first >= w.rows.n)
		return;
#pragma unroll
	for (int i = 0; i < KQ / 2; i++)
		dx[i] = 0;
#pragma unroll
	for (int i = 0; i < (KEYS ? V / 2 : 1); i++)
		dy[i] = 0;
	if (!KEYS)
		stats = row_stats(p, w);
	int c0 = w.run.from / 8 * 8;
	if (c0 < w.run.to) {
		bwd_load_rows<KQ, V>(w);
		bwd_load<KQ, V, KEYS>(p, w, c0, 0);
	}
	copy_commit();
	for (; c0 < w.run.to; c0 += BWD_COLS, at ^= 1) {
		uint32_t cols = w.stages + at * sizes::stage;

		copy_wait<0>();
		__syncthreads();
		bwd_scores<KQ, V>(s, d, w.own, cols);
		if (c0 + BWD_COLS < w.run.to)
			bwd_load<KQ, V, KEYS>(p, w, c0 + BWD_COLS, at ^ 1);
		copy_commit();
		struct bwd_mask mask = mask_of<KEYS>(w, c0);
		wgmma_wait<0>();
		bwd_weights<KEYS>(s, d, w.columns + at, mask, stats, p.shape.scale * 1.44269504f);
		if (KEYS)
			bwd_sum<V>(dy, s, cols + sizes::column_x);
		bwd_sum<KQ>(dx, d, cols);
		wgmma_wait<0>();
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		int row = w.first + w.row + 8 * h;
		if (row >= w.rows.n)
			continue;
		store_x<KQ, KEYS>(dx, h, p, w, row);
		if (KEYS)
			store_y<V>(dy, h, p, w, row);
	}
}

#endif
