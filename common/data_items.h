/* Items of the document stream (inside common/). */
#ifndef K3_DATA_ITEMS_H
#define K3_DATA_ITEMS_H

#include "data.h"

/* What a microbatch holds so far. */
struct k3i_items_taken {
	struct k3_data_items *items; /* NULL: they are only counted */
	size_t n;
	uint64_t patches;
	bool full; /* the microbatch ends before the next item */
};

/**
 * Takes the items of tokens first .. end-1 of the file, as many as fit.
 *
 * @param row  of the microbatch where token first goes
 * @return end, or the first token of an item that reaches beyond end or has too many patches; then
 * the microbatch is full
 */
uint64_t k3i_items_take(const struct k3_data *d, uint64_t first, uint64_t end, size_t row,
			struct k3i_items_taken *taken);
/** K3_ELIMIT, logged, when item i fits in no microbatch of t tokens. path may be NULL. */
int k3i_item_check(const struct k3_data *d, const char *path, uint64_t i, size_t t);
/** Is token i of the file inside an item, and not its first? */
bool k3i_item_cuts(const struct k3_data *d, uint64_t i);

#endif
