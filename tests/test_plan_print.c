/* Numbers of plans, their report, table and JSON.  Expected values are closed forms over the
 * configuration, and plans made by hand. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../common/status.h"
#include "../planner/critical_path.h"
#include "../planner/mesh.h"
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

/* Numbers of a task and a datum that the JSON must carry. */
Test(plan_print, the_json_is_complete, .timeout = 60)
{
	struct k3_model *model = case_model("dp_shard=2", 1, NULL);
	struct k3_plan *plan = case_plan(model, "100", true);
	char *text = written(k3_plan_json, plan);
	json_t *root = json_loads(text, 0, NULL);
	size_t edges = 0, later = 0;

	cr_assert_not_null(root);
	json_t *tasks = json_object_get(root, "tasks"), *data = json_object_get(root, "data");
	cr_expect_str_eq(json_string_value(json_object_get(root, "plan")), "first");
	cr_expect_eq(json_array_size(json_object_get(root, "tiles")), plan->n_tiles);
	cr_expect_eq(json_array_size(json_object_get(root, "parameters")), model->params.n);
	cr_expect_eq(json_array_size(json_object_get(root, "communicators")), plan->n_comms);
	for (size_t i = 0; i < plan->n_tasks; i++) {
		json_t *t = json_array_get(tasks, i), *after = json_object_get(t, "after");
		cr_expect_str_eq(json_string_value(json_object_get(t, "pass")),
				 k3_pass_name((enum k3_pass)plan->task[i].pass));
		cr_expect_eq(json_object_get(t, "comm") != NULL, plan->task[i].comm >= 0);
		cr_expect_eq(json_real_value(json_object_get(t, "priority")) +
				     (double)json_integer_value(json_object_get(t, "priority")),
			     plan->task[i].priority);
		edges += json_array_size(after);
		for (size_t k = 0; k < json_array_size(after); k++)
			later += (size_t)json_integer_value(json_array_get(after, k)) >= i;
	}
	cr_expect_gt(edges, plan->n_tasks);
	cr_expect_eq(later, 0);
	for (size_t i = 0; i < plan->n_data; i++) {
		json_t *d = json_array_get(data, i);
		cr_expect_eq(json_integer_value(json_object_get(d, "bytes")),
			     (json_int_t)plan->data[i].bytes);
		cr_expect_eq(json_integer_value(json_object_get(d, "rows")),
			     (json_int_t)plan->data[i].rows);
		cr_expect_eq(json_integer_value(json_object_get(d, "slot")), plan->data[i].slot);
		cr_expect_str_eq(json_string_value(json_object_get(d, "what")), plan->data[i].what);
	}
	json_t *path = json_object_get(root, "critical_path");
	double sum = 0;
	for (size_t i = 0; i < json_array_size(path); i++)
		sum += plan->task[json_integer_value(json_array_get(path, i))].cost_us;
	cr_expect_lt(fabs(sum / json_number_value(json_object_get(root, "critical_us")) - 1), 1e-8);
	json_decref(root);
	free(text);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

/* A step of three microbatches on one rank, counted. */
struct step {
	struct k3_model *model;
	struct k3_plan_stats stats;
	struct k3_memory_use memory;
	size_t n_tasks;
};

static void
count_plan(struct step *s, struct k3_plan *plan, uint64_t times)
{
	cr_assert_eq(k3_plan_stats_add(&s->stats, plan, times), K3_OK);
	cr_assert_eq(k3_memory_use_add(&s->memory, plan), K3_OK);
	s->n_tasks += times * plan->n_tasks;
	k3_plan_destroy(plan);
}

static struct step
count_step(const char *mesh, const char *documents)
{
	struct step s = {.model = case_model(mesh, 0, NULL)};
	struct k3_plan *end;

	cr_assert_eq(k3_plan_stats_init(&s.stats, s.model), K3_OK);
	k3_memory_use_init(&s.memory, s.model);
	count_plan(&s, case_plan(s.model, documents, true), 1);
	count_plan(&s, case_plan(s.model, documents, false), 2);
	cr_assert_eq(k3_plan_optimizer(&end, s.model, 0), K3_OK);
	count_plan(&s, end, 1);
	return s;
}

static void
step_fini(struct step *s)
{
	k3_plan_stats_fini(&s->stats);
	k3_memory_use_fini(&s->memory);
	k3_model_destroy(s->model);
}

static void
add_count(struct k3_count *sum, const struct k3_count *c)
{
	sum->n_tasks += c->n_tasks;
	sum->flops += c->flops;
	sum->bytes += c->bytes;
	sum->cost_us += c->cost_us;
	sum->critical_tasks += c->critical_tasks;
	sum->critical_us += c->critical_us;
}

static void
expect_same(const char *what, const struct k3_count *got, const struct k3_count *want)
{
	cr_expect_eq(got->n_tasks, want->n_tasks, "%s", what);
	cr_expect_eq(got->critical_tasks, want->critical_tasks, "%s", what);
	cr_expect_lt(fabs(got->flops / want->flops - 1), 1e-12, "%s", what);
	cr_expect_lt(fabs(got->bytes / want->bytes - 1), 1e-12, "%s", what);
	cr_expect_lt(fabs(got->cost_us / want->cost_us - 1), 1e-12, "%s", what);
	cr_expect_lt(fabs(got->critical_us / want->critical_us - 1), 1e-12, "%s", what);
}

Test(plan_print, families_passes_and_layers_add_up_to_the_step, .timeout = 60)
{
	struct step s = count_step("cp=1", "64");
	struct k3_count family = {0}, pass = {0}, layer = {0};
	double path_us = 0;

	for (int f = 0; f < K3_N_FAMILIES; f++)
		add_count(&family, &s.stats.family[f]);
	for (int p = 0; p < K3_N_PASSES; p++)
		add_count(&pass, &s.stats.pass[p]);
	for (uint32_t l = 0; l <= s.model->config.layers; l++)
		add_count(&layer, &s.stats.layer[l]);
	cr_expect_eq(s.stats.total.n_tasks, s.n_tasks);
	expect_same("families", &family, &s.stats.total);
	expect_same("passes", &pass, &s.stats.total);
	expect_same("layers", &layer, &s.stats.total);
	for (size_t i = 0; i < s.stats.n_path; i++)
		path_us +=
			(double)s.stats.plan[s.stats.path[i].plan].times * s.stats.path[i].cost_us;
	cr_expect_lt(fabs(path_us / s.stats.total.critical_us - 1), 1e-12);
	step_fini(&s);
}

/* model.md 2-6 by hand: every matrix product of t tokens takes 2 t rows cols, and twice that again
 * for its two gradients. */
Test(plan_print, the_products_of_a_layer_are_counted_as_by_hand, .timeout = 60)
{
	enum { T = 64, STEP = 3 };
	struct step s = count_step("cp=1", "64");
	const struct k3_config *c = &s.model->config;
	double d = c->width, p = (double)c->kda_heads * c->kda_dim, k = c->kda_dim,
	       h = c->kda_heads;
	double proj = 3 * d * p, gate = d * k + k * p + d * h + d * p, out = p * d,
	       dense = 3 * d * c->dense_ffn, head = (double)c->vocab * d;
	struct k3_plan *plan = case_plan(s.model, "64", true);
	double kda = 0;

	cr_assert_not(c->is_mla[0]);
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		const char *name = k3_op_name((enum k3_op)t->op);
		if (t->layer == 0 &&
		    (!strncmp(name, "kda_proj", 8) || !strncmp(name, "kda_gate", 8) ||
		     !strncmp(name, "kda_out", 7)))
			kda += t->flops;
	}
	cr_expect_eq(kda, 3 * 2.0 * T * (proj + gate + out));
	/* the dense feed-forward part is layer 0's alone; shared experts are in the same family */
	double shared = 3 * d * (double)c->shared_experts * c->expert_ffn * (c->layers - 1);
	cr_assert_eq(c->first_dense, 1);
	cr_expect_eq(s.stats.family[K3_FAMILY_GLU].flops, STEP * 3 * 2.0 * T * (dense + shared));
	/* logits, their two gradients; and the sum of the losses, one flop a row */
	cr_expect_eq(s.stats.family[K3_FAMILY_LOSS].flops, STEP * (3 * 2.0 * T * head + T));
	k3_plan_destroy(plan);
	step_fini(&s);
}

