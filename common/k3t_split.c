/* Training data and what is held out of them, made side by side.
 *
 * The trap: a file that appears although its neighbour failed would be taken for the whole set, so
 * both are complete before either gets its name.
 */
#include "k3t_split.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "files.h"
#include "fs.h"
#include "k3t_import.h"
#include "log.h"
#include "status.h"

enum { PIECE_TOKENS = 4096 };

static int
arguments_check(const char *out, uint32_t vocab, double holdout)
{
	if (vocab < K3_K3T_BYTE_VOCAB || vocab > INT32_MAX) {
		k3_error("common",
			 "%s: vocabulary %" PRIu32 " (--vocab), allowed are %d to %d: 256 bytes and four "
			 "special ids",
			 out, vocab, K3_K3T_BYTE_VOCAB, INT32_MAX);
		return K3_EINVAL;
	}
	if (!(holdout >= 0.0 && holdout < 1.0)) {
		k3_error("common", "%s: holdout %g, allowed are 0 <= holdout < 1", out, holdout);
		return K3_EINVAL;
	}
	return K3_OK;
}

int
k3i_k3t_split_create(struct k3i_k3t_split *split, const char *out, uint32_t vocab, double holdout)
{
	const struct k3_k3t_ids ids = {vocab, vocab - 4, vocab - 3, vocab - 2, vocab - 1};
	int ret = K3_EINVAL;

	*split = (struct k3i_k3t_split){.path = out, .val_path = k3_k3t_val_path(out)};
	if (!split->val_path)
		goto out;
	K3_TRY(arguments_check(out, vocab, holdout));
	K3_TRY(k3_k3t_writer_create(&split->train, out, &ids));
	if (holdout > 0)
		K3_TRY(k3_k3t_writer_create(&split->val, split->val_path, &ids));
out:
	if (ret != K3_OK)
		k3i_k3t_split_destroy(split);
	return ret;
}

int
k3i_k3t_split_publish(struct k3i_k3t_split *split)
{
	int ret;

	K3_TRY(k3_k3t_writer_finish(split->train));
	if (split->val && (ret = k3_k3t_writer_finish(split->val)) != K3_OK) {
		if (ret == K3_EINVAL)
			k3_error("common", "too little is held out; --holdout 0 makes no second "
					   "file");
		goto out;
	}
	K3_TRY(k3_k3t_writer_publish(split->train));
	if (split->val && (ret = k3_k3t_writer_publish(split->val)) != K3_OK)
		unlink(split->path);
out:
	return ret;
}

void
k3i_k3t_split_destroy(struct k3i_k3t_split *split)
{
	k3_k3t_writer_destroy(split->train);
	k3_k3t_writer_destroy(split->val);
	free(split->val_path);
	*split = (struct k3i_k3t_split){0};
}

int
k3i_k3t_input_check(const char *out, const char *input)
{
	char *val = k3_k3t_val_path(out), *partial = k3i_path_partial(out),
	     *val_partial = val ? k3i_path_partial(val) : NULL;
	const char *made[] = {out, partial, val, val_partial};
	int ret = partial && val_partial ? K3_OK : val ? K3_ENOMEM : K3_EINVAL;

	for (size_t i = 0; i < sizeof(made) / sizeof(made[0]) && ret == K3_OK; i++)
		if (k3_fs_is_same(made[i], input)) {
			k3_error("common",
				 "%s: read and, as %s, replaced by the output; allowed: "
				 "another file",
				 input, made[i]);
			ret = K3_EINVAL;
		}
	free(val);
	free(partial);
	free(val_partial);
	return ret;
}

int
k3i_k3t_put_bytes(struct k3_k3t_writer *w, const void *data, uint64_t n)
{
	const unsigned char *bytes = data;
	uint32_t piece[PIECE_TOKENS];
	int ret = K3_OK;

	for (uint64_t done = 0; done < n && ret == K3_OK; done += PIECE_TOKENS) {
		size_t part = n - done < PIECE_TOKENS ? (size_t)(n - done) : PIECE_TOKENS;
		for (size_t i = 0; i < part; i++)
			piece[i] = bytes[done + i];
		ret = k3_k3t_writer_put(w, piece, NULL, part);
	}
	return ret;
}
