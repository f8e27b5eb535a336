/* StarPU's start and end. */
#ifndef K3_TASKS_RUNTIME_H
#define K3_TASKS_RUNTIME_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device.h"
#include "lane.h"

struct k3_runtime;
struct k3_trace;
struct k3_trace_share;

struct k3_runtime_options {
	uint32_t window;	    /* most tasks in flight; 0: unlimited */
	const char *trace_dir;	    /* where a trace goes (trace.h); NULL: none */
	size_t trace_most_tasks;    /* records that it keeps; 0: K3_TRACE_MOST_TASKS */
	uint32_t workers;	    /* CPU workers; 0: as the environment says */
	enum k3_device device;	    /* where tasks run */
	enum k3_transport comm;	    /* what carries communication tasks */
	const struct k3_mesh *mesh; /* whose communicators it needs; NULL without a transport */
	bool calibrate; /* schedulers go by what StarPU has measured and measures, not by the plan's
			   costs (codelets.h); models of earlier runs are checked first */
};

/**
 * Starts StarPU with its workers (STARPU_NCPU, STARPU_SCHED and the rest of its environment are the
 * user's), one BLAS thread per worker, buffers aligned to 256 bytes.  Logs version, scheduler and
 * how many of the machine's cores are used, and why not all.  When no task ends for a time
 * (watchdog.h) a warning says so.
 * @return K3_OK, K3_ENODEV (no worker, no CUDA, no NCCL, or a StarPU that is refused), K3_EINVAL (a
 * transport between GPUs for a run without; environment.h), K3_EIO (the folder of the trace, or
 * StarPU's), K3_EEXIST (another trace has the signals); with calibrate also what
 * k3_perfmodel_check_all returns; all logged, but K3_ENOMEM
 */
int k3_runtime_create(struct k3_runtime **runtime, const struct k3_runtime_options *options);
/** Drains, finishes the trace when nobody has, shuts down. NULL is legal. */
void k3_runtime_destroy(struct k3_runtime *runtime);
/** Waits for all tasks that were submitted. The one place that does. */
void k3_runtime_drain(struct k3_runtime *runtime);
/** Drains, then keeps the workers still, which poll for tasks when they have none; until resumed
 * nothing may be submitted. */
void k3_runtime_pause(struct k3_runtime *runtime);
void k3_runtime_resume(struct k3_runtime *runtime);
/** Until it is called with 0, at most so many tasks are in flight, unless the options say fewer. */
void k3_runtime_set_window(struct k3_runtime *runtime, uint32_t window);
/** Holds submission back while too many tasks are in flight; called before each. */
void k3_runtime_throttle(struct k3_runtime *runtime);

/** Cores that this process may use, StarPU or not; >= 1. */
uint32_t k3_runtime_cores(void);
/**
 * What the tasks submitted from now on belong to, for our trace and StarPU's (iterations).
 * @param step        as the program's table numbers it; -1: no step
 * @param microbatch  of the step; -1: the end of the step
 */
void k3_runtime_step(struct k3_runtime *runtime, int32_t step, int32_t microbatch);
int32_t k3_runtime_step_now(const struct k3_runtime *runtime);
/** NULL when nothing is traced. */
struct k3_trace *k3_runtime_trace(const struct k3_runtime *runtime);
/**
 * Drains and begins a trace of what is submitted from now on, as trace_dir does from the start.
 * @param dir  NULL: no files, for k3_runtime_trace_share
 * @return K3_OK, K3_EEXIST (there is one), else as k3_runtime_create
 */
int k3_runtime_trace_start(struct k3_runtime *runtime, const char *dir);
/** Drains and tells where the time went (trace.h); the trace is at its end with it. @return K3_OK,
 * K3_ENOMEM */
int k3_runtime_trace_share(struct k3_runtime *runtime, bool device, struct k3_trace_share *share);
/**
 * Drains, ends the trace and writes its files; tasks that come after are not in it.
 * @return K3_OK (also without a trace), K3_EIO (logged), K3_ENOMEM
 */
int k3_runtime_trace_finish(struct k3_runtime *runtime);

/** CPU workers. */
uint32_t k3_runtime_workers(const struct k3_runtime *runtime);
uint32_t k3_runtime_cuda_workers(const struct k3_runtime *runtime);
/** Scheduler's name. */
const char *k3_runtime_scheduler(const struct k3_runtime *runtime);
/** "1.3.10" */
const char *k3_runtime_version(const struct k3_runtime *runtime);
/** Name of the BLAS kernels in use, "" when the library does not tell: other kernels round
 * otherwise. runtime may be NULL: StarPU has no part in it. */
const char *k3_runtime_blas(const struct k3_runtime *runtime);
/** Warns when OpenBLAS does not know the processor and took slow kernels; needs no runtime. */
void k3_runtime_warn_blas(void);

#endif
