/* Pictures of plans.  The edges that they must show are derived here anew, pair by pair, from the
 * accesses alone. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../common/colors.h"
#include "../common/status.h"
#include "../planner/plan_print.h"
#include "fixture.h"
#include "plan_case.h"

enum link { NONE, ORDER, VALUE };

/* Links of all pairs of tasks: link[from * n + to]. */
struct links {
	size_t n;
	uint8_t *link;
};

static bool
same_place(const struct k3_plan *plan, uint32_t a, uint32_t b)
{
	int32_t slot_a = plan->data[a].slot, slot_b = plan->data[b].slot;

	return a == b || (slot_a >= 0 && slot_a == slot_b);
}

/* How a task uses the place of a datum: 0 or enum k3_mode bits. */
static int
use_of(const struct k3_plan *plan, const struct k3_task *t, uint32_t datum)
{
	int mode = 0;

	for (uint32_t k = 0; k < t->n_access; k++)
		if (same_place(plan, plan->access[t->first_access + k].datum, datum))
			mode |= plan->access[t->first_access + k].mode;
	return mode;
}

/* Looks back from every access: up to and with the last task that wrote the place. */
static struct links
derive(const struct k3_plan *plan)
{
	struct links l = {plan->n_tasks, calloc(plan->n_tasks * plan->n_tasks + 1, 1)};

	cr_assert_not_null(l.link);
	for (size_t to = 0; to < plan->n_tasks; to++) {
		const struct k3_task *t = &plan->task[to];
		for (uint32_t k = 0; k < t->n_access; k++) {
			const struct k3_access *a = &plan->access[t->first_access + k];
			for (size_t from = to; from-- > 0;) {
				int mode = use_of(plan, &plan->task[from], a->datum);
				uint8_t *link = &l.link[from * l.n + to];
				if (mode && ((mode | a->mode) & K3_W) && *link == NONE)
					*link = ORDER;
				if ((mode & K3_W) && (a->mode & K3_R))
					*link = VALUE;
				if (mode & K3_W)
					break;
			}
		}
	}
	return l;
}

static char *
drawn(const struct k3_plan *plan, const struct k3_dot_layers *layers)
{
	char *text = NULL;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);

	cr_assert_not_null(out);
	cr_expect_eq(k3_plan_dot(out, plan, layers), K3_OK);
	fclose(out);
	return text;
}

/* The line that begins with these words, or NULL. */
static const char *
line_of(const char *text, const char *words)
{
	size_t n = strlen(words);

	for (; text; text = strchr(text, '\n')) {
		text += strspn(text, "\n\t");
		if (strncmp(text, words, n) == 0)
			return text;
	}
	return NULL;
}

static bool
line_holds(const char *line, const char *part)
{
	const char *at = strstr(line, part);

	return at && at < line + strcspn(line, "\n");
}

/* Edges between tasks of the picture: all that there must be, of the right kind, and no others. */
static void
expect_edges(const struct k3_plan *plan, const char *text, int first, int last)
{
	struct links l = derive(plan);
	size_t got = 0;

	for (const char *at = text; at; at = strchr(at, '\n')) {
		unsigned from, to;
		at += strspn(at, "\n\t");
		if (sscanf(at, "t%u -> t%u", &from, &to) != 2)
			continue;
		got++;
		cr_assert(from < l.n && to < l.n);
		uint8_t *link = &l.link[from * l.n + to];
		cr_expect_neq(*link, NONE, "t%u -> t%u: drawn twice, or no edge", from, to);
		cr_expect_eq(line_holds(at, "style=dashed"), *link == ORDER, "t%u -> t%u", from,
			     to);
		*link = NONE;
	}
	for (size_t from = 0; from < l.n; from++)
		for (size_t to = 0; to < l.n; to++) {
			int a = plan->task[from].layer, b = plan->task[to].layer;
			if (a >= first && a <= last && b >= first && b <= last)
				cr_expect_eq(l.link[from * l.n + to], NONE, "%s -> %s is missing",
					     plan->task[from].name, plan->task[to].name);
		}
	cr_expect_gt(got, 0);
	free(l.link);
}

