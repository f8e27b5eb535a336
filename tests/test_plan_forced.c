/* One rank that is forced to communicate: the tasks of one that is not, in their order, with the
 * communication of a mesh between them. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../planner/choose.h"
#include "../planner/mesh_comm.h"
#include "vision_case.h"

static struct k3_model *
model_of(struct k3_plan_options o, bool forced)
{
	o.mesh.forced = forced;
	return case_model("cp=1", 0, &o);
}

static struct k3_plan_options
defaults(void)
{
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	return o;
}

static uint64_t
elements(const struct k3_plan *plan, enum k3_op op)
{
	uint64_t n = 0;

	for (size_t i = 0; i < plan->n_tasks; i++)
		n += plan->task[i].op == op ? plan->task[i].count : 0;
	return n;
}

/* Next task from *at on that is no communication; NULL at the end. */
static const struct k3_task *
next_compute(const struct k3_plan *plan, size_t *at)
{
	while (*at < plan->n_tasks) {
		const struct k3_task *t = &plan->task[(*at)++];
		if (t->comm < 0)
			return t;
	}
	return NULL;
}

/* The forced plan computes what the plain one does, task by task. */
static void
expect_same_compute(const struct k3_plan *plain, const struct k3_plan *forced)
{
	size_t at_plain = 0, at_forced = 0, n = 0;

	for (;; n++) {
		const struct k3_task *a = next_compute(plain, &at_plain),
				     *b = next_compute(forced, &at_forced);
		if (!a || !b) {
			cr_expect(!a && !b, "one plan has more than %zu tasks", n);
			return;
		}
		cr_assert_str_eq(a->name, b->name, "task %zu", n);
		cr_assert_eq(a->pass, b->pass, "%s", a->name);
		cr_assert_eq(a->n_access, b->n_access, "%s", a->name);
		cr_assert_float_eq(a->flops, b->flops, 0, "%s", a->name);
	}
}

/* Kinds of tasks, sums over all parameters, and the proof, in a microbatch. */
static void
expect_microbatch(struct k3_plan_options o, const char *documents)
{
	struct k3_model *alone = model_of(o, false), *model = model_of(o, true);
	struct k3_plan *plain = case_plan(alone, documents, true),
		       *plan = case_plan(model, documents, true);
	size_t mla = 0, kda = 0, forward = o.activations[0] == K3_RECOMPUTE ? 2 : 1;

	for (uint32_t l = 0; l < model->config.layers; l++) {
		mla += model->config.is_mla[l];
		kda += !model->config.is_mla[l];
	}
	cr_expect_eq(k3_plan_check(plan), K3_OK);
	cr_expect_eq(k3_plan_check_order(&plan, 1), K3_OK);
	expect_same_compute(plain, plan);
	cr_expect_eq(case_count(plan, K3_OP_KDA_STATE_GATHER), (forward + 1) * kda);
	cr_expect_eq(case_count(plan, K3_OP_GATHER_KV), forward * mla);
	cr_expect_eq(case_count(plan, K3_OP_SCATTER_KV_GRADS), mla);
	cr_expect_eq(case_count(plan, K3_OP_HALO_SEND) + case_count(plan, K3_OP_HALO_RECV) +
			     case_count(plan, K3_OP_KDA_STATE_LOCAL) +
			     case_count(plan, K3_OP_KDA_STATE_COMBINE),
		     0, "a rank alone has no neighbour");
	cr_expect_eq(elements(plan, K3_OP_REDUCE_SCATTER_GRADS), model->params.n_elems,
		     "every gradient is reduced once");
	/* twice, but for the embedding (forward alone), and root and head, which stay between the
	 * passes */
	cr_expect_gt(elements(plan, K3_OP_GATHER_PARAMS), model->params.n_elems);
	cr_expect_lt(elements(plan, K3_OP_GATHER_PARAMS), 2 * model->params.n_elems);
	k3_plan_destroy(plan);
	k3_plan_destroy(plain);
	k3_model_destroy(model);
	k3_model_destroy(alone);
}

Test(plan_forced, a_microbatch_communicates_as_on_a_mesh, .timeout = 60)
{
	struct k3_plan_options o = defaults();

	expect_microbatch(o, "70 -5 125");
	o.tile_tokens = 64;
	o.expert_groups = 3;
	expect_microbatch(o, "200 -3 1 196");
	o.dtype = K3_BF16;
	o.gather_slots = 3;
	memset(o.activations, K3_RECOMPUTE, sizeof(o.activations));
	expect_microbatch(o, "64 64 64");
	o.optimizer_dtype = K3_BF16;
	expect_microbatch(o, "64 64 64");
}

