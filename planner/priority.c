/* Priority of a task = length of the longest chain of tasks that must follow it, itself included,
 * in the plan's cost (critical_path.h); scaled so that the longest chain of the plan has
 * K3_MAX_PRIORITY. */
#include <stdlib.h>

#include "../common/status.h"
#include "build.h"
#include "critical_path.h"

void
k3i_assign_priorities(struct k3_plan *p)
{
	double *length_us = malloc((p->n_tasks + 1) * sizeof(*length_us)), longest = 0;

	/* priorities only help: without memory for them all stay 0 */
	if (length_us && k3_plan_chains(p, length_us, NULL) == K3_OK) {
		for (size_t i = 0; i < p->n_tasks; i++)
			longest = length_us[i] > longest ? length_us[i] : longest;
		for (size_t i = 0; i < p->n_tasks; i++)
			p->task[i].priority = (int32_t)(length_us[i] / longest * K3_MAX_PRIORITY);
	}
	free(length_us);
}
