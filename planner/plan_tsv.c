/* The report of a step for programs.  The trap: readers find columns by the header and rows by
 * (table, name, kind), so new ones may come, but none may change its meaning. */
#include <inttypes.h>
#include <stdlib.h>

#include "../common/status.h"
#include "activations.h"
#include "mesh.h"
#include "plan_print.h"

const char *
k3_data_kind_name(enum k3_data_kind kind)
{
	static const char *const name[K3_N_DATA_KINDS] = {
		"parameters", "gradients", "first_moments", "second_moments", "copies",
		"buffers",    "inputs",	   "activations",   "work",	      "gathered",
	};

	return kind < K3_N_DATA_KINDS ? name[kind] : "unknown";
}

const char *
k3_pass_name(enum k3_pass pass)
{
	static const char *const name[K3_N_PASSES] = {"forward", "backward", "optimizer", "setup",
						      "recompute"};

	return pass < K3_N_PASSES ? name[pass] : "unknown";
}

static void
count_row(FILE *out, const char *table, const char *name, const char *kind,
	  const struct k3_count *c)
{
	if (c->n_tasks)
		fprintf(out, "%s\t%s\t%s\t%" PRIu64 "\t-\t%.9g\t%.9g\t%.9g\t%" PRIu64 "\t%.9g\n",
			table, name, kind, c->n_tasks, c->flops, c->bytes, c->cost_us,
			c->critical_tasks, c->critical_us);
}

static void
activations_row(FILE *out, const struct k3_plan_stats *s)
{
	char *text = k3_activations_text(s->model->options.activations, s->model->config.layers);

	fprintf(out, "step\tactivations\t%s\t-\t-\t-\t-\t-\t-\t-\n", text ? text : "-");
	free(text);
}

static void
layer_rows(FILE *out, const struct k3_plan_stats *s)
{
	const struct k3_config *c = &s->model->config;
	char name[32], kind[32];

	for (uint32_t l = 0; l < c->layers; l++) {
		snprintf(name, sizeof(name), "%u", l);
		snprintf(kind, sizeof(kind), "%s_%s", k3_layer_attention(c, l),
			 k3_layer_is_moe(c, l) ? "moe" : "dense");
		count_row(out, "layer", name, kind, &s->layer[l]);
	}
	count_row(out, "layer", "none", "-", &s->layer[c->layers]);
}

static void
tower_rows(FILE *out, const struct k3_plan_stats *s)
{
	uint32_t blocks = s->model->config.vision.layers;
	char name[32];

	for (uint32_t i = 0; i < blocks; i++) {
		snprintf(name, sizeof(name), "%u", i);
		count_row(out, "tower", name, "block", &s->tower[i]);
	}
	count_row(out, "tower", "around", "-", &s->tower[blocks]);
}

static void
plan_rows(FILE *out, const struct k3_plan_stats *s, bool path)
{
	for (size_t i = 0; i < s->n_plans; i++)
		fprintf(out, "plan\t%s\t%" PRIu64 "\t%" PRIu64 "\t-\t-\t-\t-\t-\t%.9g\n",
			s->plan[i].name, s->plan[i].times, s->plan[i].n_tasks,
			s->plan[i].critical_us);
	for (size_t i = 0; path && i < s->n_path; i++) {
		const struct k3_path_task *t = &s->path[i];
		fprintf(out, "path\t%s\t%s\t1\t-\t%.9g\t%.9g\t%.9g\t1\t%.9g\n", t->name,
			s->plan[t->plan].name, t->flops, t->bytes, t->cost_us, t->end_us);
	}
}

static void
bytes_row(FILE *out, const char *prefix, const char *kind, uint64_t bytes)
{
	fprintf(out, "memory\tmain\t%s%s\t-\t-\t-\t%" PRIu64 "\t-\t-\t-\n", prefix, kind, bytes);
}

static void
kind_rows(FILE *out, const char *prefix, const uint64_t *bytes)
{
	for (size_t k = 0; k < K3_N_DATA_KINDS; k++)
		if (bytes[k])
			bytes_row(out, prefix, k3_data_kind_name((enum k3_data_kind)k), bytes[k]);
}

static void
memory_rows(FILE *out, const struct k3_plan_report *r)
{
	const struct k3_memory_use *m = r->memory;
	uint64_t bound = k3_memory_bound(&m->memory), wide = k3_memory_wide_bytes(&m->memory);

	kind_rows(out, "persistent_", m->persist_bytes);
	kind_rows(out, "slots_", m->slot_bytes);
	kind_rows(out, "high_water_", m->peak_bytes);
	bytes_row(out, "", "persistent", m->memory.persist_bytes);
	bytes_row(out, "", "slots", bound - wide - m->memory.persist_bytes);
	if (wide)
		bytes_row(out, "", "scratch", wide);
	bytes_row(out, "", "bound", bound);
	bytes_row(out, "", "high_water", m->memory.persist_bytes + m->peak_all_bytes);
	bytes_row(out, "", "largest_task", m->memory.task_bytes);
	if (m->memory.gpu_scratch_bytes)
		bytes_row(out, "", "gpu_scratch", m->memory.gpu_scratch_bytes);
	if (!r->limit_bytes)
		return;
	bytes_row(out, "", "limit", r->limit_bytes);
	bytes_row(out, "", "missing", k3_plan_fits(r) ? 0 : bound - r->limit_bytes);
}

int
k3_plan_tsv(FILE *out, const struct k3_plan_report *r)
{
	const struct k3_plan_stats *s = r->stats;

	fprintf(out, "table\tname\tkind\ttasks\telems\tflops\tbytes\tcost_us\tcritical_tasks"
		     "\tcritical_us\n");
	count_row(out, "step", "all", "-", &s->total);
	fprintf(out, "step\tparameters\t-\t-\t%" PRIu64 "\t-\t-\t-\t-\t-\n",
		s->model->params.n_elems);
	activations_row(out, s);
	for (int p = 0; p < K3_N_PASSES; p++)
		count_row(out, "pass", k3_pass_name((enum k3_pass)p), "-", &s->pass[p]);
	for (int f = 0; f < K3_N_FAMILIES; f++)
		count_row(out, "family", k3_family_name((enum k3_family)f), "-", &s->family[f]);
	layer_rows(out, s);
	tower_rows(out, s);
	plan_rows(out, s, r->critical_path);
	for (size_t i = 0; i < s->n_comms; i++)
		fprintf(out, "comm\t%s\t%s\t%" PRIu64 "\t%" PRIu64 "\t-\t%" PRIu64 "\t-\t-\t-\n",
			s->comm[i].comm, k3_op_name(s->comm[i].op), s->comm[i].n_tasks,
			s->comm[i].elems, s->comm[i].bytes);
	memory_rows(out, r);
	fprintf(out, "ranks\tchecked\t-\t%u\t-\t-\t-\t-\t-\t-\n", r->ranks_checked);
	fprintf(out, "ranks\tall\t-\t%u\t-\t-\t-\t-\t-\t-\n",
		k3_mesh_ranks(&s->model->options.mesh));
	if (r->limit_bytes)
		fprintf(out, "fits\t%s\t-\t-\t-\t-\t-\t-\t-\t-\n", k3_plan_fits(r) ? "yes" : "no");
	return ferror(out) ? K3_EIO : K3_OK;
}
