/* Forward attention in bf16 through warpgroup products.
 *
 * A block of the grid has 64 queries of one head for each of its consuming warpgroups; one more
 * warpgroup loads keys and values, two stages of each.  The running softmax and the output stay in
 * registers, rounded weights are the left operand of the second product without leaving them.
 * While the tensor cores multiply a block's weights and values, its successor's scores, formed
 * just before, become weights.  Earlier ranges are the beginning of the sums: maximum lse, sum 1,
 * output o.  The trap: a warpgroup that sees nothing of the last blocks still takes and releases
 * their stages.
 */
#ifndef K3_CUDA_ATTN_FWD_TENSOR_CUH
#define K3_CUDA_ATTN_FWD_TENSOR_CUH
#include "attn_fwd_rows.cuh"
#include "pipeline.cuh"

enum { FWD_KEYS = 128, FWD_STAGES = 2 };

/* The keys of a tile that some query of the block can see. */
struct fwd_run {
	int from, to, even, row0;
};

/* Behind the tiles in shared memory. */
template <int GROUPS> struct fwd_control {
	uint64_t query_full, key_full[FWD_STAGES], key_empty[FWD_STAGES], value_full[FWD_STAGES],
		value_empty[FWD_STAGES];
	struct fwd_run run[K3_ATTN_TILES];
	int id[GROUPS][FWD_KEYS];
};

template <int KQ, int V, int GROUPS> struct fwd_shared {
	static const int queries = 64 * GROUPS, threads = GROUP * (GROUPS + 1),
			 q = tile_bytes(queries, KQ), k = tile_bytes(FWD_KEYS, KQ),
			 v = tile_bytes(FWD_KEYS, V), control = q + FWD_STAGES * (k + v),
			 bytes = 1024 + control + (int)sizeof(struct fwd_control<GROUPS>);
};

/* Where a block of the grid works; tiles and barriers by their shared addresses. */
struct fwd_work {
	struct tile_rows rows;
	struct ids ids;
	int head, q0, n_tiles;
	bool whole, causal;
	uint32_t q, k, v, query_full, key_full, key_empty, value_full, value_empty;
	struct fwd_run *run;
};

/* A block of keys: its tile and first row, and its number in the order of all of them. */
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
	while (b->tile < w.n_tiles && w.run[b->tile].from >= w.run[b->tile].to)
		b->tile++;
	if (b->tile == w.n_tiles)
		return false;
	b->row = w.run[b->tile].from;
	return true;
}

static __device__ __forceinline__ bool
first_block(struct key_block *b, const struct fwd_work &w)
{
	b->tile = b->number = 0;
	return next_tile(b, w);
}

static __device__ __forceinline__ bool
next_block(struct key_block *b, const struct fwd_work &w)
{
	b->number++;
	b->row += FWD_KEYS;
	if (b->row < w.run[b->tile].to)
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
	w->head = blockIdx.x;
	w->q0 = (int)(gridDim.y - 1 - blockIdx.y) * shared::queries;
	w->n_tiles = p.n_tiles;
	w->whole = whole;
	w->causal = p.shape.ids == K3_ATTN_DOCUMENTS;
	w->q = shared_address(base);
	w->k = w->q + shared::q;
	w->v = w->k + FWD_STAGES * shared::k;
	w->query_full = shared_address(&c->query_full);
	w->key_full = shared_address(c->key_full);
	w->key_empty = shared_address(c->key_empty);
	w->value_full = shared_address(c->value_full);
	w->value_empty = shared_address(c->value_empty);
	w->run = c->run;
	return c;
}

