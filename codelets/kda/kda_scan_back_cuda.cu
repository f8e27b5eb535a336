/* Back over KDA's states (model.md 3.6): dV~ = Pq^T dO + K- dS, then
 * dS = exp(G_last) dS + (s Q exp(G))^T dO - W^T dV~.  Needs no state, so it does not wait for the
 * forward's repetition.  Keeps dV~ and the gradients of the leaving states.
 */
#include "kda_scan.cuh"

template <typename T, int KP> struct back_stage {
	T w[64 * tile_ld<T>(KP)], kbar[64 * tile_ld<T>(KP)], qd[64 * tile_ld<T>(KP)];
	T p[64 * tile_ld<T>(64)];
};

template <typename T, int KP> struct back_shared {
	static const int stages = sizeof(T) == 2 ? 2 : 1;
	struct back_stage<T, KP> stage[stages];
	T ds[KP * tile_ld<T>(16)], d_o[64 * tile_ld<T>(16)], v[64 * tile_ld<T>(16)];
};

template <typename T, int KP>
static __device__ __forceinline__ void
fetch(struct back_stage<T, KP> *to, const struct kda_scratch &w, size_t head, int chunk)
{
	struct kda_entry e = kda_entry_at(w, chunk);
	size_t at = head * w.t + (size_t)e.row;

	tile_copy<T, KP, SCAN_THREADS>(to->w, (const T *)w.w + at * KP, e.n);
	tile_copy<T, KP, SCAN_THREADS>(to->kbar, (const T *)w.kbar + at * KP, e.n);
	tile_copy<T, KP, SCAN_THREADS>(to->qd, (const T *)w.qd + at * KP, e.n);
	tile_copy<T, 64, SCAN_THREADS>(to->p, (const T *)w.p + at * 64, e.n);
	copy_commit();
}

/* Gradients of the output: the block's columns, of which `cols` are there. */
template <typename E, typename T>
static __device__ __forceinline__ void
load_output_gradient(E *tile, const T *d_o, size_t ld, const int32_t *order, int n, int cols)
{
	for (int i = (int)threadIdx.x; i < 64 * 16; i += SCAN_THREADS) {
		int r = i / 16, c = i % 16;

		tile[r * tile_ld<E>(16) + c] =
			narrow<E>(r < n && c < cols ? wide(d_o[(size_t)order[r] * ld + c]) : 0.0f);
	}
}

/* Rows of dV~ of the warp; the tile gets them with the sign turned. */
template <typename T>
static __device__ __forceinline__ void
keep_gradient(T *tile, T *keep, size_t vp, int n, float (*c)[4])
{
	int first = (int)(threadIdx.x >> 5) * 16;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		int r = first + piece_row(i), col = piece_col(i);
		float x = c[i >> 2][i & 3];

		tile[r * tile_ld<T>(16) + col] = narrow<T>(-x);
		if (r < n)
			keep[(size_t)r * vp + col] = narrow<T>(x);
	}
}

/* One chunk; s is the gradient of its leaving state, then of the entering one. */
template <typename T, int KP>
static __device__ __forceinline__ void
step_back(struct back_shared<T, KP> &sh, const struct back_stage<T, KP> &g,
	  struct scan_state<KP> *s, const struct kda_task &x, const struct kda_entry &e)
{
	const int ld = tile_ld<T>(KP), ldv = tile_ld<T>(16), ldp = tile_ld<T>(64);
	size_t head = blockIdx.y, at = head * x.work.t + (size_t)e.row, vp = x.work.vp;
	int first = (int)(threadIdx.x >> 5) * 16;
	float c[2][4] = {};

	product<false, false, sizeof(T) == 4, 1>(c, g.kbar + first * ld, ld, sh.ds, ldv, KP / 16);
	product<true, false, sizeof(T) == 4, 1>(c, g.p + first * ldp + first, ldp,
						sh.d_o + first * ldv, ldv, 4 - first / 16);
	keep_gradient<T>(sh.v, (T *)x.work.dvt + at * vp + (size_t)blockIdx.x * KDA_BV, vp, e.n, c);
	__syncthreads();
	if (e.from == KDA_NONE)
		return;
	size_t slot = e.to >= 0 ? (size_t)e.to : x.work.slots;
	const float *last = x.work.last + (head * (x.work.slots + 1) + slot) * KP;
	state_decay<KP>(s, e.to == KDA_NONE ? NULL : last);
	state_add<T, KP>(s, g.qd, sh.d_o);
	state_add<T, KP>(s, g.w, sh.v);
}

