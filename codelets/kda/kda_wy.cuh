/* What a warp does with its 16 channels before the triangles of a bf16 chunk (kda_wy_cuda.cu):
 * rows and columns decayed to the pivots of sub-blocks, and what the walks over the states take.
 */
#ifndef K3_KDA_WY_CUH
#define K3_KDA_WY_CUH

#include "kda_decay.cuh"
#include "kda_inverse.cuh"

struct wy_forward {
	k3_bf16 q[64 * 128], k[64 * 128]; /* then decayed, at last U and W */
	k3_bf16 cols[64 * 128];		  /* f; columns, 10 blocks of 16 rows; v */
	union {
		k3_bf16 cols[96 * 128]; /* the other six */
		float t[64 * INVERSE_LD];
	} u;
	float l[64 * INVERSE_LD]; /* beta M */
	k3_bf16 tb[LOWER_SIZE];
	float beta[64];
};

/* Sub-block b of the columns for rows of sub-block `row` >= b. */
static __device__ __forceinline__ k3_bf16 *
columns_at(struct wy_forward &s, int row, int b)
{
	return s.cols + (row * (row + 1) / 2 + b) * 16 * 128;
}

/* Products along the way from the chunk's beginning to the pivots, and from there to its end. */
struct way {
	float from[4][2], to[4][2], all[2];
};

static __device__ __forceinline__ struct way
way_of(const struct kda_decay &d)
{
	struct way w;

#pragma unroll
	for (int c = 0; c < 2; c++) {
		float x = 1;

#pragma unroll
		for (int b = 0; b < 4; b++)
			w.from[b][c] = x *= d.step[b][c];
		w.all[c] = x * d.step[4][c];
		x = 1;
#pragma unroll
		for (int b = 3; b >= 0; b--)
			w.to[b][c] = x *= d.step[b + 1][c];
	}
	return w;
}

/* Rows 16 b .. 16 b+15 of x times e (UP: by e), in the order of a fragment's halves. */
template <bool UP>
static __device__ __forceinline__ void
decayed(float *to, const kda_frag &x, const struct kda_decay &d, int b)
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		FRAGMENT_PIECE(i, b, m, p);
		float2 two = unpack_two(x.r[i]);
		float e0 = d.e[m][p], e1 = d.e[m][p + 1];

		to[2 * i] = two.x * (UP ? reciprocal(e0) : e0);
		to[2 * i + 1] = two.y * (UP ? reciprocal(e1) : e1);
	}
}

/* Rounded after a factor by channels. */
static __device__ __forceinline__ kda_frag
rounded(const float *x, float f0, float f1)
{
	kda_frag to;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		float f = i & 1 ? f1 : f0;

		to.r[i] = bf16_pair(x[2 * i] * f, x[2 * i + 1] * f);
	}
	return to;
}

/* Where the rows of a chunk go. */
struct wy_out {
	k3_bf16 *w, *u, *kbar, *qd, *p, *tm;
	float *last;
};

/* qd, kbar and exp(G_last) of the warp's channels to memory, K exp(G) to kg. */
static __device__ __forceinline__ void
hand_on(struct wy_forward &s, kda_frag *kg, const struct kda_decay &d, const struct wy_out &out,
	int n, size_t kp, float scale)
{
	int pack = (int)threadIdx.x / 32 * 2, c = pack * 8 + (int)(threadIdx.x & 31) / 4;
	struct way w = way_of(d);

#pragma unroll
	for (int b = 0; b < 4; b++) {
		kda_frag q;
		float x[8];

		channels_load<128>(&q, s.q, b * 16, pack);
		decayed<false>(x, q, d, b);
		channels_store<128>(s.cols, rounded(x, scale * w.from[b][0], scale * w.from[b][1]),
				    b * 16, pack);
	}
	rows_store<128>(out.qd + 8 * pack, kp, NULL, n, 16, s.cols, pack);
#pragma unroll
	for (int b = 0; b < 4; b++) {
		kda_frag k;
		float x[8];

		channels_load<128>(&k, s.k, b * 16, pack);
		decayed<false>(x, k, d, b);
		kg[b] = rounded(x, w.from[b][0], w.from[b][1]);
		decayed<true>(x, k, d, b);
		channels_store<128>(s.cols, rounded(x, w.to[b][0], w.to[b][1]), b * 16, pack);
	}
	rows_store<128>(out.kbar + 8 * pack, kp, NULL, n, 16, s.cols, pack);
	if (out.last && (threadIdx.x & 3) == 0) {
		out.last[c] = w.all[0];
		out.last[c + 8] = w.all[1];
	}
}

/* Tiles of q and k decayed to their pivots, and the columns. */
static __device__ __forceinline__ void
decay_tiles(struct wy_forward &s, const struct kda_decay &d)
{
	int pack = (int)threadIdx.x / 32 * 2;

#pragma unroll
	for (int b = 0; b < 4; b++) {
		float way[2] = {1, 1};
		kda_frag q, k;
		float x[8];

		channels_load<128>(&q, s.q, b * 16, pack);
		channels_load<128>(&k, s.k, b * 16, pack);
		decayed<true>(x, k, d, b);
#pragma unroll
		for (int row = b; row < 4; row++) {
			if (row > b) {
				way[0] *= d.step[row][0];
				way[1] *= d.step[row][1];
			}
			channels_store<128>(columns_at(s, row, b), rounded(x, way[0], way[1]), 0,
					    pack);
		}
		__syncwarp();
		decayed<false>(x, q, d, b);
		channels_store<128>(s.q, rounded(x, 1, 1), b * 16, pack);
		decayed<false>(x, k, d, b);
		channels_store<128>(s.k, rounded(x, 1, 1), b * 16, pack);
	}
}

#endif
