/* Gradients inside a chunk, second half: what follows the decayed sums, the gate, and the kernel. */
#include "kda_sums.cuh"

/* dp = s tril(dO V~^T) and dm = beta dL as tiles; dbeta += rowsum(dL M). */
template <typename T, int KP>
static __device__ __forceinline__ void
triangles(struct local_regs<KP> *r, struct local_shared<T, KP> &sh, const struct kda_task &x,
	  const struct kda_entry &e, size_t at)
{
	typedef struct local_shared<T, KP> S;

#pragma unroll
	for (int i = 0; i < 16; i++) {
		int row = local_row(i), col = local_col(i, 32);
		float dl = col < row && row < e.n ? -r->dl[i >> 2][i & 3] : 0.0f;

		sh.u.sums.dp[row * S::ld64 + col] =
			col <= row ? x.a.scale * r->dp[i >> 2][i & 3] : 0.0f;
		sh.u.sums.dm[row * S::ld64 + col] = sh.beta[row] * dl;
		if (col < row && row < e.n)
			r->dbeta[i >> 1 & 1] += dl * x.work.m[(at + row) * 64 + col];
	}
}

/* What the states leave: dq, dk_row (in dx) and dk_col with their decays; column sums of K- dK-. */
template <typename T, int KP>
static __device__ __forceinline__ void
state_parts(struct local_regs<KP> *r, struct local_shared<T, KP> &sh, float scale)
{
	typedef struct local_shared<T, KP> S;
	int block = (int)(threadIdx.x >> 5 & 3);
	float sum[KP / 8] = {};

#pragma unroll
	EACH(i)
	{
		int row = local_row(i), c = local_col(i, KP / 2);
		float l = sh.u.sums.l[row * S::ldf + c], k = wide(sh.u.sums.k[row * S::ld + c]);
		float down = power_of_2(sh.before[block * KP + c] + l);
		float rest =
			sh.u.sums.l[(block * 16 + 15) * S::ldf + c] - l + sh.behind[block * KP + c];
		float dx = r->dx[i >> 2][i & 3] * down;

		r->dbeta[i >> 1 & 1] += dx * k;
		r->dx[i >> 2][i & 3] = sh.beta[row] * dx;
		r->dq[i >> 2][i & 3] *= scale * down;
		r->dk_col[i >> 2][i & 3] *= power_of_2(rest);
		sum[(i >> 2) * 2 + (i & 1)] += k * r->dk_col[i >> 2][i & 3];
	}
#pragma unroll
	for (int i = 0; i < KP / 8; i++) {
#pragma unroll
		for (int step = 4; step < 32; step *= 2)
			sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], step);
		if ((threadIdx.x & 31) < 4)
			sh.columns[block * KP + local_col((i >> 1) * 4 + (i & 1), KP / 2)] = sum[i];
	}
}

/* dq and dk to memory; side = dG, without what the last row gets. */
template <typename T, typename E, int KP>
static __device__ __forceinline__ void
write_rows(const struct local_regs<KP> &r, struct local_shared<E, KP> &sh, const struct kda_task &x,
	   const struct kda_entry &e, const int32_t *order, size_t head)
{
	typedef struct local_shared<E, KP> S;
	size_t hg = x.a.h1 - x.a.h0, k = x.a.k, ld = hg * (2 * k + x.a.v);
	T *dq = (T *)x.dqkv + (x.first + head) * k, *dk = dq + hg * k;

	__syncthreads();
#pragma unroll
	EACH(i)
	{
		int row = local_row(i), c = local_col(i, KP / 2);
		float row_side = r.dx[i >> 2][i & 3], col_side = r.dk_col[i >> 2][i & 3];

		sh.u.sums.side[row * S::ldf + c] =
			wide(sh.u.sums.q[row * S::ld + c]) * r.dq[i >> 2][i & 3] +
			wide(sh.u.sums.k[row * S::ld + c]) * (row_side - col_side);
		if (row < e.n && c < (int)k) {
			dq[(size_t)order[row] * ld + c] = narrow<T>(r.dq[i >> 2][i & 3]);
			dk[(size_t)order[row] * ld + c] = narrow<T>(row_side + col_side);
		}
	}
	__syncthreads();
}