Test(plan_forced, the_tower_takes_part_with_and_without_images, .timeout = 60)
{
	static const char *const images[] = {"1x4x4@0 2x6x2@10", ""};
	struct k3_microbatch what = {.backward = true, .first = true, .count = true};
	struct k3_plan_options o = vision_case_options();
	struct k3_model *alone = vision_case_model("cp=1", 0, &o);

	o.mesh.forced = true;
	struct k3_model *model = vision_case_model("cp=1", 0, &o);
	for (size_t i = 0; i < 2; i++) {
		struct k3_plan *plain = vision_case_plan(alone, 90, images[i], what),
			       *plan = vision_case_plan(model, 90, images[i], what);
		expect_same_compute(plain, plan);
		cr_expect_eq(k3_plan_check_order(&plan, 1), K3_OK);
		cr_expect_eq(elements(plan, K3_OP_REDUCE_SCATTER_GRADS), model->params.n_elems);
		/* seven merged tokens, or a placeholder's, which stays at home */
		cr_expect_eq(elements(plan, K3_OP_GATHER_FEATURES),
			     i == 0 ? 7 * model->config.width : 0);
		cr_expect_eq(elements(plan, K3_OP_SUM_FEATURE_GRADS),
			     i == 0 ? 7 * model->config.width : 0);
		k3_plan_destroy(plan);
		k3_plan_destroy(plain);
	}
	k3_model_destroy(model);
	k3_model_destroy(alone);
}

Test(plan_forced, a_loss_alone_gathers_and_reduces_nothing, .timeout = 60)
{
	struct k3_microbatch what = {.first = true};
	struct k3_layout layout = {0};
	struct k3_model *alone = model_of(defaults(), false), *model = model_of(defaults(), true);
	struct k3_plan *plain, *plan;
	int32_t *ids = case_documents("70 -5 125", &layout.n_tokens);

	layout.doc_ids = ids;
	cr_assert_eq(k3_plan_microbatch(&plain, alone, &layout, &what), K3_OK);
	cr_assert_eq(k3_plan_microbatch(&plan, model, &layout, &what), K3_OK);
	cr_expect_eq(k3_plan_check(plan), K3_OK);
	cr_expect_eq(k3_plan_check_order(&plan, 1), K3_OK);
	expect_same_compute(plain, plan);
	cr_expect_eq(elements(plan, K3_OP_GATHER_PARAMS), model->params.n_elems);
	cr_expect_eq(case_count(plan, K3_OP_REDUCE_SCATTER_GRADS), 0);
	free(ids);
	k3_plan_destroy(plan);
	k3_plan_destroy(plain);
	k3_model_destroy(model);
	k3_model_destroy(alone);
}

Test(plan_forced, every_kind_of_group_has_its_communicator, .timeout = 60)
{
	static const char *const name[] = {"world", "replicate0", "shard0", "cp0"};
	struct k3_mesh m = {1, 1, 1, 0, true};
	struct k3_arena *arena = k3i_arena_create();
	struct k3_comm *comm;
	size_t n;

	cr_assert_eq(k3i_mesh_comms(arena, &m, &comm, &n), K3_OK);
	cr_assert_eq(n, K3_N_GROUPS);
	for (int kind = 0; kind < K3_N_GROUPS; kind++) {
		cr_expect_str_eq(comm[kind].name, name[kind]);
		cr_expect(comm[kind].n_members == 1 && comm[kind].member[0] == 0);
		cr_expect_eq(k3_mesh_comm(&m, (enum k3_group)kind), kind);
	}
	/* on two ranks the groups of both are named on both, and groups of two are shared */
	m = (struct k3_mesh){1, 2, 1, 1, true};
	cr_assert_eq(k3i_mesh_comms(arena, &m, &comm, &n), K3_OK);
	cr_assert_eq(n, 5);
	cr_expect_str_eq(comm[2].name, "replicate1");
	cr_expect_str_eq(comm[3].name, "cp0");
	cr_expect_eq(k3_mesh_comm(&m, K3_GROUP_SHARD), 0);
	cr_expect_eq(k3_mesh_comm(&m, K3_GROUP_REPLICATE), 2);
	cr_expect_eq(k3_mesh_comm(&m, K3_GROUP_CP), 4);
	cr_expect_eq(comm[4].member[0], 1);
	k3i_arena_destroy(arena);
}

Test(plan_forced, the_end_of_a_step_sums_over_all_groups, .timeout = 60)
{
	struct k3_model *alone = model_of(defaults(), false), *model = model_of(defaults(), true);
	struct k3_plan *plain, *plan;
	uint64_t balance = 0, loss = K3_LOSS_LEN;

	cr_assert_eq(k3_plan_optimizer(&plain, alone, 0), K3_OK);
	cr_assert_eq(k3_plan_optimizer(&plan, model, 0), K3_OK);
	cr_expect_eq(k3_plan_check(plan), K3_OK);
	cr_expect_eq(k3_plan_check_order(&plan, 1), K3_OK);
	expect_same_compute(plain, plan);
	for (uint32_t l = 0; l < model->config.layers; l++)
		if (model->balance[l] != K3_NO_DATUM)
			balance += model->persist[model->balance[l]].row_elems;
	cr_expect_gt(balance, 0);
	cr_expect_eq(elements(plan, K3_OP_ALLREDUCE),
		     model->params.n_elems + loss + balance + model->n_norm_partial);
	k3_plan_destroy(plan);
	k3_plan_destroy(plain);
	k3_model_destroy(model);
	k3_model_destroy(alone);
}

