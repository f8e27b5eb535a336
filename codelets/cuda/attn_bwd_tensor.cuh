/* Backward attention in bf16 through warpgroup products.
 *
 * One pass has keys as rows and sums dK and dV over blocks of queries, the other has queries as
 * rows and sums dQ over blocks of keys; nothing is shared between blocks of the grid, so sums have
 * one order.  Both are the same algorithm on (rows x, y) and (columns x, y), where a key's x and y
 * are K and V, a query's Q and dA: S = x x^T, D = y y^T, P = exp(scale S - lse), dS = P (D -
 * delta), then dx = scale dS x and, for keys, dy = P y.  128 rows stay in shared memory, 64 for
 * each of two warpgroups; a third one loads 64 columns at a time; P and dS are rounded as left
 * operands in registers.  Where registers suffice, the scores of the next columns are formed while
 * the sums of these are.  The trap: columns that a warpgroup cannot see are still taken and
 * released.
 */
#ifndef K3_CUDA_ATTN_BWD_TENSOR_CUH
#define K3_CUDA_ATTN_BWD_TENSOR_CUH
#include "attn_tiles.cuh"
#include "pipeline.cuh"

enum { BWD_ROWS = 128, BWD_COLS = 64, BWD_STAGES = 3, BWD_THREADS = 3 * GROUP };

/* Statistics of columns, where they are queries. */
struct bwd_columns {
	float lse[BWD_COLS], delta[BWD_COLS];
};

/* What the loader found out about an item: columns from .. to - 1; even: all of them and all rows
 * have one id. */
struct bwd_plan {
	int from, to, even;
};

/* Behind the tiles in shared memory. */
struct bwd_control {
	uint64_t plan_full[2], plan_empty[2], own_full, own_empty, full[BWD_STAGES],
		empty[BWD_STAGES];
	struct bwd_plan plan[2];
	struct bwd_columns columns[BWD_STAGES];
	int id[2][BWD_COLS]; /* of columns, for each warpgroup */
};

template <int KQ, int V> struct bwd_shared {
	static const int x = tile_bytes(BWD_ROWS, KQ), y = tile_bytes(BWD_ROWS, V),
			 column_x = tile_bytes(BWD_COLS, KQ),
			 stage = column_x + tile_bytes(BWD_COLS, V),
			 control = x + y + BWD_STAGES * stage,
			 bytes = 1024 + control + (int)sizeof(struct bwd_control);
};

/* Where a role works; tiles and barriers by their shared addresses. */
struct bwd_work {
	struct tile_rows rows, cols;
	struct run run;	 /* of columns, of the item */
	int head, first; /* of the item; first row */
	int shift;	 /* column of the first row */
	int round;	 /* number of the item among those of this block of the grid */
	int loads;	 /* how many of them before had columns */
	bool causal, whole;
	uint32_t own, stages, plan_full, plan_empty, own_full, own_empty, full, empty;
	struct bwd_control *control;
};

/* Columns at work: the first, stage and phase. */
struct bwd_block {
	int column;
	uint32_t at, phase;
};

static __device__ __forceinline__ bool
first_block(struct bwd_block *b, const struct bwd_work &w)
{
	b->column = w.run.from;
	return b->column < w.run.to;
}

static __device__ __forceinline__ bool
next_block(struct bwd_block *b, const struct bwd_work &w)
{
	b->column += BWD_COLS;
	b->at = b->at + 1 == BWD_STAGES ? 0 : b->at + 1;
	b->phase ^= b->at == 0;
	return b->column < w.run.to;
}

/* Where things lie in shared memory, and barriers; every thread of the block calls. */
template <int KQ, int V, bool KEYS>
static __device__ __forceinline__ void
bwd_begin(struct bwd_work *w, const struct k3_attn_bwd &p, bool whole)
{
	using sizes = bwd_shared<KQ, V>;
	unsigned char *base = shared_base();
	struct bwd_control *c = (struct bwd_control *)(base + sizes::control);

	w->rows = tile_rows(KEYS ? p.klayout : p.layout, p.shape.ids);
	w->cols = tile_rows(KEYS ? p.layout : p.klayout, p.shape.ids);
	w->round = w->loads = 0;
	w->whole = whole;
	w->causal = p.shape.ids == K3_ATTN_DOCUMENTS;
	w->control = c;
	w->own = shared_address(base);
	w->stages = w->own + sizes::x + sizes::y;
	w->plan_full = shared_address(c->plan_full);
	w->plan_empty = shared_address(c->plan_empty);
	w->own_full = shared_address(&c->own_full);
	w->own_empty = shared_address(&c->own_empty);
	w->full = shared_address(c->full);
	w->empty = shared_address(c->empty);
	if (threadIdx.x == 0) {
		phase_init(w->own_full, GROUP);
		phase_init(w->own_empty, 8);
		for (int i = 0; i < 2; i++) {
			phase_init(w->plan_full + 8 * i, GROUP);
			phase_init(w->plan_empty + 8 * i, 8);
		}
		for (int i = 0; i < BWD_STAGES; i++) {
			phase_init(w->full + 8 * i, GROUP);
			phase_init(w->empty + 8 * i, 8);
		}
	}
	__syncthreads();
}

