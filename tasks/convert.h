/* Kernels that compute in fp32 on operands of bf16: on float copies of them in the worker's scratch.
 *
 * A plan's task says how much scratch it needs (k3_task.wide_bytes; 0: the kernel takes its buffers as
 * they are).  What the task reads is widened before the kernel, what it writes is rounded to nearest
 * even after it: once per output, as model.md 0 asks.
 */
#ifndef K3_TASKS_CONVERT_H
#define K3_TASKS_CONVERT_H
#include "../planner/plan.h"

/** The plan's task that this thread's codelet was called for. */
const struct k3_task *k3i_task_now(void);
/** For calls of codelets without StarPU: that task, and scratch for it (aligned to 64 bytes); NULL: no
 * more. */
void k3_convert_for(const struct k3_task *task, void *scratch);

/** Replaces the pointers to bf16 operands by their float copies. */
void k3i_widen(const struct k3_task *task, void **buf);
/** Rounds what the kernel wrote into the buffers themselves. */
void k3i_narrow(const struct k3_task *task, void *const *buf);

/** Before a plan's tasks are submitted: scratch of all CPU workers; waits for all tasks when it has to
 * grow. @return K3_OK, K3_ENOMEM */
int k3i_convert_reserve(const struct k3_plan *plan);
/** Drained, before StarPU ends. */
void k3i_convert_release(void);

#endif