template <typename T, int KP>
static __global__ void
__launch_bounds__(SCAN_THREADS) scan_back(struct kda_task x)
{
	typedef typename kda_tile<T, KP>::type E;
	extern __shared__ __align__(128) unsigned char shared[];
	struct back_shared<E, KP> &sh = *reinterpret_cast<struct back_shared<E, KP> *>(shared);
	const int stages = back_shared<E, KP>::stages;
	size_t head = blockIdx.y, kv = x.a.k * x.a.v, ld_o = (x.a.h1 - x.a.h0) * x.a.v;
	const float *ds_out = x.ds_out ? x.ds_out + (x.first + head) * kv : NULL;
	float *ds_in = x.ds_in ? x.ds_in + (x.first + head) * kv : NULL;
	int chunks = x.work.table[0], col = (int)blockIdx.x * KDA_BV;
	const T *d_o = (const T *)x.d_o + (x.first + head) * x.a.v + col;
	struct kda_entry e = {0, 0, KDA_NONE, KDA_OUTSIDE};
	struct scan_state<KP> s;

	if (chunks > 0)
		fetch<E, KP>(&sh.stage[(chunks - 1) % stages], x.work, head, chunks - 1);
	for (int i = chunks - 1; i >= 0; i--) {
		e = kda_entry_at(x.work, i);
		if (stages > 1 && i > 0)
			fetch<E, KP>(&sh.stage[(i - 1) % stages], x.work, head, i - 1);
		if (e.to < 0)
			state_load<KP>(&s, e.to == KDA_OUTSIDE ? ds_out : NULL, col, x.a.k, x.a.v);
		else
			state_round<E, KP>(
				(E *)x.work.ds +
					(head * x.work.slots + (size_t)e.to) * KP * x.work.vp + col,
				x.work.vp, s);
		state_round<E, KP>(sh.ds, tile_ld<E>(16), s);
		load_output_gradient<E, T>(sh.d_o, d_o, ld_o, kda_order(x.layout) + e.row, e.n,
					   (int)x.a.v - col);
		if (stages > 1 && i > 0)
			copy_wait<1>();
		else
			copy_wait<0>();
		__syncthreads();
		step_back<E, KP>(sh, sh.stage[i % stages], &s, x, e);
		__syncthreads();
		if (stages == 1 && i > 0)
			fetch<E, KP>(&sh.stage[0], x.work, head, i - 1);
	}
	if (!ds_in)
		return;
	if (e.from != KDA_OUTSIDE)
		state_load<KP>(&s, x.work.table[1] ? ds_out : NULL, col, x.a.k, x.a.v);
	state_store<KP>(ds_in, s, col, x.a.k, x.a.v);
}

template <typename T, int KP>
static void
launch(const struct kda_task *x, const struct k3_cuda *cuda)
{
	dim3 grid((unsigned)(x->work.vp / KDA_BV), (unsigned)x->heads);
	size_t bytes = sizeof(struct back_shared<typename kda_tile<T, KP>::type, KP>);

	K3_CUDA_CHECK(cudaFuncSetAttribute(
		scan_back<T, KP>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
	scan_back<T, KP><<<grid, SCAN_THREADS, bytes, (cudaStream_t)cuda->stream>>>(*x);
	K3_CUDA_LAUNCHED("scan_back");
}

template <typename T>
void
k3i_kda_scan_back(const struct kda_task *x, const struct k3_cuda *cuda)
{
	size_t width = k3i_kda_width(x->a.k);

	if (sizeof(T) == sizeof(k3_bf16) && k3i_kda_walks(x->a.k))
		return; /* went with the repetition */
	if (width == 32)
		launch<T, 32>(x, cuda);
	else if (width == 64)
		launch<T, 64>(x, cuda);
	else
		launch<T, 128>(x, cuda);
}

template void k3i_kda_scan_back<float>(const struct kda_task *, const struct k3_cuda *);
template void k3i_kda_scan_back<k3_bf16>(const struct kda_task *, const struct k3_cuda *);
