/* Writing .k3t files.
 *
 * Tokens go to the file as they come; offsets and mask, which are small, are kept and follow at the
 * end, then the items and their patches, and the header comes last of all.  So the size of the
 * input need not be known, and a file whose writer died has no header.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "k3t_format.h"
#include "k3t_patches.h"
#include "k3t_sink.h"
#include "log.h"
#include "rng.h"
#include "status.h"

struct k3_k3t_writer {
	struct k3_k3t_ids ids;
	uint32_t token_bytes;
	uint64_t n_tokens, n_docs;
	uint64_t *offsets;
	size_t offsets_room;
	unsigned char *mask; /* kept from the first token that does not count */
	size_t mask_room;
	struct k3i_k3t_patches patches;
	struct k3i_sink sink;
};

int
k3_k3t_writer_create(struct k3_k3t_writer **out, const char *path, const struct k3_k3t_ids *ids)
{
	struct k3_k3t_writer *w = NULL;
	int ret;

	*out = NULL;
	K3_TRY(k3i_k3t_ids_check(path, ids));
	w = calloc(1, sizeof(*w));
	if (!w)
		return K3_ENOMEM;
	k3i_k3t_patches_init(&w->patches);
	w->ids = *ids;
	w->token_bytes = ids->vocab <= 65536 ? 2 : 4;
	w->offsets = calloc(16, sizeof(*w->offsets));
	w->offsets_room = 16;
	ret = k3i_sink_init(&w->sink, path, sizeof(struct k3i_k3t_header));
	if (!w->offsets)
		ret = K3_ENOMEM;
out:
	if (ret != K3_OK)
		k3_k3t_writer_destroy(w);
	else
		*out = w;
	return ret;
}

/* The mask gets room for token i; bits of tokens before the first call are set. */
static int
mask_reserve(struct k3_k3t_writer *w, uint64_t i)
{
	if (i / 8 < w->mask_room)
		return K3_OK;
	size_t room = 2 * (size_t)(i / 8) + 64;
	unsigned char *grown = realloc(w->mask, room);
	if (!grown)
		return K3_ENOMEM;
	memset(grown + w->mask_room, 0xff, room - w->mask_room);
	w->mask = grown;
	w->mask_room = room;
	return K3_OK;
}

static int
token_append(struct k3_k3t_writer *w, uint32_t token, bool counts)
{
	int ret = K3_OK;

	if (w->mask || !counts)
		K3_TRY(mask_reserve(w, w->n_tokens));
	if (!counts)
		w->mask[w->n_tokens / 8] &= (unsigned char)~(1u << (w->n_tokens % 8));
	K3_TRY(k3i_sink_append(&w->sink, &token, w->token_bytes));
	w->n_tokens++;
out:
	return ret;
}

int
k3_k3t_writer_put(struct k3_k3t_writer *w, const uint32_t *tokens, const bool *counts, size_t n)
{
	int ret = K3_OK;

	for (size_t i = 0; i < n; i++) {
		/* without a placeholder its id is above the vocabulary */
		if (tokens[i] >= w->ids.vocab || tokens[i] == w->ids.placeholder) {
			k3_error("common",
				 "%s: token %" PRIu64 " of document %" PRIu64 " is %" PRIu32
				 ", allowed are 0 to %" PRIu32 " without the placeholder",
				 w->sink.path, w->n_tokens - w->offsets[w->n_docs], w->n_docs,
				 tokens[i], w->ids.vocab - 1);
			return K3_EINVAL;
		}
		K3_TRY(token_append(w, tokens[i], !counts || counts[i]));
	}
out:
	return ret;
}

int
k3_k3t_writer_set_patches(struct k3_k3t_writer *w, const struct k3_k3t_patches *patches)
{
	int ret = k3i_k3t_patches_check(w->sink.path, patches);

	if (ret == K3_OK && w->patches.n_items > 0) {
		k3_error("common", "%s: %zu items are there already, cut in another way",
			 w->sink.path, w->patches.n_items);
		ret = K3_EINVAL;
	}
	if (ret == K3_OK)
		w->patches.shape = *patches;
	return ret;
}

int
k3_k3t_writer_put_item(struct k3_k3t_writer *w, const struct k3_grid *grid, const uint8_t *bytes)
{
	const struct k3_k3t_patches *shape = &w->patches.shape;
	int ret;

	if (w->ids.placeholder == K3_K3T_NO_ID) {
		k3_error("common", "%s: an item, but there is no id of the placeholder",
			 w->sink.path);
		return K3_EINVAL;
	}
	K3_TRY(k3i_k3t_grid_check(w->sink.path, w->patches.n_items, shape, grid));
	K3_TRY(k3i_k3t_patches_add(&w->patches, w->sink.path, w->n_tokens, grid, bytes));
	for (uint64_t n = k3_k3t_item_tokens(shape, grid); n > 0; n--)
		K3_TRY(token_append(w, w->ids.placeholder, true));
out:
	return ret;
}

