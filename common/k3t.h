/* .k3t: the container of a tokenised data set, memory-mapped; byte by byte in doc/data-formats.md.
 *
 * A file holds the raw text tokens of its documents, without bos and eos: those are added when the
 * stream is read (data.h), so that the same file serves with either.  Every field is checked when
 * a file is opened, every token too; the checksum of the data only when somebody asks.
 *
 * A document may hold items: images, and videos of some frames.  In the text an item is a run of
 * placeholders, one for each merged block of patches; its patches lie at the end of the file as
 * bytes.  A placeholder stands nowhere else, so texts and features cannot come to differ later.
 */
#ifndef K3_K3T_H
#define K3_K3T_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "grid.h"

/** No such id: the stream then adds no bos; pad falls back to eos. */
#define K3_K3T_NO_ID UINT32_MAX

struct k3_k3t_ids {
	uint32_t vocab;			     /* ids are below it */
	uint32_t bos, eos, placeholder, pad; /* below vocab; all but eos may be K3_K3T_NO_ID */
};

/** How the items of a file are cut. */
struct k3_k3t_patches {
	uint32_t patch;		   /* pixels a side, 1 .. K3_K3T_MAX_PATCH */
	uint32_t merge_h, merge_w; /* patches of a merged block, 1 .. K3_K3T_MAX_MERGE */
};

enum {
	K3_K3T_PATCH = 14, /* unless told otherwise, as of the released model */
	K3_K3T_MERGE = 2,
	K3_K3T_BYTE_VOCAB = 260, /* 256 bytes and four special ids */
	K3_K3T_MAX_FRAMES = 4,
	K3_K3T_MAX_SIDE = 512, /* patches */
	K3_K3T_MAX_PATCH = 64,
	K3_K3T_MAX_MERGE = 16,
	K3_K3T_ITEM_ALIGN_BYTES = 64
};

/** An item as it lies in the file. */
struct k3_k3t_item {
	uint64_t first_token; /* of the file; its placeholders begin here */
	uint64_t first_byte;  /* of the file; a multiple of K3_K3T_ITEM_ALIGN_BYTES */
	struct k3_grid grid;  /* t <= 4; h, w <= 512 and multiples of the merged block */
	uint32_t zero;
};

struct k3_k3t {
	struct k3_k3t_ids ids;
	uint64_t n_docs, n_tokens; /* at least one of each */
	uint32_t token_bytes;	   /* 2 or 4 */
	uint64_t checksum;	   /* FNV-1a of all that follows the header */
	const uint64_t *offsets;   /* [n_docs + 1] first token of each document */
	const void *tokens;	   /* [n_tokens] uint16_t or uint32_t */
	const unsigned char *mask; /* one bit per token, lowest first; NULL: all count */
	uint64_t n_items;	   /* 0: text alone, and what follows has no meaning */
	uint64_t n_patches;	   /* of all items */
	struct k3_k3t_patches patches;
	const struct k3_k3t_item *items; /* [n_items] by first_token */
	const void *map;
	size_t map_bytes;
};

/** Maps and checks. @return K3_OK, K3_EIO or K3_EFORMAT, logged with field, value and what is
 * allowed. */
int k3_k3t_open(struct k3_k3t *file, const char *path);
/** A file that is all zero is legal. */
void k3_k3t_close(struct k3_k3t *file);
/** Reads all data and compares the checksum. */
int k3_k3t_verify(const struct k3_k3t *file, const char *path);

/** Token i of the file, i < n_tokens. */
static inline uint32_t
k3_k3t_token(const struct k3_k3t *file, uint64_t i)
{
	return file->token_bytes == 2 ? ((const uint16_t *)file->tokens)[i]
				      : ((const uint32_t *)file->tokens)[i];
}

/** Whether the loss of predicting token i counts. */
static inline bool
k3_k3t_counts(const struct k3_k3t *file, uint64_t i)
{
	return !file->mask || (file->mask[i / 8] >> (i % 8) & 1);
}

/** Placeholders of an item: one for each merged block, however many frames. */
static inline uint64_t
k3_k3t_item_tokens(const struct k3_k3t_patches *patches, const struct k3_grid *grid)
{
	return k3_grid_merged(grid, patches->merge_h, patches->merge_w);
}

/** Bytes of an item's patches: [t*h*w, 3*patch*patch]. */
static inline uint64_t
k3_k3t_item_bytes(const struct k3_k3t_patches *patches, const struct k3_grid *grid)
{
	return k3_grid_patches(grid) * k3_patch_values(patches->patch);
}

/** Patches of item i < n_items, frame by frame in raster order, channel first in a patch. */
static inline const uint8_t *
k3_k3t_item_data(const struct k3_k3t *file, uint64_t i)
{
	return (const uint8_t *)file->map + file->items[i].first_byte;
}

/** The first item that begins at token i or later; n_items when there is none. */
uint64_t k3_k3t_item_find(const struct k3_k3t *file, uint64_t token);

struct k3_k3t_writer;

/**
 * Starts path; until the writer has finished, the file is called path.partial.
 * @return K3_OK, K3_EINVAL (ids), K3_EIO or K3_ENOMEM
 */
int k3_k3t_writer_create(struct k3_k3t_writer **w, const char *path, const struct k3_k3t_ids *ids);
/** Tokens of the current document, in pieces, no placeholder; counts[i] says whether token i's loss
 * counts, NULL: all. */
int k3_k3t_writer_put(struct k3_k3t_writer *w, const uint32_t *tokens, const bool *counts,
		      size_t n);
/** How items are cut, before the first of them; without a call K3_K3T_PATCH and K3_K3T_MERGE. */
int k3_k3t_writer_set_patches(struct k3_k3t_writer *w, const struct k3_k3t_patches *patches);
/**
 * An item of the current document: writes its placeholders and its patches.
 *
 * @param bytes  in [t*h*w, 3*patch*patch] frame by frame in raster order
 * @return K3_OK; K3_EINVAL for a grid that a reader would refuse, or without an id of the
 * placeholder; K3_EIO or K3_ENOMEM
 */
int k3_k3t_writer_put_item(struct k3_k3t_writer *w, const struct k3_grid *grid,
			   const uint8_t *bytes);
/** Ends the current document; one without tokens leaves no trace and *kept (may be NULL) false. */
int k3_k3t_writer_end_doc(struct k3_k3t_writer *w, bool *kept);
/** Completes the file under its partial name; a file without documents is refused. */
int k3_k3t_writer_finish(struct k3_k3t_writer *w);
/** After finish: gives the file its name. With several files: finish all, then publish all. */
int k3_k3t_writer_publish(struct k3_k3t_writer *w);
/** Frees; what was not published is removed. NULL is legal. */
void k3_k3t_writer_destroy(struct k3_k3t_writer *w);

#endif
