/* Memory that is freed as a whole. */
#ifndef K3_PLANNER_ARENA_H
#define K3_PLANNER_ARENA_H
#include <stddef.h>

struct k3_arena;
struct k3_arena *k3i_arena_create(void);
void k3i_arena_destroy(struct k3_arena *arena);
/** Zeroed, aligned to 16 bytes; NULL when memory is out. */
void *k3i_arena_alloc(struct k3_arena *arena, size_t bytes);
#endif
