/* The parameter table: names and shapes of a checkpoint, block cuts, every element exactly once. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../planner/params.h"
#include "fixture.h"

#define TEST(name) Test(params, name, .timeout = 60)

static struct k3_config config;

static struct k3_params
table(const char *preset, size_t block_bytes, size_t groups)
{
	struct k3_params p;

	cr_assert_eq(k3_config_preset(&config, preset), K3_OK);
	cr_assert_eq(k3_params_init(&p, &config, false, block_bytes, groups), K3_OK);
	return p;
}

/* Looks a checkpoint tensor up by name. */
static struct k3_ckpt_tensor
find(const struct k3_params *p, const char *name)
{
	struct k3_ckpt_tensor t;

	for (size_t i = 0; i < k3_params_n_tensors(p); i++) {
		k3_params_tensor(p, i, &t);
		if (strcmp(t.name, name) == 0)
			return t;
	}
	cr_assert_fail("no tensor %s", name);
	abort();
}

TEST(keys_and_shapes_equal_those_of_a_golden_file)
{
	struct k3_st *st = fixture_open("golden/text_tiny");
	struct k3_params p;
	size_t weights = 0;

	cr_assert_eq(k3_config_preset(&config, "tiny"), K3_OK);
	cr_assert_eq(k3_config_set_vocab(&config, 128), K3_OK);
	cr_assert_eq(k3_params_init(&p, &config, false, (size_t)64 << 20, 0), K3_OK);
	for (size_t i = 0; i < k3_params_n_tensors(&p); i++) {
		struct k3_ckpt_tensor t;
		k3_params_tensor(&p, i, &t);
		const struct k3_st_tensor *f = k3_st_find(st, t.name);
		cr_assert_not_null(f, "%s is not in the file", t.name);
		cr_assert_eq(f->n_dims, t.n_dims, "%s", t.name);
		for (uint32_t k = 0; k < t.n_dims; k++)
			cr_assert_eq(f->dims[k], t.dims[k], "%s, dimension %u", t.name, k);
	}
	for (size_t i = 0; i < k3_st_count(st); i++)
		weights += strncmp(k3_st_at(st, i)->name, "language_model.", 15) == 0;
	cr_assert_eq(weights, k3_params_n_tensors(&p));
	k3_params_fini(&p);
	k3_st_close(st);
}

/* Marks the rows of each parameter that tensors cover. */
static void
expect_covered_once(const struct k3_params *p)
{
	for (size_t i = 0; i < p->n; i++) {
		unsigned char *seen = calloc(p->param[i].rows, 1);
		for (size_t k = p->first_tensor[i]; k < p->first_tensor[i + 1]; k++) {
			struct k3_ckpt_tensor t;
			k3_params_tensor(p, k, &t);
			for (size_t r = 0; t.kind == K3_CKPT_PARAM && r < t.rows; r++)
				seen[t.row0 + r]++;
		}
		for (size_t r = 0; r < p->param[i].rows; r++)
			cr_assert_eq(seen[r], 1, "%s row %zu: %d times", p->param[i].name, r,
				     seen[r]);
		free(seen);
	}
}

TEST(tensors_cover_every_row_of_every_parameter_once)
{
	struct k3_params p = table("debug17", (size_t)64 << 20, 3);

	expect_covered_once(&p);
	k3_params_fini(&p);
}

TEST(blocks_cover_every_row_and_respect_the_limit)
{
	struct k3_params p = table("debug17", 100000, 0);

	for (size_t i = 0; i < p.n; i++) {
		const struct k3_param *x = &p.param[i];
		size_t unit = x->experts_per_block ? x->block_rows / x->experts_per_block : 1;
		cr_assert(x->block_rows * x->cols * sizeof(float) <= 100000 ||
				  x->block_rows == unit,
			  "%s", x->name);
		cr_assert(x->n_blocks * x->block_rows >= x->rows, "%s", x->name);
		cr_assert((x->n_blocks - 1) * x->block_rows < x->rows, "%s", x->name);
	}
	k3_params_fini(&p);
}

