/* Local gradients of bf16 chunks (model.md 3.6), first part: through the inverse and the WY form.
 *
 *   dX = -Tm^T (dV~ S^T),  dY = Tm^T dV~,  dL = -stril(dX W^T + dY U^T),  dv = beta dY
 *
 * A warp has 16 channels of dX and 16 columns of dY, all rows of them; only dL adds over both.
 * dX and dL go to memory for the second part (kda_sums_back_cuda.cu).
 */
#include "kda_state.cuh"

enum { THREADS = 256, WARPS = 8 };

struct wy {
	k3_bf16 dvt[64 * 128]; /* then dX */
	k3_bf16 v[64 * 128];   /* then dY */
	k3_bf16 w[64 * 128], u[64 * 128], tm[LOWER_SIZE];
	float beta[64], dbeta[WARPS * 64];
};

/* dX of 16 channels to the tile and to memory; x: dV~ S^T. */
static __device__ __forceinline__ void
gradient_of_x(struct wy &s, float (*x)[4], k3_bf16 *dx, size_t kp, int n)
{
	int warp = (int)threadIdx.x / 32;
	kda_frag a[4];

#pragma unroll
	for (int b = 0; b < 4; b++)
		fragment_of(&a[b], x, b);
#pragma unroll
	for (int i = 0; i < 32; i++)
		x[i / 4][i % 4] = 0;
	times_lower(x, a, s.tm);
#pragma unroll
	for (int i = 0; i < 32; i++)
		x[i / 4][i % 4] = -x[i / 4][i % 4];
	matrix_store<128>(s.dvt, x, 2 * warp);
	rows_store<128>(dx + 16 * warp, kp, NULL, n, 16, s.dvt, 2 * warp);
}

/* dY of 16 columns, its sums with v, and dv.  a: dV~. */
static __device__ __forceinline__ void
gradient_of_y(struct wy &s, const kda_frag *a, const struct kda_task &x, const int32_t *order,
	      int n, size_t head)
{
	int warp = (int)threadIdx.x / 32, cols = (int)x.a.v - 16 * warp;
	size_t hg = x.a.h1 - x.a.h0;
	k3_bf16 *dv = (k3_bf16 *)x.dqkv + 2 * hg * x.a.k + (x.first + head) * x.a.v + 16 * warp;
	float y[8][4] = {}, sum[8][2];

	times_lower(y, a, s.tm);
#pragma unroll
	for (int b = 0; b < 4; b++) {
		float v[8][4];
		kda_frag f, out;

		channels_load<128>(&f, s.v, b * 16, 2 * warp);
		fragment_widen(v, f, b);
#pragma unroll
		for (int i = 0; i < 2; i++) {
			int m = 2 * b + i;
			float2 beta = *reinterpret_cast<const float2 *>(s.beta + 8 * m +
									2 * (threadIdx.x & 3));

			sum[m][0] = y[m][0] * v[m][0] + y[m][2] * v[m][2];
			sum[m][1] = y[m][1] * v[m][1] + y[m][3] * v[m][3];
			out.r[2 * i] = bf16_pair(beta.x * y[m][0], beta.y * y[m][1]);
			out.r[2 * i + 1] = bf16_pair(beta.x * y[m][2], beta.y * y[m][3]);
		}
		__syncwarp();
		channels_store<128>(s.v, out, b * 16, 2 * warp);
	}
	rows_store<128>(dv, hg * (2 * x.a.k + x.a.v), order, n, cols, s.v, 2 * warp);
	matrix_store<128>(s.v, y, 2 * warp);
	*reinterpret_cast<float2 *>(s.dbeta + warp * 64 + 2 * (threadIdx.x & 31)) =
		sum_channels(sum);
}

/* c += left right^T, rows row .. of the left tile, 8 rows col .. of the right one. */
static __device__ __forceinline__ void
outer(float *c, const k3_bf16 *left, int row, const k3_bf16 *right, int col, int packs)
{
	int lane = (int)(threadIdx.x & 31);

#pragma unroll 2
	for (int pack = 0; pack < packs; pack += 4) {
		kda_frag a[2];
		uint32_t b[4];

		left_load<128>(&a[0], left, row, pack);
		left_load<128>(&a[1], left, row, pack + 2);
		ldmatrix(b, right + pack_at<128>(col + (lane & 7), pack + (lane >> 3)));
		mma_bf16(c, a[0].r, b[0], b[1]);
		mma_bf16(c, a[1].r, b[2], b[3]);
	}
}

