/* Back over KDA's states by a block of the walks: dV~ = Pq^T dO + K- dS, then
 * dS = exp(G_last) dS + (s Q exp(G))^T dO - W^T dV~, with dS transposed in registers.
 * Keeps dV~ and the gradients of leaving states that are in slots.
 */
#ifndef K3_KDA_WALK_BACK_CUH
#define K3_KDA_WALK_BACK_CUH

#include "kda_walk_load.cuh"

static __device__ __forceinline__ void
back_fill(struct walk_stage *to, float *last, const struct kda_task &x, const struct kda_entry &e,
	  const int *order)
{
	const struct kda_scratch &w = x.work;
	size_t at = blockIdx.y * w.t + (size_t)e.row;

	walk_fetch<1>(to->p, (const k3_bf16 *)w.p + at * WALK_ROWS, e.n);
	walk_fetch_rows(to->columns, walk_rows_of(x.d_o, e.n, (int)blockIdx.x * WALK_V, x), order);
	walk_fetch<2>(to->kbar, (const k3_bf16 *)w.kbar + at * WALK_K, e.n);
	walk_fetch<2>(to->qd, (const k3_bf16 *)w.qd + at * WALK_K, e.n);
	walk_fetch<2>(to->w, (const k3_bf16 *)w.w + at * WALK_K, e.n);
	walk_fetch_last(last, x, e);
	copy_commit();
}

/* One thread; what its warp brings next. */
static __device__ __forceinline__ void
back_look_ahead(const struct kda_task &x, const struct kda_entry &e)
{
	const struct kda_scratch &w = x.work;
	size_t at = blockIdx.y * w.t + (size_t)e.row;

	walk_prefetch(w.p, at, e.n, WALK_ROWS);
	walk_prefetch(w.kbar, at, e.n, WALK_K);
	walk_prefetch(w.qd, at, e.n, WALK_K);
	walk_prefetch(w.w, at, e.n, WALK_K);
}

/* Chunk i of the way back is chunk `chunks - 1 - i` of the table. */
static __device__ __forceinline__ struct kda_entry
entry_back(const struct kda_task &x, int chunks, int i)
{
	return kda_entry_at(x.work, chunks - 1 - i);
}

/* A warp's part: every third chunk. */
static __device__ __forceinline__ void
back_bring(struct walk_shared &sh, const struct kda_task &x, int stage)
{
	const int32_t *rows = kda_order(x.layout);
	int chunks = x.work.table[0], order[WALK_ROWS / WALK_STEP];
	struct kda_entry e, next = {0, 0, KDA_NONE, KDA_NONE};

	if (stage < chunks)
		next = entry_back(x, chunks, stage);
	for (int i = stage; i < chunks; i += WALK_STAGES) {
		bool more = i + WALK_STAGES < chunks;

		e = next;
		walk_order<WALK_STEP>(order, rows, e);
		if (more)
			next = entry_back(x, chunks, i + WALK_STAGES);
		walk_stage_begin(i);
		back_fill(&sh.stage[stage], sh.last[stage], x, e, order);
		if (more && threadIdx.x % 32 == 0)
			back_look_ahead(x, next);
		walk_stage_end(i);
	}
}

/* What the computing warpgroup keeps from chunk to chunk; s is dS. */
struct back_regs {
	float s[WALK_K / 2], y[WALK_ROWS / 2];
	uint32_t left[WALK_K / 4], values[WALK_ROWS / 4];
};

/* The gradient of the chunk's leaving state, rounded, and its decay. */
static __device__ __forceinline__ void
back_enter(struct back_regs *r, const struct walk_shared &sh, const struct kda_task &x,
	   const struct kda_entry &e, int i)
{
	if (e.to < 0)
		walk_state_load(r->s, e.to == KDA_OUTSIDE ? walk_outside(x.ds_out, x) : NULL,
				(int)blockIdx.x * WALK_V, x.a);
	round_left<WALK_K>(r->left, r->s);
	walk_decay(r->s, sh.last[i % WALK_STAGES]);
}

