/* Gradients inside a chunk (model.md 3.6), first half: the products with the states and with the
 * inverse.
 *
 * Eight warps share a chunk of one head: warp w has the rows of sub-block w % 4 and half w / 4
 * of the columns, in every matrix, so that what one product leaves in registers meets the next
 * one there.
 */
#ifndef K3_KDA_LOCAL_CUH
#define K3_KDA_LOCAL_CUH

#include "kda_rows.cuh"

enum { LOCAL_THREADS = 256, LOCAL_SLAB = 32 };

/* Elements of a thread's piece. */
#define EACH(i) for (int i = 0; i < KP / 4; i++)

/* Element i of a lane's piece: row in the chunk, and column of a matrix whose half is `half`
 * wide. */
static __device__ __forceinline__ int
local_row(int i)
{
	return (int)(threadIdx.x >> 5 & 3) * 16 + (int)(threadIdx.x & 31) / 4 + (i >> 1 & 1) * 8;
}

static __device__ __forceinline__ int
local_col(int i, int half)
{
	return (int)(threadIdx.x >> 7) * half + (i >> 2) * 8 + (int)(threadIdx.x & 3) * 2 + (i & 1);
}

template <typename T, int KP> struct local_shared {
	static const int ld = tile_ld<T>(KP), ldf = tile_ld<float>(KP), ld64 = tile_ld<float>(64),
			 ldt = tile_ld<T>(64), lds = tile_ld<T>(LOCAL_SLAB);
	float before[5 * KP], behind[4 * KP], beta[64];
	float columns[4 * KP];	     /* column sums by sub-blocks */
	float states[LOCAL_THREADS]; /* sums over v of S dS, by threads */
	float dbeta[2 * 64];
	union {
		struct { /* columns of v */
			T d_o[64 * lds], vt[64 * lds], dvt[64 * lds], s[KP * lds], ds[KP * lds];
		} slab;
		struct { /* products with the inverse */
			T left[64 * ld], right[64 * ld], tm[64 * ldt];
		} wy;
		struct { /* decayed sums */
			float l[64 * ldf], side[64 * ldf], dp[64 * ld64], dm[64 * ld64];
			T q[64 * ld], k[64 * ld];
		} sums;
	} u;
};

/* What a thread keeps of the chunk: pieces of matrices [64, KP] and [64, 64]. */
template <int KP> struct local_regs {
	static const int n = KP / 4, pieces = KP / 16; /* elements, 8-column pieces */
	float dx[pieces][4], dq[pieces][4], dk_col[pieces][4];
	float dp[4][4], dl[4][4];
	float dbeta[2]; /* its rows */
};

/* Columns first .. first+SLAB-1 of a state to a tile, from a slot or from a float state outside. */
template <typename T, int KP>
static __device__ __forceinline__ void
slab_of_state(T *to, const T *slot, const float *outside, size_t vp, int first,
	      const struct k3_kda_chunk_args &a)
{
	for (int i = (int)threadIdx.x; i < KP * LOCAL_SLAB; i += LOCAL_THREADS) {
		int r = i / LOCAL_SLAB, c = first + i % LOCAL_SLAB;
		T x = narrow<T>(0);

		if (slot)
			x = c < (int)vp ? slot[(size_t)r * vp + c] : x;
		else if (outside && r < (int)a.k && c < (int)a.v)
			x = narrow<T>(outside[(size_t)r * a.v + c]);
		to[r * tile_ld<T>(LOCAL_SLAB) + i % LOCAL_SLAB] = x;
	}
}

/* The same of an array by position. */
template <typename T>
static __device__ __forceinline__ void
slab_of_rows(T *to, const T *from, size_t vp, int first, int n)
{
	for (int i = (int)threadIdx.x; i < 64 * LOCAL_SLAB; i += LOCAL_THREADS) {
		int r = i / LOCAL_SLAB, c = first + i % LOCAL_SLAB;

		to[r * tile_ld<T>(LOCAL_SLAB) + i % LOCAL_SLAB] =
			r < n && c < (int)vp ? from[(size_t)r * vp + c] : narrow<T>(0);
	}
}

/* Where a state lies: a slot, or outside, or nowhere (zero). */
template <typename T> struct local_state {
	const T *slot;
	const float *outside;
	bool live;
};

