/* Forward attention in bf16 through warpgroup products.
 *
 * 128 queries of one head meet blocks of 128 keys; two warpgroups have 64 queries each.  The running
 * softmax and the output stay in registers, rounded weights are the left operand of the second
 * product without leaving them.  The next block of keys is on its way while one is at work.  Earlier
 * ranges are the beginning of the sums: maximum lse, sum 1, output o.
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

/* Scores become weights; out is scaled for the new maxima. */
template <int N, int V>
static __device__ __forceinline__ void
softmax_block(float *s, float *out, struct softmax *run, float scale)
{
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float most = -INFINITY, base, shift, sum = 0;
#pragma unroll
		for (int j = 0; j < N / 8; j++)
			most = fmaxf(most, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
		most = fmaxf(most * scale, run->most[h]);
		base = most == -INFINITY ? 0.0f : most;
		shift = power_of_2(run->most[h] - base);
		run->most[h] = most;
#pragma unroll
		for (int j = 0; j < N / 8; j++)
#pragma unroll
			for (int c = 0; c < 2; c++) {
				float x = power_of_2(s[4 * j + 2 * h + c] * scale - base);
				s[4 * j + 2 * h + c] = x;
				sum += x;
			}
		run->sum[h] = run->sum[h] * shift + sum;
#pragma unroll
		for (int j = 0; j < V / 8; j++) {
			out[4 * j + 2 * h] *= shift;
			out[4 * j + 2 * h + 1] *= shift;
		}
	}
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
			s[4 * j + 2 + c] =
				id == id1 && col <= last1 ? s[4 * j + 2 + c] : -INFINITY;
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

template <int KQ, int V>
static __device__ __forceinline__ void
fwd_load(uint32_t k, int *key_id, const struct k3_attn_fwd &p, const struct key_block &b, int head,
	 bool whole)
{
	struct side<k3_bf16> side = key_side<k3_bf16>(&p.shape, &p.keys, p.kv[b.tile], head);

	tile_load<FWD_KEYS, KQ>(k, x_of(&side), b.rows, b.run, b.row, whole);
	tile_load<FWD_KEYS, V>(k + fwd_shared<KQ, V>::k, y_of(&side), b.rows, b.run, b.row, whole);
	ids_load<FWD_KEYS>(key_id, b.rows, b.run, b.row, -1);
}

template <int KQ, int V>
static __global__ __launch_bounds__(THREADS, 1) void
attn_fwd_tensor(const __grid_constant__ struct k3_attn_fwd p, bool whole)
{
	using sizes = fwd_shared<KQ, V>;
	unsigned char *base = shared_base();
	uint32_t q = shared_address(base), stage0 = q + sizes::q;
	int *query_id = (int *)(base + sizes::q + 2 * sizes::stage),
	    *key_id = query_id + FWD_QUERIES;
	int head = blockIdx.x, q0 = (int)(gridDim.y - 1 - blockIdx.y) * FWD_QUERIES, at = 0;
	int r = (threadIdx.x >> 5) * 16 + (threadIdx.x & 31) / 4; /* first row of the thread */
	struct tile_rows rows = tile_rows(p.layout, p.shape.ids);
	struct ids ids = block_ids(&rows, q0, FWD_QUERIES);
	struct run all = {0, rows.n, ids.one};
	struct side<k3_bf16> queries = query_side<k3_bf16>(&p.shape, &p.q, nullptr, head);
	struct key_block now, next;
	struct softmax run;
	float out[V / 2], s[FWD_KEYS / 2], scale = p.shape.scale * 1.44269504f;
	uint32_t weights[FWD_KEYS / 4];
	bool causal = p.shape.ids == K3_ATTN_DOCUMENTS, more;
	int end_row = rows.row0 + min(q0 + FWD_QUERIES, rows.n);

	now.tile = 0;
	more = next_tile(&now, p, ids, end_row);
	if (!more && !p.first)
		return;
	fwd_begin<V>(out, &run, p, head, q0 + r);
	ids_load<FWD_QUERIES>(query_id, rows, all, q0, 0);
	if (more) {
		tile_load<FWD_QUERIES, KQ>(q, x_of(&queries), rows, all, q0, whole);
		fwd_load<KQ, V>(stage0, key_id, p, now, head, whole);
	}
	copy_commit();
	for (; more; now = next, at ^= 1) {
		uint32_t k = stage0 + at * sizes::stage;
		const int *id = key_id + at * FWD_KEYS;

		next = now;
		more = next_block(&next, p, ids, end_row, FWD_KEYS);
		if (more)
			fwd_load<KQ, V>(stage0 + (at ^ 1) * sizes::stage,
					key_id + (at ^ 1) * FWD_KEYS, p, next, head, whole);
		copy_commit();
		copy_wait<1>();
		__syncthreads();
		fwd_scores<KQ>(s, q, k);
		wgmma_wait<0>();
		int ahead = rows.row0 + q0 - now.rows.row0 - now.row; /* of query 0 over key 0 */
		if (!now.run.even || now.row < now.run.from || now.row + FWD_KEYS > now.run.to ||
		    (causal && ahead < FWD_KEYS - 1))
			mask_block<FWD_KEYS>(s, id, query_id[r], query_id[r + 8],
					     causal ? ahead + r : FWD_KEYS,
					     causal ? ahead + r + 8 : FWD_KEYS);
		softmax_block<FWD_KEYS, V>(s, out, &run, scale);
		round_weights<FWD_KEYS>(weights, s);
		fwd_values<V>(out, weights, k + sizes::k);
		wgmma_wait<0>();
		__syncthreads();
	}
	fwd_end<V>(out, &run, p, head, q0 + r, whole);
}

#endif
