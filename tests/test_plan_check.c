/* Faults planted in plans: each must be found, and named. */
#include <criterion/criterion.h>
#include <string.h>

#include "../common/status.h"
#include "plan_case.h"

/* A sound plan of three tasks: a is made, turned into b in another slot, b is kept. */
static void
sound(struct hand *h)
{
	hand_init(h);
	hand_data(h, "a", 0, 0, 1);
	hand_data(h, "b", 1, 1, 2);
	hand_task(h, "make a", "0:W", 1);
	hand_task(h, "turn", "1:W 0:R", 1);
	hand_task(h, "add", "1:RW", 1);
	h->data[1].keep = true;
}

static void
expect_fault(const struct hand *h, const char *message, const char *task)
{
	capture_begin();
	int ret = k3_plan_check(&h->plan);
	char *text = capture_end();

	cr_expect_eq(ret, K3_EPLAN);
	cr_expect(strstr(text, task), "expected \"%s\" in \"%s\"", task, text);
	expect_message(text, message);
}

Test(plan_check, a_sound_plan_passes, .timeout = 60)
{
	struct hand h;

	sound(&h);
	cr_expect_eq(k3_plan_check(&h.plan), K3_OK);
}

Test(plan_check, a_read_before_any_write_is_named, .timeout = 60)
{
	struct hand h;

	sound(&h);
	h.access[0].mode = K3_R;
	expect_fault(&h, "a: is read before it is written", "make a");
}

Test(plan_check, work_space_read_before_any_write_is_named, .timeout = 60)
{
	static const uint8_t modes[] = {K3_R, K3_RW};

	for (size_t i = 0; i < 2; i++) {
		struct hand h;
		sound(&h);
		h.data[0].kind = K3_DATA_WORK;
		h.access[0].mode = modes[i];
		expect_fault(&h, "a: is read before it is written", "make a");
	}
}

Test(plan_check, a_write_that_nothing_reads_is_named, .timeout = 60)
{
	struct hand h;

	sound(&h);
	h.data[1].keep = false;
	expect_fault(&h, "b: is written and nothing reads it", "add");
}

Test(plan_check, a_value_overwritten_unread_is_named, .timeout = 60)
{
	struct hand h;

	sound(&h);
	h.access[3].mode = K3_W;
	expect_fault(&h, "b: is overwritten before anything read it", "add");
}

Test(plan_check, work_space_need_not_be_read, .timeout = 60)
{
	struct hand h;

	sound(&h);
	h.data[1].keep = false;
	h.data[1].kind = K3_DATA_WORK;
	cr_expect_eq(k3_plan_check(&h.plan), K3_OK);
}

Test(plan_check, two_data_alive_in_one_slot_are_named, .timeout = 60)
{
	struct hand h;

	sound(&h);
	h.data[1].slot = 0;
	expect_fault(&h, "a and b share slot 0 at position 1", "");
}

Test(plan_check, a_datum_larger_than_its_slot_is_named, .timeout = 60)
{
	struct hand h;

	sound(&h);
	h.slot[1].bytes = 255;
	expect_fault(&h, "b: 256 bytes do not fit into slot 1", "");
}

Test(plan_check, a_datum_used_outside_its_lifetime_is_named, .timeout = 60)
{
	struct hand h;

	sound(&h);
	h.data[1].last_pos = 1;
	expect_fault(&h, "b: is used outside its lifetime", "add");
}

Test(plan_check, a_datum_written_and_read_as_two_operands_is_named, .timeout = 60)
{
	struct hand h;

	sound(&h);
	h.access[2].datum = 1;
	expect_fault(&h, "b: is written and named twice", "turn");
}

Test(plan_check, an_access_without_mode_is_named, .timeout = 60)
{
	struct hand h;

	sound(&h);
	h.access[1].mode = 0;
	expect_fault(&h, "b: has no access mode", "turn");
}

