/* Images to patches: the resize rule, the reduction and the reader against Pillow's results. */
#include <criterion/criterion.h>
#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "../common/image_parts.h"
#include "../common/op/io.h"
#include "../common/op/vit.h"
#include "../common/status.h"
#include "fixture.h"
#include "image_case.h"
#include "scratch.h"

#define TEST(name) Test(image, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

/* A slope of its own in every channel. */
static uint8_t *
ramp(uint32_t width, uint32_t height, uint32_t channels)
{
	uint8_t *pixels = malloc((size_t)width * height * channels), *p = pixels;

	for (uint32_t y = 0; y < height; y++)
		for (uint32_t x = 0; x < width; x++)
			for (uint32_t c = 0; c < channels; c++)
				*p++ = (uint8_t)(3 * x + (7 + c) * y + 85 * c);
	return pixels;
}

static void
expect_fit(const struct k3_image_rule *rule, const int32_t *side, const int32_t *want)
{
	uint32_t h, w;
	struct k3_grid grid;

	k3_image_fit(rule, side[1], side[0], &w, &h, &grid);
	cr_expect(h == (uint32_t)want[0] && w == (uint32_t)want[1],
		  "%d x %d: got %u x %u, expected %d x %d", side[0], side[1], h, w, want[0],
		  want[1]);
	cr_expect_eq(grid.t, 1);
	cr_expect(grid.h % rule->merge_h == 0 && grid.w % rule->merge_w == 0);
	uint64_t tokens = k3_grid_patches(&grid) / rule->merge_h / rule->merge_w;
	cr_expect_eq(tokens, want[2], "%d x %d: %d tokens expected", side[0], side[1], want[2]);
}

Test(image, the_resize_rule_gives_the_sizes_of_its_formula, .timeout = 60)
{
	struct k3_st *st = fixture_open("resize");
	size_t n;
	int32_t *fit = fixture_i32(st, "fit", &n);

	for (int32_t *f = fit; f < fit + n; f += 9) {
		struct k3_image_rule rule = {f[0], f[1], f[1], f[2], f[3]};
		expect_fit(&rule, f + 4, f + 6);
	}
	cr_assert_gt(n, 9 * 150);
	free(fit);
	k3_st_close(st);
}

/* Sizes that went wrong elsewhere, by hand. */
Test(image, single_pixels_and_strips_have_tokens, .timeout = 60)
{
	static const int32_t hand[][5] = {/* h w, h' w' tokens */
					  {1, 1, 1, 1, 1},     {1, 4000, 1, 4000, 143},
					  {15, 29, 15, 29, 2}, {20, 20000, 7, 7168, 256},
					  {28, 28, 28, 28, 1}, {28, 29, 28, 29, 2}};

	for (size_t i = 0; i < sizeof(hand) / sizeof(hand[0]); i++)
		expect_fit(&image_rule, hand[i], hand[i] + 2);
	uint32_t w, h;
	struct k3_grid grid;
	k3_image_fit(&(struct k3_image_rule){14, 1, 3, 65536, 512}, 15, 29, &w, &h, &grid);
	cr_expect(grid.h == 3 && grid.w == 3, "%u x %u", grid.h, grid.w);
}

static void
expect_reduced(const struct k3_st_tensor *in, const struct k3_st_tensor *want)
{
	uint32_t channels = (uint32_t)in->dims[2], w = (uint32_t)want->dims[1];
	uint8_t *row = malloc(in->dims[1] * channels), *out = malloc((size_t)w * channels);
	const uint8_t *from = in->data, *to = want->data;
	struct k3i_resize r;
	uint64_t rows = 0, wrong = 0;

	cr_assert_eq(k3i_resize_init(&r, channels, (uint32_t)in->dims[1], (uint32_t)in->dims[0], w,
				     (uint32_t)want->dims[0]),
		     K3_OK);
	for (uint64_t y = 0; y < in->dims[0]; y++) {
		memcpy(row, from + y * in->dims[1] * channels, in->dims[1] * channels);
		k3i_resize_push(&r, row);
		for (; k3i_resize_pull(&r, out); rows++)
			for (uint32_t i = 0; i < w * channels; i++)
				wrong += out[i] != to[rows * w * channels + i];
	}
	cr_expect_eq(rows, want->dims[0], "%s: %lu rows", in->name, (unsigned long)rows);
	cr_expect_eq(wrong, 0, "%s: %lu bytes differ", in->name, (unsigned long)wrong);
	k3i_resize_fini(&r);
	free(row);
	free(out);
}

