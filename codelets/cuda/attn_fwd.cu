/* Forward attention: the plain kernel, and which kernel runs: warpgroup products where the device
 * has them and the widths fit.  The algorithms are told in attn_fwd_tensor.cuh and attn_plain.cuh. */
#include "attn_fwd_tensor.cuh"
#include "attn_plain.cuh"

/* Scores of a thread's rows become weights, transposed into sh->p; shift is what the sums so far are
 * scaled by.  Sixteen neighbouring lanes have a row. */
static __device__ __forceinline__ void
plain_softmax(float s[4][4], float most[4], float sum[4], float shift[4], struct plain_shared *sh)
{
	int i0 = (threadIdx.x >> 4) * 4, j0 = (threadIdx.x & 15) * 4;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		float top = fmaxf(fmaxf(s[i][0], s[i][1]), fmaxf(s[i][2], s[i][3])), base, part = 0;
#pragma unroll
		for (int step = 8; step > 0; step >>= 1)
			top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
		top = fmaxf(top, most[i]);
		base = top == -INFINITY ? 0.0f : top;
		shift[i] = power_of_2(most[i] - base);
		most[i] = top;
#pragma unroll
		for (int j = 0; j < 4; j++) {
			float x = power_of_2(s[i][j] - base);
			sh->p[j0 + j][i0 + i] = x;
			part += x;
		}
#pragma unroll
		for (int step = 8; step > 0; step >>= 1)
			part += __shfl_xor_sync(0xffffffffu, part, step);
		sum[i] = sum[i] * shift[i] + part;
	}
}

/* Sums of earlier ranges, or none. */
template <typename T>
static __device__ __forceinline__ void
plain_begin(float *out, float most[4], float sum[4], const struct k3_attn_fwd &p, int head, int q0)
{
	int i0 = (threadIdx.x >> 4) * 4, v = p.shape.v;

	for (int i = 0; i < 4; i++) {
		int row = q0 + i0 + i;
		float lse = -INFINITY;
		if (!p.first && row < p.t)
			lse = p.lse[(size_t)row * p.shape.heads + head];
		most[i] = lse * 1.44269504f;
		sum[i] = lse != -INFINITY ? 1.0f : 0.0f;
		const T *o = (const T *)p.o.x + head * p.o.head + row * p.o.ld;
		for (int c = threadIdx.x & 15; c < v; c += 16)
			out[(i0 + i) * v + c] = sum[i] != 0.0f ? wide(o[c]) : 0.0f;
	}
}

template <typename T>
static __device__ __forceinline__ void
plain_end(const float *out, const float most[4], const float sum[4], const struct k3_attn_fwd &p,
	  int head, int q0)
{
	int i0 = (threadIdx.x >> 4) * 4, v = p.shape.v;

	for (int i = 0; i < 4; i++) {
		int row = q0 + i0 + i;
		bool none = sum[i] == 0.0f;
		if (row >= p.t)
			continue;
		if ((threadIdx.x & 15) == 0)
			p.lse[(size_t)row * p.shape.heads + head] =
				none ? -INFINITY : (most[i] + log2f(sum[i])) * 0.693147181f;
		T *o = (T *)p.o.x + head * p.o.head + row * p.o.ld;
		for (int c = threadIdx.x & 15; c < v; c += 16)
			o[c] = narrow<T>(none ? 0.0f : out[(i0 + i) * v + c] / sum[i]);
	}
}

