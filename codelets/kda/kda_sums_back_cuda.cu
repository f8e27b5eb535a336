/* Local gradients of bf16 chunks (model.md 3.6), second part: products with the states, decayed sums,
 * gates.
 *
 * A block has 64 channels of a chunk, a warp 16 of them (kda_channels.cuh), which meet no other
 * warp's but in dbeta.  The products with the states begin the chains of decayed sums:
 * dq at the chunk's beginning, keys' columns at its end.  Tiles of q, k and f become those of
 * q e, beta k e and k / e, and at last those of the results.
 */
#include "kda_decay.cuh"

enum { THREADS = 128, WARPS = 4, CHANNELS = 64 };

struct sums {
	k3_bf16 q[64 * 64], k[64 * 64], f[64 * 64];
	k3_bf16 vt[64 * 128], d_o[64 * 128];
	k3_bf16 dl[64 * 64], dp[64 * 64]; /* dp: dX before */
	float beta[64], dbeta[WARPS * 64];
};

/* What a warp keeps of a chunk. */
struct sums_regs {
	struct kda_decay d;
	float side[8][4], dk[8][4]; /* dG of the rows themselves; dk */
	float end[2];		    /* dG that all rows get */
};

/* Sums over all chunks of a block. */
struct sums_total {
	float da, db[2];
};

/* side += (sign) tile x, by elements. */
static __device__ __forceinline__ void
add_side(struct sums_regs *r, const k3_bf16 *tile, int pack, const float (*x)[4], float sign)
{
#pragma unroll
	for (int b = 0; b < 4; b++) {
		kda_frag f;

		channels_load<64>(&f, tile, b * 16, pack);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			FRAGMENT_PIECE(i, b, m, p);
			float2 y = unpack_two(f.r[i]);

			r->side[m][p] += sign * y.x * x[m][p];
			r->side[m][p + 1] += sign * y.y * x[m][p + 1];
		}
	}
}

/* Tiles of q, k and f become q e, beta k e and k / e. */
static __device__ __forceinline__ void
decay_tiles(struct sums &s, const struct kda_decay &d, int pack)
{
	int t = (int)(threadIdx.x & 3);

#pragma unroll
	for (int b = 0; b < 4; b++) {
		kda_frag q, k, down, up;

		channels_load<64>(&q, s.q, b * 16, pack);
		channels_load<64>(&k, s.k, b * 16, pack);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			FRAGMENT_PIECE(i, b, m, p);
			float2 beta = *reinterpret_cast<const float2 *>(s.beta + 8 * m + 2 * t);
			float2 x = unpack_two(q.r[i]), y = unpack_two(k.r[i]);
			float e0 = d.e[m][p], e1 = d.e[m][p + 1];

			q.r[i] = pack_two(x.x * e0, x.y * e1);
			down.r[i] = pack_two(beta.x * y.x * e0, beta.y * y.y * e1);
			up.r[i] = pack_two(y.x * reciprocal(e0), y.y * reciprocal(e1));
		}
		__syncwarp();
		channels_store<64>(s.q, q, b * 16, pack);
		channels_store<64>(s.k, down, b * 16, pack);
		channels_store<64>(s.f, up, b * 16, pack);
	}
	__syncwarp();
}

/* Keys as rows: dk = beta e dX', with dX' = dX + sum_j dL_ij k_j decayed; dbeta of the rows. */
static __device__ __forceinline__ void
key_rows(struct sums_regs *r, struct sums &s, int pack, bool lives)
{
	int t = (int)(threadIdx.x & 3), warp = (int)threadIdx.x / 32;
	float x[8][4] = {}, sum[8][2];

	if (lives)
#pragma unroll
		for (int b = 0; b < 4; b++) {
			kda_frag f;

			channels_load<64>(&f, s.dp, b * 16, pack);
			fragment_widen(x, f, b);
		}
	sum_earlier<64>(x, r->d, s.f, pack, s.dl);
	add_side(r, s.k, pack, x, 1);
#pragma unroll
	for (int b = 0; b < 4; b++) {
		float up[8][4];
		kda_frag f;

		channels_load<64>(&f, s.f, b * 16, pack);
		fragment_widen(up, f, b);
#pragma unroll
		for (int m = 2 * b; m < 2 * b + 2; m++) {
			float2 beta = *reinterpret_cast<const float2 *>(s.beta + 8 * m + 2 * t);

			sum[m][0] = sum[m][1] = 0;
#pragma unroll
			for (int i = 0; i < 4; i++) {
				float e = r->d.e[m][i], y = e * x[m][i];

				sum[m][i & 1] += up[m][i] * e * y;
				r->dk[m][i] = (i & 1 ? beta.y : beta.x) * y;
			}
		}
	}
	*reinterpret_cast<float2 *>(s.dbeta + warp * 64 + 2 * (threadIdx.x & 31)) =
		sum_channels(sum);
}

