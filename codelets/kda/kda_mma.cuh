/* Products of tiles in shared memory by one warp: c [16, 16 NT] += op(a) op(b).
 *
 * bf16 tiles meet in one instruction per 16 x 8 x 16.  float tiles are rounded to TF32; PRECISE
 * adds the products with what the rounding left (error about 2^-21 of the operands).  Rows of a
 * tile are its width plus 16 bytes apart, which keeps most of the loads free of bank conflicts.
 *
 * Lane l holds of a 16 x 8 piece of c: row l / 4 (c[0], c[1]) and 8 further down (c[2], c[3]),
 * columns l % 4 * 2 and the next.
 */
#ifndef K3_KDA_MMA_CUH
#define K3_KDA_MMA_CUH

#include "../cuda/device.cuh"
#include "kda_ptx.cuh"

/** Elements from row to row of a tile with n columns. */
template <typename S>
static __host__ __device__ constexpr int
tile_ld(int n)
{
	return n + 16 / (int)sizeof(S);
}

/** A pair of bf16, widened. */
static __device__ __forceinline__ float2
unpack_two(uint32_t x)
{
	return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
}

template <typename S> struct fragment;
template <> struct fragment<k3_bf16> {
	uint32_t r[4];
};
template <> struct fragment<float> {
	uint32_t r[8], rest[8];
};

static __device__ __forceinline__ void
split(struct fragment<float> *f, int i, float x)
{
	f->r[i] = to_tf32(x);
	f->rest[i] = to_tf32(x - __uint_as_float(f->r[i]));
}

/** a [16 rows, 16 deep] at p; TRANS: p holds [16 deep, 16 rows]. */
template <bool TRANS>
static __device__ __forceinline__ void
load_a(struct fragment<k3_bf16> *f, const k3_bf16 *p, int ld)
{
	int lane = (int)(threadIdx.x & 31);

	if (TRANS)
		ldmatrix_trans(f->r, p + ((lane & 7) + (lane >> 4) * 8) * ld + (lane >> 3 & 1) * 8);
	else
		ldmatrix(f->r, p + (lane & 15) * ld + (lane >> 4) * 8);
}

template <bool TRANS>
static __device__ __forceinline__ void
load_a(struct fragment<float> *f, const float *p, int ld)
{
	int row = (int)(threadIdx.x & 31) >> 2, deep = (int)(threadIdx.x & 3);

#pragma unroll
	for (int i = 0; i < 8; i++) {
		int m = row + (i & 1) * 8, k = deep + (i >> 1 & 1) * 4 + (i >> 2) * 8;

		split(f, i, TRANS ? p[k * ld + m] : p[m * ld + k]);
	}
}

/** b [16 deep, 16 columns] at p; TRANS: p holds [16 columns, 16 deep]. */
template <bool TRANS>
static __device__ __forceinline__ void
load_b(struct fragment<k3_bf16> *f, const k3_bf16 *p, int ld)
{
	int lane = (int)(threadIdx.x & 31);

	if (TRANS)
		ldmatrix(f->r, p + ((lane & 7) + (lane >> 4) * 8) * ld + (lane >> 3 & 1) * 8);
	else
		ldmatrix_trans(f->r, p + (lane & 15) * ld + (lane >> 4) * 8);
}

template <bool TRANS>
static __device__ __forceinline__ void
load_b(struct fragment<float> *f, const float *p, int ld)
{
	int col = (int)(threadIdx.x & 31) >> 2, deep = (int)(threadIdx.x & 3);

#pragma unroll
	for (int i = 0; i < 8; i++) {
		int n = col + (i >> 2) * 8, k = deep + (i & 3) * 4;

		split(f, i, TRANS ? p[n * ld + k] : p[k * ld + n]);
	}
}

/** c[0] and c[1], two 16 x 8 pieces side by side, += a b. */
template <bool PRECISE>
static __device__ __forceinline__ void
multiply(float (*c)[4], const struct fragment<k3_bf16> &a, const struct fragment<k3_bf16> &b)
{
	mma_bf16(c[0], a.r, b.r[0], b.r[1]);
	mma_bf16(c[1], a.r, b.r[2], b.r[3]);
}

template <bool PRECISE>
static __device__ __forceinline__ void
multiply(float (*c)[4], const struct fragment<float> &a, const struct fragment<float> &b)
{
#pragma unroll
	for (int n = 0; n < 2; n++)
#pragma unroll
		for (int s = 0; s < 2; s++) {
			const uint32_t *hi = b.r + 4 * n + 2 * s, *lo = b.rest + 4 * n + 2 * s;

			if (PRECISE) {
				mma_tf32(c[n], a.rest + 4 * s, hi[0], hi[1]);
				mma_tf32(c[n], a.r + 4 * s, lo[0], lo[1]);
			}
			mma_tf32(c[n], a.r + 4 * s, hi[0], hi[1]);
		}
}

/** c [16, 16 NT] += op(a) op(b), 16 `steps` deep. */
template <bool TRANS_A, bool TRANS_B, bool PRECISE, int NT, typename S>
static __device__ __forceinline__ void
product(float (*c)[4], const S *a, int lda, const S *b, int ldb, int steps)
{
	for (int s = 0; s < steps; s++) {
		struct fragment<S> fa, fb;

		load_a<TRANS_A>(&fa, a + (TRANS_A ? s * 16 * lda : s * 16), lda);
#pragma unroll
		for (int n = 0; n < NT; n++) {
			load_b<TRANS_B>(
				&fb, b + (TRANS_B ? n * 16 * ldb + s * 16 : s * 16 * ldb + n * 16),
				ldb);
			multiply<PRECISE>(c + 2 * n, fa, fb);
		}
	}
}

#endif
