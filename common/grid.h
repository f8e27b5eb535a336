/* Grids of images and videos, in patches. */
#ifndef K3_GRID_H
#define K3_GRID_H

#include <stddef.h>
#include <stdint.h>

/* Patches of an item: frames, rows, columns; all at least 1. */
struct k3_grid {
	uint32_t t, h, w;
};

/* Longest side of an image (model.md 6.1). */
enum { K3_VISION_MOST_SIDE = 512 };

static inline uint64_t
k3_grid_patches(const struct k3_grid *grid)
{
	return (uint64_t)grid->t * grid->h * grid->w;
}

/** Merged tokens of an item: one for each merge_h x merge_w patches, however many frames. */
static inline uint64_t
k3_grid_merged(const struct k3_grid *grid, uint32_t merge_h, uint32_t merge_w)
{
	return (uint64_t)(grid->h / merge_h) * (grid->w / merge_w);
}

/** Values of an RGB patch of `patch` pixels a side. */
static inline size_t
k3_patch_values(uint32_t patch)
{
	return 3 * (size_t)patch * patch;
}

#endif
