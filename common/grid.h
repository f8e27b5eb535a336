/* Grids of images and videos, in patches. */
#ifndef K3_GRID_H
#define K3_GRID_H

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

#endif
