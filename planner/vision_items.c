/* Items that a plan can take, before anything is cut. */
#include "../common/log.h"
#include "../common/status.h"
#include "vision_tiles.h"

static int
check_grid(const struct k3_config *c, const struct k3_grid *g, size_t item)
{
	const struct k3_vision_config *v = &c->vision;

	if (g->t < 1 || g->h < 1 || g->w < 1 || g->h > K3_VISION_MOST_SIDE ||
	    g->w > K3_VISION_MOST_SIDE) {
		k3_error("planner",
			 "image %zu: grid %u x %u x %u: sides from 1 to %d patches are possible",
			 item, g->t, g->h, g->w, K3_VISION_MOST_SIDE);
		return K3_ESHAPE;
	}
	if (g->t > v->max_frames) {
		k3_error("planner", "image %zu: %u frames: the model knows %u at most", item, g->t,
			 v->max_frames);
		return K3_ESHAPE;
	}
	if (g->h % v->merge_h || g->w % v->merge_w) {
		k3_error("planner",
			 "image %zu: grid of %u x %u patches: must be a multiple of the merge "
			 "kernel %u x %u",
			 item, g->h, g->w, v->merge_h, v->merge_w);
		return K3_ESHAPE;
	}
	return K3_OK;
}

/* Where slots are bounded, no tile may be larger than they are. */
static int
check_tile(const struct k3_plan_options *o, const struct k3_config *c, const struct k3_grid *g,
	   size_t item)
{
	uint64_t least = k3_vision_least_patches(g, c->vision.merge_h);

	if (least <= o->vision_patches)
		return K3_OK;
	k3_error("planner",
		 "image %zu: grid %u x %u x %u needs vision tiles of %llu patches, they have %u "
		 "(--vision-patches)",
		 item, g->t, g->h, g->w, (unsigned long long)least, o->vision_patches);
	return K3_ELIMIT;
}

int
k3i_vision_check_items(size_t *n_merged, const struct k3_builder *b, const struct k3_layout *layout)
{
	const struct k3_config *c = b->config;
	const struct k3_plan_options *o = &b->model->options;
	uint64_t most = o->max_patches ? o->max_patches : K3_VISION_MOST_PATCHES;
	size_t end = 0, patches = 0;

	for (size_t i = 0; i < layout->n_items; i++) {
		int ret = check_grid(c, &layout->grid[i], i);
		if (ret == K3_OK && o->max_patches)
			ret = check_tile(o, c, &layout->grid[i], i);
		if (ret != K3_OK)
			return ret;
		size_t row = layout->item_row[i], m = k3i_vision_merged(c, &layout->grid[i]);
		if (row < end || row + m > layout->n_tokens) {
			k3_error("planner",
				 "image %zu: features for rows %zu to %zu: rows from %zu to %zu "
				 "are free",
				 i, row, row + m - 1, end, layout->n_tokens);
			return K3_ESHAPE;
		}
		end = row + m;
		patches += k3_grid_patches(&layout->grid[i]);
		*n_merged += m;
	}
	if (patches > most) {
		k3_error("planner", "%zu patches in one microbatch: at most %llu are possible",
			 patches, (unsigned long long)most);
		return K3_ELIMIT;
	}
	return K3_OK;
}
