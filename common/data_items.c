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

int
k3i_item_check(const struct k3_data *d, const char *path, uint64_t i, size_t t)
{
	const struct k3_k3t *f = &d->file;
	const struct k3_k3t_item *item = &f->items[i];
	uint64_t tokens = k3_k3t_item_tokens(&f->patches, &item->grid);
	uint64_t patches = k3_grid_patches(&item->grid), doc = 0;
	bool long_item = tokens > t;

	if (!long_item && (d->max_patches == 0 || patches <= d->max_patches))
		return K3_OK;
	while (f->offsets[doc + 1] <= item->first_token)
		doc++;
	k3_error("common",
		 "%s%sitem %" PRIu64 " of document %" PRIu64
		 " of the file (both from 0) has %" PRIu64 " %s, a microbatch holds %" PRIu64
		 ": items are not cut",
		 path ? path : "", path ? ": " : "", i - k3_k3t_item_find(f, f->offsets[doc]), doc,
		 long_item ? tokens : patches, long_item ? "tokens" : "patches",
		 long_item ? (uint64_t)t : d->max_patches);
	return K3_ELIMIT;
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
	int ret = K3_OK;

	for (uint64_t i = 0; i < d->file.n_items && ret == K3_OK; i++)
		ret = k3i_item_check(d, path, i, t);
	return ret;
}
