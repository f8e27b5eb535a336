/* Local gradients of bf16 chunks (model.md 3.6), second part: products with the states, decayed
 * sums, gates.
 *
 * A block has 64 channels of a chunk, a warp 16 of them (kda_channels.cuh), which meet no other
 * warp's.  Tiles of q, k and f become those of q e, beta k e and k / e, and at last those
 * of the results; f comes a second time for the gate's slope.
 */
#include "kda_sums_back.cuh"

enum { THREADS = 32 * SUMS_WARPS };

static __device__ __forceinline__ void
one_warp(struct kda_gate_sums *sum, struct sums &s, const struct kda_task &x,
	 const struct kda_entry &e, const int32_t *order, const struct kda_head<k3_bf16> &h,
	 size_t head, size_t kp, int first)
{
	int warp = (int)threadIdx.x / 32, g = (int)(threadIdx.x & 31) / 4, pack = 2 * warp;
	int channel = first + 16 * warp, cols = (int)x.a.k - channel;
	const k3_bf16 *state = kda_entering(x, e, head, kp),
		      *ds = kda_leaving_gradient(x, e, head, kp);
	int vp = (int)x.work.vp;
	size_t hg = x.a.h1 - x.a.h0, ld = hg * (2 * x.a.k + x.a.v), i = x.first + head;
	k3_bf16 *dq = (k3_bf16 *)x.dqkv + i * x.a.k + channel, *dk = dq + hg * x.a.k;
	bool there = channel < (int)kp;
	int row = 2 * (int)(threadIdx.x & 31);
	float *parts = x.work.dbeta +
		       (head * KDA_DBETA_PARTS + 1 + (size_t)channel / 16) * x.work.t + e.row;
	float2 dbeta;
	float out[8][4] = {};
	struct kda_gate gate = gate_of(h, channel + g, (int)x.a.k, x.a.lower_bound);
	struct sums_regs r;

	r.end[0] = r.end[1] = 0;
#pragma unroll
	for (int m = 0; m < 32; m++)
		r.side[m / 4][m % 4] = 0;
	if (there) {
		decay_load<64>(&r.d, s.f, pack, gate, e.n);
		decay_tiles(s, r.d, pack);
	}
	copy_wait<0>();
	__syncthreads();
	gradient_of_p(s, x.a.scale);
	__syncthreads();
	if (!there)
		return;
	key_columns(&r, s, ds, vp, channel, pack);
	dbeta = key_rows(&r, s, pack, state);
	if (row < e.n)
		parts[row] = dbeta.x;
	if (row + 1 < e.n)
		parts[row + 1] = dbeta.y;
	matrix_store<64>(s.k, r.dk, pack);
	rows_store<64>(dk, ld, order, e.n, cols, s.k, pack);
	rows_fetch<64, 2, 32>(s.k, pack, h.f + channel, h.ld_f, rows_find<2, 32>(order, e.n), e.n,
			      cols);
	copy_commit();
	query_rows(out, &r, s, state, ds, vp, channel, pack, x.a.scale);
	matrix_store<64>(s.q, out, pack);
	rows_store<64>(dq, ld, order, e.n, cols, s.q, pack);
	sum_up(r.side, r.end);
	copy_wait<0>();
	__syncwarp();
	gate_slope<64>(r.side, sum, s.k, pack, gate, x.a.lower_bound * h.exp_a, e.n);
	matrix_store<64>(s.f, r.side, pack);
	rows_store<64>((k3_bf16 *)x.df + i * x.a.k + channel, hg * x.a.k, order, e.n, cols, s.f,
		       pack);
}

