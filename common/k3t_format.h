/* The header of a .k3t file as it lies on disk, little-endian, without padding. */
#ifndef K3_K3T_FORMAT_H
#define K3_K3T_FORMAT_H

#include "k3t.h"

enum { K3I_K3T_VERSION = 1, K3I_K3T_HAS_MASK = 1 };
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
	uint64_t zero[5];
	uint64_t header_fnv; /* of the bytes before this field */
};
_Static_assert(sizeof(struct k3i_k3t_header) == 128, "the header has no padding");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, ".k3t files are little-endian");

/** Bytes of the tokens, filled up to a multiple of 8, so that the offsets are aligned. */
static inline uint64_t
k3i_k3t_token_area_bytes(uint64_t n_tokens, uint32_t token_bytes)
{
	return (n_tokens * token_bytes + 7) / 8 * 8;
}

/** Logs the first id that does not fit the vocabulary. */
int k3i_k3t_ids_check(const char *path, const struct k3_k3t_ids *ids);

#endif