Test(image, the_reduction_equals_pillows_in_every_byte, .timeout = 60)
{
	struct k3_st *st = fixture_open("resize");
	int n = 0;

	for (;; n++) {
		char name[2][16];
		snprintf(name[0], sizeof(name[0]), "%d.in", n);
		snprintf(name[1], sizeof(name[1]), "%d.out", n);
		const struct k3_st_tensor *in = k3_st_find(st, name[0]);
		if (!in)
			break;
		expect_reduced(in, k3_st_find(st, name[1]));
	}
	cr_assert_geq(n, 12);
	k3_st_close(st);
}

/* Compares a file of tests/data/images with Pillow's result; PNG must be equal, the inverse
 * transform of JPEG may differ by a level between versions, and a second by the reduction. */
static void
expect_file(const struct k3_st_tensor *want)
{
	char name[64];
	const uint8_t *p = want->data;
	struct k3_image_rule rule = image_small_rule;
	struct k3_image image;
	int most = 0;

	snprintf(name, sizeof(name), "%.*s", (int)(strrchr(want->name, '.') - want->name),
		 want->name);
	if (strstr(want->name, ".small")) {
		rule.limit_patches = 9;
		rule.side_patches = 3;
	}
	cr_assert_eq(k3_image_read(&image, image_data_path(name), &rule), K3_OK, "%s: %s", name,
		     scratch_log());
	cr_assert(image.grid.h * 4 == want->dims[0] && image.grid.w * 4 == want->dims[1],
		  "%s: grid %u x %u", want->name, image.grid.h, image.grid.w);
	for (uint32_t y = 0; y < want->dims[0]; y++)
		for (uint32_t x = 0; x < want->dims[1]; x++)
			for (uint32_t c = 0; c < 3; c++) {
				int d = abs(image_pixel(&image, 4, y, x, c) - *p++);
				most = d > most ? d : most;
			}
	cr_expect_leq(most, strstr(name, ".jpg") ? 2 : 0, "%s: off by %d levels", want->name, most);
	k3_image_destroy(&image);
}

TEST(every_kind_of_file_is_read_as_pillow_reads_it)
{
	struct k3_st *st = fixture_open("images");
	size_t n = k3_st_count(st);

	for (size_t i = 0; i < n; i++)
		expect_file(k3_st_at(st, i));
	char names[64][64];
	cr_assert_eq(
		n, 2 * (image_data_names(".png", names, 64) + image_data_names(".jpg", names, 64)));
	cr_expect_str_empty(scratch_log());
	k3_st_close(st);
}

/* From the file to the floats of the tower's input. */
TEST(patches_are_channel_first_in_raster_order_and_normalised)
{
	enum { W = 45, H = 30, GRID_W = 4, GRID_H = 4, N = GRID_W * GRID_H, PIXELS = 588 };
	uint8_t *pixels = ramp(W, H, 3);
	struct k3_image image;
	int32_t layout[K3_VL_HEAD + K3_VP_LEN] = {N, N / 4, 1, 0, 0, 1, GRID_H, GRID_W, 0, GRID_H};
	struct k3_vit_load_args args = {.n = N, .pixels = PIXELS, .layout = layout};
	int32_t copy[K3_VL_HEAD + K3_VP_LEN];
	float *got = fixture_poisoned(N * PIXELS);
	double worst = 0;

	cr_assert_eq(k3_image_read(&image, image_png_write("a.png", W, H, 3, pixels), &image_rule),
		     K3_OK);
	cr_assert(image.width == W && image.height == H && image.grid.t == 1 &&
		  image.grid.h == GRID_H && image.grid.w == GRID_W);
	args.layout_len = K3_VL_HEAD + K3_VP_LEN;
	struct k3_host_batch batch = {.item_bytes = (const uint8_t *const[]){image.bytes}};
	k3_vit_load_cpu((void *[]){got, copy}, &args, &batch);
	for (int p = 0; p < N; p++)
		for (int i = 0; i < PIXELS; i++) {
			int c = i / 196, y = p / GRID_W * 14 + i / 14 % 14,
			    x = p % GRID_W * 14 + i % 14;
			int v = y < H && x < W ? pixels[(y * W + x) * 3 + c] : 0;
			worst = fmax(worst, fabs(got[p * PIXELS + i] - (v / 255.0 - 0.5) / 0.5));
		}
	cr_expect_leq(worst, 1.2e-7);
	cr_expect(fixture_guards_intact(got));
	fixture_free_poisoned(got);
	k3_image_destroy(&image);
	free(pixels);
}

