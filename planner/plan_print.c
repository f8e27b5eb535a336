/* Numbers of a step.  The trap: slots are shared by data of all kinds, so memory by kind is the
 * high-water mark in submission order, which is information; the bound that is promised comes from
 * struct k3_memory. */
#include "plan_print.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "critical_path.h"

int
k3_plan_stats_init(struct k3_plan_stats *stats, const struct k3_model *model)
{
	memset(stats, 0, sizeof(*stats));
	stats->model = model;
	stats->layer = calloc(model->config.layers + 1, sizeof(*stats->layer));
	if (!stats->layer)
		return K3_ENOMEM;
	for (size_t i = 0; i < model->n_persist; i++)
		stats->persist_bytes[model->persist[i].kind] += model->persist[i].bytes;
	return K3_OK;
}

void
k3_plan_stats_fini(struct k3_plan_stats *stats)
{
	free(stats->layer);
	memset(stats, 0, sizeof(*stats));
}

static void
count_task(struct k3_count *c, const struct k3_task *t, uint64_t times)
{
	c->n_tasks += times;
	c->flops += (double)times * t->flops;
	c->bytes += (double)times * t->bytes;
	c->cost_us += (double)times * t->cost_us;
}

/* Bytes that begin and end to live at each position, kind by kind. */
static int
add_peaks(struct k3_plan_stats *stats, const struct k3_plan *plan)
{
	int64_t *delta = calloc((size_t)(plan->n_pos + 2) * K3_N_DATA_KINDS, sizeof(*delta));
	int64_t now[K3_N_DATA_KINDS] = {0};

	if (!delta)
		return K3_ENOMEM;
	for (size_t i = plan->model->n_persist; i < plan->n_data; i++) {
		const struct k3_datum *d = &plan->data[i];
		if (d->first_pos > d->last_pos)
			continue;
		uint32_t end = d->keep || d->last_pos > plan->n_pos ? plan->n_pos : d->last_pos;
		delta[(size_t)d->first_pos * K3_N_DATA_KINDS + d->kind] += (int64_t)d->bytes;
		delta[((size_t)end + 1) * K3_N_DATA_KINDS + d->kind] -= (int64_t)d->bytes;
	}
	for (size_t pos = 0; pos <= plan->n_pos; pos++) {
		uint64_t all = 0;
		for (size_t k = 0; k < K3_N_DATA_KINDS; k++) {
			now[k] += delta[pos * K3_N_DATA_KINDS + k];
			all += (uint64_t)now[k];
			if ((uint64_t)now[k] > stats->peak_bytes[k])
				stats->peak_bytes[k] = (uint64_t)now[k];
		}
		if (all > stats->peak_all_bytes)
			stats->peak_all_bytes = all;
	}
	free(delta);
	return K3_OK;
}

int
k3_plan_stats_add(struct k3_plan_stats *stats, const struct k3_plan *plan, uint64_t times)
{
	struct k3_critical_path path;

	if (k3_critical_path_init(&path, plan) != K3_OK)
		return K3_ENOMEM;
	stats->critical_us += (double)times * path.length_us;
	k3_critical_path_fini(&path);
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		count_task(&stats->total, t, times);
		count_task(&stats->family[k3_op_family((enum k3_op)t->op)], t, times);
		count_task(
			&stats->layer[t->layer < 0 ? (int)stats->model->config.layers : t->layer],
			t, times);
		if (t->comm < 0)
			continue;
		stats->comm[t->op].n_tasks += times;
		stats->comm[t->op].elems += times * t->count;
		stats->comm[t->op].bytes +=
			times * t->count * k3_dtype_bytes((enum k3_dtype)t->comm_dtype);
	}
	return add_peaks(stats, plan);
}

static void
print_count(FILE *out, const char *table, const char *name, const struct k3_count *c)
{
	if (c->n_tasks)
		fprintf(out, "%s\t%s\t%" PRIu64 "\t%.9g\t%.9g\t%.9g\n", table, name, c->n_tasks,
			c->flops, c->bytes, c->cost_us);
}

static void
print_bytes(FILE *out, const char *name, uint64_t bytes)
{
	if (bytes)
		fprintf(out, "memory\t%s\t-\t-\t%" PRIu64 "\t-\n", name, bytes);
}

static void
print_memory(FILE *out, const struct k3_plan_stats *stats, const struct k3_memory *memory)
{
	static const char *const kind[K3_N_DATA_KINDS] = {
		"parameters", "gradients",   "first_moments", "second_moments", "buffers",
		"inputs",     "activations", "work",	      "gathered",
	};
	char name[64];

	for (size_t k = 0; k < K3_N_DATA_KINDS; k++)
		print_bytes(out, kind[k], stats->persist_bytes[k]);
	for (size_t k = 0; k < K3_N_DATA_KINDS; k++) {
		snprintf(name, sizeof(name), "peak_%s", kind[k]);
		print_bytes(out, name, stats->peak_bytes[k]);
	}
	print_bytes(out, "peak_short_lived", stats->peak_all_bytes);
	print_bytes(out, "persistent", memory->persist_bytes);
	print_bytes(out, "slots", k3_memory_bound(memory) - memory->persist_bytes);
	print_bytes(out, "bound", k3_memory_bound(memory));
}

void
k3_plan_print(FILE *out, const struct k3_plan_stats *stats, const struct k3_memory *memory)
{
	char name[32];

	fprintf(out, "table\tname\ttasks\tflops\tbytes\tcost_us\n");
	print_count(out, "step", "all", &stats->total);
	fprintf(out, "step\tcritical_path\t-\t-\t-\t%.9g\n", stats->critical_us);
	fprintf(out, "step\tparameters\t%" PRIu64 "\t-\t-\t-\n", stats->model->params.n_elems);
	for (int f = 0; f < K3_N_FAMILIES; f++)
		print_count(out, "family", k3_family_name((enum k3_family)f), &stats->family[f]);
	for (uint32_t l = 0; l < stats->model->config.layers; l++) {
		snprintf(name, sizeof(name), "%u", l);
		print_count(out, "layer", name, &stats->layer[l]);
	}
	print_count(out, "layer", "none", &stats->layer[stats->model->config.layers]);
	for (int op = 0; op < K3_N_OPS; op++)
		if (stats->comm[op].n_tasks)
			fprintf(out, "comm\t%s\t%" PRIu64 "\t-\t%" PRIu64 "\t-\n",
				k3_op_name((enum k3_op)op), stats->comm[op].n_tasks,
				stats->comm[op].bytes);
	print_memory(out, stats, memory);
}
