/* PNG and JPEG files to the bytes of patches, with the preprocessing of the vision tower.
 *
 * A picture of h x w pixels is read, reduced, laid on a chessboard where it is transparent,
 * filled up with 0 at the bottom and on the right, and cut into patches:
 *
 *   scale = min(1, sqrt(limit / (max(1, floor(h/p)) max(1, floor(w/p)))), side p / h, side p / w)
 *   h'    = min(side p, max(1, floor(h scale))),   w' likewise;   p the side of a patch in pixels
 *
 * When h' or w' differs, the reduction is bicubic (a = -0.5) with antialias on 8-bit values, each
 * byte equal to Pillow's Image.resize(BICUBIC).  Nothing is ever enlarged.  What is stored are
 * the values 0 to 255; (v/255 - 0.5)/0.5 comes later, when a tile is loaded (k3_vit_load_cpu).
 *
 * Colours are taken as stored: gamma, colour profiles and the orientation of EXIF are not applied.
 * Formats, limits and errors: doc/data-formats.md, "Images".
 */
#ifndef K3_IMAGE_H
#define K3_IMAGE_H

#include <stdint.h>

#include "grid.h"

/** Limits of a file, checked before its pixels get memory. */
enum {
	K3_IMAGE_MOST_SIDE = 28672,	    /* px: four times what 512 patches of 14 hold */
	K3_IMAGE_MOST_PIXELS = 1 << 27,	    /* width x height */
	K3_IMAGE_MOST_PIXELS_HELD = 1 << 26 /* the same, interlaced or with several scans: such a
	                                       file can't be decoded row by row */
};

struct k3_image_rule {
	uint32_t patch;		   /* side of a patch, px; 1 to 256 */
	uint32_t merge_h, merge_w; /* patches of a token; 1 to 16 */
	uint32_t limit_patches;	   /* of an image before it is filled up; from 1 */
	uint32_t side_patches;	   /* of a side before it is filled up; from 1 */
};

struct k3_image {
	struct k3_grid grid;	/* t = 1; h, w multiples of merge_h, merge_w */
	uint32_t width, height; /* px, as stored in the file */
	uint8_t *bytes;		/* [grid.h grid.w][3 patch patch]: channel, y, x; raster order */
};

/**
 * Pixels after the reduction, and the grid after filling up, of an image with sides of 1 to
 * K3_IMAGE_MOST_SIDE px. Filling up can lead beyond limit_patches and side_patches by less than a
 * token on each side, as in the rule's source.
 */
void k3_image_fit(const struct k3_image_rule *rule, uint32_t width, uint32_t height,
		  uint32_t *fit_width, uint32_t *fit_height, struct k3_grid *grid);

/**
 * Reads a file; its content, not its name, says whether it is PNG or JPEG.
 *
 * A file that is damaged or ends early is refused, there are no partial pictures. Memory: the
 * patches, some rows of the source, and the whole source only when it can't be decoded by rows.
 *
 * @return K3_OK, K3_EINVAL (rule), K3_EIO, K3_EFORMAT, K3_ELIMIT (too large), K3_ENOMEM; one logged
 *         line says file, what and what is allowed, and *image is all zero
 */
int k3_image_read(struct k3_image *image, const char *path, const struct k3_image_rule *rule);
/** An image that is all zero is legal. */
void k3_image_destroy(struct k3_image *image);

#endif
