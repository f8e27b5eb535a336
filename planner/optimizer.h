/* Groups of row blocks that one optimizer task handles (inside planner/). */
#ifndef K3_PLANNER_OPTIMIZER_H
#define K3_PLANNER_OPTIMIZER_H
#include "plan.h"

struct k3_block_group {
	const uint32_t *block; /* row blocks of this rank */
	uint32_t n;
};
/** Of gradients, in table order: norms and fingerprints.  Fills at most cap groups (NULL, 0:
 * counts); returns their number. */
uint32_t k3i_norm_groups(const struct k3_model *model, struct k3_block_group *group, uint32_t cap);
/** Of updates, in the order of model->update. */
uint32_t k3i_update_groups(const struct k3_model *model, struct k3_block_group *group,
			   uint32_t cap);
/** Sets both orders of the model's blocks. @return K3_OK, K3_ENOMEM */
int k3i_order_blocks(struct k3_model *model);
#endif
