/* Images by their grids alone, as k3_plan and k3_bench step take them: --images 1x32x32,4x16x24. */
#ifndef K3_DRIVERS_IMAGES_H
#define K3_DRIVERS_IMAGES_H
#include "../planner/plan.h"

/* Rows of an option table. */
#define K3_IMAGES_OPTIONS(images)                                                                  \
	{"images",                                                                                 \
	 "TxHxW,...",                                                                              \
	 K3_OPT_STRING,                                                                            \
	 &(images)->text,                                                                          \
	 0,                                                                                        \
	 0,                                                                                        \
	 "with the vision tower: images of each microbatch, frames x rows x columns of patches, "  \
	 "at the stream's first rows; or none",                                                    \
	 false},                                                                                   \
		{"bands",                                                                          \
		 "N",                                                                              \
		 K3_OPT_INT,                                                                       \
		 &(images)->bands,                                                                 \
		 1,                                                                                \
		 65535,                                                                            \
		 "bands that each image is cut in (as --vision-patches says)",                     \
		 false},                                                                           \
		{"vision-patches",                                                                 \
		 "N",                                                                              \
		 K3_OPT_INT,                                                                       \
		 &(images)->tile_patches,                                                          \
		 1,                                                                                \
		 1 << 30,                                                                          \
		 "most patches of a vision tile (256)",                                            \
		 false},                                                                           \
	{                                                                                          \
		"max-patches", "N", K3_OPT_INT, &(images)->most_patches, 1, 1 << 30,               \
			"memory for all microbatches of so many patches, not for these images "    \
			"alone",                                                                   \
			false                                                                      \
	}

struct k3_images {
	const char *text; /* NULL: no vision */
	long long bands, tile_patches, most_patches;
	/* of k3_images_read */
	size_t n;
	struct k3_grid *grid;
	uint32_t *row;
	uint32_t tokens; /* rows that they take */
	/* of k3_images_fill */
	float *pixels;
	const float **pixels_of; /* [n] as struct k3_host_batch has them */
};

/**
 * Reads the grids and places them one after the other, from the first row on.
 * @return K3_OK, K3_EINVAL (logged: all words that are wrong, and what is allowed), K3_ENOMEM
 */
int k3_images_read(struct k3_images *images, const struct k3_config *config);
/** Do they fit into microbatches of `tokens` and the limits of options?
 * @return as k3_vision_check_items */
int k3_images_check(const struct k3_images *images, const struct k3_config *config,
		    const struct k3_plan_options *options, size_t tokens);
/** Random pixels in [-1, 1). @return K3_OK, K3_ENOMEM */
int k3_images_fill(struct k3_images *images, const struct k3_config *config, uint64_t seed);
/** Options of a plan with these images. */
void k3_images_apply(const struct k3_images *images, struct k3_plan_options *options);
/** The same for its layout. */
void k3_images_place(const struct k3_images *images, struct k3_layout *layout);
void k3_images_fini(struct k3_images *images);

#endif