/* What the gradient of the leaving state gives to the gates of all rows: sum over the keys' columns,
 * decayed to the end. */
static __device__ __forceinline__ void
sum_to_end(struct sums_regs *r, const k3_bf16 *up, int pack, const float (*x)[4])
{
	float way[2] = {1, 1};

#pragma unroll
	for (int b = 3; b >= 0; b--) {
		float sum[2] = {0, 0};
		kda_frag f;

		channels_load<64>(&f, up, b * 16, pack);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			FRAGMENT_PIECE(i, b, m, p);
			float2 y = unpack_two(f.r[i]);

			sum[i & 1] += y.x * x[m][p] + y.y * x[m][p + 1];
		}
#pragma unroll
		for (int c = 0; c < 2; c++) {
			way[c] *= r->d.step[b + 1][c];
			r->end[c] += way[c] * sum[c];
		}
	}
#pragma unroll
	for (int c = 0; c < 2; c++) {
		r->end[c] += __shfl_xor_sync(0xffffffffu, r->end[c], 1);
		r->end[c] += __shfl_xor_sync(0xffffffffu, r->end[c], 2);
	}
}

/* end += exp(G_last) rowsum(S dS): the diagonal of a product of both. */
static __device__ __forceinline__ void
sum_of_states(struct sums_regs *r, const struct state_left *a, const k3_bf16 *ds, int vp,
	      int channel)
{
	int g = (int)(threadIdx.x & 31) / 4, from = g * 4 + g / 2;
	float c[2][4] = {};

#pragma unroll
	for (int step = 0; step < 4; step++) {
		struct state_left b;

		state_left_load(&b, ds, vp, channel, step);
#pragma unroll
		for (int i = 0; i < 2; i++) {
			mma_bf16(c[0], a[step].f[i].r, b.f[i].r[0], b.f[i].r[2]);
			mma_bf16(c[1], a[step].f[i].r, b.f[i].r[1], b.f[i].r[3]);
		}
	}
#pragma unroll
	for (int i = 0; i < 2; i++) {
		float even = __shfl_sync(0xffffffffu, c[i][2 * i], from),
		      odd = __shfl_sync(0xffffffffu, c[i][2 * i + 1], from), way = 1;

		for (int b = 0; b < 5; b++)
			way *= r->d.step[b][i];
		r->end[i] += way * (g & 1 ? odd : even);
	}
}

/* dp = s tril(dO V~^T), blocks of 16 x 16. */
static __device__ __forceinline__ void
gradient_of_p(struct sums &s, float scale)
{
	int lane = (int)(threadIdx.x & 31);

	for (int i = (int)threadIdx.x / 32; i < 10; i += WARPS) {
		int b = i < 1 ? 0 : i < 3 ? 1 : i < 6 ? 2 : 3, col = i - b * (b + 1) / 2;
		float c[2][4] = {};

#pragma unroll
		for (int step = 0; step < 4; step++) {
			uint4 lo = deep_load(s.d_o, b * 16, step),
			      hi = deep_load(s.d_o, b * 16 + 8, step);
			uint32_t a0[4] = {lo.x, hi.x, lo.y, hi.y}, a1[4] = {lo.z, hi.z, lo.w, hi.w};

#pragma unroll
			for (int n = 0; n < 2; n++) {
				uint4 v = deep_load(s.vt, col * 16 + n * 8, step);

				mma_bf16(c[n], a0, v.x, v.y);
				mma_bf16(c[n], a1, v.z, v.w);
			}
		}
#pragma unroll
		for (int n = 0; n < 2; n++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				int row = b * 16 + lane / 4 + 8 * half,
				    at = col * 16 + n * 8 + (lane & 3) * 2;

				*reinterpret_cast<uint32_t *>(
					s.dp + pack_at<64>(row, at / 8) + at % 8) =
					pack_two(at <= row ? scale * c[n][2 * half] : 0.0f,
						 at < row ? scale * c[n][2 * half + 1] : 0.0f);
			}
	}
}

