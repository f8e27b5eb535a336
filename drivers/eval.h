/* What k3_eval does, as functions. */
#ifndef K3_DRIVERS_EVAL_H
#define K3_DRIVERS_EVAL_H
#include "session.h"

/**
 * Opens a session on a checkpoint folder (config.json and weights; a folder of checkpoints: the
 * newest complete one).
 * @param cut_state  as in k3_plan_options: for tests
 * @param machine    whose rates the costs are; NULL: defaults
 */
int k3_eval_open(struct k3_session *session, const char *path, uint32_t tile_tokens,
		 const struct k3_runtime_options *runtime, bool cut_state,
		 const struct k3_machine *machine);

/**
 * Continues a prompt byte by byte.
 * @param out          out [n_bytes]
 * @param temperature  0: the likeliest byte; else sampled from softmax(logits / temperature) with
 * the seed
 * @return K3_OK, K3_EINVAL (a vocabulary without bytes), K3_ENOMEM
 */
int k3_eval_generate(struct k3_session *session, const char *prompt, size_t n_bytes,
		     double temperature, uint64_t seed, unsigned char *out);

#endif
