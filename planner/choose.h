/* Which tiles and groups a model should be cut in, on paper. */
#ifndef K3_PLANNER_CHOOSE_H
#define K3_PLANNER_CHOOSE_H
#include "estimate.h"

struct k3_choice {
	uint32_t tile_tokens; /* 0: one tile */
	uint32_t kda_groups, mla_groups;
	uint32_t expert_groups;	     /* 0: see k3_params_init */
	struct k3_estimate estimate; /* of the plan that decided: some layers of the model */
	uint32_t layers;	     /* of that plan */
	size_t n_plans, n_tasks;     /* looked at */
};

/**
 * Chooses the cut with the smallest estimated time of a training microbatch, of those whose tasks
 * take 1 ms or more on average (on a GPU 50 us); if none does, of those in one tile.
 *
 * A vision tower has no part in it; its tiles are those of options->vision_patches.
 *
 * Plans of the first layers of the model (every kind of layer is among them) are built and
 * scheduled on as many workers as options->machine has cores, or on one GPU, for one document
 * that fills the microbatch.  So the choice depends on model, tokens and machine alone: not on
 * the workers of a run, nor on its documents.  Cuts of so many tasks that deciding would take
 * long are not looked at: some 10 ms for a small model, below a second for any.
 * @param config   must have passed k3_config_check
 * @param options  mesh, block_bytes and machine (NULL: defaults) count, and groups that are not 0,
 *                 which stay; tile_tokens doesn't
 * @param tokens   of a microbatch of a data-parallel rank, >= 1
 * @return K3_OK, K3_ENOMEM, K3_ELIMIT (more than K3_MAX_TOKENS), or what k3_plan_microbatch refuses
 */
int k3_choose(struct k3_choice *choice, const struct k3_config *config,
	      const struct k3_plan_options *options, size_t tokens);

/** Writes the choice into options. */
void k3_choice_apply(const struct k3_choice *choice, struct k3_plan_options *options);

#endif
