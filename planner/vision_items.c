/* Items that a plan can take, before anything is cut.  All that is wrong is told at once, limits
 * with the least value that would do. */
#include "../common/log.h"
#include "../common/status.h"
#include "vision_tiles.h"

enum { LISTED_ITEMS = 10 };

/* What the limits of a plan must be for all items. */
struct needs {
	size_t patches;
	uint64_t tile;	  /* patches of a vision tile */
	size_t tile_item; /* whose */
};

static int
check_grid(const struct k3_config *c, const struct k3_grid *g, size_t item)
{
	const struct k3_vision_config *v = &c->vision;
	int ret = K3_OK;

	if (g->t < 1 || g->h < 1 || g->w < 1 || g->h > K3_VISION_MOST_SIDE ||
	    g->w > K3_VISION_MOST_SIDE) {
		k3_error("planner",
			 "image %zu: grid %u x %u x %u: sides from 1 to %d patches are possible",
			 item, g->t, g->h, g->w, K3_VISION_MOST_SIDE);
		ret = K3_ESHAPE;
	}
	if (g->t > v->max_frames) {
		k3_error("planner", "image %zu: %u frames: the model knows %u at most", item, g->t,
			 v->max_frames);
		ret = K3_ESHAPE;
	}
	if (g->h % v->merge_h || g->w % v->merge_w) {
		k3_error("planner",
			 "image %zu: grid of %u x %u patches: must be a multiple of the merge "
			 "kernel %u x %u",
			 item, g->h, g->w, v->merge_h, v->merge_w);
		ret = K3_ESHAPE;
	}
	return ret;
}

static int
check_grids(const struct k3_config *c, const struct k3_layout *layout)
{
	size_t bad = 0;

	for (size_t i = 0; i < layout->n_items && bad < LISTED_ITEMS; i++)
		bad += check_grid(c, &layout->grid[i], i) != K3_OK;
	return bad ? K3_ESHAPE : K3_OK;
}

/* Rows that the features go to: in order, inside the stream. */
static int
check_rows(const struct k3_config *c, const struct k3_layout *layout)
{
	size_t end = 0;
	int ret = K3_OK;

	for (size_t i = 0; i < layout->n_items; i++) {
		size_t row = layout->item_row[i], m = k3i_vision_merged(c, &layout->grid[i]);
		if ((row < end || row + m > layout->n_tokens) && ret == K3_OK) {
			k3_error("planner",
				 "image %zu: features for rows %zu to %zu: rows from %zu to %zu "
				 "are free",
				 i, row, row + m - 1, end, layout->n_tokens);
			ret = K3_ESHAPE;
		}
		end = row + m > end ? row + m : end;
	}
	if (end > layout->n_tokens && end <= K3_MAX_TOKENS)
		k3_error("planner", "images take rows up to %zu: --tokens %zu would do", end, end);
	return ret;
}

/* Where slots are bounded, no tile may be larger than they are. */
static int
check_limits(const struct k3_plan_options *o, const struct k3_layout *layout,
	     const struct needs *needs)
{
	uint64_t most = o->max_patches ? o->max_patches : K3_VISION_MOST_PATCHES;
	uint32_t tile = o->vision_patches ? o->vision_patches : K3_VISION_TILE_PATCHES;
	int ret = K3_OK;

	if (o->max_patches && needs->tile > tile) {
		const struct k3_grid *g = &layout->grid[needs->tile_item];
		k3_error("planner",
			 "image %zu: grid %u x %u x %u needs vision tiles of %llu patches, they "
			 "have %u: --vision-patches %llu would do",
			 needs->tile_item, g->t, g->h, g->w, (unsigned long long)needs->tile, tile,
			 (unsigned long long)needs->tile);
		ret = K3_ELIMIT;
	}
	if (needs->patches > most) {
		k3_error("planner", "%zu patches in one microbatch: at most %llu are possible",
			 needs->patches, (unsigned long long)most);
		if (needs->patches <= K3_VISION_MOST_PATCHES)
			k3_error("planner", "--max-patches %zu would do", needs->patches);
		ret = K3_ELIMIT;
	}
	return ret;
}

int
k3_vision_check_items(const struct k3_config *c, const struct k3_plan_options *o,
		      const struct k3_layout *layout)
{
	struct needs needs = {0};
	int ret = check_grids(c, layout), limits;

	/* sizes of a grid that is none mean nothing */
	if (ret != K3_OK)
		return ret;
	for (size_t i = 0; i < layout->n_items; i++) {
		uint64_t least = k3_vision_least_patches(&layout->grid[i], c->vision.merge_h);
		needs.patches += k3_grid_patches(&layout->grid[i]);
		if (least > needs.tile) {
			needs.tile = least;
			needs.tile_item = i;
		}
	}
	ret = check_rows(c, layout);
	limits = check_limits(o, layout, &needs);
	return ret == K3_OK ? limits : ret;
}
