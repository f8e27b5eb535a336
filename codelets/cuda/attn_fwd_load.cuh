/* The loader's side of forward attention: which items of work a block of the grid has, which keys
 * an item meets, and how tiles come into shared memory.  The trap: loader and multiplying warpgroups
 * count blocks of keys over all items, and both walk the same plan.
 */
#ifndef K3_CUDA_ATTN_FWD_LOAD_CUH
#define K3_CUDA_ATTN_FWD_LOAD_CUH
#include "attn_tiles.cuh"
#include "pipeline.cuh"

enum { FWD_KEYS = 128, FWD_STAGES = 2 };

/* The keys of a tile that some query of the item can see. */
struct fwd_run {
	int from, to, even, row0;
};

/* What the loader found out about an item. */
struct fwd_plan {
	int one, even; /* all queries have one id; and all keys that they meet */
	struct fwd_run run[K3_ATTN_TILES];
};

/* Behind the tiles in shared memory. */
template <int GROUPS> struct fwd_control {
	uint64_t plan_full[2], plan_empty[2], query_full, query_empty, key_full[FWD_STAGES],
		key_empty[FWD_STAGES], value_full[FWD_STAGES], value_empty[FWD_STAGES];
	struct fwd_plan plan[2];
	int id[GROUPS][FWD_KEYS];
};

template <int KQ, int V, int GROUPS> struct fwd_shared {
	static const int queries = 64 * GROUPS, threads = GROUP * (GROUPS + 1),
			 q = tile_bytes(queries, KQ), k = tile_bytes(FWD_KEYS, KQ),
			 v = tile_bytes(FWD_KEYS, V), control = q + FWD_STAGES * (k + v),
			 bytes = 1024 + control + (int)sizeof(struct fwd_control<GROUPS>);
};

/* Where a role works; tiles and barriers by their shared addresses. */
struct fwd_work {
	struct tile_rows rows;
	int head, q0; /* of the item */
	int round;    /* number of the item among those of this block of the grid */
	int loads;    /* how many of them before had keys */
	int n_tiles;
	bool whole, causal;
	uint32_t q, k, v, plan_full, plan_empty, query_full, query_empty, key_full, key_empty,
		value_full, value_empty;
	struct fwd_plan *plan; /* of the item */
};

