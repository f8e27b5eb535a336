/* The document stream: cuts the documents of a .k3t file into microbatches of T tokens.
 *
 * A document is streamed as bos, text, eos.  Documents follow each other in the order of a
 * permutation that depends on seed and epoch alone, several in one microbatch, with ids 1, 2, ...
 * One that does not fit goes on in the next microbatch as a new document, without state; the last
 * position before the cut keeps its true next token as label.
 *
 * Labels are shifted already: label i is token i+1 of the same document, -100 at eos and where the
 * loss mask says that token i+1 does not count; eos counts if the last text token does.
 *
 * An item, an image or a video, is never cut: a microbatch ends before the item that does not fit
 * in its rows or would give it more than the limit of patches; the rest is filled up, and the
 * document goes on in the next.  A placeholder is never a label, since features are not predicted;
 * the last one of an item predicts the text after it.
 *
 * When an epoch ends the next one follows at once.  With `once` the stream ends there, and the last
 * microbatch is filled up.  Filling is pad (eos where there is no pad), label -100, document id 0.
 */
#ifndef K3_DATA_H
#define K3_DATA_H

#include "k3t.h"

enum { K3_LABEL_IGNORED = -100 };

/** Where the stream goes on; all of a checkpoint's data state but seed and file. */
struct k3_data_pos {
	uint64_t epoch;
	uint64_t doc;	 /* place in the order of this epoch, not in the file */
	uint64_t offset; /* streamed tokens of that document, bos included */
};

struct k3_data {
	struct k3_k3t file;
	uint64_t seed;
	bool once;
	uint64_t max_patches; /* of a microbatch; 0: no limit */
	struct k3_data_pos pos;
	uint64_t *order; /* [n_docs] of order_epoch */
	uint64_t order_epoch;
};

/** The items of a microbatch, in the order of their rows; the caller owns it. */
struct k3_data_items {
	size_t n, room;
	uint64_t patches;      /* of all */
	struct k3_grid *grid;  /* [n] */
	uint32_t *row;	       /* [n] of the first placeholder in the microbatch */
	const uint8_t **bytes; /* [n] patches, in the data set's map: valid until it is closed */
};

/** Room for the items of microbatches of t tokens. @return K3_OK or K3_ENOMEM */
int k3_data_items_init(struct k3_data_items *items, size_t t);
/** Some that are all zero are legal. */
void k3_data_items_fini(struct k3_data_items *items);

/** @return K3_OK, or what k3_k3t_open returns, or K3_ENOMEM */
int k3_data_open(struct k3_data *d, const char *path, uint64_t seed, bool once);
/** One that is all zero is legal. */
void k3_data_close(struct k3_data *d);

/**
 * The next microbatch.
 *
 * @param t        1 <= t <= INT32_MAX
 * @param ids      out [t]  NULL skips the microbatch; then labels and doc_ids are NULL too
 * @param labels   out [t]
 * @param doc_ids  out [t]
 * @param n_valid  out  rows that are not padding: t, or less before an item that does not fit and
 *                 at the end of a stream read once (0 when nothing is left); may be NULL
 * @param items    out  made for t tokens or more; NULL when the file has none, or the microbatch is
 *                 skipped
 * @return K3_OK; K3_EINVAL, also when items is NULL and the file has some; K3_ELIMIT, logged with
 * item and both counts, when an item alone is above t or the limit of patches.  After a failure the
 * position is as before.
 */
int k3_data_next(struct k3_data *d, size_t t, int32_t *ids, int32_t *labels, int32_t *doc_ids,
		 size_t *n_valid, struct k3_data_items *items);

/** Limit of the patches of a microbatch; 0: none, as after opening. */
void k3_data_set_max_patches(struct k3_data *d, uint64_t max_patches);

void k3_data_get_pos(const struct k3_data *d, struct k3_data_pos *pos);
/** K3_EINVAL when the data set has no such position, or an item would be cut there. */
int k3_data_set_pos(struct k3_data *d, const struct k3_data_pos *pos);

/** Streamed tokens of one epoch, bos and eos included. */
uint64_t k3_data_total_tokens(const struct k3_data *d);
/** Streamed tokens from the beginning of epoch 0 to the position. */
uint64_t k3_data_consumed_tokens(const struct k3_data *d);
/** K3_ELIMIT, logged with both counts, when one epoch has fewer than tokens. */
int k3_data_require(const struct k3_data *d, const char *path, uint64_t tokens);
/** K3_ELIMIT, logged with document, item and both counts, when an item has more than t tokens or
 * more patches than the limit: then no microbatch of t tokens can hold it. */
int k3_data_require_items(const struct k3_data *d, const char *path, size_t t);

#endif