template <typename T>
static __device__ __forceinline__ struct local_state<T>
local_state_at(const void *slots, int at, const float *outside, size_t head, size_t i,
	       const struct kda_task &x, size_t kp) {
	struct local_state<T> s;

	s.slot = at >= 0 ? (const T *)slots + (head * x.work.slots + (size_t)at) * kp * x.work.vp
			 : NULL;
	s.outside = at == KDA_OUTSIDE && outside ? outside + i * x.a.k * x.a.v : NULL;
	s.live = s.slot || s.outside;
	return s;
}

/* The products over v: r->dx = dV~ S^T, r->dq = dO S^T, r->dk_col = V~ dS^T, r->dp = dO V~^T,
 * and the thread's part of rowsum(S dS) in states[]. */
template <typename T, typename E, int KP>
static __device__ __forceinline__ void
state_products(struct local_regs<KP> *r, struct local_shared<E, KP> &sh, const struct kda_task &x,
	       const struct kda_entry &e, const int32_t *order, size_t head)
{
	typedef struct local_shared<E, KP> S;
	const bool precise = sizeof(E) == 4;
	size_t at = head * x.work.t + (size_t)e.row, vp = x.work.vp, i = x.first + head;
	struct local_state<E> s = local_state_at<E>(x.work.s, e.from, x.s_in, head, i, x, KP);
	struct local_state<E> ds = local_state_at<E>(x.work.ds, e.to, x.ds_out, head, i, x, KP);
	const T *d_o = (const T *)x.d_o + i * x.a.v;
	int rows = (int)(threadIdx.x >> 5 & 3) * 16 * S::lds, half = (int)(threadIdx.x >> 7);
	const int per_row = LOCAL_THREADS / KP, run = LOCAL_SLAB / per_row;
	int own = (int)threadIdx.x % KP * S::lds + (int)threadIdx.x / KP * run;
	float sum = 0;

	for (int v = 0; v < (int)vp; v += LOCAL_SLAB) {
		rows_load<E, T, LOCAL_SLAB, LOCAL_THREADS>(
			sh.u.slab.d_o, d_o, (x.a.h1 - x.a.h0) * x.a.v, order, e.n, v, (int)x.a.v);
		slab_of_rows<E>(sh.u.slab.vt, (const E *)x.work.vt + at * vp, vp, v, e.n);
		slab_of_rows<E>(sh.u.slab.dvt, (const E *)x.work.dvt + at * vp, vp, v, e.n);
		slab_of_state<E, KP>(sh.u.slab.s, s.slot, s.outside, vp, v, x.a);
		slab_of_state<E, KP>(sh.u.slab.ds, ds.slot, ds.outside, vp, v, x.a);
		__syncthreads();
		const E *right = sh.u.slab.s + half * KP / 2 * S::lds;
		if (s.live) {
			product<false, true, precise, KP / 32>(r->dx, sh.u.slab.dvt + rows, S::lds,
							       right, S::lds, LOCAL_SLAB / 16);
			product<false, true, precise, KP / 32>(r->dq, sh.u.slab.d_o + rows, S::lds,
							       right, S::lds, LOCAL_SLAB / 16);
		}
		if (ds.live)
			product<false, true, precise, KP / 32>(
				r->dk_col, sh.u.slab.vt + rows, S::lds,
				sh.u.slab.ds + half * KP / 2 * S::lds, S::lds, LOCAL_SLAB / 16);
		product<false, true, precise, 2>(r->dp, sh.u.slab.d_o + rows, S::lds,
						 sh.u.slab.vt + half * 32 * S::lds, S::lds,
						 LOCAL_SLAB / 16);
		for (int c = 0; c < run; c++)
			sum += wide(sh.u.slab.s[own + c]) * wide(sh.u.slab.ds[own + c]);
		__syncthreads();
	}
	sh.states[threadIdx.x] = sum;
}

/* A thread's pieces into a tile. */
template <typename S, int PIECES>
static __device__ __forceinline__ void
pieces_store(S *tile, int ld, int half, const float (*c)[4], float sign)
{
#pragma unroll
	for (int i = 0; i < 4 * PIECES; i++)
		tile[local_row(i) * ld + local_col(i, half)] = narrow<S>(sign * c[i >> 2][i & 3]);
}

