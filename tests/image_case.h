/* Image files for tests: those of tests/data/images, and PNG files made on the spot. */
#ifndef K3_TESTS_IMAGE_CASE_H
#define K3_TESTS_IMAGE_CASE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../common/image.h"

/** The release's preprocessing, and one with patches of 4 pixels. */
extern const struct k3_image_rule image_rule, image_small_rule;

/** Path of tests/data/images/name. Valid until the next call. */
const char *image_data_path(const char *name);
/** Names in tests/data/images that end in ending and do not begin with bad_; at least one. */
size_t image_data_names(const char *ending, char names[][64], size_t most);
/** malloc'ed content of tests/data/images/name. */
unsigned char *image_data_read(const char *name, size_t *bytes);

/** Writes an 8-bit RGB (channels 3) or RGBA PNG into the scratch folder; gives its path. */
const char *image_png_write(const char *name, uint32_t width, uint32_t height, uint32_t channels,
			    const uint8_t *pixels);
/** Value of channel c at row y, column x, whatever the patch. */
uint8_t image_pixel(const struct k3_image *image, uint32_t patch, uint32_t y, uint32_t x,
		    uint32_t c);
/** Length, name, data, checksum of a PNG chunk to out; gives the bytes, 12 more than n. */
size_t image_chunk(unsigned char *out, const char *name, const void *data, size_t n);

#endif
