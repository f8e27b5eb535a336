/* The triangles M and Pq of any chunk (kda_intra_cuda.cu).
 *
 * Rows of sub-block I meet all earlier columns, and their own, by products of decayed tiles; the
 * pivot of the exponents is in the middle of I, so that those above the diagonal of I, which are
 * not wanted, stay finite where g >= -5.  Without that bound the pivot is the beginning of I, and
 * inside I the differences are taken pair by pair, which is safe for any gate.
 */
#ifndef K3_KDA_INTRA_CUH
#define K3_KDA_INTRA_CUH

#include "kda_rows.cuh"

enum { THREADS = 256 };

template <typename T, int KP> struct intra {
	static const int ld = tile_ld<T>(KP), ldf = tile_ld<float>(KP), ld64 = tile_ld<float>(64),
			 ldt = tile_ld<T>(64), ldh = tile_ld<T>(KP / 2);
	union {
		float l[64 * ldf];
		struct {
			float t[64 * ld64];
			T beta_t[64 * ldt];
		} inverse;
	} u;
	float before[5 * KP], behind[4 * KP], beta[64], beta_rest[64];
	T q[64 * ld], k[64 * ld]; /* later v, and K exp(G) */
	float m[64 * ld64];
	union {
		struct {
			T rows[32 * ldh], cols[64 * ldh];
		} pair;
		float z[16 * 48];
	} w;
};

/* Channels from .. from+KP/2-1: rows of sub-block I of q and k, and the columns up to those of I,
 * decayed to the pivot. */
template <typename T, int KP>
static __device__ __forceinline__ void
decay_pair(struct intra<T, KP> &s, int block, int from, bool bounded)
{
	typedef struct intra<T, KP> S;
	const int half = KP / 2;
	int c = (int)threadIdx.x % half, at = from + c;
	float pivot = bounded ? s.u.l[(block * 16 + PIVOT) * S::ldf + at] : 0.0f, e = pivot;

	for (int i = (int)threadIdx.x / half; i < 32; i += THREADS / half) {
		int r = block * 16 + i % 16;
		float x = wide(i < 16 ? s.q[r * S::ld + at] : s.k[r * S::ld + at]);

		s.w.pair.rows[i * S::ldh + c] =
			narrow<T>(x * power_of_2(s.u.l[r * S::ldf + at] - pivot));
	}
	/* own columns: to the pivot; those of earlier sub-blocks: to their end, and on to the pivot */
	for (int b = block; b >= 0; b--) {
		if (b < block)
			e += s.u.l[(b * 16 + 15) * S::ldf + at];
		for (int i = (int)threadIdx.x / half; i < 16 && (b < block || bounded);
		     i += THREADS / half) {
			int r = b * 16 + i;

			s.w.pair.cols[r * S::ldh + c] = narrow<T>(
				wide(s.k[r * S::ld + at]) * power_of_2(e - s.u.l[r * S::ldf + at]));
		}
	}
}

/* The triangles, but for what is in diagonal sub-blocks without a bound; p goes to memory. */
template <typename T, int KP>
static __device__ __forceinline__ void
triangles(struct intra<T, KP> &s, T *p, int n, float scale, bool bounded)
{
	typedef struct intra<T, KP> S;
	int warp = (int)threadIdx.x >> 5, g = (int)(threadIdx.x & 31) >> 2,
	    t = (int)threadIdx.x & 3;

	for (int block = bounded ? 0 : 1; block < 4; block++) {
		int cols = block + bounded, col = warp % cols * 16;
		bool is_p = warp < cols, works = warp < 2 * cols;
		float c[2][4] = {};

		for (int from = 0; from < KP; from += KP / 2) {
			decay_pair<T, KP>(s, block, from, bounded);
			__syncthreads();
			if (works)
				product<false, true, sizeof(T) == 4, 1>(
					c, s.w.pair.rows + (is_p ? 0 : 16) * S::ldh, S::ldh,
					s.w.pair.cols + col * S::ldh, S::ldh, KP / 32);
			__syncthreads();
		}
#pragma unroll
		for (int i = 0; i < 8; i++) {
			int row = block * 16 + g + (i >> 1 & 1) * 8;
			int at = col + (i >> 2) * 8 + 2 * t + (i & 1);
			float x = c[i >> 2][i & 3];

			if (works && is_p && row < n)
				p[row * 64 + at] = narrow<T>(at <= row ? scale * x : 0.0f);
			else if (works && !is_p)
				s.m[row * S::ld64 + at] = at < row ? x : 0.0f;
		}
	}
	for (int i = (int)threadIdx.x; i < 64 * 64; i += THREADS) {
		int r = i / 64, c = i % 64;

		if (c / 16 <= r / 16)
			continue;
		s.m[r * S::ld64 + c] = 0;
		if (r < n)
			p[i] = narrow<T>(0);
	}
}

/* Diagonal sub-blocks pair by pair. */
template <typename T, int KP>
static __device__ __forceinline__ void
diagonal(struct intra<T, KP> &s, T *p_out, int n, float scale)
{
	typedef struct intra<T, KP> S;

	for (int i = (int)threadIdx.x; i < 4 * 256; i += THREADS) {
		int r = i / 16, j = r / 16 * 16 + i % 16;
		float m = 0, p = 0;

		for (int c = 0; j <= r && c < KP; c++) {
			float w = power_of_2(s.u.l[r * S::ldf + c] - s.u.l[j * S::ldf + c]) *
				  wide(s.k[j * S::ld + c]);

			m += w * wide(s.k[r * S::ld + c]);
			p += w * wide(s.q[r * S::ld + c]);
		}
		s.m[r * S::ld64 + j] = j < r ? m : 0.0f;
		if (r < n)
			p_out[r * 64 + j] = narrow<T>(scale * p);
	}
	__syncthreads();
}

/* A row meets itself without a decay: in bf16 its part of Pq comes from q and k as they came. */
template <typename T, int KP>
static __device__ __forceinline__ void
rows_with_themselves(const struct intra<T, KP> &s, T *p, int n, float scale)
{
	typedef struct intra<T, KP> S;
	int r = (int)threadIdx.x / 4;
	float sum = 0;

	/* behind the other stores to p */
	__syncthreads();
	for (int c = (int)threadIdx.x % 4; c < KP; c += 4)
		sum += wide(s.q[r * S::ld + c]) * wide(s.k[r * S::ld + c]);
	sum = lanes_sum(sum, 4);
	if (threadIdx.x % 4 == 0 && r < n)
		p[r * 64 + r] = narrow<T>(scale * sum);
}

#endif
