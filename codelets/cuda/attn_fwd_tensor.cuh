/* Forward attention in bf16 through warpgroup products.
 *
 * An item of work is 64 queries of one head for each of two or three multiplying warpgroups; one
 * more warpgroup loads keys and values, two stages of each, and finds ahead of time which keys the
 * next item meets.  A block of the grid has several items.  The running softmax and the output
 * stay in registers, rounded weights are the left operand of the second product without leaving
 * them.  While the tensor cores multiply a block's weights and values, its successor's scores,
 * formed just before, become weights.  Earlier ranges are the beginning of the sums: maximum lse,
 * sum 1, output o.  The traps: loader and warpgroups count blocks of keys over all items, and
 * a warpgroup that sees nothing of the last blocks still takes and releases their stages.
 */
#ifndef K3_CUDA_ATTN_FWD_TENSOR_CUH
#define K3_CUDA_ATTN_FWD_TENSOR_CUH
#include "attn_fwd_rows.cuh"
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
fwd_place(struct fwd_work *w, const struct k3_attn_fwd &p, bool whole)
{
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

/* What a loader has started to bring is full once it is there. */
static __device__ __forceinline__ void
fwd_loaded(uint32_t full, bool whole)
{
	if (whole) {
		phase_arrive_copied(full);
	} else {
		shared_fence();
		phase_arrive(full);
	}
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
	fwd_loaded((VALUES ? w.value_full : w.key_full) + 8 * at, w.whole);
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
	fwd_loaded(w->query_full, w->whole);
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

/* s = Q K^T of a warpgroup's 64 queries. */
template <int KQ, int GROUPS>
static __device__ __forceinline__ void
fwd_scores(float *s, const struct fwd_work &w, const struct key_block &b, int group)
{
	uint32_t at = stage_of(b), k = w.k + at * tile_bytes(FWD_KEYS, KQ);

	phase_wait(w.key_full + 8 * at, phase_of(b));
	shared_fence();
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < KQ / 16; i++)
		wgmma_shared<FWD_KEYS>(s, k_major(w.q, 64 * GROUPS, 64 * group, i),
				       k_major(k, FWD_KEYS, 0, i), i > 0);
	wgmma_commit();
}

/* out += P V */
template <int V>
static __device__ __forceinline__ void
fwd_values(float *out, const uint32_t *weights, const struct fwd_work &w, const struct key_block &b)
{
	uint32_t at = stage_of(b), v = w.v + at * tile_bytes(FWD_KEYS, V);

	phase_wait(w.value_full + 8 * at, phase_of(b));
	shared_fence();
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < FWD_KEYS / 16; i++)
		wgmma_rows<V>(out, weights + 4 * i, v, FWD_KEYS, i);
	wgmma_commit();
}

/* Warpgroups issue products in turn, so that one has its scores while the other waits for them. */
#ifndef FWD_TURNS
#define FWD_TURNS 0
#endif
template <int GROUPS>
static __device__ __forceinline__ void
turn_begin(int group)
{
	if (FWD_TURNS && GROUPS == 2)
		group_sync(8 + group, 2 * GROUP);
}

template <int GROUPS>
static __device__ __forceinline__ void
turn_end(int group)
{
	if (FWD_TURNS && GROUPS == 2)
		group_arrive(8 + (group ^ 1), 2 * GROUP);
}

static __device__ __forceinline__ void
release(uint32_t empty)
{
	__syncwarp();
	if ((threadIdx.x & 31) == 0)
		phase_arrive(empty);
}

/* Rows of a consuming warpgroup: the thread's first in the block, its ids, where the warpgroup's
 * ids of keys are. */
struct fwd_rows {
	int group, row, query_id[2], *key_id;
};

/* Hides keys of a block that some query must not see, where there are any. */
static __device__ __forceinline__ void
fwd_mask(float *s, const struct fwd_work &w, const struct k3_attn_fwd &p, const struct fwd_rows &r,
	 const struct key_block &b)
{
	const struct fwd_run run = w.plan->run[b.tile];
	int ahead = w.rows.row0 + w.q0 - run.row0 - b.row; /* of query 0 over key 0 */
	int end = run.to - 1 - b.row, last = w.causal ? ahead + r.row : FWD_KEYS;

	if (end < FWD_KEYS - 1 || (w.causal && ahead + 64 * r.group < FWD_KEYS - 1))
		mask_columns<FWD_KEYS>(s, min(last, end), min(last + 8, end));
	if (run.even)
		return;
	struct tile_rows rows = {p.klayout[b.tile], p.shape.ids, run.to, run.row0};
	group_sync(2 + r.group, GROUP);
	r.key_id[threadIdx.x & (GROUP - 1)] = row_id(&rows, b.row + (threadIdx.x & (GROUP - 1)));
	group_sync(2 + r.group, GROUP);
	mask_ids<FWD_KEYS>(s, r.key_id, r.query_id[0], r.query_id[1]);
}

