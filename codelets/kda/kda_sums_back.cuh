/* What a warp does with its 16 channels of a chunk in the second part of the local gradients
 * (kda_sums_back_cuda.cu): chains of decayed sums, the gates' gradient.
 *
 * The products with the states begin the chains: dq at the chunk's beginning, keys' columns at
 * its end.  What a row or column adds to dG is the product of a chain with the very factors that
 * the other chains took, so that pairs cancel where they should.
 */
#ifndef K3_KDA_SUMS_BACK_CUH
#define K3_KDA_SUMS_BACK_CUH

#include "kda_decay.cuh"
#include "kda_state.cuh"

enum { SUMS_WARPS = 4, SUMS_CHANNELS = 64 };

struct sums {
	k3_bf16 q[64 * 64], k[64 * 64], f[64 * 64];
	k3_bf16 vt[64 * 128], d_o[64 * 128];
	k3_bf16 dx[64 * 64], dl[LOWER_SIZE], dp[LOWER_SIZE];
	float beta[64];
};

/* What a warp keeps of a chunk. */
struct sums_regs {
	struct kda_decay d;
	float side[8][4], dk[8][4]; /* dG of the rows themselves; dk */
	float end[2];		    /* dG that all rows get */
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

			q.r[i] = bf16_pair(x.x * e0, x.y * e1);
			down.r[i] = bf16_pair(beta.x * y.x * e0, beta.y * y.y * e1);
			up.r[i] = bf16_pair(y.x * reciprocal(e0), y.y * reciprocal(e1));
		}
		__syncwarp();
		channels_store<64>(s.q, q, b * 16, pack);
		channels_store<64>(s.k, down, b * 16, pack);
		channels_store<64>(s.f, up, b * 16, pack);
	}
	__syncwarp();
}

/* Keys as rows: dk += beta e dX', with dX' = dX + sum_j dL_ij k_j decayed; returns the warp's
 * part of dbeta of two rows. */
static __device__ __forceinline__ float2
key_rows(struct sums_regs *r, const struct sums &s, int pack, bool lives)
{
	int t = (int)(threadIdx.x & 3);
	float x[8][4] = {}, sum[8][2];

	if (lives)
#pragma unroll
		for (int b = 0; b < 4; b++) {
			kda_frag f;

			channels_load<64>(&f, s.dx, b * 16, pack);
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
				r->dk[m][i] += (i & 1 ? beta.y : beta.x) * y;
			}
		}
	}
	return sum_channels(sum);
}

/* What the gradient of the leaving state gives to the gates of all rows: sum over the keys'
 * columns, decayed to the end. */
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

	for (int i = (int)threadIdx.x / 32; i < 10; i += SUMS_WARPS) {
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

				*reinterpret_cast<uint32_t *>(s.dp + lower_at(b, col) +
							      lower_pack(row % 16, n) + at % 8) =
					bf16_pair(at <= row ? scale * c[n][2 * half] : 0.0f,
						  at < row ? scale * c[n][2 * half + 1] : 0.0f);
			}
	}
}

/* Keys as columns. */
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
		r->dk[i / 4][i % 4] = x[i / 4][i % 4] * reciprocal(r->d.e[i / 4][i % 4]);
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

#endif