/* Items go back and forth over the blocks of the grid, heaviest first, so that all have alike. */
template <bool KEYS>
static __device__ __forceinline__ bool
bwd_item(struct bwd_work *w, const struct k3_attn_bwd &p)
{
	int there = (int)(w->round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
	int item = w->round * (int)gridDim.x + there, nth = item / p.shape.heads;
	int blocks = ((KEYS ? p.tk : p.t) + BWD_ROWS - 1) / BWD_ROWS;

	w->head = item % p.shape.heads;
	w->first = (KEYS ? nth : blocks - 1 - nth) * BWD_ROWS;
	w->shift = w->rows.row0 + w->first - w->cols.row0;
	return nth < blocks;
}

/* The loaders find the columns that the item meets. */
template <bool KEYS>
static __device__ __forceinline__ struct run
bwd_prepare(struct bwd_work *w, int thread)
{
	const struct crew crew = {thread, GROUP, 1};
	const int slot = w->round & 1;
	struct ids ids = block_ids(crew, &w->rows, w->first, BWD_ROWS);
	int begin = w->causal && KEYS ? w->shift : 0,
	    end = w->causal && !KEYS ? min(w->shift + BWD_ROWS, w->cols.n) : w->cols.n;

	w->run = partners(crew, &w->cols, ids, begin, end);
	phase_wait(w->plan_empty + 8 * slot, w->round >> 1 & 1 ^ 1);
	if (thread == 0)
		w->control->plan[slot] = {w->run.from, w->run.to, w->run.even};
	crew_sync(crew);
	phase_arrive(w->plan_full + 8 * slot);
	return {0, w->rows.n, ids.one};
}

/* What a loader has started to bring is full once it is there. */
static __device__ __forceinline__ void
bwd_loaded(uint32_t full, bool whole)
{
	if (whole) {
		phase_arrive_copied(full);
	} else {
		copy_wait<0>();
		phase_arrive(full);
	}
}

/* Statistics of queries that are columns: 64 loaders bring lse, 64 delta. */
static __device__ __forceinline__ void
load_columns(const struct bwd_work &w, const struct k3_attn_bwd &p, const struct bwd_block &b,
	     int thread)
{
	struct bwd_columns *c = w.control->columns + b.at;
	int i = thread % BWD_COLS, row = b.column + i;
	const float *from = thread < BWD_COLS ? p.lse : p.delta;
	bool there = row < w.run.to;

	copy_4(shared_address((thread < BWD_COLS ? c->lse : c->delta) + i),
	       from + (there ? (size_t)row * p.shape.heads + w.head : 0), there);
}

/* Rows and columns of an item, all of whose rows are those of `all`. */
template <int KQ, int V, bool KEYS>
static __device__ __forceinline__ void
load_item(struct bwd_work *w, const struct k3_attn_bwd &p, const struct run &all,
	  struct bwd_block *b, int thread)
{
	using sizes = bwd_shared<KQ, V>;
	uint32_t present = rows_present<BWD_ROWS, GROUP>(w->rows, all, w->first, thread);
	struct side<k3_bf16> keys = key_side<k3_bf16>(&p.shape, &p.keys, p.kv, w->head),
			     queries = query_side<k3_bf16>(&p.shape, &p.q, &p.da, w->head);
	const struct source x = x_of(KEYS ? &queries : &keys), y = y_of(KEYS ? &queries : &keys),
			    own_x = x_of(KEYS ? &keys : &queries),
			    own_y = y_of(KEYS ? &keys : &queries);
	bool another = first_block(b, *w);

	if (!another)
		return;
	phase_wait(w->own_empty, w->loads++ & 1 ^ 1);
	tile_load<BWD_ROWS, KQ, GROUP>(w->own, own_x, present, w->first, w->whole, thread);
	tile_load<BWD_ROWS, V, GROUP>(w->own + sizes::x, own_y, present, w->first, w->whole,
				      thread);
	bwd_loaded(w->own_full, w->whole);
	for (; another; another = next_block(b, *w)) {
		uint32_t stage = w->stages + b->at * sizes::stage;
		present = rows_present<BWD_COLS, GROUP>(w->cols, w->run, b->column, thread);
		phase_wait(w->empty + 8 * b->at, b->phase ^ 1);
		tile_load<BWD_COLS, KQ, GROUP>(stage, x, present, b->column, w->whole, thread);
		tile_load<BWD_COLS, V, GROUP>(stage + sizes::column_x, y, present, b->column,
					      w->whole, thread);
		if (KEYS)
			load_columns(*w, p, *b, thread);
		bwd_loaded(w->full + 8 * b->at, w->whole);
	}
}

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

static __device__ __forceinline__ void
bwd_release(uint32_t empty)
{
	__syncwarp();
	if ((threadIdx.x & 31) == 0)
		phase_arrive(empty);
}

static __device__ __forceinline__ void
bwd_take(const struct bwd_work &w, const struct bwd_block &b)
{
	phase_wait(w.full + 8 * b.at, b.phase);
	shared_fence();
}

/* s = x x^T or y y^T of a warpgroup's 64 rows. */
template <int COLS>
static __device__ __forceinline__ void
bwd_scores(float *s, uint32_t rows, uint32_t cols, int group)
{
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < COLS / 16; i++)
		wgmma_shared<BWD_COLS>(s, k_major(rows, BWD_ROWS, 64 * group, i),
				       k_major(cols, BWD_COLS, 0, i), i > 0);
	wgmma_commit();
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
	bool any = end < BWD_COLS - 1 || (w.causal && (KEYS ? diagonal > -64
							    : diagonal < BWD_COLS - 1));

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

static __device__ __forceinline__ void
bwd_round(uint32_t *left, const float *s)
{
#pragma unroll
	for (int i = 0; i < BWD_COLS / 4; i++)
		left[i] = bf16_pair(s[2 * i], s[2 * i + 1]);
}

/* to += weights^T columns, one group of products */
template <int COLS>
static __device__ __forceinline__ void
bwd_sum(float *to, const uint32_t *left, uint32_t cols)
{
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < BWD_COLS / 16; i++)
		wgmma_rows<COLS>(to, left + 4 * i, cols, BWD_COLS, i);
	wgmma_commit();
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

/* dK and dV of a warpgroup's keys.  Registers: two sums, and in turn scores, rounded powers and
 * slopes of a block.  The next block's scores are formed beside this one's dK. */
template <int KQ, int V>
static __device__ __forceinline__ void
bwd_keys(float *dx, float *dy, const struct k3_attn_bwd &p, const struct bwd_work &w,
	 const struct bwd_rows &r, struct bwd_block *b, bool *another)
{
	using sizes = bwd_shared<KQ, V>;
	float s[BWD_COLS / 2], scale = p.shape.scale * 1.44269504f;
	uint32_t powers[BWD_COLS / 4], slopes[BWD_COLS / 4];
	struct bwd_block now = *b;
	bool hidden;

	if (!*another)
		return;
	bwd_take(w, now);
	bwd_scores<KQ>(s, w.own, w.stages + now.at * sizes::stage, r.group);
	wgmma_wait<0>();
	hidden = bwd_powers<true>(s, w, r, now, scale);
	for (;;) {
		uint32_t x = w.stages + now.at * sizes::stage, y = x + sizes::column_x;
		const float *delta = w.control->columns[now.at].delta;

		bwd_round(powers, s);
		bwd_scores<V>(s, w.own + sizes::x, y, r.group);
		bwd_sum<V>(dy, powers, y);
		wgmma_wait<0>();
		bwd_slopes_of_keys(s, powers, delta, hidden);
		bwd_round(slopes, s);
		*another = next_block(b, w);
		if (!*another)
			break;
		bwd_take(w, *b);
		bwd_scores<KQ>(s, w.own, w.stages + b->at * sizes::stage, r.group);
		bwd_sum<KQ>(dx, slopes, x);
		wgmma_wait<1>();
		hidden = bwd_powers<true>(s, w, r, *b, scale);
		wgmma_wait<0>();
		bwd_release(w.empty + 8 * now.at);
		now = *b;
	}
	bwd_sum<KQ>(dx, slopes, w.stages + now.at * sizes::stage);
	wgmma_wait<0>();
	bwd_release(w.empty + 8 * now.at);
}

/* Slopes of a block whose two scores are being formed, before BEHIND later groups of products. */
template <int BEHIND>
static __device__ __forceinline__ void
bwd_slopes(float *d, float *s, const struct k3_attn_bwd &p, const struct bwd_work &w,
	   const struct bwd_rows &r, const struct bwd_block &b)
{
	wgmma_wait<BEHIND + 1>();
	bwd_powers<false>(s, w, r, b, p.shape.scale * 1.44269504f);
	wgmma_wait<BEHIND>();
#pragma unroll
	for (int i = 0; i < BWD_COLS / 2; i++)
		d[i] = s[i] * (d[i] - r.delta[i >> 1 & 1]);
}

/* dQ of a warpgroup's queries; the next block's scores are formed beside the sum of this one. */
template <int KQ, int V>
static __device__ __forceinline__ void
bwd_queries(float *dx, const struct k3_attn_bwd &p, const struct bwd_work &w,
	    const struct bwd_rows &r, struct bwd_block *b, bool *another)
{
	using sizes = bwd_shared<KQ, V>;
	float s[BWD_COLS / 2], d[BWD_COLS / 2];
	uint32_t slopes[BWD_COLS / 4], x = w.stages + b->at * sizes::stage;
	struct bwd_block now = *b;

	if (!*another || !sees<false>(w, now, r.group))
		return;
	bwd_take(w, now);
	bwd_scores<KQ>(s, w.own, x, r.group);
	bwd_scores<V>(d, w.own + sizes::x, x + sizes::column_x, r.group);
	bwd_slopes<0>(d, s, p, w, r, now);
	bwd_round(slopes, d);
	for (;;) {
		*another = next_block(b, w);
		if (!*another || !sees<false>(w, *b, r.group))
			break;
		uint32_t next_x = w.stages + b->at * sizes::stage;
		bwd_take(w, *b);
		bwd_scores<KQ>(s, w.own, next_x, r.group);
		bwd_scores<V>(d, w.own + sizes::x, next_x + sizes::column_x, r.group);
		bwd_sum<KQ>(dx, slopes, x);
		bwd_slopes<1>(d, s, p, w, r, *b);
		wgmma_wait<0>();
		bwd_release(w.empty + 8 * now.at);
		bwd_round(slopes, d);
		now = *b;
		x = next_x;
	}
	bwd_sum<KQ>(dx, slopes, x);
	wgmma_wait<0>();
	bwd_release(w.empty + 8 * now.at);
}

/* Takes and releases blocks until one is seen. */
template <bool KEYS>
static __device__ __forceinline__ void
bwd_pass(const struct bwd_work &w, struct bwd_block *b, bool *another, int group, bool all)
{
	for (; *another && (all || !sees<KEYS>(w, *b, group)); *another = next_block(b, w)) {
		phase_wait(w.full + 8 * b->at, b->phase);
		bwd_release(w.empty + 8 * b->at);
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

/* Gradients of a warpgroup's rows of an item. */
template <int KQ, int V, bool KEYS>
static __device__ __forceinline__ void
bwd_multiply(struct bwd_work *w, const struct k3_attn_bwd &p, const struct bwd_rows &r,
	     struct bwd_block *b)
{
	float dx[KQ / 2], dy[KEYS ? V / 2 : 1];
	bool another = first_block(b, *w), loaded = another;

#pragma unroll
	for (int i = 0; i < KQ / 2; i++)
		dx[i] = 0;
#pragma unroll
	for (int i = 0; i < (KEYS ? V / 2 : 1); i++)
		dy[i] = 0;
	if (loaded)
		phase_wait(w->own_full, w->loads & 1);
	bwd_pass<KEYS>(*w, b, &another, r.group, false);
	if (KEYS)
		bwd_keys<KQ, V>(dx, dy, p, *w, r, b, &another);
	else
		bwd_queries<KQ, V>(dx, p, *w, r, b, &another);
	if (loaded) {
		bwd_release(w->own_empty);
		w->loads++;
	}
	bwd_pass<KEYS>(*w, b, &another, r.group, true);
	bwd_store<KQ, KEYS, V>(dx, dy, p, *w, r);
}

template <int KQ, int V, bool KEYS>
static __global__
__launch_bounds__(BWD_THREADS, 1) void attn_bwd_tensor(const __grid_constant__ struct k3_attn_bwd p,
						       bool whole)
{
	struct bwd_work w;
	struct bwd_block b = {0, 0, 0};
	int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0) - 1;

	bwd_begin<KQ, V, KEYS>(&w, p, whole);
	if (group < 0) {
		registers_less<(KEYS && KQ > 128) ? 24 : 40>();
		for (; bwd_item<KEYS>(&w, p); w.round++) {
			struct run all = bwd_prepare<KEYS>(&w, threadIdx.x);
			load_item<KQ, V, KEYS>(&w, p, all, &b, threadIdx.x);
		}
	} else {
		struct bwd_rows r;
		registers_more<(KEYS && KQ > 128) ? 240 : 232>();
		r.group = group;
		r.row = (threadIdx.x >> 5) * 16 - 64 + (threadIdx.x & 31) / 4;
		for (; bwd_item<KEYS>(&w, p); w.round++) {
			const int slot = w.round & 1;
			phase_wait(w.plan_full + 8 * slot, w.round >> 1 & 1);
			const struct bwd_plan plan = w.control->plan[slot];
			w.run = {plan.from, plan.to, plan.even != 0};
			bwd_release(w.plan_empty + 8 * slot);
			bwd_rows_of<KEYS>(&r, p, w);
			bwd_multiply<KQ, V, KEYS>(&w, p, r, &b);
		}
	}
}

#endif