/* model.md 1.2 by hand, for the first layer: KDA and a dense feed-forward part, without the mixer
 * before its attention. */
Test(plan_print, the_parameters_of_a_layer_take_the_bytes_counted_by_hand, .timeout = 60)
{
	struct step s = count_step("cp=1", "64");
	const struct k3_config *c = &s.model->config;
	size_t d = c->width, h = c->kda_heads, k = c->kda_dim, p = h * k, bytes = 0;
	size_t attention = 3 * p * d + 3 * p * c->conv_taps + k * d + p * k + h * d + p * d + k +
			   d * p + h + p;
	size_t want = attention + 2 * d /* norms */ + 2 * d /* mixer */ + 3 * d * c->dense_ffn;

	for (uint32_t i = 0; i < s.model->n_persist; i++)
		if (s.model->persist[i].kind == K3_DATA_PARAM && s.model->persist[i].layer == 0)
			bytes += s.model->persist[i].bytes;
	cr_expect_eq(bytes, 4 * want, "%zu bytes, expected %zu", bytes, 4 * want);
	for (int kind = K3_DATA_PARAM; kind <= K3_DATA_EXP_AVG_SQ; kind++)
		cr_expect_eq(s.memory.persist_bytes[kind], 4 * s.model->params.n_elems);
	step_fini(&s);
}

