/* How the steps of a training file were made: `train` of its metadata (inside drivers/). */
#ifndef K3_DRIVERS_VERIFY_SETTINGS_H
#define K3_DRIVERS_VERIFY_SETTINGS_H
#include "verify.h"

struct k3i_verify_settings {
	struct k3_plan_options plan_options;
	size_t steps, accumulation, warmup;
	double lr, decay_ratio, lr_floor;
};

/** What the file does not say keeps its default.
 * @param settings  all zero
 * @return K3_OK, K3_EFORMAT (logged) */
int k3i_verify_settings(const struct k3_st *st, const struct k3_verify_options *options,
			struct k3i_verify_settings *settings);

#endif
