/* Forward attention in bf16 through warpgroup products.
 *
 * 128 queries of one head meet blocks of 128 keys; two warpgroups have 64 queries each.  The
 * running softmax and the output stay in registers, rounded weights are the left operand of the
 * second product without leaving them.  While the tensor cores multiply a block's weights and
 * values, its successor's scores, formed just before, become weights; the keys after next and the
 * next values are on their way meanwhile.  Earlier ranges are the beginning of the sums: maximum
 * lse, sum 1, output o.  The trap: a stage is overwritten only behind the barrier that all
 * products of it have passed.
 */
#ifndef K3_CUDA_ATTN_FWD_TENSOR_CUH
#define K3_CUDA_ATTN_FWD_TENSOR_CUH
#include "attn_tiles.cuh"

enum { FWD_QUERIES = 128, FWD_KEYS = 128 };

template <int KQ, int V> struct fwd_shared {
	static const int q = tile_bytes(FWD_QUERIES, KQ), k = tile_bytes(FWD_KEYS, KQ),
			 v = tile_bytes(FWD_KEYS, V), stage = k + v,
			 bytes = 1024 + q + 2 * stage + (FWD_QUERIES + 2 * FWD_KEYS) * 4;
};

/* A block of keys: its tile, the run of keys in it that may be seen, its first row. */
struct key_block {
	int tile, row;
	struct tile_rows rows;
	struct run run;
};

/* The next tile of which anything can be seen, from b->tile on; every thread of the block calls. */
static __device__ __forceinline__ bool
next_tile(struct key_block *b, const struct k3_attn_fwd &p, const struct ids &ids, int end_row)
{
	for (; b->tile < p.n_tiles; b->tile++) {
		b->rows = tile_rows(p.klayout[b->tile], p.shape.ids);
		b->run = partners(&b->rows, ids, 0,
				  p.shape.ids == K3_ATTN_DOCUMENTS ? end_row - b->rows.row0
								   : b->rows.n);
		b->row = b->run.from / 8 * 8;
		if (b->run.from < b->run.to)
			return true;
	}
	return false;
}

static __device__ __forceinline__ bool
next_block(struct key_block *b, const struct k3_attn_fwd &p, const struct ids &ids, int end_row,
	   int keys)
{
	b->row += keys;
	if (b->row < b->run.to)
		return true;
	b->tile++;
	return next_tile(b, p, ids, end_row);
}

/* Softmax of a thread's two rows (g and g + 8 of its warp's 16). */
struct softmax {
	float most[2], sum[2]; /* maximum in units of log 2; this thread's columns of the sum */
};

/* Scores become weights; shift is what the output of each row has to be scaled by. */
template <int N>
static __device__ __forceinline__ void
softmax_block(float *s, float *shift, struct softmax *run, float scale)
{
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float most = -INFINITY, base, sum = 0;
#pragma unroll
		for (int j = 0; j < N / 8; j++)
			most = fmaxf(most, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
		most = fmaxf(most * scale, run->most[h]);
		base = most == -INFINITY ? 0.0f : most;
		shift[h] = power_of_2(run->most[h] - base);
		run->most[h] = most;
#pragma unroll
		for (int j = 0; j < N / 8; j++)
#pragma unroll
			for (int c = 0; c < 2; c++) {
				float x = power_of_2(s[4 * j + 2 * h + c] * scale - base);
				s[4 * j + 2 * h + c] = x;
				sum += x;
			}
		run->sum[h] = run->sum[h] * shift[h] + sum;
	}
}

template <int V>
static __device__ __forceinline__ void
scale_output(float *out, const float *shift)
{
#pragma unroll
	for (int i = 0; i < V / 2; i++)
		out[i] *= shift[i >> 1 & 1];
}

/* Hides what a thread's rows must not see; last: the greatest visible column of each. */
template <int N>
static __device__ __forceinline__ void
mask_block(float *s, const int *key_id, int id0, int id1, int last0, int last1)
{
	int c0 = 2 * (threadIdx.x & 3);

#pragma unroll
	for (int j = 0; j < N / 8; j++)
#pragma unroll
		for (int c = 0; c < 2; c++) {
			int col = 8 * j + c0 + c, id = key_id[col];
			s[4 * j + c] = id == id0 && col <= last0 ? s[4 * j + c] : -INFINITY;
			s[4 * j + 2 + c] = id == id1 && col <= last1 ? s[4 * j + 2 + c] : -INFINITY;
		}
}

/* Sums of earlier ranges, or none. */
template <int V>
static __device__ __forceinline__ void
fwd_begin(float *out, struct softmax *run, const struct k3_attn_fwd &p, int head, int row0)
{
#pragma unroll
	for (int h = 0; h < 2; h++) {
		int row = row0 + 8 * h;
		float lse = -INFINITY;
		if (!p.first && row < p.t)
			lse = p.lse[(size_t)row * p.shape.heads + head];
		bool any = lse != -INFINITY;
		const k3_bf16 *o = (const k3_bf16 *)p.o.x + head * p.o.head + row * p.o.ld;
		run->most[h] = lse * 1.44269504f;
		run->sum[h] = any && (threadIdx.x & 3) == 0 ? 1.0f : 0.0f;
#pragma unroll
		for (int j = 0; j < V / 8; j++)
#pragma unroll
			for (int c = 0; c < 2; c++) {
				int col = 8 * j + 2 * (threadIdx.x & 3) + c;
				out[4 * j + 2 * h + c] =
					any && col < p.shape.v ? wide(o[col]) : 0.0f;
			}
	}
}

