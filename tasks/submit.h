/* From a plan to StarPU tasks. */
#ifndef K3_TASKS_SUBMIT_H
#define K3_TASKS_SUBMIT_H
#include "../common/ops.h"
#include "store.h"

/**
 * Submits all tasks of a checked plan in order and returns while they run. The plan must live until
 * they have ended, the arrays of the batch until its batch_load tasks have.
 *
 * @param batch  host arrays of a microbatch plan, else NULL; the struct itself is copied
 * @param hyper  [K3_HYPER_LEN] scalars of the step for a plan that loads them (the first
 * microbatch's), copied; else NULL
 * @return K3_OK, K3_ENODEV (the plan holds communication: this build runs one rank; nothing was
 * submitted), K3_ENOMEM
 */
int k3_submit_plan(struct k3_store *store, const struct k3_plan *plan,
		   const struct k3_host_batch *batch, const double *hyper);

#endif
