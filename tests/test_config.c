/* Presets and changes of a configuration.  The sizes of the presets are held by the parameter
 * counts that are published for them: nearly every size is a factor of some term of the count. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/config.h"
#include "../common/status.h"
#include "config_case.h"
#include "scratch.h"

TestSuite(config, .init = scratch_start, .fini = scratch_stop, .timeout = 60);

static struct k3_config
preset(const char *name)
{
	struct k3_config config;

	cr_assert_eq(k3_config_preset(&config, name), K3_OK, "%s", name);
	return config;
}

/* Trained parameters of the text model, without the unused mixer pair of layer 0. */
static uint64_t
text_parameters(const struct k3_config *c)
{
	uint64_t d = c->width, n = 2 * c->vocab * d + 3 * d;
	uint64_t p = (uint64_t)c->kda_heads * c->kda_dim, h = c->heads;
	uint64_t mla = d * c->q_rank + c->q_rank + c->q_rank * h * (c->nope_dim + c->rope_dim) +
		       d * (c->kv_rank + c->rope_dim) + c->kv_rank +
		       c->kv_rank * h * (c->nope_dim + c->v_dim) + 2 * d * h * c->v_dim;
	uint64_t kda = 3 * d * p + 3 * p * c->conv_taps + d * c->kda_dim + c->kda_dim * p +
		       d * c->kda_heads + 2 * d * p + c->kda_heads + p + c->kda_dim;
	uint64_t moe = d * c->experts + 2 * d * c->latent + c->latent +
		       3 * d * c->shared_experts * c->expert_ffn +
		       3ull * c->experts * c->latent * c->expert_ffn;

	for (uint32_t l = 0; l < c->layers; l++)
		n += (l > 0 ? 6 : 4) * d + (c->is_mla[l] ? mla : kda) +
		     (l < c->first_dense ? 3 * d * c->dense_ffn : moe);
	return n;
}

static uint64_t
vision_parameters(const struct k3_config *c)
{
	const struct k3_vision_config *v = &c->vision;
	uint64_t d = v->width, m = v->merge_h * v->merge_w * d;
	uint64_t block = 2 * d + 4 * d * v->qkv_width + 2 * d * v->ffn;

	return 3 * v->patch * v->patch * d + (uint64_t)v->table_h * v->table_w * d +
	       v->layers * block + d + m * m + m * c->width + c->width;
}

Test(config, presets_have_the_published_parameter_counts)
{
	static const struct {
		const char *name;
		uint64_t text, vision;
	} want[] = {
		{"Kimi-K3", 2779484379232, 447358976}, {"debug", 94832580, 5199360},
		{"debug24", 1083498016, 36486656},     {"debug17", 23585008, 3297792},
		{"mini", 80930492, 4871424 + 1573376},
	};

	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		struct k3_config c = preset(want[i].name);
		cr_expect_eq(text_parameters(&c), want[i].text, "%s", want[i].name);
		cr_expect_eq(vision_parameters(&c), want[i].vision, "%s", want[i].name);
	}
	struct k3_config small = preset("small");
	cr_expect_eq(text_parameters(&small), 84802u);
}

Test(config, presets_have_the_sizes_that_no_count_holds)
{
	/* layers a residual block, experts a token, vision heads, experts */
	static const struct {
		const char *name;
		uint32_t block_layers, top_k, vision_heads, experts, q_rank, kv_rank;
	} want[] = {
		{"Kimi-K3", 12, 16, 12, 896, 1536, 512},
		{"debug", 12, 2, 3, 8, 128, 64},
		{"debug24", 12, 4, 6, 32, 512, 256},
		{"debug17", 4, 2, 4, 8, 128, 64},
		{"mini", 12, 2, 4, 8, 128, 512},
		{"small", 1, 1, 3, 2, 32, 32},
		{"tiny", 2, 2, 0, 6, 32, 24},
		{"recall", 2, 2, 0, 4, 32, 24},
	};

	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		struct k3_config c = preset(want[i].name);
		cr_expect_eq(c.block_layers, want[i].block_layers, "%s", c.name);
		cr_expect_eq(c.top_k, want[i].top_k, "%s", c.name);
		cr_expect_eq(c.vision.heads, want[i].vision_heads, "%s", c.name);
		cr_expect_eq(c.experts, want[i].experts, "%s", c.name);
		cr_expect_eq(c.q_rank, want[i].q_rank, "%s", c.name);
		cr_expect_eq(c.kv_rank, want[i].kv_rank, "%s", c.name);
		cr_expect_eq(c.gate_lower_bound, -5.0);
		cr_expect_eq(c.route_scale, 1.0);
		cr_expect_eq(c.situ_beta1, 4.0);
		cr_expect_eq(c.situ_beta2, 25.0);
		cr_expect_eq(c.norm_eps, 1e-5);
		cr_expect_eq(c.mla_norm_eps, 1e-6);
		cr_expect_eq(c.l2_eps, 1e-6);
		cr_expect_eq(c.router_sum_eps, 1e-20);
		cr_expect_eq(c.vision.max_frames, strcmp(c.name, "small") == 0 ? 1u
						  : c.vision.present	       ? 4u
									       : 0u);
	}
}