template <int V>
static __device__ __forceinline__ void
fwd_end(const float *out, const struct softmax *run, const struct k3_attn_fwd &p, int head,
	int row0, bool whole)
{
#pragma unroll
	for (int h = 0; h < 2; h++) {
		int row = row0 + 8 * h;
		float sum = run->sum[h], by;
		sum += __shfl_xor_sync(0xffffffffu, sum, 1);
		sum += __shfl_xor_sync(0xffffffffu, sum, 2);
		if (row >= p.t)
			continue;
		by = sum == 0.0f ? 0.0f : 1.0f / sum;
		k3_bf16 *o = (k3_bf16 *)p.o.x + head * p.o.head + row * p.o.ld;
		if ((threadIdx.x & 3) == 0)
			p.lse[(size_t)row * p.shape.heads + head] =
				sum == 0.0f ? -INFINITY
					    : (run->most[h] + log2f(sum)) * 0.693147181f;
#pragma unroll
		for (int j = 0; j < V / 8; j++) {
			int col = 8 * j + 2 * (threadIdx.x & 3);
			float x = out[4 * j + 2 * h] * by, y = out[4 * j + 2 * h + 1] * by;
			if (whole && col < p.shape.v) {
				*(uint32_t *)(o + col) = bf16_pair(x, y);
				continue;
			}
			if (col < p.shape.v)
				o[col] = narrow<k3_bf16>(x);
			if (col + 1 < p.shape.v)
				o[col + 1] = narrow<k3_bf16>(y);
		}
	}
}

/* s = Q K^T of a warpgroup's 64 queries. */
template <int KQ>
static __device__ __forceinline__ void
fwd_scores(float *s, uint32_t q, uint32_t k)
{
	int group = threadIdx.x >> 7;

	wgmma_fence();
#pragma unroll
	for (int i = 0; i < KQ / 16; i++)
		wgmma_shared<FWD_KEYS>(s, k_major(q, FWD_QUERIES, 64 * group, i),
				       k_major(k, FWD_KEYS, 0, i), i > 0);
	wgmma_commit();
}

/* out += P V */
template <int V>
static __device__ __forceinline__ void
fwd_values(float *out, const uint32_t *weights, uint32_t v)
{
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < FWD_KEYS / 16; i++)
		wgmma_rows<V>(out, weights + 4 * i, v, FWD_KEYS, i);
	wgmma_commit();
}

template <int N>
static __device__ __forceinline__ void
round_weights(uint32_t *to, const float *s)
{
#pragma unroll
	for (int i = 0; i < N / 4; i++)
		to[i] = bf16_pair(s[2 * i], s[2 * i + 1]);
}

/* Where a block of the grid works. */
struct fwd_work {
	struct tile_rows rows;
	int head, q0, row; /* row: the thread's first of the block */
	int end_row;	   /* global, behind the last query */
	uint32_t q, k, v;  /* tiles; keys and values have two stages */
	int *query_id, *key_id;
	bool whole;
};

template <int KQ>
static __device__ __forceinline__ void
load_keys(const struct fwd_work &w, const struct k3_attn_fwd &p, const struct key_block &b, int at)
{
	struct side<k3_bf16> side = key_side<k3_bf16>(&p.shape, &p.keys, p.kv[b.tile], w.head);

	tile_load<FWD_KEYS, KQ>(w.k + at * tile_bytes(FWD_KEYS, KQ), x_of(&side),
				rows_present<FWD_KEYS>(b.rows, b.run, b.row), b.row, w.whole);
	ids_load<FWD_KEYS>(w.key_id + at * FWD_KEYS, b.rows, b.run, b.row, -1);
}

template <int V>
static __device__ __forceinline__ void
load_values(const struct fwd_work &w, const struct k3_attn_fwd &p, const struct key_block &b,
	    int at)
{
	struct side<k3_bf16> side = key_side<k3_bf16>(&p.shape, &p.keys, p.kv[b.tile], w.head);

	tile_load<FWD_KEYS, V>(w.v + at * tile_bytes(FWD_KEYS, V), y_of(&side),
			       rows_present<FWD_KEYS>(b.rows, b.run, b.row), b.row, w.whole);
}

/* Hides keys of a block that some query must not see, where there are any. */
static __device__ __forceinline__ void
fwd_mask(float *s, const struct fwd_work &w, const struct key_block &b, int at)
{
	bool causal = w.rows.ids == K3_ATTN_DOCUMENTS;
	int ahead = w.rows.row0 + w.q0 - b.rows.row0 - b.row; /* of query 0 over key 0 */
	int last = causal ? ahead + w.row : FWD_KEYS;

	if (!b.run.even || b.row < b.run.from || b.row + FWD_KEYS > b.run.to ||
	    (causal && ahead < FWD_KEYS - 1))
		mask_block<FWD_KEYS>(s, w.key_id + at * FWD_KEYS, w.query_id[w.row],
				     w.query_id[w.row + 8], last, last + 8);
}

