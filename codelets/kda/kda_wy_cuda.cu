/* Inside bf16 chunks (model.md 3.4, 3.5): decays, the triangles M and Pq, the inverse, W and U.
 *
 * A block has one chunk of one head at a time, a warp 16 of its channels (kda_channels.cuh): it
 * decays them, and at the end multiplies them by the inverse.  Between, the triangles add over
 * all channels: rows decayed to the pivot of their sub-block meet columns that were decayed to
 * the same pivot, so there is a copy of the columns for every sub-block of rows behind them.
 */
#include "kda_wy.cuh"

enum { THREADS = 256, WARPS = 8 };

/* One block [16, 16] of Pq (to memory, scaled) or of beta M. */
static __device__ __forceinline__ void
block_store(struct wy_forward &s, k3_bf16 *p, bool is_p, int row, int col, const float (*c)[4],
	    int n, float scale)
{
	int g = (int)(threadIdx.x & 31) / 4, t = (int)(threadIdx.x & 3);

#pragma unroll
	for (int i = 0; i < 4; i++) {
		int r = row + g + (i & 1) * 8, at = col + (i >> 1) * 8 + 2 * t;
		float x = c[i >> 1][(i & 1) * 2], y = c[i >> 1][(i & 1) * 2 + 1];

		if (is_p && r < n)
			*reinterpret_cast<uint32_t *>(p + r * 64 + at) =
				bf16_pair(at <= r ? scale * x : 0.0f, at < r ? scale * y : 0.0f);
		else if (!is_p)
			*reinterpret_cast<float2 *>(s.m.l + r * INVERSE_LD + at) = make_float2(
				at < r ? s.beta[r] * x : 0.0f, at + 1 < r ? s.beta[r] * y : 0.0f);
	}
}

static __device__ __forceinline__ void
triangles(struct wy_forward &s, const struct wy_out &out, int n, int packs, float scale)
{
	for (int i = (int)threadIdx.x / 32; i < 20; i += WARPS) {
		int at = i / 2,
		    row = at < 1   ? 0
			  : at < 3 ? 1
			  : at < 6 ? 2
				   : 3,
		    b = at - row * (row + 1) / 2;
		const k3_bf16 *rows = i & 1 ? s.k : s.q, *cols = columns_at(s, row, b);
		float c[2][4] = {};

#pragma unroll 4
		for (int pack = 0; pack < packs; pack += 2) {
			kda_frag left, right;

			left_load<128>(&left, rows, row * 16, pack);
			right_load<128>(&right, cols, 0, pack);
			multiply<false>(c, left, right);
		}
		if (!(i & 1) && b == row)
			put_dots(c, s, row * 16);
		block_store(s, out.p, !(i & 1), row * 16, b * 16, c, n, scale);
	}
	/* above the diagonal */
	for (int i = (int)threadIdx.x; i < 64 * 8; i += THREADS) {
		int r = i / 8, c = i % 8;

		if (r < n && c / 2 > r / 16)
			*reinterpret_cast<uint4 *>(out.p + r * 64 + c * 8) = make_uint4(0, 0, 0, 0);
	}
}

/* t diag(beta) as right operand, and t for the backward. */
static __device__ __forceinline__ void
round_inverse(struct wy_forward &s, k3_bf16 *tm, int n)
{
	for (int i = (int)threadIdx.x; i < 64 * 8; i += THREADS) {
		int r = i / 8, c = i % 8 * 8;
		uint32_t scaled[4], plain[4];

		if (c / 16 > r / 16)
			continue;
#pragma unroll
		for (int j = 0; j < 4; j++) {
			float2 x = *reinterpret_cast<const float2 *>(s.u.t + r * INVERSE_LD + c +
								     2 * j);
			float2 b = *reinterpret_cast<const float2 *>(s.beta + c + 2 * j);

			plain[j] = bf16_pair(x.x, x.y);
			scaled[j] = bf16_pair(x.x * b.x, x.y * b.y);
		}
		*reinterpret_cast<uint4 *>(s.tb + lower_at(r / 16, c / 16) +
					   lower_pack(r % 16, c / 8 & 1)) =
			make_uint4(scaled[0], scaled[1], scaled[2], scaled[3]);
		if (tm && r < n)
			*reinterpret_cast<uint4 *>(tm + r * 64 + c) =
				make_uint4(plain[0], plain[1], plain[2], plain[3]);
	}
	__syncthreads();
}

/* to = (t diag(beta) x) of the warp's 16 channels, by a tile.  The diagonal of t is 1, so what beta
 * loses there would be lost of every row; it comes in here. */
static __device__ __forceinline__ void
apply_inverse(k3_bf16 *to, size_t ld, const struct wy_forward &s, const kda_frag *x, k3_bf16 *tile,
	      int n)
{
	int pack = (int)threadIdx.x / 32 * 2;
	float c[8][4] = {};

#pragma unroll
	for (int row = 0; row < 4; row++) {
		kda_frag f;

#pragma unroll
		for (int b = 0; b <= row; b++) {
			lower_load(&f, s.tb, row, b);
			multiply<false>(c + 2 * row, x[b], f);
		}
		block_load(&f, s.rest + 256 * row);
		multiply<false>(c + 2 * row, x[row], f);
	}
	matrix_store<128>(tile, c, pack);
	rows_store<128>(to + 8 * pack, ld, NULL, n, 16, tile, pack);
}