Test(plan_forced, a_step_is_proved_on_one_rank_and_on_meshes_with_groups_of_one, .timeout = 60)
{
	static const char *const documents[] = {"99 1", "64 -1 35"};
	struct k3_plan_options o = defaults();

	o.mesh.forced = true;
	case_prove("cp=1", &o, documents, 2);
	case_prove("dp_shard=2", &o, documents, 1);
	case_prove("dp_replicate=2,cp=2", &o, documents, 2);
}

/* A rank alone may not read its parameters in place: it would, on a mesh, read a shard. */
Test(plan_forced, a_task_that_reads_a_shard_is_found, .timeout = 60)
{
	struct k3_model *model = model_of(defaults(), true);
	struct k3_plan *plan = case_plan(model, "64", true);
	bool spoilt = false;

	for (size_t i = 0; i < plan->n_tasks && !spoilt; i++) {
		const struct k3_task *t = &plan->task[i];
		for (uint32_t k = 0; t->comm < 0 && k < t->n_access && !spoilt; k++) {
			struct k3_access *a = &plan->access[t->first_access + k];
			const struct k3_datum *d = &plan->data[a->datum];
			spoilt = d->kind == K3_DATA_GATHERED && a->mode == K3_R;
			if (spoilt)
				a->datum = model->param_block[d->param];
		}
	}
	cr_assert(spoilt);
	capture_begin();
	cr_expect_eq(k3_plan_check(plan), K3_EPLAN);
	expect_message(capture_end(), "is a shard");
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

/* Most bytes of short-lived data at once: of those that are gathered, or of all. */
static uint64_t
high_water(const struct k3_plan *plan, bool gathered)
{
	uint64_t most = 0;

	for (uint32_t pos = 0; pos < plan->n_pos; pos++) {
		uint64_t bytes = 0;
		for (size_t i = plan->model->n_persist; i < plan->n_data; i++) {
			const struct k3_datum *d = &plan->data[i];
			if ((!gathered || d->kind == K3_DATA_GATHERED) && d->first_pos <= pos &&
			    pos <= d->last_pos)
				bytes += d->bytes;
		}
		most = bytes > most ? bytes : most;
	}
	return most;
}

/* Not "more than without": more positions lie between the same tasks, so some slots come free
 * earlier. */
Test(plan_forced, the_bound_of_memory_counts_what_is_gathered, .timeout = 60)
{
	struct k3_run_shape shape = {.tokens = 256, .accumulate = 2, .evaluates = true};
	struct k3_model *model = model_of(defaults(), true);
	struct k3_plan *plan = case_plan(model, "256", true);
	struct k3_memory memory;

	cr_assert_eq(k3_memory_run(&memory, model, &shape), K3_OK);
	uint64_t head = (uint64_t)model->config.vocab * model->config.width * sizeof(float);
	cr_expect_geq(high_water(plan, true), 2 * head, "the head and its gradient");
	cr_expect_lt(high_water(plan, true), 2 * model->params.n_elems * sizeof(float));
	cr_expect_geq(k3_memory_bound(&memory), memory.persist_bytes + high_water(plan, false));
	k3_memory_fini(&memory);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

Test(plan_forced, tiles_and_groups_are_those_of_a_rank_that_is_not_forced, .timeout = 60)
{
	struct k3_plan_options o = defaults();
	struct k3_choice one, two;
	struct k3_config config;

	cr_assert_eq(k3_config_preset(&config, "debug17"), K3_OK);
	cr_assert_eq(k3_choose(&one, &config, &o, 2048), K3_OK);
	o.mesh.forced = true;
	cr_assert_eq(k3_choose(&two, &config, &o, 2048), K3_OK);
	cr_expect_eq(one.tile_tokens, two.tile_tokens);
	cr_expect_eq(one.kda_groups, two.kda_groups);
	cr_expect_eq(one.mla_groups, two.mla_groups);
	cr_expect_eq(one.expert_groups, two.expert_groups);
	cr_expect_eq(one.n_tasks, two.n_tasks);
}

Test(plan_forced, positions_and_slots_do_not_depend_on_the_documents, .timeout = 60)
{
	static const char *const documents[] = {"400", "100 -100 200", "-400", "101 99 100 100"};
	struct k3_plan_options o = defaults();
	uint64_t bytes = 0;
	uint32_t n_pos = 0;

	o.tile_tokens = 64;
	struct k3_model *model = model_of(o, true);
	for (size_t i = 0; i < sizeof(documents) / sizeof(documents[0]); i++) {
		struct k3_plan *plan = case_plan(model, documents[i], true);
		cr_expect(i == 0 || (plan->n_pos == n_pos && plan->slot_bytes == bytes), "\"%s\"",
			  documents[i]);
		n_pos = plan->n_pos;
		bytes = plan->slot_bytes;
		k3_plan_destroy(plan);
	}
	k3_model_destroy(model);
}