/* The latents are what two cp ranks hand over; parameters travel among all four. */
Test(plan_print, communication_is_counted_per_communicator, .timeout = 60)
{
	struct step s = count_step("cp=2,dp_shard=2", "256");
	const struct k3_config *c = &s.model->config;
	uint32_t mla = 0;
	bool shard = false, kv = false;

	for (uint32_t l = 0; l < c->layers; l++)
		mla += c->is_mla[l];
	for (size_t i = 0; i < s.stats.n_comms; i++) {
		const struct k3_comm_count *n = &s.stats.comm[i];
		cr_expect_eq(n->bytes, (n->op == K3_OP_ALLREDUCE ? n->bytes : 4 * n->elems));
		if (n->op == K3_OP_GATHER_PARAMS) {
			/* dp_shard x cp is the whole mesh */
			shard = true;
			cr_expect_str_eq(n->comm, "world");
			cr_expect_eq(n->n_members, 4);
		}
		if (n->op != K3_OP_GATHER_KV)
			continue;
		kv = true;
		cr_expect_str_eq(n->comm, "cp0");
		cr_expect_eq(n->n_members, 2);
		/* three microbatches; each rank in turn gives the latents of its 128 rows */
		cr_expect_eq(n->n_tasks, 3 * mla * 2);
		cr_expect_eq(n->elems, 3 * mla * 2 * 128 * (c->kv_rank + c->rope_dim));
	}
	cr_expect(shard && kv);
	step_fini(&s);
}

Test(plan_print, the_high_water_mark_is_the_most_that_lives_at_one_position, .timeout = 60)
{
	struct hand h;
	struct k3_memory_use use;

	diamond(&h);
	k3_memory_use_init(&use, &h.model);
	cr_assert_eq(k3_memory_use_add(&use, &h.plan), K3_OK);
	/* positions 2 and 3: a, b, c and b, c, d */
	cr_expect_eq(use.peak_all_bytes, 3 * 256);
	cr_expect_eq(use.peak_bytes[K3_DATA_ACT], 3 * 256);
	k3_memory_use_fini(&use);
}

Test(plan_print, a_slot_counts_for_the_kind_that_holds_it_longest, .timeout = 60)
{
	struct hand h;
	struct k3_memory_use use;

	diamond(&h);
	h.slot[1].ordinal = 1;
	h.slot[2].ordinal = 2;
	h.data[3].kind = K3_DATA_WORK; /* two positions of slot 0; a has three */
	h.data[1].kind = K3_DATA_INPUT;
	k3_memory_use_init(&use, &h.model);
	cr_assert_eq(k3_memory_use_add(&use, &h.plan), K3_OK);
	cr_expect_eq(use.slot_bytes[K3_DATA_ACT], 2 * 256);
	cr_expect_eq(use.slot_bytes[K3_DATA_INPUT], 256);
	cr_expect_eq(use.slot_bytes[K3_DATA_WORK], 0);
	k3_memory_use_fini(&use);
	h.data[0].last_pos = 0;
	k3_memory_use_init(&use, &h.model);
	cr_assert_eq(k3_memory_use_add(&use, &h.plan), K3_OK);
	cr_expect_eq(use.slot_bytes[K3_DATA_ACT], 256);
	cr_expect_eq(use.slot_bytes[K3_DATA_WORK], 256);
	k3_memory_use_fini(&use);
}

