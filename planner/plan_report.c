/* The report of a step for people: few digits, units that fit.  The trap: columns line up only
 * while every number is printed in a field of its own, so numbers become text first. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../common/size.h"
#include "../common/status.h"
#include "activations.h"
#include "mesh.h"
#include "plan_print.h"

static struct k3_size_text
flop(double x)
{
	static const char *const unit[] = {"",	    "kflop", "Mflop", "Gflop",
					   "Tflop", "Pflop", "Eflop"};
	struct k3_size_text t = {"0"};

	return x > 0 ? k3_scaled_text(x / 1e3, 1e3, unit + 1, 6) : t;
}

static struct k3_size_text
size(double x)
{
	struct k3_size_text t = {"0"};

	return x > 0 ? k3_size_text(x) : t;
}

static struct k3_size_text
span(double us)
{
	static const char *const unit[] = {"us", "ms", "s", "ks", "Ms"};
	struct k3_size_text t = {"0"};

	return us > 0 ? k3_scaled_text(us, 1e3, unit, 5) : t;
}

static void
count_head(FILE *out, const char *first)
{
	fprintf(out, "\n%-10s %-9s %9s %11s %11s %10s %7s %18s\n", first, "", "tasks", "flop",
		"moved", "cost", "share", "on critical path");
}

static void
count_line(FILE *out, const char *name, const char *kind, const struct k3_count *c,
	   const struct k3_count *total)
{
	if (!c->n_tasks)
		return;
	fprintf(out, "%-10s %-9s %9" PRIu64 " %11s %11s %10s %5.1f %% %7" PRIu64 " %10s\n", name,
		kind, c->n_tasks, flop(c->flops).at, size(c->bytes).at, span(c->cost_us).at,
		total->cost_us > 0 ? 100 * c->cost_us / total->cost_us : 0, c->critical_tasks,
		span(c->critical_us).at);
}

static void
layers(FILE *out, const struct k3_plan_stats *s)
{
	const struct k3_config *c = &s->model->config;
	char name[32], kind[32];

	count_head(out, "layer");
	for (uint32_t l = 0; l < c->layers; l++) {
		snprintf(name, sizeof(name), "%u", l);
		snprintf(kind, sizeof(kind), "%s %s", c->is_mla[l] ? "MLA" : "KDA",
			 k3_layer_is_moe(c, l) ? "MoE" : "dense");
		count_line(out, name, kind, &s->layer[l], &s->total);
	}
	count_line(out, "none", "", &s->layer[c->layers], &s->total);
	count_line(out, "all", "", &s->total, &s->total);
}

static void
tower(FILE *out, const struct k3_plan_stats *s)
{
	uint32_t blocks = s->model->config.vision.layers;
	char name[32];

	if (!s->family[K3_FAMILY_VIT].n_tasks)
		return;
	count_head(out, "tower");
	for (uint32_t i = 0; i < blocks; i++) {
		snprintf(name, sizeof(name), "%u", i);
		count_line(out, name, "block", &s->tower[i], &s->total);
	}
	count_line(out, "around", "", &s->tower[blocks], &s->total);
}

static const char *
plan_words(const char *name)
{
	return strcmp(name, "first") == 0  ? "first microbatch"
	       : strcmp(name, "next") == 0 ? "next microbatch"
	       : strcmp(name, "end") == 0  ? "end of the step"
					   : name;
}

static void
critical_path(FILE *out, const struct k3_plan_stats *s, bool list)
{
	const struct k3_count *all = &s->total;

	fprintf(out,
		"\ncritical path: %s of %s, so %.1f workers at most are busy on average; %" PRIu64
		" of %" PRIu64 " tasks\n",
		span(all->critical_us).at, span(all->cost_us).at,
		all->critical_us > 0 ? all->cost_us / all->critical_us : 0, all->critical_tasks,
		all->n_tasks);
	for (size_t i = 0; i < s->n_plans; i++)
		fprintf(out, "  %-16s %" PRIu64 " x %" PRIu64 " tasks, chain %s\n",
			plan_words(s->plan[i].name), s->plan[i].times, s->plan[i].n_tasks,
			span(s->plan[i].critical_us).at);
	if (!list)
		return;
	fprintf(out, "\n%-17s %-36s %10s %10s %10s\n", "path", "task", "flop", "cost",
		"up to here");
	for (size_t i = 0; i < s->n_path; i++) {
		const struct k3_path_task *t = &s->path[i];
		bool first = i == 0 || t->plan != s->path[i - 1].plan;
		fprintf(out, "%-17s %-36s %10s %10s %10s\n",
			first ? plan_words(s->plan[t->plan].name) : "", t->name, flop(t->flops).at,
			span(t->cost_us).at, span(t->end_us).at);
	}
}

static void
memory(FILE *out, const struct k3_memory_use *m, bool gpu)
{
	uint64_t bound = k3_memory_bound(&m->memory), wide = k3_memory_wide_bytes(&m->memory);

	fprintf(out, "\n%-16s %12s %12s %12s\n", gpu ? "GPU memory" : "main memory", "persistent",
		"slots", "high water");
	for (size_t k = 0; k < K3_N_DATA_KINDS; k++)
		if (m->persist_bytes[k] || m->slot_bytes[k] || m->peak_bytes[k])
			fprintf(out, "%-16s %12s %12s %12s\n",
				k3_data_kind_name((enum k3_data_kind)k),
				size((double)m->persist_bytes[k]).at,
				size((double)m->slot_bytes[k]).at,
				size((double)(m->persist_bytes[k] + m->peak_bytes[k])).at);
	fprintf(out, "%-16s %12s %12s %12s\n", "all", size((double)m->memory.persist_bytes).at,
		size((double)(bound - wide - m->memory.persist_bytes)).at,
		size((double)(m->memory.persist_bytes + m->peak_all_bytes)).at);
	fprintf(out,
		"bound: %" PRIu64 " bytes (%s): persistent data and slots%s, under every order "
		"of the tasks\n",
		bound, size((double)bound).at, wide ? ", CPU workers' float copies of bf16" : "");
	fprintf(out, "largest task: %s of data at once\n", size((double)m->memory.task_bytes).at);
	if (m->memory.gpu_scratch_bytes)
		fprintf(out, "beside the bound: %s of scratch for each GPU worker\n",
			size((double)m->memory.gpu_scratch_bytes).at);
}

static void
communication(FILE *out, const struct k3_plan_stats *s)
{
	if (!s->n_comms)
		return;
	fprintf(out, "\n%-14s %7s %-22s %9s %16s %12s\n", "communicator", "ranks", "operation",
		"count", "elements", "bytes");
	for (size_t i = 0; i < s->n_comms; i++)
		fprintf(out, "%-14s %7u %-22s %9" PRIu64 " %16" PRIu64 " %12s\n", s->comm[i].comm,
			s->comm[i].n_members, k3_op_name(s->comm[i].op), s->comm[i].n_tasks,
			s->comm[i].elems, size((double)s->comm[i].bytes).at);
}

static void
title(FILE *out, const struct k3_plan_report *r)
{
	const struct k3_plan_stats *s = r->stats;
	const struct k3_config *c = &s->model->config;
	const struct k3_mesh *mesh = &s->model->options.mesh;
	char *activations = k3_activations_text(s->model->options.activations, c->layers);
	uint64_t microbatches = 0;

	for (size_t i = 0; i < s->n_plans; i++)
		if (strcmp(s->plan[i].name, "end") != 0)
			microbatches += s->plan[i].times;
	fprintf(out, "%s: %u layers, width %u, vocabulary %u, %" PRIu64 " parameters\n", c->name,
		c->layers, c->width, c->vocab, s->model->params.n_elems);
	fprintf(out, "step: %" PRIu64 " microbatch%s of %zu tokens, %zu tile%s, %zu of them here\n",
		microbatches, microbatches == 1 ? "" : "es", s->n_tokens, s->n_tiles,
		s->n_tiles == 1 ? "" : "s", s->own_tiles);
	fprintf(out, "activations: %s%s\n", activations ? activations : "?",
		s->model->options.dtype == K3_BF16 ? ", bf16" : "");
	free(activations);
	fprintf(out,
		"mesh: dp_replicate=%u dp_shard=%u cp=%u; counts of rank %u, memory of the "
		"rank that needs most, order of communication proved on %u of %u ranks\n",
		mesh->dp_replicate, mesh->dp_shard, mesh->cp, mesh->rank, r->ranks_checked,
		k3_mesh_ranks(mesh));
}

bool
k3_plan_fits(const struct k3_plan_report *report)
{
	return k3_memory_bound(&report->memory->memory) <= report->limit_bytes;
}

int
k3_plan_print(FILE *out, const struct k3_plan_report *r)
{
	const struct k3_plan_stats *s = r->stats;
	uint64_t bound = k3_memory_bound(&r->memory->memory);

	title(out, r);
	layers(out, s);
	tower(out, s);
	count_head(out, "family");
	for (int f = 0; f < K3_N_FAMILIES; f++)
		count_line(out, k3_family_name((enum k3_family)f), "", &s->family[f], &s->total);
	count_head(out, "pass");
	for (int p = 0; p < K3_N_PASSES; p++)
		count_line(out, k3_pass_name((enum k3_pass)p), "", &s->pass[p], &s->total);
	critical_path(out, s, r->critical_path);
	memory(out, r->memory, s->model->options.on_gpus);
	communication(out, s);
	if (!r->limit_bytes)
		return ferror(out) ? K3_EIO : K3_OK;
	if (k3_plan_fits(r))
		fprintf(out, "\nfits: yes (limit %s, %s are left)\n",
			size((double)r->limit_bytes).at, size((double)(r->limit_bytes - bound)).at);
	else
		fprintf(out, "\nfits: no (limit %s, %" PRIu64 " bytes are missing)\n",
			size((double)r->limit_bytes).at, bound - r->limit_bytes);
	return ferror(out) ? K3_EIO : K3_OK;
}
