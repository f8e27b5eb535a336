/* Reading .k3t files.
 *
 * The idea: counts are compared with the size of the file by division, before anything is computed
 * from them that could overflow, and only then become pointers into the mapping.
 */
#include "k3t.h"

#include <inttypes.h>
#include <string.h>

#include "files.h"
#include "k3t_format.h"
#include "log.h"
#include "rng.h"
#include "status.h"

int
k3i_k3t_ids_check(const char *path, const struct k3_k3t_ids *ids)
{
	const struct {
		const char *name;
		uint32_t id;
		bool needed;
	} special[] = {
		{"bos", ids->bos, false},
		{"eos", ids->eos, true},
		{"placeholder", ids->placeholder, false},
		{"pad", ids->pad, false},
	};

	if (ids->vocab < 1 || ids->vocab > INT32_MAX) {
		k3_error("common", "%s: vocabulary %" PRIu32 ", allowed are 1 to %d", path,
			 ids->vocab, INT32_MAX);
		return K3_EINVAL;
	}
	for (size_t i = 0; i < sizeof(special) / sizeof(special[0]); i++)
		if (special[i].id >= ids->vocab &&
		    (special[i].needed || special[i].id != K3_K3T_NO_ID)) {
			k3_error("common", "%s: %s id %" PRIu32 ", allowed are 0 to %" PRIu32, path,
				 special[i].name, special[i].id, ids->vocab - 1);
			return K3_EINVAL;
		}
	return K3_OK;
}

static int
field_refuse(const char *path, const char *field, uint64_t value, const char *allowed)
{
	k3_error("common", "%s: %s is %" PRIu64 ", allowed: %s", path, field, value, allowed);
	return K3_EFORMAT;
}

static int
frame_check(const char *path, const struct k3i_map *map, struct k3i_k3t_header *h)
{
	if (map->bytes < sizeof(*h))
		return field_refuse(path, "the size of the file in bytes", map->bytes,
				    "at least 128, the header of a .k3t file");
	memcpy(h, map->data, sizeof(*h));
	if (memcmp(h->magic, K3I_K3T_MAGIC, sizeof(h->magic)) != 0) {
		k3_error("common",
			 "%s: does not begin with " K3I_K3T_MAGIC
			 ", so it is no .k3t file (k3_data makes them)",
			 path);
		return K3_EFORMAT;
	}
	if (h->version != K3I_K3T_VERSION)
		return field_refuse(path, "version", h->version, "1");
	uint64_t fnv = k3_fnv1a(K3_FNV_START, h, offsetof(struct k3i_k3t_header, header_fnv));
	if (h->header_fnv != fnv) {
		k3_error("common",
			 "%s: the header's checksum is %016" PRIx64 ", its bytes give %016" PRIx64,
			 path, h->header_fnv, fnv);
		return K3_EFORMAT;
	}
	return K3_OK;
}

static uint64_t
reserved_bits(const struct k3i_k3t_header *h)
{
	uint64_t bits = h->reserved;

	for (size_t i = 0; i < sizeof(h->zero) / sizeof(h->zero[0]); i++)
		bits |= h->zero[i];
	if (!(h->flags & K3I_K3T_HAS_ITEMS))
		bits |= h->n_items | h->n_patches | h->patches.patch | h->patches.merge_h |
			h->patches.merge_w;
	return bits;
}

static bool
has_items(const struct k3i_k3t_header *h)
{
	return h->flags & K3I_K3T_HAS_ITEMS;
}

/* Bytes of tokens, offsets and mask; the counts were compared with the size of the file. */
static uint64_t
text_bytes(const struct k3i_k3t_header *h)
{
	uint64_t bytes = k3i_k3t_token_area_bytes(h->n_tokens, h->token_bytes) +
			 (h->n_docs + 1) * sizeof(uint64_t);

	if (h->flags & K3I_K3T_HAS_MASK)
		bytes += (h->n_tokens + 7) / 8;
	/* the table of items is aligned, like the offsets */
	return has_items(h) ? (bytes + 7) / 8 * 8 : bytes;
}