int
k3_k3t_writer_end_doc(struct k3_k3t_writer *w, bool *kept)
{
	bool has_tokens = w->n_tokens > w->offsets[w->n_docs];

	if (kept)
		*kept = has_tokens;
	if (!has_tokens)
		return K3_OK;
	if (w->n_docs + 1 == w->offsets_room) {
		size_t room = 2 * w->offsets_room;
		uint64_t *grown = realloc(w->offsets, room * sizeof(*grown));
		if (!grown)
			return K3_ENOMEM;
		w->offsets = grown;
		w->offsets_room = room;
	}
	w->offsets[++w->n_docs] = w->n_tokens;
	return K3_OK;
}

static int
mask_append(struct k3_k3t_writer *w)
{
	int ret = mask_reserve(w, w->n_tokens);

	if (ret != K3_OK)
		return ret;
	if (w->n_tokens % 8)
		w->mask[w->n_tokens / 8] &= (unsigned char)((1u << (w->n_tokens % 8)) - 1);
	return k3i_sink_append(&w->sink, w->mask, (w->n_tokens + 7) / 8);
}

/* The table of items, whose places are known now, and the patches. */
static int
items_append(struct k3_k3t_writer *w)
{
	const struct k3i_k3t_patches *p = &w->patches;
	unsigned char piece[8192];
	int ret;

	K3_TRY(k3i_sink_append_zeros(&w->sink, (8 - k3i_sink_position(&w->sink) % 8) % 8));
	uint64_t base = k3i_k3t_align(k3i_sink_position(&w->sink) + p->n_items * sizeof(*p->items));
	for (size_t i = 0; i < p->n_items; i++) {
		struct k3_k3t_item item = p->items[i];
		item.first_byte += base;
		K3_TRY(k3i_sink_append(&w->sink, &item, sizeof(item)));
	}
	K3_TRY(k3i_sink_append_zeros(&w->sink, base - k3i_sink_position(&w->sink)));
	for (uint64_t at = 0; at < p->bytes; at += sizeof(piece)) {
		size_t n = p->bytes - at < sizeof(piece) ? (size_t)(p->bytes - at) : sizeof(piece);
		K3_TRY(k3i_k3t_patches_read(p, w->sink.path, at, piece, n));
		K3_TRY(k3i_sink_append(&w->sink, piece, n));
	}
out:
	return ret;
}

static int
header_write(struct k3_k3t_writer *w)
{
	const struct k3i_k3t_patches *p = &w->patches;
	struct k3i_k3t_header h = {
		.version = K3I_K3T_VERSION,
		.header_bytes = sizeof(h),
		.token_bytes = w->token_bytes,
		.flags = (w->mask ? K3I_K3T_HAS_MASK : 0) | (p->n_items ? K3I_K3T_HAS_ITEMS : 0),
		.ids = w->ids,
		.n_docs = w->n_docs,
		.n_tokens = w->n_tokens,
		.file_bytes = w->sink.file_bytes,
		.data_fnv = w->sink.fnv,
		.n_items = p->n_items,
		.n_patches = p->n_patches,
	};

	memcpy(h.magic, K3I_K3T_MAGIC, sizeof(h.magic));
	if (p->n_items)
		h.patches = p->shape;
	h.header_fnv = k3_fnv1a(K3_FNV_START, &h, offsetof(struct k3i_k3t_header, header_fnv));
	return k3i_sink_header(&w->sink, &h, sizeof(h));
}

int
k3_k3t_writer_finish(struct k3_k3t_writer *w)
{
	int ret;

	K3_TRY(k3_k3t_writer_end_doc(w, NULL));
	if (w->n_docs == 0) {
		k3_error("common",
			 "%s: no document with at least one token, so there is nothing to write",
			 w->sink.path);
		return K3_EINVAL;
	}
	uint64_t token_area = k3i_k3t_token_area_bytes(w->n_tokens, w->token_bytes);
	K3_TRY(k3i_sink_append_zeros(&w->sink, token_area - w->n_tokens * w->token_bytes));
	K3_TRY(k3i_sink_append(&w->sink, w->offsets, (w->n_docs + 1) * sizeof(*w->offsets)));
	if (w->mask)
		K3_TRY(mask_append(w));
	if (w->patches.n_items)
		K3_TRY(items_append(w));
	K3_TRY(k3i_sink_flush(&w->sink));
	ret = header_write(w);
out:
	return ret;
}

int
k3_k3t_writer_publish(struct k3_k3t_writer *w)
{
	return k3i_sink_publish(&w->sink);
}

void
k3_k3t_writer_destroy(struct k3_k3t_writer *w)
{
	if (!w)
		return;
	k3i_sink_fini(&w->sink);
	k3i_k3t_patches_fini(&w->patches);
	free(w->offsets);
	free(w->mask);
	free(w);
}
