/* Makes .k3t files from text files (bytes as tokens) and from raw token dumps. */
#ifndef K3_K3T_IMPORT_H
#define K3_K3T_IMPORT_H

#include "k3t.h"

/**
 * Each regular file is one document of bytes; below a folder in sorted order, symbolic links are
 * skipped, empty files too, with a warning.  bos, eos, placeholder and pad are the last four ids of
 * vocab.
 *
 * @param out      must end in .k3t
 * @param vocab    260 .. INT32_MAX
 * @param holdout  0 <= holdout < 1: this part of the end of every file goes to X.val.k3t instead;
 *                 with 0 there is no such file
 * On failure neither file is there.
 */
int k3_k3t_import_bytes(const char *const *paths, size_t n_paths, const char *out, uint32_t vocab,
			double holdout);

/**
 * A dump of token ids, little-endian; a document ends at each eos, which is not stored, and a bos
 * at its beginning is not stored either.
 *
 * @param token_bytes  2 or 4
 */
int k3_k3t_import_raw(const char *path, uint32_t token_bytes, const char *out,
		      const struct k3_k3t_ids *ids);

/** X.val.k3t of X.k3t, malloc'ed; NULL, logged, when out does not end in .k3t or memory is out. */
char *k3_k3t_val_path(const char *out);

#endif