TEST(expert_stacks_are_cut_at_whole_experts_and_alike)
{
	struct k3_params p = table("debug17", (size_t)64 << 20, 3);
	const struct k3_param *w13 = &p.param[k3_params_find(&p, K3_P_EXPERT_W13, 1)];
	const struct k3_param *w2 = &p.param[k3_params_find(&p, K3_P_EXPERT_W2, 1)];

	cr_assert_eq(w13->experts_per_block, 3);
	cr_assert_eq(w13->n_blocks, 3);
	cr_assert_eq(w2->n_blocks, 3);
	cr_assert_eq(w13->block_rows, 3 * 2 * 128);
	cr_assert_eq(w2->block_rows, 3 * 128);
	k3_params_fini(&p);
}

TEST(more_groups_than_experts_are_refused)
{
	struct k3_params p;

	cr_assert_eq(k3_config_preset(&config, "tiny"), K3_OK);
	cr_assert_eq(k3_params_init(&p, &config, false, (size_t)64 << 20, 7), K3_EINVAL);
}

TEST(a_matrix_of_one_row_is_no_vector)
{
	struct k3_params p;

	cr_assert_eq(k3_config_preset(&config, "tiny"), K3_OK);
	config.kda_heads = 1;
	config.experts = config.top_k = 1;
	config.latent = 1;
	cr_assert_eq(k3_params_init(&p, &config, false, (size_t)64 << 20, 0), K3_OK);
	struct k3_ckpt_tensor beta =
		find(&p, "language_model.model.layers.0.self_attn.b_proj.weight");
	struct k3_ckpt_tensor gate =
		find(&p, "language_model.model.layers.1.block_sparse_moe.gate.weight");
	cr_assert(beta.n_dims == 2 && beta.dims[0] == 1 && beta.dims[1] == 64);
	cr_assert(gate.n_dims == 2 && gate.dims[0] == 1 && gate.dims[1] == 64);
	cr_assert_eq(p.param[beta.param].init, K3_INIT_NORMAL);
	k3_params_fini(&p);
}

TEST(a_log_is_padded_to_128_and_counts_its_heads)
{
	struct k3_params p = table("debug17", (size_t)64 << 20, 0);
	struct k3_ckpt_tensor t = find(&p, "language_model.model.layers.0.self_attn.A_log");

	cr_assert(t.n_dims == 1 && t.dims[0] == 128 && t.n_elems == 4 && t.keep_f32);
	k3_params_fini(&p);
}

TEST(layer_0_has_a_mixer_pair_in_the_file_only)
{
	struct k3_params p = table("tiny", (size_t)64 << 20, 0);
	struct k3_ckpt_tensor norm =
		find(&p, "language_model.model.layers.0.self_attention_res_norm.weight");
	struct k3_ckpt_tensor proj =
		find(&p, "language_model.model.layers.0.self_attention_res_proj.weight");

	cr_assert_eq(norm.kind, K3_CKPT_ONES);
	cr_assert_eq(proj.kind, K3_CKPT_ZEROS);
	cr_assert_eq(k3_params_find(&p, K3_P_ATTN_RES_NORM, 0), -1);
	cr_assert_geq(k3_params_find(&p, K3_P_ATTN_RES_NORM, 1), 0);
	k3_params_fini(&p);
}

TEST(the_release_has_its_published_number_of_unquantised_tensors)
{
	struct k3_params p;

	/* 497,220 stored tensors; each routed matrix is two of them there (packed, scale) and one
	 * here */
	cr_assert_eq(k3_config_preset(&config, "Kimi-K3"), K3_OK);
	cr_assert_eq(k3_params_init(&p, &config, true, (size_t)64 << 20, 0), K3_OK);
	cr_assert_eq(k3_params_n_tensors(&p), 497220 - 92 * 896 * 3);
	k3_params_fini(&p);
}