/* Keys as columns; completes dk. */
static __device__ __forceinline__ void
key_columns(struct sums_regs *r, struct sums &s, const k3_bf16 *ds, int vp, int channel, int pack)
{
	float x[8][4] = {};

	if (ds) {
		struct state_left left[4];

#pragma unroll
		for (int step = 0; step < 4; step++)
			state_left_load(&left[step], ds, vp, channel, step);
		times_state(x, left, s.vt);
		sum_to_end(r, s.f, pack, x);
	}
	sum_later<64>(x, r->d, pack, s.q, s.dp, s.k, s.dl);
	add_side(r, s.f, pack, x, -1);
#pragma unroll
	for (int i = 0; i < 32; i++)
		r->dk[i / 4][i % 4] += x[i / 4][i % 4] * reciprocal(r->d.e[i / 4][i % 4]);
}

/* Queries; x becomes dq. */
static __device__ __forceinline__ void
query_rows(float (*x)[4], struct sums_regs *r, struct sums &s, const k3_bf16 *state,
	   const k3_bf16 *ds, int vp, int channel, int pack, float scale)
{
	if (state) {
		struct state_left left[4];

#pragma unroll
		for (int step = 0; step < 4; step++)
			state_left_load(&left[step], state, vp, channel, step);
		if (ds)
			sum_of_states(r, left, ds, vp, channel);
		times_state(x, left, s.d_o);
#pragma unroll
		for (int i = 0; i < 32; i++)
			x[i / 4][i % 4] *= scale;
	}
	sum_earlier<64>(x, r->d, s.f, pack, s.dp);
	add_side(r, s.q, pack, x, 1);
#pragma unroll
	for (int i = 0; i < 32; i++)
		x[i / 4][i % 4] *= r->d.e[i / 4][i % 4];
}

/* side becomes its sums from the last row up, with what all rows get. */
static __device__ __forceinline__ void
sum_up(struct sums_regs *r)
{
	int lane = (int)(threadIdx.x & 31), t = lane & 3;

#pragma unroll
	for (int c = 0; c < 2; c++) {
		float behind = r->end[c];

#pragma unroll
		for (int m = 7; m >= 0; m--) {
			float *x = r->side[m] + 2 * c, all = x[0] + x[1], other, rest;

			other = __shfl_down_sync(0xffffffffu, all, 1);
			all += t <= 2 ? other : 0.0f;
			other = __shfl_down_sync(0xffffffffu, all, 2);
			all += t <= 1 ? other : 0.0f;
			rest = __shfl_down_sync(0xffffffffu, all, 1);
			x[1] += (t <= 2 ? rest : 0.0f) + behind;
			x[0] += x[1];
			behind += __shfl_sync(0xffffffffu, all, lane & ~3);
		}
	}
}

/* dG to df through the gate's slope; f: tile of the gate's inputs. */
static __device__ __forceinline__ void
gate_slope(struct sums_regs *r, struct sums_total *sum, const k3_bf16 *f, int pack,
	   const float *dt, float exp_a, float bound, int n)
{
	int t = (int)(threadIdx.x & 3);

#pragma unroll
	for (int b = 0; b < 4; b++) {
		float in[8][4];
		kda_frag frag;

		channels_load<64>(&frag, f, b * 16, pack);
		fragment_widen(in, frag, b);
#pragma unroll
		for (int m = 2 * b; m < 2 * b + 2; m++)
#pragma unroll
			for (int i = 0; i < 4; i++) {
				float x = in[m][i] + dt[i >> 1], small = gate_small(exp_a * x),
				      z = reciprocal(1.0f + small), df;

				df = 8 * m + 2 * t + (i & 1) < n
					     ? r->side[m][i] * bound * exp_a * small * z * z
					     : 0.0f;
				r->side[m][i] = df;
				sum->da += df * x;
				sum->db[i >> 1] += df;
			}
	}
}

