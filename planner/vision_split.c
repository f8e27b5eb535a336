/* Groups lie in a heap: a table may have a million items for thousands of groups.  The trap: the
 * padding of a short band comes after its rows in every frame, so valid keys are no prefix, and a
 * rank without rows still sends a band of padding. */
#include "vision_split.h"

#include <stdlib.h>
#include <string.h>

#include "../common/status.h"

bool
k3_vision_splits(const struct k3_grid *grid, uint32_t cp, uint32_t merge_h, uint64_t min_patches)
{
	return cp > 1 && k3_grid_patches(grid) >= min_patches && grid->h % merge_h == 0;
}

uint32_t
k3_vision_groups(size_t n_split, uint32_t cp)
{
	uint32_t n = n_split < cp ? (uint32_t)n_split : cp;

	while (cp % n != 0)
		n--;
	return n;
}

struct item {
	uint64_t patches;
	size_t at;
};

static int
larger_first(const void *a, const void *b)
{
	const struct item *x = a, *y = b;

	if (x->patches != y->patches)
		return x->patches > y->patches ? -1 : 1;
	return x->at < y->at ? -1 : x->at > y->at;
}

struct group {
	uint64_t load;
	uint32_t at;
};

static bool
is_lighter(const struct group *a, const struct group *b)
{
	return a->load != b->load ? a->load < b->load : a->at < b->at;
}

/* Restores the heap, lightest first, after the load of its root has grown. */
static void
sink(struct group *heap, uint32_t n)
{
	for (size_t at = 0, child; (child = 2 * at + 1) < n; at = child) {
		struct group moved = heap[at];
		if (child + 1 < n && is_lighter(&heap[child + 1], &heap[child]))
			child++;
		if (!is_lighter(&heap[child], &moved))
			return;
		heap[at] = heap[child];
		heap[child] = moved;
	}
}

int
k3_vision_balance(uint32_t *group, const struct k3_grid *grid, size_t n, uint32_t n_groups)
{
	struct item *item = malloc((n + 1) * sizeof(*item));
	struct group *heap = malloc(n_groups * sizeof(*heap));
	int ret = item && heap ? K3_OK : K3_ENOMEM;

	for (size_t i = 0; i < n && ret == K3_OK; i++)
		item[i] = (struct item){k3_grid_patches(&grid[i]), i};
	/* equal loads in order are a heap */
	for (uint32_t g = 0; g < n_groups && ret == K3_OK; g++)
		heap[g] = (struct group){0, g};
	if (ret == K3_OK)
		qsort(item, n, sizeof(*item), larger_first);
	for (size_t i = 0; i < n && ret == K3_OK; i++) {
		group[item[i].at] = heap[0].at;
		heap[0].load += item[i].patches;
		sink(heap, n_groups);
	}
	free(item);
	free(heap);
	return ret;
}

void
k3_vision_rows(const struct k3_grid *grid, uint32_t merge_h, uint32_t n_parts, uint32_t index,
	       uint32_t *row0, uint32_t *rows)
{
	uint64_t blocks = grid->h / merge_h, per = (blocks + n_parts - 1) / n_parts;
	uint64_t first = index * per < blocks ? index * per : blocks;
	uint64_t end = first + per < blocks ? first + per : blocks;

	*row0 = (uint32_t)(first * merge_h);
	*rows = (uint32_t)((end - first) * merge_h);
}

uint64_t
k3_vision_least_patches(const struct k3_grid *grid, uint32_t merge_h)
{
	uint32_t rows = grid->h / merge_h,
		 each = (rows + K3_VISION_MOST_TILES - 1) / K3_VISION_MOST_TILES;

	return (uint64_t)each * grid->t * merge_h * grid->w;
}

int
k3_vision_plan_init(struct k3_vision_plan *plan, const struct k3_grid *grid, size_t n, uint32_t cp,
		    uint32_t merge_h, uint64_t min_patches)
{
	struct k3_grid *cut = malloc((n + 1) * sizeof(*cut));
	int ret = K3_OK;

	memset(plan, 0, sizeof(*plan));
	plan->split = malloc((n + 1) * sizeof(*plan->split));
	plan->group = malloc((n + 1) * sizeof(*plan->group));
	if (!cut || !plan->split || !plan->group)
		K3_TRY(K3_ENOMEM);
	for (size_t i = 0; i < n; i++)
		if (k3_vision_splits(&grid[i], cp, merge_h, min_patches)) {
			cut[plan->n_split] = grid[i];
			plan->split[plan->n_split++] = (uint32_t)i;
		}
	if (plan->n_split > 0) {
		plan->n_groups = k3_vision_groups(plan->n_split, cp);
		plan->group_size = cp / plan->n_groups;
		K3_TRY(k3_vision_balance(plan->group, cut, plan->n_split, plan->n_groups));
	}
out:
	if (ret != K3_OK)
		k3_vision_plan_fini(plan);
	free(cut);
	return ret;
}

void
k3_vision_plan_fini(struct k3_vision_plan *plan)
{
	free(plan->split);
	free(plan->group);
	memset(plan, 0, sizeof(*plan));
}

struct runs {
	struct k3_key_run *run;
	size_t n, cap;
};

static int
add_run(struct runs *r, int32_t item, uint64_t patches)
{
	if (patches == 0)
		return K3_OK;
	if (r->n == r->cap) {
		size_t cap = r->cap ? 2 * r->cap : 64;
		struct k3_key_run *grown = realloc(r->run, cap * sizeof(*grown));
		if (!grown)
			return K3_ENOMEM;
		r->run = grown;
		r->cap = cap;
	}
	r->run[r->n++] = (struct k3_key_run){item, patches};
	return K3_OK;
}

/* One rank's band of an item, frame by frame. */
static int
add_band(struct runs *r, const struct k3_vision_plan *plan, const struct k3_grid *grid,
	 uint32_t item, uint32_t merge_h, uint32_t rank)
{
	uint32_t row0, rows, band;
	int ret = K3_OK;

	k3_vision_rows(grid, merge_h, plan->group_size, 0, &row0, &band);
	k3_vision_rows(grid, merge_h, plan->group_size, rank, &row0, &rows);
	for (uint32_t f = 0; f < grid->t; f++) {
		K3_TRY(add_run(r, (int32_t)item, (uint64_t)rows * grid->w));
		K3_TRY(add_run(r, -1, (uint64_t)(band - rows) * grid->w));
	}
out:
	return ret;
}

int
k3_vision_key_runs(struct k3_key_run **runs, size_t *n_runs, const struct k3_vision_plan *plan,
		   const struct k3_grid *grid, size_t n, uint32_t merge_h, uint32_t group)
{
	struct runs r = {0};
	int ret = K3_OK;

	for (size_t i = 0, s = 0; i < n; i++) {
		if (s < plan->n_split && plan->split[s] == i)
			s++;
		else
			K3_TRY(add_run(&r, (int32_t)i, k3_grid_patches(&grid[i])));
	}
	for (uint32_t rank = 0; rank < plan->group_size; rank++)
		for (size_t s = 0; s < plan->n_split; s++)
			if (plan->group[s] == group)
				K3_TRY(add_band(&r, plan, &grid[plan->split[s]], plan->split[s],
						merge_h, rank));
out:
	if (ret != K3_OK) {
		free(r.run);
		r.run = NULL;
		r.n = 0;
	}
	*runs = r.run;
	*n_runs = r.n;
	return ret;
}
