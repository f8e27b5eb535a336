/* Experts' products on Hopper's tensor cores, bf16.
 *
 * What bounds them is the second-level cache: a tile of m x n reads 2 (m + n) bytes a step.  So tiles are
 * 256 x 128 (GATE_UP: 64 columns of W1 and the same 64 of W3, so that a thread holds g and u of an
 * element), one block a multiprocessor, which walks its tiles.  Four warpgroups multiply; thread 0 keeps
 * four stages of 64 along the contraction loading, over the end of a tile into the next one, so that
 * the copies go on while a tile is finished.  D_HIDDEN, whose finishing is long, has tiles of 128 x 128
 * and two blocks a multiprocessor, of which one multiplies while the other finishes; g and u come through
 * the stages too.
 *
 * The traps: a tile's last rows may belong to the next expert: they are computed and not stored.  In
 * WEIGHTS they would enter the sum, and rows of other groups may hold anything, NaN too: the last
 * step's stage is cleared behind the expert's rows, in both operands.
 */
#include <cudaTypedefs.h>

#include "expert_task.h"
#include "expert_wgmma.cuh"

/* Boxes of a [matrices, rows, cols] operand. */
static void
describe(CUtensorMap *map, const void *p, size_t cols, size_t rows, size_t matrices)
{
	static PFN_cuTensorMapEncodeTiled_v12000 encode;
	cuuint64_t dim[3] = {cols, rows, matrices};
	cuuint64_t stride[2] = {cols * sizeof(k3_bf16), rows * cols * sizeof(k3_bf16)};
	cuuint32_t box[3] = {BOX, BOX, 1}, step[3] = {1, 1, 1};

	if (!encode) {
		enum cudaDriverEntryPointQueryResult found;
		void *f = NULL;
		K3_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000,
							       cudaEnableDefault, &found));
		K3_CUDA_CHECK(f ? cudaSuccess : cudaErrorSymbolNotFound);
		encode = (PFN_cuTensorMapEncodeTiled_v12000)f;
	}
	K3_CUDA_CHECK(encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)p, dim, stride, box,
			     step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
			     CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
			     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

static bool
aligned(const void *p)
{
	return ((uintptr_t)p & 15) == 0;
}

bool
k3i_expert_wgmma_can(const struct expert_task *task)
{
	struct cudaFuncAttributes found;

	if (task->tk == 0 || task->r % 8 || task->f % 8 || !aligned(task->gu))
		return false;
	for (int i = 0; i < 2; i++)
		if (!aligned(task->x[i]) || !aligned(task->y[i]) || !aligned(task->out[i]))
			return false;
	K3_CUDA_CHECK(cudaFuncGetAttributes(&found, wgmma_probe));
	return found.maxThreadsPerBlock >= 128;
}

/* Tiles of the worst split: every expert may end in a tile that it does not fill. */
template <int PRODUCT>
static size_t
most_tiles(const struct expert_job *job)
{
	size_t columns = (size_t)blocks_for((size_t)job->width, tile_columns<PRODUCT>());

	if (PRODUCT == WEIGHTS)
		return (size_t)job->task.experts * (job->tiles[0] + job->tiles[1]);
	return (job->task.tk / tile_rows<PRODUCT>() + (size_t)job->task.experts) * columns;
}

template <int PRODUCT>
static void
launch(const struct expert_job *job, const struct k3_cuda *cuda)
{
	size_t bytes = shared_bytes<PRODUCT>(job->task.experts), tiles = most_tiles<PRODUCT>(job);
	size_t resident = (PRODUCT == D_HIDDEN ? 2 : 1) * (size_t)cuda->processors;
	unsigned blocks = (unsigned)(tiles > resident ? resident : tiles);

	K3_CUDA_CHECK(cudaFuncSetAttribute(
		multiply<PRODUCT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
	multiply<PRODUCT>
		<<<blocks, block_threads<PRODUCT>(), bytes, (cudaStream_t)cuda->stream>>>(*job);
	K3_CUDA_LAUNCHED("multiply");
}

static void
launch_rows(struct expert_job *job, enum expert_product product, const struct k3_cuda *cuda)
{
	const struct expert_task *task = &job->task;
	size_t tk = task->tk, e = (size_t)task->experts, r = (size_t)task->r, f = (size_t)task->f;
	bool narrow = product == GATE_UP || product == D_HIDDEN, wide13 = product == D_LATENT;

	job->width = narrow ? task->f : task->r;
	job->depth = narrow ? task->r : wide13 ? 2 * task->f : task->f;
	describe(&job->x[0], task->x[0], (size_t)job->depth, tk, 1);
	if (product == D_HIDDEN)
		describe(&job->x[1], task->gu, 2 * f, tk, 1);
	if (product == GATE_UP || product == D_LATENT)
		describe(&job->y[0], task->y[0], r, 2 * f, e);
	else
		describe(&job->y[0], task->y[0], f, r, e);
	if (product == GATE_UP)
		launch<GATE_UP>(job, cuda);
	else if (product == DOWN)
		launch<DOWN>(job, cuda);
	else if (product == D_HIDDEN)
		launch<D_HIDDEN>(job, cuda);
	else
		launch<D_LATENT>(job, cuda);
}

static void
launch_weights(struct expert_job *job, const struct k3_cuda *cuda)
{
	const struct expert_task *task = &job->task;
	size_t tk = task->tk, r = (size_t)task->r, f = (size_t)task->f, rows = tile_rows<WEIGHTS>();

	describe(&job->x[0], task->x[0], 2 * f, tk, 1);
	describe(&job->y[0], task->y[0], r, tk, 1);
	describe(&job->x[1], task->x[1], r, tk, 1);
	describe(&job->y[1], task->y[1], f, tk, 1);
	job->tiles[0] = (int)(blocks_for(2 * f, rows) * blocks_for(r, TILE));
	job->tiles[1] = (int)(blocks_for(r, rows) * blocks_for(f, TILE));
	launch<WEIGHTS>(job, cuda);
}

void
k3i_expert_wgmma(enum expert_product product, const struct expert_task *task,
		 const struct k3_cuda *cuda)
{
	struct expert_job job;

	memset(&job, 0, sizeof(job));
	job.task = *task;
	if (product == WEIGHTS)
		launch_weights(&job, cuda);
	else
		launch_rows(&job, product, cuda);
}
