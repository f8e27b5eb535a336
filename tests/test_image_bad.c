/* Files that are damaged, forged or too large: one line each, no image, no crash.  Under
 * AddressSanitizer the same tests show that nothing is leaked on the way out. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <jpeglib.h>
#include <string.h>
#include <sys/stat.h>

#include "../common/status.h"
#include "image_case.h"
#include "scratch.h"

#define TEST(name) Test(image_bad, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

enum { AFTER_IHDR = 33 }; /* signature, then a chunk of 13 bytes */
static const char signature[] = "\x89PNG\r\n\x1a\n";

/* One line that names the file; text "" stands for any. */
static void
expect_refused_with(const char *path, const struct k3_image_rule *rule, int status,
		    const char *text)
{
	struct k3_image image;
	int ret = k3_image_read(&image, path, rule);
	const char *log = scratch_log(), *end = strchr(log, '\n');

	cr_assert_eq(ret, status, "%s: status %d, expected %d; %s", path, ret, status, log);
	cr_assert(!image.bytes && !image.width && !image.grid.h);
	cr_assert(end && end[1] == 0, "not one line: %s", log);
	cr_assert(strstr(log, text), "expected \"%s\", got: %s", text, log);
	cr_assert(ret == K3_EINVAL || strstr(log, path), "%s is not in: %s", path, log);
}

static void
expect_refused(const char *path, int status, const char *text)
{
	expect_refused_with(path, &image_small_rule, status, text);
}

static void
expect_bytes_refused(const void *data, size_t bytes, int status, const char *text)
{
	scratch_write("bad", data, bytes);
	expect_refused(scratch_path("bad"), status, text);
}

/* A PNG of one chunk IDAT: width, height, depth, colour type, interlace. */
static void
expect_png_refused(const uint32_t side[2], const unsigned char kind[3], const void *idat,
		   size_t idat_bytes, int status, const char *text)
{
	unsigned char file[300], head[13] = {0};
	size_t n = sizeof(signature) - 1;

	for (int i = 0; i < 8; i++)
		head[i] = (unsigned char)(side[i / 4] >> (24 - 8 * (i % 4)));
	head[8] = kind[0];
	head[9] = kind[1];
	head[12] = kind[2];
	memcpy(file, signature, n);
	n += image_chunk(file + n, "IHDR", head, sizeof(head));
	n += image_chunk(file + n, "IDAT", idat, idat_bytes);
	n += image_chunk(file + n, "IEND", NULL, 0);
	expect_bytes_refused(file, n, status, text);
}

TEST(what_is_no_picture_is_refused)
{
	mkdir(scratch_path("folder"), 0700);
	mkfifo(scratch_path("fifo"), 0600);
	expect_refused(scratch_path("missing.png"), K3_EIO, "No such file");
	expect_refused(scratch_path("folder"), K3_EIO, "not a regular file");
	expect_refused(scratch_path("fifo"), K3_EIO, "not a regular file");
	expect_bytes_refused("", 0, K3_EFORMAT, "neither PNG nor JPEG: the file is empty");
	expect_bytes_refused("GIF89a", 6, K3_EFORMAT, "begins with 47 49 46 38 39 61");
	expect_bytes_refused("\x89PNG\n\n\x1a\n", 8, K3_EFORMAT, "begins with 89 50 4e 47 0a 0a");
	expect_bytes_refused(signature, 8, K3_EFORMAT, "no IHDR");
}

TEST(files_of_other_depths_and_colours_are_refused_by_name)
{
	char path[4200];
	static const char *const bad[][2] = {{"bad_gray16.png", "16 bits a channel, allowed are"},
					     {"bad_rgb16.png", "16 bits a channel, allowed are"},
					     {"bad_cmyk.jpg", "4 colours (CMYK), allowed are"},
					     {"bad_palette1.png", "a palette, allowed are"},
					     {"bad_palette4.png", "a palette, allowed are"},
					     {"bad_palette8_alpha.png", "a palette, allowed are"}};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		snprintf(path, sizeof(path), "%s", image_data_path(bad[i][0]));
		expect_refused(path, K3_EFORMAT, bad[i][1]);
	}
}

static void
expect_cut_refused(const char *ending)
{
	char names[64][64];
	size_t n = image_data_names(ending, names, 64), bytes;

	for (size_t i = 0; i < n; i++) {
		unsigned char *data = image_data_read(names[i], &bytes);
		for (size_t cut = 0; cut < bytes; cut++)
			expect_bytes_refused(data, cut, K3_EFORMAT, "");
		free(data);
	}
}

TEST(a_png_cut_at_any_byte_is_refused)
{
	expect_cut_refused(".png");
}

TEST(a_jpeg_cut_at_any_byte_is_refused)
{
	expect_cut_refused(".jpg");
}

