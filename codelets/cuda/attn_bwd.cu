/* Backward attention: the plain kernel, the gradient of the shared key part, and which kernel
 * runs. The algorithm is told in attn_bwd_tensor.cuh; the plain kernel is the same with 64 rows. */
#include "attn_bwd_tensor.cuh"
#include "attn_plain.cuh"

/* P and dS, transposed in shared memory. */
template <bool KEYS>
static __device__ __forceinline__ void
plain_weights(const float s[4][4], const float d[4][4], const struct k3_attn_bwd &p,
	      struct plain_shared *sh, int head, int shift, int row0, int column0)
{
	int i0 = (threadIdx.x >> 4) * 4, j0 = (threadIdx.x & 15) * 4;
	bool causal = p.shape.ids == K3_ATTN_DOCUMENTS;

	for (int i = 0; i < 16; i++) {
		int r = i0 + i / 4, c = j0 + i % 4, query = KEYS ? column0 + c : row0 + r;
		bool seen = sh->row_id[r] == sh->column_id[c] &&
			    (!causal || (KEYS ? c >= shift + r : c <= shift + r));
		float weight = 0, slope = 0;
		if (seen) {
			size_t at = (size_t)query * p.shape.heads + head;
			weight = power_of_2((s[i / 4][i % 4] * p.shape.scale - p.lse[at]) *
					    1.44269504f);
			slope = weight * (d[i / 4][i % 4] - p.delta[at]) * p.shape.scale;
		}
		sh->p[c][r] = weight;
		sh->ds[c][r] = slope;
	}
}

template <typename T>
static __device__ __forceinline__ void
store(T *to, float x, int add)
{
	*to = narrow<T>(add ? wide(*to) + x : x);
}

/* Sums of the rows go to their places. */
template <typename T, bool KEYS>
static __device__ __forceinline__ void
plain_store(const float *dx, const float *dy, const struct k3_attn_bwd &p, int head, int row0,
	    int n)
{
	int nope = p.shape.nope, kq = nope + p.shape.rope, v = p.shape.v;

	for (int i = threadIdx.x; i < SIDE * kq; i += THREADS) {
		int r = i / kq, c = i % kq, row = row0 + r;
		if (row >= n)
			break;
		if (!KEYS)
			store((T *)p.dq.x + row * p.dq.ld + head * p.dq.head + c, dx[i], p.add_dq);
		else if (c < nope)
			store((T *)p.dkv + row * p.dkeys.ld + head * p.dkeys.head + p.dkeys.k + c,
			      dx[i], p.add_dkv);
		else
			p.drope[((size_t)head * p.tk + row) * p.shape.rope + c - nope] = dx[i];
	}
	for (int i = threadIdx.x; KEYS && i < SIDE * v; i += THREADS) {
		int r = i / v, c = i % v, row = row0 + r;
		if (row < n)
			store((T *)p.dkv + row * p.dkeys.ld + head * p.dkeys.head + p.dkeys.v + c,
			      dy[i], p.add_dkv);
	}
}

template <typename T, bool KEYS>
static __global__ void
attn_bwd_plain(const __grid_constant__ struct k3_attn_bwd p)
{
	struct plain_shared *sh = (struct plain_shared *)attn_plain_shared;
	int kq = p.shape.nope + p.shape.rope, v = p.shape.v, head = blockIdx.x;
	float *dx = (float *)(sh + 1), *dy = dx + SIDE * kq, s[4][4], d[4][4];
	const float one[4] = {1, 1, 1, 1};
	bool causal = p.shape.ids == K3_ATTN_DOCUMENTS;
	struct side<T> keys = key_side<T>(&p.shape, &p.keys, p.kv, head),
		       queries = query_side<T>(&p.shape, &p.q, &p.da, head);
	const struct crew crew = {(int)threadIdx.x, THREADS, 0};
	struct plain_work<T> w;

	w.of_rows = KEYS ? keys : queries;
	w.of_cols = KEYS ? queries : keys;
	w.rows = tile_rows(KEYS ? p.klayout : p.layout, p.shape.ids);
	w.cols = tile_rows(KEYS ? p.layout : p.klayout, p.shape.ids);
	w.row0 = blockIdx.y * SIDE;
	if (w.row0 >= w.rows.n)
		return;
	struct ids ids = block_ids(crew, &w.rows, w.row0, SIDE);
	int ahead = w.rows.row0 + w.row0 - w.cols.row0; /* column of the first row */
	w.all = {0, w.rows.n, ids.one};
	w.run = partners(crew, &w.cols, ids, causal && KEYS ? ahead : 0,
			 causal && !KEYS ? ahead + SIDE : w.cols.n);
	for (int i = threadIdx.x; i < SIDE * (kq + (KEYS ? v : 0)); i += THREADS)
		dx[i] = 0;
	plain_ids(sh->row_id, w.rows, w.all, w.row0, 0);
	for (w.column0 = w.run.from; w.column0 < w.run.to; w.column0 += SIDE) {
		plain_ids(sh->column_id, w.cols, w.run, w.column0, -1);
		plain_scores<T, false>(s, sh, w);
		plain_scores<T, true>(d, sh, w);
		plain_weights<KEYS>(s, d, p, sh, head, ahead - w.column0, w.row0, w.column0);
		if (KEYS)
			plain_sum<T, true>(dy, v, sh->p, one, sh, w);
		plain_sum<T, false>(dx, kq, sh->ds, one, sh, w);
		__syncthreads();
	}
	__syncthreads();
	plain_store<T, KEYS>(dx, dy, p, head, w.row0, w.rows.n);
}

