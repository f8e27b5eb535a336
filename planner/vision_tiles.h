/* Cutting a microbatch's items in vision tiles (inside planner/). */
#ifndef K3_PLANNER_VISION_TILES_H
#define K3_PLANNER_VISION_TILES_H
#include "build.h"
#include "vision_split.h"

struct k3i_vtile {
	int number;	 /* among those of all cp ranks: what tasks and data are labelled with */
	size_t n, m;	 /* patches, merged tokens */
	size_t merged0;	 /* first merged token in the microbatch */
	int32_t *layout; /* vision layout (vit.h) */
	size_t parts;
	size_t key0, n_keys; /* tiles that hold keys of its items: key0 .. key0 + n_keys - 1 */
};

/* Item of a part. */
static inline int32_t
k3i_vtile_item(const struct k3i_vtile *tile, size_t part)
{
	return k3_vit_part(tile->layout, (int32_t)part)[K3_VP_ITEM];
}

/* An item: its first merged token, and the place of the tile that holds it. */
struct k3i_vitem {
	size_t merged0, place;
};

/* Places of a cp rank's tiles. */
struct k3i_vrange {
	size_t first, n;
};

/* Places: own tiles, phantoms up to n_most, then the tiles of other cp ranks, rank by rank, and
 * their phantoms.  A rank takes whole items; merged tokens are numbered by ranks, then by items. */
struct k3i_vtiles {
	bool placeholder; /* no own item: one of a single merged token stands in */
	size_t n, n_most; /* own tiles; those that positions and slots are taken for */
	size_t others, others_most;
	size_t nominal_n, nominal_m, nominal_parts;
	struct k3i_vtile *tile;	 /* [n_most + others_most] */
	struct k3i_vrange *rank; /* [cp] */
	struct k3i_vitem *item;	 /* [items] */
	size_t n_merged;
};

/**
 * Checks the items of a layout against model and stream, deals them to the cp ranks
 * (k3_vision_balance) and cuts them. The items of a rank keep their order, so a tile's merged
 * tokens follow each other and the tiles that share an item are neighbours.
 * @return K3_OK, K3_ESHAPE (logged with the item's number and both values), K3_ELIMIT (more
 * patches than options allow; logged), K3_ENOMEM
 */
int k3i_vision_cut(struct k3i_vtiles *v, struct k3_builder *b, const struct k3_layout *layout);

static inline size_t
k3i_vision_merged(const struct k3_config *c, const struct k3_grid *grid)
{
	return (size_t)k3_grid_merged(grid, c->vision.merge_h, c->vision.merge_w);
}

/** Refuses images whose tower alone passes the limits of a plan, before a task of it is there.
 * @return K3_OK; K3_ELIMIT (logged) */
int k3i_vision_check_size(const struct k3i_vtiles *v, const struct k3_builder *b);

/** Tiles that any images may have; n, those of a layout, when their patches are not bounded. */
size_t k3i_vision_most_tiles(const struct k3_plan_options *options, const struct k3_config *config,
			     size_t n);
#endif