/* The runs of all tiles, and barriers; every thread of the block calls. */
template <int GROUPS, int QUERIES>
static __device__ __forceinline__ void
fwd_prepare(struct fwd_work *w, const struct k3_attn_fwd &p)
{
	int end_row = w->rows.row0 + min(w->q0 + QUERIES, w->rows.n);

	w->ids = block_ids(&w->rows, w->q0, QUERIES);
	for (int i = 0; i < w->n_tiles; i++) {
		struct tile_rows t = tile_rows(p.klayout[i], p.shape.ids);
		struct run run = partners(&t, w->ids, 0, w->causal ? end_row - t.row0 : t.n);
		if (threadIdx.x == 0)
			w->run[i] = {run.from, run.to, run.even, t.row0};
	}
	if (threadIdx.x == 0) {
		phase_init(w->query_full, GROUP);
		for (int i = 0; i < FWD_STAGES; i++) {
			phase_init(w->key_full + 8 * i, GROUP);
			phase_init(w->value_full + 8 * i, GROUP);
			phase_init(w->key_empty + 8 * i, 4 * GROUPS);
			phase_init(w->value_empty + 8 * i, 4 * GROUPS);
		}
	}
	__syncthreads();
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
	const struct fwd_run run = w.run[b.tile];
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

/* The loading warpgroup: keys are a block ahead of values, as they are needed. */
template <int KQ, int V, int GROUPS>
static __device__ __forceinline__ void
fwd_load(const struct fwd_work &w, const struct k3_attn_fwd &p, int thread)
{
	const int queries = 64 * GROUPS;
	struct side<k3_bf16> side = query_side<k3_bf16>(&p.shape, &p.q, nullptr, w.head);
	uint32_t present = rows_present<queries, GROUP>(w.rows, {0, w.rows.n, w.ids.one}, w.q0,
							thread);
	struct key_block next, now;
	bool another = first_block(&next, w), any = false;

	if (!another)
		return;
	tile_load<queries, KQ, GROUP>(w.q, x_of(&side), present, w.q0, w.whole, thread);
	fwd_loaded(w.query_full, w.whole);
	do {
		if (another)
			load_block<KQ, false>(w, p, next, thread);
		if (any)
			load_block<V, true>(w, p, now, thread);
		any = another;
		now = next;
		another = another && next_block(&next, w);
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
release(uint32_t empty, const struct key_block &b)
{
	if ((threadIdx.x & 31) == 0)
		phase_arrive(empty + 8 * stage_of(b));
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
	const struct fwd_run run = w.run[b.tile];
	int ahead = w.rows.row0 + w.q0 - run.row0 - b.row; /* of query 0 over key 0 */
	int end = run.to - 1 - b.row, last = w.causal ? ahead + r.row : FWD_KEYS;

	if (end < FWD_KEYS - 1 || (w.causal && ahead + 64 * r.group < FWD_KEYS - 1))
		mask_columns<FWD_KEYS>(s, min(last, end), min(last + 8, end));
	if (run.even)
		return;
	struct tile_rows rows = {p.klayout[b.tile], p.shape.ids, run.to, run.row0};
	group_sync(1 + r.group, GROUP);
	r.key_id[threadIdx.x & (GROUP - 1)] = row_id(&rows, b.row + (threadIdx.x & (GROUP - 1)));
	group_sync(1 + r.group, GROUP);
	mask_ids<FWD_KEYS>(s, r.key_id, r.query_id[0], r.query_id[1]);
}

/* Can a warpgroup see anything of a block? */
static __device__ __forceinline__ bool
sees(const struct fwd_work &w, const struct key_block &b, int group)
{
	return !w.causal ||
	       w.rows.row0 + w.q0 + 64 * group + 63 >= w.run[b.tile].row0 + b.row;
}

/* Takes and releases what is left. */
template <int GROUPS>
static __device__ __forceinline__ void
fwd_drain(const struct fwd_work &w, struct key_block b, bool any, int group)
{
	for (; any; any = next_block(&b, w)) {
		if (b.number > 0) {
			turn_begin<GROUPS>(group);
			turn_end<GROUPS>(group);
		}
		phase_wait(w.key_full + 8 * stage_of(b), phase_of(b));
		release(w.key_empty, b);
		phase_wait(w.value_full + 8 * stage_of(b), phase_of(b));
		release(w.value_empty, b);
	}
}

template <int KQ, int V, int GROUPS>
static __device__ __forceinline__ void
fwd_consume(const struct fwd_work &w, const struct k3_attn_fwd &p, const struct fwd_rows &r)
{
	struct key_block now, next;
	struct softmax run;
	float out[V / 2], s[FWD_KEYS / 2], shift[2], scale = p.shape.scale * 1.44269504f;
	uint32_t weights[FWD_KEYS / 4];
	bool another = first_block(&now, w), any = another && sees(w, now, r.group);

	next = now;
	if (r.group == 1)
		turn_end<GROUPS>(1);
	fwd_begin<V>(out, &run, p, w.head, w.q0 + r.row);
	if (any) {
		phase_wait(w.query_full, 0);
		fwd_scores<KQ, GROUPS>(s, w, now, r.group);
		wgmma_wait<0>();
		release(w.key_empty, now);
		fwd_mask(s, w, p, r, now);
		softmax_block<FWD_KEYS>(s, shift, &run, scale);
		scale_output<V>(out, shift);
		round_weights<FWD_KEYS>(weights, s);
		another = next_block(&next, w);
	}
	/* weights are those of block `now`, next is its successor */
	while (another && sees(w, next, r.group)) {
		turn_begin<GROUPS>(r.group);
		fwd_scores<KQ, GROUPS>(s, w, next, r.group);
		fwd_values<V>(out, weights, w, now);
		turn_end<GROUPS>(r.group);
		wgmma_wait<1>();
		release(w.key_empty, next);
		fwd_mask(s, w, p, r, next);
		softmax_block<FWD_KEYS>(s, shift, &run, scale);
		wgmma_wait<0>();
		release(w.value_empty, now);
		scale_output<V>(out, shift);
		round_weights<FWD_KEYS>(weights, s);
		now = next;
		another = next_block(&next, w);
	}
	if (any) {
		fwd_values<V>(out, weights, w, now);
		wgmma_wait<0>();
		release(w.value_empty, now);
	}
	fwd_drain<GROUPS>(w, next, another, r.group);
	fwd_end<V>(out, &run, p, w.head, w.q0 + r.row, w.whole);
}

template <int KQ, int V, int GROUPS>
static __global__ __launch_bounds__(GROUP *(GROUPS + 1), 1) void attn_fwd_tensor(
	const __grid_constant__ struct k3_attn_fwd p, bool whole)
{
	struct fwd_work w;
	struct key_block b;
	struct fwd_control<GROUPS> *control = fwd_place<KQ, V, GROUPS>(&w, p, whole);
	int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0) - 1;

	fwd_prepare<GROUPS, 64 * GROUPS>(&w, p);
	if (!p.first && !first_block(&b, w))
		return;
	if (group < 0) {
		registers_less<GROUPS == 2 ? 40 : 32>();
		fwd_load<KQ, V, GROUPS>(w, p, threadIdx.x);
	} else {
		struct fwd_rows r;
		registers_more<GROUPS == 2 ? 232 : 160>();
		r.group = group;
		r.row = (threadIdx.x >> 5) * 16 - 64 + (threadIdx.x & 31) / 4;
		r.key_id = control->id[group];
		for (int h = 0; h < 2; h++) {
			int id = w.ids.one ? 0 : row_id(&w.rows, w.q0 + r.row + 8 * h);
			r.query_id[h] = id ? id : -1;
		}
		fwd_consume<KQ, V, GROUPS>(w, p, r);
	}
}

#endif
