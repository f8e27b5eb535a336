/* Inside of image_*.c: decoders give rows from top to bottom to a canvas, which reduces them as
 * they come and cuts them into patches, so that no file is held as a whole without need.
 */
#ifndef K3_IMAGE_PARTS_H
#define K3_IMAGE_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "files.h"
#include "image.h"

/* One direction of a reduction: what each output sums. */
struct k3i_taps {
	uint32_t n_out, most; /* outputs; room for the inputs of one */
	uint32_t *first, *n;  /* [n_out] first input, number of inputs */
	int32_t *weight;      /* [n_out][most] times 2^22 */
};

/* Rows in, rows out. */
struct k3i_resize {
	uint32_t channels, in_width;
	bool weighted; /* by alpha */
	struct k3i_taps x, y;
	uint8_t *ring; /* [y.most][x.n_out channels] rows after the horizontal pass, by number */
	int32_t *sum;  /* [x.n_out channels] */
	uint32_t pushed, pulled;
};

/** v over under with the weight alpha, (v alpha + under (255 - alpha)) / 255 to the nearest; there
 * are no ties, as 255 is odd. */
static inline uint8_t
k3i_blend(uint32_t v, uint32_t alpha, uint32_t under)
{
	return (uint8_t)((v * alpha + under * (255 - alpha) + 127) / 255);
}

/** Bicubic with antialias; channels: 3, or 4 with alpha last. @return K3_OK or K3_ENOMEM */
int k3i_resize_init(struct k3i_resize *r, uint32_t channels, uint32_t in_width, uint32_t in_height,
		    uint32_t out_width, uint32_t out_height);
/** All zero is legal. */
void k3i_resize_fini(struct k3i_resize *r);
/** Next source row, which is changed; all output rows that are ready must have been pulled. */
void k3i_resize_push(struct k3i_resize *r, uint8_t *row);
/** Next output row; false: it needs further source rows, or there is none. */
bool k3i_resize_pull(struct k3i_resize *r, uint8_t *row);

struct k3i_canvas {
	const char *path;
	const struct k3_image_rule *rule;
	struct k3_image *image;
	uint32_t channels, width, height; /* 3, or 4 with alpha; px after the reduction */
	struct k3i_resize resize;
	uint8_t *row; /* [width][channels] */
	uint32_t y;   /* rows done */
};

/** Sides and area of a file that is held whole or not; logs what is not allowed.
 * @return K3_OK, K3_EFORMAT (no pixel), K3_ELIMIT */
int k3i_canvas_check(const struct k3i_canvas *c, uint32_t width, uint32_t height, bool held);
/** Once, after the check, before the rows. @return K3_OK or K3_ENOMEM, logged */
int k3i_canvas_begin(struct k3i_canvas *c, uint32_t width, uint32_t height, uint32_t channels);
/** One row of the file, RGB or RGBA; changes it. */
void k3i_canvas_row(struct k3i_canvas *c, uint8_t *row);
void k3i_canvas_end(struct k3i_canvas *c);

/** Decode a file of that format. @return K3_OK, K3_EFORMAT, K3_ELIMIT, K3_ENOMEM, logged */
int k3i_png_read(struct k3i_canvas *c, const struct k3i_map *file);
int k3i_jpeg_read(struct k3i_canvas *c, const struct k3i_map *file);

#endif
