/* Checkpoints: a folder per saved step.
 *
 * - model.safetensors, or shards with an index: weights under the checkpoint names, fp32, router
 *   biases included;
 * - config.json: the model in the Hugging Face layout;
 * - optimizer.safetensors, or shards with an index: <key> (fp32 master), <key>.exp_avg,
 *   <key>.exp_avg_sq;
 * - run.json: whatever the program needs to go on;
 * - COMPLETE: marker, written last.
 *
 * A folder is written under a temporary name, made durable and renamed; it counts only once the
 * marker is there.  A marked one whose files are not whole is refused, not passed over: to go on from
 * an earlier step undoes work, so the user says so.
 */
#ifndef K3_TASKS_CHECKPOINT_H
#define K3_TASKS_CHECKPOINT_H
#include <stdbool.h>

#include "../common/safetensors.h"
#include "store.h"

#define K3_CHECKPOINT_MARKER "COMPLETE"

/**
 * Writes dir/step-000010 (step = 10). No task may be in flight. What an earlier, broken save left
 * under that name is replaced; a complete checkpoint of the same step is replaced as well.
 * @param run_json    text of run.json
 * @param shard_bytes most bytes of a file; 0: 5 GiB
 * @return K3_OK, K3_EIO (logged), K3_ENOMEM
 */
int k3_checkpoint_save(struct k3_store *store, const char *dir, uint64_t step, const char *run_json,
		       uint64_t shard_bytes);

/**
 * The newest complete checkpoint: path itself if it is one, else the highest step-... below it that
 * is complete.
 * @param found  malloc'ed path
 * @return K3_OK, K3_ENOENT (logged with what is missing)
 */
int k3_checkpoint_find(char **found, const char *path);
/** The newest complete step-... in a folder; *found stays NULL when there is none. */
int k3_checkpoint_newest(char **found, const char *path);

/**
 * Is all there that the headers of its files promise?  Reads no weights.
 * @param weights_alone  optimizer and run.json are not looked at
 * @return K3_OK; K3_EFORMAT, K3_EIO (logged: the file and what is wrong with it), K3_ENOMEM
 */
int k3_checkpoint_check(const char *folder, bool weights_alone);
/** The same for a program's user: of a step-... that is not whole, the newest one before it in the
 * same folder that is whole is told as well.
 * @param option  of the program that takes it, "--resume" */
int k3_checkpoint_check_or_advise(const char *folder, bool weights_alone, const char *option);

/** Its optimizer.safetensors, or the shards of the index. @return as k3_st_open */
int k3_checkpoint_open_optimizer(struct k3_st **st, const char *folder);

/**
 * Reads weights and router biases into the store. Every element of every parameter is read exactly
 * once; missing keys, keys of the language model without a place, and wrong shapes are listed (the
 * first ten of each).
 * @return K3_OK, K3_EFORMAT (logged), K3_ENOMEM
 */
int k3_checkpoint_load_params(struct k3_store *store, const struct k3_st *st);

/** Reads masters and moments from optimizer.safetensors of a checkpoint; every element exactly
 * once. */
int k3_checkpoint_load_optimizer(struct k3_store *store, const char *path);

#endif
