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
		phase_release(w.key_empty + 8 * stage_of(*b));
		phase_wait(w.value_full + 8 * stage_of(*b), phase_of(*b));
		phase_release(w.value_empty + 8 * stage_of(*b));
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
		phase_release(w->key_empty + 8 * stage_of(now));
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
		phase_release(w->key_empty + 8 * stage_of(*next));
		fwd_mask(s, *w, p, r, *next);
		softmax_block<FWD_KEYS>(s, shift, &run, scale);
		wgmma_wait<0>();
		phase_release(w->value_empty + 8 * stage_of(now));
		scale_output<V>(out, shift);
		round_weights<FWD_KEYS>(weights, s);
		now = *next;
		another = next_block(next, *w);
	}
	if (loaded) {
		phase_release(w->query_empty);
		w->loads++;
	}
	if (any) {
		fwd_values<V>(out, weights, *w, now);
		wgmma_wait<0>();
		phase_release(w->value_empty + 8 * stage_of(now));
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
			phase_release(w.plan_empty + 8 * (w.round & 1));
		}
	}
}

#endif
