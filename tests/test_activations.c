/* Activation policies: text, plans, and the choice for a limit of memory. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../planner/activations.h"
#include "plan_case.h"

#define TEST(name) Test(activations, name, .timeout = 60)

static void
expect_text(const char *in, const char *layers, const char *out)
{
	uint8_t activations[K3_MAX_LAYERS];
	size_t n = strlen(layers);

	cr_assert_eq(k3_activations_parse(activations, (uint32_t)n, in), K3_OK, "%s", in);
	for (size_t l = 0; l < n; l++)
		cr_expect_eq(activations[l], layers[l] == 'r' ? K3_RECOMPUTE : K3_KEEP,
			     "%s: layer %zu", in, l);
	char *text = k3_activations_text(activations, (uint32_t)n);
	cr_expect_str_eq(text, out, "%s", in);
	free(text);
}

TEST(a_word_is_for_all_layers_and_ranges_hold_both_ends)
{
	expect_text("keep", "kkkkk", "keep");
	expect_text("recompute", "rrrrr", "recompute");
	expect_text("1-3:recompute", "krrrk", "1-3:recompute");
	expect_text("4:recompute,0-1:recompute", "rrkkr", "0-1:recompute,4-4:recompute");
	expect_text("0-1:keep,2-4:recompute", "kkrrr", "2-4:recompute");
	expect_text("0-4:recompute", "rrrrr", "recompute");
}

TEST(what_is_no_policy_is_refused_with_the_part_that_is_wrong)
{
	static const struct {
		const char *text, *part;
	} bad[] = {
		{"", "\"\""},
		{"Keep", "\"Keep\""},
		{"0-1", "\"0-1\""},
		{"0-1:", "\"0-1:\""},
		{":keep", "\":keep\""},
		{"-1:keep", "\"-1:keep\""},
		{"1-:keep", "\"1-:keep\""},
		{"3-2:keep", "\"3-2:keep\""},
		{"0-5:recompute", "from 0 to 4"},
		{"0-1:recompute,", "\"\""},
		{"0-1:recompute,7:keep", "\"7:keep\""},
		{"0:keep;1:keep", "\"0:keep;1:keep\""},
		{"99999999999999999999:keep", "\"99999999999999999999:keep\""},
		{"0-2:recompute,2-3:keep", "layer 2 is named twice"},
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		uint8_t activations[K3_MAX_LAYERS];
		capture_begin();
		cr_expect_eq(k3_activations_parse(activations, 5, bad[i].text), K3_EINVAL, "\"%s\"",
			     bad[i].text);
		expect_message(capture_end(), bad[i].part);
	}
}

static struct k3_plan_options
all_recompute(uint32_t tile_tokens)
{
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	o.tile_tokens = tile_tokens;
	memset(o.activations, K3_RECOMPUTE, sizeof(o.activations));
	return o;
}

TEST(recomputed_layers_plan_soundly_on_one_rank_and_on_meshes)
{
	static const char *const documents[] = {"40 -30 130", "200", "-64 136", "7 93 100"};
	struct k3_plan_options o = all_recompute(64);

	case_prove("cp=1", &o, documents, 2);
	case_prove("cp=2", &o, documents, 1);
	case_prove("dp_shard=2,cp=2", &o, documents, 2);
	case_prove("dp_replicate=2,dp_shard=2", &o, documents, 1);
	memset(o.activations, K3_KEEP, sizeof(o.activations));
	o.activations[1] = K3_RECOMPUTE;
	case_prove("dp_shard=3", &o, documents, 1);
}

/* Only what two prefixes, routes and the experts' sum do not hold is computed again, once. */
TEST(the_forward_products_of_a_layer_run_again_but_for_those_whose_results_are_kept)
{
	struct k3_plan_options o = all_recompute(0);
	struct k3_model *model = case_model("cp=1", 0, &o);
	struct k3_plan *plan = case_plan(model, "100", true);
	size_t first[K3_N_OPS] = {0}, again[K3_N_OPS] = {0};

	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		if (t->pass == K3_PASS_FORWARD)
			first[t->op]++;
		if (t->pass == K3_PASS_RECOMPUTE)
			again[t->op]++;
		cr_expect_eq(t->pass == K3_PASS_RECOMPUTE, strstr(t->name, ".again") != NULL, "%s",
			     t->name);
	}
	static const enum k3_op twice[] = {K3_OP_KDA_PROJ_FWD,	 K3_OP_KDA_GATE_FWD,
					   K3_OP_KDA_CONV_FWD,	 K3_OP_MLA_PROJ_FWD,
					   K3_OP_MLA_EXPAND_FWD, K3_OP_MLA_ATTN_FWD,
					   K3_OP_KDA_CHUNK_FWD,	 K3_OP_MOE_DISPATCH_FWD};
	for (size_t i = 0; i < sizeof(twice) / sizeof(twice[0]); i++)
		cr_expect(first[twice[i]] > 0 && again[twice[i]] == first[twice[i]], "%s: %zu, %zu",
			  k3_op_name(twice[i]), first[twice[i]], again[twice[i]]);
	static const enum k3_op once[] = {
		K3_OP_KDA_OUT_FWD,     K3_OP_MLA_OUT_FWD,   K3_OP_MOE_ROUTE_FWD,  K3_OP_MOE_COUNT,
		K3_OP_MOE_COMBINE_FWD, K3_OP_DENSE_FFN_FWD, K3_OP_SHARED_FFN_FWD, K3_OP_EXPERT_FWD};
	for (size_t i = 0; i < sizeof(once) / sizeof(once[0]); i++)
		cr_expect(first[once[i]] > 0 && again[once[i]] == 0, "%s", k3_op_name(once[i]));
	cr_expect_eq(again[K3_OP_EXPERT_GU], first[K3_OP_EXPERT_FWD]);
	cr_expect_eq(again[K3_OP_SHARED_FFN_GU], first[K3_OP_SHARED_FFN_FWD]);
	cr_expect_eq(again[K3_OP_DENSE_FFN_GU], first[K3_OP_DENSE_FFN_FWD]);
	/* two mixes per layer; the output mix is not part of a layer */
	cr_expect_eq(again[K3_OP_MIX_NORM_FWD], 2 * model->config.layers);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