/* a -> b, c (both read a) -> d overwrites a's slot: after b and c. */
Test(plan_dot, values_are_solid_and_the_reuse_of_a_place_is_dashed, .timeout = 60)
{
	static const char *const edge[] = {
		"t0 -> t1;", "t0 -> t2;", "t0 -> t3 [style=dashed", "t1 -> t3;",
		"t2 -> t3;", "t3 -> t4;", "t2 -> t5 [style=dashed", "t3 -> t5 [style=dashed",
	};
	struct hand h;

	hand_init(&h);
	hand_data(&h, "a", 0, 0, 2);
	hand_data(&h, "b", 1, 1, 3);
	hand_data(&h, "c", 2, 2, 3);
	hand_data(&h, "d", 0, 3, 4);
	hand_data(&h, "e", 2, 5, 5);
	hand_task(&h, "make a", "0:W", 1);
	hand_task(&h, "make b", "1:W 0:R", 1);
	hand_task(&h, "make c", "2:W 0:R", 1);
	hand_task(&h, "make d", "3:W 1:R 2:R", 1);
	hand_task(&h, "end", "3:RW", 1);
	hand_task(&h, "make e", "4:W", 1);
	char *text = drawn(&h.plan, NULL);
	for (size_t i = 0; i < sizeof(edge) / sizeof(edge[0]); i++)
		cr_expect_eq(fixture_count(text, edge[i]), 1, "%s", edge[i]);
	expect_edges(&h.plan, text, -1, -1);
	free(text);
}

/* Tasks that only communicate or only load: edges come from what they write, or there are none. */
Test(plan_dot, a_task_without_data_is_drawn_without_edges, .timeout = 60)
{
	struct hand h;

	hand_init(&h);
	hand_data(&h, "a", 0, 0, 2);
	hand_group(&h, 2, (uint32_t[]){0, 1});
	hand_task(&h, "load", "0:W", 1);
	hand_comm(&h, K3_OP_ALLREDUCE, 0, -1, 1);
	hand_task(&h, "use", "0:R", 1);
	char *text = drawn(&h.plan, NULL);
	cr_expect_eq(fixture_count(text, "\tt1 [label=\"allreduce\""), 1);
	cr_expect_eq(fixture_count(text, "->"), 1);
	cr_expect_eq(fixture_count(text, "t0 -> t2;"), 1);
	free(text);
}

static void
expect_whole(struct k3_plan *plan)
{
	char *text = drawn(plan, NULL);

	expect_edges(plan, text, -1, (int)plan->model->config.layers - 1);
	cr_expect_eq(fixture_count(text, "subgraph cluster_"), plan->model->config.layers);
	cr_expect_eq(fixture_count(text, "fillcolor="), plan->n_tasks);
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		char box[64];
		snprintf(box, sizeof(box), "t%zu [label=\"%s", i, k3_op_name((enum k3_op)t->op));
		const char *line = line_of(text, box);
		cr_assert_not_null(line, "%s", box);
		snprintf(box, sizeof(box), "fillcolor=\"#%06x\"",
			 k3_family_color[k3_op_family((enum k3_op)t->op)]);
		cr_expect(line_holds(line, box), "task %zu: %s", i, box);
	}
	free(text);
	k3_plan_destroy(plan);
}

