/* .k3t: the container of a tokenised data set, memory-mapped; byte by byte in doc/data-formats.md.
 *
 * A file holds the raw text tokens of its documents, without bos and eos: those are added when the
 * stream is read (data.h), so that the same file serves with either.  Every field is checked when
 * a file is opened, every token too; the checksum of the data only when somebody asks.
 */
#ifndef K3_K3T_H
#define K3_K3T_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** No such id: the stream then adds no bos; pad falls back to eos. */
#define K3_K3T_NO_ID UINT32_MAX

struct k3_k3t_ids {
	uint32_t vocab;			     /* ids are below it */
	uint32_t bos, eos, placeholder, pad; /* below vocab; all but eos may be K3_K3T_NO_ID */
};

struct k3_k3t {
	struct k3_k3t_ids ids;
	uint64_t n_docs, n_tokens; /* at least one of each */
	uint32_t token_bytes;	   /* 2 or 4 */
	uint64_t checksum;	   /* FNV-1a of all that follows the header */
	const uint64_t *offsets;   /* [n_docs + 1] first token of each document */
	const void *tokens;	   /* [n_tokens] uint16_t or uint32_t */
	const unsigned char *mask; /* one bit per token, lowest first; NULL: all count */
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

struct k3_k3t_writer;

/**
 * Starts path; until the writer has finished, the file is called path.partial.
 * @return K3_OK, K3_EINVAL (ids), K3_EIO or K3_ENOMEM
 */
int k3_k3t_writer_create(struct k3_k3t_writer **w, const char *path, const struct k3_k3t_ids *ids);
/** Tokens of the current document, in pieces; counts[i] says whether token i's loss counts, NULL:
 * all. */
int k3_k3t_writer_put(struct k3_k3t_writer *w, const uint32_t *tokens, const bool *counts,
		      size_t n);
/** Ends the current document; one without tokens leaves no trace and *kept (may be NULL) false. */
int k3_k3t_writer_end_doc(struct k3_k3t_writer *w, bool *kept);
/** Completes the file under its partial name; a file without documents is refused. */
int k3_k3t_writer_finish(struct k3_k3t_writer *w);
/** After finish: gives the file its name. With several files: finish all, then publish all. */
int k3_k3t_writer_publish(struct k3_k3t_writer *w);
/** Frees; what was not published is removed. NULL is legal. */
void k3_k3t_writer_destroy(struct k3_k3t_writer *w);

#endif
