/* Slots: each short-lived datum gets a place of its size class.  A place is free again run_ahead
 * positions after the last use of its datum, so that tasks a little ahead do not wait for it; that
 * distance is what bounds the run-ahead, and memory with it. */
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "build.h"

/* Classes: eight to an octave, at least 256 bytes apart. */
static size_t
class_bytes(size_t bytes)
{
	size_t step = 256;

	while (step * 16 < bytes)
		step *= 2;
	return (bytes + step - 1) / step * step;
}

struct slot_state {
	uint32_t free_pos; /* first position at which it may be taken */
	uint32_t next;	   /* chain of slots of one class, index + 1 */
};

struct by_first {
	uint32_t pos, datum;
};

static int
compare(const void *a, const void *b)
{
	const struct by_first *x = a, *y = b;

	if (x->pos != y->pos)
		return x->pos < y->pos ? -1 : 1;
	return x->datum < y->datum ? -1 : x->datum > y->datum;
}

struct class_head {
	size_t bytes;
	uint32_t first, n; /* chain, number of slots */
};

static struct class_head *
class_of(struct class_head *heads, size_t *n, size_t bytes)
{
	for (size_t i = 0; i < *n; i++)
		if (heads[i].bytes == bytes)
			return &heads[i];
	heads[*n] = (struct class_head){.bytes = bytes};
	return &heads[(*n)++];
}

static uint32_t
reserved_until(const struct k3_builder *b, const struct k3_datum *d)
{
	uint32_t ahead = b->model->options.run_ahead;

	if (d->keep)
		return UINT32_MAX;
	if (d->kind == K3_DATA_WORK && d->first_pos == d->last_pos)
		ahead = ahead < K3I_WORK_AHEAD ? ahead : K3I_WORK_AHEAD;
	if (d->kind == K3_DATA_GATHERED)
		ahead = 0;
	return d->last_pos + 1 + ahead;
}

int
k3i_assign_slots(struct k3_builder *b)
{
	struct k3_plan *p = b->plan;
	size_t n_persist = b->model->n_persist, n = 0, n_heads = 0;
	size_t most = p->n_data - n_persist + 1;
	struct by_first *order = malloc(most * sizeof(*order));
	struct slot_state *state = malloc(most * sizeof(*state));
	struct class_head *heads = malloc(most * sizeof(*heads));
	struct k3_slot *slot = k3i_arena_alloc(p->arena, most * sizeof(*slot));
	int ret = K3_OK;

	if (!order || !state || !heads || !slot)
		K3_TRY(K3_ENOMEM);
	for (size_t i = n_persist; i < p->n_data; i++)
		if (p->data[i].first_pos <= p->data[i].last_pos)
			order[n++] = (struct by_first){p->data[i].first_pos, (uint32_t)i};
	qsort(order, n, sizeof(*order), compare);
	p->slot = slot;
	for (size_t i = 0; i < n; i++) {
		struct k3_datum *d = &p->data[order[i].datum];
		struct class_head *head = class_of(heads, &n_heads, class_bytes(d->slot_bytes));
		uint32_t s = 0;
		for (uint32_t k = head->first; k && !s; k = state[k - 1].next)
			if (state[k - 1].free_pos <= d->first_pos)
				s = k;
		if (!s) {
			p->slot[p->n_slots] = (struct k3_slot){head->bytes, head->n++};
			p->slot_bytes += head->bytes;
			state[p->n_slots].next = head->first;
			head->first = s = (uint32_t)++p->n_slots;
		}
		state[s - 1].free_pos = reserved_until(b, d);
		d->slot = (int32_t)(s - 1);
	}
out:
	free(order);
	free(state);
	free(heads);
	return ret;
}

void
k3_memory_init(struct k3_memory *memory, const struct k3_model *model)
{
	memset(memory, 0, sizeof(*memory));
	memory->model = model;
	memory->persist_bytes = model->persist_bytes;
	memory->cores = model->options.on_gpus ? 0 : model->machine.cores;
}

/* Memory that the data of a task take; the same datum may be there twice and counts so. */
static uint64_t
task_bytes(const struct k3_plan *plan, const struct k3_task *t)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < t->n_access; i++) {
		const struct k3_datum *d = &plan->data[plan->access[t->first_access + i].datum];
		bytes += d->slot < 0 ? d->bytes : plan->slot[d->slot].bytes;
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
