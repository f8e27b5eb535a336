/* Which decoder reads a file, and how large the image becomes.
 *
 * The trap: the resize rule is a computation in doubles whose floor decides, so the order of
 * operations is part of it.
 */
#include "image.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "image_parts.h"
#include "log.h"
#include "status.h"

enum { MOST_PATCH = 256, MOST_MERGE = 16, MAGIC_BYTES = 8 };

static uint32_t
reduce(uint32_t side, double scale, uint64_t most)
{
	uint32_t reduced = (uint32_t)floor(side * scale);

	if (reduced < 1)
		reduced = 1;
	return reduced < most ? reduced : (uint32_t)most;
}

static uint32_t
fill_up(uint32_t pixels, uint32_t patch, uint32_t merge)
{
	uint32_t token = patch * merge;

	return (pixels + token - 1) / token * merge;
}

void
k3_image_fit(const struct k3_image_rule *rule, uint32_t width, uint32_t height, uint32_t *fit_width,
	     uint32_t *fit_height, struct k3_grid *grid)
{
	uint32_t rows = height / rule->patch, columns = width / rule->patch;
	uint64_t patches = (uint64_t)(rows ? rows : 1) * (columns ? columns : 1);
	uint64_t side = (uint64_t)rule->side_patches * rule->patch;
	double scale = fmin(1.0, sqrt((double)rule->limit_patches / (double)patches));

	scale = fmin(scale, (double)side / height);
	scale = fmin(scale, (double)side / width);
	*fit_width = reduce(width, scale, side);
	*fit_height = reduce(height, scale, side);
	*grid = (struct k3_grid){1, fill_up(*fit_height, rule->patch, rule->merge_h),
				 fill_up(*fit_width, rule->patch, rule->merge_w)};
}

static int
rule_check(const struct k3_image_rule *rule)
{
	const struct {
		const char *name;
		uint32_t value, most;
	} field[] = {
		{"patch", rule->patch, MOST_PATCH},
		{"merge_h", rule->merge_h, MOST_MERGE},
		{"merge_w", rule->merge_w, MOST_MERGE},
		{"limit_patches", rule->limit_patches, UINT32_MAX},
		{"side_patches", rule->side_patches, UINT32_MAX},
	};

	for (size_t i = 0; i < sizeof(field) / sizeof(field[0]); i++)
		if (field[i].value < 1 || field[i].value > field[i].most) {
			k3_error("common", "images: %s is %" PRIu32 ", allowed are 1 to %" PRIu32,
				 field[i].name, field[i].value, field[i].most);
			return K3_EINVAL;
		}
	return K3_OK;
}

static int
format_refuse(const char *path, const struct k3i_map *file)
{
	char hex[3 * MAGIC_BYTES + 1] = "";
	static const char digit[] = "0123456789abcdef";

	for (size_t i = 0; i < file->bytes && i < MAGIC_BYTES; i++)
		memcpy(hex + 3 * i,
		       (char[]){' ', digit[file->data[i] >> 4], digit[file->data[i] & 15], 0}, 4);
	k3_error("common", "%s: neither PNG nor JPEG: %s%s", path,
		 file->bytes ? "the file begins with" : "the file is empty", hex);
	return K3_EFORMAT;
}

int
k3_image_read(struct k3_image *image, const char *path, const struct k3_image_rule *rule)
{
	static const unsigned char png[] = "\x89PNG\r\n\x1a\n", jpeg[] = {255, 216, 255};
	struct k3i_canvas canvas = {.path = path, .rule = rule, .image = image};
	struct k3i_map file = {0};
	int ret;

	*image = (struct k3_image){0};
	K3_TRY(rule_check(rule));
	K3_TRY(k3i_map_open(&file, path));
	if (file.bytes >= MAGIC_BYTES && memcmp(file.data, png, MAGIC_BYTES) == 0)
		ret = k3i_png_read(&canvas, &file);
	else if (file.bytes >= sizeof(jpeg) && memcmp(file.data, jpeg, sizeof(jpeg)) == 0)
		ret = k3i_jpeg_read(&canvas, &file);
	else
		ret = format_refuse(path, &file);
out:
	k3i_canvas_end(&canvas);
	k3i_map_close(&file);
	if (ret != K3_OK)
		k3_image_destroy(image);
	return ret;
}

void
k3_image_destroy(struct k3_image *image)
{
	free(image->bytes);
	*image = (struct k3_image){0};
}
