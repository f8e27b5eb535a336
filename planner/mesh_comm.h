/* Communicators of a mesh (inside planner/). */
#ifndef K3_PLANNER_MESH_COMM_H
#define K3_PLANNER_MESH_COMM_H
#include "arena.h"
#include "mesh.h"

/**
 * The communicators of a mesh: all groups of every kind, on every rank, in the order of creation:
 * world, replicate groups, shard groups, cp groups, each kind by its first rank.  Groups of one
 * rank do not communicate and are left out, unless the mesh forces them; so is a kind whose groups
 * are those of an earlier kind.
 * @return K3_OK, K3_ENOMEM
 */
int k3i_mesh_comms(struct k3_arena *arena, const struct k3_mesh *mesh, struct k3_comm **comm,
		   size_t *n_comms);

#endif