/* Sums of dG from the last row up, and the gate's slope; adds the thread's column sums. */
template <typename T, typename E, int KP>
static __device__ __forceinline__ void
gate_gradient(float *da, float *db, struct local_shared<E, KP> &sh, const struct kda_task &x,
	      const struct kda_entry &e, const int32_t *order, size_t head)
{
	typedef struct local_shared<E, KP> S;
	struct kda_head<T> h = kda_head_of<T>(x, head);
	size_t hg = x.a.h1 - x.a.h0;
	int c = (int)threadIdx.x % KP;
	float end = 0, states = 0, *side = sh.u.sums.side;

	for (int i = (int)threadIdx.x; i < 4 * KP; i += LOCAL_THREADS) {
		float sum = 0, *at = side + i / KP * 16 * S::ldf + i % KP;

#pragma unroll
		for (int r = 15; r >= 0; r--) {
			sum += at[r * S::ldf];
			at[r * S::ldf] = sum;
		}
	}
	__syncthreads();
	for (int i = c; i < LOCAL_THREADS; i += KP)
		states += sh.states[i];
	for (int b = 0; b < 4; b++)
		end += sh.columns[b * KP + c];
	end += power_of_2(sh.before[4 * KP + c]) * states;
	for (int r = (int)threadIdx.x / KP; c < (int)x.a.k && r < e.n; r += LOCAL_THREADS / KP) {
		size_t t = (size_t)order[r];
		float dg = side[r * S::ldf + c] + end;

		for (int b = r / 16 + 1; b < 4; b++)
			dg += side[b * 16 * S::ldf + c];
		if (!x.a.raw) {
			float in = wide(h.f[t * h.ld_f + c]) + h.dt[c], y = h.exp_a * in;

			dg *= x.a.lower_bound * h.exp_a * kda_sigmoid(y) * kda_sigmoid(-y);
			*da += dg * in;
			*db += dg;
		}
		((T *)x.df)[(t * hg + x.first + head) * x.a.k + c] = narrow<T>(dg);
	}
}

/* dbeta of the rows from the lanes' and halves' parts. */
template <typename T, typename E, int KP>
static __device__ __forceinline__ void
beta_gradient(const struct local_regs<KP> &r, struct local_shared<E, KP> &sh,
	      const struct kda_task &x, const struct kda_entry &e, const struct kda_head<T> &h,
	      const int32_t *order, size_t head)
{
	size_t hg = x.a.h1 - x.a.h0;
	int row = (int)threadIdx.x;

#pragma unroll
	for (int i = 0; i < 2; i++) {
		float sum = r.dbeta[i];

		sum += __shfl_xor_sync(0xffffffffu, sum, 1);
		sum += __shfl_xor_sync(0xffffffffu, sum, 2);
		if ((threadIdx.x & 3) == 0)
			sh.dbeta[(threadIdx.x >> 7) * 64 + local_row(2 * i)] = sum;
	}
	__syncthreads();
	if (row < e.n) {
		float d = sh.dbeta[row] + sh.dbeta[64 + row];
		size_t t = (size_t)order[row];

		if (!x.a.raw)
			d *= kda_sigmoid_slope(wide(h.br[t * h.ld_br]));
		((T *)x.dbr)[t * hg + x.first + head] = narrow<T>(d);
	}
}