static __device__ __forceinline__ void
one_warp(struct sums_total *sum, struct sums &s, const struct kda_task &x,
	 const struct kda_entry &e, const int32_t *order, const struct kda_head<k3_bf16> &h,
	 size_t head, size_t kp, int first)
{
	int warp = (int)threadIdx.x / 32, g = (int)(threadIdx.x & 31) / 4, pack = 2 * warp;
	int channel = first + 16 * warp, cols = (int)x.a.k - channel;
	const k3_bf16 *state = kda_entering(x, e, head, kp),
		      *ds = kda_leaving_gradient(x, e, head, kp);
	int vp = (int)x.work.vp;
	size_t hg = x.a.h1 - x.a.h0, ld = hg * (2 * x.a.k + x.a.v), i = x.first + head;
	k3_bf16 *dq = (k3_bf16 *)x.dqkv + i * x.a.k + channel, *dk = dq + hg * x.a.k;
	bool there = channel < (int)kp;
	float dt[2], bound[2], out[8][4] = {};
	struct sums_regs r;

#pragma unroll
	for (int c = 0; c < 2; c++) {
		bool live = g + 8 * c < cols;

		dt[c] = live ? h.dt[channel + g + 8 * c] : 0.0f;
		bound[c] = live ? LOG2_E * x.a.lower_bound : 0.0f;
		r.end[c] = 0;
	}
#pragma unroll
	for (int m = 0; m < 32; m++)
		r.side[m / 4][m % 4] = 0;
	if (there) {
		decay_load<64>(&r.d, s.f, pack, dt, h.exp_a, bound, e.n);
		decay_tiles(s, r.d, pack);
	}
	copy_wait<1>();
	__syncthreads();
	if (there)
		key_rows(&r, s, pack, state);
	copy_wait<0>();
	__syncthreads();
	gradient_of_p(s, x.a.scale);
	__syncthreads();
	if (!there)
		return;
	key_columns(&r, s, ds, vp, channel, pack);
	matrix_store<64>(s.k, r.dk, pack);
	rows_store<64>(dk, ld, order, e.n, cols, s.k, pack);
	rows_fetch<64, 2, 32>(s.k, pack, h.f + channel, h.ld_f, order, e.n, cols);
	copy_commit();
	query_rows(out, &r, s, state, ds, vp, channel, pack, x.a.scale);
	matrix_store<64>(s.q, out, pack);
	rows_store<64>(dq, ld, order, e.n, cols, s.q, pack);
	sum_up(&r);
	copy_wait<0>();
	__syncwarp();
	gate_slope(&r, sum, s.k, pack, dt, h.exp_a, x.a.lower_bound, e.n);
	matrix_store<64>(s.f, r.side, pack);
	rows_store<64>((k3_bf16 *)x.df + i * x.a.k + channel, hg * x.a.k, order, e.n, cols, s.f,
		       pack);
}

static __device__ __forceinline__ void
fetch(struct sums &s, const struct kda_task &x, const struct kda_head<k3_bf16> &h,
      const int32_t *order, const struct kda_entry &e, size_t head, size_t kp, int first)
{
	size_t at = head * x.work.t + (size_t)e.row, vp = x.work.vp, i = x.first + head;
	int cols = (int)x.a.k - first, row = (int)threadIdx.x;

	rows_fetch<64, 8, THREADS>(s.f, 0, h.f + first, h.ld_f, order, e.n, cols);
	rows_fetch<64, 8, THREADS>(s.k, 0, h.k + first, h.ld_qkv, order, e.n, cols);
	rows_fetch<64, 8, THREADS>(s.q, 0, h.q + first, h.ld_qkv, order, e.n, cols);
	copy_commit();
	if (kda_entering(x, e, head, kp))
		rows_fetch<64, 8, THREADS>(s.dp, 0, (const k3_bf16 *)x.work.dx + at * kp + first,
					   kp, NULL, e.n, (int)kp - first);
	rows_fetch<64, 8, THREADS>(s.dl, 0, (const k3_bf16 *)x.work.dl + at * 64, 64, NULL, e.n,
				   64);
	copy_commit();
	rows_fetch<128, 16, THREADS>(s.vt, 0, (const k3_bf16 *)x.work.vt + at * vp, vp, NULL, e.n,
				     (int)vp);
	rows_fetch<128, 16, THREADS>(s.d_o, 0, (const k3_bf16 *)x.d_o + i * x.a.v,
				     (x.a.h1 - x.a.h0) * x.a.v, order, e.n, (int)x.a.v);
	copy_commit();
	if (row < 64)
		s.beta[row] =
			row < e.n ? kda_sigmoid(wide(h.br[(size_t)order[row] * h.ld_br])) : 0.0f;
}