static __device__ __forceinline__ void
back_chunk(struct back_regs *r, struct walk_shared &sh, const struct kda_task &x,
	   const struct kda_entry &e, const struct walk_stage &g)
{
	int col = (int)blockIdx.x * WALK_V;

	wgmma_fence();
	times_transposed<WALK_K / 16, false>(r->y, r->left, shared_address(g.kbar), true);
	wgmma_commit();
	tiles_product<WALK_K>(r->s, shared_address(g.columns), shared_address(g.qd), true);
	wgmma_commit();
	if (e.to >= 0) {
		size_t slot = blockIdx.y * x.work.slots + (size_t)e.to;

		walk_tile_store<WALK_K>(sh.state, r->left);
		walk_rows_store<WALK_K>(
			walk_rows_at(x.work.ds, slot * WALK_K, WALK_K, col, x.work.vp), NULL,
			sh.state);
	}
	wgmma_wait<1>();
	settled<WALK_ROWS>(r->y);
	round_left<WALK_ROWS>(r->values, r->y);
	wgmma_fence();
	times_tile<true>(r->s, r->values, shared_address(g.w));
	wgmma_commit();
	walk_tile_store<WALK_ROWS>(sh.rows, r->values);
	walk_rows_store<WALK_ROWS>(walk_rows_at(x.work.dvt, blockIdx.y * x.work.t + (size_t)e.row,
						e.n, col, x.work.vp),
				   NULL, sh.rows);
}

/* Waits for the tiles of chunk i, if there is one, and starts y = (Pq^T dO)^T.  What this makes
 * of a stage behind the last chunk is not used. */
static __device__ __forceinline__ void
back_meet(struct back_regs *r, struct walk_shared &sh, int i, int chunks)
{
	const struct walk_stage &g = sh.stage[i % WALK_STAGES];

	if (i < chunks)
		group_sync(WALK_FULL + i % WALK_STAGES, WALK_PAIR);
	wgmma_fence();
	tiles_product<WALK_V>(r->y, shared_address(g.columns), shared_address(g.p), false);
	wgmma_commit();
}

static __device__ __forceinline__ struct kda_entry
walk_back(struct back_regs *r, struct walk_shared &sh, const struct kda_task &x, int chunks)
{
	struct kda_entry e = {0, 0, KDA_NONE, KDA_OUTSIDE}, next = e;

	if (chunks > 0)
		next = entry_back(x, chunks, 0);
	back_meet(r, sh, 0, chunks);
	if (chunks > 0)
		back_enter(r, sh, x, next, 0);
	wgmma_wait<0>();
	settled<WALK_ROWS>(r->y);
	for (int i = 0; i < chunks; i++) {
		e = next;
		if (i + 1 < chunks)
			next = entry_back(x, chunks, i + 1);
		back_chunk(r, sh, x, e, sh.stage[i % WALK_STAGES]);
		back_meet(r, sh, i + 1, chunks);
		wgmma_wait<1>();
		settled<WALK_K>(r->s);
		if (i + WALK_STAGES < chunks)
			walk_arrive(WALK_EMPTY + i % WALK_STAGES);
		if (i + 1 < chunks)
			back_enter(r, sh, x, next, i + 1);
		wgmma_wait<0>();
		settled<WALK_ROWS>(r->y);
	}
	return e;
}

static __device__ __forceinline__ void
walk_back_block(struct walk_shared &sh, const struct kda_task &x, int warp)
{
	int chunks = x.work.table[0], col = (int)blockIdx.x * WALK_V;
	struct back_regs r;

	if (warp >= WALK_GROUP / 32) {
		back_bring(sh, x, warp - WALK_GROUP / 32);
		return;
	}
	struct kda_entry e = walk_back(&r, sh, x, chunks);
	if (!x.ds_in)
		return;
	if (e.from != KDA_OUTSIDE)
		walk_state_load(r.s, x.work.table[1] ? walk_outside(x.ds_out, x) : NULL, col, x.a);
	walk_state_store((float *)walk_outside(x.ds_in, x), r.s, col, x.a);
}

#endif