/* Counts against the bytes after the header; with items their places are checked later. */
static int
size_check(const char *path, const struct k3i_k3t_header *h, uint64_t rest)
{
	uint64_t need = text_bytes(h) + h->n_items * sizeof(struct k3_k3t_item);

	if (has_items(h) ? need <= rest : need == rest)
		return K3_OK;
	k3_error("common",
		 "%s: n_items %" PRIu64 ", n_tokens %" PRIu64 " and n_docs %" PRIu64
		 " need %" PRIu64 " bytes after the header, there are %" PRIu64,
		 path, h->n_items, h->n_tokens, h->n_docs, need, rest);
	return K3_EFORMAT;
}

static int
items_header_check(const char *path, const struct k3i_k3t_header *h)
{
	if (h->n_items < 1 || h->n_items > h->n_tokens)
		return field_refuse(path, "n_items", h->n_items, "1 to n_tokens");
	if (h->ids.placeholder == K3_K3T_NO_ID)
		return field_refuse(path, "the placeholder's id", h->ids.placeholder,
				    "an id below the vocabulary, as there are items");
	return k3i_k3t_patches_check(path, &h->patches) == K3_OK ? K3_OK : K3_EFORMAT;
}

static int
header_check(const char *path, const struct k3i_map *map, const struct k3i_k3t_header *h)
{
	uint64_t rest = map->bytes - sizeof(*h);

	if (h->header_bytes != sizeof(*h))
		return field_refuse(path, "header_bytes", h->header_bytes, "128");
	if (h->token_bytes != 2 && h->token_bytes != 4)
		return field_refuse(path, "token_bytes", h->token_bytes, "2 or 4");
	if (h->flags & ~(uint32_t)(K3I_K3T_HAS_MASK | K3I_K3T_HAS_ITEMS))
		return field_refuse(path, "flags", h->flags, "0 to 3");
	if (reserved_bits(h))
		return field_refuse(path, "a reserved field", reserved_bits(h), "0");
	if (h->file_bytes != map->bytes) {
		k3_error("common",
			 "%s: file_bytes is %" PRIu64 ", but the file has %zu; it may have "
			 "been cut short",
			 path, h->file_bytes, map->bytes);
		return K3_EFORMAT;
	}
	if (h->n_tokens < 1 || h->n_tokens > rest / h->token_bytes)
		return field_refuse(path, "n_tokens", h->n_tokens, "1 to what fits into the file");
	if (h->n_docs < 1 || h->n_docs > h->n_tokens)
		return field_refuse(path, "n_docs", h->n_docs, "1 to n_tokens");
	if (k3i_k3t_ids_check(path, &h->ids) != K3_OK)
		return K3_EFORMAT;
	if (has_items(h) && items_header_check(path, h) != K3_OK)
		return K3_EFORMAT;
	return size_check(path, h, rest);
}

static int
offsets_check(const char *path, const struct k3_k3t *f)
{
	if (f->offsets[0] != 0)
		return field_refuse(path, "document offset 0", f->offsets[0], "0");
	for (uint64_t i = 0; i < f->n_docs; i++)
		if (f->offsets[i + 1] <= f->offsets[i]) {
			k3_error("common",
				 "%s: document offset %" PRIu64 " is %" PRIu64
				 ", allowed: above its predecessor %" PRIu64,
				 path, i + 1, f->offsets[i + 1], f->offsets[i]);
			return K3_EFORMAT;
		}
	if (f->offsets[f->n_docs] != f->n_tokens)
		return field_refuse(path, "the last document offset", f->offsets[f->n_docs],
				    "n_tokens");
	return K3_OK;
}

/* Tokens first .. end-1: ids, and placeholders everywhere (inside an item) or nowhere. */
static int
tokens_check(const char *path, const struct k3_k3t *f, uint64_t first, uint64_t end, bool inside)
{
	for (uint64_t i = first; i < end; i++) {
		uint32_t token = k3_k3t_token(f, i);
		if (token < f->ids.vocab && (token == f->ids.placeholder) == inside)
			continue;
		if (token >= f->ids.vocab)
			k3_error("common",
				 "%s: token %" PRIu64 " is %" PRIu32 ", allowed are 0 to %" PRIu32,
				 path, i, token, f->ids.vocab - 1);
		else
			k3_error("common",
				 "%s: token %" PRIu64 " is %" PRIu32
				 ", allowed: the placeholder %" PRIu32 " %s",
				 path, i, token, f->ids.placeholder,
				 inside ? "inside of items" : "inside of items only");
		return K3_EFORMAT;
	}
	return K3_OK;
}

