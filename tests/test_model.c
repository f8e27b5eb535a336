/* What a plan costs and who goes first: persistent data of a model, slots that do not depend on the
 * documents, the memory bound of a run, priorities.  Expected values are sums over the parameter
 * table or over slots, and chains made by hand. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../planner/build.h"
#include "plan_case.h"

#define TEST(name) Test(model, name, .timeout = 60)

enum { LAYERS = 5, EXPERTS = 6 };

static struct k3_model *
tiled_model(uint32_t run_ahead)
{
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	o.tile_tokens = 64;
	o.run_ahead = run_ahead;
	return case_model("cp=1", 0, &o);
}

/* Balance counts are a histogram of `bins` per expert beside the load. */
static void
expect_buffers(enum k3_balance_rule rule, uint32_t bins)
{
	struct k3_plan_options o;
	size_t bytes = 0;

	k3_plan_options_init(&o);
	o.balance = rule;
	o.bins = bins;
	struct k3_model *m = case_model("cp=1", 0, &o);
	for (uint32_t l = 0; l < LAYERS; l++) {
		cr_expect_eq(m->bias[l] == K3_NO_DATUM, l == 0, "layer %u", l);
		cr_expect_eq(m->balance[l] == K3_NO_DATUM, l == 0 || rule == K3_BALANCE_NONE,
			     "layer %u", l);
		if (m->bias[l] != K3_NO_DATUM)
			cr_expect_eq(m->persist[m->bias[l]].bytes, EXPERTS * sizeof(float));
		if (m->balance[l] != K3_NO_DATUM)
			bytes = m->persist[m->balance[l]].bytes;
	}
	size_t want = rule == K3_BALANCE_NONE	? 0
		      : rule == K3_BALANCE_SIGN ? EXPERTS
						: EXPERTS * (1 + bins);
	cr_expect_eq(bytes, want * sizeof(int32_t));
	k3_model_destroy(m);
}

TEST(every_moe_layer_has_a_bias_and_the_counts_of_its_rule)
{
	expect_buffers(K3_BALANCE_NONE, 0);
	expect_buffers(K3_BALANCE_SIGN, 0);
	expect_buffers(K3_BALANCE_QUANTILE, 50);
}

TEST(parameters_gradients_and_moments_take_sixteen_bytes_each)
{
	struct k3_model *m = case_model("cp=1", 0, NULL);
	static const uint8_t kind[] = {K3_DATA_PARAM, K3_DATA_GRAD, K3_DATA_EXP_AVG,
				       K3_DATA_EXP_AVG_SQ};
	uint64_t bytes[K3_N_DATA_KINDS] = {0}, all = 0;

	for (size_t i = 0; i < m->n_persist; i++) {
		bytes[m->persist[i].kind] += m->persist[i].bytes;
		all += m->persist[i].bytes;
		if (i < 4 * (size_t)m->n_blocks)
			cr_expect_eq(m->persist[i].kind, kind[i / m->n_blocks], "datum %zu", i);
	}
	for (size_t k = 0; k < 4; k++)
		cr_expect_eq(bytes[kind[k]], 4 * m->params.n_elems);
	cr_expect(m->persist_bytes >= all && m->persist_bytes < all + 256 * m->n_persist);
	k3_model_destroy(m);
}

static void
expect_refused(const struct k3_plan_options *o, const char *message)
{
	struct k3_model *model = (struct k3_model *)(uintptr_t)o;
	struct k3_config config;

	cr_assert_eq(k3_config_preset(&config, "tiny"), K3_OK);
	capture_begin();
	int ret = k3_model_create(&model, &config, o);
	char *text = capture_end();
	cr_expect_eq(ret, K3_EINVAL, "%s", message);
	cr_expect_null(model);
	expect_message(text, message);
}

TEST(options_outside_their_domain_are_refused_with_the_value)
{
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	o.tile_tokens = 100;
	expect_refused(&o, "tile_tokens 100");
	k3_plan_options_init(&o);
	o.kda_groups = 3;
	expect_refused(&o, "3 groups of KDA heads: there are 2 (--kda-groups)");
	k3_plan_options_init(&o);
	o.mla_groups = 4;
	expect_refused(&o, "4 groups of MLA heads: there are 2 (--mla-groups)");
	k3_plan_options_init(&o);
	o.expert_groups = 7;
	expect_refused(&o, "7 groups of experts: there are 6 (--expert-groups)");
	/* all at once */
	o.mla_groups = 4;
	expect_refused(&o, "--mla-groups");
	expect_refused(&o, "--expert-groups");
	k3_plan_options_init(&o);
	o.mesh = (struct k3_mesh){2, 3, 1, 6, false};
	expect_refused(&o, "rank 6: the mesh has 6 ranks");
}

TEST(a_configuration_that_fails_the_check_makes_no_model)
{
	struct k3_plan_options o;
	struct k3_config config;
	struct k3_model *model;

	k3_plan_options_init(&o);
	cr_assert_eq(k3_config_preset(&config, "tiny"), K3_OK);
	config.top_k = EXPERTS + 1;
	capture_begin();
	cr_expect_eq(k3_model_create(&model, &config, &o), K3_EINVAL);
	free(capture_end());
	cr_expect_null(model);
}

