/* The products of moe_task.h: the kernel of the experts with one matrix that takes all rows.  The
 * trap: the tiles know widths by the names that experts have: r is that of the result. */
#include "moe_task.h"

#include "expert_launch.cuh"

template <int PRODUCT>
static void
launch_product(struct expert_job *job, const struct moe_product *p, const struct k3_cuda *cuda)
{
	const int rows = y_rows<PRODUCT>();

	describe_rows(&job->x, p->x, p->depth, p->rows, 1, 1, TILE_ROWS, 1);
	if (PRODUCT == ROUTED)
		describe_beside(&job->y, p->y, p->width, p->depth, 1, rows, y_boxes<PRODUCT>(),
				job->blocked);
	else
		describe_rows(&job->y, p->y, p->depth, p->width, 1, 1, rows, 1);
	launch<PRODUCT>(job, cuda);
}

bool
k3i_moe_wgmma(const struct moe_product *p, const struct k3_cuda *cuda)
{
	struct expert_job job;

	if (p->rows == 0 || p->depth == 0 || p->width % 8 || p->depth % 8 || !aligned(p->x) ||
	    !aligned(p->y) || !aligned(p->out) || !aligned(p->add[0]) || !aligned(p->add[1]) ||
	    !have_wgmma())
		return false;
	memset(&job, 0, sizeof(job));
	job.width = job.task.r = (int)p->width;
	job.depth = (int)p->depth;
	job.blocked = p->width % BOX == 0;
	job.task.tk = p->rows;
	job.task.experts = 1;
	job.task.out[0] = p->out;
	job.task.src = p->to;
	job.task.add[0] = p->add[0];
	job.task.add[1] = p->add[1];
	job.task.dl = p->dl;
	job.task.ids = p->ids;
	job.task.k = (int)p->k;
	job.task.n_experts = (int)p->n_experts;
	if (p->product == SPREAD)
		launch_product<SPREAD>(&job, p, cuda);
	else if (p->product == JOIN)
		launch_product<JOIN>(&job, p, cuda);
	else
		launch_product<ROUTED>(&job, p, cuda);
	return true;
}
