/* The host's part of the products: operands as boxes, tiles of the worst split, the launch. */
#ifndef K3_MOE_EXPERT_LAUNCH_CUH
#define K3_MOE_EXPERT_LAUNCH_CUH
#include "../cuda/tensor_map.cuh"
#include "expert_wgmma.cuh"

/* Operand [matrices, blocks, rows, cols] of elements that are stride[] apart, in boxes. */
static void
describe(CUtensorMap *map, const void *p, const size_t dims[4], const size_t strides[3],
	 const int boxes[2])
{
	cuuint64_t dim[4], stride[3];
	cuuint32_t box[4] = {BOX, (cuuint32_t)boxes[0], (cuuint32_t)boxes[1], 1},
		   step[4] = {1, 1, 1, 1};

	for (int i = 0; i < 4; i++)
		dim[i] = dims[i];
	for (int i = 0; i < 3; i++)
		stride[i] = strides[i] * sizeof(k3_bf16);
	K3_CUDA_CHECK(tensor_map_encoder()(
		map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)p, dim, stride, box, step,
		CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
		CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

/* Operand whose rows run along the contraction: boxes of box_rows rows, from `blocks` parts of a matrix. */
static void
describe_rows(CUtensorMap *map, const void *p, size_t cols, size_t rows, size_t blocks,
	      size_t matrices, int box_rows, int box_blocks)
{
	const size_t dim[4] = {cols, rows, blocks, matrices},
		     stride[3] = {cols, rows * cols, blocks * rows * cols};
	const int box[2] = {box_rows, box_blocks};

	describe(map, p, dim, stride, box);
}

/* Operand whose columns do not run along the contraction: as many boxes beside each other, if blocked. */
static void
describe_beside(CUtensorMap *map, const void *p, size_t cols, size_t rows, size_t matrices,
		int box_rows, int boxes, int blocked)
{
	const size_t dim[4] = {blocked ? BOX : cols, rows, blocked ? cols / BOX : 1, matrices},
		     stride[3] = {cols, blocked ? BOX : rows * cols, rows * cols};
	const int box[2] = {box_rows, blocked ? boxes : 1};

	describe(map, p, dim, stride, box);
}

/* Gate and up of the same columns beside each other. */
static void
describe_pair(CUtensorMap *map, const void *p, size_t f, size_t rows)
{
	const size_t dim[4] = {f, rows, 2, 1}, stride[3] = {2 * f, f, rows * 2 * f};
	const int box[2] = {BOX, 2};

	describe(map, p, dim, stride, box);
}

static bool
aligned(const void *p)
{
	return ((uintptr_t)p & 15) == 0;
}

/* The code that was loaded has the instructions. */
static bool
have_wgmma(void)
{
	struct cudaFuncAttributes found;

	K3_CUDA_CHECK(cudaFuncGetAttributes(&found, wgmma_probe));
	return found.maxThreadsPerBlock >= 128;
}

/* Tiles of the worst split: every expert may end in a unit that it does not fill. */
template <int PRODUCT>
static size_t
most_tiles(const struct expert_job *job)
{
	const struct expert_task *task = &job->task;

	return (task->tk / TILE_ROWS + (size_t)task->experts) *
	       blocks_for((size_t)job->width, tile_columns<PRODUCT>());
}

template <int PRODUCT>
static void
launch(const struct expert_job *job, const struct k3_cuda *cuda)
{
	size_t bytes = shared_bytes<PRODUCT>(job->task.experts), tiles = most_tiles<PRODUCT>(job);
	cudaLaunchConfig_t config = {};
	cudaLaunchAttribute early;

	K3_CUDA_CHECK(cudaFuncSetAttribute(
		multiply<PRODUCT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
	config.gridDim = dim3((unsigned)(tiles > cuda->processors ? cuda->processors : tiles));
	config.blockDim = dim3(BLOCK_THREADS);
	config.dynamicSmemBytes = bytes;
	config.stream = (cudaStream_t)cuda->stream;
	if (follows<PRODUCT>())
		may_start_early(&config, &early);
	K3_CUDA_CHECK(cudaLaunchKernelEx(&config, multiply<PRODUCT>, *job));
	K3_CUDA_LAUNCHED("multiply");
}

#endif
