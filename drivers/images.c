/* Grids from an option.  The trap: a user who mends one word must not learn of the next rule only
 * then, so every word is judged by all rules, and all that are wrong are told. */
#include "images.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/rng.h"
#include "../common/status.h"

enum { MOST_IMAGES = 4096, LISTED_WORDS = 10 };

/* One "TxHxW" of n characters that the model takes. */
static bool
read_grid(const char *word, size_t n, struct k3_grid *grid, const struct k3_vision_config *v)
{
	uint32_t *side[] = {&grid->t, &grid->h, &grid->w};
	const unsigned long most[] = {v->max_frames, K3_VISION_MOST_SIDE, K3_VISION_MOST_SIDE};
	const char *at = word;

	for (size_t i = 0; i < 3; i++) {
		char *end;
		unsigned long value = strtoul(at, &end, 10);
		if (*at < '0' || *at > '9' || value < 1 || value > most[i] ||
		    (i < 2 ? *end != 'x' : end != word + n))
			return false;
		*side[i] = (uint32_t)value;
		at = end + 1;
	}
	return grid->h % v->merge_h == 0 && grid->w % v->merge_w == 0;
}

/* All words that are wrong, then what is allowed. */
static int
read_grids(struct k3_images *images, const struct k3_vision_config *v)
{
	size_t bad = 0, row = 0;

	for (const char *at = images->text; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
		size_t n = strcspn(at, ",");
		struct k3_grid *g = &images->grid[images->n];
		if (images->n == MOST_IMAGES) {
			k3_error("drivers", "--images: more than %d", MOST_IMAGES);
			return K3_EINVAL;
		}
		if (!read_grid(at, n, g, v)) {
			if (bad++ < LISTED_WORDS)
				k3_error("drivers", "--images: \"%.*s\"", (int)n, at);
			continue;
		}
		images->row[images->n++] = (uint32_t)row;
		row += k3_grid_merged(g, v->merge_h, v->merge_w);
	}
	if (bad) {
		k3_error("drivers",
			 "--images: allowed are up to %d grids TxHxW with commas between: frames T "
			 "from 1 to %u, patches H and W up to %d that are multiples of %u and %u",
			 MOST_IMAGES, v->max_frames, K3_VISION_MOST_SIDE, v->merge_h, v->merge_w);
		return K3_EINVAL;
	}
	images->tokens = (uint32_t)row;
	return K3_OK;
}

int
k3_images_read(struct k3_images *images, const struct k3_config *config)
{
	const struct k3_vision_config *v = &config->vision;

	if (!images->text && (images->bands || images->tile_patches || images->most_patches)) {
		k3_error("drivers", "--bands, --vision-patches and --max-patches need --images");
		return K3_EINVAL;
	}
	if (!images->text)
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
	return strcmp(images->text, "none") == 0 || !*images->text ? K3_OK : read_grids(images, v);
}

int
k3_images_check(const struct k3_images *images, const struct k3_config *config,
		const struct k3_plan_options *options, size_t tokens)
{
	struct k3_layout layout = {.n_tokens = tokens};

	k3_images_place(images, &layout);
	return k3_vision_check_items(config, options, &layout);
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
