/* From the rows of a file to patches: reduction, chessboard under transparent pixels, order.
 *
 * The trap: the squares of the chessboard are 8 pixels of the reduced image, not of the file, and
 * the filling around it stays 0.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "image_parts.h"
#include "log.h"
#include "status.h"

enum { SQUARE = 8, LIGHT = 255, DARK = 180 };

int
k3i_canvas_check(const struct k3i_canvas *c, uint32_t width, uint32_t height, bool held)
{
	int most = held ? K3_IMAGE_MOST_PIXELS_HELD : K3_IMAGE_MOST_PIXELS;

	if (width == 0 || height == 0 || width > K3_IMAGE_MOST_SIDE ||
	    height > K3_IMAGE_MOST_SIDE) {
		k3_error("common",
			 "%s: %" PRIu32 " x %" PRIu32 " pixels, allowed are sides of 1 to %d",
			 c->path, width, height, K3_IMAGE_MOST_SIDE);
		return width == 0 || height == 0 ? K3_EFORMAT : K3_ELIMIT;
	}
	if ((uint64_t)width * height > (uint64_t)most) {
		k3_error("common",
			 "%s: %" PRIu32 " x %" PRIu32 " = %" PRIu64 " pixels%s, allowed are %d",
			 c->path, width, height, (uint64_t)width * height,
			 held ? ", interlaced or in several scans" : "", most);
		return K3_ELIMIT;
	}
	return K3_OK;
}

int
k3i_canvas_begin(struct k3i_canvas *c, uint32_t width, uint32_t height, uint32_t channels)
{
	struct k3_image *image = c->image;
	size_t patch_bytes = k3_patch_values(c->rule->patch);

	c->channels = channels;
	image->width = width;
	image->height = height;
	k3_image_fit(c->rule, width, height, &c->width, &c->height, &image->grid);
	/* calloc: the filling is 0 */
	image->bytes = calloc(k3_grid_patches(&image->grid), patch_bytes);
	c->row = malloc((size_t)c->width * channels);
	if (!image->bytes || !c->row ||
	    k3i_resize_init(&c->resize, channels, width, height, c->width, c->height) != K3_OK) {
		k3_error("common", "%s: no memory for %" PRIu64 " patches of %zu bytes", c->path,
			 k3_grid_patches(&image->grid), patch_bytes);
		return K3_ENOMEM;
	}
	return K3_OK;
}

/* One row into the patches that it crosses. */
static void
row_place(struct k3i_canvas *c)
{
	uint32_t patch = c->rule->patch, area = patch * patch;
	uint8_t *row_of_patches =
		c->image->bytes + (size_t)(c->y / patch) * c->image->grid.w * 3 * area;

	for (uint32_t x = 0; x < c->width; x++) {
		const uint8_t *p = c->row + (size_t)x * c->channels;
		uint8_t *to = row_of_patches + (size_t)(x / patch) * 3 * area +
			      c->y % patch * patch + x % patch;
		uint32_t under = (x / SQUARE + c->y / SQUARE) % 2 ? DARK : LIGHT;
		for (uint32_t i = 0; i < 3; i++)
			to[i * area] = c->channels == 4 ? k3i_blend(p[i], p[3], under) : p[i];
	}
}

void
k3i_canvas_row(struct k3i_canvas *c, uint8_t *row)
{
	k3i_resize_push(&c->resize, row);
	for (; k3i_resize_pull(&c->resize, c->row); c->y++)
		row_place(c);
}

void
k3i_canvas_end(struct k3i_canvas *c)
{
	k3i_resize_fini(&c->resize);
	free(c->row);
	c->row = NULL;
}