TEST(slots_are_the_same_whatever_the_documents)
{
	static const char *const documents[] = {"320",	"64 64 64 64 64", "1 1 318",
						"-320", "100 -120 100",	  "63 -1 256"};
	struct k3_model *model = tiled_model(0);
	struct k3_plan *want = case_plan(model, documents[0], true);

	for (size_t i = 1; i < sizeof(documents) / sizeof(documents[0]); i++) {
		struct k3_plan *plan = case_plan(model, documents[i], true);
		cr_expect_eq(plan->n_pos, want->n_pos, "\"%s\"", documents[i]);
		cr_expect_eq(plan->slot_bytes, want->slot_bytes, "\"%s\"", documents[i]);
		cr_assert_eq(plan->n_slots, want->n_slots, "\"%s\"", documents[i]);
		for (size_t k = 0; k < plan->n_slots; k++)
			cr_assert(plan->slot[k].bytes == want->slot[k].bytes &&
					  plan->slot[k].ordinal == want->slot[k].ordinal,
				  "\"%s\", slot %zu", documents[i], k);
		k3_plan_destroy(plan);
	}
	k3_plan_destroy(want);
	k3_model_destroy(model);
}

/* Every activation that follows another in its slot comes more than `ahead` positions later. */
static void
expect_apart(const struct k3_plan *plan, uint32_t ahead)
{
	size_t first = plan->model->n_persist, pairs = 0;

	for (size_t i = first; i < plan->n_data; i++)
		for (size_t k = first; k < plan->n_data; k++) {
			const struct k3_datum *a = &plan->data[i], *b = &plan->data[k];
			if (a->kind != K3_DATA_ACT || a->slot != b->slot ||
			    a->first_pos >= b->first_pos)
				continue;
			cr_assert_gt(b->first_pos, a->last_pos + ahead, "%s, %s", a->what, b->what);
			pairs++;
		}
	cr_expect_gt(pairs, 0);
}

TEST(a_slot_rests_for_the_run_ahead_which_costs_memory)
{
	uint64_t bytes[2];

	for (uint32_t i = 0; i < 2; i++) {
		struct k3_model *model = tiled_model(i ? 60 : 1);
		struct k3_plan *plan = case_plan(model, "256", true);
		expect_apart(plan, i ? 60 : 1);
		bytes[i] = plan->slot_bytes;
		k3_plan_destroy(plan);
		k3_model_destroy(model);
	}
	cr_expect_lt(bytes[0], bytes[1]);
}