/* Every byte of a PNG is under a checksum. */
TEST(a_png_with_any_byte_changed_is_refused)
{
	char names[64][64];
	size_t n = image_data_names(".png", names, 64), bytes;

	for (size_t i = 0; i < n; i++) {
		unsigned char *data = image_data_read(names[i], &bytes);
		for (size_t at = 0; at < bytes; at++) {
			struct k3_image image;
			data[at] ^= 0x21;
			scratch_write("bad", data, bytes);
			int ret = k3_image_read(&image, scratch_path("bad"), &image_small_rule);
			const char *log = scratch_log(), *end = strchr(log, '\n');
			data[at] ^= 0x21;
			cr_assert(ret == K3_EFORMAT || ret == K3_ELIMIT, "%s, byte %zu: status %d",
				  names[i], at, ret);
			cr_assert(end && end[1] == 0 && !image.bytes, "%s, byte %zu: %s", names[i],
				  at, log);
		}
		free(data);
	}
}

/* JPEG has no checksums: a change may give another picture, but never a crash, a silent failure or
 * a second line. */
TEST(a_jpeg_with_any_byte_changed_is_read_or_refused_with_one_line)
{
	char names[64][64];
	size_t n = image_data_names(".jpg", names, 64), bytes, refused = 0, all = 0;

	for (size_t i = 0; i < n; i++) {
		unsigned char *data = image_data_read(names[i], &bytes);
		for (size_t at = 0; at < 3 * bytes; at++, all++) {
			static const unsigned char change[] = {0x01, 0x80, 0xff};
			struct k3_image image;
			data[at / 3] ^= change[at % 3];
			scratch_write("bad", data, bytes);
			int ret = k3_image_read(&image, scratch_path("bad"), &image_small_rule);
			const char *log = scratch_log(), *end = strchr(log, '\n');
			data[at / 3] ^= change[at % 3];
			cr_assert(ret == K3_OK ? *log == 0 : end && end[1] == 0,
				  "%s, byte %zu: status %d, %s", names[i], at / 3, ret, log);
			cr_assert_eq(ret == K3_OK, image.bytes != NULL);
			refused += ret != K3_OK;
			k3_image_destroy(&image);
		}
		free(data);
	}
	cr_expect_gt(refused, all / 4, "%zu of %zu", refused, all);
}

TEST(sides_and_areas_are_checked_before_anything_is_allocated)
{
	static const unsigned char rgb[] = {8, 2, 0}, interlaced[] = {8, 2, 1};

	expect_png_refused((uint32_t[]){0, 10}, rgb, "", 0, K3_EFORMAT,
			   "0 x 10 pixels, allowed are sides of 1 to 28672");
	expect_png_refused((uint32_t[]){10, 0}, rgb, "", 0, K3_EFORMAT, "10 x 0 pixels, allowed");
	expect_png_refused((uint32_t[]){30000, 30000}, rgb, "", 0, K3_ELIMIT,
			   "30000 x 30000 pixels, allowed are sides of 1 to 28672");
	expect_png_refused((uint32_t[]){30, 30000}, rgb, "", 0, K3_ELIMIT, "30 x 30000 pixels");
	expect_png_refused((uint32_t[]){0x7fffffff, 1}, rgb, "", 0, K3_ELIMIT, "2147483647 x 1");
	expect_png_refused((uint32_t[]){UINT32_MAX, 1}, rgb, "", 0, K3_ELIMIT, "4294967295 x 1");
	expect_png_refused((uint32_t[]){28672, 28672}, rgb, "", 0, K3_ELIMIT,
			   "= 822083584 pixels, allowed are 134217728");
	expect_png_refused(
		(uint32_t[]){9000, 9000}, interlaced, "", 0, K3_ELIMIT,
		"= 81000000 pixels, interlaced or in several scans, allowed are 67108864");
}

/* Height and width of the frame header stand 5 bytes behind its marker, 0xffc0 or 0xffc2. */
static void
expect_frame_refused(const char *name, uint32_t height, uint32_t width, int status,
		     const char *text)
{
	size_t bytes, at = 2;
	unsigned char *data = image_data_read(name, &bytes);

	while (data[at + 1] != 0xc0 && data[at + 1] != 0xc2)
		at += 2 + (size_t)(data[at + 2] << 8 | data[at + 3]);
	data[at + 5] = (unsigned char)(height >> 8);
	data[at + 6] = (unsigned char)height;
	data[at + 7] = (unsigned char)(width >> 8);
	data[at + 8] = (unsigned char)width;
	expect_bytes_refused(data, bytes, status, text);
	free(data);
}

