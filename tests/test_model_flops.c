/* Products of the model, counted by hand. */
#include <criterion/criterion.h>
#include <string.h>

#include "../common/status.h"
#include "../planner/model_flops.h"
#include "vision_case.h"

/* Two layers, KDA with a dense feed-forward and MLA with experts; sizes that no two share. */
static void
make_config(struct k3_config *c)
{
	cr_assert_eq(k3_config_preset(c, "tiny"), K3_OK);
	c->vision.present = false;
	cr_assert_eq(k3_config_set_layers(c, 2), K3_OK);
	c->is_mla[0] = false;
	c->is_mla[1] = true;
	cr_assert_eq(k3_config_set_vocab(c, 300), K3_OK);
	c->width = 40;
	c->heads = 3;
	c->q_rank = 24;
	c->kv_rank = 20;
	c->nope_dim = 16;
	c->rope_dim = 8;
	c->v_dim = 12;
	c->kda_heads = 2;
	c->kda_dim = 32;
	c->dense_ffn = 56;
	c->first_dense = 1;
	c->experts = 6;
	c->top_k = 2;
	c->latent = 36;
	c->expert_ffn = 28;
	c->shared_experts = 2;
}

static struct k3_model_flops
count(const struct k3_plan_options *options, const int32_t *docs, size_t n)
{
	struct k3_model *model = NULL;
	struct k3_config config;
	struct k3_model_flops flops;

	make_config(&config);
	cr_assert_eq(k3_model_create(&model, &config, options), K3_OK);
	k3_model_flops(&flops, model, &(struct k3_layout){.n_tokens = n, .doc_ids = docs});
	k3_model_destroy(model);
	return flops;
}

Test(model_flops, products_are_those_counted_by_hand, .timeout = 60)
{
	/* padding, a document of 3 with a hole in it, one of 2: 5 tokens, 6 + 3 pairs */
	static const int32_t docs[] = {0, 1, 1, 0, 1, 2, 2, 0};
	const double d = 40, p = 2 * 32;
	const double kda = 3 * p * d + 32 * d + p * 32 + 2 * d + p * d + d * p;
	const double dense = 3 * 56 * d;
	const double mla =
		24 * d + 3 * 24 * 24 + (20 + 8) * d + 3 * (16 + 12) * 20 + 3 * 12 * d + d * 3 * 12;
	const double experts = 6 * d + 2 * 36 * d + 3 * 2 * 28 * d + 2 * 3 * 28 * 36;
	const double head = 300 * d;
	struct k3_plan_options options;

	k3_plan_options_init(&options);
	struct k3_model_flops f = count(&options, docs, 8);
	cr_expect_float_eq(f.weights, 6 * 5 * (kda + dense + mla + experts + head), 0.5);
	cr_expect_float_eq(f.attention, 3 * 2 * 9 * 3 * (16 + 8 + 12), 0.5);
	/* per token and head: M and Pq 4Ck, W and U 4Ck, Pq V 2Ck, three products with a state */
	cr_expect_float_eq(f.kda, 3 * 5 * 2 * (10 * 64 * 32 + 6 * 32 * 32), 0.5);
}

Test(model_flops, how_a_plan_computes_does_not_matter, .timeout = 60)
{
	int32_t docs[256];
	struct k3_plan_options whole, cut;

	for (int i = 0; i < 256; i++)
		docs[i] = 1;
	k3_plan_options_init(&whole);
	cut = whole;
	cut.tile_tokens = 64;
	cut.expert_groups = 3;
	cut.block_bytes = 4096;
	memset(cut.activations, K3_RECOMPUTE, sizeof(cut.activations));
	struct k3_model_flops a = count(&whole, docs, 256), b = count(&cut, docs, 256);
	cr_expect_eq(a.weights, b.weights);
	cr_expect_eq(a.attention, b.attention);
	cr_expect_eq(a.kda, b.kda);
}

/* By hand for the tower of vision_case: two blocks, width and attention 48, hidden 96, patches
 * of 2 x 2 pixels, text width 64. */
Test(model_flops, images_count_their_patches_pairs_and_merged_tokens, .timeout = 60)
{
	static const double n[] = {24, 64}, m[] = {6, 8};
	struct k3_plan_options o = vision_case_options();
	struct k3_model *model = vision_case_model("cp=1", 0, &o);
	struct k3_model_flops flops, text;
	struct vision_case v;
	double want = 0;

	vision_case_init(&v, 40, "1x4x6@2 2x8x4@20");
	k3_model_flops(&flops, model, &v.layout);
	v.layout.n_items = 0;
	k3_model_flops(&text, model, &v.layout);
	for (int i = 0; i < 2; i++) {
		double qkv_out_mlp = 48 * 144 + 48 * 48 + 2 * 48 * 96;
		want += 2 * 2 * n[i] * 48 * 12 + 2 * 3 * 2 * n[i] * qkv_out_mlp +
			2 * 3 * 2 * 2 * n[i] * n[i] * 48 + 3 * 2 * m[i] * 192 * (192 + 64);
	}
	cr_expect_float_eq(flops.vision, want, 0.5, "%.9g, expected %.9g", flops.vision, want);
	cr_expect_eq(text.vision, 0);
	cr_expect(text.weights == flops.weights && text.attention == flops.attention);
	vision_case_fini(&v);
	k3_model_destroy(model);
}

/* Tasks do the same products, and the scores once more in the backward pass. */
Test(model_flops, tasks_of_the_tower_do_the_models_products_and_scores_again, .timeout = 60)
{
	struct k3_plan_options o = vision_case_options();
	const struct k3_microbatch what = {.backward = true, .first = true};
	const double scores = 2 * 2 * (24.0 * 24 + 64.0 * 64 + 4 * 4) * 48;
	struct vision_case v;

	vision_case_init(&v, 40, "1x4x6@2 2x8x4@20 1x2x2@28");
	for (uint32_t bands = 0; bands <= 3; bands++) {
		struct k3_model_flops flops;
		double tasks = 0;
		o.vision_bands = bands;
		struct k3_model *model = vision_case_model("cp=1", 0, &o);
		struct k3_plan *plan =
			vision_case_plan(model, 40, "1x4x6@2 2x8x4@20 1x2x2@28", what);
		k3_model_flops(&flops, model, &v.layout);
		for (size_t i = 0; i < plan->n_tasks; i++) {
			const struct k3_task *t = &plan->task[i];
			if (k3_op_family((enum k3_op)t->op) == K3_FAMILY_VIT &&
			    t->op != K3_OP_VIT_MERGE_FWD && t->op != K3_OP_VIT_MERGE_BWD)
				tasks += t->flops;
		}
		cr_expect_float_eq(tasks, flops.vision + scores, 0.5, "%u bands: %.9g and %.9g",
				   bands, tasks, flops.vision + scores);
		k3_plan_destroy(plan);
		k3_model_destroy(model);
	}
	vision_case_fini(&v);
}
