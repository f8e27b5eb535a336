/* Plans by layout, so that a layout that repeats is planned once. */
#ifndef K3_PLANNER_PLAN_CACHE_H
#define K3_PLANNER_PLAN_CACHE_H
#include "plan.h"

struct k3_plan_cache;

/** @param most  plans kept; more are dropped only when old enough, see k3_plan_cache_get */
int k3_plan_cache_create(struct k3_plan_cache **cache, const struct k3_model *model, size_t most);
/** No task of its plans may be in flight. NULL is legal. */
void k3_plan_cache_destroy(struct k3_plan_cache *cache);

/**
 * The checked plan of a layout; belongs to the cache.
 * @param step  a number that grows with use: a plan may be dropped three steps after its last use,
 * when none of its tasks can be in flight any more (a step's forward pass needs the whole update of
 * the step before)
 * @return K3_OK or what planning and checking returned
 */
int k3_plan_cache_get(struct k3_plan_cache *cache, const struct k3_layout *layout,
		      const struct k3_microbatch *what, uint64_t step, const struct k3_plan **plan);

/** Plans built so far, and the time that took. */
size_t k3_plan_cache_built(const struct k3_plan_cache *cache, double *seconds);

#endif