Test(config, presets_have_mla_in_every_fourth_layer_and_in_the_last)
{
	static const struct {
		const char *name;
		uint32_t layers, mla[8];
	} want[] = {
		{"debug", 13, {3, 7, 11, 12}},
		{"debug17", 17, {3, 7, 11, 15, 16}},
		{"debug24", 24, {3, 7, 11, 15, 19, 23}},
		{"mini", 21, {3, 7, 11, 15, 19, 20}},
		{"small", 2, {1}},
		{"tiny", 5, {3, 4}},
	};

	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		struct k3_config c = preset(want[i].name);
		const uint32_t *next = want[i].mla;
		cr_assert_eq(c.layers, want[i].layers, "%s", c.name);
		for (uint32_t l = 0; l < c.layers; l++) {
			cr_expect_eq(c.is_mla[l], l == *next, "%s, layer %u", c.name, l);
			next += l == *next;
		}
	}
	struct k3_config k3 = preset("Kimi-K3");
	uint32_t n_mla = 0;
	for (uint32_t l = 0; l < k3.layers; l++)
		n_mla += k3.is_mla[l];
	cr_expect_eq(k3.layers, 93u);
	cr_expect_eq(n_mla, 24u);
	cr_expect(k3.is_mla[3] && k3.is_mla[91] && k3.is_mla[92] && !k3.is_mla[90]);
}

Test(config, the_preset_for_recall_has_no_mla_layer)
{
	struct k3_config c = preset("recall"), again;
	char *json = k3_config_json(&c);

	cr_expect_eq(c.layers, 2u);
	for (uint32_t l = 0; l < c.layers; l++)
		cr_expect(!c.is_mla[l], "layer %u", l);
	cr_assert_eq(k3_config_parse(&again, json, strlen(json), "recall"), K3_OK);
	cr_expect(again.layers == 2 && !again.is_mla[0] && !again.is_mla[1]);
	free(json);
}

Test(config, presets_have_their_special_ids)
{
	struct k3_config k3 = preset("Kimi-K3"), small = preset("small");

	cr_expect_eq(k3.bos, 163584u);
	cr_expect_eq(k3.eos, 163586u);
	cr_expect_eq(k3.pad, 163839u);
	cr_expect_eq(k3.placeholder, 163605u);
	cr_expect_eq(small.bos, 28u);
	cr_expect_eq(small.eos, 29u);
	cr_expect_eq(small.placeholder, 30u);
	cr_expect_eq(small.pad, 31u);
}

Test(config, every_listed_preset_passes_the_check)
{
	size_t n = 0;

	for (const char *const *name = k3_config_presets(); *name; name++, n++) {
		struct k3_config c = preset(*name);
		cr_expect_eq(k3_config_check(&c), K3_OK, "%s", *name);
		cr_expect_str_eq(c.name, *name);
	}
	cr_expect_eq(n, 8u);
}

Test(config, tiny_has_the_sizes_of_the_golden_text_case)
{
	struct k3_config tiny = preset("tiny"), golden;

	cr_assert_eq(config_case_parse(&golden, "128", "320"), K3_OK);
	cr_expect_eq(tiny.vocab, 320u);
	cr_expect_not(tiny.vision.present);
	cr_expect_eq(text_parameters(&tiny), text_parameters(&golden));
	cr_expect_eq(memcmp(tiny.is_mla, golden.is_mla, sizeof(tiny.is_mla)), 0);
}

Test(config, an_unknown_preset_is_refused_with_the_list)
{
	struct k3_config c;

	cr_expect_eq(k3_config_preset(&c, "kimi"), K3_ENOENT);
	scratch_expect_logged("small tiny recall debug debug17 debug24 mini Kimi-K3");
	cr_expect_eq(k3_config_load(&c, scratch_path("none")), K3_ENOENT);
	scratch_expect_logged("none");
}

