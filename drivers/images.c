/* Grids from an option.  The trap: whether a grid suits the model is the planner's to say, so
 * only the form is judged here. */
#include "images.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/rng.h"
#include "../common/status.h"

enum { MOST_IMAGES = 4096, MOST_SIDE = 65535 };

/* One "TxHxW" that ends in a comma or the text's end. */
static bool
read_grid(const char **at, struct k3_grid *grid)
{
	uint32_t *side[] = {&grid->t, &grid->h, &grid->w};

	for (size_t i = 0; i < 3; i++) {
		char *end;
		unsigned long value = strtoul(*at, &end, 10);
		char last = i < 2 ? 'x' : ',';
		if (**at < '0' || **at > '9' || value < 1 || value > MOST_SIDE ||
		    (*end != last && !(i == 2 && *end == '\0')))
			return false;
		*side[i] = (uint32_t)value;
		*at = *end ? end + 1 : end;
		if (i == 2 && *end && !**at)
			return false;
	}
	return true;
}

int
k3_images_read(struct k3_images *images, const struct k3_config *config)
{
	const struct k3_vision_config *v = &config->vision;
	const char *at = images->text;
	uint64_t row = 0;

	if (!at && (images->bands || images->tile_patches || images->most_patches)) {
		k3_error("drivers", "--bands, --vision-patches and --max-patches need --images");
		return K3_EINVAL;
	}
	if (!at)
		return K3_OK;
	if (!v->present) {
		k3_error("drivers", "--images: %s has no vision tower", config->name);
		return K3_EINVAL;
	}
	images->grid = calloc(MOST_IMAGES, sizeof(*images->grid));
	images->row = calloc(MOST_IMAGES, sizeof(*images->row));
	if (!images->grid || !images->row)
		return K3_ENOMEM;
	/* an empty text is what a forgotten variable gives */
	for (bool none = strcmp(at, "none") == 0; *at && !none;) {
		const char *word = at;
		struct k3_grid *g = &images->grid[images->n];
		if (images->n == MOST_IMAGES || !read_grid(&at, g)) {
			k3_error("drivers",
				 "--images \"%s\": allowed are up to %d grids TxHxW of 1 to %d, "
				 "with commas between",
				 word, MOST_IMAGES, MOST_SIDE);
			return K3_EINVAL;
		}
		images->row[images->n++] = (uint32_t)row;
		row += k3_grid_merged(g, v->merge_h, v->merge_w);
		if (row > INT32_MAX) {
			k3_error("drivers", "--images: %llu rows; allowed are %d",
				 (unsigned long long)row, INT32_MAX);
			return K3_EINVAL;
		}
	}
	images->tokens = (uint32_t)row;
	return K3_OK;
}

int
k3_images_fill(struct k3_images *images, const struct k3_config *config, uint64_t seed)
{
	uint64_t key = k3_rng_key("random pixels", seed);
	size_t width = k3_patch_values(config->vision.patch), n = 0, at = 0;

	for (size_t i = 0; i < images->n; i++)
		n += k3_grid_patches(&images->grid[i]) * width;
	images->pixels = malloc((n + 1) * sizeof(*images->pixels));
	images->pixels_of = malloc((images->n + 1) * sizeof(*images->pixels_of));
	if (!images->pixels || !images->pixels_of)
		return K3_ENOMEM;
	for (size_t i = 0; i < n; i++)
		images->pixels[i] = (float)(2 * k3_rng_uniform(key, i) - 1);
	for (size_t i = 0; i < images->n; i++) {
		images->pixels_of[i] = images->pixels + at;
		at += k3_grid_patches(&images->grid[i]) * width;
	}
	return K3_OK;
}

void
k3_images_apply(const struct k3_images *images, struct k3_plan_options *options)
{
	options->vision = images->text != NULL;
	options->vision_bands = (uint32_t)images->bands;
	options->vision_patches = (uint32_t)images->tile_patches;
	options->max_patches = (uint64_t)images->most_patches;
}

void
k3_images_place(const struct k3_images *images, struct k3_layout *layout)
{
	layout->n_items = images->n;
	layout->grid = images->grid;
	layout->item_row = images->row;
}

void
k3_images_fini(struct k3_images *images)
{
	free(images->grid);
	free(images->row);
	free(images->pixels);
	free(images->pixels_of);
	*images = (struct k3_images){0};
}