static void
expect_counts(const struct k3_config *c, const uint64_t *want)
{
	uint64_t text, routed, vision, active;

	k3_params_count(c, &text, &routed, &vision, &active);
	cr_expect_eq(text, want[0], "%s: %ju", c->name, (uintmax_t)text);
	cr_expect_eq(routed, want[1], "%s: %ju", c->name, (uintmax_t)routed);
	cr_expect_eq(vision, want[2], "%s: %ju", c->name, (uintmax_t)vision);
	if (want[3])
		cr_expect_eq(active, want[3], "%s: %ju", c->name, (uintmax_t)active);
}

TEST(presets_count_as_published)
{
	/* text, routed experts, vision with projector, active with the embedding (release alone) */
	static const struct {
		const char *name;
		uint64_t want[4];
	} preset[] = {
		{"Kimi-K3", {2779484379232, 2722740830208, 447358976, 105363920992}},
		{"debug", {94832580, 4718592, 5199360, 0}},
		{"debug24", {1083498016, 434110464, 36486656, 0}},
		{"debug17", {23585008, 6291456, 3297792, 0}},
		{"mini", {80930492, 27525120, 4871424 + 1573376, 0}},
	};
	uint64_t text, routed, vision, active;

	for (size_t i = 0; i < sizeof(preset) / sizeof(preset[0]); i++) {
		cr_assert_eq(k3_config_preset(&config, preset[i].name), K3_OK);
		expect_counts(&config, preset[i].want);
	}
	cr_assert_eq(k3_config_preset(&config, "small"), K3_OK);
	k3_params_count(&config, &text, &routed, &vision, &active);
	cr_expect(text == 84802 && routed == 6144);
}

TEST(an_early_debug_model_with_kda_in_the_last_layer_counts_as_published)
{
	cr_assert_eq(k3_config_preset(&config, "debug"), K3_OK);
	config.is_mla[12] = false;
	expect_counts(&config, (const uint64_t[]){94851496, 4718592, 5199360, 0});
}

/* The tensor that a row is looked for in holds it; every row of every parameter. */
TEST(tensors_are_found_by_their_rows)
{
	struct k3_params p = table("debug17", 1 << 20, 5);

	for (size_t i = 0; i < p.n; i++)
		for (size_t r = 0; r < p.param[i].rows; r++) {
			struct k3_ckpt_tensor t;
			size_t at = k3_params_tensor_at(&p, i, r);
			cr_assert(at >= p.first_tensor[i] && at < p.first_tensor[i + 1]);
			k3_params_tensor(&p, at, &t);
			cr_assert(t.kind == K3_CKPT_PARAM && t.row0 <= r && r < t.row0 + t.rows,
				  "%s, row %zu: %s", p.param[i].name, r, t.name);
		}
	k3_params_fini(&p);
}

TEST(trained_elements_are_those_of_the_tensors)
{
	struct k3_params p = table("debug17", (size_t)64 << 20, 0);
	uint64_t trained = 0, bias = 0;

	for (size_t i = 0; i < k3_params_n_tensors(&p); i++) {
		struct k3_ckpt_tensor t;
		k3_params_tensor(&p, i, &t);
		trained += t.kind == K3_CKPT_PARAM ? t.n_elems : 0;
		bias += t.kind == K3_CKPT_BIAS ? t.n_elems : 0;
	}
	cr_expect_eq(trained, 23585008u);
	cr_expect_eq(p.n_elems, 23585008u);
	cr_expect_eq(bias, 16u * 8);
	k3_params_fini(&p);
}

/* Tensors of the release by name (model.md 11): layer 0 is KDA and dense, 1 KDA, 3 MLA. */
struct release {
	const char *name;
	uint32_t n_dims;
	uint64_t dims[4];
	bool keep_f32;
};

