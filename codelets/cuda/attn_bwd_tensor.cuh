/* Backward attention in bf16 through warpgroup products.
 *
 * One pass has keys as rows and sums dK and dV over blocks of queries, the other has queries as
 * rows and sums dQ over blocks of keys; nothing is shared between items of work, so sums have one
 * order.  Both are the same algorithm on (rows x, y) and (columns x, y), where a key's x and y are
 * K and V, a query's Q and dA: S = x x^T, D = y y^T, P = exp(scale S - lse), dS = P (D - delta),
 * then dx = scale dS x and, for keys, dy = P y.  64 rows for each of two or three multiplying
 * warpgroups stay in shared memory; one more warpgroup loads 64 columns at a time; P and dS are
 * rounded as left operands in registers.  With keys as rows two sums leave no room for P and D:
 * dS is made of the rounded P there.  The trap: columns that a warpgroup cannot see are still taken
 * and released.
 */
#ifndef K3_CUDA_ATTN_BWD_TENSOR_CUH
#define K3_CUDA_ATTN_BWD_TENSOR_CUH
#include "attn_bwd_rows.cuh"

static __device__ __forceinline__ void
bwd_take(const struct bwd_work &w, const struct bwd_block &b)
{
	phase_wait(w.full + 8 * b.at, b.phase);
	shared_fence();
}

/* s = x x^T or y y^T of a warpgroup's 64 rows. */
template <int COLS, int GROUPS>
static __device__ __forceinline__ void
bwd_scores(float *s, uint32_t rows, uint32_t cols, int group)
{
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < COLS / 16; i++)
		wgmma_shared<BWD_COLS>(s, k_major(rows, 64 * GROUPS, 64 * group, i),
				       k_major(cols, BWD_COLS, 0, i), i > 0);
	wgmma_commit();
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

/* dK and dV of a warpgroup's keys.  Registers: two sums, and in turn scores, rounded powers and
 * slopes of a block.  The next block's scores are formed beside this one's dK. */
