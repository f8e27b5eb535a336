/* A training run (inside drivers/). */
#ifndef K3_DRIVERS_TRAIN_RUN_H
#define K3_DRIVERS_TRAIN_RUN_H
#include <stdio.h>

#include "../tasks/gpu_memory.h"
#include "train.h"

struct k3i_trainer {
	const struct k3_train_options *options;
	struct k3_train_options chosen; /* options, with numbers for what was to be chosen */
	struct k3_machine machine;
	struct k3_run_state *state;
	struct k3_session session;
	struct k3_config config;
	struct k3_data data;
	uint64_t max_patches;		/* of a microbatch; 0: text alone */
	uint32_t vision_patches;	/* of a vision tile */
	struct k3_data_items *items[2]; /* by parity: accumulate; nothing in them for text */
	int32_t *rows[2];		/* by parity: accumulate x (ids | labels | documents) */
	struct {
		double lr, tokens;	   /* of the step in flight, by parity */
		struct k3_run_state after; /* run state once it is done */
	} flight[2];
	struct k3_gpu_memory gpu;
	FILE *eval_log; /* NULL: none */
	double last_time;
	uint64_t saved_step; /* of the newest checkpoint of this run; 0: none */
	int failed;
};

/** Reads the model, and compares it with that of a checkpoint's folder (NULL: none).
 * @return K3_OK, K3_EDIFFER (logged: fields and both values), or what is refused */
int k3i_train_config(struct k3i_trainer *trainer, const char *folder);
/** Decides by --vision and the data whether the model keeps its tower; limits of patches.
 * @return K3_OK, K3_EINVAL, K3_ELIMIT (logged with both values) */
int k3i_train_choose_vision(struct k3i_trainer *trainer);
/** Opens data, model and session and sets the initial values, or those of a checkpoint folder.
 * What is open then is closed by the caller, also after a failure. */
int k3i_train_open(struct k3i_trainer *trainer, const char *folder);

#endif