Test(plan_dot, every_edge_of_every_plan_of_a_step_is_there_once, .timeout = 60)
{
	struct k3_plan_options o;
	struct k3_plan *plan;

	k3_plan_options_init(&o);
	o.tile_tokens = 64;
	struct k3_model *model = case_model("cp=2,dp_shard=2", 1, &o);
	expect_whole(case_plan(model, "90 -20 100", true));
	expect_whole(case_plan(model, "90 -20 100", false));
	cr_assert_eq(k3_plan_optimizer(&plan, model, 0), K3_OK);
	expect_whole(plan);
	cr_assert_eq(k3_plan_init(&plan, model, 1, false), K3_OK);
	char *text = drawn(plan, NULL);
	/* initial values depend on nothing, but for experts that share a block */
	cr_expect_eq(fixture_count(text, "fillcolor="), plan->n_tasks);
	free(text);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

/* The text of a stub, "outside, layer 0-2, 4 forward\nlayer 3 backward\n", as a table. */
static void
read_stub(const char *line, uint8_t *groups, size_t n_groups)
{
	const char *at = strstr(line, "label=\"") + 7;

	memset(groups, 0, n_groups);
	while (*at != '"') {
		const char *end = strstr(at, "\\n");
		int pass = -1;
		cr_assert(end && end < at + strcspn(at, "\n"));
		for (int p = 0; p < K3_N_PASSES; p++) {
			const char *name = k3_pass_name((enum k3_pass)p);
			if (strncmp(end - strlen(name), name, strlen(name)) == 0)
				pass = p;
		}
		cr_assert_geq(pass, 0, "%.80s", line);
		if (strncmp(at, "outside", 7) == 0)
			groups[pass] = 1;
		for (const char *digit = at; digit < end; digit++) {
			int a, b, n = 0;
			if (*digit < '0' || *digit > '9')
				continue;
			if (sscanf(digit, "%d-%d%n", &a, &b, &n) != 2 || n == 0) {
				cr_assert_eq(sscanf(digit, "%d%n", &a, &n), 1);
				b = a;
			}
			for (int l = a; l <= b; l++)
				groups[(l + 1) * K3_N_PASSES + pass] = 1;
			digit += n - 1;
		}
		at = end + 2;
	}
}

/* What the stubs of a task must say, from the derived links. */
static void
expect_stub(const struct k3_plan *plan, const struct links *l, const char *text, size_t task,
	    const struct k3_dot_layers *show, enum link strength, bool out)
{
	size_t n_groups = (plan->model->config.layers + 1) * K3_N_PASSES;
	uint8_t want[128] = {0}, got[128] = {0};
	char words[64];

	cr_assert_leq(n_groups, sizeof(want));
	for (size_t i = 0; i < l->n; i++) {
		const struct k3_task *t = &plan->task[i];
		uint8_t link = out ? l->link[task * l->n + i] : l->link[i * l->n + task];
		size_t group = (size_t)(t->layer + 1) * K3_N_PASSES + t->pass;
		if ((t->layer < show->first || t->layer > show->last) && link > want[group])
			want[group] = link;
	}
	for (size_t i = 0; i < n_groups; i++)
		want[i] = want[i] == strength;
	snprintf(words, sizeof(words), "subgraph cluster_%d { %s_%s%zu ", plan->task[task].layer,
		 strength == VALUE ? "value" : "order", out ? "to" : "from", task);
	const char *line = line_of(text, words);
	if (line)
		read_stub(line, got, n_groups);
	cr_expect_arr_eq(got, want, n_groups, "%s%s", words, line ? "" : ": no such stub");
	snprintf(words, sizeof(words), out ? "t%zu -> %s_to%zu" : "%2$s_from%1$zu -> t%1$zu", task,
		 strength == VALUE ? "value" : "order", task);
	cr_expect_eq(line_of(text, words) != NULL, line != NULL, "%s", words);
}

static void
expect_layers(const struct k3_plan *plan, int first, int last)
{
	struct k3_dot_layers show = {first, last};
	char *text = drawn(plan, &show);
	struct links l = derive(plan);
	size_t boxes = 0;

	expect_edges(plan, text, first, last);
	for (size_t i = 0; i < plan->n_tasks; i++) {
		if (plan->task[i].layer < first || plan->task[i].layer > last)
			continue;
		boxes++;
		for (int strength = ORDER; strength <= VALUE; strength++) {
			expect_stub(plan, &l, text, i, &show, (enum link)strength, false);
			expect_stub(plan, &l, text, i, &show, (enum link)strength, true);
		}
	}
	cr_expect_eq(fixture_count(text, "fillcolor="), boxes);
	cr_expect_gt(boxes, 0);
	free(l.link);
	free(text);
}

Test(plan_dot, a_picture_of_some_layers_has_their_tasks_and_a_stub_for_every_edge_that_leaves,
     .timeout = 60)
{
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	o.tile_tokens = 64;
	struct k3_model *model = case_model("cp=2", 1, &o);
	struct k3_plan *plan = case_plan(model, "90 -20 100", true);
	expect_layers(plan, 0, 0);
	expect_layers(plan, 1, 3);
	expect_layers(plan, 4, 4);
	expect_layers(plan, 0, 4);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

Test(plan_dot, families_have_colours_apart_and_none_is_the_red_of_idle_workers, .timeout = 60)
{
	for (int i = 0; i < K3_N_FAMILIES; i++) {
		int r = k3_family_color[i] >> 16 & 255, g = k3_family_color[i] >> 8 & 255,
		    b = k3_family_color[i] & 255;
		cr_expect_gt((255 - r) * (255 - r) + g * g + b * b, 100 * 100, "%s",
			     k3_family_name((enum k3_family)i));
		for (int k = 0; k < i; k++) {
			int dr = r - (int)(k3_family_color[k] >> 16 & 255),
			    dg = g - (int)(k3_family_color[k] >> 8 & 255),
			    db = b - (int)(k3_family_color[k] & 255);
			cr_expect_gt(dr * dr + dg * dg + db * db, 40 * 40, "%s and %s",
				     k3_family_name((enum k3_family)i),
				     k3_family_name((enum k3_family)k));
		}
	}
}