static int
all_tokens_check(const char *path, const struct k3_k3t *f)
{
	uint64_t at = 0;
	int ret;

	for (uint64_t i = 0; i < f->n_items; i++) {
		const struct k3_k3t_item *item = &f->items[i];
		K3_TRY(tokens_check(path, f, at, item->first_token, false));
		at = item->first_token + k3_k3t_item_tokens(&f->patches, &item->grid);
		K3_TRY(tokens_check(path, f, item->first_token, at, true));
	}
	ret = tokens_check(path, f, at, f->n_tokens, false);
out:
	return ret;
}

/* What lies between the areas is zero, so that equal data give equal files. */
static int
filler_check(const char *path, const struct k3_k3t *f)
{
	const unsigned char *at = (const unsigned char *)f->tokens + f->n_tokens * f->token_bytes;

	for (; at < (const unsigned char *)f->offsets; at++)
		if (*at)
			return field_refuse(path, "a byte after the last token", *at, "0");
	if (f->mask && f->n_tokens % 8 && f->mask[f->n_tokens / 8] >> (f->n_tokens % 8))
		return field_refuse(path, "the last byte of the mask", f->mask[f->n_tokens / 8],
				    "no bit after the last token");
	if (f->mask && f->n_items)
		for (at = f->mask + (f->n_tokens + 7) / 8; at < (const unsigned char *)f->items;
		     at++)
			if (*at)
				return field_refuse(path, "a byte after the mask", *at, "0");
	return K3_OK;
}

int
k3_k3t_open(struct k3_k3t *f, const char *path)
{
	struct k3i_k3t_header h;
	struct k3i_map map;
	int ret;

	*f = (struct k3_k3t){0};
	K3_TRY(k3i_map_open(&map, path));
	f->map = map.data;
	f->map_bytes = map.bytes;
	K3_TRY(frame_check(path, &map, &h));
	K3_TRY(header_check(path, &map, &h));
	const unsigned char *tokens = map.data + sizeof(h);
	const unsigned char *offsets = tokens + k3i_k3t_token_area_bytes(h.n_tokens, h.token_bytes);
	f->ids = h.ids;
	f->n_docs = h.n_docs;
	f->n_tokens = h.n_tokens;
	f->token_bytes = h.token_bytes;
	f->checksum = h.data_fnv;
	f->tokens = tokens;
	f->offsets = (const uint64_t *)(const void *)offsets;
	if (h.flags & K3I_K3T_HAS_MASK)
		f->mask = offsets + (h.n_docs + 1) * sizeof(uint64_t);
	const unsigned char *items = tokens + text_bytes(&h);
	if (has_items(&h)) {
		f->n_items = h.n_items;
		f->n_patches = h.n_patches;
		f->patches = h.patches;
		f->items = (const struct k3_k3t_item *)(const void *)items;
	}
	K3_TRY(offsets_check(path, f));
	K3_TRY(filler_check(path, f));
	if (has_items(&h))
		K3_TRY(k3i_k3t_items_check(
			path, f,
			(uint64_t)((const unsigned char *)(f->items + h.n_items) - map.data)));
	ret = all_tokens_check(path, f);
out:
	if (ret != K3_OK)
		k3_k3t_close(f);
	return ret;
}

int
k3_k3t_verify(const struct k3_k3t *f, const char *path)
{
	size_t header = sizeof(struct k3i_k3t_header);
	uint64_t fnv = k3_fnv1a(K3_FNV_START, (const char *)f->map + header, f->map_bytes - header);

	if (fnv == f->checksum)
		return K3_OK;
	k3_error("common", "%s: the data's checksum is %016" PRIx64 ", its bytes give %016" PRIx64,
		 path, f->checksum, fnv);
	return K3_EFORMAT;
}

void
k3_k3t_close(struct k3_k3t *f)
{
	struct k3i_map map = {f->map, f->map_bytes};

	k3i_map_close(&map);
	*f = (struct k3_k3t){0};
}
