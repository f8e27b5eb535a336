/* The schedule of a plan on paper.  Two heaps: tasks that are ready, by priority, and workers that
 * are busy, by the time at which they are free.  The trap: at equal times all that end must end
 * before anything starts, or a task of higher priority comes too late. */
#include "estimate.h"

#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "critical_path.h"
#include "plan_graph.h"

/* Successors of task i: next[first[i]] .. next[first[i + 1] - 1]. */
struct edges {
	uint32_t *first, *next;
	uint32_t *open; /* predecessors that have not ended */
};

struct item {
	double key; /* least first */
	uint32_t task;
};

struct heap {
	struct item *item;
	size_t n;
};

static bool
before(const struct item *a, const struct item *b)
{
	return a->key < b->key || (!(b->key < a->key) && a->task < b->task);
}

static void
push(struct heap *h, struct item x)
{
	size_t i = h->n++;

	for (; i > 0 && before(&x, &h->item[(i - 1) / 2]); i = (i - 1) / 2)
		h->item[i] = h->item[(i - 1) / 2];
	h->item[i] = x;
}

static struct item
pop(struct heap *h)
{
	struct item top = h->item[0], x = h->item[--h->n];
	size_t i = 0;

	for (;;) {
		size_t c = 2 * i + 1;
		if (c >= h->n)
			break;
		if (c + 1 < h->n && before(&h->item[c + 1], &h->item[c]))
			c++;
		if (!before(&h->item[c], &x))
			break;
		h->item[i] = h->item[c];
		i = c;
	}
	h->item[i] = x;
	return top;
}

static void
edges_fini(struct edges *e)
{
	free(e->first);
	free(e->next);
	free(e->open);
}

/* One walk counts, a second one fills: the edges of a large plan are not held twice. */
static int
edges_init(struct edges *e, const struct k3_plan *plan)
{
	struct k3i_graph g = {0};
	uint32_t n = (uint32_t)plan->n_tasks;
	int ret;

	memset(e, 0, sizeof(*e));
	e->first = calloc((size_t)n + 2, sizeof(*e->first));
	e->open = malloc(((size_t)n + 1) * sizeof(*e->open));
	K3_TRY(e->first && e->open ? K3_OK : K3_ENOMEM);
	K3_TRY(k3i_graph_init(&g, plan));
	for (uint32_t i = 0; i < n; i++) {
		k3i_graph_next(&g, i);
		e->open[i] = (uint32_t)g.n_pred;
		for (size_t k = 0; k < g.n_pred; k++)
			e->first[g.pred[k].from + 2]++;
	}
	k3i_graph_fini(&g);
	for (uint32_t i = 1; i <= n; i++)
		e->first[i + 1] += e->first[i];
	e->next = malloc(((size_t)e->first[n + 1] + 1) * sizeof(*e->next));
	K3_TRY(e->next ? K3_OK : K3_ENOMEM);
	K3_TRY(k3i_graph_init(&g, plan));
	for (uint32_t i = 0; i < n; i++) {
		k3i_graph_next(&g, i);
		for (size_t k = 0; k < g.n_pred; k++)
			e->next[e->first[g.pred[k].from + 1]++] = i;
	}
out:
	k3i_graph_fini(&g);
	return ret;
}

/* Time at which the last task ends. */
static double
schedule(const struct k3_plan *plan, struct edges *e, struct heap *ready, struct heap *busy,
	 uint32_t workers)
{
	double now = 0;

	for (uint32_t i = 0; i < plan->n_tasks; i++)
		if (e->open[i] == 0)
			push(ready, (struct item){-plan->task[i].priority, i});
	while (ready->n > 0 || busy->n > 0) {
		while (ready->n > 0 && busy->n < workers) {
			uint32_t task = pop(ready).task;
			push(busy, (struct item){now + plan->task[task].cost_us, task});
		}
		now = busy->item[0].key;
		while (busy->n > 0 && busy->item[0].key <= now) {
			uint32_t task = pop(busy).task;
			for (uint32_t k = e->first[task]; k < e->first[task + 1]; k++) {
				uint32_t next = e->next[k];
				if (--e->open[next] == 0)
					push(ready,
					     (struct item){-plan->task[next].priority, next});
			}
		}
	}
	return now;
}

int
k3_plan_estimate(struct k3_estimate *estimate, const struct k3_plan *plan, uint32_t workers)
{
	struct edges e = {0};
	struct heap ready = {0}, busy = {0};
	double *chain_us = calloc(plan->n_tasks + 1, sizeof(*chain_us));
	int ret;

	memset(estimate, 0, sizeof(*estimate));
	ready.item = malloc((plan->n_tasks + 1) * sizeof(*ready.item));
	busy.item = malloc((plan->n_tasks + 1) * sizeof(*busy.item));
	K3_TRY(chain_us && ready.item && busy.item ? K3_OK : K3_ENOMEM);
	K3_TRY(k3_plan_chains(plan, chain_us, NULL));
	K3_TRY(edges_init(&e, plan));
	estimate->n_tasks = plan->n_tasks;
	estimate->makespan_us = schedule(plan, &e, &ready, &busy, workers);
	for (size_t i = 0; i < plan->n_tasks; i++) {
		estimate->work_us += plan->task[i].cost_us;
		if (chain_us[i] > estimate->critical_us)
			estimate->critical_us = chain_us[i];
	}
	if (plan->n_tasks > 0) {
		estimate->mean_task_us = estimate->work_us / (double)plan->n_tasks;
		estimate->idle_share = 1 - estimate->work_us / (workers * estimate->makespan_us);
	}
	if (estimate->idle_share < 0)
		estimate->idle_share = 0; /* rounding of the sums */
out:
	edges_fini(&e);
	free(ready.item);
	free(busy.item);
	free(chain_us);
	return ret;
}
