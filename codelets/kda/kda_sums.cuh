/* The decayed sums of the local gradients.
 *
 * A sub-block's sum over others goes from the farthest to the nearest and decays on the way
 * (Horner), so no factor grows but inside a sub-block: to its pivot, by at most e^40 where g >=
 * -5; without that bound the diagonal takes the differences of exponents pair by pair.  These
 * products are as precise as float, also where the rest is bf16: the gates' gradient is a
 * difference of such sums, and what rounding leaves of it adds up over the chunk.
 */
#ifndef K3_KDA_SUMS_CUH
#define K3_KDA_SUMS_CUH

#include "kda_local.cuh"

/* Exponents of column c in sub-block b: its end, and its pivot (the end or the beginning of the
 * sub-block where gates have no bound). */
template <typename T, int KP>
static __device__ __forceinline__ float
end_of(const struct local_shared<T, KP> &sh, int b, int c)
{
	return sh.u.sums.l[(b * 16 + 15) * local_shared<T, KP>::ldf + c];
}

template <typename T, int KP>
static __device__ __forceinline__ float
pivot_of(const struct local_shared<T, KP> &sh, int b, int c, bool bounded, bool at_end)
{
	return bounded	? sh.u.sums.l[(b * 16 + PIVOT) * local_shared<T, KP>::ldf + c]
	       : at_end ? end_of<T, KP>(sh, b, c)
			: 0.0f;
}

/* c = (c 2^before + op(d) side) 2^after, by columns, with the rows of side in sub-block b. */
template <typename T, int KP, bool TRANS>
static __device__ __forceinline__ void
horner(float (*c)[4], const float *d, const struct local_shared<T, KP> &sh, int b, bool bounded)
{
	typedef struct local_shared<T, KP> S;
	const int half = (int)(threadIdx.x >> 7) * KP / 2, block = (int)(threadIdx.x >> 5 & 3);
	bool inside = b == block;

#pragma unroll
	EACH(i)
	{
		int col = local_col(i, KP / 2);
		float pivot = pivot_of<T, KP>(sh, b, col, bounded, !TRANS);

		c[i >> 2][i & 3] *= power_of_2(TRANS ? end_of<T, KP>(sh, b, col) - pivot : pivot);
	}
	product<TRANS, false, true, KP / 32>(
		c, d + (TRANS ? b * 16 * S::ld64 + block * 16 : block * 16 * S::ld64 + b * 16),
		S::ld64, sh.u.sums.side + b * 16 * S::ldf + half, S::ldf, 1);
#pragma unroll
	EACH(i)
	{
		int col = local_col(i, KP / 2);
		float pivot = pivot_of<T, KP>(sh, b, col, bounded, !TRANS);

		if (!inside)
			c[i >> 2][i & 3] *=
				power_of_2(TRANS ? pivot : end_of<T, KP>(sh, b, col) - pivot);
	}
}

/* Row side: to += the sum over earlier rows of d [64, 64] times the decayed keys in side; with a
 * bound over those of the own sub-block too. */
template <typename T, int KP>
static __device__ __forceinline__ void
earlier_rows(float (*to)[4], const float *d, struct local_shared<T, KP> &sh, bool bounded)
{
	int block = (int)(threadIdx.x >> 5 & 3);
	float c[KP / 16][4] = {};

	for (int b = 0; b < block + bounded; b++)
		horner<T, KP, false>(c, d, sh, b, bounded);
#pragma unroll
	EACH(i)
	{
		int col = local_col(i, KP / 2);
		float pivot = bounded ? pivot_of<T, KP>(sh, block, col, true, true) : 0.0f;
		float l = sh.u.sums.l[local_row(i) * local_shared<T, KP>::ldf + col];

		to[i >> 2][i & 3] += c[i >> 2][i & 3] * power_of_2(l - pivot);
	}
}

