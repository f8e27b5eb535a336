/* KDA's states, chunk after chunk (model.md 3.4): V~ = U - W S, o = s Q exp(G) S + Pq V~, S =
 * exp(G_last) S + K-^T V~.  The next chunk's tiles are on their way meanwhile (bf16 tiles; float
 * ones have no room for two).  The backward's repetition keeps V~ and the entering states in place
 * of o.
 */
#include "kda_scan.cuh"

template <typename T, int KP> struct scan_stage {
	T w[64 * tile_ld<T>(KP)], kbar[64 * tile_ld<T>(KP)], qd[64 * tile_ld<T>(KP)];
	T p[64 * tile_ld<T>(64)], u[64 * tile_ld<T>(16)];
	struct scan_ahead<KP> ahead;
};

template <typename T, int KP> struct scan_shared {
	static const int stages = sizeof(T) == 2 ? 2 : 1;
	struct scan_stage<T, KP> stage[stages];
	T s[KP * tile_ld<T>(16)], v[64 * tile_ld<T>(16)];
};

template <typename T, int KP>
static __device__ __forceinline__ void
fetch(struct scan_stage<T, KP> *to, const struct kda_task &x, const struct kda_entry &e,
      size_t head, bool output)
{
	const struct kda_scratch &w = x.work;
	size_t at = head * w.t + (size_t)e.row;

	tile_copy<T, KP, SCAN_THREADS>(to->w, (const T *)w.w + at * KP, e.n);
	tile_copy<T, KP, SCAN_THREADS>(to->kbar, (const T *)w.kbar + at * KP, e.n);
	if (output) {
		tile_copy<T, KP, SCAN_THREADS>(to->qd, (const T *)w.qd + at * KP, e.n);
		tile_copy<T, 64, SCAN_THREADS>(to->p, (const T *)w.p + at * 64, e.n);
	}
	columns_fetch<T>(to->u, (const T *)w.u + at * w.vp + blockIdx.x * KDA_BV, w.vp, e.n);
	ahead_fetch<KP>(&to->ahead, x, e, head);
	copy_commit();
}

/* V~ of the warp's 16 rows: to the tile and, in the backward, to memory. */
template <typename T>
static __device__ __forceinline__ void
new_values(T *tile, float (*ws)[4], const T *u, T *keep, size_t vp, int n)
{
	int first = (int)(threadIdx.x >> 5) * 16;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		int r = first + piece_row(i), c = piece_col(i), at = r * tile_ld<T>(16) + c;
		float x = wide(u[at]) - ws[i >> 2][i & 3];

		tile[at] = narrow<T>(x);
		if (keep && r < n)
			keep[(size_t)r * vp + c] = narrow<T>(x);
	}
}

/* Output rows of the warp; o: column 0 of the block's columns, of which `cols` are there. */
template <typename T>
static __device__ __forceinline__ void
output_rows(T *o, size_t ld, const int32_t *order, int n, int cols, float (*c)[4])
{
	int first = (int)(threadIdx.x >> 5) * 16;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		int r = first + piece_row(i), col = piece_col(i);

		if (r < n && col < cols)
			o[(size_t)order[r] * ld + col] = narrow<T>(c[i >> 2][i & 3]);
	}
}

/* One chunk; s is its entering state, then the leaving one. */
template <typename T, typename E, int KP>
static __device__ __forceinline__ void
step(struct scan_shared<E, KP> &sh, const struct scan_stage<E, KP> &g, struct scan_state<KP> *s,
     const struct kda_task &x, const struct kda_entry &e, bool output)
{
	const int ld = tile_ld<E>(KP), ldv = tile_ld<E>(16);
	size_t head = blockIdx.y, at = head * x.work.t + (size_t)e.row, vp = x.work.vp;
	int col = (int)blockIdx.x * KDA_BV, warp = (int)(threadIdx.x >> 5);
	float ws[2][4] = {}, o[2][4] = {};
	E *keep = output ? NULL : (E *)x.work.vt + at * vp + col;

	product<false, false, sizeof(E) == 4, 1>(ws, g.w + warp * 16 * ld, ld, sh.s, ldv, KP / 16);
	if (output)
		product<false, false, sizeof(E) == 4, 1>(o, g.qd + warp * 16 * ld, ld, sh.s, ldv,
							 KP / 16);
	new_values<E>(sh.v, ws, g.u, keep, vp, e.n);
	__syncthreads();
	if (output) {
		const E *p = g.p + warp * 16 * tile_ld<E>(64);

		product<false, false, sizeof(E) == 4, 1>(o, p, tile_ld<E>(64), sh.v, ldv, warp + 1);
		output_rows<T>((T *)x.o + (x.first + head) * x.a.v + col, (x.a.h1 - x.a.h0) * x.a.v,
			       g.ahead.order, e.n, (int)x.a.v - col, o);
	}
	if (e.to != KDA_NONE) {
		state_decay<KP>(s, g.ahead.last);
		state_add<E, KP>(s, g.kbar, sh.v);
	}
}

