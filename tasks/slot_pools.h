/* Handles of slots: those of a size class in order of their ordinal, made when a plan first asks for
 * them (inside tasks/). */
#ifndef K3_TASKS_SLOT_POOLS_H
#define K3_TASKS_SLOT_POOLS_H
#include <starpu.h>
#include <stdbool.h>

#include "../planner/plan.h"
#include "room.h"

/* A size class. */
struct k3i_pool {
	size_t bytes;
	uint32_t n;
	starpu_data_handle_t *handle;
	bool *in_main; /* a core or the program writes it */
};

struct k3i_pools {
	size_t n;
	struct k3i_pool *pool; /* ascending bytes */
};

/** A handle of as many bytes, without rows. */
void k3i_register_bytes(starpu_data_handle_t *handle, size_t bytes);
/**
 * Makes the handles that a plan's slots lack.
 * @param need  grows by theirs
 * @return K3_OK, K3_ENOMEM
 */
int k3i_pools_grow(struct k3i_pools *pools, const struct k3_plan *plan, struct k3_need *need);
/** NULL: no plan had a slot of this size. */
struct k3i_pool *k3i_pool_of(const struct k3i_pools *pools, size_t bytes);
/** Drops all, without a copy of what they hold. */
void k3i_pools_fini(struct k3i_pools *pools);

#endif
