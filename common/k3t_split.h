/* The two data sets that an import makes: X.k3t, and X.val.k3t of what is held out (inside
 * common/). */
#ifndef K3_K3T_SPLIT_H
#define K3_K3T_SPLIT_H

#include "k3t.h"

struct k3i_k3t_split {
	const char *path;
	char *val_path;
	struct k3_k3t_writer *train, *val; /* val is NULL when nothing is held out */
};

/**
 * Starts both files; tokens are bytes, and bos, eos, placeholder and pad the last four ids.
 *
 * @return K3_OK; K3_EINVAL for a name that does not end in .k3t, vocab below 260, or holdout
 * outside 0 <= holdout < 1; K3_EIO or K3_ENOMEM.  After a failure there is nothing to destroy.
 */
int k3i_k3t_split_create(struct k3i_k3t_split *split, const char *out, uint32_t vocab,
			 double holdout);
/** Completes both files, then names them: both or none. */
int k3i_k3t_split_publish(struct k3i_k3t_split *split);
/** Removes what was not published. One that is all zero is legal. */
void k3i_k3t_split_destroy(struct k3i_k3t_split *split);
/**
 * An input must not be a file that the output replaces: X.k3t, X.val.k3t, or either one's partial
 * file, whatever its path is called.
 *
 * @return K3_OK, also for an input that is not there; K3_EINVAL, logged; K3_ENOMEM
 */
int k3i_k3t_input_check(const char *out, const char *input);
/** Bytes as tokens of the current document. */
int k3i_k3t_put_bytes(struct k3_k3t_writer *w, const void *data, uint64_t n);

#endif
