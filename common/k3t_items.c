/* The items of a .k3t file: what a reader trusts is checked here.
 *
 * The idea: a file has one possible place for the patches of each item, the next aligned byte after
 * those before, so that a table which holds these places has neither overlaps nor holes.  The trap:
 * a count of patches from a hostile grid; sides are bounded before they are multiplied.
 */
#include <inttypes.h>

#include "k3t_format.h"
#include "log.h"
#include "status.h"

int
k3i_k3t_patches_check(const char *path, const struct k3_k3t_patches *patches)
{
	const struct {
		const char *name;
		uint32_t value, most;
	} fields[] = {
		{"patch", patches->patch, K3_K3T_MAX_PATCH},
		{"merge_h", patches->merge_h, K3_K3T_MAX_MERGE},
		{"merge_w", patches->merge_w, K3_K3T_MAX_MERGE},
	};

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		if (fields[i].value < 1 || fields[i].value > fields[i].most) {
			k3_error("common", "%s: %s is %" PRIu32 ", allowed are 1 to %" PRIu32, path,
				 fields[i].name, fields[i].value, fields[i].most);
			return K3_EINVAL;
		}
	return K3_OK;
}

int
k3i_k3t_grid_check(const char *path, uint64_t item, const struct k3_k3t_patches *patches,
		   const struct k3_grid *grid)
{
	const struct {
		const char *name;
		uint32_t value, multiple, most;
	} sides[] = {
		{"frames", grid->t, 1, K3_K3T_MAX_FRAMES},
		{"rows", grid->h, patches->merge_h, K3_K3T_MAX_SIDE},
		{"columns", grid->w, patches->merge_w, K3_K3T_MAX_SIDE},
	};

	for (size_t i = 0; i < sizeof(sides) / sizeof(sides[0]); i++)
		if (sides[i].value < 1 || sides[i].value > sides[i].most ||
		    sides[i].value % sides[i].multiple) {
			k3_error("common",
				 "%s: item %" PRIu64 " has %" PRIu32 " %s in its grid %" PRIu32
				 "x%" PRIu32 "x%" PRIu32 ", allowed are multiples of %" PRIu32
				 " up to %" PRIu32,
				 path, item, sides[i].value, sides[i].name, grid->t, grid->h,
				 grid->w, sides[i].multiple, sides[i].most);
			return K3_EINVAL;
		}
	return K3_OK;
}

/* Place of item i in the text: after its predecessor and inside document *doc, which moves on. */
static int
tokens_check(const char *path, const struct k3_k3t *f, uint64_t i, uint64_t *doc)
{
	const struct k3_k3t_item *item = &f->items[i];
	uint64_t n = k3_k3t_item_tokens(&f->patches, &item->grid), after = 0;

	if (i > 0)
		after = item[-1].first_token + k3_k3t_item_tokens(&f->patches, &item[-1].grid);
	if (item->first_token < after || item->first_token >= f->n_tokens) {
		k3_error("common",
			 "%s: item %" PRIu64 " begins at token %" PRIu64 ", allowed are %" PRIu64
			 " to %" PRIu64,
			 path, i, item->first_token, after, f->n_tokens - 1);
		return K3_EFORMAT;
	}
	while (f->offsets[*doc + 1] <= item->first_token)
		++*doc;
	if (n > f->offsets[*doc + 1] - item->first_token) {
		k3_error("common",
			 "%s: item %" PRIu64 " has %" PRIu64 " placeholders from token %" PRIu64
			 ", but document %" PRIu64 " ends at token %" PRIu64,
			 path, i, n, item->first_token, *doc, f->offsets[*doc + 1]);
		return K3_EFORMAT;
	}
	return K3_OK;
}

/* Place of item i's patches: begins at *at, which moves behind it. */
static int
bytes_check(const char *path, const struct k3_k3t *f, uint64_t i, uint64_t *at)
{
	const struct k3_k3t_item *item = &f->items[i];
	uint64_t bytes = k3_k3t_item_bytes(&f->patches, &item->grid);

	*at = k3i_k3t_align(*at);
	if (item->first_byte != *at || item->zero) {
		k3_error("common",
			 "%s: item %" PRIu64 " begins at byte %" PRIu64 " with %" PRIu32
			 " after its grid, allowed are %" PRIu64 " and 0",
			 path, i, item->first_byte, item->zero, *at);
		return K3_EFORMAT;
	}
	if (*at > f->map_bytes || bytes > f->map_bytes - *at) {
		k3_error("common",
			 "%s: item %" PRIu64 " has %" PRIu64 " bytes from byte %" PRIu64
			 ", but the file has %zu",
			 path, i, bytes, *at, f->map_bytes);
		return K3_EFORMAT;
	}
	*at += bytes;
	return K3_OK;
}

int
k3i_k3t_items_check(const char *path, const struct k3_k3t *f, uint64_t table_end)
{
	uint64_t doc = 0, at = table_end, n_patches = 0;
	int ret = K3_OK;

	for (uint64_t i = 0; i < f->n_items; i++) {
		if (k3i_k3t_grid_check(path, i, &f->patches, &f->items[i].grid) != K3_OK)
			return K3_EFORMAT;
		K3_TRY(tokens_check(path, f, i, &doc));
		K3_TRY(bytes_check(path, f, i, &at));
		n_patches += k3_grid_patches(&f->items[i].grid);
	}
	if (n_patches != f->n_patches || at != f->map_bytes) {
		k3_error("common",
			 "%s: n_patches is %" PRIu64 " and the file has %zu bytes; its items have "
			 "%" PRIu64 " patches and end at byte %" PRIu64,
			 path, f->n_patches, f->map_bytes, n_patches, at);
		ret = K3_EFORMAT;
	}
out:
	return ret;
}

uint64_t
k3_k3t_item_find(const struct k3_k3t *file, uint64_t token)
{
	uint64_t low = 0, high = file->n_items;

	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		if (file->items[middle].first_token < token)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}
