/* Which rows of a parameter's row block a rank keeps (inside planner/).
 *
 * A block of n rows is cut in ceil(n / S) rows per rank of the shard group: later ranks hold fewer
 * or none (5 rows on 4 ranks: 2, 2, 1, 0).  A block of experts is cut in whole experts, unless it
 * has fewer experts than there are ranks: then in rows like the others, or most ranks would hold
 * nothing.  All ranks have the same blocks, so persistent data have the same index everywhere; an
 * empty shard has no rows.
 */
#ifndef K3_PLANNER_SHARD_H
#define K3_PLANNER_SHARD_H
#include "plan.h"

/**
 * Rows of block `block` of parameter `param` that `rank` of the mesh holds: row0 in the whole
 * parameter, number (0 is legal). A shard group of one rank holds every row.
 */
void k3i_shard_block(const struct k3_model *model, const struct k3_param *param, size_t block,
		     uint32_t rank, size_t *row0, size_t *rows);
/** Rows that each member of the shard group contributes to a gather of the block, padding included.
 */
size_t k3i_shard_pitch(const struct k3_model *model, const struct k3_param *param, size_t block);
#endif
