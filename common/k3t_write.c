/* Writing .k3t files.
 *
 * Tokens go to the file as they come; offsets and mask, which are small, are kept and follow at the
 * end, then the items and their patches, and the header comes last of all.  So the size of the input need not be known, and a file
 * whose writer died has no header.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"
#include "k3t_format.h"
#include "k3t_patches.h"
#include "log.h"
#include "rng.h"
#include "status.h"

enum { BUFFER_BYTES = 1 << 16 };

struct k3_k3t_writer {
	struct k3_k3t_ids ids;
	char *path, *partial;
	int fd;
	uint32_t token_bytes;
	uint64_t n_tokens, n_docs, file_bytes, fnv;
	uint64_t *offsets;
	size_t offsets_room;
	unsigned char *mask; /* kept from the first token that does not count */
	size_t mask_room;
	struct k3i_k3t_patches patches;
	size_t used; /* bytes of buffer */
	unsigned char buffer[BUFFER_BYTES];
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
	w->fd = -1;
	k3i_k3t_patches_init(&w->patches);
	w->ids = *ids;
	w->token_bytes = ids->vocab <= 65536 ? 2 : 4;
	w->fnv = K3_FNV_START;
	w->file_bytes = sizeof(struct k3i_k3t_header);
	w->path = strdup(path);
	w->partial = k3i_path_partial(path);
	w->offsets = calloc(16, sizeof(*w->offsets));
	w->offsets_room = 16;
	ret = K3_ENOMEM;
	if (!w->path || !w->partial || !w->offsets)
		goto out;
	w->fd = k3i_file_create(w->partial);
	ret = w->fd < 0 ? K3_EIO : K3_OK;
out:
	if (ret != K3_OK)
		k3_k3t_writer_destroy(w);
	else
		*out = w;
	return ret;
}

static int
buffer_flush(struct k3_k3t_writer *w)
{
	int ret = k3i_write_at(w->fd, w->partial, w->buffer, w->used, w->file_bytes);

	w->file_bytes += w->used;
	w->used = 0;
	return ret;
}

static int
bytes_append(struct k3_k3t_writer *w, const void *data, size_t bytes)
{
	const unsigned char *from = data;
	int ret = K3_OK;

	w->fnv = k3_fnv1a(w->fnv, data, bytes);
	while (bytes > 0) {
		size_t part = BUFFER_BYTES - w->used < bytes ? BUFFER_BYTES - w->used : bytes;
		memcpy(w->buffer + w->used, from, part);
		w->used += part;
		from += part;
		bytes -= part;
		if (w->used == BUFFER_BYTES)
			K3_TRY(buffer_flush(w));
	}
out:
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
	K3_TRY(bytes_append(w, &token, w->token_bytes));
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
				 w->path, w->n_tokens - w->offsets[w->n_docs], w->n_docs, tokens[i],
				 w->ids.vocab - 1);
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
	int ret = k3i_k3t_patches_check(w->path, patches);

	if (ret == K3_OK && w->patches.n_items > 0) {
		k3_error("common", "%s: %zu items are there already, cut in another way", w->path,
			 w->patches.n_items);
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
		k3_error("common", "%s: an item, but there is no id of the placeholder", w->path);
		return K3_EINVAL;
	}
	K3_TRY(k3i_k3t_grid_check(w->path, w->patches.n_items, shape, grid));
	K3_TRY(k3i_k3t_patches_add(&w->patches, w->path, w->n_tokens, grid, bytes));
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
	return bytes_append(w, w->mask, (w->n_tokens + 7) / 8);
}

/* Position in the file of the next byte. */
static uint64_t
position(const struct k3_k3t_writer *w)
{
	return w->file_bytes + w->used;
}

static int
zeros_append(struct k3_k3t_writer *w, uint64_t bytes)
{
	static const unsigned char zeros[K3_K3T_ITEM_ALIGN_BYTES];

	return bytes_append(w, zeros, bytes);
}

/* The table of items, whose places are known now, and the patches. */
static int
items_append(struct k3_k3t_writer *w)
{
	const struct k3i_k3t_patches *p = &w->patches;
	unsigned char piece[8192];
	int ret;

	K3_TRY(zeros_append(w, (8 - position(w) % 8) % 8));
	uint64_t base = k3i_k3t_align(position(w) + p->n_items * sizeof(*p->items));
	for (size_t i = 0; i < p->n_items; i++) {
		struct k3_k3t_item item = p->items[i];
		item.first_byte += base;
		K3_TRY(bytes_append(w, &item, sizeof(item)));
	}
	K3_TRY(zeros_append(w, base - position(w)));
	for (uint64_t at = 0; at < p->bytes; at += sizeof(piece)) {
		size_t n = p->bytes - at < sizeof(piece) ? (size_t)(p->bytes - at) : sizeof(piece);
		K3_TRY(k3i_k3t_patches_read(p, w->path, at, piece, n));
		K3_TRY(bytes_append(w, piece, n));
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
		.file_bytes = w->file_bytes,
		.data_fnv = w->fnv,
		.n_items = p->n_items,
		.n_patches = p->n_patches,
	};

	memcpy(h.magic, K3I_K3T_MAGIC, sizeof(h.magic));
	if (p->n_items)
		h.patches = p->shape;
	h.header_fnv = k3_fnv1a(K3_FNV_START, &h, offsetof(struct k3i_k3t_header, header_fnv));
	return k3i_write_at(w->fd, w->partial, &h, sizeof(h), 0);
}

int
k3_k3t_writer_finish(struct k3_k3t_writer *w)
{
	int ret;

	K3_TRY(k3_k3t_writer_end_doc(w, NULL));
	if (w->n_docs == 0) {
		k3_error("common",
			 "%s: no document with at least one token, so there is nothing to write",
			 w->path);
		return K3_EINVAL;
	}
	uint64_t token_area = k3i_k3t_token_area_bytes(w->n_tokens, w->token_bytes);
	K3_TRY(zeros_append(w, token_area - w->n_tokens * w->token_bytes));
	K3_TRY(bytes_append(w, w->offsets, (w->n_docs + 1) * sizeof(*w->offsets)));
	if (w->mask)
		K3_TRY(mask_append(w));
	if (w->patches.n_items)
		K3_TRY(items_append(w));
	K3_TRY(buffer_flush(w));
	ret = header_write(w);
	if (ret == K3_OK && fsync(w->fd) != 0) {
		k3_error("common", "%s: %s", w->partial, strerror(errno));
		ret = K3_EIO;
	}
out:
	return ret;
}

int
k3_k3t_writer_publish(struct k3_k3t_writer *w)
{
	int ret = k3i_file_publish(w->fd, w->partial, w->path);

	if (ret != K3_OK)
		return ret;
	close(w->fd);
	w->fd = -1;
	char *copy = strdup(w->path);
	if (!copy)
		return K3_ENOMEM;
	ret = k3i_folder_sync(dirname(copy));
	free(copy);
	return ret;
}

void
k3_k3t_writer_destroy(struct k3_k3t_writer *w)
{
	if (!w)
		return;
	if (w->fd >= 0) {
		close(w->fd);
		unlink(w->partial);
	}
	free(w->path);
	free(w->partial);
	free(w->offsets);
	free(w->mask);
	k3i_k3t_patches_fini(&w->patches);
	free(w);
}