template <typename T, int KP>
static __global__ void
__launch_bounds__(SCAN_THREADS) scan_chunks(struct kda_task x, bool output)
{
	typedef typename kda_tile<T, KP>::type E;
	extern __shared__ __align__(128) unsigned char shared[];
	struct scan_shared<E, KP> &sh = *reinterpret_cast<struct scan_shared<E, KP> *>(shared);
	const int stages = scan_shared<E, KP>::stages;
	size_t head = blockIdx.y, kv = x.a.k * x.a.v, slot_size = KP * x.work.vp;
	const float *s_in = x.s_in ? x.s_in + (x.first + head) * kv : NULL;
	float *s_out = x.s_out ? x.s_out + (x.first + head) * kv : NULL;
	int chunks = x.work.table[0], col = (int)blockIdx.x * KDA_BV;
	struct kda_entry e = {0, 0, KDA_OUTSIDE, KDA_NONE}, next = e, after = e;
	struct scan_state<KP> s;

	/* entries are read two chunks ahead: the copies of the next need them */
	if (chunks > 0)
		next = kda_entry_at(x.work, 0);
	if (chunks > 1)
		after = kda_entry_at(x.work, 1);
	if (chunks > 0)
		fetch<E, KP>(&sh.stage[0], x, next, head, output);
	for (int i = 0; i < chunks; i++) {
		e = next;
		next = after;
		if (i + 2 < chunks)
			after = kda_entry_at(x.work, i + 2);
		if (stages > 1 && i + 1 < chunks)
			fetch<E, KP>(&sh.stage[(i + 1) % stages], x, next, head, output);
		if (e.from < 0)
			state_load<KP>(&s, e.from == KDA_OUTSIDE ? s_in : NULL, col, x.a.k, x.a.v);
		else if (!output)
			state_round<E, KP>(
				(E *)x.work.s + (head * x.work.slots + (size_t)e.from) * slot_size +
					col,
				x.work.vp, s);
		state_round<E, KP>(sh.s, tile_ld<E>(16), s);
		if (stages > 1 && i + 1 < chunks)
			copy_wait<1>();
		else
			copy_wait<0>();
		__syncthreads();
		step<T, E, KP>(sh, sh.stage[i % stages], &s, x, e, output);
		__syncthreads();
		if (stages == 1 && i + 1 < chunks)
			fetch<E, KP>(&sh.stage[0], x, next, head, output);
	}
	if (!s_out || !output)
		return;
	if (e.to != KDA_OUTSIDE)
		state_load<KP>(&s, x.work.table[1] ? s_in : NULL, col, x.a.k, x.a.v);
	state_store<KP>(s_out, s, col, x.a.k, x.a.v);
}

template <typename T, int KP>
static void
launch(const struct kda_task *x, bool backward, const struct k3_cuda *cuda)
{
	dim3 grid((unsigned)(x->work.vp / KDA_BV), (unsigned)x->heads);
	size_t bytes = sizeof(struct scan_shared<typename kda_tile<T, KP>::type, KP>);

	K3_CUDA_CHECK(cudaFuncSetAttribute(
		scan_chunks<T, KP>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
	scan_chunks<T, KP>
		<<<grid, SCAN_THREADS, bytes, (cudaStream_t)cuda->stream>>>(*x, !backward);
	K3_CUDA_LAUNCHED("scan_chunks");
}

template <typename T>
void
k3i_kda_scan(const struct kda_task *x, bool backward, const struct k3_cuda *cuda)
{
	size_t width = k3i_kda_width(x->a.k);

	if (sizeof(T) == sizeof(k3_bf16) && k3i_kda_walks(x->a.k))
		k3i_kda_walk(x, backward, cuda);
	else if (width == 32)
		launch<T, 32>(x, backward, cuda);
	else if (width == 64)
		launch<T, 64>(x, backward, cuda);
	else
		launch<T, 128>(x, backward, cuda);
}

template void k3i_kda_scan<float>(const struct kda_task *, bool, const struct k3_cuda *);
template void k3i_kda_scan<k3_bf16>(const struct kda_task *, bool, const struct k3_cuda *);
