/* Memory of a run: a slot of a class is the same handle in every plan, so what counts is the
 * most slots of each class, not their sum over the plans. */
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "plan.h"

void
k3_memory_init(struct k3_memory *memory, const struct k3_model *model)
{
	memset(memory, 0, sizeof(*memory));
	memory->model = model;
	memory->persist_bytes = model->persist_bytes;
	memory->cores = model->options.on_gpus ? 0 : model->machine.cores;
}

/* Memory that the handles of a task take; the same datum may be there twice and counts so. */
static uint64_t
task_bytes(const struct k3_plan *plan, const struct k3_task *t)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0, seen = 0; i < t->n_access; i++) {
		const struct k3_access *a = &plan->access[t->first_access + i];
		const struct k3_datum *d = &plan->data[k3_datum_leader(plan->data, a->datum)];
		if (a->buffer < seen)
			continue; /* in a handle that counts */
		seen = a->buffer + 1;
		bytes += d->slot < 0 ? k3_datum_place_bytes(d) : plan->slot[d->slot].bytes;
	}
	return bytes;
}

uint64_t
k3_plan_task_bytes(const struct k3_plan *plan)
{
	uint64_t most = 0;

	for (size_t i = 0; i < plan->n_tasks; i++) {
		uint64_t bytes = task_bytes(plan, &plan->task[i]);
		most = bytes > most ? bytes : most;
	}
	return most;
}

int
k3_memory_add(struct k3_memory *memory, const struct k3_plan *plan)
{
	uint64_t bytes = k3_plan_task_bytes(plan);

	memory->task_bytes = bytes > memory->task_bytes ? bytes : memory->task_bytes;
	if (plan->wide_bytes > memory->wide_bytes)
		memory->wide_bytes = plan->wide_bytes;
	for (size_t i = 0; i < plan->n_slots; i++) {
		const struct k3_slot *s = &plan->slot[i];
		size_t at = 0;
		while (at < memory->n_classes && memory->cls[at].bytes < s->bytes)
			at++;
		if (at == memory->n_classes || memory->cls[at].bytes != s->bytes) {
			void *grown = realloc(memory->cls,
					      (memory->n_classes + 1) * sizeof(*memory->cls));
			if (!grown)
				return K3_ENOMEM;
			memory->cls = grown;
			memmove(&memory->cls[at + 1], &memory->cls[at],
				(memory->n_classes - at) * sizeof(*memory->cls));
			memory->cls[at].bytes = s->bytes;
			memory->cls[at].n = 0;
			memory->n_classes++;
		}
		if (s->ordinal + 1 > memory->cls[at].n)
			memory->cls[at].n = s->ordinal + 1;
	}
	return K3_OK;
}

void
k3_memory_add_scratch(struct k3_memory *memory, uint64_t gpu_scratch_bytes)
{
	if (gpu_scratch_bytes > memory->gpu_scratch_bytes)
		memory->gpu_scratch_bytes = gpu_scratch_bytes;
}

uint64_t
k3_memory_wide_bytes(const struct k3_memory *memory)
{
	return memory->wide_bytes * memory->cores;
}

uint64_t
k3_memory_bound(const struct k3_memory *memory)
{
	uint64_t bytes = memory->persist_bytes + k3_memory_wide_bytes(memory);

	for (size_t i = 0; i < memory->n_classes; i++)
		bytes += (uint64_t)memory->cls[i].bytes * memory->cls[i].n;
	return bytes;
}

void
k3_memory_fini(struct k3_memory *memory)
{
	free(memory->cls);
	memset(memory, 0, sizeof(*memory));
}
