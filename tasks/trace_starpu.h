/* Between StarPU and the trace. */
#ifndef K3_TASKS_TRACE_STARPU_H
#define K3_TASKS_TRACE_STARPU_H
#include <starpu.h>

#include "trace.h"

/** A trace of this StarPU's workers; StarPU has started, no task is in flight. dir NULL: no files. */
int k3i_trace_starpu_create(struct k3_trace **trace, const char *dir, size_t most_tasks);
/** Drained, before the trace is read: ties the devices' clocks to the host's once more. */
void k3i_trace_starpu_end(struct k3_trace *trace);
/** Ends recording; NULL is legal. */
void k3i_trace_starpu_destroy(struct k3_trace *trace);
/** Makes a task report to its record. */
void k3i_trace_starpu_attach(struct starpu_task *task, struct k3_trace_record *record);

#endif
