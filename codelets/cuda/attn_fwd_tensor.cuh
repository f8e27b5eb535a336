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
#include "attn_fwd_load.cuh"
#include "attn_fwd_rows.cuh"

/* s = Q K^T of a warpgroup's 64 queries. */
template <int KQ, int GROUPS>
static __device__ __forceinline__ void
fwd_scores(float *s, const struct fwd_work &w, const struct key_block &b, int group)
{
	uint32_t k = w.k + stage_of(b) * tile_bytes(FWD_KEYS, KQ);

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
	uint32_t v = w.v + stage_of(b) * tile_bytes(FWD_KEYS, V);

	wgmma_fence();
#pragma unroll
	for (int i = 0; i < FWD_KEYS / 16; i++)
		wgmma_rows<V>(out, weights + 4 * i, v, FWD_KEYS, i);
	wgmma_commit();
}

static __device__ __forceinline__ void
wait_keys(const struct fwd_work &w, const struct key_block &b)
{
	phase_wait(w.key_full + 8 * stage_of(b), phase_of(b));
}

static __device__ __forceinline__ void
wait_values(const struct fwd_work &w, const struct key_block &b)
{
	phase_wait(w.value_full + 8 * stage_of(b), phase_of(b));
}

/* Rows of a multiplying warpgroup: the thread's first in the block, its ids, where the warpgroup's
 * ids of keys are. */
struct fwd_rows {
	int group, row, query_id[2], *key_id;
};

/* What of a block the thread's rows must not see: keys behind last[], keys of other ids. */
struct fwd_edge {
	bool cut, even;
	int last[2];
};

static __device__ __forceinline__ struct fwd_edge
edge_of(const struct fwd_work &w, const struct fwd_rows &r, const struct key_block &b)
{
	const struct fwd_run run = w.plan->run[b.tile];
	int ahead = w.rows.row0 + w.q0 - run.row0 - b.row; /* of query 0 over key 0 */
	int end = run.to - 1 - b.row, last = w.causal ? ahead + r.row : FWD_KEYS;

	return {end < FWD_KEYS - 1 || (w.causal && ahead + 64 * r.group < FWD_KEYS - 1),
		run.even != 0,
		{min(last, end), min(last + 8, end)}};
}

static __device__ __forceinline__ void
fwd_mask(float *s, const struct fwd_work &w, const struct k3_attn_fwd &p, const struct fwd_rows &r,
	 const struct key_block &b, const struct fwd_edge &edge)
{
	int thread = threadIdx.x & (GROUP - 1);

	if (edge.cut)
		mask_columns<FWD_KEYS>(s, edge.last[0], edge.last[1]);
	if (edge.even)
		return;
	struct tile_rows rows = {p.klayout[b.tile], p.shape.ids, w.plan->run[b.tile].to, 0};
	group_sync(2 + r.group, GROUP);
	r.key_id[thread] = row_id(&rows, b.row + thread);
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
static __device__ __forceinline__ void
fwd_drain(const struct fwd_work &w, struct key_block *b, bool any)
{
	for (; any; any = next_block(b, w)) {
		wait_keys(w, *b);
		phase_release(w.key_empty + 8 * stage_of(*b));
		wait_values(w, *b);
		phase_release(w.value_empty + 8 * stage_of(*b));
	}
}

/* Weights of an item's first block; `next` becomes its successor.  Returns whether there is one. */
template <int KQ, int V, int GROUPS>
static __device__ __forceinline__ bool
fwd_first(float *out, uint32_t *weights, struct softmax *run, const struct fwd_work &w,
	  const struct k3_attn_fwd &p, const struct fwd_rows &r, struct key_block *next)
{
	struct key_block now = *next;
	float s[FWD_KEYS / 2], shift[2];
	struct fwd_edge edge = edge_of(w, r, now);
	bool another;

	wait_keys(w, now);
	shared_fence();
	fwd_scores<KQ, GROUPS>(s, w, now, r.group);
	another = next_block(next, w);
	wgmma_wait<0>();
	phase_release(w.key_empty + 8 * stage_of(now));
	fwd_mask(s, w, p, r, now, edge);
	softmax_block<FWD_KEYS>(s, shift, run, p.shape.scale * 1.44269504f);
	scale_output<V>(out, shift);
	round_weights<FWD_KEYS>(weights, s);
	return another;
}

/* Output of a warpgroup's queries of an item. */
template <int KQ, int V, int GROUPS>
static __device__ __forceinline__ void
fwd_multiply(struct fwd_work *w, const struct k3_attn_fwd &p, const struct fwd_rows &r,
	     struct key_block *next)
{
	struct key_block now, after;
	struct softmax run;
	struct fwd_edge edge;
	float out[V / 2], s[FWD_KEYS / 2], shift[2], scale = p.shape.scale * 1.44269504f;
	uint32_t weights[FWD_KEYS / 4];
	bool another = first_block(next, *w), loaded = another,
	     any = another && sees(*w, *next, r.group), more = false;

	if (!another && !p.first)
		return;
	now = *next;
	fwd_begin<V>(out, &run, p, w->head, w->q0 + r.row);
	if (loaded)
		phase_wait(w->query_full, w->loads & 1);
	if (any) {
		another = fwd_first<KQ, V, GROUPS>(out, weights, &run, *w, p, r, next);
		more = another && sees(*w, *next, r.group);
	}
	/* weights are those of block `now`, next is its successor */
	while (more) {
		wait_keys(*w, *next);
		wait_values(*w, now);
		shared_fence();
		fwd_scores<KQ, GROUPS>(s, *w, *next, r.group);
		fwd_values<V>(out, weights, *w, now);
		edge = edge_of(*w, r, *next);
		after = *next;
		another = next_block(&after, *w);
		more = another && sees(*w, after, r.group);
		wgmma_wait<1>();
		phase_release(w->key_empty + 8 * stage_of(*next));
		fwd_mask(s, *w, p, r, *next, edge);
		softmax_block<FWD_KEYS>(s, shift, &run, scale);
		wgmma_wait<0>();
		phase_release(w->value_empty + 8 * stage_of(now));
		scale_output<V>(out, shift);
		round_weights<FWD_KEYS>(weights, s);
		now = *next;
		*next = after;
	}
	if (loaded) {
		phase_release(w->query_empty);
		w->loads++;
	}
	if (any) {
		wait_values(*w, now);
		shared_fence();
		fwd_values<V>(out, weights, *w, now);
		wgmma_wait<0>();
		phase_release(w->value_empty + 8 * stage_of(now));
	}
	fwd_drain(*w, next, another);
	fwd_end<V>(out, &run, p, w->head, w->q0 + r.row, w->whole);
}

template <int KQ, int V, int GROUPS>
static __global__
__launch_bounds__(GROUP *(GROUPS + 1),
		  1) void attn_fwd_tensor(const __grid_constant__ struct k3_attn_fwd p, bool whole)
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
		for (; fwd_item<GROUPS>(&w, p, control->plan); w.round++) {
			phase_wait(w.plan_full + 8 * (w.round & 1), w.round >> 1 & 1);
			for (int h = 0; h < 2; h++) {
				int id = w.plan->even ? 0 : row_id(&w.rows, w.q0 + r.row + 8 * h);
				r.query_id[h] = id ? id : -1;
			}
			fwd_multiply<KQ, V, GROUPS>(&w, p, r, &b);
			phase_release(w.plan_empty + 8 * (w.round & 1));
		}
	}
}

#endif
