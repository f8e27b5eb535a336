/* Groups of parameter blocks that one optimizer task handles (inside planner/). */
#ifndef K3_PLANNER_OPTIMIZER_H
#define K3_PLANNER_OPTIMIZER_H
#include "plan.h"

struct k3_block_group {
	uint32_t first, n; /* row blocks of this rank, in table order */
};
/** Fills at most cap groups (NULL, 0: counts); returns their number. */
uint32_t k3i_optim_groups(const struct k3_model *model, struct k3_block_group *group, uint32_t cap);
#endif
