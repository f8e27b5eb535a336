/* PNG by libpng, row by row unless it is interlaced.
 *
 * The traps: libpng reports errors by a long jump, so everything that must be freed lives in the
 * reader, and after the jump no local variable is read.  Its warnings stand for damage
 * that it patched over, so they end the reading as errors do.
 */
#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image_parts.h"
#include "log.h"
#include "status.h"

/* Signature, then length, name, width, height, depth, colour type: the beginning of every PNG. */
enum {
	IHDR_AT = 8,
	WIDTH_AT = 16,
	HEIGHT_AT = 20,
	DEPTH_AT = 24,
	COLOURS_AT = 25,
	DEPTH_ALLOWED = 8
};

struct png_reader {
	struct k3i_canvas *canvas;
	const struct k3i_map *file;
	size_t at; /* bytes given to libpng */
	png_structp png;
	png_infop info;
	uint32_t width, height;
	bool held;	   /* interlaced: all rows are in memory before the first is complete */
	uint8_t *rows;	   /* one, or all */
	uint32_t channels; /* 3, or 4 with alpha */
};

static void __attribute__((noreturn)) png_stop(png_structp png, png_const_charp text)
{
	const struct png_reader *r = png_get_error_ptr(png);

	k3_error("common", "%s: PNG: %s", r->canvas->path, text);
	png_longjmp(png, 1);
}

static void
png_give(png_structp png, png_bytep to, size_t bytes)
{
	struct png_reader *r = png_get_io_ptr(png);

	if (bytes > r->file->bytes - r->at)
		png_error(png, "the file ends early");
	memcpy(to, r->file->data + r->at, bytes);
	r->at += bytes;
}

/* Size, depth and colours, before libpng sees the file: it would speak of an invalid IHDR only. */
static int
head_check(struct png_reader *r)
{
	const unsigned char *head = r->file->data;
	const char *path = r->canvas->path;

	if (r->file->bytes <= COLOURS_AT || memcmp(head + IHDR_AT, "\0\0\0\rIHDR", 8) != 0) {
		k3_error("common", "%s: PNG: no IHDR of 13 bytes behind the signature", path);
		return K3_EFORMAT;
	}
	r->width = png_get_uint_32(head + WIDTH_AT);
	r->height = png_get_uint_32(head + HEIGHT_AT);
	if (head[DEPTH_AT] > DEPTH_ALLOWED) {
		k3_error("common", "%s: PNG: %d bits a channel, allowed are 1, 2, 4 and 8", path,
			 head[DEPTH_AT]);
		return K3_EFORMAT;
	}
	if (head[COLOURS_AT] == PNG_COLOR_TYPE_PALETTE) {
		k3_error("common",
			 "%s: PNG: colours by a palette, allowed are gray and RGB, with "
			 "or without alpha",
			 path);
		return K3_EFORMAT;
	}
	return k3i_canvas_check(r->canvas, r->width, r->height, false);
}

/* Header chunks; rows will come as 8-bit RGB or RGBA. */
static int
header_read(struct png_reader *r)
{
	if (setjmp(png_jmpbuf(r->png)))
		return K3_EFORMAT;
	/* texts, profiles and the like are skipped, not unpacked */
	png_set_keep_unknown_chunks(r->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
	png_set_read_fn(r->png, r, png_give);
	png_read_info(r->png, r->info);
	r->held = png_get_interlace_type(r->png, r->info) != PNG_INTERLACE_NONE;
	png_set_expand(r->png);
	png_set_gray_to_rgb(r->png);
	png_set_interlace_handling(r->png);
	png_read_update_info(r->png, r->info);
	r->channels = png_get_channels(r->png, r->info);
	return K3_OK;
}

static int
rows_read(struct png_reader *r, size_t row_bytes)
{
	if (setjmp(png_jmpbuf(r->png)))
		return K3_EFORMAT;
	for (int pass = r->held ? 1 : PNG_INTERLACE_ADAM7_PASSES; pass < PNG_INTERLACE_ADAM7_PASSES;
	     pass++)
		for (uint32_t y = 0; y < r->height; y++)
			png_read_row(r->png, r->rows + y * row_bytes, NULL);
	for (uint32_t y = 0; y < r->height; y++) {
		uint8_t *row = r->rows + (r->held ? y * row_bytes : 0);
		png_read_row(r->png, row, NULL);
		k3i_canvas_row(r->canvas, row);
	}
	/* up to IEND, so that a file that ends early is never taken as whole */
	png_read_end(r->png, NULL);
	return K3_OK;
}

static int
reader_run(struct png_reader *r)
{
	int ret;

	K3_TRY(header_read(r));
	K3_TRY(k3i_canvas_check(r->canvas, r->width, r->height, r->held));
	size_t row_bytes = png_get_rowbytes(r->png, r->info);
	K3_ASSERT((r->channels == 3 || r->channels == 4) &&
		  row_bytes == (size_t)r->channels * r->width);
	K3_TRY(k3i_canvas_begin(r->canvas, r->width, r->height, r->channels));
	r->rows = malloc(row_bytes * (r->held ? r->height : 1));
	if (!r->rows) {
		k3_error("common", "%s: PNG: no memory for rows of %zu bytes", r->canvas->path,
			 row_bytes);
		ret = K3_ENOMEM;
		goto out;
	}
	K3_TRY(rows_read(r, row_bytes));
out:
	return ret;
}

int
k3i_png_read(struct k3i_canvas *c, const struct k3i_map *file)
{
	struct png_reader r = {.canvas = c, .file = file};
	int ret;

	K3_TRY(head_check(&r));
	r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, png_stop, png_stop);
	if (r.png)
		r.info = png_create_info_struct(r.png);
	if (!r.info) {
		k3_error("common", "%s: PNG: libpng %s gives no reader", c->path,
			 png_get_libpng_ver(NULL));
		ret = K3_ENOMEM;
		goto out;
	}
	ret = reader_run(&r);
out:
	free(r.rows);
	png_destroy_read_struct(&r.png, &r.info, NULL);
	return ret;
}
