/* A communication task of a plan as a call (inside tasks/; built with NCCL). */
#ifndef K3_TASKS_LANE_CALL_H
#define K3_TASKS_LANE_CALL_H
#include <stdbool.h>

#include "../codelets/comm/comm_nccl.h"
#include "../planner/mesh.h"

/** Does the lane carry this operation? */
bool k3i_lane_carries(enum k3_op op);
/**
 * Enqueues a task.
 * @param buf     of the task's data, in its order
 * @param mesh    with this rank
 * @param comm    ncclComm_t of the task's communicator
 * @param stream  cudaStream_t
 * @param failed  told of the call that fails, or of an earlier one
 */
void k3i_lane_call(void *const *buf, const struct k3_task *task, const struct k3_mesh *mesh,
		   void *comm, void *stream, k3_comm_failed *failed);

#endif
