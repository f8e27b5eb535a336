/* Activation policies: what each layer's forward pass leaves for its backward pass, as text, and
 * chosen for a limit of memory.  Recomputed layers run the same tasks on the same values again, so
 * results are equal to the bit under every policy.
 */
#ifndef K3_PLANNER_ACTIVATIONS_H
#define K3_PLANNER_ACTIVATIONS_H
#include "plan.h"

/**
 * Reads "keep", "recompute", or ranges "A-B:keep,C:recompute" (0-based layers, both ends included;
 * the rest keeps).
 * @param activations  [K3_MAX_LAYERS] enum k3_activation
 * @return K3_OK; K3_EINVAL (logged: the range, what is wrong with it and what is allowed; a layer
 * that two ranges name is refused)
 */
int k3_activations_parse(uint8_t *activations, uint32_t layers, const char *text);

/** The shortest such text, malloc'ed; NULL when memory is out. */
char *k3_activations_text(const uint8_t *activations, uint32_t layers);

/**
 * Takes the fewest recomputed layers, counted from layer 0, with which every memory node holds what
 * it must: persistent data and slots of the run's plans.
 * @param options      activations are set; what they were does not matter
 * @param limit_bytes  of each memory node
 * @return K3_OK; K3_ELIMIT (logged: the missing bytes when all layers recompute, and what would
 * help); or what planning returned
 */
int k3_activations_choose(struct k3_plan_options *options, const struct k3_config *config,
			  const struct k3_run_shape *shape, uint64_t limit_bytes);
/** The same where more than the limit is possible but slow: when nothing fits, all layers
 * recompute.
 * @return K3_OK, or what planning returned */
int k3_activations_squeeze(struct k3_plan_options *options, const struct k3_config *config,
			   const struct k3_run_shape *shape, uint64_t limit_bytes);

#endif