Test(config, fewer_layers_keep_the_first_ones)
{
	struct k3_config c = preset("debug");

	cr_assert_eq(k3_config_set_layers(&c, 4), K3_OK);
	cr_expect_eq(c.layers, 4u);
	cr_expect(c.is_mla[3] && !c.is_mla[2]);
	cr_expect_eq(k3_config_check(&c), K3_OK);
	cr_expect_eq(k3_config_set_layers(&c, 5), K3_EINVAL, "the rest is gone");
	scratch_expect_logged("5");
}

Test(config, layer_numbers_outside_the_schedule_are_refused)
{
	static const long long bad[] = {0, -1, 14, 2147483648, 9223372036854775807};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct k3_config c = preset("debug");
		char text[32];
		snprintf(text, sizeof(text), "%lld", bad[i]);
		cr_expect_eq(k3_config_set_layers(&c, bad[i]), K3_EINVAL, "%lld", bad[i]);
		scratch_expect_logged(text);
		cr_expect_eq(c.layers, 13u);
	}
}

Test(config, another_vocabulary_moves_the_special_ids)
{
	struct k3_config c = preset("Kimi-K3");

	cr_assert_eq(k3_config_set_vocab(&c, 261), K3_OK);
	cr_expect_eq(c.vocab, 261u);
	cr_expect_eq(c.bos, 257u);
	cr_expect_eq(c.eos, 258u);
	cr_expect_eq(c.placeholder, 259u);
	cr_expect_eq(c.pad, 260u);
	cr_expect_eq(k3_config_check(&c), K3_OK);
}

Test(config, impossible_vocabularies_are_refused)
{
	static const long long bad[] = {0, -1, 4, 2147483648, 9223372036854775807};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct k3_config c = preset("small");
		cr_expect_eq(k3_config_set_vocab(&c, bad[i]), K3_EINVAL, "%lld", bad[i]);
		scratch_expect_logged("vocabulary");
		cr_expect_eq(c.vocab, 32u);
	}
}

Test(config, the_check_names_what_was_broken_by_hand)
{
	struct k3_config c = preset("debug");

	c.top_k = 9;
	cr_expect_eq(k3_config_check(&c), K3_EINVAL);
	scratch_expect_logged("num_experts_per_token is 9; it must be at most num_experts, 8");
	c = preset("debug");
	c.width = 0;
	cr_expect_eq(k3_config_check(&c), K3_EINVAL);
	scratch_expect_logged("hidden_size is 0");
	c = preset("debug");
	c.gate_lower_bound = (double)NAN;
	cr_expect_eq(k3_config_check(&c), K3_EINVAL);
	scratch_expect_logged("gate_lower_bound is nan");
	c = preset("debug");
	c.eos = c.vocab;
	cr_expect_eq(k3_config_check(&c), K3_EINVAL);
	scratch_expect_logged("eos_token_id is 163840");
}

Test(config, load_takes_presets_files_and_folders)
{
	struct k3_config c;

	scratch_write("config.json", config_case_text, strlen(config_case_text));
	cr_assert_eq(k3_config_load(&c, "debug17"), K3_OK);
	cr_expect_eq(c.layers, 17u);
	cr_assert_eq(k3_config_load(&c, scratch_path("config.json")), K3_OK);
	cr_expect_eq(c.layers, 5u);
	c.layers = 0;
	cr_assert_eq(k3_config_load(&c, scratch_path("")), K3_OK);
	cr_expect_eq(c.layers, 5u);
}

Test(config, a_preset_wins_over_a_file_of_its_name)
{
	struct k3_config c;

	cr_assert_eq(chdir(scratch_path("")), 0);
	scratch_write("debug17", config_case_text, strlen(config_case_text));
	cr_assert_eq(k3_config_load(&c, "debug17"), K3_OK);
	cr_expect_eq(c.layers, 17u);
	cr_assert_eq(k3_config_load(&c, "./debug17"), K3_OK);
	cr_expect_eq(c.layers, 5u);
}

Test(config, a_folder_without_config_json_is_refused)
{
	struct k3_config c;

	cr_expect_eq(k3_config_load(&c, scratch_path("")), K3_EIO);
	scratch_expect_logged("config.json");
}