/* Items go back and forth over the blocks of the grid, heaviest first, so that all have alike. */
template <int GROUPS>
static __device__ __forceinline__ bool
fwd_item(struct fwd_work *w, const struct k3_attn_fwd &p, struct fwd_plan *plans)
{
	int there = (int)(w->round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
	int item = w->round * (int)gridDim.x + there, queries = 64 * GROUPS;
	int blocks = (p.t + queries - 1) / queries;

	w->head = item % p.shape.heads;
	w->q0 = (blocks - 1 - item / p.shape.heads) * queries;
	w->plan = plans + (w->round & 1);
	return item < blocks * p.shape.heads;
}

/* A block of keys: its tile and first row, and its number over all items. */
struct key_block {
	int tile, row, number;
};

static __device__ __forceinline__ uint32_t
stage_of(const struct key_block &b)
{
	return b.number & 1;
}

static __device__ __forceinline__ uint32_t
phase_of(const struct key_block &b)
{
	return b.number >> 1 & 1;
}

/* Skips tiles of which nothing can be seen. */
static __device__ __forceinline__ bool
next_tile(struct key_block *b, const struct fwd_work &w)
{
	const struct fwd_run *run = w.plan->run;

	while (b->tile < w.n_tiles && run[b->tile].from >= run[b->tile].to)
		b->tile++;
	if (b->tile == w.n_tiles)
		return false;
	b->row = run[b->tile].from;
	return true;
}

static __device__ __forceinline__ bool
first_block(struct key_block *b, const struct fwd_work &w)
{
	b->tile = 0;
	return next_tile(b, w);
}

static __device__ __forceinline__ bool
next_block(struct key_block *b, const struct fwd_work &w)
{
	b->number++;
	b->row += FWD_KEYS;
	if (b->row < w.plan->run[b->tile].to)
		return true;
	b->tile++;
	return next_tile(b, w);
}

template <int KQ, int V, int GROUPS>
static __device__ __forceinline__ struct fwd_control<GROUPS> *
fwd_place(struct fwd_work *w, const struct k3_attn_fwd &p, bool whole) {
	using shared = fwd_shared<KQ, V, GROUPS>;
	unsigned char *base = shared_base();
	struct fwd_control<GROUPS> *c = (struct fwd_control<GROUPS> *)(base + shared::control);

	w->rows = tile_rows(p.layout, p.shape.ids);
	w->round = w->loads = 0;
	w->n_tiles = p.n_tiles;
	w->whole = whole;
	w->causal = p.shape.ids == K3_ATTN_DOCUMENTS;
	w->q = shared_address(base);
	w->k = w->q + shared::q;
	w->v = w->k + FWD_STAGES * shared::k;
	w->plan_full = shared_address(c->plan_full);
	w->plan_empty = shared_address(c->plan_empty);
	w->query_full = shared_address(&c->query_full);
	w->query_empty = shared_address(&c->query_empty);
	w->key_full = shared_address(c->key_full);
	w->key_empty = shared_address(c->key_empty);
	w->value_full = shared_address(c->value_full);
	w->value_empty = shared_address(c->value_empty);
	return c;
}

template <int GROUPS>
static __device__ __forceinline__ void
fwd_barriers(const struct fwd_work &w)
{
	if (threadIdx.x == 0) {
		phase_init(w.query_full, GROUP);
		phase_init(w.query_empty, 4 * GROUPS);
		for (int i = 0; i < 2; i++) {
			phase_init(w.plan_full + 8 * i, GROUP);
			phase_init(w.plan_empty + 8 * i, 4 * GROUPS);
		}
		for (int i = 0; i < FWD_STAGES; i++) {
			phase_init(w.key_full + 8 * i, GROUP);
			phase_init(w.value_full + 8 * i, GROUP);
			phase_init(w.key_empty + 8 * i, 4 * GROUPS);
			phase_init(w.value_empty + 8 * i, 4 * GROUPS);
		}
	}
	__syncthreads();
}

/* The loaders find the runs of all tiles. */
template <int GROUPS>
static __device__ __forceinline__ void
fwd_prepare(const struct fwd_work &w, const struct k3_attn_fwd &p, int thread)
{
	const struct crew crew = {thread, GROUP, 1};
	const int queries = 64 * GROUPS, slot = w.round & 1;
	struct ids ids = block_ids(crew, &w.rows, w.q0, queries);
	bool even = true;

	phase_wait(w.plan_empty + 8 * slot, w.round >> 1 & 1 ^ 1);
	for (int i = 0; i < w.n_tiles; i++) {
		struct tile_rows t = tile_rows(p.klayout[i], p.shape.ids);
		int end = w.causal ? w.rows.row0 + min(w.q0 + queries, w.rows.n) - t.row0 : t.n;
		struct run run = partners(crew, &t, ids, 0, end);
		even = even && run.even;
		if (thread == 0)
			w.plan->run[i] = {run.from, run.to, run.even, t.row0};
	}
	if (thread == 0) {
		w.plan->one = ids.one;
		w.plan->even = even;
	}
	crew_sync(crew);
	phase_arrive(w.plan_full + 8 * slot);
}

template <int COLS, bool VALUES>
static __device__ __forceinline__ void
load_block(const struct fwd_work &w, const struct k3_attn_fwd &p, const struct key_block &b,
	   int thread)
{
	const struct fwd_run run = w.plan->run[b.tile];
	struct tile_rows rows = {p.klayout[b.tile], p.shape.ids, NO_ID, run.row0};
	struct side<k3_bf16> side = key_side<k3_bf16>(&p.shape, &p.keys, p.kv[b.tile], w.head);
	uint32_t present = rows_present<FWD_KEYS, GROUP>(rows, {run.from, run.to, run.even != 0},
							 b.row, thread),
		 at = stage_of(b);

	phase_wait((VALUES ? w.value_empty : w.key_empty) + 8 * at, phase_of(b) ^ 1);
	tile_load<FWD_KEYS, COLS, GROUP>((VALUES ? w.v : w.k) + at * tile_bytes(FWD_KEYS, COLS),
					 VALUES ? y_of(&side) : x_of(&side), present, b.row,
					 w.whole, thread);
	phase_loaded((VALUES ? w.value_full : w.key_full) + 8 * at, w.whole);
}

/* Queries, keys and values of an item; keys are a block ahead of values, as they are needed. */
template <int KQ, int V, int GROUPS>
static __device__ __forceinline__ void
load_item(struct fwd_work *w, const struct k3_attn_fwd &p, struct key_block *next, int thread)
{
	const int queries = 64 * GROUPS;
	struct side<k3_bf16> side = query_side<k3_bf16>(&p.shape, &p.q, nullptr, w->head);
	bool another = first_block(next, *w), any = false;
	struct key_block now;
	uint32_t present;

	if (!another)
		return;
	present = rows_present<queries, GROUP>(w->rows, {0, w->rows.n, w->plan->one != 0}, w->q0,
					       thread);
	phase_wait(w->query_empty, w->loads & 1 ^ 1);
	tile_load<queries, KQ, GROUP>(w->q, x_of(&side), present, w->q0, w->whole, thread);
	phase_loaded(w->query_full, w->whole);
	w->loads++;
	do {
		if (another)
			load_block<KQ, false>(*w, p, *next, thread);
		if (any)
			load_block<V, true>(*w, p, now, thread);
		any = another;
		now = *next;
		another = another && next_block(next, *w);
	} while (any);
}

#endif
