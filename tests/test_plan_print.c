/* Numbers, JSON and picture of plans, and the program k3_plan. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "../common/status.h"
#include "../planner/critical_path.h"
#include "../planner/plan_print.h"
#include "plan_case.h"

/* a -> b, c (both read a) -> d overwrites a's slot: after b and c. */
static void
diamond(struct hand *h)
{
	hand_init(h);
	hand_data(h, "a", 0, 0, 2);
	hand_data(h, "b", 1, 1, 3);
	hand_data(h, "c", 2, 2, 3);
	hand_data(h, "d", 0, 3, 4);
	hand_task(h, "make a", "0:W", 1);
	hand_task(h, "make b", "1:W 0:R", 10);
	hand_task(h, "make c", "2:W 0:R", 100);
	hand_task(h, "make d", "3:W 1:R 2:R", 1000);
	hand_task(h, "end", "3:RW", 10000);
}

static char *
written(int (*write)(FILE *, const struct k3_plan *), const struct k3_plan *plan)
{
	char *text = NULL;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);

	cr_assert_not_null(out);
	cr_expect_eq(write(out, plan), K3_OK);
	fclose(out);
	return text;
}

static size_t
count_of(const char *text, const char *part)
{
	size_t n = 0;

	for (; (text = strstr(text, part)); text++)
		n++;
	return n;
}

static void
expect_path(const struct k3_plan *plan, double length_us, size_t n, const uint32_t *task)
{
	struct k3_critical_path path;

	cr_assert_eq(k3_critical_path_init(&path, plan), K3_OK);
	cr_expect_eq(path.length_us, length_us, "%g, expected %g", path.length_us, length_us);
	cr_assert_eq(path.n, n);
	for (size_t i = 0; i < n; i++)
		cr_expect_eq(path.task[i], task[i], "link %zu: task %u, expected %u", i,
			     path.task[i], task[i]);
	k3_critical_path_fini(&path);
}

Test(plan_print, the_longest_chain_goes_through_data_and_slots, .timeout = 60)
{
	struct hand h;

	diamond(&h);
	expect_path(&h.plan, 11101, 4, (uint32_t[]){0, 2, 3, 4});
	h.data[3].slot = 3;
	h.slot[3].bytes = 256;
	h.plan.n_slots = 4;
	h.access[6].datum = 2; /* d no longer reads b; its slot is its own */
	expect_path(&h.plan, 11101, 4, (uint32_t[]){0, 2, 3, 4});
	h.task[1].cost_us = 50000;
	expect_path(&h.plan, 50001, 2, (uint32_t[]){0, 1});
	h.plan.n_tasks = 0;
	expect_path(&h.plan, 0, 0, NULL);
}

Test(plan_print, chains_begin_at_each_task_and_readers_do_not_wait_for_readers, .timeout = 60)
{
	static const double want[] = {11101, 11010, 11100, 11000, 10000};
	double length_us[5];
	struct hand h;

	diamond(&h);
	cr_assert_eq(k3_plan_chains(&h.plan, length_us, NULL), K3_OK);
	for (size_t i = 0; i < 5; i++)
		cr_expect_eq(length_us[i], want[i], "task %zu: %g, expected %g", i, length_us[i],
			     want[i]);
}

Test(plan_print, the_picture_has_every_edge_once, .timeout = 60)
{
	static const char *const edge[] = {"t0 -> t1;", "t0 -> t2;", "t0 -> t3;",
					   "t1 -> t3;", "t2 -> t3;", "t3 -> t4;"};
	struct hand h;

	diamond(&h);
	char *text = written(k3_plan_dot, &h.plan);
	for (size_t i = 0; i < sizeof(edge) / sizeof(edge[0]); i++)
		cr_expect_eq(count_of(text, edge[i]), 1, "%s", edge[i]);
	cr_expect_eq(count_of(text, "->"), sizeof(edge) / sizeof(edge[0]));
	free(text);
}

