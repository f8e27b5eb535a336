/* Edges from accesses.  The trap: two data in one slot are ordered although no task names both, and
 * control-only tasks have edges only through what they write. */
#include "plan_graph.h"

#include <stdlib.h>
#include <string.h>

#include "../common/status.h"

struct handle_state {
	uint32_t writer;  /* last task that wrote + 1 */
	uint32_t datum;	  /* what it wrote */
	uint32_t readers; /* chain of readers since, index + 1 */
};

struct reader {
	uint32_t task, next;
};

struct mark {
	uint32_t task; /* task + 1 that has it as a predecessor */
	uint32_t at;   /* index in pred */
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
	const struct k3_datum *data = g->plan->data;
	int32_t slot = data[datum].slot;

	return &g->handle[slot < 0 ? k3_datum_leader(data, datum)
				   : g->plan->model->n_persist + (size_t)slot];
}

static void
add_pred(struct k3i_graph *g, uint32_t task, uint32_t before, bool value)
{
	if (before == task)
		return;
	if (g->mark[before].task == task + 1) {
		g->pred[g->mark[before].at].value |= value;
		return;
	}
	g->mark[before] = (struct mark){task + 1, (uint32_t)g->n_pred};
	g->pred[g->n_pred++] = (struct k3i_edge){before, value};
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
			add_pred(g, task, h->writer - 1,
				 (a[k].mode & K3_R) && h->datum == a[k].datum);
		for (uint32_t r = (a[k].mode & K3_W) ? h->readers : 0; r; r = g->reader[r - 1].next)
			add_pred(g, task, g->reader[r - 1].task, false);
	}
	for (uint32_t k = 0; k < t->n_access; k++) {
		struct handle_state *h = handle_of(g, a[k].datum);
		if (a[k].mode & K3_W) {
			*h = (struct handle_state){task + 1, a[k].datum, 0};
		} else {
			g->reader[g->n_readers++] = (struct reader){task, h->readers};
			h->readers = (uint32_t)g->n_readers;
		}
	}
}
