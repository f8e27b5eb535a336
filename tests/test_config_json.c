/* config.json, read and written: expected values are the golden case's own metadata. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/config.h"
#include "../common/status.h"
#include "config_case.h"
#include "scratch.h"

TestSuite(config_json, .init = scratch_start, .fini = scratch_stop, .timeout = 60);

static int
parse(struct k3_config *config, const char *text)
{
	return k3_config_parse(config, text, strlen(text), "case.json");
}

/* The metadata `config` of the golden file. */
static void
expect_golden_text(const struct k3_config *c)
{
	static const uint32_t want[] = {64, 128, 5,   2, 2, 32, 24, 16, 8, 16,	2,
					32, 4,	 128, 1, 6, 2,	32, 24, 2, 127, 126};
	const uint32_t got[] = {c->width,     c->vocab,	     c->layers,	     c->block_layers,
				c->heads,     c->q_rank,     c->kv_rank,     c->nope_dim,
				c->rope_dim,  c->v_dim,	     c->kda_heads,   c->kda_dim,
				c->conv_taps, c->dense_ffn,  c->first_dense, c->experts,
				c->top_k,     c->latent,     c->expert_ffn,  c->shared_experts,
				c->pad,	      c->placeholder};

	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
		cr_expect_eq(got[i], want[i], "number %zu is %u, expected %u", i, got[i], want[i]);
	for (uint32_t l = 0; l < 5; l++)
		cr_expect_eq(c->is_mla[l], l == 3 || l == 4, "layer %u", l);
	cr_expect_eq(c->gate_lower_bound, -5.0);
	cr_expect_eq(c->route_scale, 1.0);
	cr_expect_eq(c->situ_beta1, 4.0);
	cr_expect_eq(c->situ_beta2, 25.0);
	cr_expect_eq(c->norm_eps, 1e-5);
	cr_expect_eq(c->mla_norm_eps, 1e-6);
	cr_expect_eq(c->l2_eps, 1e-6);
	cr_expect_eq(c->router_sum_eps, 1e-20);
	cr_expect_eq(c->bos, 124u);
	cr_expect_eq(c->eos, 125u);
}

Test(config_json, nested_text_and_vision_are_read)
{
	struct k3_config c;

	cr_assert_eq(parse(&c, config_case_text), K3_OK);
	expect_golden_text(&c);
	cr_expect_str_eq(c.name, "case.json");
	cr_assert(c.vision.present);
	cr_expect_eq(c.vision.width, 48u);
	cr_expect_eq(c.vision.qkv_width, 64u);
	cr_expect_eq(c.vision.heads, 2u);
	cr_expect_eq(c.vision.ffn, 96u);
	cr_expect_eq(c.vision.layers, 2u);
	cr_expect_eq(c.vision.patch, 14u);
	cr_expect(c.vision.table_h == 8 && c.vision.table_w == 8);
	cr_expect_eq(c.vision.max_frames, 4u);
	cr_expect(c.vision.merge_h == 2 && c.vision.merge_w == 2);
	cr_expect_eq(c.vision.projector_eps, 1e-5);
	cr_expect_eq(c.vision.norm_eps, 1e-5);
	cr_expect_str_eq(scratch_log(), "", "nothing of a golden file is unknown");
}

Test(config_json, a_flat_file_reads_like_a_nested_one)
{
	char *opened = config_case_edit(config_case_text,
					"\"pad_token_id\": 127,\n \"text_config\": {", "");
	char *renamed = config_case_edit(opened, "\"model_type\": \"kimi_linear\", ", "");
	char *text = config_case_edit(renamed, "[1, 2, 3]}},\n", "[1, 2, 3]},\n");
	struct k3_config c;

	cr_assert_eq(parse(&c, text), K3_OK, "%s", scratch_log());
	expect_golden_text(&c);
	cr_expect(c.vision.present);
	cr_expect_str_eq(scratch_log(), "");
	free(opened);
	free(renamed);
	free(text);
}

Test(config_json, a_file_without_vision_has_none)
{
	char *start = config_case_edit(config_case_text, "]}},\n", "]}}}");
	struct k3_config c;

	strstr(start, "]}}}")[4] = '\0';
	cr_assert_eq(parse(&c, start), K3_OK, "%s", scratch_log());
	cr_expect_not(c.vision.present);
	expect_golden_text(&c);
	free(start);
}

Test(config_json, written_text_reads_back_equal)
{
	for (const char *const *name = k3_config_presets(); *name; name++) {
		struct k3_config c, back;
		cr_assert_eq(k3_config_preset(&c, *name), K3_OK);
		char *text = k3_config_json(&c);
		cr_assert_not_null(text);
		cr_assert_eq(k3_config_parse(&back, text, strlen(text), *name), K3_OK, "%s", *name);
		cr_expect_eq(memcmp(&c, &back, sizeof(c)), 0, "%s", *name);
		cr_expect_str_eq(scratch_log(), "");
		free(text);
	}
}

