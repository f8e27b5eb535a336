/* When a device really ran a task: events on the stream of a CUDA worker. */
#ifndef K3_TASKS_TRACE_CUDA_H
#define K3_TASKS_TRACE_CUDA_H
#include <stdbool.h>
#include <stdint.h>

struct k3_trace;
struct starpu_task;

/** Begins to record events on all CUDA workers and ties their clocks to the host's; no task is in
 * flight. Without CUDA nothing happens, here and below. */
void k3i_trace_cuda_start(int64_t (*now_ns)(void));
/** Ties the clocks once more, corrects the trace's times and ends; no task is in flight. Twice is legal. */
void k3i_trace_cuda_stop(struct k3_trace *trace);
/** In a task, around what it launches. Cheap when nothing is traced. */
void k3i_trace_cuda_before(int worker);
void k3i_trace_cuda_after(int worker);
/**
 * On the worker, when StarPU knows that the task has ended: from when to when it ran, ns of the host's clock.
 * Waits for nothing. Tasks of a worker are asked for in the order in which they were launched.
 * @return false: there are no events of this task, nothing is set
 */
bool k3i_trace_cuda_times(int worker, const struct starpu_task *task, int64_t *start, int64_t *end);

#endif
