/* Experts' products on Hopper's tensor cores, bf16.
 *
 * One block a multiprocessor walks tiles of 128 rows.  A thread keeps the stages loading, over the end of
 * a tile into the next one; two warpgroups have tiles of their own and multiply in turn, so that
 * one finishes its tile (SiTU, rounding, stores) while the other's products fill the tensor cores.
 * The second product of a pair starts on multiprocessors that the first one has left, and waits there.
 *
 * The trap: a tile's last rows may belong to the next expert: they are computed and not stored.
 */
#include "expert_launch.cuh"

bool
k3i_expert_wgmma_can(const struct expert_task *task)
{
	if (task->tk == 0 || task->f == 0 || task->r % 8 || task->f % 8 || !aligned(task->gu))
		return false;
	for (int i = 0; i < 2; i++)
		if (!aligned(task->x[i]) || !aligned(task->y[i]) || !aligned(task->out[i]))
			return false;
	return have_wgmma();
}

template <int PRODUCT>
static void
launch_rows(struct expert_job *job, const struct k3_cuda *cuda)
{
	const struct expert_task *task = &job->task;
	const int rows = y_rows<PRODUCT>(), boxes = y_boxes<PRODUCT>();
	const bool narrow = PRODUCT == GATE_UP || PRODUCT == D_HIDDEN;
	size_t tk = task->tk, e = (size_t)task->experts, r = (size_t)task->r, f = (size_t)task->f;

	job->width = narrow ? task->f : task->r;
	job->depth = narrow ? task->r : PRODUCT == D_LATENT ? 2 * task->f : task->f;
	describe_rows(&job->x, task->x[0], (size_t)job->depth, tk, 1, 1, TILE_ROWS, 1);
	if (PRODUCT == GATE_UP)
		describe_rows(&job->y, task->y[0], r, f, 2, e, rows, boxes);
	else if (PRODUCT == DOWN)
		describe_rows(&job->y, task->y[0], f, r, 1, e, rows, 1);
	else if (PRODUCT == D_HIDDEN)
		describe_beside(&job->y, task->y[0], f, r, e, rows, boxes, job->blocked);
	else
		describe_beside(&job->y, task->y[0], r, 2 * f, e, rows, boxes, job->blocked);
	if (PRODUCT == D_HIDDEN) {
		describe_pair(&job->gu, task->gu, f, tk);
		describe_pair(&job->dgu, task->out[0], f, tk);
	}
	launch<PRODUCT>(job, cuda);
}

void
k3i_expert_wgmma(enum expert_product product, const struct expert_task *task,
		 const struct k3_cuda *cuda)
{
	struct expert_job job;

	memset(&job, 0, sizeof(job));
	job.task = *task;
	job.blocked = task->r % BOX == 0 && task->f % BOX == 0;
	if (product == GATE_UP)
		launch_rows<GATE_UP>(&job, cuda);
	else if (product == DOWN)
		launch_rows<DOWN>(&job, cuda);
	else if (product == D_HIDDEN)
		launch_rows<D_HIDDEN>(&job, cuda);
	else
		launch_rows<D_LATENT>(&job, cuda);
}
