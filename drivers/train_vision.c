/* Is the tower trained, and in what tiles?  The trap: slots are taken before the first step, so
 * both limits must hold for every image of the data. */
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "train_run.h"

/* A tile holds what each image needs at least. */
static int
choose_vision_tile(struct k3i_trainer *t)
{
	const struct k3_train_options *o = t->options;
	uint64_t least = k3_session_least_tile(&t->data.file);

	if (least < K3_VISION_TILE_PATCHES)
		least = K3_VISION_TILE_PATCHES;
	t->vision_patches = o->vision_patches ? (uint32_t)o->vision_patches : (uint32_t)least;
	return k3_session_check_tiles(&t->data.file, o->data, t->vision_patches);
}

/* Of a microbatch: what was asked for, or as many as its tokens can take, but any one image. */
static uint64_t
most_patches(const struct k3i_trainer *t)
{
	const struct k3_vision_config *v = &t->config.vision;
	uint64_t most = (uint64_t)v->merge_h * v->merge_w * (uint64_t)t->options->tokens;

	if (t->options->max_patches)
		return (uint64_t)t->options->max_patches;
	for (uint64_t i = 0; i < t->data.file.n_items; i++) {
		uint64_t patches = k3_grid_patches(&t->data.file.items[i].grid);
		most = patches > most ? patches : most;
	}
	return most;
}

int
k3i_train_choose_vision(struct k3i_trainer *t)
{
	const struct k3_train_options *o = t->options;
	const struct k3_k3t *file = &t->data.file;
	struct k3_vision_config *v = &t->config.vision;
	bool on = strcmp(o->vision, "on") == 0;
	int ret = K3_OK;

	if (strcmp(o->vision, "auto") == 0)
		on = file->n_items > 0;
	if (on && !v->present) {
		k3_error("drivers", "model %s has no vision tower%s", t->config.name,
			 file->n_items > 0 ? ", and the data have images" : " (--vision on)");
		K3_TRY(K3_EINVAL);
	}
	if (!on && file->n_items > 0) {
		k3_error("drivers", "--vision off: %s has %llu images", o->data,
			 (unsigned long long)file->n_items);
		K3_TRY(K3_EINVAL);
	}
	if (!on && (o->max_patches || o->vision_patches)) {
		k3_error("drivers",
			 "--%s: the model is trained without its vision tower (--vision on keeps "
			 "it)",
			 o->max_patches ? "max-patches" : "vision-patches");
		K3_TRY(K3_EINVAL);
	}
	if (!on && v->present)
		k3_info("drivers",
			"no images: the vision tower is left out (--vision on keeps it)");
	v->present = on;
	if (!on)
		return K3_OK;
	K3_TRY(k3_session_check_file(&t->config, file, o->data));
	/* all that is too small is told at once */
	int tiles = choose_vision_tile(t);
	t->max_patches = most_patches(t);
	k3_data_set_max_patches(&t->data, t->max_patches);
	K3_TRY(k3_data_require_items(&t->data, o->data, (size_t)o->tokens));
	K3_TRY(tiles);
	k3_info("drivers",
		"vision tower: %llu images in the data, a microbatch takes at most %llu patches of "
		"them, in tiles of %u",
		(unsigned long long)file->n_items, (unsigned long long)t->max_patches,
		t->vision_patches);
out:
	return ret;
}
