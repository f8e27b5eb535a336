/* How long a plan would take on some workers, without running it. */
#ifndef K3_PLANNER_ESTIMATE_H
#define K3_PLANNER_ESTIMATE_H
#include "plan.h"

struct k3_estimate {
	size_t n_tasks;
	double work_us;	     /* sum of the tasks' costs */
	double makespan_us;  /* from the first start to the last end */
	double critical_us;  /* longest chain: no schedule is shorter */
	double idle_share;   /* of workers x makespan, 0 .. 1 */
	double mean_task_us; /* 0 for a plan without tasks */
};

/**
 * List schedule on identical workers: whenever a worker is free it takes, of the tasks whose
 * predecessors have ended, that of the highest priority, the earliest in the plan among equals.
 * Edges are those that StarPU will see (plan_graph.h); a task takes its cost_us.  Within twice the
 * best schedule (Graham 1969: (2 - 1/workers) of it).
 *
 * Cost: O((tasks + accesses) log tasks).
 * @param workers  >= 1
 * @return K3_OK, K3_ENOMEM
 */
int k3_plan_estimate(struct k3_estimate *estimate, const struct k3_plan *plan, uint32_t workers);

#endif