/* Column side: to += the sum over later rows of d^T times what side holds. */
template <typename T, int KP>
static __device__ __forceinline__ void
later_rows(float (*to)[4], const float *d, struct local_shared<T, KP> &sh, bool bounded)
{
	int block = (int)(threadIdx.x >> 5 & 3);
	float c[KP / 16][4] = {};

	for (int b = 3; b > block - bounded; b--)
		horner<T, KP, true>(c, d, sh, b, bounded);
#pragma unroll
	EACH(i)
	{
		int col = local_col(i, KP / 2);
		float pivot = pivot_of<T, KP>(sh, block, col, bounded, true);
		float l = sh.u.sums.l[local_row(i) * local_shared<T, KP>::ldf + col];

		to[i >> 2][i & 3] += c[i >> 2][i & 3] * power_of_2(pivot - l);
	}
}

/* side = tile 2^(l - pivot), or tile 2^(pivot - l) for the row side. */
template <typename T, int KP>
static __device__ __forceinline__ void
decayed_side(struct local_shared<T, KP> &sh, const T *tile, bool row_side, bool bounded)
{
	typedef struct local_shared<T, KP> S;
	int c = (int)threadIdx.x % KP;

	__syncthreads();
	for (int b = 0; b < 4; b++) {
		float pivot = pivot_of<T, KP>(sh, b, c, bounded, row_side);

		for (int r = b * 16 + (int)threadIdx.x / KP; r < b * 16 + 16;
		     r += LOCAL_THREADS / KP) {
			float l = sh.u.sums.l[r * S::ldf + c] - pivot;

			sh.u.sums.side[r * S::ldf + c] =
				wide(tile[r * S::ld + c]) * power_of_2(row_side ? -l : l);
		}
	}
	__syncthreads();
}

/* Both sides inside the diagonal sub-block. */
template <typename T, int KP>
static __device__ __forceinline__ void
diagonal_sums(struct local_regs<KP> *r, struct local_shared<T, KP> &sh)
{
	typedef struct local_shared<T, KP> S;
	int first = (int)(threadIdx.x >> 5 & 3) * 16;
	const float *dp = sh.u.sums.dp, *dm = sh.u.sums.dm;

	for (int j = first; j < first + 16; j++) {
#pragma unroll
		EACH(i)
		{
			int row = local_row(i), c = local_col(i, KP / 2);
			float at = sh.u.sums.l[row * S::ldf + c],
			      other = sh.u.sums.l[j * S::ldf + c];
			float w = power_of_2(j <= row ? at - other : other - at);
			float k = wide(sh.u.sums.k[j * S::ld + c]) * w;

			if (j <= row) {
				r->dq[i >> 2][i & 3] += dp[row * S::ld64 + j] * k;
				r->dx[i >> 2][i & 3] += dm[row * S::ld64 + j] * k;
			}
			if (j >= row)
				r->dk_col[i >> 2][i & 3] +=
					dp[j * S::ld64 + row] * wide(sh.u.sums.q[j * S::ld + c]) *
						w +
					dm[j * S::ld64 + row] * k;
		}
	}
}

/* All four sums, added to dq, dk_row (in dx) and dk_col. */
template <typename T, int KP>
static __device__ __forceinline__ void
decayed_sums(struct local_regs<KP> *r, struct local_shared<T, KP> &sh, bool bounded)
{
	decayed_side<T, KP>(sh, sh.u.sums.k, true, bounded);
	earlier_rows<T, KP>(r->dq, sh.u.sums.dp, sh, bounded);
	earlier_rows<T, KP>(r->dx, sh.u.sums.dm, sh, bounded);
	decayed_side<T, KP>(sh, sh.u.sums.q, false, bounded);
	later_rows<T, KP>(r->dk_col, sh.u.sums.dp, sh, bounded);
	decayed_side<T, KP>(sh, sh.u.sums.k, false, bounded);
	later_rows<T, KP>(r->dk_col, sh.u.sums.dm, sh, bounded);
	if (!bounded)
		diagonal_sums<T, KP>(r, sh);
}

#endif
