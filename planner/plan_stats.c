/* Counts of a step.  The trap: a plan dies before the step's numbers are printed, so names are
 * copied. */
#include "plan_stats.h"

#include <stdio.h>
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
	stats->tower = calloc(model->config.vision.layers + 1, sizeof(*stats->tower));
	if (stats->layer && stats->tower)
		return K3_OK;
	k3_plan_stats_fini(stats);
	return K3_ENOMEM;
}

void
k3_plan_stats_fini(struct k3_plan_stats *stats)
{
	free(stats->layer);
	free(stats->tower);
	free(stats->comm);
	free(stats->plan);
	free(stats->path);
	memset(stats, 0, sizeof(*stats));
}

const char *
k3_layer_attention(const struct k3_config *config, uint32_t layer)
{
	return config->is_mla[layer] ? "mla" : "kda";
}

bool
k3_layer_is_moe(const struct k3_config *config, uint32_t layer)
{
	return layer >= config->first_dense;
}

enum { MOST_COUNTERS = 5 };

/* The counters that a task belongs to; their number. */
static int
counters(struct k3_plan_stats *s, const struct k3_task *t, struct k3_count *c[MOST_COUNTERS])
{
	int blocks = (int)s->model->config.vision.layers;
	bool block = t->group >= 0 && t->op != K3_OP_ZERO_GRADS;

	c[0] = &s->total;
	c[1] = &s->family[k3_op_family((enum k3_op)t->op)];
	c[2] = &s->pass[t->pass];
	c[3] = &s->layer[t->layer < 0 ? (int)s->model->config.layers : t->layer];
	if (k3_op_family((enum k3_op)t->op) != K3_FAMILY_VIT)
		return 4;
	c[4] = &s->tower[block && t->group < blocks ? t->group : blocks];
	return 5;
}

static void
count_task(struct k3_plan_stats *s, const struct k3_task *t, uint64_t times)
{
	struct k3_count *c[MOST_COUNTERS];
	int n = counters(s, t, c);

	for (int i = 0; i < n; i++) {
		c[i]->n_tasks += times;
		c[i]->flops += (double)times * t->flops;
		c[i]->bytes += (double)times * t->bytes;
		c[i]->cost_us += (double)times * t->cost_us;
	}
}

static struct k3_comm_count *
comm_count(struct k3_plan_stats *s, const struct k3_comm *comm, enum k3_op op)
{
	for (size_t i = 0; i < s->n_comms; i++)
		if (s->comm[i].op == op && strcmp(s->comm[i].comm, comm->name) == 0)
			return &s->comm[i];
	struct k3_comm_count *grown = realloc(s->comm, (s->n_comms + 1) * sizeof(*grown));
	if (!grown)
		return NULL;
	s->comm = grown;
	grown[s->n_comms] = (struct k3_comm_count){.n_members = comm->n_members, .op = op};
	memcpy(grown[s->n_comms].comm, comm->name, sizeof(comm->name));
	return &grown[s->n_comms++];
}

static int
count_comm(struct k3_plan_stats *s, const struct k3_plan *plan, const struct k3_task *t,
	   uint64_t times)
{
	struct k3_comm_count *c = comm_count(s, &plan->comm[t->comm], (enum k3_op)t->op);

	if (!c)
		return K3_ENOMEM;
	c->n_tasks += times;
	c->elems += times * t->count;
	c->bytes += times * t->count * k3_dtype_bytes((enum k3_dtype)t->comm_dtype);
	return K3_OK;
}

static int
add_path(struct k3_plan_stats *s, const struct k3_plan *plan, uint64_t times)
{
	struct k3_critical_path path;
	int ret = k3_critical_path_init(&path, plan);
	double end_us = 0;

	if (ret != K3_OK)
		return ret;
	void *grown = realloc(s->path, (s->n_path + path.n + 1) * sizeof(*s->path));
	if (!grown)
		K3_TRY(K3_ENOMEM);
	s->path = grown;
	s->plan[s->n_plans - 1].critical_us = path.length_us;
	for (size_t i = 0; i < path.n; i++) {
		const struct k3_task *t = &plan->task[path.task[i]];
		struct k3_path_task *p = &s->path[s->n_path++];
		struct k3_count *c[MOST_COUNTERS];
		end_us += t->cost_us;
		*p = (struct k3_path_task){.plan = (uint32_t)s->n_plans - 1,
					   .op = (enum k3_op)t->op,
					   .layer = t->layer,
					   .flops = t->flops,
					   .bytes = t->bytes,
					   .cost_us = t->cost_us,
					   .end_us = end_us};
		snprintf(p->name, sizeof(p->name), "%s", t->name);
		int n = counters(s, t, c);
		for (int k = 0; k < n; k++) {
			c[k]->critical_tasks += times;
			c[k]->critical_us += (double)times * t->cost_us;
		}
	}
out:
	k3_critical_path_fini(&path);
	return ret;
}

const char *
k3_plan_name(const struct k3_plan *plan)
{
	const char *name = "next";

	for (size_t i = 0; i < plan->n_tasks; i++) {
		if (plan->task[i].op == K3_OP_STEP_LOAD)
			name = "first";
		if (plan->task[i].pass == K3_PASS_OPTIMIZER)
			return "end";
		if (plan->task[i].pass == K3_PASS_SETUP)
			return "setup";
	}
	return name;
}

int
k3_plan_stats_add(struct k3_plan_stats *stats, const struct k3_plan *plan, uint64_t times)
{
	struct k3_plan_count *grown =
		realloc(stats->plan, (stats->n_plans + 1) * sizeof(*stats->plan));
	int ret = K3_OK;

	if (!grown)
		return K3_ENOMEM;
	stats->plan = grown;
	grown[stats->n_plans++] = (struct k3_plan_count){
		.name = k3_plan_name(plan), .times = times, .n_tasks = plan->n_tasks};
	if (plan->n_tokens > stats->n_tokens) {
		stats->n_tokens = plan->n_tokens;
		stats->n_tiles = plan->n_tiles;
		stats->own_tiles = plan->own_n;
	}
	for (size_t i = 0; i < plan->n_tasks; i++) {
		count_task(stats, &plan->task[i], times);
		if (plan->task[i].comm >= 0)
			K3_TRY(count_comm(stats, plan, &plan->task[i], times));
	}
	K3_TRY(add_path(stats, plan, times));
out:
	return ret;
}
