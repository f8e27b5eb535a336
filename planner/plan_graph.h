/* Edges of a plan as StarPU will see them (inside planner/). */
#ifndef K3_PLANNER_PLAN_GRAPH_H
#define K3_PLANNER_PLAN_GRAPH_H
#include "plan.h"

struct k3i_edge {
	uint32_t from;
	bool value; /* hands on a value; else it only orders */
};

/* Walks the tasks in order and knows the predecessors of each.  A handle is a persistent datum or a
 * slot; a read follows the last write, a write follows every access since and with the last write.
 */
struct k3i_graph {
	const struct k3_plan *plan;
	struct handle_state *handle;
	struct reader *reader; /* chains of the readers since the last write */
	size_t n_readers;
	struct k3i_edge *pred; /* of the current task, each once */
	size_t n_pred;
	struct mark *mark; /* [n_tasks] where it is in pred, if it is */
};

/** @return K3_OK, K3_ENOMEM */
int k3i_graph_init(struct k3i_graph *graph, const struct k3_plan *plan);
/** Fills pred with the predecessors of task `task`; tasks must be given in order. */
void k3i_graph_next(struct k3i_graph *graph, uint32_t task);
void k3i_graph_fini(struct k3i_graph *graph);

#endif
