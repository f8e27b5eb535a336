#include "plan_cache.h"

#include <stdlib.h>
#include <string.h>

#include "../common/clock.h"
#include "../common/rng.h"
#include "../common/status.h"
#include "plan_check.h"

enum { SETTLED_STEPS = 3 };

struct entry {
	uint64_t key, step;
	struct k3_plan *plan;
};

struct k3_plan_cache {
	const struct k3_model *model;
	size_t most, n, cap, built;
	struct entry *entry;
	double seconds;
};

int
k3_plan_cache_create(struct k3_plan_cache **cache, const struct k3_model *model, size_t most)
{
	*cache = calloc(1, sizeof(**cache));
	if (!*cache)
		return K3_ENOMEM;
	(*cache)->model = model;
	(*cache)->most = most;
	return K3_OK;
}

void
k3_plan_cache_destroy(struct k3_plan_cache *cache)
{
	if (!cache)
		return;
	for (size_t i = 0; i < cache->n; i++)
		k3_plan_destroy(cache->entry[i].plan);
	free(cache->entry);
	free(cache);
}

static uint64_t
key_of(const struct k3_layout *layout, const struct k3_microbatch *what)
{
	const uint8_t flags[] = {what->backward,    what->first, what->forced_routing, what->keep,
				 what->keep_logits, what->count, what->tower};

	return k3_fnv1a(k3_layout_hash(layout), flags, sizeof(flags));
}

/* Makes room: drops the plan that was used longest ago, if that is long enough. */
static void
drop_oldest(struct k3_plan_cache *cache, uint64_t step)
{
	size_t oldest = 0;

	for (size_t i = 1; i < cache->n; i++)
		if (cache->entry[i].step < cache->entry[oldest].step)
			oldest = i;
	if (cache->entry[oldest].step + SETTLED_STEPS > step)
		return;
	k3_plan_destroy(cache->entry[oldest].plan);
	cache->entry[oldest] = cache->entry[--cache->n];
}

int
k3_plan_cache_get(struct k3_plan_cache *cache, const struct k3_layout *layout,
		  const struct k3_microbatch *what, uint64_t step, const struct k3_plan **plan)
{
	uint64_t key = key_of(layout, what);
	struct k3_plan *fresh = NULL;
	int ret = K3_OK;

	for (size_t i = 0; i < cache->n; i++) {
		if (cache->entry[i].key != key ||
		    cache->entry[i].plan->n_tokens != layout->n_tokens)
			continue;
		cache->entry[i].step = step;
		*plan = cache->entry[i].plan;
		return K3_OK;
	}
	double start = k3_clock_s(CLOCK_MONOTONIC);
	K3_TRY(k3_plan_microbatch(&fresh, cache->model, layout, what));
	K3_TRY(k3_plan_check(fresh));
	cache->seconds += k3_clock_s(CLOCK_MONOTONIC) - start;
	cache->built++;
	if (cache->n >= cache->most && cache->n > 0)
		drop_oldest(cache, step);
	if (cache->n == cache->cap) {
		size_t cap = cache->cap ? 2 * cache->cap : 16;
		struct entry *grown = realloc(cache->entry, cap * sizeof(*grown));
		if (!grown)
			K3_TRY(K3_ENOMEM);
		cache->entry = grown;
		cache->cap = cap;
	}
	cache->entry[cache->n++] = (struct entry){key, step, fresh};
	*plan = fresh;
	return K3_OK;
out:
	k3_plan_destroy(fresh);
	return ret;
}

size_t
k3_plan_cache_built(const struct k3_plan_cache *cache, double *seconds)
{
	if (seconds)
		*seconds = cache->seconds;
	return cache->built;
}