template <typename T, typename E, int KP>
static __device__ __forceinline__ void
one_chunk(float *da, float *db, struct local_shared<E, KP> &sh, const struct kda_task &x,
	  const struct kda_entry &e, size_t head)
{
	typedef struct local_shared<E, KP> S;
	const int32_t *order = kda_order(x.layout) + e.row;
	size_t at = head * x.work.t + (size_t)e.row;
	struct kda_head<T> h = kda_head_of<T>(x, head);
	struct local_regs<KP> r = {
	};

	beta_load<T, LOCAL_THREADS>(sh.beta, h, x.a, order, e.n);
	state_products<T, E, KP>(&r, sh, x, e, order, head);
	for (int i = (int)threadIdx.x; i < 64 * 64; i += LOCAL_THREADS)
		sh.u.wy.tm[i / 64 * S::ldt + i % 64] =
			narrow<E>(i / 64 < e.n ? x.work.tm[at * 64 + i] : 0.0f);
	if (e.from != KDA_NONE)
		gradient_of_x<E, KP>(&r, sh, (const E *)x.work.w + at * KP, e.n);
	gradient_of_y<T, E, KP>(&r, sh, x, e, order, head);
	triangles<E, KP>(&r, sh, x, e, at);
	rows_load<E, T, KP, LOCAL_THREADS>(sh.u.sums.q, h.q, h.ld_qkv, order, e.n, 0, (int)x.a.k);
	rows_load<E, T, KP, LOCAL_THREADS>(sh.u.sums.k, h.k, h.ld_qkv, order, e.n, 0, (int)x.a.k);
	gates_load<T, KP, LOCAL_THREADS>(sh.u.sums.l, h, x.a, order, e.n);
	decays<KP, LOCAL_THREADS>(sh.u.sums.l, sh.before, sh.behind);
	state_parts<E, KP>(&r, sh, x.a.scale);
	decayed_sums<E, KP>(&r, sh, kda_bounded(x.a));
	write_rows<T, E, KP>(r, sh, x, e, order, head);
	gate_gradient<T, E, KP>(da, db, sh, x, e, order, head);
	beta_gradient<T, E, KP>(r, sh, x, e, h, order, head);
	__syncthreads();
}

template <typename T, int KP>
static __global__ void
__launch_bounds__(LOCAL_THREADS, 1) local_gradients(struct kda_task x)
{
	typedef typename kda_tile<T, KP>::type E;
	extern __shared__ __align__(128) unsigned char shared[];
	struct local_shared<E, KP> &sh = *reinterpret_cast<struct local_shared<E, KP> *>(shared);
	__shared__ float part[32];
	size_t head = blockIdx.y;
	float da = 0, db = 0, sum = 0,
	      *dab = x.work.dab + (head * gridDim.x + blockIdx.x) * (KDA_DAB_HEAD + KP);

	for (int i = (int)blockIdx.x; i < x.work.table[0]; i += (int)gridDim.x)
		one_chunk<T, E, KP>(&da, &db, sh, x, kda_entry_at(x.work, i), head);
	da = block_sum(da, part);
	if (threadIdx.x == 0)
		dab[0] = da;
	sh.states[threadIdx.x] = db;
	__syncthreads();
	for (int i = (int)threadIdx.x; threadIdx.x < KP && i < LOCAL_THREADS; i += KP)
		sum += sh.states[i];
	if (threadIdx.x < KP)
		dab[KDA_DAB_HEAD + threadIdx.x] = sum;
}

template <typename T, int KP>
static void
launch(const struct kda_task *x, const struct k3_cuda *cuda)
{
	size_t blocks = k3i_kda_blocks(x->work.t),
	       bytes = sizeof(struct local_shared<typename kda_tile<T, KP>::type, KP>);
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	dim3 grid((unsigned)blocks, (unsigned)x->heads);

	K3_CUDA_CHECK(cudaFuncSetAttribute(
		local_gradients<T, KP>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
	if (blocks)
		local_gradients<T, KP><<<grid, LOCAL_THREADS, bytes, stream>>>(*x);
	K3_CUDA_LAUNCHED("local_gradients");
}

template <typename T>
void
k3i_kda_local_plain(const struct kda_task *x, const struct k3_cuda *cuda)
{
	size_t width = k3i_kda_width(x->a.k);

	if (width == 32)
		launch<T, 32>(x, cuda);
	else if (width == 64)
		launch<T, 64>(x, cuda);
	else
		launch<T, 128>(x, cuda);
}

template void k3i_kda_local_plain<float>(const struct kda_task *, const struct k3_cuda *);
template void k3i_kda_local_plain<k3_bf16>(const struct kda_task *, const struct k3_cuda *);
