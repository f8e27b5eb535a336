/* The walk forth over the states: V~ = U - W S, S = exp(G_last) S + K-^T V~, and o = s Q exp(G) S +
 * Pq V~, or in the backward V~ and the entering states.
 *
 * The output of a chunk is completed while the next one's V~ is under way: it hangs on the chain of
 * states, the chain does not hang on it.
 */
#ifndef K3_KDA_WALK_FORTH_CUH
#define K3_KDA_WALK_FORTH_CUH

#include "kda_walk_load.cuh"

static __device__ __forceinline__ void
fill(struct walk_stage *to, float *last, const struct kda_task &x, const struct kda_entry &e,
     bool output)
{
	const struct kda_scratch &w = x.work;
	size_t at = blockIdx.y * w.t + (size_t)e.row;
	int col = (int)blockIdx.x * WALK_V;

	walk_fetch<2>(to->w, (const k3_bf16 *)w.w + at * WALK_K, e.n);
	walk_fetch_rows(to->columns, walk_rows_at(w.u, at, e.n, col, w.vp), NULL);
	walk_fetch<2>(to->kbar, (const k3_bf16 *)w.kbar + at * WALK_K, e.n);
	if (output) {
		walk_fetch<2>(to->qd, (const k3_bf16 *)w.qd + at * WALK_K, e.n);
		walk_fetch<1>(to->p, (const k3_bf16 *)w.p + at * WALK_ROWS, e.n);
	}
	walk_fetch_last(last, x, e);
	copy_commit();
}

/* One thread; what its warp brings next. */
static __device__ __forceinline__ void
look_ahead(const struct kda_task &x, const struct kda_entry &e, bool output)
{
	const struct kda_scratch &w = x.work;
	size_t at = blockIdx.y * w.t + (size_t)e.row;

	walk_prefetch(w.w, at, e.n, WALK_K);
	walk_prefetch(w.u, at, e.n, w.vp);
	walk_prefetch(w.kbar, at, e.n, WALK_K);
	if (!output)
		return;
	walk_prefetch(w.qd, at, e.n, WALK_K);
	walk_prefetch(w.p, at, e.n, WALK_ROWS);
}

/* A warp's part: every third chunk. */
static __device__ __forceinline__ void
bring(struct walk_shared &sh, const struct kda_task &x, int stage, bool output)
{
	int chunks = x.work.table[0];
	struct kda_entry e, next = {0, 0, KDA_NONE, KDA_NONE};

	if (stage < chunks)
		next = kda_entry_at(x.work, stage);
	for (int i = stage; i < chunks; i += WALK_STAGES) {
		bool more = i + WALK_STAGES < chunks;

		e = next;
		if (more)
			next = kda_entry_at(x.work, i + WALK_STAGES);
		walk_stage_begin(i);
		fill(&sh.stage[stage], sh.last[stage], x, e, output);
		if (more && threadIdx.x % 32 == 0)
			look_ahead(x, next, output);
		walk_stage_end(i);
	}
}

/* What the computing warpgroup keeps from chunk to chunk. */
struct walk_regs {
	float s[WALK_K / 2], y[WALK_ROWS / 2], o[WALK_ROWS / 2];
	uint32_t left[WALK_K / 4], values[WALK_ROWS / 4]; /* s and V~, rounded */
	int order[WALK_ROWS / 16];			  /* rows of the output that it stores */
};

static __device__ __forceinline__ void
output_store(struct walk_shared &sh, const uint32_t *o, const int *order, const struct kda_task &x,
	     int n)
{
	walk_tile_store<WALK_ROWS>(sh.rows, o);
	walk_rows_store<WALK_ROWS>(walk_rows_of(x.o, n, (int)blockIdx.x * WALK_V, x), order,
				   sh.rows);
}

/* Starts y = U^T - S^T W^T; y has U^T. */
static __device__ __forceinline__ void
begin_values(struct walk_regs *r, const struct walk_stage &g)
{
	wgmma_fence();
	times_transposed<WALK_K / 16, true>(r->y, r->left, shared_address(g.w), true);
	wgmma_commit();
}

/* s = exp(G_last) s + V~^T K-, V~ from y; with the output its second product. */
static __device__ __forceinline__ void
begin_update(struct walk_regs *r, const struct walk_stage &g, bool output)
{
	round_left<WALK_ROWS>(r->values, r->y);
	wgmma_fence();
	times_tile<false>(r->s, r->values, shared_address(g.kbar));
	wgmma_commit();
	if (!output)
		return;
	times_transposed<WALK_ROWS / 16, false>(r->o, r->values, shared_address(g.p), true);
	wgmma_commit();
}

/* Waits for the tiles of chunk i and takes U^T. */
static __device__ __forceinline__ void
meet_chunk(struct walk_regs *r, struct walk_shared &sh, int i)
{
	group_sync(WALK_FULL + i % WALK_STAGES, WALK_PAIR);
	walk_accumulators(r->y, sh.stage[i % WALK_STAGES].columns);
}

/* The entering state of chunk i: rounded, and what becomes of it.  It is what the chunk before
 * left, or comes from elsewhere. */
