/* The mesh of ranks: its groups, and which rows of a parameter a rank holds.
 *
 * rank = (replicate * dp_shard + shard) * cp + cp_index; a dimension of 0 counts as 1, so that a
 * zeroed mesh is one rank. The shard group of FSDP is dp_shard x cp: both axes hold different
 * tokens and the same weights.
 */
#ifndef K3_PLANNER_MESH_H
#define K3_PLANNER_MESH_H
#include "plan.h"

enum k3_group { K3_GROUP_WORLD, K3_GROUP_REPLICATE, K3_GROUP_SHARD, K3_GROUP_CP, K3_N_GROUPS };

/** "world", "replicate", ... */
const char *k3_mesh_group_name(enum k3_group group);

/**
 * Reads "dp_replicate=2,dp_shard=4,cp=2": keys in any order, missing ones are 1; rank becomes 0.
 * @return K3_OK; K3_EINVAL for an unknown or repeated key, or a value that is no integer
 * in 1..65536 (logged)
 */
int k3_mesh_parse(struct k3_mesh *mesh, const char *text);

/** Ranks of the mesh. */
uint32_t k3_mesh_ranks(const struct k3_mesh *mesh);
/** Members of the group of this kind that a rank belongs to. */
uint32_t k3_mesh_group_size(const struct k3_mesh *mesh, enum k3_group group);
/** Rank's place in that group, 0-based. */
uint32_t k3_mesh_group_rank(const struct k3_mesh *mesh, enum k3_group group, uint32_t rank);
/** Communicator of this rank's group of a kind in the table of the plans (plan->comm); -1 when the
 * group does not communicate.  Kinds with the same groups share one. */
int32_t k3_mesh_comm(const struct k3_mesh *mesh, enum k3_group group);
/** The first kind whose group has this communicator of this rank's. */
enum k3_group k3_mesh_comm_kind(const struct k3_mesh *mesh, int32_t comm);

#endif
