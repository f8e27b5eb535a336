/* Groups of row blocks that one optimizer task handles (inside planner/). */
#ifndef K3_PLANNER_OPTIMIZER_H
#define K3_PLANNER_OPTIMIZER_H
#include "build.h"

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
/** All groups of updates or of gradients, and their number. */
struct k3_block_group *k3i_optim_all(struct k3_builder *b, bool updates, uint32_t *n);

/* Of the current task; memory that is out becomes the builder's status. */
/** Blocks of one kind (0 parameters, 1 gradients, 2 and 3 moments) as a list. */
void k3i_optim_list(struct k3_builder *b, struct k3_list *list, const struct k3_block_group *g,
		    uint32_t kind, enum k3_mode mode);
/** The group's copies that are there; where each block finds its own. */
const int32_t *k3i_optim_copies(struct k3_builder *b, struct k3_list *list,
				const struct k3_block_group *g);
/** Elements of each block; adds them up. */
size_t *k3i_optim_sizes(struct k3_builder *b, const struct k3_block_group *g, double *total);
#endif
