/* Inside the chunks (model.md 3.4, 3.5): decays, the triangles M and Pq (kda_intra.cuh), the
 * inverse, W and U.
 *
 * A block has one chunk of one head at a time.  The inverse is float throughout.  Half of the
 * channels at a time and memory that serves twice leave room for two blocks of bf16 on a
 * multiprocessor.
 */
#include "kda_channels.cuh"
#include "kda_intra.cuh"

/* t = (I + diag(beta) m)^-1: forward substitution in the diagonal blocks, then block rows. */
template <typename T, int KP>
static __device__ __forceinline__ void
invert(struct intra<T, KP> &s)
{
	typedef struct intra<T, KP> S;
	float *t = s.u.inverse.t, *z = s.w.z;
	int i = (int)threadIdx.x;

	for (int j = i; j < 64 * 64; j += THREADS)
		t[j / 64 * S::ld64 + j % 64] = 0;
	__syncthreads();
	if (i < 64) {
		int at = i / 16 * 16;
		float x[16];

#pragma unroll
		for (int r = 0; r < 16; r++) {
			float sum = 0;

#pragma unroll
			for (int j = 0; j < r; j++)
				sum += s.m[(at + r) * S::ld64 + at + j] * x[j];
			x[r] = (r == i % 16 ? 1.0f : 0.0f) - s.beta[at + r] * sum;
			t[(at + r) * S::ld64 + i] = x[r];
		}
	}
	__syncthreads();
	for (int block = 1; block < 4; block++) {
		int at = block * 16;

		for (int e = i; e < 16 * at; e += THREADS) {
			int r = at + e / at, c = e % at;
			float sum = 0;

			for (int j = c / 16 * 16; j < at; j++)
				sum += s.m[r * S::ld64 + j] * t[j * S::ld64 + c];
			z[e / at * 48 + c] = s.beta[r] * sum;
		}
		__syncthreads();
		for (int e = i; e < 16 * at; e += THREADS) {
			int r = e / at, c = e % at;
			float sum = 0;

			for (int j = 0; j <= r; j++)
				sum += t[(at + r) * S::ld64 + at + j] * z[j * 48 + c];
			t[(at + r) * S::ld64 + c] = -sum;
		}
		__syncthreads();
	}
}

/* Results by position: qd, kbar and exp(G_last); K exp(G) replaces k. */
template <typename T, int KP>
static __device__ __forceinline__ void
hand_on(struct intra<T, KP> &s, const struct kda_task &x, const struct kda_entry &e, size_t at,
	size_t head)
{
	typedef struct intra<T, KP> S;
	struct __align__(2 * sizeof(T)) pair
	{
		T x[2];
	};
	T *qd = (T *)x.work.qd + at * KP, *kbar = (T *)x.work.kbar + at * KP;
	int c = (int)threadIdx.x % (KP / 2) * 2;

	for (int r = (int)threadIdx.x / (KP / 2); r < 64; r += THREADS / (KP / 2)) {
		int b = r / 16;
		struct pair q, k, out_q, out_k, down_k;

		q = *reinterpret_cast<struct pair *>(s.q + r * S::ld + c);
		k = *reinterpret_cast<struct pair *>(s.k + r * S::ld + c);
#pragma unroll
		for (int i = 0; i < 2; i++) {
			float l = s.u.l[r * S::ldf + c + i];
			float down = power_of_2(s.before[b * KP + c + i] + l);
			float rest = s.u.l[(b * 16 + 15) * S::ldf + c + i] - l +
				     s.behind[b * KP + c + i];

			down_k.x[i] = narrow<T>(wide(k.x[i]) * down);
			out_q.x[i] = narrow<T>(x.a.scale * wide(q.x[i]) * down);
			out_k.x[i] = narrow<T>(wide(k.x[i]) * power_of_2(rest));
		}
		*reinterpret_cast<struct pair *>(s.k + r * S::ld + c) = down_k;
		if (r >= e.n)
			continue;
		*reinterpret_cast<struct pair *>(qd + (size_t)r * KP + c) = out_q;
		*reinterpret_cast<struct pair *>(kbar + (size_t)r * KP + c) = out_k;
	}
	if (e.to != KDA_NONE) {
		size_t slot = e.to >= 0 ? (size_t)e.to : x.work.slots;

		for (int i = (int)threadIdx.x; i < KP; i += THREADS)
			x.work.last[(head * (x.work.slots + 1) + slot) * KP + i] =
				power_of_2(s.before[4 * KP + i]);
	}
}

/* t diag(beta) as left operand; m and t for the backward. */
template <typename T, int KP>
static __device__ __forceinline__ void
left_operand(struct intra<T, KP> &s, const struct kda_task &x, const struct kda_entry &e, size_t at,
	     bool backward)
{
	typedef struct intra<T, KP> S;

	for (int i = (int)threadIdx.x; i < 64 * 64; i += THREADS) {
		int r = i / 64, c = i % 64;
		float t = s.u.inverse.t[r * S::ld64 + c];

		s.u.inverse.beta_t[r * S::ldt + c] = narrow<T>(t * s.beta[c]);
		if (backward && r < e.n) {
			x.work.tm[at * 64 + i] = t;
			x.work.m[at * 64 + i] = s.m[r * S::ld64 + c];
		}
	}
	__syncthreads();
}

/* to[r, 0 .. KP-1] = t diag(beta) tile, rows of ld.  The diagonal of t is 1, so what beta loses
 * there in bf16 would be lost of every row; it comes in here. */