/* The shared part of dkv: heads in ascending order. */
template <typename T>
static __global__ void
sum_rope(const __grid_constant__ struct k3_attn_bwd p)
{
	size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, rope = p.shape.rope;
	size_t row = i / rope, c = i % rope;
	float sum;

	if (row >= (size_t)tile_rows(p.klayout, p.shape.ids).n)
		return;
	T *to = (T *)p.dkv + row * p.dkeys.ld + p.dkeys.rope + c;
	sum = p.add_dkv ? wide(*to) : 0.0f;
	for (int head = 0; head < p.shape.heads; head++)
		sum += p.drope[((size_t)head * p.tk + row) * rope + c];
	*to = narrow<T>(sum);
}

template <typename T, bool KEYS>
static void
launch_plain(const struct k3_cuda *cuda, const struct k3_attn_bwd *p)
{
	size_t bytes = plain_bytes(p->shape.nope + p->shape.rope + (KEYS ? p->shape.v : 0));
	dim3 grid((unsigned)p->shape.heads, blocks_for((size_t)(KEYS ? p->tk : p->t), SIDE));

	allow_shared(attn_bwd_plain<T, KEYS>, bytes);
	attn_bwd_plain<T, KEYS><<<grid, THREADS, bytes, (cudaStream_t)cuda->stream>>>(*p);
	K3_CUDA_LAUNCHED("attn_bwd_plain");
}

template <int KQ, int V, int GROUPS, bool KEYS>
static void
launch_tensor(const struct k3_cuda *cuda, const struct k3_attn_bwd *p)
{
	using sizes = bwd_shared<KQ, V, GROUPS>;
	unsigned items = blocks_for((size_t)(KEYS ? p->tk : p->t), sizes::rows) *
			 (unsigned)p->shape.heads,
		 grid = items < cuda->processors ? items : cuda->processors;
	bool whole = shape_whole(&p->shape) && rows_whole(&p->q) && rows_whole(&p->da) &&
		     keys_whole(&p->keys, p->kv) && rows_whole(&p->dq) &&
		     keys_whole(&p->dkeys, p->dkv);

	allow_shared(attn_bwd_tensor<KQ, V, GROUPS, KEYS>, sizes::bytes);
	attn_bwd_tensor<KQ, V, GROUPS, KEYS>
		<<<grid, sizes::threads, sizes::bytes, (cudaStream_t)cuda->stream>>>(*p, whole);
	K3_CUDA_LAUNCHED("attn_bwd_tensor");
}

/* One of the two passes. */
template <bool KEYS>
static void
launch(const struct k3_cuda *cuda, enum k3_cuda_type type, const struct k3_attn_bwd *p)
{
	int kq = p->shape.nope + p->shape.rope, v = p->shape.v;

	if ((KEYS ? p->tk : p->t) == 0)
		return;
	if (type == K3_CUDA_F32)
		launch_plain<float, KEYS>(cuda, p);
	else if (kq > 192 || v > 128 || !device_has_wgmma())
		launch_plain<k3_bf16, KEYS>(cuda, p);
	else if (kq <= 48 && v <= 32)
		launch_tensor<48, 32, 3, KEYS>(cuda, p);
	else if (kq <= 96 && v <= 64)
		launch_tensor<96, 64, 3, KEYS>(cuda, p);
	else if (kq <= 128)
		launch_tensor<128, 128, 2, KEYS>(cuda, p);
	else
		launch_tensor<192, 128, 2, KEYS>(cuda, p);
}

void
k3_cuda_attn_bwd(const struct k3_cuda *cuda, enum k3_cuda_type type, const struct k3_attn_bwd *p)
{
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	unsigned blocks = blocks_for((size_t)p->tk * p->shape.rope, THREADS);

	launch<false>(cuda, type, p);
	launch<true>(cuda, type, p);
	if (p->tk == 0 || p->shape.rope == 0)
		return;
	if (type == K3_CUDA_F32)
		sum_rope<float><<<blocks, THREADS, 0, stream>>>(*p);
	else
		sum_rope<k3_bf16><<<blocks, THREADS, 0, stream>>>(*p);
	K3_CUDA_LAUNCHED("sum_rope");
}
