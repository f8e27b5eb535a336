/* Gradients of the experts' weights on Hopper's tensor cores, bf16 operands and float sums.
 *
 * One block a multiprocessor takes tiles of 256 x 192: wide ones, as the cache's bytes a second
 * bound narrower ones.  A thread keeps slabs loading, over the end of a tile into the next one; two
 * warpgroups multiply, each half of a tile, and hand their sums to the copy engine.
 *
 * The trap: the kernel starts while the one before, which makes the weighted hidden rows, still
 * runs: whoever reads them waits first.  Nothing else may be of that kernel.
 */
#include "expert_weights_multiply.cuh"

/* Tiles of one part. */
static void
count_grad_tiles(int tiles[2], size_t r, size_t f)
{
	for (int side = 0; side < 2; side++)
		tiles[side] =
			(int)(blocks_for(r, GRAD_ROWS) * blocks_for(side ? f : 2 * f, GRAD_COLS));
}

struct expert_parts
k3i_expert_weights_parts(size_t tk, size_t r, size_t f)
{
	const size_t most_bytes = (size_t)128 << 20;
	struct expert_parts p = {PART_ROWS, 0, 0, 0};
	int tiles[2];
	size_t each;

	count_grad_tiles(tiles, r, f);
	each = (size_t)(tiles[0] + tiles[1]) * GROUPS;
	while (p.rows < tk &&
	       (2 * tk / p.rows + 1) * each * GROUP_FLOATS * sizeof(float) > most_bytes)
		p.rows *= 2;
	if (p.rows < tk)
		p.tiles = (2 * tk / p.rows + 1) * each;
	p.floats = p.tiles * GROUP_FLOATS;
	p.counts = p.tiles + GRAD_COUNTS;
	return p;
}

/* Gradients [experts, rows, cols], as pieces leave for them. */
static void
describe_gradient(CUtensorMap *map, void *p, size_t cols, size_t rows, size_t experts,
		  int piece_rows)
{
	const cuuint64_t dim[3] = {cols, rows, experts},
			 stride[2] = {cols * sizeof(float), rows * cols * sizeof(float)};
	const cuuint32_t box[3] = {PIECE_COLS, (cuuint32_t)piece_rows, 1}, step[3] = {1, 1, 1};

	K3_CUDA_CHECK(tensor_map_encoder()(
		map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, p, dim, stride, box, step,
		CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
		CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

/* Its blocks may start while the last ones of the kernel before run. */
static void
launch_weights(const struct grad_job *job, const struct k3_cuda *cuda)
{
	const struct expert_task *task = &job->task;
	size_t most = (task->tk / (size_t)task->part_rows + (size_t)task->experts) *
		      (size_t)(job->tiles[0] + job->tiles[1]);
	cudaLaunchConfig_t config = {};
	cudaLaunchAttribute early;

	config.gridDim = dim3(most > cuda->processors ? cuda->processors : (unsigned)most);
	config.blockDim = dim3(BLOCK_THREADS);
	config.dynamicSmemBytes = grad_shared_bytes(task->experts);
	config.stream = (cudaStream_t)cuda->stream;
	may_start_early(&config, &early);
	K3_CUDA_CHECK(cudaFuncSetAttribute(sum_weights, cudaFuncAttributeMaxDynamicSharedMemorySize,
					   (int)config.dynamicSmemBytes));
	K3_CUDA_CHECK(cudaLaunchKernelEx(&config, sum_weights, *job));
	K3_CUDA_LAUNCHED("sum_weights");
}

void
k3i_expert_weights(const struct expert_task *task, const struct k3_cuda *cuda)
{
	struct grad_job job;
	size_t tk = task->tk, r = (size_t)task->r, f = (size_t)task->f, e = (size_t)task->experts;
	struct expert_parts parts = k3i_expert_weights_parts(tk, r, f);

	memset(&job, 0, sizeof(job));
	job.task = *task;
	job.blocked = task->r % BOX == 0 && task->f % BOX == 0;
	job.counts = task->arrived + parts.tiles;
	count_grad_tiles(job.tiles, r, f);
	describe_beside(&job.x[0], task->y[0], r, tk, 1, SLAB, GRAD_X_BOXES, job.blocked);
	describe_beside(&job.y[0], task->x[0], 2 * f, tk, 1, SLAB, GRAD_Y_BOXES, job.blocked);
	describe_beside(&job.x[1], task->x[1], r, tk, 1, SLAB, GRAD_X_BOXES, job.blocked);
	describe_beside(&job.y[1], task->y[1], f, tk, 1, SLAB, GRAD_Y_BOXES, job.blocked);
	describe_gradient(&job.out[0], task->out[0], r, 2 * f, e, PIECE_COLS);
	describe_gradient(&job.out[1], task->out[1], f, r, e, BOX);
	launch_weights(&job, cuda);
}
