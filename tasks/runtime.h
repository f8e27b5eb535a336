/* StarPU's start and end. */
#ifndef K3_TASKS_RUNTIME_H
#define K3_TASKS_RUNTIME_H
#include <stdint.h>

struct k3_runtime;

struct k3_runtime_options {
	uint32_t window; /* most tasks in flight; 0: unlimited */
};

/**
 * Starts StarPU with its workers (STARPU_NCPU, STARPU_SCHED and the rest of its environment are the
 * user's), one BLAS thread per worker, buffers aligned to 256 bytes.  Logs version, scheduler and
 * how many of the machine's cores are used, and why not all.
 * @return K3_OK, K3_ENODEV (no worker; logged), K3_ENOMEM
 */
int k3_runtime_create(struct k3_runtime **runtime, const struct k3_runtime_options *options);
/** Drains and shuts down. NULL is legal. */
void k3_runtime_destroy(struct k3_runtime *runtime);
/** Waits for all tasks that were submitted. The one place that does. */
void k3_runtime_drain(struct k3_runtime *runtime);
/** Holds submission back while too many tasks are in flight; called before each. */
void k3_runtime_throttle(struct k3_runtime *runtime);

/** Cores that this process may use, StarPU or not; >= 1. */
uint32_t k3_runtime_cores(void);
uint32_t k3_runtime_workers(const struct k3_runtime *runtime);
/** Scheduler's name. */
const char *k3_runtime_scheduler(const struct k3_runtime *runtime);
/** "1.3.10" */
const char *k3_runtime_version(const struct k3_runtime *runtime);
/** Name of the BLAS kernels in use, "" when the library does not tell: other kernels round
 * otherwise. runtime may be NULL: StarPU has no part in it. */
const char *k3_runtime_blas(const struct k3_runtime *runtime);

#endif
