/* Longest chains of tasks in a plan.
 *
 * The chains are those that StarPU will see: a handle (persistent datum or slot) orders a write
 * after all earlier accesses, and a read after the last write.  A chain's length is the sum of its
 * tasks' cost_us; no schedule of the plan is shorter than the longest.
 */
#ifndef K3_PLANNER_CRITICAL_PATH_H
#define K3_PLANNER_CRITICAL_PATH_H
#include "plan.h"

#define K3_NO_TASK UINT32_MAX

/**
 * The longest chain that begins at each task, the task included.
 *
 * @param length_us  out [n_tasks]
 * @param next       out [n_tasks], may be NULL: the task that follows in that chain, K3_NO_TASK at
 *                   its end; among equal chains the choice depends on the plan alone
 *
 * Cost: one pass over the accesses, 24 bytes a handle.
 * @return K3_OK, K3_ENOMEM
 */
int k3_plan_chains(const struct k3_plan *plan, double *length_us, uint32_t *next);

struct k3_critical_path {
	double length_us; /* 0 for a plan without tasks */
	size_t n;
	uint32_t *task; /* [n] in the order of the plan, which is the order of the chain */
};

/** The longest chain of a plan; of equal ones that which begins first. @return K3_OK, K3_ENOMEM */
int k3_critical_path_init(struct k3_critical_path *path, const struct k3_plan *plan);
void k3_critical_path_fini(struct k3_critical_path *path);

#endif
