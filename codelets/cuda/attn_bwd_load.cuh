/* The loader's side of backward attention: which items of work a block of the grid has, which
 * columns an item meets, and how tiles come into shared memory.
 */
#ifndef K3_CUDA_ATTN_BWD_LOAD_CUH
#define K3_CUDA_ATTN_BWD_LOAD_CUH
#include "attn_tiles.cuh"
#include "pipeline.cuh"

enum { BWD_COLS = 64, BWD_STAGES = 3, BWD_GROUPS = 3 };

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
	int id[BWD_GROUPS][BWD_COLS]; /* of columns, for each warpgroup */
};

template <int KQ, int V, int GROUPS> struct bwd_shared {
	static const int rows = 64 * GROUPS, threads = GROUP * (GROUPS + 1),
			 x = tile_bytes(rows, KQ), y = tile_bytes(rows, V),
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
template <int KQ, int V, int GROUPS, bool KEYS>
static __device__ __forceinline__ void
bwd_begin(struct bwd_work *w, const struct k3_attn_bwd &p, bool whole)
{
	using sizes = bwd_shared<KQ, V, GROUPS>;
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
		phase_init(w->own_empty, 4 * GROUPS);
		for (int i = 0; i < 2; i++) {
			phase_init(w->plan_full + 8 * i, GROUP);
			phase_init(w->plan_empty + 8 * i, 4 * GROUPS);
		}
		for (int i = 0; i < BWD_STAGES; i++) {
			phase_init(w->full + 8 * i, GROUP);
			phase_init(w->empty + 8 * i, 4 * GROUPS);
		}
	}
	__syncthreads();
}

/* Items go back and forth over the blocks of the grid, heaviest first, so that all have alike. */
template <int GROUPS, bool KEYS>
static __device__ __forceinline__ bool
bwd_item(struct bwd_work *w, const struct k3_attn_bwd &p)
{
	int there = (int)(w->round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
	int item = w->round * (int)gridDim.x + there, nth = item / p.shape.heads;
	int rows = 64 * GROUPS, blocks = ((KEYS ? p.tk : p.t) + rows - 1) / rows;

	w->head = item % p.shape.heads;
	w->first = (KEYS ? nth : blocks - 1 - nth) * rows;
	w->shift = w->rows.row0 + w->first - w->cols.row0;
	return nth < blocks;
}

/* The loaders find the columns that the item meets. */
template <int GROUPS, bool KEYS>
static __device__ __forceinline__ struct run
bwd_prepare(struct bwd_work *w, int thread)
{
	const struct crew crew = {thread, GROUP, 1};
	const int slot = w->round & 1, rows = 64 * GROUPS;
	struct ids ids = block_ids(crew, &w->rows, w->first, rows);
	int begin = w->causal && KEYS ? w->shift : 0,
	    end = w->causal && !KEYS ? min(w->shift + rows, w->cols.n) : w->cols.n;

	w->run = partners(crew, &w->cols, ids, begin, end);
	phase_wait(w->plan_empty + 8 * slot, w->round >> 1 & 1 ^ 1);
	if (thread == 0)
		w->control->plan[slot] = {w->run.from, w->run.to, w->run.even};
	crew_sync(crew);
	phase_arrive(w->plan_full + 8 * slot);
	return {0, w->rows.n, ids.one};
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
template <int KQ, int V, int GROUPS, bool KEYS>
static __device__ __forceinline__ void
load_item(struct bwd_work *w, const struct k3_attn_bwd &p, const struct run &all,
	  struct bwd_block *b, int thread)
{
	using sizes = bwd_shared<KQ, V, GROUPS>;
	uint32_t present = rows_present<sizes::rows, GROUP>(w->rows, all, w->first, thread);
	struct side<k3_bf16> keys = key_side<k3_bf16>(&p.shape, &p.keys, p.kv, w->head),
			     queries = query_side<k3_bf16>(&p.shape, &p.q, &p.da, w->head);
	const struct source x = x_of(KEYS ? &queries : &keys), y = y_of(KEYS ? &queries : &keys),
			    own_x = x_of(KEYS ? &keys : &queries),
			    own_y = y_of(KEYS ? &keys : &queries);
	bool another = first_block(b, *w);

	if (!another)
		return;
	phase_wait(w->own_empty, w->loads++ & 1 ^ 1);
	tile_load<sizes::rows, KQ, GROUP>(w->own, own_x, present, w->first, w->whole, thread);
	tile_load<sizes::rows, V, GROUP>(w->own + sizes::x, own_y, present, w->first, w->whole,
					 thread);
	phase_loaded(w->own_full, w->whole);
	for (; another; another = next_block(b, *w)) {
		uint32_t stage = w->stages + b->at * sizes::stage;
		present = rows_present<BWD_COLS, GROUP>(w->cols, w->run, b->column, thread);
		phase_wait(w->empty + 8 * b->at, b->phase ^ 1);
		tile_load<BWD_COLS, KQ, GROUP>(stage, x, present, b->column, w->whole, thread);
		tile_load<BWD_COLS, V, GROUP>(stage + sizes::column_x, y, present, b->column,
					      w->whole, thread);
		if (KEYS)
			load_columns(*w, p, *b, thread);
		phase_loaded(w->full + 8 * b->at, w->whole);
	}
}

#endif
