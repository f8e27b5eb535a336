/* The header of a .k3t file as it lies on disk, little-endian, without padding. */
#ifndef K3_K3T_FORMAT_H
#define K3_K3T_FORMAT_H

#include "k3t.h"

enum { K3I_K3T_VERSION = 1, K3I_K3T_HAS_MASK = 1, K3I_K3T_HAS_ITEMS = 2 };
#define K3I_K3T_MAGIC "K3TOKENS"

struct k3i_k3t_header {
	char magic[8];
	uint32_t version;
	uint32_t header_bytes;
	uint32_t token_bytes;
	uint32_t flags;
	struct k3_k3t_ids ids;
	uint32_t reserved; /* 0 */
	uint64_t n_docs;
	uint64_t n_tokens;
	uint64_t file_bytes;
	uint64_t data_fnv; /* of the bytes after the header */
	uint64_t n_items;  /* this and the next two: 0 without items */
	uint64_t n_patches;
	struct k3_k3t_patches patches; /* 12 bytes */
	uint32_t zero[3];
	uint64_t header_fnv; /* of the bytes before this field */
};
_Static_assert(sizeof(struct k3i_k3t_header) == 128, "the header has no padding");
_Static_assert(sizeof(struct k3_k3t_item) == 32, "an item has no padding");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, ".k3t files are little-endian");

/** Bytes of the tokens, filled up to a multiple of 8, so that the offsets are aligned. */
static inline uint64_t
k3i_k3t_token_area_bytes(uint64_t n_tokens, uint32_t token_bytes)
{
	return (n_tokens * token_bytes + 7) / 8 * 8;
}

static inline uint64_t
k3i_k3t_align(uint64_t bytes)
{
	return (bytes + K3_K3T_ITEM_ALIGN_BYTES - 1) / K3_K3T_ITEM_ALIGN_BYTES *
	       K3_K3T_ITEM_ALIGN_BYTES;
}

/** Logs the first id that does not fit the vocabulary. */
int k3i_k3t_ids_check(const char *path, const struct k3_k3t_ids *ids);
/** Logs the first field of how items are cut that is out of range. @return K3_OK or K3_EINVAL */
int k3i_k3t_patches_check(const char *path, const struct k3_k3t_patches *patches);
/** Logs the first side of a grid that is out of range; item is its number. */
int k3i_k3t_grid_check(const char *path, uint64_t item, const struct k3_k3t_patches *patches,
		       const struct k3_grid *grid);
/**
 * Checks the table of items of a mapped file whose offsets are sound.
 *
 * @param table_end  byte of the file after the table
 */
int k3i_k3t_items_check(const char *path, const struct k3_k3t *f, uint64_t table_end);

#endif
