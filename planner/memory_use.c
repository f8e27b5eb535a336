/* Memory of a rank by kind.  The trap: a slot serves data of several kinds one after the other, so
 * slots by kind and the high-water marks are information; what is promised is the bound of struct
 * k3_memory. */
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "plan_stats.h"

/* Positions that each kind holds the slots of a class, over the plans of the step. */
struct held {
	uint64_t positions[K3_N_DATA_KINDS];
};

struct k3_slot_class {
	size_t bytes;
	uint32_t n;
	struct held *held; /* [n] by ordinal */
};

void
k3_memory_use_init(struct k3_memory_use *use, const struct k3_model *model)
{
	uint64_t parts = 0;

	memset(use, 0, sizeof(*use));
	k3_memory_init(&use->memory, model);
	for (size_t i = 0; i < model->n_persist; i++) {
		use->persist_bytes[model->persist[i].kind] += model->persist[i].bytes;
		parts += model->persist[i].bytes;
	}
	/* room between data that share a handle */
	use->persist_bytes[K3_DATA_BUFFER] += model->persist_bytes - parts;
}

void
k3_memory_use_fini(struct k3_memory_use *use)
{
	for (size_t i = 0; i < use->n_classes; i++)
		free(use->cls[i].held);
	free(use->cls);
	k3_memory_fini(&use->memory);
	memset(use, 0, sizeof(*use));
}

/* Last position at which a datum is alive in a plan. */
static uint32_t
last_pos(const struct k3_plan *plan, const struct k3_datum *d)
{
	return d->keep || d->last_pos > plan->n_pos ? plan->n_pos : d->last_pos;
}

/* Bytes that begin and end to live at each position, kind by kind. */
static int
add_peaks(struct k3_memory_use *use, const struct k3_plan *plan)
{
	int64_t(*delta)[K3_N_DATA_KINDS] = calloc((size_t)plan->n_pos + 2, sizeof(*delta));
	int64_t now[K3_N_DATA_KINDS] = {0};

	if (!delta)
		return K3_ENOMEM;
	for (size_t i = plan->model->n_persist; i < plan->n_data; i++) {
		const struct k3_datum *d = &plan->data[i];
		if (d->first_pos > d->last_pos)
			continue;
		delta[d->first_pos][d->kind] += (int64_t)d->bytes;
		delta[(size_t)last_pos(plan, d) + 1][d->kind] -= (int64_t)d->bytes;
	}
	for (size_t pos = 0; pos <= plan->n_pos; pos++) {
		uint64_t all = 0;
		for (size_t k = 0; k < K3_N_DATA_KINDS; k++) {
			now[k] += delta[pos][k];
			all += (uint64_t)now[k];
			if ((uint64_t)now[k] > use->peak_bytes[k])
				use->peak_bytes[k] = (uint64_t)now[k];
		}
		if (all > use->peak_all_bytes)
			use->peak_all_bytes = all;
	}
	free(delta);
	return K3_OK;
}

/* The record of a slot, made when there is none yet. */
static struct held *
held_of(struct k3_memory_use *use, const struct k3_slot *slot)
{
	size_t i = 0;

	while (i < use->n_classes && use->cls[i].bytes != slot->bytes)
		i++;
	if (i == use->n_classes) {
		struct k3_slot_class *grown =
			realloc(use->cls, (use->n_classes + 1) * sizeof(*grown));
		if (!grown)
			return NULL;
		use->cls = grown;
		grown[use->n_classes++] = (struct k3_slot_class){.bytes = slot->bytes};
	}
	struct k3_slot_class *cls = &use->cls[i];
	if (slot->ordinal >= cls->n) {
		uint32_t n = slot->ordinal + 1 > 2 * cls->n ? slot->ordinal + 1 : 2 * cls->n;
		struct held *grown = realloc(cls->held, n * sizeof(*grown));
		if (!grown)
			return NULL;
		memset(grown + cls->n, 0, (n - cls->n) * sizeof(*grown));
		cls->held = grown;
		cls->n = n;
	}
	return &cls->held[slot->ordinal];
}

static int
add_holders(struct k3_memory_use *use, const struct k3_plan *plan)
{
	for (size_t i = plan->model->n_persist; i < plan->n_data; i++) {
		const struct k3_datum *d = &plan->data[i];
		if (d->slot < 0 || d->first_pos > d->last_pos)
			continue;
		struct held *h = held_of(use, &plan->slot[d->slot]);
		if (!h)
			return K3_ENOMEM;
		h->positions[d->kind] += last_pos(plan, d) - d->first_pos + 1;
	}
	memset(use->slot_bytes, 0, sizeof(use->slot_bytes));
	for (size_t i = 0; i < use->n_classes; i++)
		for (uint32_t k = 0; k < use->cls[i].n; k++) {
			const uint64_t *held = use->cls[i].held[k].positions;
			size_t most = 0;
			for (size_t kind = 1; kind < K3_N_DATA_KINDS; kind++)
				if (held[kind] > held[most])
					most = kind;
			if (held[most])
				use->slot_bytes[most] += use->cls[i].bytes;
		}
	return K3_OK;
}

int
k3_memory_use_add(struct k3_memory_use *use, const struct k3_plan *plan)
{
	int ret = K3_OK;

	K3_TRY(k3_memory_add(&use->memory, plan));
	K3_TRY(add_peaks(use, plan));
	K3_TRY(add_holders(use, plan));
out:
	return ret;
}