template <int KQ, int V, int GROUPS>
static __device__ __forceinline__ void
bwd_keys(float *dx, float *dy, const struct k3_attn_bwd &p, const struct bwd_work &w,
	 const struct bwd_rows &r, struct bwd_block *b, bool *another)
{
	using sizes = bwd_shared<KQ, V, GROUPS>;
	float s[BWD_COLS / 2], scale = p.shape.scale * 1.44269504f;
	uint32_t powers[BWD_COLS / 4], slopes[BWD_COLS / 4];
	struct bwd_block now = *b;
	bool hidden;

	if (!*another)
		return;
	bwd_take(w, now);
	bwd_scores<KQ, GROUPS>(s, w.own, w.stages + now.at * sizes::stage, r.group);
	wgmma_wait<0>();
	hidden = bwd_powers<true>(s, w, r, now, scale);
	for (;;) {
		uint32_t x = w.stages + now.at * sizes::stage, y = x + sizes::column_x;
		const float *delta = w.control->columns[now.at].delta;

		bwd_round(powers, s);
		bwd_scores<V, GROUPS>(s, w.own + sizes::x, y, r.group);
		bwd_sum<V>(dy, powers, y);
		wgmma_wait<0>();
		bwd_slopes_of_keys(s, powers, delta, hidden);
		bwd_round(slopes, s);
		*another = next_block(b, w);
		if (!*another)
			break;
		bwd_take(w, *b);
		bwd_scores<KQ, GROUPS>(s, w.own, w.stages + b->at * sizes::stage, r.group);
		bwd_sum<KQ>(dx, slopes, x);
		wgmma_wait<1>();
		hidden = bwd_powers<true>(s, w, r, *b, scale);
		wgmma_wait<0>();
		phase_release(w.empty + 8 * now.at);
		now = *b;
	}
	bwd_sum<KQ>(dx, slopes, w.stages + now.at * sizes::stage);
	wgmma_wait<0>();
	phase_release(w.empty + 8 * now.at);
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
template <int KQ, int V, int GROUPS>
static __device__ __forceinline__ void
bwd_queries(float *dx, const struct k3_attn_bwd &p, const struct bwd_work &w,
	    const struct bwd_rows &r, struct bwd_block *b, bool *another)
{
	using sizes = bwd_shared<KQ, V, GROUPS>;
	float s[BWD_COLS / 2], d[BWD_COLS / 2];
	uint32_t slopes[BWD_COLS / 4], x = w.stages + b->at * sizes::stage;
	struct bwd_block now = *b;

	if (!*another || !sees<false>(w, now, r.group))
		return;
	bwd_take(w, now);
	bwd_scores<KQ, GROUPS>(s, w.own, x, r.group);
	bwd_scores<V, GROUPS>(d, w.own + sizes::x, x + sizes::column_x, r.group);
	bwd_slopes<0>(d, s, p, w, r, now);
	bwd_round(slopes, d);
	for (;;) {
		*another = next_block(b, w);
		if (!*another || !sees<false>(w, *b, r.group))
			break;
		uint32_t next_x = w.stages + b->at * sizes::stage;
		bwd_take(w, *b);
		bwd_scores<KQ, GROUPS>(s, w.own, next_x, r.group);
		bwd_scores<V, GROUPS>(d, w.own + sizes::x, next_x + sizes::column_x, r.group);
		bwd_sum<KQ>(dx, slopes, x);
		bwd_slopes<1>(d, s, p, w, r, *b);
		wgmma_wait<0>();
		phase_release(w.empty + 8 * now.at);
		bwd_round(slopes, d);
		now = *b;
		x = next_x;
	}
	bwd_sum<KQ>(dx, slopes, x);
	wgmma_wait<0>();
	phase_release(w.empty + 8 * now.at);
}

/* Takes and releases blocks until one is seen. */
template <bool KEYS>
static __device__ __forceinline__ void
bwd_pass(const struct bwd_work &w, struct bwd_block *b, bool *another, int group, bool all)
{
	for (; *another && (all || !sees<KEYS>(w, *b, group)); *another = next_block(b, w)) {
		phase_wait(w.full + 8 * b->at, b->phase);
		phase_release(w.empty + 8 * b->at);
	}
}

/* Gradients of a warpgroup's rows of an item. */
template <int KQ, int V, int GROUPS, bool KEYS>
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
		bwd_keys<KQ, V, GROUPS>(dx, dy, p, *w, r, b, &another);
	else
		bwd_queries<KQ, V, GROUPS>(dx, p, *w, r, b, &another);
	if (loaded) {
		phase_release(w->own_empty);
		w->loads++;
	}
	bwd_pass<KEYS>(*w, b, &another, r.group, true);
	bwd_store<KQ, KEYS, V>(dx, dy, p, *w, r);
}

template <int KQ, int V, int GROUPS, bool KEYS>
static __global__
__launch_bounds__(GROUP *(GROUPS + 1),
		  1) void attn_bwd_tensor(const __grid_constant__ struct k3_attn_bwd p, bool whole)
{
	const int few = GROUPS == 3 ? 32 : KEYS && KQ > 128 ? 24 : 40;
	struct bwd_work w;
	struct bwd_block b = {0, 0, 0};
	int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0) - 1;

	bwd_begin<KQ, V, GROUPS, KEYS>(&w, p, whole);
	if (group < 0) {
		registers_less<few>();
		for (; bwd_item<GROUPS, KEYS>(&w, p); w.round++) {
			struct run all = bwd_prepare<GROUPS, KEYS>(&w, threadIdx.x);
			load_item<KQ, V, GROUPS, KEYS>(&w, p, all, &b, threadIdx.x);
		}
	} else {
		struct bwd_rows r;
		registers_more<GROUPS == 3 ? 160 : (504 - few) / 2>();
		r.group = group;
		r.row = (threadIdx.x >> 5) * 16 - 64 + (threadIdx.x & 31) / 4;
		for (; bwd_item<GROUPS, KEYS>(&w, p); w.round++) {
			const int slot = w.round & 1;
			phase_wait(w.plan_full + 8 * slot, w.round >> 1 & 1);
			const struct bwd_plan plan = w.control->plan[slot];
			w.run = {plan.from, plan.to, plan.even != 0};
			phase_release(w.plan_empty + 8 * slot);
			bwd_rows_of<KEYS>(&r, p, w);
			bwd_multiply<KQ, V, GROUPS, KEYS>(&w, p, r, &b);
		}
	}
}

#endif