Test(plan_print, slots_by_kind_add_up_to_the_bound, .timeout = 60)
{
	struct step s = count_step("cp=1", "100 30");
	uint64_t slots = 0, persist = 0;

	for (int k = 0; k < K3_N_DATA_KINDS; k++) {
		slots += s.memory.slot_bytes[k];
		persist += s.memory.persist_bytes[k];
	}
	cr_expect_eq(persist, s.model->persist_bytes);
	cr_expect_eq(persist + slots, k3_memory_bound(&s.memory.memory));
	cr_expect_lt(s.memory.peak_all_bytes, slots);
	step_fini(&s);
}

/* Writes a report into memory. */
static char *
report_text(int (*print)(FILE *, const struct k3_plan_report *), const struct step *s,
	    uint64_t limit_bytes, bool critical_path)
{
	struct k3_plan_report r = {.stats = &s->stats,
				   .memory = &s->memory,
				   .ranks_checked = 1,
				   .limit_bytes = limit_bytes,
				   .critical_path = critical_path};
	char *text = NULL;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);

	cr_assert_not_null(out);
	cr_expect_eq(print(out, &r), K3_OK);
	fclose(out);
	return text;
}

static void
expect_line(const char *text, const char *line)
{
	cr_expect_not_null(strstr(text, line), "expected \"%s\" in \"%s\"", line, text);
}

Test(plan_print, the_table_for_programs_has_ten_columns_in_every_row, .timeout = 60)
{
	struct step s = count_step("cp=2,dp_shard=2", "256");
	uint64_t bound = k3_memory_bound(&s.memory.memory), paths = 0;
	char *text = report_text(k3_plan_tsv, &s, bound - 7, true), line[256];

	cr_expect_eq(strncmp(text,
			     "table\tname\tkind\ttasks\telems\tflops\tbytes\tcost_us\t"
			     "critical_tasks\tcritical_us\n",
			     74),
		     0);
	for (const char *at = text; *at; at = strchr(at, '\n') + 1) {
		int tabs = 0;
		for (const char *c = at; *c != '\n'; c++)
			tabs += *c == '\t';
		cr_expect_eq(tabs, 9, "%.60s", at);
		paths += strncmp(at, "path\t", 5) == 0;
	}
	cr_expect_eq(paths, s.stats.n_path);
	snprintf(line, sizeof(line), "\nmemory\tmain\tbound\t-\t-\t-\t%llu\t-",
		 (unsigned long long)bound);
	expect_line(text, line);
	expect_line(text, "\nmemory\tmain\tmissing\t-\t-\t-\t7\t-");
	expect_line(text, "\nfits\tno\t");
	expect_line(text, "\nplan\tnext\t2\t");
	expect_line(text, "\nlayer\t0\tkda_dense\t");
	expect_line(text, "\ncomm\tcp0\tgather_kv\t");
	free(text);
	text = report_text(k3_plan_tsv, &s, bound, false);
	expect_line(text, "\nfits\tyes\t");
	expect_line(text, "\nmemory\tmain\tmissing\t-\t-\t-\t0\t-");
	cr_expect_null(strstr(text, "\npath\t"));
	free(text);
	step_fini(&s);
}

Test(plan_print, the_report_for_people_says_the_missing_bytes_to_the_byte, .timeout = 60)
{
	struct step s = count_step("cp=1", "100");
	uint64_t bound = k3_memory_bound(&s.memory.memory);
	char *text = report_text(k3_plan_print, &s, bound - 7, true);

	expect_line(text, "\nfits: no (");
	expect_line(text, "7 bytes are missing)\n");
	expect_line(text, "KDA dense");
	expect_line(text, "MLA MoE");
	expect_line(text, s.stats.path[s.stats.n_path - 1].name);
	free(text);
	text = report_text(k3_plan_print, &s, bound, false);
	expect_line(text, "\nfits: yes (");
	free(text);
	text = report_text(k3_plan_print, &s, 0, false);
	cr_expect_null(strstr(text, "fits:"));
	free(text);
	step_fini(&s);
}

/* The bound that refuses a plan before it is built never exceeds what the plan takes. */
Test(plan_print, the_least_number_of_positions_is_a_lower_bound, .timeout = 60)
{
	static const char *const mesh[] = {"cp=1", "cp=4"};
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	o.tile_tokens = 64;
	for (size_t m = 0; m < 2; m++)
		for (uint32_t rank = 0; rank < (m ? 4 : 1); rank += 3) {
			struct k3_model *model = case_model(mesh[m], rank, &o);
			struct k3_plan *plan = case_plan(model, "1000 1", true);
			double least = k3_plan_least_positions(model, 1001, true);
			cr_expect_leq(least, plan->n_pos);
			cr_expect_gt(least, plan->n_pos / 8);
			k3_plan_destroy(plan);
			k3_model_destroy(model);
		}
}

