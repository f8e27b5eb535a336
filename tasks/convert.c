/* bf16 on CPU workers.  The trap: codelets may not allocate, so every worker has one scratch buffer,
 * which may only grow while nothing runs; plans of a run have nearly the same largest task. */
#include "convert.h"

#include <starpu.h>
#include <stdlib.h>

#include "../codelets/vec/vec.h"
#include "../common/status.h"
#include "codelets.h"

enum { ALIGNMENT = 64 };

static void *scratch[STARPU_NMAXWORKERS];
static size_t scratch_bytes;

static _Thread_local const struct k3_task *own_task;
static _Thread_local void *own_scratch;

const struct k3_task *
k3i_task_now(void)
{
	return own_task ? own_task : starpu_task_get_current()->prologue_callback_arg;
}

void
k3_convert_for(const struct k3_task *task, void *own)
{
	own_task = task;
	own_scratch = own;
}

static char *
task_scratch(void)
{
	return own_task ? own_scratch : scratch[starpu_worker_get_id_check()];
}

void
k3i_widen(const struct k3_task *task, void **buf)
{
	const struct k3_access *a = &task->plan->access[task->first_access];
	char *at = task_scratch();

	for (uint32_t i = 0; i < task->n_access; i++) {
		const struct k3_datum *d = &task->plan->data[a[i].datum];
		if (d->dtype != K3_BF16)
			continue;
		float *wide = (float *)(void *)at;
		if (a[i].mode & K3_R)
			k3_vec()->from_bf16(wide, buf[i], d->rows * d->row_elems);
		buf[i] = wide;
		at += k3_wide_bytes(d);
	}
}

void
k3i_narrow(const struct k3_task *task, void *const *buf)
{
	const struct k3_access *a = &task->plan->access[task->first_access];
	const char *at = task_scratch();

	for (uint32_t i = 0; i < task->n_access; i++) {
		const struct k3_datum *d = &task->plan->data[a[i].datum];
		if (d->dtype != K3_BF16)
			continue;
		if (a[i].mode & K3_W)
			k3_vec()->to_bf16(buf[i], (const float *)(const void *)at,
					  d->rows * d->row_elems);
		at += k3_wide_bytes(d);
	}
}

void
k3i_convert_release(void)
{
	for (size_t i = 0; i < STARPU_NMAXWORKERS; i++) {
		free(scratch[i]);
		scratch[i] = NULL;
	}
	scratch_bytes = 0;
}

int
k3i_convert_reserve(const struct k3_plan *plan)
{
	int worker[STARPU_NMAXWORKERS];
	size_t most = scratch_bytes;
	bool all = true; /* what may be widened at all may be so here */

	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		bool here = k3_codelet(t->op)->where & STARPU_CPU;
		all = all && (here || !t->wide_bytes);
		if (here && t->wide_bytes > most)
			most = t->wide_bytes;
	}
	/* then the same for all documents and images, so that it need not grow later */
	if (all && plan->wide_bytes > most)
		most = plan->wide_bytes;
	if (most == scratch_bytes)
		return K3_OK;
	starpu_task_wait_for_all();
	k3i_convert_release();
	unsigned n = starpu_worker_get_ids_by_type(STARPU_CPU_WORKER, worker, STARPU_NMAXWORKERS);
	for (unsigned i = 0; i < n; i++) {
		scratch[worker[i]] = aligned_alloc(ALIGNMENT, most);
		if (!scratch[worker[i]])
			return K3_ENOMEM;
	}
	scratch_bytes = most;
	return K3_OK;
}