template <typename T>
static __global__ void
attn_fwd_plain(const __grid_constant__ struct k3_attn_fwd p)
{
	struct plain_shared *sh = (struct plain_shared *)attn_plain_shared;
	float *out = (float *)(sh + 1), s[4][4], most[4], sum[4], shift[4];
	int head = blockIdx.x, q0 = (int)(gridDim.y - 1 - blockIdx.y) * SIDE;
	int i0 = (threadIdx.x >> 4) * 4, j0 = (threadIdx.x & 15) * 4;
	bool causal = p.shape.ids == K3_ATTN_DOCUMENTS;
	float scale = p.shape.scale * 1.44269504f;
	const struct crew crew = {(int)threadIdx.x, THREADS, 0};
	struct plain_work<T> w;

	w.of_rows = query_side<T>(&p.shape, &p.q, nullptr, head);
	w.rows = tile_rows(p.layout, p.shape.ids);
	struct ids ids = block_ids(crew, &w.rows, q0, SIDE);
	w.all = {0, w.rows.n, ids.one};
	w.row0 = q0;
	plain_begin<T>(out, most, sum, p, head, q0);
	plain_ids(sh->row_id, w.rows, w.all, q0, 0);
	for (int tile = 0; tile < p.n_tiles; tile++) {
		w.of_cols = key_side<T>(&p.shape, &p.keys, p.kv[tile], head);
		w.cols = tile_rows(p.klayout[tile], p.shape.ids);
		int ahead = w.rows.row0 + q0 - w.cols.row0; /* of query 0 over key 0 */
		w.run = partners(crew, &w.cols, ids, 0, causal ? ahead + SIDE : w.cols.n);
		for (w.column0 = w.run.from; w.column0 < w.run.to; w.column0 += SIDE) {
			plain_ids(sh->column_id, w.cols, w.run, w.column0, -1);
			plain_scores<T, false>(s, sh, w);
			for (int i = 0; i < 16; i++) {
				int r = i0 + i / 4, c = j0 + i % 4;
				bool seen = sh->row_id[r] == sh->column_id[c] &&
					    (!causal || w.column0 + c <= ahead + r);
				s[i / 4][i % 4] = seen ? s[i / 4][i % 4] * scale : -INFINITY;
			}
			plain_softmax(s, most, sum, shift, sh);
			plain_sum<T, true>(out, p.shape.v, sh->p, shift, sh, w);
			__syncthreads();
		}
	}
	__syncthreads();
	plain_end<T>(out, most, sum, p, head, q0);
}

template <typename T>
static void
launch_plain(const struct k3_cuda *cuda, const struct k3_attn_fwd *p)
{
	size_t bytes = plain_bytes(p->shape.v);
	dim3 grid((unsigned)p->shape.heads, blocks_for((size_t)p->t, SIDE));

	allow_shared(attn_fwd_plain<T>, bytes);
	attn_fwd_plain<T><<<grid, THREADS, bytes, (cudaStream_t)cuda->stream>>>(*p);
	K3_CUDA_LAUNCHED("attn_fwd_plain");
}

template <int KQ, int V, int GROUPS>
static void
launch_tensor(const struct k3_cuda *cuda, const struct k3_attn_fwd *p)
{
	using shared = fwd_shared<KQ, V, GROUPS>;
	unsigned items = blocks_for((size_t)p->t, shared::queries) * (unsigned)p->shape.heads,
		 grid = items < cuda->processors ? items : cuda->processors;
	bool whole = shape_whole(&p->shape) && rows_whole(&p->q) && rows_whole(&p->o);

	for (int i = 0; i < p->n_tiles; i++)
		whole = whole && keys_whole(&p->keys, p->kv[i]);
	allow_shared(attn_fwd_tensor<KQ, V, GROUPS>, shared::bytes);
	attn_fwd_tensor<KQ, V, GROUPS>
		<<<grid, shared::threads, shared::bytes, (cudaStream_t)cuda->stream>>>(*p, whole);
	K3_CUDA_LAUNCHED("attn_fwd_tensor");
}

void
k3_cuda_attn_fwd(const struct k3_cuda *cuda, enum k3_cuda_type type, const struct k3_attn_fwd *p)
{
	int kq = p->shape.nope + p->shape.rope, v = p->shape.v;

	if (p->t == 0)
		return;
	if (type == K3_CUDA_F32)
		launch_plain<float>(cuda, p);
	else if (kq > 192 || v > 128 || !device_has_wgmma())
		launch_plain<k3_bf16>(cuda, p);
	else if (kq <= 48 && v <= 32)
		launch_tensor<48, 32, 3>(cuda, p);
	else if (kq <= 96 && v <= 64)
		launch_tensor<96, 64, 3>(cuda, p);
	else if (kq <= 128)
		launch_tensor<128, 128, 2>(cuda, p);
	else
		launch_tensor<192, 128, 2>(cuda, p);
}
