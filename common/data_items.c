/* Items of the document stream: which fit in a microbatch, and where they lie in it.
 *
 * The trap: an item that fits in no microbatch would end each one before its first row, for ever.
 * So limits are checked against every item before a run, and against the first one of an empty
 * microbatch again.
 */
#include "data_items.h"

#include <inttypes.h>
#include <stdlib.h>

#include "log.h"
#include "status.h"

int
k3_data_items_init(struct k3_data_items *items, size_t t)
{
	*items = (struct k3_data_items){.room = t};
	items->grid = calloc(t, sizeof(*items->grid));
	items->row = calloc(t, sizeof(*items->row));
	items->bytes = calloc(t, sizeof(*items->bytes));
	if (items->grid && items->row && items->bytes)
		return K3_OK;
	k3_data_items_fini(items);
	k3_error("common", "out of memory for the items of %zu tokens", t);
	return K3_ENOMEM;
}

void
k3_data_items_fini(struct k3_data_items *items)
{
	free(items->grid);
	free(items->row);
	free(items->bytes);
	*items = (struct k3_data_items){0};
}

void
k3_data_set_max_patches(struct k3_data *d, uint64_t max_patches)
{
	d->max_patches = max_patches;
}

uint64_t
k3i_items_take(const struct k3_data *d, uint64_t first, uint64_t end, size_t row,
	       struct k3i_items_taken *taken)
{
	const struct k3_k3t *f = &d->file;

	for (uint64_t i = k3_k3t_item_find(f, first); i < f->n_items; i++) {
		const struct k3_k3t_item *item = &f->items[i];
		uint64_t patches = taken->patches + k3_grid_patches(&item->grid);
		if (item->first_token >= end)
			break;
		if (k3_k3t_item_tokens(&f->patches, &item->grid) > end - item->first_token ||
		    (d->max_patches > 0 && patches > d->max_patches)) {
			taken->full = true;
			return item->first_token;
		}
		if (taken->items) {
			taken->items->grid[taken->n] = item->grid;
			taken->items->row[taken->n] = (uint32_t)(row + item->first_token - first);
			taken->items->bytes[taken->n] = k3_k3t_item_data(f, i);
		}
		taken->n++;
		taken->patches = patches;
	}
	return end;
}

/* An item above a limit, with the option that lifts it. */
static int
refuse(const struct k3_data *d, const char *path, uint64_t i, uint64_t has, const char *unit,
       uint64_t limit, const char *option)
{
	const struct k3_k3t *f = &d->file;
	uint64_t doc = 0;

	while (f->offsets[doc + 1] <= f->items[i].first_token)
		doc++;
	k3_error("common",
		 "%s%sitem %" PRIu64 " of document %" PRIu64
		 " of the file (both from 0) has %" PRIu64 " %s, a microbatch holds %" PRIu64
		 ": items are not cut; %s %" PRIu64 " would do",
		 path ? path : "", path ? ": " : "", i - k3_k3t_item_find(f, f->offsets[doc]), doc,
		 has, unit, limit, option, has);
	return K3_ELIMIT;
}

/* Among items first .. end-1, those with the most tokens and patches decide. */
static int
check_items(const struct k3_data *d, const char *path, uint64_t first, uint64_t end, size_t t)
{
	const struct k3_k3t *f = &d->file;
	uint64_t longest = 0, largest = 0, tokens = 0, patches = 0;
	int ret = K3_OK;

	for (uint64_t i = first; i < end; i++) {
		uint64_t n = k3_k3t_item_tokens(&f->patches, &f->items[i].grid),
			 p = k3_grid_patches(&f->items[i].grid);
		if (n > tokens) {
			tokens = n;
			longest = i;
		}
		if (p > patches) {
			patches = p;
			largest = i;
		}
	}
	if (tokens > t)
		ret = refuse(d, path, longest, tokens, "tokens", t, "--tokens");
	if (d->max_patches > 0 && patches > d->max_patches)
		ret = refuse(d, path, largest, patches, "patches", d->max_patches, "--max-patches");
	return ret;
}

int
k3i_item_check(const struct k3_data *d, const char *path, uint64_t i, size_t t)
{
	return check_items(d, path, i, i + 1, t);
}

bool
k3i_item_cuts(const struct k3_data *d, uint64_t i)
{
	const struct k3_k3t *f = &d->file;
	uint64_t after = k3_k3t_item_find(f, i);

	if (after == 0)
		return false;
	const struct k3_k3t_item *item = &f->items[after - 1];
	return i - item->first_token < k3_k3t_item_tokens(&f->patches, &item->grid);
}

int
k3_data_require_items(const struct k3_data *d, const char *path, size_t t)
{
	return check_items(d, path, 0, d->file.n_items, t);
}