TEST(sides_and_areas_of_jpeg_are_checked_too)
{
	const char *name = "jpeg_444.jpg";

	expect_frame_refused(name, 0, 10, K3_EFORMAT, "10 x 0 pixels, allowed are sides");
	expect_frame_refused(name, 10, 0, K3_EFORMAT, "0 x 10 pixels, allowed are sides");
	expect_frame_refused(name, 30000, 30000, K3_ELIMIT, "30000 x 30000 pixels, allowed");
	expect_frame_refused(name, 65535, 65535, K3_ELIMIT, "65535 x 65535 pixels, allowed");
	expect_frame_refused(name, 20000, 20000, K3_ELIMIT, "pixels, allowed are 134217728");
	expect_frame_refused("jpeg_progressive.jpg", 9000, 9000, K3_ELIMIT,
			     "interlaced or in several scans, allowed are 67108864");
}

TEST(a_damaged_stream_under_right_checksums_is_refused)
{
	static const unsigned char gray[] = {8, 0, 0};
	/* zlib, one stored block: filter 0, value 7; then the checksum of the two */
	unsigned char good[] = {0x78, 1, 1, 2, 0, 0xfd, 0xff, 0, 7, 0, 0x0a, 0, 8};
	const uint32_t side[] = {1, 1}, wider[] = {2, 1};

	expect_png_refused(side, gray, "\xff\xff\xff\xff", 4, K3_EFORMAT, "PNG: ");
	expect_png_refused(side, gray, "", 0, K3_EFORMAT, "PNG: ");
	expect_png_refused(wider, gray, good, sizeof(good), K3_EFORMAT, "PNG: ");
	good[7] = 9; /* no such filter */
	good[10] = 0x13;
	good[12] = 0x11;
	expect_png_refused(side, gray, good, sizeof(good), K3_EFORMAT, "PNG: ");
	good[7] = 0;
	expect_png_refused(side, gray, good, sizeof(good), K3_EFORMAT, "PNG: ");
	expect_png_refused(side, (unsigned char[]){8, 3, 0}, good, sizeof(good), K3_EFORMAT,
			   "palette");
	expect_png_refused(side, (unsigned char[]){8, 5, 0}, good, sizeof(good), K3_EFORMAT,
			   "PNG: ");
	expect_png_refused(side, (unsigned char[]){3, 0, 0}, good, sizeof(good), K3_EFORMAT,
			   "PNG: ");
}

TEST(a_critical_chunk_that_nobody_knows_is_refused)
{
	size_t bytes;
	unsigned char *data = image_data_read("rgb.png", &bytes), *file = malloc(bytes + 20);

	memcpy(file, data, AFTER_IHDR);
	size_t n = AFTER_IHDR + image_chunk(file + AFTER_IHDR, "KTHR", "abc", 3);
	memcpy(file + n, data + AFTER_IHDR, bytes - AFTER_IHDR);
	expect_bytes_refused(file, bytes + 15, K3_EFORMAT, "KTHR");
	free(file);
	free(data);
}

/* 8 x 8 pixels in 3 x 64 scans: each coefficient of each colour comes by itself. */
TEST(a_jpeg_of_endless_scans_is_refused)
{
	struct jpeg_compress_struct jpeg;
	struct jpeg_error_mgr errors;
	jpeg_scan_info scans[192] = {0};
	unsigned char *data = NULL, row[24] = {1, 2, 3, 200, 100, 50};
	unsigned long bytes = 0;

	for (int i = 0; i < 192; i++)
		scans[i] = (jpeg_scan_info){1, {i % 3}, i / 3, i / 3, 0, 0};
	jpeg.err = jpeg_std_error(&errors);
	jpeg_create_compress(&jpeg);
	jpeg_mem_dest(&jpeg, &data, &bytes);
	jpeg.image_width = jpeg.image_height = 8;
	jpeg.input_components = 3;
	jpeg.in_color_space = JCS_RGB;
	jpeg_set_defaults(&jpeg);
	jpeg.scan_info = scans;
	jpeg.num_scans = 192;
	jpeg_start_compress(&jpeg, TRUE);
	for (int i = 0; i < 8; i++)
		jpeg_write_scanlines(&jpeg, (JSAMPARRAY) & (JSAMPROW){row}, 1);
	jpeg_finish_compress(&jpeg);
	jpeg_destroy_compress(&jpeg);
	expect_bytes_refused(data, bytes, K3_ELIMIT, "more than 100 scans");
	free(data);
}

TEST(rules_outside_their_domain_are_refused)
{
	static const struct {
		struct k3_image_rule rule;
		const char *text;
	} bad[] = {
		{{0, 2, 2, 9, 9}, "patch is 0, allowed are 1 to 256"},
		{{257, 2, 2, 9, 9}, "patch is 257"},
		{{14, 0, 2, 9, 9}, "merge_h is 0, allowed are 1 to 16"},
		{{14, 2, 17, 9, 9}, "merge_w is 17"},
		{{14, 2, 2, 0, 9}, "limit_patches is 0"},
		{{14, 2, 2, 9, 0}, "side_patches is 0"},
	};
	char path[4200];

	snprintf(path, sizeof(path), "%s", image_data_path("rgb.png"));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		expect_refused_with(path, &bad[i].rule, K3_EINVAL, bad[i].text);
}
