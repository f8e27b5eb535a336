/* libpng's simple interface writes; what tests break is packed by hand. */
#include "image_case.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scratch.h"

const struct k3_image_rule image_rule = {14, 2, 2, 65536, 512};
const struct k3_image_rule image_small_rule = {4, 2, 2, 65536, 512};

const char *
image_data_path(const char *name)
{
	static char path[4200];
	const char *data = getenv("K3_TEST_DATA");

	snprintf(path, sizeof(path), "%s/images/%s", data ? data : "tests/data", name);
	return path;
}

size_t
image_data_names(const char *ending, char names[][64], size_t most)
{
	DIR *folder = opendir(image_data_path(""));
	size_t n = 0;

	cr_assert_not_null(folder);
	for (struct dirent *e; (e = readdir(folder));) {
		const char *dot = strrchr(e->d_name, '.');
		if (strncmp(e->d_name, "bad_", 4) == 0 || !dot || strcmp(dot, ending) != 0)
			continue;
		cr_assert_lt(n, most);
		snprintf(names[n++], 64, "%.63s", e->d_name);
	}
	closedir(folder);
	cr_assert_gt(n, 0);
	return n;
}

unsigned char *
image_data_read(const char *name, size_t *bytes)
{
	FILE *f = fopen(image_data_path(name), "rb");
	unsigned char *data = malloc(1 << 16);

	cr_assert(f && data, "%s", name);
	*bytes = fread(data, 1, 1 << 16, f);
	fclose(f);
	return data;
}

const char *
image_png_write(const char *name, uint32_t width, uint32_t height, uint32_t channels,
		const uint8_t *pixels)
{
	png_image image = {.version = PNG_IMAGE_VERSION, .width = width, .height = height};
	const char *path = scratch_path(name);

	image.format = channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_RGBA;
	image.flags = PNG_IMAGE_FLAG_FAST;
	cr_assert(png_image_write_to_file(&image, path, 0, pixels, 0, NULL), "%s", image.message);
	return path;
}

uint8_t
image_pixel(const struct k3_image *image, uint32_t patch, uint32_t y, uint32_t x, uint32_t c)
{
	size_t token = (size_t)(y / patch) * image->grid.w + x / patch;

	return image->bytes[((token * 3 + c) * patch + y % patch) * patch + x % patch];
}

static void
big_endian(unsigned char *out, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		out[i] = (unsigned char)(v >> (24 - 8 * i));
}

size_t
image_chunk(unsigned char *out, const char *name, const void *data, size_t n)
{
	uint32_t crc = UINT32_MAX;

	big_endian(out, (uint32_t)n);
	memcpy(out + 4, name, 4);
	if (n)
		memcpy(out + 8, data, n);
	for (size_t i = 4; i < 8 + n; i++) {
		crc ^= out[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
	}
	big_endian(out + 8 + n, ~crc);
	return n + 12;
}