/* dL in pieces [16, 8] up to the diagonal. */
static __device__ __forceinline__ void
gradient_of_l(const struct wy &s, k3_bf16 *dl, int n, int k_packs, int v_packs)
{
	int lane = (int)(threadIdx.x & 31);

	for (int i = (int)threadIdx.x / 32; i < 20; i += WARPS) {
		int b = i < 2 ? 0 : i < 6 ? 1 : i < 12 ? 2 : 3, col = (i - b * (b + 1)) * 8;
		float c[4] = {};

		outer(c, s.dvt, b * 16, s.w, col, k_packs);
		outer(c, s.v, b * 16, s.u, col, v_packs);
		for (int half = 0; half < 2; half++) {
			int row = b * 16 + lane / 4 + 8 * half, at = col + (lane & 3) * 2;

			if (row < n)
				*reinterpret_cast<uint32_t *>(dl + row * 64 + at) =
					bf16_pair(at < row ? -c[2 * half] : 0.0f,
						  at + 1 < row ? -c[2 * half + 1] : 0.0f);
		}
	}
}

static __device__ __forceinline__ void
fetch(struct wy &s, const struct kda_task &x, const struct kda_head<k3_bf16> &h,
      const int32_t *order, const struct kda_entry &e, size_t at, size_t kp)
{
	size_t vp = x.work.vp;
	int row = (int)threadIdx.x;

	struct kda_row_run<16, THREADS> lines = rows_find<16, THREADS>(NULL, e.n);

	rows_fetch<128>(s.dvt, 0, (const k3_bf16 *)x.work.dvt + at * vp, vp, lines, e.n, (int)vp);
	lower_fetch<THREADS>(s.tm, (const k3_bf16 *)x.work.tm + at * 64, e.n);
	copy_commit();
	rows_fetch<128>(s.w, 0, (const k3_bf16 *)x.work.w + at * kp, kp, lines, e.n, (int)kp);
	rows_fetch<128>(s.u, 0, (const k3_bf16 *)x.work.u + at * vp, vp, lines, e.n, (int)vp);
	rows_fetch<128>(s.v, 0, h.v, h.ld_qkv, rows_find<16, THREADS>(order, e.n), e.n, (int)x.a.v);
	copy_commit();
	if (row < 64)
		s.beta[row] =
			row < e.n ? kda_sigmoid(wide(h.br[(size_t)order[row] * h.ld_br])) : 0.0f;
}

static __global__ void
__launch_bounds__(THREADS, 2) wy_back(struct kda_task x, size_t kp)
{
	extern __shared__ __align__(128) unsigned char shared[];
	struct wy &s = *reinterpret_cast<struct wy *>(shared);
	size_t head = blockIdx.y;
	struct kda_head<k3_bf16> h = kda_head_of<k3_bf16>(x, head);
	int warp = (int)threadIdx.x / 32, row = (int)threadIdx.x;

	for (int i = (int)blockIdx.x; i < x.work.table[0]; i += (int)gridDim.x) {
		struct kda_entry e = kda_entry_at(x.work, i);
		const int32_t *order = kda_order(x.layout) + e.row;
		size_t at = head * x.work.t + (size_t)e.row;
		const k3_bf16 *state = kda_entering(x, e, head, kp);
		bool lives = state && 16 * warp < (int)kp;
		float dx[8][4] = {}, sum = 0;
		struct state_left left[4];
		kda_frag dvt[4];

		if (lives)
#pragma unroll
			for (int step = 0; step < 4; step++)
				state_left_load(&left[step], state, (int)x.work.vp, 16 * warp,
						step);
		fetch(s, x, h, order, e, at, kp);
		copy_wait<1>();
		__syncthreads();
		if (lives)
			times_state(dx, left, s.dvt);
#pragma unroll
		for (int b = 0; b < 4; b++)
			channels_load<128>(&dvt[b], s.dvt, b * 16, 2 * warp);
		copy_wait<0>();
		__syncthreads();
		if (lives)
			gradient_of_x(s, dx, (k3_bf16 *)x.work.dx + at * kp, kp, e.n);
		gradient_of_y(s, dvt, x, order, e.n, head);
		__syncthreads();
		gradient_of_l(s, (k3_bf16 *)x.work.dl + at * 64, e.n, state ? (int)kp / 8 : 0, 16);
		for (int w = 0; row < e.n && w < WARPS; w++)
			sum += s.dbeta[w * 64 + row];
		if (row < e.n)
			x.work.dbeta[head * KDA_DBETA_PARTS * x.work.t + (size_t)(e.row + row)] =
				sum;
		__syncthreads();
	}
}

void
k3i_kda_wy_back(const struct kda_task *x, const struct k3_cuda *cuda)
{
	dim3 grid((unsigned)k3i_kda_chunks(x->work.t), (unsigned)x->heads);

	K3_CUDA_CHECK(cudaFuncSetAttribute(wy_back, cudaFuncAttributeMaxDynamicSharedMemorySize,
					   (int)sizeof(struct wy)));
	wy_back<<<grid, THREADS, sizeof(struct wy), (cudaStream_t)cuda->stream>>>(
		*x, k3i_kda_width(x->a.k));
	K3_CUDA_LAUNCHED("wy_back");
}