TEST(a_slot_holds_its_datum_and_wastes_an_eighth_at_most)
{
	struct k3_model *model = tiled_model(0);
	struct k3_plan *plan = case_plan(model, "200", true);
	uint64_t sum = 0;

	for (size_t i = 0; i < plan->n_slots; i++)
		sum += plan->slot[i].bytes;
	cr_expect_eq(plan->slot_bytes, sum);
	for (size_t i = model->n_persist; i < plan->n_data; i++) {
		const struct k3_datum *d = &plan->data[i];
		if (d->first_pos > d->last_pos)
			continue; /* the last tile's halo: nothing uses it */
		cr_assert(d->slot >= 0 && (size_t)d->slot < plan->n_slots, "%s", d->what);
		size_t slot = plan->slot[d->slot].bytes;
		cr_expect_leq(d->bytes, d->slot_bytes, "%s", d->what);
		cr_expect_geq(slot, d->slot_bytes, "%s", d->what);
		cr_expect_leq(slot, d->slot_bytes + d->slot_bytes / 8 + 255, "%s", d->what);
	}
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

/* Bytes of the slots of several plans, each (class, ordinal) once: quadratic, by comparison. */
static uint64_t
bytes_of_union(struct k3_plan *const *plan, size_t n)
{
	uint64_t bytes = 0;

	for (size_t p = 0; p < n; p++)
		for (size_t i = 0; i < plan[p]->n_slots; i++) {
			const struct k3_slot *s = &plan[p]->slot[i];
			bool known = false;
			for (size_t q = 0; q < p; q++)
				for (size_t k = 0; k < plan[q]->n_slots; k++)
					known = known || (plan[q]->slot[k].bytes == s->bytes &&
							  plan[q]->slot[k].ordinal == s->ordinal);
			bytes += known ? 0 : s->bytes;
		}
	return bytes;
}

TEST(the_memory_of_a_run_is_persistent_data_and_every_slot_once)
{
	struct k3_model *model = tiled_model(0);
	struct k3_plan *plan[3] = {case_plan(model, "320", true), case_plan(model, "50", false)};
	struct k3_memory memory;

	cr_assert_eq(k3_plan_optimizer(&plan[2], model, 0), K3_OK);
	k3_memory_init(&memory, model);
	cr_expect_eq(k3_memory_bound(&memory), model->persist_bytes);
	for (size_t n = 1; n <= 3; n++) {
		cr_assert_eq(k3_memory_add(&memory, plan[n - 1]), K3_OK);
		cr_expect_eq(k3_memory_bound(&memory),
			     model->persist_bytes + bytes_of_union(plan, n), "%zu plans", n);
	}
	uint64_t bound = k3_memory_bound(&memory);
	cr_assert_eq(k3_memory_add(&memory, plan[0]), K3_OK);
	cr_expect_eq(k3_memory_bound(&memory), bound, "a plan that is known adds nothing");
	for (size_t i = 1; i < memory.n_classes; i++)
		cr_expect_lt(memory.cls[i - 1].bytes, memory.cls[i].bytes);
	k3_memory_fini(&memory);
	for (size_t i = 0; i < 3; i++)
		k3_plan_destroy(plan[i]);
	k3_model_destroy(model);
}

static void
expect_priorities(struct hand *h, const int32_t *want)
{
	k3i_assign_priorities(&h->plan);
	for (size_t i = 0; i < h->plan.n_tasks; i++)
		cr_expect_eq(h->task[i].priority, want[i], "%s: expected %d, got %d",
			     h->task[i].name, want[i], h->task[i].priority);
}

TEST(priority_is_the_share_of_the_longest_chain_that_follows)
{
	struct hand h;

	/* make -> use -> end; beside it one task that nothing waits for */
	hand_init(&h);
	hand_data(&h, "a", 0, 0, 2);
	hand_data(&h, "b", 1, 1, 3);
	hand_data(&h, "c", 2, 2, 2);
	hand_task(&h, "make", "0:W", 10);
	hand_task(&h, "use", "1:W 0:R", 30);
	hand_task(&h, "aside", "2:W 0:R", 5);
	hand_task(&h, "end", "1:R", 60);
	expect_priorities(&h, (const int32_t[]){10000, 9000, 500, 6000});
}

TEST(a_slot_that_is_taken_again_is_part_of_the_chain)
{
	struct hand h;

	/* c takes the slot of a: its writer waits for the reader of a, though no value flows */
	hand_init(&h);
	hand_data(&h, "a", 0, 0, 1);
	hand_data(&h, "b", 1, 1, 1);
	hand_data(&h, "c", 0, 2, 3);
	hand_task(&h, "make a", "0:W", 25);
	hand_task(&h, "read a", "1:W 0:R", 25);
	hand_task(&h, "make c", "2:W", 25);
	hand_task(&h, "read c", "2:R", 25);
	expect_priorities(&h, (const int32_t[]){10000, 7500, 5000, 2500});
}

TEST(readers_of_one_datum_do_not_wait_for_each_other)
{
	struct hand h;

	hand_init(&h);
	hand_data(&h, "a", 0, 0, 3);
	hand_task(&h, "make", "0:W", 50);
	hand_task(&h, "read", "0:R", 20);
	hand_task(&h, "read too", "0:R", 40);
	hand_task(&h, "change", "0:RW", 10);
	expect_priorities(&h, (const int32_t[]){10000, 3000, 5000, 1000});
}

TEST(priorities_of_a_step_are_positive_and_descend_along_every_chain)
{
	struct k3_model *model = tiled_model(0);
	struct k3_plan *plan = case_plan(model, "100 92", true);
	int32_t *writer = calloc(plan->n_data, sizeof(*writer)), most = 0;
	size_t edges = 0;

	cr_assert_not_null(writer);
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		cr_expect(t->priority > 0 && t->priority <= K3_MAX_PRIORITY, "%s: %d", t->name,
			  t->priority);
		most = t->priority > most ? t->priority : most;
		for (uint32_t k = 0; k < t->n_access; k++) {
			const struct k3_access *a = &plan->access[t->first_access + k];
			if ((a->mode & K3_R) && writer[a->datum]) {
				cr_expect_gt(writer[a->datum], t->priority, "%s", t->name);
				edges++;
			}
		}
		for (uint32_t k = 0; k < t->n_access; k++) {
			const struct k3_access *a = &plan->access[t->first_access + k];
			if (a->mode & K3_W)
				writer[a->datum] = t->priority;
		}
	}
	cr_expect_eq(most, K3_MAX_PRIORITY);
	cr_expect_gt(edges, plan->n_tasks / 2);
	free(writer);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

TEST(the_same_input_gives_the_same_plan)
{
	struct k3_model *model = tiled_model(0);
	struct k3_plan *a = case_plan(model, "100 -3 89", true),
		       *b = case_plan(model, "100 -3 89", true);

	cr_assert(a->n_tasks == b->n_tasks && a->n_access == b->n_access);
	cr_expect_eq(a->layout_hash, b->layout_hash);
	for (size_t i = 0; i < a->n_access; i++)
		cr_assert(a->access[i].datum == b->access[i].datum &&
				  a->access[i].mode == b->access[i].mode,
			  "access %zu", i);
	for (size_t i = 0; i < a->n_tasks; i++) {
		cr_assert_str_eq(a->task[i].name, b->task[i].name);
		cr_assert_eq(a->task[i].priority, b->task[i].priority, "%s", a->task[i].name);
	}
	k3_plan_destroy(a);
	k3_plan_destroy(b);
	k3_model_destroy(model);
}