/* Asks for the block's channels of a state ahead of their use. */
static __device__ __forceinline__ void
ask(const k3_bf16 *state, int vp, int first)
{
	if (state)
		state_ask<THREADS>(state + first * vp, vp);
}

/* Sums over the block's chunks: of all channels, and by channels. */
static __device__ __forceinline__ void
keep_sums(float *dab, struct sums_total sum, struct sums &s, int part, int channels)
{
	int lane = (int)(threadIdx.x & 31), c = (int)threadIdx.x / 32 * 16 + lane / 4;

	sum.da = block_sum(sum.da, s.dbeta);
	if (threadIdx.x == 0)
		dab[part] = sum.da;
	for (int i = 0; i < 2; i++) {
		sum.db[i] += __shfl_xor_sync(0xffffffffu, sum.db[i], 1);
		sum.db[i] += __shfl_xor_sync(0xffffffffu, sum.db[i], 2);
		if ((lane & 3) == 0 && c + 8 * i < channels)
			dab[KDA_DAB_HEAD + part * CHANNELS + c + 8 * i] = sum.db[i];
	}
}

static __global__ void
__launch_bounds__(THREADS, 3) sums_back(struct kda_task x, size_t kp, int parts)
{
	extern __shared__ __align__(128) unsigned char shared[];
	struct sums &s = *reinterpret_cast<struct sums *>(shared);
	size_t head = blockIdx.y;
	int part = (int)blockIdx.x % parts, block = (int)blockIdx.x / parts,
	    blocks = (int)gridDim.x / parts, first = part * CHANNELS, row = (int)threadIdx.x;
	struct kda_head<k3_bf16> h = kda_head_of<k3_bf16>(x, head);
	struct sums_total sum = {0, {0, 0}};

	for (int i = block; i < x.work.table[0]; i += blocks) {
		struct kda_entry e = kda_entry_at(x.work, i);
		const int32_t *order = kda_order(x.layout) + e.row;
		size_t at = head * x.work.t + (size_t)e.row;
		float dbeta = 0;

		fetch(s, x, h, order, e, head, kp, first);
		ask(kda_leaving_gradient(x, e, head, kp), (int)x.work.vp, first);
		ask(kda_entering(x, e, head, kp), (int)x.work.vp, first);
		copy_wait<2>();
		__syncthreads();
		one_warp(&sum, s, x, e, order, h, head, kp, first);
		for (int w = 0; row < e.n && w < WARPS && first + 16 * w < (int)kp; w++)
			dbeta += s.dbeta[w * 64 + row];
		if (row < e.n)
			x.work.dbeta[(at + (size_t)row) * KDA_DBETA_PARTS + 1 + part] = dbeta;
		__syncthreads();
	}
	keep_sums(x.work.dab + (head * blocks + block) * (KDA_DAB_HEAD + kp), sum, s, part,
		  (int)kp - first);
}

void
k3i_kda_sums_back(const struct kda_task *x, const struct k3_cuda *cuda)
{
	size_t kp = k3i_kda_width(x->a.k), parts = kp > CHANNELS ? 2 : 1;
	dim3 grid((unsigned)(k3i_kda_chunks(x->work.t) * parts), (unsigned)x->heads);

	K3_CUDA_CHECK(cudaFuncSetAttribute(
		sums_back, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(struct sums)));
	sums_back<<<grid, THREADS, sizeof(struct sums), (cudaStream_t)cuda->stream>>>(*x, kp,
										    (int)parts);
	K3_CUDA_LAUNCHED("sums_back");
}
