/* Rates of an operation from measured tasks. */
#ifndef K3_PLANNER_RATE_FIT_H
#define K3_PLANNER_RATE_FIT_H
#include <stddef.h>

#include "machine.h"

struct k3_rate_sample {
	double flops, bytes, param_bytes, us; /* as of struct k3_task; bytes include param_bytes */
};

/**
 * Least squares of relative errors with non-negative terms:
 *
 *   min over a, f, b, w >= 0 of
 *   sum_i ((a + f flops_i + b (bytes_i - param_bytes_i) + w param_bytes_i - us_i) / (us_i + s))^2,
 *   call_us = a, flops_per_us = 1 / f and so on (0 where the term is left out)
 *
 * s = 10 us, what the runtime takes per task: so a task of 0.1 ms counts as much as one of 20 ms,
 * and one of 1 us does not.
 * @param sample  in [n]; samples without a positive time are left out
 * @return root mean square of those relative errors; negative when no sample is left (rate
 * unchanged)
 */
double k3_rate_fit(struct k3_rate *rate, const struct k3_rate_sample *sample, size_t n);

#endif