/* Loads and decays of a chunk: fills the tiles for the triangles, and kg. */
static __device__ __forceinline__ void
decay_chunk(struct wy_forward &s, kda_frag *kg, const struct kda_task &x,
	    const struct kda_head<k3_bf16> &h, const struct wy_out &out, const int32_t *order,
	    int n, size_t kp)
{
	int row = (int)threadIdx.x, pack = row / 32 * 2, c = pack * 8 + (row & 31) / 4,
	    k = (int)x.a.k;
	struct kda_row_run<16, THREADS> rows = rows_find<16, THREADS>(order, n);
	struct kda_decay d;

	rows_fetch<128>(s.cols, 0, h.f, h.ld_f, rows, n, k);
	rows_fetch<128>(s.q, 0, h.q, h.ld_qkv, rows, n, k);
	rows_fetch<128>(s.k, 0, h.k, h.ld_qkv, rows, n, k);
	copy_commit();
	if (row < 64) {
		float beta = row < n ? kda_sigmoid(wide(h.br[(size_t)order[row] * h.ld_br])) : 0.0f;

		s.beta[row] = beta;
		uint4 *rest = reinterpret_cast<uint4 *>(s.rest + row * 16);
		rest[0] = rest[1] = make_uint4(0, 0, 0, 0);
		s.rest[row / 16 * 256 + lower_pack(row % 16, row / 8 & 1) + row % 8] =
			narrow<k3_bf16>(lost_in_bf16(beta));
	}
	copy_wait<0>();
	__syncthreads();
	if (pack * 8 < (int)kp) {
		decay_load<128>(&d, s.cols, pack, gate_of(h, c, k, x.a.lower_bound), n);
		decay_channels(s, kg, d, out, n, kp, x.a.scale);
	}
	__syncthreads();
}

static __global__ void
__launch_bounds__(THREADS, 2) wy_forward(struct kda_task x, bool backward, size_t kp)
{
	extern __shared__ __align__(128) unsigned char shared[];
	struct wy_forward &s = *reinterpret_cast<struct wy_forward *>(shared);
	const struct kda_scratch &work = x.work;
	size_t head = blockIdx.y, vp = work.vp;
	struct kda_head<k3_bf16> h = kda_head_of<k3_bf16>(x, head);
	int warp = (int)threadIdx.x / 32;

	for (int i = (int)blockIdx.x; i < work.table[0]; i += (int)gridDim.x) {
		struct kda_entry e = kda_entry_at(work, i);
		const int32_t *order = kda_order(x.layout) + e.row;
		size_t at = head * work.t + (size_t)e.row,
		       slot = e.to >= 0 ? (size_t)e.to : work.slots;
		struct wy_out out = {(k3_bf16 *)work.w + at * kp,
				     (k3_bf16 *)work.u + at * vp,
				     (k3_bf16 *)work.kbar + at * kp,
				     (k3_bf16 *)work.qd + at * kp,
				     (k3_bf16 *)work.p + at * 64,
				     backward ? (k3_bf16 *)work.tm + at * 64 : NULL,
				     e.to == KDA_NONE
					     ? NULL
					     : work.last + (head * (work.slots + 1) + slot) * kp};
		kda_frag kg[4], v[4];

		decay_chunk(s, kg, x, h, out, order, e.n, kp);
		triangles(s, out, e.n, (int)kp / 8, x.a.scale);
		__syncthreads();
		rows_fetch<128>(s.cols, 0, h.v, h.ld_qkv, rows_find<16, THREADS>(order, e.n), e.n,
				(int)x.a.v);
		copy_commit();
		invert(s.u.t, s.m.l);
		copy_wait<0>();
		round_inverse(s, out.tm, e.n);
		if (16 * warp < (int)kp)
			apply_inverse(out.w, kp, s, kg, s.q, e.n);
		if (16 * warp < (int)vp) {
#pragma unroll
			for (int b = 0; b < 4; b++)
				channels_load<128>(&v[b], s.cols, b * 16, 2 * warp);
			apply_inverse(out.u, vp, s, v, s.k, e.n);
		}
		__syncthreads();
	}
}

void
k3i_kda_wy(const struct kda_task *x, bool backward, const struct k3_cuda *cuda)
{
	dim3 grid((unsigned)k3i_kda_chunks(x->work.t), (unsigned)x->heads);

	K3_CUDA_CHECK(cudaFuncSetAttribute(wy_forward, cudaFuncAttributeMaxDynamicSharedMemorySize,
					   (int)sizeof(struct wy_forward)));
	wy_forward<<<grid, THREADS, sizeof(struct wy_forward), (cudaStream_t)cuda->stream>>>(
		*x, backward, k3i_kda_width(x->a.k));
	K3_CUDA_LAUNCHED("wy_forward");
}
