#include "slot_pools.h"

#include <stdlib.h>
#include <string.h>

#include "../common/status.h"

/* Of an element: a vector handle counts them in 32 bits. */
enum { ELEM_BYTES = 256 };

void
k3i_register_bytes(starpu_data_handle_t *handle, size_t bytes)
{
	starpu_vector_data_register(handle, -1, 0, (uint32_t)(bytes / ELEM_BYTES), ELEM_BYTES);
}

struct k3i_pool *
k3i_pool_of(const struct k3i_pools *pools, size_t bytes)
{
	size_t lo = 0, hi = pools->n;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (pools->pool[mid].bytes < bytes)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < pools->n && pools->pool[lo].bytes == bytes ? &pools->pool[lo] : NULL;
}

static struct k3i_pool *
add_pool(struct k3i_pools *pools, size_t bytes)
{
	struct k3i_pool *grown = realloc(pools->pool, (pools->n + 1) * sizeof(*grown));
	size_t at = 0;

	if (!grown)
		return NULL;
	pools->pool = grown;
	while (at < pools->n && grown[at].bytes < bytes)
		at++;
	memmove(&grown[at + 1], &grown[at], (pools->n - at) * sizeof(*grown));
	grown[at] = (struct k3i_pool){.bytes = bytes};
	pools->n++;
	return &grown[at];
}

/* Room for one more of a pool. */
static int
grow_pool(struct k3i_pool *pool, uint32_t n)
{
	starpu_data_handle_t *handle = realloc(pool->handle, n * sizeof(*handle));

	if (!handle)
		return K3_ENOMEM;
	pool->handle = handle;
	bool *in_main = realloc(pool->in_main, n * sizeof(*in_main));
	if (!in_main)
		return K3_ENOMEM;
	pool->in_main = in_main;
	return K3_OK;
}

int
k3i_pools_grow(struct k3i_pools *pools, const struct k3_plan *plan, struct k3_need *need)
{
	int ret = K3_OK;

	for (size_t i = 0; i < plan->n_slots; i++) {
		const struct k3_slot *slot = &plan->slot[i];
		struct k3i_pool *p = k3i_pool_of(pools, slot->bytes);
		if (!p)
			p = add_pool(pools, slot->bytes);
		K3_TRY(p ? K3_OK : K3_ENOMEM);
		if (slot->ordinal < p->n)
			continue;
		K3_TRY(grow_pool(p, slot->ordinal + 1));
		for (; p->n <= slot->ordinal; p->n++) {
			k3i_register_bytes(&p->handle[p->n], slot->bytes);
			p->in_main[p->n] = false;
			k3_need_add(need, slot->bytes, 1);
		}
	}
out:
	return ret;
}

void
k3i_pools_fini(struct k3i_pools *pools)
{
	for (size_t p = 0; p < pools->n; p++) {
		for (uint32_t i = 0; i < pools->pool[p].n; i++)
			starpu_data_unregister_no_coherency(pools->pool[p].handle[i]);
		free(pools->pool[p].handle);
		free(pools->pool[p].in_main);
	}
	free(pools->pool);
}