Test(plan_print, the_picture_has_a_cluster_per_layer_and_a_box_per_task, .timeout = 60)
{
	struct k3_model *model = case_model("cp=2", 1, NULL);
	struct k3_plan *plan = case_plan(model, "100", true);
	char *text = written(k3_plan_dot, plan);

	cr_expect_eq(count_of(text, "subgraph cluster_"), model->config.layers);
	cr_expect_eq(count_of(text, "fillcolor="), plan->n_tasks);
	free(text);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

Test(plan_print, the_json_holds_every_task_with_its_accesses, .timeout = 60)
{
	struct k3_model *model = case_model("dp_shard=2", 1, NULL);
	struct k3_plan *plan = case_plan(model, "100", true);
	char *text = written(k3_plan_json, plan);
	json_error_t error;
	json_t *root = json_loads(text, 0, &error);

	cr_assert_not_null(root, "%s, line %d", error.text, error.line);
	json_t *tasks = json_object_get(root, "tasks");
	cr_expect_eq(json_array_size(tasks), plan->n_tasks);
	cr_expect_eq(json_array_size(json_object_get(root, "data")), plan->n_data);
	cr_expect_eq(json_array_size(json_object_get(root, "slots")), plan->n_slots);
	for (size_t i = 0; i < plan->n_tasks; i++) {
		json_t *data = json_object_get(json_array_get(tasks, i), "data");
		cr_expect_str_eq(
			json_string_value(json_object_get(json_array_get(tasks, i), "name")),
			plan->task[i].name);
		cr_assert_eq(json_array_size(data), plan->task[i].n_access);
		for (uint32_t k = 0; k < plan->task[i].n_access; k++) {
			const struct k3_access *a = &plan->access[plan->task[i].first_access + k];
			static const char *const mode[] = {"", "R", "W", "RW"};
			json_t *pair = json_array_get(data, k);
			cr_expect_eq(json_integer_value(json_array_get(pair, 0)), a->datum);
			cr_expect_str_eq(json_string_value(json_array_get(pair, 1)), mode[a->mode]);
		}
	}
	json_decref(root);
	free(text);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

Test(plan_print, families_and_layers_add_up_to_the_step, .timeout = 60)
{
	struct k3_model *model = case_model("cp=1", 0, NULL);
	struct k3_plan *plan = case_plan(model, "64", true), *end;
	struct k3_plan_stats s;
	struct k3_count by_family = {0}, by_layer = {0};

	cr_assert_eq(k3_plan_optimizer(&end, model, 0), K3_OK);
	cr_assert_eq(k3_plan_stats_init(&s, model), K3_OK);
	cr_assert_eq(k3_plan_stats_add(&s, plan, 3), K3_OK);
	cr_assert_eq(k3_plan_stats_add(&s, end, 1), K3_OK);
	for (int f = 0; f < K3_N_FAMILIES; f++) {
		by_family.n_tasks += s.family[f].n_tasks;
		by_family.flops += s.family[f].flops;
	}
	for (uint32_t l = 0; l <= model->config.layers; l++) {
		by_layer.n_tasks += s.layer[l].n_tasks;
		by_layer.flops += s.layer[l].flops;
	}
	cr_expect_eq(s.total.n_tasks, 3 * plan->n_tasks + end->n_tasks);
	cr_expect_eq(by_family.n_tasks, s.total.n_tasks);
	cr_expect_eq(by_layer.n_tasks, s.total.n_tasks);
	cr_expect_lt(fabs(by_family.flops / s.total.flops - 1), 1e-12);
	cr_expect_lt(fabs(by_layer.flops / s.total.flops - 1), 1e-12);
	/* the head: logits, their two gradients; and the sum of the losses, one flop a row */
	double head = 3 * 3 * 2.0 * 64 * model->config.vocab * model->config.width + 3 * 64;
	cr_expect_eq(s.family[K3_FAMILY_LOSS].flops, head);
	/* four copies of every parameter in fp32 */
	for (int kind = K3_DATA_PARAM; kind <= K3_DATA_EXP_AVG_SQ; kind++)
		cr_expect_eq(s.persist_bytes[kind], 4 * model->params.n_elems);
	k3_plan_stats_fini(&s);
	k3_plan_destroy(end);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

Test(plan_print, the_peak_is_the_most_that_lives_at_one_position, .timeout = 60)
{
	struct hand h;
	struct k3_plan_stats s;

	diamond(&h);
	cr_assert_eq(k3_plan_stats_init(&s, &h.model), K3_OK);
	cr_assert_eq(k3_plan_stats_add(&s, &h.plan, 1), K3_OK);
	/* positions 2 and 3: a, b, c and b, c, d */
	cr_expect_eq(s.peak_all_bytes, 3 * 256);
	cr_expect_eq(s.peak_bytes[K3_DATA_ACT], 3 * 256);
	k3_plan_stats_fini(&s);
}

/* Runs k3_plan; its stdout (malloc'ed) and exit status. */
static char *
run_program(const char *arguments, int *status)
{
	const char *bin = getenv("K3_TEST_BIN");
	char command[512], *text = NULL, line[512];
	size_t bytes;

	cr_assert_not_null(bin, "K3_TEST_BIN names the folder of the programs");
	snprintf(command, sizeof(command), "%s/k3_plan %s 2>/dev/null", bin, arguments);
	FILE *in = popen(command, "r"), *out = open_memstream(&text, &bytes);
	cr_assert(in && out);
	while (fgets(line, sizeof(line), in))
		fputs(line, out);
	fclose(out);
	*status = WEXITSTATUS(pclose(in));
	return text;
}

static void
expect_status(const char *arguments, int want)
{
	int status;

	free(run_program(arguments, &status));
	cr_expect_eq(status, want, "k3_plan %s: status %d, expected %d", arguments, status, want);
}

Test(plan_print, the_program_prints_a_table_and_says_whether_it_fits, .timeout = 60)
{
	int status;
	char *text = run_program(
		"--model tiny --tokens 100 --documents 30,50 --mesh cp=2,dp_shard=2 --memory 1",
		&status);

	cr_expect_eq(status, 0);
	cr_expect_eq(strncmp(text, "table\tname\ttasks\tflops\tbytes\tcost_us\n", 37), 0);
	cr_expect(strstr(text, "\nfits: yes\n"));
	cr_expect(strstr(text, "\nranks\tchecked\t4\t"));
	cr_expect(strstr(text, "\ncomm\tgather_kv\t"));
	/* every line but the verdict has six columns */
	cr_expect_eq(count_of(text, "\t"), 5 * (count_of(text, "\n") - 1));
	free(text);
	text = run_program("--model tiny --tokens 100 --memory 0.001", &status);
	cr_expect_eq(status, 0);
	cr_expect(strstr(text, "\nfits: no\n"));
	free(text);
}

Test(plan_print, the_program_refuses_bad_options_with_status_two, .timeout = 60)
{
	static const char *const bad[] = {
		"",
		"--model nosuch",
		"--model tiny --tokens 0",
		"--model tiny --tokens ten",
		"--model tiny --tokens 1e300",
		"--model tiny --tile-tokens 65",
		"--model tiny --mesh tp=2",
		"--model tiny --documents 10,-1",
		"--model tiny --documents ,",
		"--model tiny --documents 3,",
		"--model tiny --documents 1x",
		"--model tiny --tokens 5 --documents 3,3",
		"--model tiny --memory NaN",
		"--model tiny --memory -1",
		"--model tiny extra",
		"--model tiny --layers 0",
		"--model tiny --tokens 7 --mesh cp=4",
		"--nosuch",
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		expect_status(bad[i], 2);
	expect_status("--help", 0);
	expect_status("--model tiny --dot /nosuch/folder/file", 1);
}
