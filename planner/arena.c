#include "arena.h"

#include <stdint.h>
#include <stdlib.h>

enum { CHUNK_BYTES = 1 << 16 };

struct chunk {
	struct chunk *next;
	size_t used, cap;
};

struct k3_arena {
	struct chunk *first;
};

static const size_t chunk_head = (sizeof(struct chunk) + 15) & ~(size_t)15;

struct k3_arena *
k3i_arena_create(void)
{
	return calloc(1, sizeof(struct k3_arena));
}

void
k3i_arena_destroy(struct k3_arena *arena)
{
	if (!arena)
		return;
	for (struct chunk *c = arena->first, *next; c; c = next) {
		next = c->next;
		free(c);
	}
	free(arena);
}

void *
k3i_arena_alloc(struct k3_arena *arena, size_t bytes)
{
	struct chunk *c = arena->first;

	if (bytes > SIZE_MAX / 2)
		return NULL;
	bytes = (bytes + 15) & ~(size_t)15;
	if (!c || c->cap - c->used < bytes) {
		size_t cap = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
		struct chunk *fresh = calloc(1, chunk_head + cap);
		if (!fresh)
			return NULL;
		fresh->cap = cap;
		fresh->next = c;
		arena->first = c = fresh;
	}
	c->used += bytes;
	return (char *)c + chunk_head + c->used - bytes;
}