static __device__ __forceinline__ void
enter(struct walk_regs *r, const struct walk_shared &sh, const struct kda_task &x,
      const struct kda_entry &e, int i)
{
	if (e.from < 0)
		walk_state_load(r->s, e.from == KDA_OUTSIDE ? walk_outside(x.s_in, x) : NULL,
				(int)blockIdx.x * WALK_V, x.a);
	round_left<WALK_K>(r->left, r->s);
	walk_decay(r->s, sh.last[i % WALK_STAGES]);
}

/* Releases the stage of chunk i, if anything is to come into it. */
static __device__ __forceinline__ void
leave_chunk(int i, int chunks)
{
	if (i + WALK_STAGES < chunks)
		walk_arrive(WALK_EMPTY + i % WALK_STAGES);
}

static __device__ __forceinline__ struct kda_entry
walk_with_output(struct walk_regs *r, struct walk_shared &sh, const struct kda_task &x, int chunks)
{
	struct kda_entry e = {0, 0, KDA_OUTSIDE, KDA_NONE}, next = e;
	const int32_t *rows = kda_order(x.layout);
	uint32_t out[WALK_ROWS / 4];
	int before = 0; /* rows of the chunk whose output is in out */

	if (chunks > 0) {
		next = kda_entry_at(x.work, 0);
		meet_chunk(r, sh, 0);
		enter(r, sh, x, next, 0);
	}
	for (int i = 0; i < chunks; i++) {
		const struct walk_stage &g = sh.stage[i % WALK_STAGES];

		e = next;
		if (i + 1 < chunks)
			next = kda_entry_at(x.work, i + 1);
		begin_values(r, g);
		wgmma_fence();
		times_transposed<WALK_K / 16, false>(r->o, r->left, shared_address(g.qd), false);
		wgmma_commit();
		if (i > 0)
			output_store(sh, out, r->order, x, before);
		walk_order<16>(r->order, rows, e);
		wgmma_wait<1>();
		settled<WALK_ROWS>(r->y);
		begin_update(r, g, true);
		if (i + 1 < chunks)
			meet_chunk(r, sh, i + 1);
		wgmma_wait<1>();
		settled<WALK_K>(r->s);
		if (i + 1 < chunks)
			enter(r, sh, x, next, i + 1);
		wgmma_wait<0>();
		settled<WALK_ROWS>(r->o);
		/* before the output is stored: what comes next is short of time */
		leave_chunk(i, chunks);
		round_left<WALK_ROWS>(out, r->o);
		before = e.n;
	}
	walk_order<16>(r->order, rows, e);
	output_store(sh, out, r->order, x, before);
	return e;
}

/* The same without output: keeps V~, and states that are in slots. */
static __device__ __forceinline__ void
walk_keeping(struct walk_regs *r, struct walk_shared &sh, const struct kda_task &x, int chunks)
{
	int col = (int)blockIdx.x * WALK_V;
	struct kda_entry e, next = {0, 0, KDA_NONE, KDA_NONE};

	if (chunks > 0) {
		next = kda_entry_at(x.work, 0);
		meet_chunk(r, sh, 0);
	}
	for (int i = 0; i < chunks; i++) {
		const struct walk_stage &g = sh.stage[i % WALK_STAGES];

		e = next;
		if (i + 1 < chunks)
			next = kda_entry_at(x.work, i + 1);
		enter(r, sh, x, e, i);
		begin_values(r, g);
		if (e.from >= 0) {
			size_t slot = blockIdx.y * x.work.slots + (size_t)e.from;

			walk_tile_store<WALK_K>(sh.state, r->left);
			walk_rows_store<WALK_K>(
				walk_rows_at(x.work.s, slot * WALK_K, WALK_K, col, x.work.vp), NULL,
				sh.state);
		}
		wgmma_wait<0>();
		settled<WALK_ROWS>(r->y);
		begin_update(r, g, false);
		walk_tile_store<WALK_ROWS>(sh.rows, r->values);
		walk_rows_store<WALK_ROWS>(walk_rows_at(x.work.vt,
							blockIdx.y * x.work.t + (size_t)e.row, e.n,
							col, x.work.vp),
					   NULL, sh.rows);
		if (i + 1 < chunks)
			meet_chunk(r, sh, i + 1);
		wgmma_wait<0>();
		settled<WALK_K>(r->s);
		leave_chunk(i, chunks);
	}
}

static __device__ __forceinline__ void
walk_output_block(struct walk_shared &sh, const struct kda_task &x, int warp)
{
	int chunks = x.work.table[0], col = (int)blockIdx.x * WALK_V;
	struct walk_regs r;

	if (warp >= WALK_GROUP / 32) {
		bring(sh, x, warp - WALK_GROUP / 32, true);
		return;
	}
	struct kda_entry e = walk_with_output(&r, sh, x, chunks);
	if (!x.s_out)
		return;
	if (e.to != KDA_OUTSIDE)
		walk_state_load(r.s, x.work.table[1] ? walk_outside(x.s_in, x) : NULL, col, x.a);
	walk_state_store((float *)walk_outside(x.s_out, x), r.s, col, x.a);
}

static __device__ __forceinline__ void
walk_keeping_block(struct walk_shared &sh, const struct kda_task &x, int warp)
{
	struct walk_regs r;

	if (warp >= WALK_GROUP / 32)
		bring(sh, x, warp - WALK_GROUP / 32, false);
	else
		walk_keeping(&r, sh, x, x.work.table[0]);
}

#endif