Test(config_json, every_number_survives_the_round_trip)
{
	struct k3_config c, back;

	cr_assert_eq(k3_config_preset(&c, "debug"), K3_OK);
	cr_assert_eq(k3_config_set_layers(&c, 6), K3_OK);
	c.first_dense = 0;
	c.gate_lower_bound = -1.0 / 3.0;
	c.route_scale = 2.872;
	c.norm_eps = 1.1920928955078125e-07;
	c.mla_norm_eps = 1e-5;
	c.l2_eps = 3e-7;
	c.router_sum_eps = 1e-12;
	c.vision.norm_eps = 0.0078125;
	c.vision.projector_eps = 1e-6;
	c.vision.merge_h = 1;
	c.vision.merge_w = 3;
	c.bos = 1;
	c.eos = 2;
	c.pad = 0;
	c.placeholder = 3;
	char *text = k3_config_json(&c);
	cr_assert_eq(k3_config_parse(&back, text, strlen(text), "debug"), K3_OK);
	cr_expect_eq(memcmp(&c, &back, sizeof(c)), 0);
	free(text);
}

Test(config_json, written_text_has_the_layout_of_the_release)
{
	struct k3_config c;

	cr_assert_eq(parse(&c, config_case_text), K3_OK);
	char *text = k3_config_json(&c);
	json_t *want = json_loads(config_case_text, 0, NULL), *got = json_loads(text, 0, NULL);

	cr_assert_not_null(got);
	/* the golden file says nothing of these two */
	json_object_del(got, "bos_token_id");
	json_object_del(got, "eos_token_id");
	cr_expect(json_equal(want, got), "%s", text);
	cr_expect_not_null(strstr(text, ": 1e-5,"), "short numbers stay short");
	json_decref(want);
	json_decref(got);
	free(text);
}

Test(config_json, our_own_eps_keys_are_written_only_when_they_differ)
{
	struct k3_config c;

	cr_assert_eq(k3_config_preset(&c, "debug"), K3_OK);
	char *text = k3_config_json(&c);
	cr_expect_null(strstr(text, "mla_latent_norm_eps"));
	free(text);
	c.mla_norm_eps = 1e-5;
	text = k3_config_json(&c);
	cr_expect_not_null(strstr(text, "\"mla_latent_norm_eps\": 1e-5"));
	free(text);
}

Test(config_json, special_ids_are_read_from_either_place)
{
	struct k3_config c;

	cr_assert_eq(config_case_parse(&c, "\"vocab_size\": 128",
				       "\"vocab_size\": 128, \"bos_token_id\": 0, "
				       "\"eos_token_id\": 7"),
		     K3_OK);
	cr_expect_eq(c.bos, 0u);
	cr_expect_eq(c.eos, 7u);
	cr_assert_eq(config_case_parse(&c, "\"pad_token_id\": 127,\n \"text",
				       "\"bos_token_id\": null,\n \"text"),
		     K3_OK);
	cr_expect_eq(c.pad, 127u);
	cr_expect_eq(c.bos, 124u, "null counts as absent");
	cr_expect_str_eq(scratch_log(), "");
	cr_assert_eq(config_case_parse(&c, "\"pad_token_id\": 127,\n \"text",
				       "\"pad_token_id\": 5,\n \"text"),
		     K3_OK);
	cr_expect_eq(c.pad, 5u, "the outer one holds");
	cr_expect_not_null(strstr(scratch_log(), "pad_token_id differs"));
}

Test(config_json, unknown_keys_are_ignored_with_one_line)
{
	struct k3_config c;

	cr_assert_eq(config_case_parse(&c, "{\"model_type\"",
				       "{\"use_cache\": true, \"rope_theta\": [1], "
				       "\"model_type\""),
		     K3_OK);
	const char *log = scratch_log();
	cr_expect_not_null(strstr(log, "use_cache"));
	cr_expect_not_null(strstr(log, "rope_theta"));
	cr_expect(*log && strchr(log, '\n') == log + strlen(log) - 1, "not one line: %s", log);
	expect_golden_text(&c);
}

Test(config_json, a_hundred_long_unknown_keys_overflow_nothing)
{
	char text[20000] = "{";
	struct k3_config c;

	for (int i = 0; i < 100; i++)
		sprintf(text + strlen(text), "\"unknown_key_with_a_long_name_%070d\": 0, ", i);
	strcat(text, config_case_text + 1);
	cr_assert_eq(parse(&c, text), K3_OK);
	expect_golden_text(&c);
}

Test(config_json, sizes_without_a_constraint_are_all_legal)
{
	static const char *const changes[][2] = {
		{"\"head_dim\": 32", "\"head_dim\": 1"},
		{"\"head_dim\": 32", "\"head_dim\": 24"},
		{"\"qk_nope_head_dim\": 16", "\"qk_nope_head_dim\": 1"},
		{"\"qk_rope_head_dim\": 8", "\"qk_rope_head_dim\": 3"},
		{"\"v_head_dim\": 16", "\"v_head_dim\": 5"},
		{"\"num_experts\": 6", "\"num_experts\": 7"},
		{"\"num_experts\": 6", "\"num_experts\": 2"},
		{"\"vocab_size\": 128", "\"vocab_size\": 131"},
		{"\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 0"},
		{"\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 5"},
		{"\"attn_res_block_size\": 2", "\"attn_res_block_size\": 12"},
		{"\"gate_lower_bound\": -5.0", "\"gate_lower_bound\": -1"},
		{"\"init_pos_emb_height\": 8", "\"init_pos_emb_height\": 5"},
		{"\"projector_ln_eps\": 1e-05, ", ""},
		{"\"num_key_value_heads\": 2, ", ""},
	};
	struct k3_config c;

	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
		cr_expect_eq(config_case_parse(&c, changes[i][0], changes[i][1]), K3_OK, "%s: %s",
			     changes[i][1], scratch_log());
}
