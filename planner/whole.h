/* Persistent data that share a handle (inside planner/). */
#ifndef K3_PLANNER_WHOLE_H
#define K3_PLANNER_WHOLE_H
#include "plan.h"

/** Chooses which of the model's persistent data share a handle; all have places by now. */
int k3i_make_wholes(struct k3_model *model);

#endif