static void
expect_release(const char *prefix, size_t n, const struct release *want)
{
	struct k3_params p;
	char name[160];

	cr_assert_eq(k3_config_preset(&config, "Kimi-K3"), K3_OK);
	cr_assert_eq(k3_params_init(&p, &config, true, (size_t)64 << 20, 0), K3_OK);
	for (size_t i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "%s%s", prefix, want[i].name);
		struct k3_ckpt_tensor t = find(&p, name);
		cr_expect_eq(t.n_dims, want[i].n_dims, "%s", name);
		for (uint32_t k = 0; k < want[i].n_dims; k++)
			cr_expect_eq(t.dims[k], want[i].dims[k], "%s, dimension %u: %ju", name, k,
				     (uintmax_t)t.dims[k]);
		cr_expect_eq(t.keep_f32, want[i].keep_f32, "%s", name);
	}
	k3_params_fini(&p);
}

#define EXPECT_RELEASE(prefix, want) expect_release(prefix, sizeof(want) / sizeof(want[0]), want)

TEST(the_release_names_its_global_tensors)
{
	static const struct release want[] = {
		{"model.embed_tokens.weight", 2, {163840, 7168}, false},
		{"lm_head.weight", 2, {163840, 7168}, false},
		{"model.norm.weight", 1, {7168}, false},
		{"model.output_attn_res_norm.weight", 1, {7168}, false},
		{"model.output_attn_res_proj.weight", 2, {1, 7168}, false},
	};

	EXPECT_RELEASE("language_model.", want);
}

TEST(the_release_names_a_kda_layer)
{
	static const struct release want[] = {
		{"input_layernorm.weight", 1, {7168}, false},
		{"post_attention_layernorm.weight", 1, {7168}, false},
		{"self_attention_res_norm.weight", 1, {7168}, false},
		{"self_attention_res_proj.weight", 2, {1, 7168}, false},
		{"mlp_res_norm.weight", 1, {7168}, false},
		{"mlp_res_proj.weight", 2, {1, 7168}, false},
		{"self_attn.q_proj.weight", 2, {12288, 7168}, false},
		{"self_attn.k_proj.weight", 2, {12288, 7168}, false},
		{"self_attn.v_proj.weight", 2, {12288, 7168}, false},
		{"self_attn.q_conv1d.weight", 3, {12288, 1, 4}, true},
		{"self_attn.k_conv1d.weight", 3, {12288, 1, 4}, true},
		{"self_attn.v_conv1d.weight", 3, {12288, 1, 4}, true},
		{"self_attn.f_a_proj.weight", 2, {128, 7168}, false},
		{"self_attn.f_b_proj.weight", 2, {12288, 128}, false},
		{"self_attn.b_proj.weight", 2, {96, 7168}, false},
		{"self_attn.g_proj.weight", 2, {12288, 7168}, false},
		{"self_attn.o_norm.weight", 1, {128}, true},
		{"self_attn.o_proj.weight", 2, {7168, 12288}, false},
		{"self_attn.A_log", 1, {128}, true},
		{"self_attn.dt_bias", 1, {12288}, true},
	};

	EXPECT_RELEASE("language_model.model.layers.1.", want);
}

TEST(the_release_names_an_mla_layer)
{
	static const struct release want[] = {
		{"q_a_proj.weight", 2, {1536, 7168}, false},
		{"q_a_layernorm.weight", 1, {1536}, false},
		{"q_b_proj.weight", 2, {18432, 1536}, false},
		{"kv_a_proj_with_mqa.weight", 2, {576, 7168}, false},
		{"kv_a_layernorm.weight", 1, {512}, false},
		{"kv_b_proj.weight", 2, {24576, 512}, false},
		{"g_proj.weight", 2, {12288, 7168}, false},
		{"o_proj.weight", 2, {7168, 12288}, false},
	};

	EXPECT_RELEASE("language_model.model.layers.3.self_attn.", want);
	EXPECT_RELEASE("language_model.model.layers.92.self_attn.", want);
}

