/* A plan as a picture.  The trap: a payload goes to all later layers, and a slot that is used again
 * orders tasks of far layers: drawn as nodes of their own, those layers would hide the few that are
 * shown.  So each shown task has its own stubs, small, which say where its edges go. */
#include <stdlib.h>
#include <string.h>

#include "../common/colors.h"
#include "../common/status.h"
#include "plan_graph.h"
#include "plan_print.h"

struct picture {
	FILE *out;
	const struct k3_plan *plan;
	struct k3_dot_layers show;
	size_t n_groups;  /* of tasks that are not shown: (layers + 1) x passes */
	uint8_t *in;	  /* [n_groups] edges from a group into the current task: enum link */
	uint32_t *inside; /* [n_tasks] number of a shown task among the shown */
	size_t n_inside;
	uint8_t *leaves; /* [n_inside][n_groups] edges from a shown task into a group */
};

enum link { LINK_NONE, LINK_ORDER, LINK_VALUE };

static bool
shown(const struct picture *p, const struct k3_task *t)
{
	return t->layer >= p->show.first && t->layer <= p->show.last;
}

static size_t
group_of(const struct k3_task *t)
{
	return (size_t)(t->layer + 1) * K3_N_PASSES + t->pass;
}

static void
strengthen(uint8_t *link, bool value)
{
	enum link with = value ? LINK_VALUE : LINK_ORDER;

	if (*link < with)
		*link = (uint8_t)with;
}

static void
put_box(const struct picture *p, size_t i)
{
	const struct k3_task *t = &p->plan->task[i];
	unsigned colour = k3_family_color[k3_op_family((enum k3_op)t->op)];
	unsigned light = 3 * (colour >> 16 & 255) + 6 * (colour >> 8 & 255) + (colour & 255);
	size_t head = strcspn(t->name, ".");
	const char *rest = t->name + head;
	char layer[16];

	/* the cluster says which layer */
	snprintf(layer, sizeof(layer), ".l%d", t->layer);
	if (t->layer >= 0 && strncmp(rest, layer, strlen(layer)) == 0)
		rest += strlen(layer);
	fprintf(p->out,
		"\t\tt%zu [label=\"%.*s%s%s\" fillcolor=\"#%06x\" fontcolor=\"%s\" "
		"tooltip=\"%s\"];\n",
		i, (int)head, t->name, *rest ? "\\n" : "", *rest ? rest + 1 : "", colour,
		light < 10 * 140 ? "white" : "black", t->name);
}

static void
put_cluster(const struct picture *p, int layer)
{
	const struct k3_config *c = &p->plan->model->config;

	if (layer < 0)
		fprintf(p->out, "\tsubgraph outside {\n");
	else
		fprintf(p->out, "\tsubgraph cluster_%d {\n\t\tlabel=\"layer %d (%s, %s)\";\n",
			layer, layer, c->is_mla[layer] ? "MLA" : "KDA",
			k3_layer_is_moe(c, (uint32_t)layer) ? "MoE" : "dense");
	for (size_t i = 0; i < p->plan->n_tasks; i++)
		if (p->plan->task[i].layer == layer)
			put_box(p, i);
	fprintf(p->out, "\t}\n");
}

static void
put_edge(const struct picture *p, const char *from, const char *to, bool value)
{
	fprintf(p->out, "\t%s -> %s%s;\n", from, to,
		value ? "" : " [style=dashed color=\"#999999\"]");
}

static void
task_id(char id[32], uint32_t task)
{
	snprintf(id, 32, "t%u", task);
}

/* The groups that a task is linked to with a strength, a line per pass: "outside, layer 4-7, 9
 * forward". */
static void
put_groups(const struct picture *p, const uint8_t *link, enum link strength)
{
	int layers = (int)p->plan->model->config.layers;

	for (int pass = 0; pass < K3_N_PASSES; pass++) {
		const uint8_t *of = link + pass; /* of layer l: of[(l + 1) * K3_N_PASSES] */
		bool outside = of[0] == strength, any = false;
		if (outside)
			fprintf(p->out, "outside");
		for (int l = 0, last; l < layers; l = last + 1) {
			last = l;
			if (of[(l + 1) * K3_N_PASSES] != strength)
				continue;
			while (last + 1 < layers && of[(last + 2) * K3_N_PASSES] == strength)
				last++;
			fprintf(p->out, "%s%s%d", outside || any ? ", " : "", any ? "" : "layer ",
				l);
			if (last > l)
				fprintf(p->out, "-%d", last);
			any = true;
		}
		if (outside || any)
			fprintf(p->out, " %s\\n", k3_pass_name((enum k3_pass)pass));
	}
}

/* A task's stubs, one for values and one for mere order, with their edges. */
static void
put_stubs(const struct picture *p, uint32_t task, const uint8_t *link, bool out)
{
	for (int strength = LINK_ORDER; strength <= LINK_VALUE; strength++) {
		const char *kind = strength == LINK_VALUE ? "value" : "order";
		char stub[32], id[32];
		if (!memchr(link, strength, p->n_groups))
			continue;
		snprintf(stub, sizeof(stub), "%s_%s%u", kind, out ? "to" : "from", task);
		task_id(id, task);
		/* in the cluster of its task, or it would be drawn far away */
		if (p->plan->task[task].layer >= 0)
			fprintf(p->out, "\tsubgraph cluster_%d { ", p->plan->task[task].layer);
		fprintf(p->out,
			"%s [shape=plaintext style=\"\" fontsize=8 margin=0.02 height=0.1 "
			"fontcolor=\"%s\" label=\"",
			stub, strength == LINK_VALUE ? "black" : "#808080");
		put_groups(p, link, (enum link)strength);
		fprintf(p->out, "\"];%s\n", p->plan->task[task].layer >= 0 ? " }" : "");
		put_edge(p, out ? id : stub, out ? stub : id, strength == LINK_VALUE);
	}
}

