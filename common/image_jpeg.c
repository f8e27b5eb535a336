/* JPEG by libjpeg, row by row.
 *
 * The traps: libjpeg's own error handler prints and exits, so ours jumps back, and what must be
 * freed lives in the reader.  A file that ends early or is damaged gives only warnings and a
 * picture that is gray from there on: they end the reading, except those about header fields.
 */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <jpeglib.h>
#include <jerror.h>

#include "image_parts.h"
#include "log.h"
#include "status.h"

/* A progressive file may repeat scans without end, each costs as much as a picture. */
enum { MOST_SCANS = 100 };

struct jpeg_reader {
	struct jpeg_error_mgr errors; /* first: libjpeg gives back a pointer to it */
	struct jpeg_decompress_struct jpeg;
	struct jpeg_progress_mgr progress;
	jmp_buf stop;
	struct k3i_canvas *canvas;
	const struct k3i_map *file;
	uint8_t *row;
	int status;
};

static void __attribute__((noreturn)) jpeg_stop(j_common_ptr jpeg)
{
	struct jpeg_reader *r = (struct jpeg_reader *)jpeg->err;
	char text[JMSG_LENGTH_MAX];

	r->status = K3_EFORMAT;
	if (jpeg->err->msg_code == JERR_OUT_OF_MEMORY)
		r->status = K3_ENOMEM;
	if (jpeg->err->msg_code == JERR_EMPTY_IMAGE || jpeg->err->msg_code == JERR_IMAGE_TOO_BIG) {
		int ret = k3i_canvas_check(r->canvas, r->jpeg.image_width, r->jpeg.image_height,
					   false);
		if (ret != K3_OK) {
			r->status = ret;
			longjmp(r->stop, 1);
		}
	}
	jpeg->err->format_message(jpeg, text);
	k3_error("common", "%s: JPEG: %s", r->canvas->path, text);
	longjmp(r->stop, 1);
}

/* Levels from 0 on are traces. */
static void
jpeg_message(j_common_ptr jpeg, int level)
{
	int code = jpeg->err->msg_code;

	if (level < 0 && code != JWRN_ADOBE_XFORM && code != JWRN_JFIF_MAJOR &&
	    code != JWRN_BOGUS_ICC)
		jpeg_stop(jpeg);
}

static void
jpeg_progress(j_common_ptr jpeg)
{
	struct jpeg_reader *r = (struct jpeg_reader *)jpeg->err;

	if (r->jpeg.input_scan_number <= MOST_SCANS)
		return;
	k3_error("common", "%s: JPEG: more than %d scans", r->canvas->path, MOST_SCANS);
	r->status = K3_ELIMIT;
	longjmp(r->stop, 1);
}

static int
header_read(struct jpeg_reader *r)
{
	if (setjmp(r->stop))
		return r->status;
	jpeg_create_decompress(&r->jpeg);
	r->progress.progress_monitor = jpeg_progress;
	r->jpeg.progress = &r->progress;
	jpeg_mem_src(&r->jpeg, r->file->data, r->file->bytes);
	jpeg_read_header(&r->jpeg, TRUE);
	return K3_OK;
}

static int
colours_check(const struct jpeg_reader *r)
{
	J_COLOR_SPACE colours = r->jpeg.jpeg_color_space;

	if (colours == JCS_GRAYSCALE || colours == JCS_YCbCr || colours == JCS_RGB)
		return K3_OK;
	k3_error("common", "%s: JPEG: %d colours%s, allowed are gray, YCbCr and RGB",
		 r->canvas->path, r->jpeg.num_components,
		 colours == JCS_CMYK || colours == JCS_YCCK ? " (CMYK)" : "");
	return K3_EFORMAT;
}

static int
rows_read(struct jpeg_reader *r)
{
	if (setjmp(r->stop))
		return r->status;
	r->jpeg.out_color_space = JCS_RGB;
	jpeg_start_decompress(&r->jpeg);
	while (r->jpeg.output_scanline < r->jpeg.output_height) {
		jpeg_read_scanlines(&r->jpeg, &r->row, 1);
		k3i_canvas_row(r->canvas, r->row);
	}
	/* up to the end marker, so that a file that ends early is never taken as whole */
	jpeg_finish_decompress(&r->jpeg);
	return K3_OK;
}

int
k3i_jpeg_read(struct k3i_canvas *c, const struct k3i_map *file)
{
	struct jpeg_reader r = {.canvas = c, .file = file};
	int ret;

	r.jpeg.err = jpeg_std_error(&r.errors);
	r.errors.error_exit = jpeg_stop;
	r.errors.emit_message = jpeg_message;
	K3_TRY(header_read(&r));
	K3_TRY(colours_check(&r));
	K3_TRY(k3i_canvas_check(c, r.jpeg.image_width, r.jpeg.image_height,
				jpeg_has_multiple_scans(&r.jpeg)));
	K3_TRY(k3i_canvas_begin(c, r.jpeg.image_width, r.jpeg.image_height, 3));
	r.row = malloc((size_t)3 * r.jpeg.image_width);
	if (!r.row) {
		k3_error("common", "%s: JPEG: no memory for a row of %u pixels", c->path,
			 r.jpeg.image_width);
		ret = K3_ENOMEM;
		goto out;
	}
	K3_TRY(rows_read(&r));
out:
	jpeg_destroy_decompress(&r.jpeg);
	free(r.row);
	return ret;
}
