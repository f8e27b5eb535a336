/* Where tasks may run, and what CUDA workers need besides StarPU's own. */
#ifndef K3_TASKS_DEVICE_H
#define K3_TASKS_DEVICE_H
#include "../planner/plan.h"

enum k3_device {
	K3_DEVICE_CPU,
	K3_DEVICE_CUDA, /* what has a CUDA kernel runs on GPUs alone; the rest on CPUs */
	K3_DEVICE_ALL	/* CPU and CUDA workers take what they can */
};

/** "cpu", "cuda" or "all". @return K3_OK, K3_EINVAL (logged) */
int k3_device_parse(enum k3_device *device, const char *text);

/** Was CUDA built in, kernels and StarPU both? */
bool k3_device_has_cuda(void);

/** The first GPU, by what it tells of itself; false: there is none, or no CUDA. StarPU has no
 * part in it. */
bool k3_device_gpu(struct k3_gpu *gpu);
/** Bytes that StarPU may take on the smallest GPU: STARPU_LIMIT_CUDA_<number>_MEM,
 * STARPU_LIMIT_CUDA_MEM (both in MiB), or nine tenths of its memory. 0: there is no GPU. */
uint64_t k3_device_memory_limit(void);

/** Before StarPU starts: which devices the codelets name. @return K3_OK, K3_ENODEV (logged: this
 * build has no CUDA) */
int k3i_device_choose(enum k3_device device);
/** After StarPU has started: readies every CUDA worker. @return K3_OK, K3_ENODEV (no CUDA worker,
 * or one that fails; logged) */
int k3i_device_start(enum k3_device device);
/** Before StarPU ends, drained. */
void k3i_device_stop(void);
/** Scratch that a GPU worker needs for a plan's tasks, and what it takes besides. */
size_t k3_device_scratch_bytes(const struct k3_plan *plan);
size_t k3_device_fixed_bytes(void);
/** How often scratch was made for all workers. */
uint64_t k3_device_scratch_made(void);
/** Makes the scratch memory of all CUDA workers large enough for a plan's tasks; waits for all
 * tasks when it has to grow. @return K3_OK, K3_ENOMEM (logged) */
int k3i_device_reserve(const struct k3_plan *plan);

#endif
