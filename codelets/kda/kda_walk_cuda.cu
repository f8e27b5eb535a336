/* KDA's states, chunk after chunk, for wide bf16 heads: the walk forth, and in the backward beside
 * it the one back, which needs no state. */
#include "kda_walk_back.cuh"
#include "kda_walk_forth.cuh"

/* The backward has two layers of blocks. */
template <bool BACKWARD>
static __global__ void
__launch_bounds__(WALK_THREADS, 1) walk_chunks(const __grid_constant__ struct kda_task x)
{
#if K3_WGMMA
	extern __shared__ unsigned char raw[];
	struct walk_shared &sh = walk_shared_at(raw);
	/* the same in all lanes, as the compiler can see */
	int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);

	if (!BACKWARD)
		walk_output_block(sh, x, warp);
	else if (blockIdx.z == 0)
		walk_back_block(sh, x, warp);
	else
		walk_keeping_block(sh, x, warp);
#endif
}

template <bool BACKWARD>
static void
launch(const struct kda_task *x, const struct k3_cuda *cuda)
{
	dim3 grid(blocks_for(x->work.vp, WALK_V), (unsigned)x->heads, BACKWARD ? 2 : 1);

	K3_CUDA_CHECK(cudaFuncSetAttribute(
		walk_chunks<BACKWARD>, cudaFuncAttributeMaxDynamicSharedMemorySize, WALK_BYTES));
	walk_chunks<BACKWARD><<<grid, WALK_THREADS, WALK_BYTES, (cudaStream_t)cuda->stream>>>(*x);
	K3_CUDA_LAUNCHED("walk_chunks");
}

bool
k3i_kda_walks(size_t k)
{
	struct cudaFuncAttributes found;

	K3_CUDA_CHECK(cudaFuncGetAttributes(&found, walk_chunks<true>));
	return k3i_kda_width(k) == WALK_K && found.maxThreadsPerBlock >= WALK_THREADS;
}

void
k3i_kda_walk(const struct kda_task *x, bool backward, const struct k3_cuda *cuda)
{
	if (backward)
		launch<true>(x, cuda);
	else
		launch<false>(x, cuda);
}
