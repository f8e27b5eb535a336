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
	union {
		k3_bf16 kbar[64 * 128];
		float l[64 * INVERSE_LD]; /* beta M */
	} m;
	k3_bf16 tb[LOWER_SIZE];
	k3_bf16 rest[4 * 256]; /* diagonal: what beta loses in bf16 */
	float beta[64];
	float dots[64][8]; /* q k of each row, by warps */
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

/* A row meets itself without a decay, so this part of Pq, often the largest, is taken from q and k
 * as they came: their sums over the warp's channels. */
static __device__ __forceinline__ void
dots_of_rows(struct wy_forward &s)
{
	int warp = (int)threadIdx.x / 32, g = (int)(threadIdx.x & 31) / 4,
	    t = (int)(threadIdx.x & 3);

#pragma unroll
	for (int b = 0; b < 4; b++) {
		float c[2][4] = {};
		kda_frag q, k;

		left_load<128>(&q, s.q, b * 16, 2 * warp);
		right_load<128>(&k, s.k, b * 16, 2 * warp);
		multiply<false>(c, q, k);
		if (t == g / 2) {
			s.dots[b * 16 + g][warp] = g & 1 ? c[0][1] : c[0][0];
			s.dots[b * 16 + 8 + g][warp] = g & 1 ? c[1][3] : c[1][2];
		}
	}
}

static __device__ __forceinline__ float
sum_of_dots(const float *x)
{
	float4 a = *reinterpret_cast<const float4 *>(x),
	       b = *reinterpret_cast<const float4 *>(x + 4);

	return (a.x + a.y + (a.z + a.w)) + (b.x + b.y + (b.z + b.w));
}

/* They take their places in a block of Pq on the diagonal. */
static __device__ __forceinline__ void
put_dots(float (*c)[4], const struct wy_forward &s, int row)
{
	int g = (int)(threadIdx.x & 31) / 4, t = (int)(threadIdx.x & 3);
	float x = sum_of_dots(s.dots[row + g]), y = sum_of_dots(s.dots[row + 8 + g]);

#pragma unroll
	for (int i = 0; i < 2; i++) {
		c[0][i] = 2 * t + i == g ? x : c[0][i];
		c[1][2 + i] = 2 * t + i == g ? y : c[1][2 + i];
	}
}

/* From q: its tile decayed to the pivots, and qd to memory. */
static __device__ __forceinline__ void
decay_rows(struct wy_forward &s, const struct kda_decay &d, const struct way &w, k3_bf16 *qd, int n,
	   size_t kp, float scale)
{
	int pack = (int)threadIdx.x / 32 * 2;

#pragma unroll
	for (int b = 0; b < 4; b++) {
		kda_frag q;
		float x[8];

		channels_load<128>(&q, s.q, b * 16, pack);
		__syncwarp();
		decayed<false>(x, q, d, b);
		channels_store<128>(s.q, rounded(x, 1, 1), b * 16, pack);
		channels_store<128>(s.cols, rounded(x, scale * w.from[b][0], scale * w.from[b][1]),
				    b * 16, pack);
	}
	rows_store<128>(qd + 8 * pack, kp, NULL, n, 16, s.cols, pack);
}

/* From k: its tile decayed to the pivots, K exp(G) to kg, the columns, and kbar to memory. */
static __device__ __forceinline__ void
decay_columns(struct wy_forward &s, kda_frag *kg, const struct kda_decay &d, const struct way &w,
	      k3_bf16 *kbar, int n, size_t kp)
{
	int pack = (int)threadIdx.x / 32 * 2;

#pragma unroll
	for (int b = 0; b < 4; b++) {
		float way[2] = {1, 1};
		kda_frag k;
		float x[8];

		channels_load<128>(&k, s.k, b * 16, pack);
		__syncwarp();
		decayed<false>(x, k, d, b);
		channels_store<128>(s.k, rounded(x, 1, 1), b * 16, pack);
		kg[b] = rounded(x, w.from[b][0], w.from[b][1]);
		decayed<true>(x, k, d, b);
		channels_store<128>(s.m.kbar, rounded(x, w.to[b][0], w.to[b][1]), b * 16, pack);
#pragma unroll
		for (int row = b; row < 4; row++) {
			if (row > b) {
				way[0] *= d.step[row][0];
				way[1] *= d.step[row][1];
			}
			channels_store<128>(columns_at(s, row, b), rounded(x, way[0], way[1]), 0,
					    pack);
		}
	}
	rows_store<128>(kbar + 8 * pack, kp, NULL, n, 16, s.m.kbar, pack);
}

/* The warp's channels of a chunk: tiles and columns for the triangles, and what the walks take. */
static __device__ __forceinline__ void
decay_channels(struct wy_forward &s, kda_frag *kg, const struct kda_decay &d,
	       const struct wy_out &out, int n, size_t kp, float scale)
{
	int c = (int)threadIdx.x / 32 * 16 + (int)(threadIdx.x & 31) / 4;
	struct way w = way_of(d);

	dots_of_rows(s);
	decay_rows(s, d, w, out.qd, n, kp, scale);
	decay_columns(s, kg, d, w, out.kbar, n, kp);
	if (out.last && (threadIdx.x & 3) == 0) {
		out.last[c] = w.all[0];
		out.last[c + 8] = w.all[1];
	}
}

#endif