/* c = Tm^T left, of the warp's rows. */
template <typename T, int KP>
static __device__ __forceinline__ void
transposed_inverse(float (*c)[4], const struct local_shared<T, KP> &sh)
{
	typedef struct local_shared<T, KP> S;
	int first = (int)(threadIdx.x >> 5 & 3) * 16, col = (int)(threadIdx.x >> 7) * KP / 2;

	product<true, false, sizeof(T) == 4, KP / 32>(c, sh.u.wy.tm + first * S::ldt + first,
						      S::ldt, sh.u.wy.left + first * S::ld + col,
						      S::ld, 4 - first / 16);
}

/* r->dl += left right^T */
template <typename T, int KP>
static __device__ __forceinline__ void
add_to_dl(struct local_regs<KP> *r, const struct local_shared<T, KP> &sh)
{
	typedef struct local_shared<T, KP> S;
	int first = (int)(threadIdx.x >> 5 & 3) * 16, col = (int)(threadIdx.x >> 7) * 32;

	product<false, true, sizeof(T) == 4, 2>(r->dl, sh.u.wy.left + first * S::ld, S::ld,
						sh.u.wy.right + col * S::ld, S::ld, KP / 16);
}

/* dX, with its part of dL. */
template <typename T, int KP>
static __device__ __forceinline__ void
gradient_of_x(struct local_regs<KP> *r, struct local_shared<T, KP> &sh, const T *w, int n)
{
	typedef struct local_shared<T, KP> S;

	pieces_store<T, KP / 16>(sh.u.wy.left, S::ld, KP / 2, r->dx, -1);
	tile_copy<T, KP, LOCAL_THREADS>(sh.u.wy.right, w, n);
	copy_commit();
	copy_wait<0>();
	__syncthreads();
#pragma unroll
	for (int i = 0; i < KP / 4; i++)
		r->dx[i >> 2][i & 3] = 0;
	transposed_inverse<T, KP>(r->dx, sh);
	__syncthreads();
	pieces_store<T, KP / 16>(sh.u.wy.left, S::ld, KP / 2, r->dx, 1);
	__syncthreads();
	add_to_dl<T, KP>(r, sh);
	__syncthreads();
}

/* Rows of an array by position, columns first .. of vp, to a tile [64, KP]. */
template <typename T, int KP>
static __device__ __forceinline__ void
columns_of_rows(T *to, const T *from, size_t vp, int first, int n)
{
	for (int i = (int)threadIdx.x; i < 64 * KP; i += LOCAL_THREADS) {
		int r = i / KP, c = first + i % KP;

		to[r * tile_ld<T>(KP) + i % KP] =
			r < n && c < (int)vp ? from[(size_t)r * vp + c] : narrow<T>(0);
	}
}

/* dY by columns, with its part of dL: dv = beta dY, dbeta += rowsum(dY V). */
template <typename T, typename E, int KP>
static __device__ __forceinline__ void
gradient_of_y(struct local_regs<KP> *r, struct local_shared<E, KP> &sh, const struct kda_task &x,
	      const struct kda_entry &e, const int32_t *order, size_t head)
{
	typedef struct local_shared<E, KP> S;
	size_t at = head * x.work.t + (size_t)e.row, vp = x.work.vp, hg = x.a.h1 - x.a.h0;
	struct kda_head<T> h = kda_head_of<T>(x, head);
	T *dv = (T *)x.dqkv + 2 * hg * x.a.k + (x.first + head) * x.a.v;

	for (int v = 0; v < (int)vp; v += KP) {
		float dy[KP / 16][4] = {};

		columns_of_rows<E, KP>(sh.u.wy.left, (const E *)x.work.dvt + at * vp, vp, v, e.n);
		columns_of_rows<E, KP>(sh.u.wy.right, (const E *)x.work.u + at * vp, vp, v, e.n);
		__syncthreads();
		transposed_inverse<E, KP>(dy, sh);
		__syncthreads();
		pieces_store<E, KP / 16>(sh.u.wy.left, S::ld, KP / 2, dy, 1);
#pragma unroll
		for (int i = 0; i < KP / 4; i++) {
			int row = local_row(i), c = v + local_col(i, KP / 2);
			float d = dy[i >> 2][i & 3];

			if (row >= e.n || c >= (int)x.a.v)
				continue;
			size_t t = (size_t)order[row];
			r->dbeta[i >> 1 & 1] += d * wide(h.v[t * h.ld_qkv + c]);
			dv[t * hg * (2 * x.a.k + x.a.v) + c] = narrow<T>(sh.beta[row] * d);
		}
		__syncthreads();
		add_to_dl<E, KP>(r, sh);
		__syncthreads();
	}
}

#endif
