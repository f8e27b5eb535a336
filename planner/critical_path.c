/* Chains from the plan's end to its beginning, so that one pass gives every task what must follow
 * it.  The trap: readers of a handle do not wait for each other, so a read looks at the next
 * writer alone, a write at the readers before that as well. */
#include "critical_path.h"

#include <stdlib.h>
#include <string.h>

#include "../common/status.h"

/* The longest chain that begins at some task; 0 and no task when there is none. */
struct chain {
	double length_us;
	uint32_t task;
};

/* What follows on a handle: the next writer, and the readers before it. */
struct followers {
	struct chain writer, readers;
};

static size_t
handle_of(const struct k3_plan *plan, uint32_t datum)
{
	int32_t slot = plan->data[datum].slot;

	return slot < 0 ? k3_datum_leader(plan->data, datum)
			: plan->model->n_persist + (size_t)slot;
}

static void
take_longer(struct chain *best, const struct chain *other)
{
	if (other->length_us > best->length_us)
		*best = *other;
}

int
k3_plan_chains(const struct k3_plan *plan, double *length_us, uint32_t *next)
{
	size_t n = plan->model->n_persist + plan->n_slots;
	struct followers *handle = calloc(n + 1, sizeof(*handle));

	if (!handle)
		return K3_ENOMEM;
	for (size_t i = plan->n_tasks; i-- > 0;) {
		const struct k3_task *t = &plan->task[i];
		const struct k3_access *a = &plan->access[t->first_access];
		struct chain after = {0, K3_NO_TASK}, own;

		for (uint32_t k = 0; k < t->n_access; k++) {
			const struct followers *f = &handle[handle_of(plan, a[k].datum)];
			take_longer(&after, &f->writer);
			if (a[k].mode & K3_W)
				take_longer(&after, &f->readers);
		}
		own = (struct chain){after.length_us + t->cost_us, (uint32_t)i};
		length_us[i] = own.length_us;
		if (next)
			next[i] = after.task;
		for (uint32_t k = 0; k < t->n_access; k++) {
			struct followers *f = &handle[handle_of(plan, a[k].datum)];
			if (a[k].mode & K3_W)
				*f = (struct followers){.writer = own};
			else
				take_longer(&f->readers, &own);
		}
	}
	free(handle);
	return K3_OK;
}

int
k3_critical_path_init(struct k3_critical_path *path, const struct k3_plan *plan)
{
	double *length_us = malloc((plan->n_tasks + 1) * sizeof(*length_us));
	uint32_t *next = malloc((plan->n_tasks + 1) * sizeof(*next)), first = K3_NO_TASK;
	int ret = K3_OK;

	memset(path, 0, sizeof(*path));
	if (!length_us || !next)
		K3_TRY(K3_ENOMEM);
	K3_TRY(k3_plan_chains(plan, length_us, next));
	for (size_t i = 0; i < plan->n_tasks; i++)
		if (first == K3_NO_TASK || length_us[i] > length_us[first])
			first = (uint32_t)i;
	for (uint32_t i = first; i != K3_NO_TASK; i = next[i])
		path->n++;
	path->task = malloc((path->n + 1) * sizeof(*path->task));
	if (!path->task)
		K3_TRY(K3_ENOMEM);
	if (first != K3_NO_TASK)
		path->length_us = length_us[first];
	path->n = 0;
	for (uint32_t i = first; i != K3_NO_TASK; i = next[i])
		path->task[path->n++] = i;
out:
	free(length_us);
	free(next);
	if (ret != K3_OK)
		k3_critical_path_fini(path);
	return ret;
}

void
k3_critical_path_fini(struct k3_critical_path *path)
{
	free(path->task);
	memset(path, 0, sizeof(*path));
}
