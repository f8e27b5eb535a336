/* What the command line and run.json share (inside drivers/). */
#ifndef K3_DRIVERS_TRAIN_RESUME_H
#define K3_DRIVERS_TRAIN_RESUME_H
#include "../common/options.h"
#include "train.h"

enum { K3I_TRAIN_OPTIONS = 48, K3I_MAY_CHANGE_BYTES = 400 };

/** Fills the table of options, at most K3I_TRAIN_OPTIONS. @return their number */
size_t k3i_train_table(struct k3_option *table, struct k3_train_options *options);
/** "--a, --b and --c": options that a resumed run may change. */
const char *k3i_train_may_change(char *text, size_t bytes);
/** Finds the checkpoint and takes over options and state; what was given and differs is refused.
 * @return as k3_train_parse */
int k3i_train_resume(struct k3_option *table, size_t n, struct k3_train_options *options,
		     struct k3_run_state *state, char **folder);

#endif