Test(plan_check, positions_must_ascend, .timeout = 60)
{
	struct hand h;

	sound(&h);
	h.task[2].pos = 1;
	expect_fault(&h, "position 1 does not come after 1", "add");
}

/* First access of the plan to persistent datum i with this mode. */
static struct k3_access *
find_access(const struct k3_plan *plan, uint32_t datum, enum k3_mode mode)
{
	for (size_t i = 0; i < plan->n_access; i++)
		if (plan->access[i].datum == datum && plan->access[i].mode == mode)
			return &plan->access[i];
	cr_assert_fail("no such access");
	return NULL;
}

static void
expect_text_fault(const struct k3_plan *plan, const char *message)
{
	capture_begin();
	int ret = k3_plan_check(plan);
	char *text = capture_end();

	cr_expect_eq(ret, K3_EPLAN);
	expect_message(text, message);
}

Test(plan_check, the_text_model_passes_in_every_kind_of_plan, .timeout = 60)
{
	struct k3_plan_options o;
	struct k3_plan *plan;

	k3_plan_options_init(&o);
	o.tile_tokens = 64;
	o.fingerprint = true;
	struct k3_model *model = case_model("cp=1", 0, &o);
	for (int first = 0; first < 2; first++) {
		plan = case_plan(model, "100 -3 60 37", first);
		cr_expect_eq(k3_plan_check(plan), K3_OK);
		k3_plan_destroy(plan);
	}
	cr_assert_eq(k3_plan_optimizer(&plan, model, 1), K3_OK);
	cr_expect_eq(k3_plan_check(plan), K3_OK);
	k3_plan_destroy(plan);
	cr_assert_eq(k3_plan_init(&plan, model, 1, true), K3_OK);
	cr_expect_eq(k3_plan_check(plan), K3_OK);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

Test(plan_check, a_parameter_without_gradient_is_named, .timeout = 60)
{
	struct k3_model *model = case_model("cp=1", 0, NULL);
	struct k3_plan *plan = case_plan(model, "64", false);
	uint32_t grad =
		model->n_blocks + model->param_block[k3_params_find(&model->params, K3_P_KDA_O, 0)];

	for (size_t i = 0; i < plan->n_access; i++)
		if (plan->access[i].datum == grad)
			plan->access[i].mode = K3_R;
	expect_text_fault(plan,
			  "layers.0.self_attn.o_proj.weight, block 0: no task gives it a gradient");
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

Test(plan_check, a_gradient_of_an_old_step_that_is_added_to_is_named, .timeout = 60)
{
	struct k3_model *model = case_model("cp=1", 0, NULL);
	struct k3_plan *plan = case_plan(model, "64", true);
	uint32_t grad = model->n_blocks +
			model->param_block[k3_params_find(&model->params, K3_P_EMBED, -1)];

	find_access(plan, grad, K3_W)->mode = K3_RW;
	expect_text_fault(plan, "grad p0 i0: is read before it is written, in task");
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

Test(plan_check, a_contribution_that_overwrites_another_is_named, .timeout = 60)
{
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	o.tile_tokens = 64;
	struct k3_model *model = case_model("cp=1", 0, &o);
	struct k3_plan *plan = case_plan(model, "128", true);
	uint32_t grad = model->n_blocks +
			model->param_block[k3_params_find(&model->params, K3_P_EMBED, -1)];

	find_access(plan, grad, K3_RW)->mode = K3_W;
	expect_text_fault(plan, "grad p0 i0: is overwritten: a later contribution must add");
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

Test(plan_check, a_parameter_that_nothing_reads_is_named, .timeout = 60)
{
	struct k3_model *model = case_model("cp=1", 0, NULL);
	struct k3_plan *plan = case_plan(model, "64", true);
	uint32_t embed = model->param_block[k3_params_find(&model->params, K3_P_EMBED, -1)];

	find_access(plan, embed, K3_R)->datum =
		model->param_block[k3_params_find(&model->params, K3_P_HEAD, -1)];
	expect_text_fault(plan, "embed_tokens.weight, block 0: no task reads it");
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

Test(plan_check, a_shard_that_is_used_as_the_whole_is_named, .timeout = 60)
{
	struct k3_model *model = case_model("dp_shard=2", 0, NULL);
	struct k3_plan *plan = case_plan(model, "64", true);

	cr_assert_eq(k3_plan_check(plan), K3_OK);
	for (size_t i = 0; i < plan->n_tasks; i++)
		for (uint32_t k = 0;
		     k < plan->task[i].n_access && plan->task[i].op == K3_OP_EMBED_FWD; k++) {
			struct k3_access *a = &plan->access[plan->task[i].first_access + k];
			if (plan->data[a->datum].kind == K3_DATA_GATHERED)
				a->datum = model->param_block[0];
		}
	expect_text_fault(plan,
			  "param p0 i0: is a shard, but its rows are used as if they were all");
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

/* What a refusal of a limit says to a program with such options; malloc'ed. */
static char *
refusal(const struct k3_memory *memory, uint64_t limit, struct k3_model *model, unsigned offers)
{
	model->options.offers = offers;
	capture_begin();
	cr_expect_eq(k3_plan_check_memory(memory, limit, model), K3_ELIMIT);
	return capture_end();
}

Test(plan_check, memory_over_the_limit_says_how_much_and_what_helps, .timeout = 60)
{
	struct k3_model *model = case_model("cp=1", 0, NULL);
	struct k3_plan *plan = case_plan(model, "640", true);
	struct k3_memory memory;

	k3_memory_init(&memory, model);
	uint64_t persistent = k3_memory_bound(&memory);
	expect_message(refusal(&memory, persistent - 7, model, 0), "7 bytes are missing");
	expect_message(refusal(&memory, persistent / 2, model, K3_OFFER_MESH),
		       "--mesh dp_shard=2 or more");
	cr_assert_eq(k3_memory_add(&memory, plan), K3_OK);
	uint64_t bound = k3_memory_bound(&memory);
	cr_expect_eq(bound, persistent + plan->slot_bytes);
	cr_expect_eq(k3_plan_check_memory(&memory, bound, model), K3_OK);
	expect_message(refusal(&memory, bound - 1, model, 0), "--activations recompute would help");
	memset(model->options.activations, K3_RECOMPUTE, sizeof(model->options.activations));
	expect_message(refusal(&memory, bound - 1, model, K3_OFFER_TOKENS), "--tile-tokens 64");
	expect_message(refusal(&memory, bound - 1, model, 0), "only a higher limit would help");
	k3_memory_fini(&memory);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

/* A program that has no such option must not be told of it. */
Test(plan_check, memory_advice_names_what_the_program_has, .timeout = 60)
{
	static const struct {
		unsigned offer;
		const char *option;
	} options[] = {{K3_OFFER_MESH, "--mesh"},
		       {K3_OFFER_TYPES, "--optimizer-dtype bf16"},
		       {K3_OFFER_MODEL, "--layers"},
		       {K3_OFFER_TOKENS, "--tokens"}};
	enum { N = sizeof(options) / sizeof(options[0]) };
	struct k3_model *model = case_model("cp=1", 0, NULL);
	struct k3_plan *plan = case_plan(model, "640", true);
	struct k3_memory memory;

	k3_memory_init(&memory, model);
	cr_assert_eq(k3_memory_add(&memory, plan), K3_OK);
	for (unsigned offers = 0; offers < 1 << N; offers++) {
		char *log = refusal(&memory, 3000, model, offers);
		for (size_t i = 0; i < N; i++)
			cr_expect_eq(!!strstr(log, options[i].option),
				     !!(offers & options[i].offer), "offers %u, %s: %s", offers,
				     options[i].option, log);
		/* a small limit is not rounded to nothing */
		cr_expect(strstr(log, "limit 2.93 KiB"), "%s", log);
		free(log);
	}
	k3_memory_fini(&memory);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}