TEST(the_release_names_the_dense_layer_and_the_experts)
{
	static const struct release dense[] = {
		{"gate_proj.weight", 2, {33792, 7168}, false},
		{"up_proj.weight", 2, {33792, 7168}, false},
		{"down_proj.weight", 2, {7168, 33792}, false},
	};
	static const struct release moe[] = {
		{"gate.weight", 2, {896, 7168}, false},
		{"gate.e_score_correction_bias", 1, {896}, true},
		{"routed_expert_down_proj.weight", 2, {3584, 7168}, false},
		{"routed_expert_up_proj.weight", 2, {7168, 3584}, false},
		{"routed_expert_norm.weight", 1, {3584}, false},
		{"shared_experts.gate_proj.weight", 2, {6144, 7168}, false},
		{"shared_experts.up_proj.weight", 2, {6144, 7168}, false},
		{"shared_experts.down_proj.weight", 2, {7168, 6144}, false},
		{"experts.0.w1.weight", 2, {3072, 3584}, false},
		{"experts.895.w2.weight", 2, {3584, 3072}, false},
		{"experts.895.w3.weight", 2, {3072, 3584}, false},
	};

	EXPECT_RELEASE("language_model.model.layers.0.mlp.", dense);
	EXPECT_RELEASE("language_model.model.layers.1.block_sparse_moe.", moe);
}

TEST(the_release_names_the_vision_tower)
{
	static const struct release want[] = {
		{"vision_tower.patch_embed.proj.weight", 4, {1024, 3, 14, 14}, false},
		{"vision_tower.patch_embed.pos_emb.weight", 3, {64, 64, 1024}, false},
		{"vision_tower.encoder.blocks.0.norm0.weight", 1, {1024}, false},
		{"vision_tower.encoder.blocks.26.norm1.weight", 1, {1024}, false},
		{"vision_tower.encoder.blocks.26.wqkv.weight", 2, {4608, 1024}, false},
		{"vision_tower.encoder.blocks.26.wo.weight", 2, {1024, 1536}, false},
		{"vision_tower.encoder.blocks.26.mlp.fc0.weight", 2, {4096, 1024}, false},
		{"vision_tower.encoder.blocks.26.mlp.fc1.weight", 2, {1024, 4096}, false},
		{"vision_tower.encoder.final_layernorm.weight", 1, {1024}, false},
		{"mm_projector.proj.0.weight", 2, {4096, 4096}, false},
		{"mm_projector.proj.2.weight", 2, {7168, 4096}, false},
		{"mm_projector.post_norm.weight", 1, {7168}, false},
	};

	EXPECT_RELEASE("", want);
}

TEST(experts_of_a_stack_interleave_gate_and_up_rows)
{
	struct k3_params p = table("debug17", (size_t)64 << 20, 0);
	struct k3_ckpt_tensor t;

	/* F = 128: expert 5 has rows 1280.. of the stack, gate first */
	t = find(&p, "language_model.model.layers.1.block_sparse_moe.experts.5.w1.weight");
	cr_expect(t.row0 == 1280 && t.rows == 128);
	t = find(&p, "language_model.model.layers.1.block_sparse_moe.experts.5.w3.weight");
	cr_expect(t.row0 == 1408 && t.rows == 128);
	t = find(&p, "language_model.model.layers.1.block_sparse_moe.experts.5.w2.weight");
	cr_expect(t.row0 == 640 && t.rows == 128);
	k3_params_fini(&p);
}

/* Kernels of the convolution read its weights as one block. */
TEST(convolution_weights_are_never_cut)
{
	struct k3_params ps = table("tiny", 256, 0);
	bool cut = false;

	for (size_t i = 0; i < ps.n; i++) {
		const struct k3_param *p = &ps.param[i];
		if (p->role == K3_P_KDA_CQ || p->role == K3_P_KDA_CK || p->role == K3_P_KDA_CV)
			cr_expect(p->n_blocks == 1 && p->block_rows == p->rows, "%s", p->name);
		cut = cut || p->n_blocks > 1;
	}
	cr_expect(cut, "nothing was cut at all");
	k3_params_fini(&ps);
}
