/* The sum of the squares' parts in their order, and the verdict. */
#include "verdict.h"

void
k3_clip_factor_cpu(void *const *buf, const struct k3_clip_args *a)
{
	double sum = 0;

	for (uint32_t i = 0; i < a->partials.n; i++)
		sum += *(const double *)buf[a->partials.first + i];
	k3_step_verdict(buf[0], sum, buf[1], buf[2], a->max_norm, a->eps);
}