template <int KQ, int V>
static __device__ __forceinline__ void
fwd_place(struct fwd_work *w, const struct k3_attn_fwd &p, bool whole)
{
	unsigned char *base = shared_base();

	w->rows = tile_rows(p.layout, p.shape.ids);
	w->head = blockIdx.x;
	w->q0 = (int)(gridDim.y - 1 - blockIdx.y) * FWD_QUERIES;
	w->row = (threadIdx.x >> 5) * 16 + (threadIdx.x & 31) / 4;
	w->end_row = w->rows.row0 + min(w->q0 + FWD_QUERIES, w->rows.n);
	w->q = shared_address(base);
	w->k = w->q + fwd_shared<KQ, V>::q;
	w->v = w->k + 2 * fwd_shared<KQ, V>::k;
	w->query_id = (int *)(base + fwd_shared<KQ, V>::q + 2 * fwd_shared<KQ, V>::stage);
	w->key_id = w->query_id + FWD_QUERIES;
	w->whole = whole;
}

/* The scores of the first block; its values and the keys of the next one are on their way.  Returns
 * whether there is a next one. */
template <int KQ, int V>
static __device__ __forceinline__ bool
fwd_first(float *s, struct key_block *next, const struct fwd_work &w, const struct k3_attn_fwd &p,
	  const struct ids &ids, const struct key_block &now)
{
	struct side<k3_bf16> queries = query_side<k3_bf16>(&p.shape, &p.q, nullptr, w.head);
	struct run all = {0, w.rows.n, ids.one};
	bool another;

	ids_load<FWD_QUERIES>(w.query_id, w.rows, all, w.q0, 0);
	tile_load<FWD_QUERIES, KQ>(w.q, x_of(&queries),
				   rows_present<FWD_QUERIES>(w.rows, all, w.q0), w.q0, w.whole);
	load_keys<KQ>(w, p, now, 0);
	copy_commit();
	*next = now;
	another = next_block(next, p, ids, w.end_row, FWD_KEYS);
	copy_wait<0>();
	__syncthreads();
	fwd_scores<KQ>(s, w.q, w.k);
	load_values<V>(w, p, now, 0);
	if (another)
		load_keys<KQ>(w, p, *next, 1);
	copy_commit();
	wgmma_wait<0>();
	return another;
}

template <int KQ, int V>
static __global__
__launch_bounds__(THREADS, 1) void attn_fwd_tensor(const __grid_constant__ struct k3_attn_fwd p,
						   bool whole)
{
	struct fwd_work w;
	struct key_block now, next;
	struct softmax run;
	float out[V / 2], s[FWD_KEYS / 2], shift[2], scale = p.shape.scale * 1.44269504f;
	uint32_t weights[FWD_KEYS / 4];
	int at = 0;

	fwd_place<KQ, V>(&w, p, whole);
	struct ids ids = block_ids(&w.rows, w.q0, FWD_QUERIES);
	now.tile = 0;
	bool any = next_tile(&now, p, ids, w.end_row), another = false;
	if (!any && !p.first)
		return;
	fwd_begin<V>(out, &run, p, w.head, w.q0 + w.row);
	if (any) {
		another = fwd_first<KQ, V>(s, &next, w, p, ids, now);
		fwd_mask(s, w, now, 0);
		softmax_block<FWD_KEYS>(s, shift, &run, scale);
		scale_output<V>(out, shift);
		round_weights<FWD_KEYS>(weights, s);
	}
	/* weights are those of the block whose values are in stage `at`; next is its successor */
	for (; another; at ^= 1) {
		copy_wait<0>();
		__syncthreads();
		now = next;
		another = next_block(&next, p, ids, w.end_row, FWD_KEYS);
		fwd_scores<KQ>(s, w.q, w.k + (at ^ 1) * tile_bytes(FWD_KEYS, KQ));
		fwd_values<V>(out, weights, w.v + at * tile_bytes(FWD_KEYS, V));
		load_values<V>(w, p, now, at ^ 1);
		if (another)
			load_keys<KQ>(w, p, next, at);
		copy_commit();
		wgmma_wait<1>();
		fwd_mask(s, w, now, at ^ 1);
		softmax_block<FWD_KEYS>(s, shift, &run, scale);
		wgmma_wait<0>();
		scale_output<V>(out, shift);
		round_weights<FWD_KEYS>(weights, s);
	}
	if (any) {
		copy_wait<0>();
		__syncthreads();
		fwd_values<V>(out, weights, w.v + at * tile_bytes(FWD_KEYS, V));
		wgmma_wait<0>();
	}
	fwd_end<V>(out, &run, p, w.head, w.q0 + w.row, whole);
}

#endif