TEST(transparent_pixels_show_a_chessboard_and_the_filling_stays_0)
{
	enum { W = 20, H = 17 };
	uint8_t pixels[W * H * 4];
	struct k3_image image;

	for (int i = 0; i < W * H; i++) /* columns under 4: half of 100, the others: nothing */
		memcpy(pixels + 4 * i, (uint8_t[]){100, 100, 100, i % W < 4 ? 128 : 0}, 4);
	cr_assert_eq(k3_image_read(&image, image_png_write("a.png", W, H, 4, pixels), &image_rule),
		     K3_OK);
	for (uint32_t y = 0; y < 28; y++)
		for (uint32_t x = 0; x < 28; x++) {
			int under = (x / 8 + y / 8) % 2 == 0 ? 255 : 180;
			/* 100 * 128 + 255 * 127 = 45185 = 177.2 * 255; with 180: 139.8 */
			int half = under == 255 ? 177 : 140;
			int want = x >= W || y >= H ? 0 : x < 4 ? half : under;
			int got = image_pixel(&image, 14, y, x, 1);
			cr_assert_eq(got, want, "row %u, column %u: %d, expected %d", y, x, got,
				     want);
		}
	k3_image_destroy(&image);
}

/* Row by row, so that writing does not raise the peak. */
static void
white_write(const char *path, uint32_t side)
{
	png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
	png_infop info = png_create_info_struct(png);
	uint8_t *row = malloc(3 * (size_t)side);
	FILE *f = fopen(path, "wb");

	cr_assert(png && info && row && f);
	memset(row, 255, 3 * (size_t)side);
	png_init_io(png, f);
	png_set_compression_level(png, 1);
	png_set_filter(png, 0, PNG_FILTER_NONE);
	png_set_IHDR(png, info, side, side, 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
		     PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
	png_write_info(png, info);
	for (uint32_t y = 0; y < side; y++)
		png_write_row(png, row);
	png_write_end(png, NULL);
	png_destroy_write_struct(&png, &info);
	fclose(f);
	free(row);
}

/* 36 million pixels are 105,000 KiB; some rows of them are enough. */
TEST(a_large_file_is_not_held_as_a_whole)
{
	enum { SIDE = 6000, ALLOWED_KIB = 25000 };
	static const struct k3_image_rule rule = {14, 2, 2, 256, 16};
	const char *path = scratch_path("large.png");
	struct rusage before, after;
	struct k3_image image;

	white_write(path, SIDE);
	getrusage(RUSAGE_SELF, &before);
	cr_assert_eq(k3_image_read(&image, path, &rule), K3_OK, "%s", scratch_log());
	getrusage(RUSAGE_SELF, &after);
	cr_expect_lt(after.ru_maxrss - before.ru_maxrss, ALLOWED_KIB, "%ld KiB more",
		     after.ru_maxrss - before.ru_maxrss);
	cr_expect(image.grid.h == 16 && image.grid.w == 16);
	cr_expect_eq(image_pixel(&image, 14, 223, 223, 0), 255);
	k3_image_destroy(&image);
}

TEST(a_long_strip_is_read_within_the_patches_of_a_side)
{
	enum { LONG = 20000, SHORT = 20 };
	uint8_t *pixels = malloc((size_t)LONG * SHORT * 3);
	struct k3_image image;

	memset(pixels, 200, (size_t)LONG * SHORT * 3);
	for (int upright = 0; upright < 2; upright++) {
		uint32_t w = upright ? SHORT : LONG, h = upright ? LONG : SHORT;
		cr_assert_eq(k3_image_read(&image, image_png_write("a.png", w, h, 3, pixels),
					   &image_rule),
			     K3_OK, "%s", scratch_log());
		cr_expect(image.grid.w == (upright ? 2 : 512) &&
			  image.grid.h == (upright ? 512 : 2));
		cr_expect_eq(image_pixel(&image, 14, upright ? 7167 : 6, upright ? 6 : 7167, 2),
			     200);
		cr_expect_eq(image_pixel(&image, 14, upright ? 7167 : 7, upright ? 7 : 7167, 2), 0);
		k3_image_destroy(&image);
	}
	free(pixels);
}