static __device__ __forceinline__ void
fetch(struct sums &s, const struct kda_task &x, const struct kda_head<k3_bf16> &h,
      const int32_t *order, const struct kda_entry &e, size_t head, size_t kp, int first)
{
	size_t at = head * x.work.t + (size_t)e.row, vp = x.work.vp, i = x.first + head;
	int cols = (int)x.a.k - first, row = (int)threadIdx.x;

	struct kda_row_run<8, THREADS> rows = rows_find<8, THREADS>(order, e.n);
	struct kda_row_run<16, THREADS> whole = rows_find<16, THREADS>(order, e.n);

	rows_fetch<64>(s.f, 0, h.f + first, h.ld_f, rows, e.n, cols);
	rows_fetch<64>(s.k, 0, h.k + first, h.ld_qkv, rows, e.n, cols);
	rows_fetch<64>(s.q, 0, h.q + first, h.ld_qkv, rows, e.n, cols);
	copy_commit();
	rows_fetch<128>(s.d_o, 0, (const k3_bf16 *)x.d_o + i * x.a.v, (x.a.h1 - x.a.h0) * x.a.v,
			whole, e.n, (int)x.a.v);
	rows_fetch<128>(s.vt, 0, (const k3_bf16 *)x.work.vt + at * vp, vp,
			rows_find<16, THREADS>(NULL, e.n), e.n, (int)vp);
	if (kda_entering(x, e, head, kp))
		rows_fetch<64>(s.dx, 0, (const k3_bf16 *)x.work.dx + at * kp + first, kp,
			       rows_find<8, THREADS>(NULL, e.n), e.n, (int)kp - first);
	lower_fetch<THREADS>(s.dl, (const k3_bf16 *)x.work.dl + at * 64, e.n);
	copy_commit();
	if (row < 64)
		s.beta[row] =
			row < e.n ? kda_sigmoid(wide(h.br[(size_t)order[row] * h.ld_br])) : 0.0f;
}

/* Asks for the block's channels of a state ahead of their use. */
static __device__ __forceinline__ void
ask(const k3_bf16 *state, int vp, int first)
{
	if (state)
		state_ask(state + first * vp, vp);
}

/* Sums over the block's chunks: of all channels, and by channels. */
static __device__ __forceinline__ void
keep_sums(float *dab, struct kda_gate_sums sum, struct sums &s, int part, int channels)
{
	int lane = (int)(threadIdx.x & 31), c = (int)threadIdx.x / 32 * 16 + lane / 4;

	sum.da = block_sum(sum.da, s.beta);
	if (threadIdx.x == 0)
		dab[part] = sum.da;
	for (int i = 0; i < 2; i++) {
		sum.db[i] += __shfl_xor_sync(0xffffffffu, sum.db[i], 1);
		sum.db[i] += __shfl_xor_sync(0xffffffffu, sum.db[i], 2);
		if ((lane & 3) == 0 && c + 8 * i < channels)
			dab[KDA_DAB_HEAD + part * SUMS_CHANNELS + c + 8 * i] = sum.db[i];
	}
}

static __global__ void
__launch_bounds__(THREADS, 2) sums_back(struct kda_task x, size_t kp, int parts)
{
	extern __shared__ __align__(128) unsigned char shared[];
	struct sums &s = *reinterpret_cast<struct sums *>(shared);
	size_t head = blockIdx.y;
	int part = (int)blockIdx.x % parts, block = (int)blockIdx.x / parts,
	    blocks = (int)gridDim.x / parts, first = part * SUMS_CHANNELS;
	struct kda_head<k3_bf16> h = kda_head_of<k3_bf16>(x, head);
	struct kda_gate_sums sum = {0, {0, 0}};

	for (int i = block; i < x.work.table[0]; i += blocks) {
		struct kda_entry e = kda_entry_at(x.work, i);
		const int32_t *order = kda_order(x.layout) + e.row;

		fetch(s, x, h, order, e, head, kp, first);
		ask(kda_leaving_gradient(x, e, head, kp), (int)x.work.vp, first);
		ask(kda_entering(x, e, head, kp), (int)x.work.vp, first);
		copy_wait<1>();
		__syncthreads();
		one_warp(&sum, s, x, e, order, h, head, kp, first);
		__syncthreads();
	}
	keep_sums(x.work.dab + (head * blocks + block) * (KDA_DAB_HEAD + kp), sum, s, part,
		  (int)kp - first);
}

void
k3i_kda_sums_back(const struct kda_task *x, const struct k3_cuda *cuda)
{
	size_t kp = k3i_kda_width(x->a.k), parts = kp / SUMS_CHANNELS;
	dim3 grid((unsigned)(k3i_kda_chunks(x->work.t) * parts), (unsigned)x->heads);

	K3_CUDA_CHECK(cudaFuncSetAttribute(sums_back, cudaFuncAttributeMaxDynamicSharedMemorySize,
					   (int)sizeof(struct sums)));
	sums_back<<<grid, THREADS, sizeof(struct sums), (cudaStream_t)cuda->stream>>>(*x, kp,
										      (int)parts);
	K3_CUDA_LAUNCHED("sums_back");
}