/* Edges into a task of the picture. */
static void
put_incoming(struct picture *p, const struct k3i_graph *g, uint32_t task)
{
	char from[32], to[32];

	task_id(to, task);
	memset(p->in, LINK_NONE, p->n_groups);
	for (size_t k = 0; k < g->n_pred; k++) {
		const struct k3_task *before = &p->plan->task[g->pred[k].from];
		if (shown(p, before)) {
			task_id(from, g->pred[k].from);
			put_edge(p, from, to, g->pred[k].value);
		} else {
			strengthen(&p->in[group_of(before)], g->pred[k].value);
		}
	}
	put_stubs(p, task, p->in, false);
}

static void
put_leaving(const struct picture *p)
{
	for (uint32_t i = 0; i < p->plan->n_tasks; i++)
		if (shown(p, &p->plan->task[i]))
			put_stubs(p, i, p->leaves + p->inside[i] * p->n_groups, true);
}

static void
put_legend(const struct picture *p)
{
	bool there[K3_N_FAMILIES] = {false};

	for (size_t i = 0; i < p->plan->n_tasks; i++)
		if (shown(p, &p->plan->task[i]))
			there[k3_op_family((enum k3_op)p->plan->task[i].op)] = true;
	fprintf(p->out, "\tlegend [shape=plaintext style=\"\" label=<<table border=\"0\" "
			"cellborder=\"1\" cellspacing=\"0\">");
	for (int f = 0; f < K3_N_FAMILIES; f++)
		if (there[f])
			fprintf(p->out, "<tr><td bgcolor=\"#%06x\">  </td><td>%s</td></tr>",
				k3_family_color[f], k3_family_name((enum k3_family)f));
	fprintf(p->out, "<tr><td>&#8212; &#8594;</td><td>value</td></tr>"
			"<tr><td>- - &#8594;</td><td>order only</td></tr></table>>];\n");
}

static int
picture_init(struct picture *p, FILE *out, const struct k3_plan *plan,
	     const struct k3_dot_layers *layers)
{
	int last = (int)plan->model->config.layers - 1;

	*p = (struct picture){
		.out = out,
		.plan = plan,
		.show = layers ? *layers : (struct k3_dot_layers){-1, last},
		.n_groups = (size_t)(last + 2) * K3_N_PASSES,
	};
	p->in = malloc(p->n_groups);
	p->inside = malloc((plan->n_tasks + 1) * sizeof(*p->inside));
	if (!p->in || !p->inside)
		return K3_ENOMEM;
	for (size_t i = 0; i < plan->n_tasks; i++)
		if (shown(p, &plan->task[i]))
			p->inside[i] = (uint32_t)p->n_inside++;
	/* nothing leaves a picture of everything */
	if (p->n_inside < plan->n_tasks)
		p->leaves = calloc(p->n_inside * p->n_groups + 1, 1);
	return p->leaves || p->n_inside == plan->n_tasks ? K3_OK : K3_ENOMEM;
}

static void
picture_fini(struct picture *p)
{
	free(p->in);
	free(p->inside);
	free(p->leaves);
}

int
k3_plan_dot(FILE *out, const struct k3_plan *plan, const struct k3_dot_layers *layers)
{
	struct k3i_graph g = {0};
	struct picture p;
	int ret = K3_OK;

	K3_TRY(picture_init(&p, out, plan, layers));
	K3_TRY(k3i_graph_init(&g, plan));
	fprintf(out, "digraph plan {\n"
		     "\tgraph [fontname=\"sans-serif\" nodesep=0.15 ranksep=0.35];\n"
		     "\tnode [shape=box style=filled fontname=\"sans-serif\" fontsize=11 "
		     "margin=\"0.08,0.04\" height=0.3];\n"
		     "\tedge [arrowsize=0.6];\n");
	for (int layer = p.show.first; layer <= p.show.last; layer++)
		put_cluster(&p, layer);
	for (uint32_t i = 0; i < plan->n_tasks; i++) {
		k3i_graph_next(&g, i);
		if (shown(&p, &plan->task[i])) {
			put_incoming(&p, &g, i);
			continue;
		}
		for (size_t k = 0; k < g.n_pred; k++)
			if (shown(&p, &plan->task[g.pred[k].from]))
				strengthen(&p.leaves[p.inside[g.pred[k].from] * p.n_groups +
						     group_of(&plan->task[i])],
					   g.pred[k].value);
	}
	if (p.leaves)
		put_leaving(&p);
	put_legend(&p);
	fprintf(out, "}\n");
	if (ferror(out))
		ret = K3_EIO;
out:
	k3i_graph_fini(&g);
	picture_fini(&p);
	return ret;
}
