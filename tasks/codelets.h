/* One StarPU codelet per operation. */
#ifndef K3_TASKS_CODELETS_H
#define K3_TASKS_CODELETS_H
#include <starpu.h>
#include <stdbool.h>

#include "../common/ops.h"
#include "../planner/plan.h"

/** The codelet of an operation, NULL when nothing can run it here (communication between ranks,
 * without a transport). */
struct starpu_codelet *k3_codelet(enum k3_op op);
/** What runs a communication operation, on CUDA workers; NULL: nothing does. */
void k3i_codelet_set_comm(enum k3_op op, starpu_cuda_func_t run);

/** Pointers of a task's data [n_access], in the order of the kernel's buffers, from StarPU's. */
void k3i_pointers(const struct k3_task *task, void **buf, void *const *buffers);

/**
 * What schedulers of the dmda family take for the length of a task: its cost in the plan (history
 * false; so it is before the first call), or what StarPU has measured of its operation and class
 * of flops (initial values keep the plan's).  Before StarPU starts; the choice lasts until the
 * next call.
 */
void k3_codelets_use_history(bool history);

/* Arguments of the operations whose values come with the submission. */
struct k3_batch_load_call {
	const struct k3_batch_load_args *args; /* in the plan */
	struct k3_host_batch batch;
};
struct k3_vit_load_call {
	const struct k3_vit_load_args *args; /* in the plan */
	struct k3_host_batch batch;
};
struct k3_step_load_call {
	double hyper[K3_HYPER_LEN];
};

#endif
