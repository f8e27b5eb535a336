/* Edges from accesses.  The trap: two data in one slot are ordered although no task names both, and
 * control-only tasks have edges only through what they write. */
#include "plan_graph.h"

#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "plan_print.h"

struct handle_state {
	uint32_t writer;  /* last task that wrote + 1 */
	uint32_t readers; /* chain of readers since, index + 1 */
};

struct reader {
	uint32_t task, next;
};

int
k3i_graph_init(struct k3i_graph *g, const struct k3_plan *plan)
{
	memset(g, 0, sizeof(*g));
	g->plan = plan;
	g->handle = calloc(plan->model->n_persist + plan->n_slots + 1, sizeof(*g->handle));
	g->reader = malloc((plan->n_access + 1) * sizeof(*g->reader));
	g->pred = malloc((plan->n_tasks + 1) * sizeof(*g->pred));
	g->mark = calloc(plan->n_tasks + 1, sizeof(*g->mark));
	if (g->handle && g->reader && g->pred && g->mark)
		return K3_OK;
	k3i_graph_fini(g);
	return K3_ENOMEM;
}

void
k3i_graph_fini(struct k3i_graph *g)
{
	free(g->handle);
	free(g->reader);
	free(g->pred);
	free(g->mark);
	memset(g, 0, sizeof(*g));
}

static struct handle_state *
handle_of(struct k3i_graph *g, uint32_t datum)
{
	const struct k3_datum *d = &g->plan->data[datum];

	return &g->handle[d->slot < 0 ? datum : g->plan->model->n_persist + (size_t)d->slot];
}

static void
add_pred(struct k3i_graph *g, uint32_t task, uint32_t before)
{
	if (before == task || g->mark[before] == task + 1)
		return;
	g->mark[before] = task + 1;
	g->pred[g->n_pred++] = before;
}

void
k3i_graph_next(struct k3i_graph *g, uint32_t task)
{
	const struct k3_task *t = &g->plan->task[task];
	const struct k3_access *a = &g->plan->access[t->first_access];

	g->n_pred = 0;
	for (uint32_t k = 0; k < t->n_access; k++) {
		const struct handle_state *h = handle_of(g, a[k].datum);
		if (h->writer)
			add_pred(g, task, h->writer - 1);
		for (uint32_t r = (a[k].mode & K3_W) ? h->readers : 0; r; r = g->reader[r - 1].next)
			add_pred(g, task, g->reader[r - 1].task);
	}
	for (uint32_t k = 0; k < t->n_access; k++) {
		struct handle_state *h = handle_of(g, a[k].datum);
		if (a[k].mode & K3_W) {
			*h = (struct handle_state){task + 1, 0};
		} else {
			g->reader[g->n_readers++] = (struct reader){task, h->readers};
			h->readers = (uint32_t)g->n_readers;
		}
	}
}

static void
dot_task(FILE *out, const struct k3_plan *plan, size_t i)
{
	static const char *const colour[K3_N_FAMILIES] = {
		"#8dd3c7", "#bebada", "#fb8072", "#80b1d3", "#fdb462", "#b3de69",
		"#fccde5", "#ffed6f", "#d9d9d9", "#bc80bd", "#ccebc5",
	};
	const struct k3_task *t = &plan->task[i];

	fprintf(out, "\t\tt%zu [label=\"%s\" fillcolor=\"%s\"];\n", i, t->name,
		colour[k3_op_family((enum k3_op)t->op)]);
}

int
k3_plan_dot(FILE *out, const struct k3_plan *plan)
{
	struct k3i_graph g;
	int ret = k3i_graph_init(&g, plan);

	if (ret != K3_OK)
		return ret;
	fprintf(out, "digraph plan {\n\tnode [shape=box style=filled fontname=\"sans-serif\"];\n");
	for (int layer = -1; layer < (int)plan->model->config.layers; layer++) {
		if (layer < 0)
			fprintf(out, "\tsubgraph outside {\n");
		else
			fprintf(out, "\tsubgraph cluster_%d {\n\t\tlabel=\"layer %d\";\n", layer,
				layer);
		for (size_t i = 0; i < plan->n_tasks; i++)
			if (plan->task[i].layer == layer)
				dot_task(out, plan, i);
		fprintf(out, "\t}\n");
	}
	for (uint32_t i = 0; i < plan->n_tasks; i++) {
		k3i_graph_next(&g, i);
		for (size_t k = 0; k < g.n_pred; k++)
			fprintf(out, "\tt%u -> t%u;\n", g.pred[k], i);
	}
	fprintf(out, "}\n");
	k3i_graph_fini(&g);
	return ferror(out) ? K3_EIO : K3_OK;
}