template <typename T, int KP>
static __device__ __forceinline__ void
apply_inverse(T *to, size_t ld, const struct intra<T, KP> &s, const T *tile, int n, int cols)
{
	typedef struct intra<T, KP> S;
	const int NT = KP / 32;
	int warp = (int)threadIdx.x >> 5, g = (int)(threadIdx.x & 31) >> 2,
	    t = (int)threadIdx.x & 3;
	int block = warp & 3, col = (warp >> 2) * KP / 2;
	float c[2 * NT][4];

#pragma unroll
	for (int i = 0; i < 8 * NT; i++) {
		int r = block * 16 + g + (i >> 1 & 1) * 8,
		    at = col + (i >> 2) * 8 + 2 * t + (i & 1);

		c[i >> 2][i & 3] = sizeof(T) == 2 ? s.beta_rest[r] * wide(tile[r * S::ld + at]) : 0;
	}
	product<false, false, sizeof(T) == 4, NT>(c, s.u.inverse.beta_t + block * 16 * S::ldt,
						  S::ldt, tile + col, S::ld, block + 1);
#pragma unroll
	for (int i = 0; i < 8 * NT; i++) {
		int r = block * 16 + g + (i >> 1 & 1) * 8,
		    at = col + (i >> 2) * 8 + 2 * t + (i & 1);

		if (r < n && at < cols)
			to[(size_t)r * ld + at] = narrow<T>(c[i >> 2][i & 3]);
	}
}

template <typename T, int KP>
static __global__ void
__launch_bounds__(THREADS) intra_chunks(struct kda_task x, bool backward)
{
	typedef typename kda_tile<T, KP>::type E;
	typedef struct intra<E, KP> S;
	extern __shared__ __align__(128) unsigned char shared[];
	S &s = *reinterpret_cast<S *>(shared);
	size_t head = blockIdx.y, vp = x.work.vp;
	struct kda_head<T> h = kda_head_of<T>(x, head);
	bool bounded = kda_bounded(x.a);

	for (int i = (int)blockIdx.x; i < x.work.table[0]; i += (int)gridDim.x) {
		struct kda_entry e = kda_entry_at(x.work, i);
		const int32_t *order = kda_order(x.layout) + e.row;
		size_t at = head * x.work.t + (size_t)e.row;

		rows_load<E, T, KP, THREADS>(s.q, h.q, h.ld_qkv, order, e.n, 0, (int)x.a.k);
		rows_load<E, T, KP, THREADS>(s.k, h.k, h.ld_qkv, order, e.n, 0, (int)x.a.k);
		beta_load<T, THREADS>(s.beta, h, x.a, order, e.n);
		if (threadIdx.x < 64)
			s.beta_rest[threadIdx.x] = lost_in_bf16(s.beta[threadIdx.x]);
		gates_load<T, KP, THREADS>(s.u.l, h, x.a, order, e.n);
		decays<KP, THREADS>(s.u.l, s.before, s.behind);
		E *p = (E *)x.work.p + at * 64;
		triangles<E, KP>(s, p, e.n, x.a.scale, bounded);
		if (!bounded)
			diagonal<E, KP>(s, p, e.n, x.a.scale);
		else if (sizeof(E) == 2)
			rows_with_themselves<E, KP>(s, p, e.n, x.a.scale);
		hand_on<E, KP>(s, x, e, at, head);
		__syncthreads();
		invert<E, KP>(s);
		left_operand<E, KP>(s, x, e, at, backward);
		apply_inverse<E, KP>((E *)x.work.w + at * KP, KP, s, s.k, e.n, KP);
		for (int v = 0; v < (int)vp; v += KP) {
			__syncthreads();
			rows_load<E, T, KP, THREADS>(s.q, h.v, h.ld_qkv, order, e.n, v, (int)x.a.v);
			__syncthreads();
			apply_inverse<E, KP>((E *)x.work.u + at * vp + v, vp, s, s.q, e.n,
					     (int)vp - v);
		}
		__syncthreads();
	}
}

template <typename T, int KP>
static void
launch(const struct kda_task *x, bool backward, const struct k3_cuda *cuda)
{
	dim3 grid((unsigned)k3i_kda_blocks(x->work.t), (unsigned)x->heads);
	size_t bytes = sizeof(struct intra<typename kda_tile<T, KP>::type, KP>);

	K3_CUDA_CHECK(cudaFuncSetAttribute(
		intra_chunks<T, KP>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
	intra_chunks<T, KP><<<grid, THREADS, bytes, (cudaStream_t)cuda->stream>>>(*x, backward);
	K3_CUDA_LAUNCHED("intra_chunks");
}

template <typename T>
void
k3i_kda_intra(const struct kda_task *x, bool backward, const struct k3_cuda *cuda)
{
	size_t width = k3i_kda_width(x->a.k);

	if (kda_by_channels<T>(*x))
		k3i_kda_wy(x, backward, cuda);
	else if (width == 32)
		launch<T, 32>(x, backward, cuda);
	else if (width == 64)
		launch<T, 64>(x, backward, cuda);
	else
		launch<T, 128>(x, backward, cuda);
}

template void k3i_kda_intra<float>(const struct kda_task *, bool, const struct k3_cuda *);
template void k3i_kda_intra<k3_bf16>(const struct kda_task *, bool, const struct k3_cuda *);
