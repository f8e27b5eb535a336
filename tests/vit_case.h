/* The items of vit_block.safetensors, cut in vision tiles.  Dumps hold rows item by item, frame by
 * frame; a tile has a band's rows of every frame together. */
#ifndef K3_TESTS_VIT_CASE_H
#define K3_TESTS_VIT_CASE_H
#include "../common/op/vit.h"
#include "held.h"

enum { VIT_PATCHES = 52, VIT_TILES = 4, VIT_PARTS = 3 };

struct vit_grid {
	int32_t t, h, w;
};

/* Grid rows row0 .. row0 + rows - 1 of an item. */
struct vit_band {
	int32_t item, row0, rows;
};

struct vit_cut {
	size_t n_tiles;
	struct vit_band band[VIT_TILES][VIT_PARTS]; /* rows = 0: no more */
};

struct vit_tile {
	size_t n, m;
	int32_t *layout;
	const int32_t *row;	   /* [n] row of each patch in the dump */
	const int32_t *merged_row; /* [m] row of each merged token among those of all items */
};

/** Grids (1,4,6), (2,6,2), (1,2,2) in one tile, in two (the second item in both), in four (the
 * first item in two, the second in three). */
extern const struct vit_cut vit_cuts[3];
extern const struct vit_grid vit_items[VIT_PARTS];

struct vit_tile vit_tile(const struct vit_grid *items, const struct vit_band *band);
/** The tile's rows of x [.., width]. */
float *vit_gather(const struct vit_tile *tile, const float *x, size_t width);
/** The other way. */
void vit_scatter(const struct vit_tile *tile, float *to, const float *x, size_t width);
/** The same for merged tokens. */
float *vit_gather_merged(const struct vit_tile *tile, const float *x, size_t width);
void vit_scatter_merged(const struct vit_tile *tile, float *to, const float *x, size_t width);
/** Do the tiles share an item? */
int vit_meet(const struct vit_tile *x, const struct vit_tile *y);

#endif
