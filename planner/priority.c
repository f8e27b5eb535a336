/* Priority of a task = length of the longest chain of tasks that must follow it, itself included,
 * in the plan's cost; scaled so that the longest chain of the plan has K3_MAX_PRIORITY.  The chains
 * are those that StarPU will see: a handle (persistent datum or slot) orders a write after all
 * earlier accesses and a read after the last write. */
#include <stdlib.h>

#include "build.h"

double
k3i_cost_us(double flops, double bytes)
{
	/* one core of a current server: sustained GEMM and memory rates, and what StarPU takes per
	 * task */
	const double flops_per_us = 50e3, bytes_per_us = 8e3, task_us = 10;

	return task_us + flops / flops_per_us + bytes / bytes_per_us;
}

struct chain {
	double writer,
		readers; /* longest chain that begins at the next writer; at a reader before it */
};

void
k3i_assign_priorities(struct k3_plan *p)
{
	size_t n = p->model->n_persist + p->n_slots;
	struct chain *handle = calloc(n + 1, sizeof(*handle));
	double *length = malloc((p->n_tasks + 1) * sizeof(*length)), longest = 0;

	if (!handle || !length) {
		/* priorities only help: without memory for them all stay 0 */
		free(handle);
		free(length);
		return;
	}
	for (size_t i = p->n_tasks; i-- > 0;) {
		const struct k3_task *t = &p->task[i];
		const struct k3_access *a = &p->access[t->first_access];
		double after = 0;
		for (uint32_t k = 0; k < t->n_access; k++) {
			const struct k3_datum *d = &p->data[a[k].datum];
			const struct chain *h =
				&handle[d->slot < 0 ? a[k].datum
						    : p->model->n_persist + (size_t)d->slot];
			if (h->writer > after)
				after = h->writer;
			if ((a[k].mode & K3_W) && h->readers > after)
				after = h->readers;
		}
		length[i] = after + t->cost_us;
		for (uint32_t k = 0; k < t->n_access; k++) {
			const struct k3_datum *d = &p->data[a[k].datum];
			struct chain *h =
				&handle[d->slot < 0 ? a[k].datum
						    : p->model->n_persist + (size_t)d->slot];
			if (a[k].mode & K3_W)
				*h = (struct chain){length[i], 0};
			else if (length[i] > h->readers)
				h->readers = length[i];
		}
		if (length[i] > longest)
			longest = length[i];
	}
	for (size_t i = 0; i < p->n_tasks; i++)
		p->task[i].priority = (int32_t)(length[i] / longest * K3_MAX_PRIORITY);
	free(handle);
	free(length);
}