static uint64_t
bound_with(const struct k3_config *config, const struct k3_plan_options *options,
	   const struct k3_run_shape *shape)
{
	struct k3_memory memory;
	struct k3_model *model;

	cr_assert_eq(k3_model_create(&model, config, options), K3_OK);
	cr_assert_eq(k3_memory_run(&memory, model, shape), K3_OK);
	uint64_t bound = k3_memory_bound(&memory);
	k3_memory_fini(&memory);
	k3_model_destroy(model);
	return bound;
}

TEST(the_choice_fits_and_one_layer_less_would_not)
{
	struct k3_run_shape shape = {.tokens = 1024, .accumulate = 2, .evaluates = true};
	struct k3_plan_options o;
	struct k3_config config;

	cr_assert_eq(k3_config_load(&config, "debug17"), K3_OK);
	k3_plan_options_init(&o);
	o.tile_tokens = 256;
	uint64_t keep = bound_with(&config, &o, &shape);
	memset(o.activations, K3_RECOMPUTE, sizeof(o.activations));
	uint64_t recompute = bound_with(&config, &o, &shape);
	cr_assert(recompute < keep);
	for (uint64_t part = 0; part <= 4; part++) {
		uint64_t limit = recompute + (keep - recompute) * part / 4;
		uint32_t n = 0;
		cr_assert_eq(k3_activations_choose(&o, &config, &shape, limit), K3_OK);
		cr_expect(bound_with(&config, &o, &shape) <= limit);
		while (n < config.layers && o.activations[n] == K3_RECOMPUTE)
			n++;
		for (uint32_t l = n; l < config.layers; l++)
			cr_expect_eq(o.activations[l], K3_KEEP);
		cr_expect_eq(n == 0, part == 4);
		if (n > 0) {
			o.activations[n - 1] = K3_KEEP;
			cr_expect(bound_with(&config, &o, &shape) > limit, "%u layers at part %d",
				  n, (int)part);
		}
	}
}

TEST(a_squeeze_takes_what_fits_and_all_layers_where_nothing_does)
{
	struct k3_run_shape shape = {.tokens = 512, .accumulate = 2};
	struct k3_plan_options o, same;
	struct k3_config config;

	cr_assert_eq(k3_config_load(&config, "debug17"), K3_OK);
	k3_plan_options_init(&o);
	o.tile_tokens = 256;
	uint64_t keep = bound_with(&config, &o, &shape);
	memset(o.activations, K3_RECOMPUTE, sizeof(o.activations));
	uint64_t recompute = bound_with(&config, &o, &shape);
	const uint64_t limits[] = {keep, (keep + recompute) / 2, recompute, recompute - 1, 1};
	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
		same = o;
		capture_begin();
		cr_assert_eq(k3_activations_squeeze(&o, &config, &shape, limits[i]), K3_OK);
		char *log = capture_end();
		cr_expect_str_eq(log, "", "no fault: %s", log);
		free(log);
		if (limits[i] >= recompute)
			cr_assert_eq(k3_activations_choose(&same, &config, &shape, limits[i]),
				     K3_OK);
		for (uint32_t l = 0; l < config.layers; l++)
			cr_expect_eq(o.activations[l],
				     limits[i] >= recompute ? same.activations[l] : K3_RECOMPUTE);
	}
}

TEST(what_cannot_fit_is_refused_with_the_missing_bytes)
{
	struct k3_run_shape shape = {.tokens = 256, .accumulate = 1};
	struct k3_plan_options o;
	struct k3_config config;
	char missing[64];

	cr_assert_eq(k3_config_load(&config, "tiny"), K3_OK);
	k3_plan_options_init(&o);
	memset(o.activations, K3_RECOMPUTE, sizeof(o.activations));
	uint64_t least = bound_with(&config, &o, &shape);
	snprintf(missing, sizeof(missing), "%llu bytes are missing",
		 (unsigned long long)(least - (least - 12345)));
	capture_begin();
	cr_expect_eq(k3_activations_choose(&o, &config, &shape, least - 12345), K3_ELIMIT);
	expect_message(capture_end(), missing);
}
