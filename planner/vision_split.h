/* Vision under context parallelism: which items are cut among the cp ranks, in what groups, at
 * which rows, and in what order their keys arrive (model.md 9.2).  Pure functions of the grids, so
 * every rank finds the same.
 */
#ifndef K3_PLANNER_VISION_SPLIT_H
#define K3_PLANNER_VISION_SPLIT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../common/grid.h"

enum {
	K3_VISION_MIN_PATCHES = 256,	  /* least of an item that is cut among cp ranks */
	K3_VISION_TILE_PATCHES = 256,	  /* of a vision tile, unless told otherwise */
	K3_VISION_MOST_PATCHES = 1 << 30, /* of an item, a tile, a microbatch */
	K3_VISION_MOST_TILES = 64	  /* of an item, unless bands are asked for by number */
};

/** Is the item cut among cp ranks? It is when there are several, it has min_patches or more, and
 * its rows are a multiple of merge_h. */
bool k3_vision_splits(const struct k3_grid *grid, uint32_t cp, uint32_t merge_h,
		      uint64_t min_patches);

/** Sub-groups of the cp ranks for n_split >= 1 items: their number is the largest divisor of cp not
 * above n_split; each has cp / number ranks. */
uint32_t k3_vision_groups(size_t n_split, uint32_t cp);

/**
 * Deals items to groups: the largest first (equal ones in order), each to the group with the least
 * patches so far (the first of equals).
 * @param grid   [n] the items that are cut
 * @param group  out [n]
 * @return K3_OK, K3_ENOMEM
 */
int k3_vision_balance(uint32_t *group, const struct k3_grid *grid, size_t n, uint32_t n_groups);

/** Grid rows of part `index` of n_parts: whole merge rows, ceil(blocks / n_parts) each; the last
 * parts may have fewer or none. */
void k3_vision_rows(const struct k3_grid *grid, uint32_t merge_h, uint32_t n_parts, uint32_t index,
		    uint32_t *row0, uint32_t *rows);

/** Least vision_patches of tiles that an item is cut in: a merge row must fit, and a tile attends
 * to at most K3_VISION_MOST_TILES. */
uint64_t k3_vision_least_patches(const struct k3_grid *grid, uint32_t merge_h);

/* Keys that come one after the other. */
struct k3_key_run {
	int32_t item; /* -1: padding */
	uint64_t patches;
};

struct k3_vision_plan {
	uint32_t n_groups, group_size; /* 0: nothing is cut */
	size_t n_split;
	uint32_t *split; /* [n_split] items that are cut, ascending */
	uint32_t *group; /* [n_split] */
};

/** @return K3_OK, K3_ENOMEM; the plan is zero then */
int k3_vision_plan_init(struct k3_vision_plan *plan, const struct k3_grid *grid, size_t n,
			uint32_t cp, uint32_t merge_h, uint64_t min_patches);
void k3_vision_plan_fini(struct k3_vision_plan *plan);

/**
 * Keys that the ranks of a sub-group see, in order: the whole items by number; then for each rank
 * of the group, for each of its items, for each frame the rank's rows and then the padding up to
 * the first rank's rows.  Runs of no length are left out, neighbours are not merged.
 * @param runs  malloc'ed
 * @return K3_OK, K3_ENOMEM
 */
int k3_vision_key_runs(struct k3_key_run **runs, size_t *n_runs, const struct k3_vision_plan *plan,
		       const struct k3_grid *grid, size_t n, uint32_t merge_h, uint32_t group);

/**
 * Compares with a table of such plans, tab-separated, a plan a line, lines with # skipped:
 * "cp merge_h min_patches", grids "t,h,w;...", items that are cut, group of each, "groups size",
 * key runs of group 0 as "item:patches"; the last four are "-" when nothing is cut. Each line that
 * differs is logged with its number and the first field that does.
 * @return K3_OK; K3_EIO, K3_EFORMAT (logged with line, field and value), K3_ENOMEM
 */
int k3_vision_table_check(const char *path, size_t *passed, size_t *failed);

#endif
