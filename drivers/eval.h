/* What k3_eval does, as functions. */
#ifndef K3_DRIVERS_EVAL_H
#define K3_DRIVERS_EVAL_H
#include <stdio.h>

#include "session.h"

/**
 * Opens a session on a checkpoint folder (config.json and weights; a folder of checkpoints: the
 * newest complete one).
 * @param cut_state  as in k3_plan_options: for tests
 * @param machine    whose rates the costs are; NULL: defaults
 * @param vision     with the tower, which the model must have then; else its weights are
 *                   passed over
 * @param dtype      as in k3_plan_options
 */
int k3_eval_open(struct k3_session *session, const char *path, uint32_t tile_tokens,
		 const struct k3_runtime_options *runtime, bool cut_state,
		 const struct k3_machine *machine, bool vision, enum k3_dtype dtype);

/**
 * Continues a prompt byte by byte.
 * @param out          out [n_bytes]
 * @param temperature  0: the likeliest byte; else sampled from softmax(logits / temperature) with
 * the seed
 * @return K3_OK, K3_EINVAL (a vocabulary without bytes), K3_ENOMEM
 */
int k3_eval_generate(struct k3_session *session, const char *prompt, size_t n_bytes,
		     double temperature, uint64_t seed, unsigned char *out);

/**
 * For the first documents with images of a data set (k3_data images): what the model writes
 * greedily after the last image, as a table with what stands there.
 * @param most    documents
 * @param tokens  most of a document; a longer one is refused
 * @return K3_OK, K3_EINVAL (no images, other patches or vocabulary than the model's; logged),
 * K3_ELIMIT, K3_ENOMEM
 */
int k3_eval_captions(struct k3_session *session, const char *data_path, size_t most, size_t tokens,
		     FILE *out);

/* A document that grows at its end (inside drivers/). */
struct k3i_eval_text {
	size_t cap;
	int32_t *rows; /* ids | labels | documents, cap each */
	size_t n_items;
	const struct k3_grid *grid; /* as in k3_layout and k3_host_batch */
	const uint32_t *item_row;
	const uint8_t *const *item_bytes;
};
/** One document of pads, with room for at least `most` tokens; rows are malloc'ed. */
int k3i_eval_text_init(struct k3i_eval_text *text, const struct k3_config *config, size_t most);
/** One forward pass over the first n tokens; logits [vocab] of the last. */
int k3i_eval_logits(struct k3_session *session, const struct k3i_eval_text *text, size_t n,
		    float *logits);

#endif
