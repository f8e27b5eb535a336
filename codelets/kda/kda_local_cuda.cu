/* Local gradients of all chunks: which kernels, and the sums over what their blocks leave. */
#include "kda_channels.cuh"

enum { SUM_WARPS = 16, THREADS = 256 };

/* dab of a head, 32 of its numbers a block: sums over the blocks of the stage before, which are none
 * where the tile has no rows. */
static __global__ void
sum_dab(struct kda_task x, size_t blocks, size_t kp, int parts)
{
	__shared__ float part[SUM_WARPS][32];
	size_t head = blockIdx.y, hg = x.a.h1 - x.a.h0, i = x.first + head;
	size_t lane = threadIdx.x & 31, warp = threadIdx.x / 32, c = blockIdx.x * 32 + lane;
	const float *dab = x.work.dab + head * blocks * (KDA_DAB_HEAD + kp);
	float sum = 0;

	for (size_t b = warp; c <= x.a.k && b < blocks; b += SUM_WARPS) {
		const float *from = dab + b * (KDA_DAB_HEAD + kp);

		sum += c > 0 ? from[KDA_DAB_HEAD + c - 1] : parts > 1 ? from[0] + from[1] : from[0];
	}
	part[warp][lane] = sum;
	__syncthreads();
	if (warp > 0 || c > x.a.k)
		return;
	for (int w = 1; w < SUM_WARPS; w++)
		sum += part[w][lane];
	x.dab[c == 0 ? i : hg + i * x.a.k + c - 1] = sum;
}

/* dbr of all rows from the parts of dbeta. */
static __global__ void
sum_dbeta(struct kda_task x, int parts)
{
	size_t head = blockIdx.y, p = (size_t)blockIdx.x * THREADS + threadIdx.x;
	struct kda_head<k3_bf16> h = kda_head_of<k3_bf16>(x, head);
	const float *dbeta = x.work.dbeta + head * KDA_DBETA_PARTS * x.work.t + p;
	float sum = 0;

	if (p >= (size_t)x.layout[K3_TL_VALID])
		return;
	size_t row = (size_t)kda_order(x.layout)[p];
	for (int i = 0; i < parts; i++)
		sum += dbeta[(size_t)i * x.work.t];
	((k3_bf16 *)x.dbr)[row * (x.a.h1 - x.a.h0) + x.first + head] =
		narrow<k3_bf16>(sum * kda_sigmoid_slope(wide(h.br[row * h.ld_br])));
}

static void
launch_sum_dab(const struct kda_task *x, size_t blocks, int parts, cudaStream_t stream)
{
	dim3 grid((unsigned)(x->a.k / 32 + 1), (unsigned)x->heads);

	sum_dab<<<grid, 32 * SUM_WARPS, 0, stream>>>(*x, blocks, k3i_kda_width(x->a.k), parts);
	K3_CUDA_LAUNCHED("sum_dab");
}

/* States from outside as the local stage takes them. */
static __global__ void
round_edges(struct kda_task x, size_t kp)
{
	size_t head = blockIdx.x, vp = x.work.vp, size = x.a.k * x.a.v, i = (x.first + head) * size;
	const float *from = blockIdx.y ? x.ds_out : x.s_in;
	k3_bf16 *to = (k3_bf16 *)(blockIdx.y ? x.work.ds_edge : x.work.s_edge) + head * kp * vp;

	for (size_t at = threadIdx.x; from && at < kp * vp; at += blockDim.x) {
		size_t r = at / vp, c = at % vp;

		to[at] = narrow<k3_bf16>(r < x.a.k && c < x.a.v ? from[i + r * x.a.v + c] : 0.0f);
	}
}

static void
launch_by_channels(const struct kda_task *x, const struct k3_cuda *cuda)
{
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	dim3 grid(blocks_for(x->work.t, THREADS), (unsigned)x->heads);

	if (x->work.t) {
		if (x->s_in || x->ds_out)
			round_edges<<<dim3((unsigned)x->heads, 2), 1024, 0, stream>>>(
				*x, k3i_kda_width(x->a.k));
		K3_CUDA_LAUNCHED("round_edges");
		k3i_kda_wy_back(x, cuda);
		k3i_kda_sums_back(x, cuda);
		sum_dbeta<<<grid, THREADS, 0, stream>>>(*x, KDA_DBETA_PARTS);
		K3_CUDA_LAUNCHED("sum_dbeta");
	}
	launch_sum_dab(x, k3i_kda_chunks(x->work.t), KDA_DAB_HEAD, stream);
}

template <typename T>
void
k3i_kda_local(const struct kda_task *x, const struct k3_cuda *cuda)
{
	if (kda_by_channels<T>(*x)) {
		launch_by_channels(x, cuda);
		return;
	}
	k3i_kda_local_plain<T>(x, cuda);
	launch_sum_dab(x, k3i_kda_blocks(x->work.t), 1, (cudaStream_t)cuda->stream);
}

template void k3i_kda_local<float>(const struct kda_task *, const struct k3_cuda *);
template void k3i_kda_local<k3_bf16>(const struct kda_task *, const struct k3_cuda *);
