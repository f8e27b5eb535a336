/* Documents that ask what they said long before: what a recurrent state must carry. */
#ifndef K3_K3T_RECALL_H
#define K3_K3T_RECALL_H

#include "k3t.h"

enum {
	K3_RECALL_MAX_PAIRS = 1024,
	K3_RECALL_MAX_WORD_BYTES = 8,
	K3_RECALL_VALUES = 16 /* a byte of a value is one of these, with equal chances */
};

struct k3_recall_options {
	uint64_t documents, seed;
	uint32_t pairs;			 /* 1 .. K3_RECALL_MAX_PAIRS, at most 26^key_bytes */
	uint32_t key_bytes, value_bytes; /* 1 .. K3_RECALL_MAX_WORD_BYTES */
	uint32_t filler_bytes;		 /* at least so many between the pairs and the questions */
	uint32_t multiple; /* of tokens that a streamed document has; 1: no rounding */
	uint32_t vocab;	   /* 260 .. INT32_MAX, special ids as in k3_k3t_import_bytes */
};

/** Defaults: 16 pairs, keys and values of one byte, 512 bytes of filler, multiple 1024. */
void k3_recall_options_init(struct k3_recall_options *options);

/** Sizes that follow from the options; each document has the same. */
struct k3_recall_shape {
	uint64_t filler_bytes;	  /* after rounding */
	uint64_t text_bytes;	  /* of a document */
	uint64_t document_tokens; /* with bos and eos: a multiple of `multiple` */
	uint64_t labels;	  /* of the file */
};

/**
 * Writes the file.  A document is
 *
 *   pairs lines of "KEY:VALUE ", newline, filler, newline, the same pairs in another order, newline
 *
 * without line breaks but those.  Keys are letters a-z, no key twice in a document; value bytes are
 * 0-9A-F, drawn independently, so whoever does not know the pairs is right with probability
 * 1 / K3_RECALL_VALUES a byte and has a loss of at least ln K3_RECALL_VALUES.  Filler is letters
 * and blanks.  The loss counts on value bytes of the second list alone.  Bytes depend on the
 * options alone, those of document i not on the number of documents.
 *
 * @param out    must end in .k3t
 * @param shape  out
 * @return K3_OK; K3_EINVAL, logged with value and what is allowed; K3_EIO, K3_ENOMEM
 */
int k3_k3t_recall(const char *out, const struct k3_recall_options *options,
		  struct k3_recall_shape *shape);

#endif