Test(plan_print, a_microbatch_beyond_the_limits_is_refused_before_it_is_built, .timeout = 60)
{
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	o.tile_tokens = 64;
	struct k3_model *model = case_model("cp=1", 0, &o);
	cr_expect_eq(k3_plan_check_tokens(model, 64 * 100, true), K3_OK);
	capture_begin();
	cr_expect_eq(k3_plan_check_tokens(model, K3_MAX_TOKENS, true), K3_ELIMIT);
	expect_message(capture_end(), "4194304 at most");
	capture_begin();
	cr_expect_eq(k3_plan_check_tokens(model, (size_t)K3_MAX_TOKENS + 1, true), K3_ELIMIT);
	expect_message(capture_end(), "67108865 tokens: a microbatch has 67108864 at most");
	k3_model_destroy(model);
}

/* The estimate lets this pass: each tile has two head groups' pairs, each counted once. */
Test(plan_print, a_plan_that_grows_past_the_limit_is_given_up, .timeout = 60)
{
	struct k3_plan_options o;
	struct k3_plan *plan;
	size_t tiles = 1000;

	k3_plan_options_init(&o);
	o.tile_tokens = 64;
	struct k3_model *model = case_model("cp=1", 0, &o);
	while (k3_plan_check_tokens(model, 64 * (tiles + 50), true) == K3_OK)
		tiles += 50;
	int32_t *ids = calloc(64 * tiles, sizeof(*ids));
	cr_assert_not_null(ids);
	for (size_t i = 0; i < 64 * tiles; i++)
		ids[i] = (int32_t)(i / 64) +
			 1; /* no two tiles share a document: pairs are skipped */
	struct k3_microbatch what = {.backward = true, .first = true};
	struct k3_layout layout = {.n_tokens = 64 * tiles, .doc_ids = ids};
	capture_begin();
	cr_expect_eq(k3_plan_microbatch(&plan, model, &layout, &what), K3_ELIMIT);
	cr_expect_null(plan);
	expect_message(capture_end(), "more than 4194304 tasks");
	free(ids);
	k3_model_destroy(model);
}

#ifndef __SANITIZE_ADDRESS__
/* Bytes of address space in use. */
static size_t
address_space(void)
{
	unsigned long pages = 0;
	FILE *in = fopen("/proc/self/statm", "r");

	cr_assert(in && fscanf(in, "%lu", &pages) == 1);
	fclose(in);
	return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* The walk does not look at every array that it asks for, so what it writes after a failure must
 * land somewhere. */
Test(plan_print, memory_that_runs_out_anywhere_in_a_plan_is_a_status, .timeout = 60)
{
	struct k3_plan_options o;
	struct k3_microbatch what = {.backward = true, .first = true, .count = true};
	struct k3_layout layout = {0};
	struct k3_plan *plan = NULL;
	int ret = K3_ENOMEM, failures = 0;

	k3_plan_options_init(&o);
	o.tile_tokens = 64;
	struct k3_model *model = case_model("cp=2,dp_shard=2", 1, &o);
	int32_t *ids = case_documents("3000 1000", &layout.n_tokens);
	layout.doc_ids = ids;
	mallopt(M_MMAP_THRESHOLD, 1 << 16);
	mallopt(M_TRIM_THRESHOLD, 1 << 16);
	for (size_t extra = 1 << 16; ret == K3_ENOMEM; extra += 3 << 15) {
		struct rlimit limit = {address_space() + extra, RLIM_INFINITY};
		malloc_trim(0);
		cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
		ret = k3_plan_microbatch(&plan, model, &layout, &what);
		limit.rlim_cur = RLIM_INFINITY;
		cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
		cr_expect_eq(plan == NULL, ret != K3_OK);
		failures += ret != K3_OK;
	}
	cr_expect_eq(ret, K3_OK);
	cr_expect_gt(failures, 20, "%d limits made it fail", failures);
	k3_plan_destroy(plan);
	free(ids);
	k3_model_destroy(model);
}
#endif
