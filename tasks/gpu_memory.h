/* What GPUs hold, against what the plan promised and what StarPU may use there.
 *
 * A GPU is a memory node of StarPU: a copy of each datum that its tasks use, at most what the
 * plan's bound says.  Scratch of kernels is apart: StarPU does not know it.
 */
#ifndef K3_TASKS_GPU_MEMORY_H
#define K3_TASKS_GPU_MEMORY_H
#include "store.h"

struct k3_gpu_memory {
	uint64_t promised_bytes; /* of handles, on each GPU */
	uint64_t settled;	 /* allocations when the steps that allocate were over */
	bool fits;		 /* in what StarPU may use there */
};

/**
 * Says the plan's bound for each GPU that has workers.
 * @return K3_OK, K3_ELIMIT (room.h; logged)
 */
int k3_gpu_memory_check(struct k3_gpu_memory *gpu, const struct k3_memory *memory);
/* Under a limit that is too small for everything StarPU moves data to main memory and back.  These
 * tell it what may go first, behind the tasks submitted so far; they do nothing where all fits. */
/** After the microbatches of a step: activations are over. */
void k3_gpu_memory_microbatches_done(const struct k3_gpu_memory *gpu, struct k3_store *store);
/** After a step: gradients are over; masters and moments rest until the next optimizer. */
void k3_gpu_memory_step_done(const struct k3_gpu_memory *gpu, struct k3_store *store);
/** Everything was allocated: what comes from now on is counted. */
void k3_gpu_memory_settle(struct k3_gpu_memory *gpu, const struct k3_store *store);
/** Says what each GPU holds of what was promised; warns when more was allocated than promised, or
 * anything after k3_gpu_memory_settle. */
void k3_gpu_memory_report(const struct k3_gpu_memory *gpu, const struct k3_store *store);

#endif