/* Can a warpgroup see anything of a block? */
static __device__ __forceinline__ bool
sees(const struct fwd_work &w, const struct key_block &b, int group)
{
	return !w.causal ||
	       w.rows.row0 + w.q0 + 64 * group + 63 >= w.plan->run[b.tile].row0 + b.row;
}

/* Takes and releases what is left. */
template <int GROUPS>
static __device__ __forceinline__ void
fwd_drain(const struct fwd_work &w, struct key_block *b, bool any, int number, int group)
{
	for (; any; any = next_block(b, w)) {
		if (b->number > number) {
			turn_begin<GROUPS>(group);
			turn_end<GROUPS>(group);
		}
		phase_wait(w.key_full + 8 * stage_of(*b), phase_of(*b));
		release(w.key_empty + 8 * stage_of(*b));
		phase_wait(w.value_full + 8 * stage_of(*b), phase_of(*b));
		release(w.value_empty + 8 * stage_of(*b));
	}
}

/* Output of a warpgroup's queries of an item. */
template <int KQ, int V, int GROUPS>
static __device__ __forceinline__ void
fwd_multiply(struct fwd_work *w, const struct k3_attn_fwd &p, const struct fwd_rows &r,
	     struct key_block *next)
{
	struct key_block now;
	struct softmax run;
	float out[V / 2], s[FWD_KEYS / 2], shift[2], scale = p.shape.scale * 1.44269504f;
	uint32_t weights[FWD_KEYS / 4];
	bool another = first_block(next, *w), loaded = another,
	     any = another && sees(*w, *next, r.group);
	int number = next->number;

	if (!another && !p.first)
		return;
	now = *next;
	fwd_begin<V>(out, &run, p, w->head, w->q0 + r.row);
	if (loaded)
		phase_wait(w->query_full, w->loads & 1);
	if (any) {
		fwd_scores<KQ, GROUPS>(s, *w, now, r.group);
		wgmma_wait<0>();
		release(w->key_empty + 8 * stage_of(now));
		fwd_mask(s, *w, p, r, now);
		softmax_block<FWD_KEYS>(s, shift, &run, scale);
		scale_output<V>(out, shift);
		round_weights<FWD_KEYS>(weights, s);
		another = next_block(next, *w);
	}
	/* weights are those of block `now`, next is its successor */
	while (another && sees(*w, *next, r.group)) {
		turn_begin<GROUPS>(r.group);
		fwd_scores<KQ, GROUPS>(s, *w, *next, r.group);
		fwd_values<V>(out, weights, *w, now);
		turn_end<GROUPS>(r.group);
		wgmma_wait<1>();
		release(w->key_empty + 8 * stage_of(*next));
		fwd_mask(s, *w, p, r, *next);
		softmax_block<FWD_KEYS>(s, shift, &run, scale);
		wgmma_wait<0>();
		release(w->value_empty + 8 * stage_of(now));
		scale_output<V>(out, shift);
		round_weights<FWD_KEYS>(weights, s);
		now = *next;
		another = next_block(next, *w);
	}
	if (loaded) {
		release(w->query_empty);
		w->loads++;
	}
	if (any) {
		fwd_values<V>(out, weights, *w, now);
		wgmma_wait<0>();
		release(w->value_empty + 8 * stage_of(now));
	}
	fwd_drain<GROUPS>(*w, next, another, number, r.group);
	fwd_end<V>(out, &run, p, w->head, w->q0 + r.row, w->whole);
}

template <int KQ, int V, int GROUPS>
static __global__ __launch_bounds__(GROUP *(GROUPS + 1), 1) void attn_fwd_tensor(
	const __grid_constant__ struct k3_attn_fwd p, bool whole)
{
	struct fwd_work w;
	struct key_block b = {0, 0, 0};
	struct fwd_control<GROUPS> *control = fwd_place<KQ, V, GROUPS>(&w, p, whole);
	int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0) - 1;

	fwd_barriers<GROUPS>(w);
	if (group < 0) {
		registers_less<GROUPS == 2 ? 40 : 32>();
		for (; fwd_item<GROUPS>(&w, p, control->plan); w.round++) {
			fwd_prepare<GROUPS>(w, p, threadIdx.x);
			load_item<KQ, V, GROUPS>(&w, p, &b, threadIdx.x);
		}
	} else {
		struct fwd_rows r;
		registers_more<GROUPS == 2 ? 232 : 160>();
		r.group = group;
		r.row = (threadIdx.x >> 5) * 16 - 64 + (threadIdx.x & 31) / 4;
		r.key_id = control->id[group];
		if (group == 1)
			turn_end<GROUPS>(1);
		for (; fwd_item<GROUPS>(&w, p, control->plan); w.round++) {
			phase_wait(w.plan_full + 8 * (w.round & 1), w.round >> 1 & 1);
			for (int h = 0; h < 2; h++) {
				int id = w.plan->even ? 0 : row_id(&w.rows, w.q0 + r.row + 8 * h);
				r.query_id[h] = id ? id : -1;
			}
			fwd_multiply<KQ, V, GROUPS>(&w, p, r, &b);
			release(w.plan_empty + 8 * (w.round & 1));
		}
	}
}

#endif
