/* config.json files that must be refused, each with field, value and what is allowed in one line.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/config.h"
#include "../common/status.h"
#include "config_case.h"
#include "scratch.h"

TestSuite(config_faults, .init = scratch_start, .fini = scratch_stop, .timeout = 60);

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

/* Every size of the file with its golden value; an integer that must be at least 1. */
static const struct {
	const char *key;
	int value;
} sizes[] = {
	{"hidden_size", 64},
	{"vocab_size", 128},
	{"num_hidden_layers", 5},
	{"attn_res_block_size", 2},
	{"num_attention_heads", 2},
	{"q_lora_rank", 32},
	{"kv_lora_rank", 24},
	{"qk_nope_head_dim", 16},
	{"qk_rope_head_dim", 8},
	{"v_head_dim", 16},
	{"intermediate_size", 128},
	{"num_experts", 6},
	{"num_experts_per_token", 2},
	{"routed_expert_hidden_size", 32},
	{"moe_intermediate_size", 24},
	{"num_shared_experts", 2},
	{"head_dim", 32},
	{"num_heads", 2},
	{"short_conv_kernel_size", 4},
	{"vt_hidden_size", 48},
	{"qkv_hidden_size", 64},
	{"vt_num_attention_heads", 2},
	{"vt_intermediate_size", 96},
	{"vt_num_hidden_layers", 2},
	{"patch_size", 14},
	{"init_pos_emb_height", 8},
	{"init_pos_emb_width", 8},
	{"init_pos_emb_time", 4},
};

/* Every real number that must be positive, as the file spells it. */
static const struct {
	const char *key, *value;
} reals[] = {
	{"routed_scaling_factor", "1.0"},	 {"activation_situ_beta", "4.0"},
	{"activation_situ_linear_beta", "25.0"}, {"rms_norm_eps", "1e-05"},
	{"projector_ln_eps", "1e-05"},
};

static void
value_refused(const char *key, const char *old_value, const char *value, const char *shown)
{
	char old[96], new[96];

	snprintf(old, sizeof(old), "\"%s\": %s", key, old_value);
	snprintf(new, sizeof(new), "\"%s\": %s", key, value);
	config_case_refused(old, new, K3_EINVAL,
			    CONFIG_NEEDLES("case.json", key, shown, "it must be"));
}

Test(config_faults, sizes_that_are_no_positive_integers)
{
	static const char *const bad[][2] = {
		{"0", "is 0;"},
		{"-1", "is -1;"},
		{"2147483648", "is 2147483648;"},
		{"9223372036854775807", "is 9.22337203685478e+18;"},
		{"\"ten\"", "is \"ten\";"},
		{"1e300", "is 1e300;"},
		{"1.5", "is 1.5;"},
		{"true", "is true;"},
		{"[4]", "is [4];"},
	};

	for (size_t i = 0; i < LENGTH(sizes); i++)
		for (size_t j = 0; j < LENGTH(bad); j++) {
			char value[16];
			snprintf(value, sizeof(value), "%d", sizes[i].value);
			value_refused(sizes[i].key, value, bad[j][0], bad[j][1]);
		}
}

Test(config_faults, dense_layers_below_zero_or_above_the_layers)
{
	value_refused("first_k_dense_replace", "1", "-1", "is -1;");
	value_refused("first_k_dense_replace", "1", "6",
		      "is 6; it must be at most num_hidden_layers, 5");
	value_refused("first_k_dense_replace", "1", "0.5", "is 0.5;");
}

Test(config_faults, reals_that_are_not_positive)
{
	static const char *const bad[][2] = {
		{"0", "is 0;"},		 {"-1", "is -1;"},	   {"-0.0", "is -0;"},
		{"1e300", "is 1e+300;"}, {"1e-300", "is 1e-300;"}, {"\"ten\"", "is \"ten\";"},
		{"false", "is false;"},
	};

	for (size_t i = 0; i < LENGTH(reals); i++)
		for (size_t j = 0; j < LENGTH(bad); j++)
			value_refused(reals[i].key, reals[i].value, bad[j][0], bad[j][1]);
}

Test(config_faults, gate_bounds_outside_minus_five_to_zero)
{
	static const char *const bad[][2] = {
		{"0", "is 0;"},		  {"0.5", "is 0.5;"},
		{"-5.001", "is -5.001;"}, {"-1e300", "is -1e+300;"},
		{"\"-5\"", "is \"-5\";"}, {"-1e-60", "is -1e-60;"},
	};

	for (size_t i = 0; i < LENGTH(bad); i++)
		value_refused("gate_lower_bound", "-5.0", bad[i][0], bad[i][1]);
}

Test(config_faults, numbers_that_json_does_not_have)
{
	config_case_refused("\"hidden_size\": 64", "\"hidden_size\": NaN", K3_EFORMAT,
			    CONFIG_NEEDLES("case.json", "line 3"));
	config_case_refused("\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e999", K3_EFORMAT,
			    CONFIG_NEEDLES("case.json", "line 4"));
	config_case_refused("\"hidden_size\": 64", "\"hidden_size\": 99999999999999999999",
			    K3_EFORMAT, CONFIG_NEEDLES("case.json", "line 3"));
}

Test(config_faults, required_fields_that_are_missing_or_null)
{
	for (size_t i = 0; i < LENGTH(sizes); i++) {
		char old[96], new[96];
		snprintf(old, sizeof(old), "\"%s\": %d", sizes[i].key, sizes[i].value);
		snprintf(new, sizeof(new), "\"%s\": null", sizes[i].key);
		config_case_refused(
			old, "\"x\": 1", K3_EFORMAT,
			CONFIG_NEEDLES(sizes[i].key, "is missing", "an integer from 1"));
		config_case_refused(old, new, K3_EFORMAT,
				    CONFIG_NEEDLES(sizes[i].key, "is missing"));
	}
	config_case_refused("\"gate_lower_bound\": -5.0", "\"x\": 1", K3_EFORMAT,
			    CONFIG_NEEDLES("gate_lower_bound", "is missing", "-5"));
	config_case_refused("\"full_attn_layers\": [4, 5]", "\"x\": 1", K3_EFORMAT,
			    CONFIG_NEEDLES("full_attn_layers", "is missing"));
	config_case_refused("\"linear_attn_config\"", "\"x\"", K3_EFORMAT,
			    CONFIG_NEEDLES("linear_attn_config", "is missing"));
}

Test(config_faults, layer_lists_against_the_layer_count)
{
	static const struct {
		const char *full, *kda, *needle;
	} bad[] = {
		{"[4, 5]", "[1, 3]", "neither in full_attn_layers nor in kda_layers: 2 "},
		{"[5]", "[1, 3]", "neither in full_attn_layers nor in kda_layers: 2 4 "},
		{"[4, 5]", "[1, 2, 3, 4]", "in full_attn_layers and in kda_layers: 4 "},
		{"[4, 5, 4]", "[1, 2, 3]", "twice in one list: 4 "},
		{"[4, 5]", "[0, 1, 2, 3]", "do not exist: 0 "},
		{"[4, 5, 6]", "[1, 2, 3, -1]", "do not exist: 6 -1 "},
		{"[4, 5, 9223372036854775807]", "[1, 2, 3]", "do not exist: 9223372036854775807 "},
		{"[]", "[]", "neither in full_attn_layers nor in kda_layers: 1 2 3 4 5 "},
	};

	for (size_t i = 0; i < LENGTH(bad); i++) {
		char new[160];
		snprintf(new, sizeof(new), "\"full_attn_layers\": %s,\n   \"kda_layers\": %s",
			 bad[i].full, bad[i].kda);
		config_case_refused("\"full_attn_layers\": [4, 5],\n   \"kda_layers\": [1, 2, 3]",
				    new, K3_EINVAL, CONFIG_NEEDLES(bad[i].needle, "layers 1 to 5"));
	}
}

Test(config_faults, fifteen_entries_for_thirteen_layers)
{
	char *layers = config_case_edit(config_case_text, "\"num_hidden_layers\": 5",
					"\"num_hidden_layers\": 13");
	char *full = config_case_edit(layers, "[4, 5]", "[4, 8, 12, 14, 15]");
	char *text = config_case_edit(full, "[1, 2, 3]", "[1, 2, 3, 5, 6, 7, 9, 10, 11, 13]");
	struct k3_config c;

	cr_expect_eq(k3_config_parse(&c, text, strlen(text), "case.json"), K3_EINVAL);
	cr_expect_not_null(strstr(scratch_log(), "do not exist: 14 15 (of layers 1 to 13)"));
	free(layers);
	free(full);
	free(text);
}

Test(config_faults, layer_lists_of_a_wrong_type)
{
	config_case_refused("[4, 5]", "4", K3_EINVAL,
			    CONFIG_NEEDLES("linear_attn_config.full_attn_layers is 4;"));
	config_case_refused("[4, 5]", "[4, 5.0]", K3_EINVAL,
			    CONFIG_NEEDLES("full_attn_layers is [4,5.0]"));
	config_case_refused("[1, 2, 3]", "[1, \"2\", 3]", K3_EINVAL,
			    CONFIG_NEEDLES("kda_layers is [1,\"2\",3]"));
}

Test(config_faults, more_layers_than_the_limit)
{
	value_refused("num_hidden_layers", "5", "257", "is 257; it must be at most 256");
}

Test(config_faults, more_experts_than_the_limit)
{
	value_refused("num_experts", "6", "65537", "is 65537; it must be at most 65536");
}

Test(config_faults, more_convolution_taps_than_the_limit)
{
	value_refused("short_conv_kernel_size", "4", "65", "is 65; it must be at most 64");
}

Test(config_faults, very_many_wrong_layers_overflow_nothing)
{
	char list[20000] = "[4, 5";

	for (int i = 0; i < 1500; i++)
		sprintf(list + strlen(list), ", %d", 100000 + i);
	strcat(list, "]");
	config_case_refused("[4, 5]", list, K3_EINVAL,
			    CONFIG_NEEDLES("do not exist: 100000 100001"));
	config_case_refused("\"num_hidden_layers\": 5", "\"num_hidden_layers\": 256", K3_EINVAL,
			    CONFIG_NEEDLES("neither in full_attn_layers nor in kda_layers: 6 7 8"));
}

Test(config_faults, features_that_we_do_not_have)
{
	static const char *const features[][4] = {
		{"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", "is true",
		 "be false"},
		{"{\"model_type\"", "{\"tie_word_embeddings\": true, \"model_type\"", "is true",
		 "be false"},
		{"\"use_full_rank_gate\": true", "\"use_full_rank_gate\": false", "is false",
		 "be true"},
		{"\"moe_renormalize\": true", "\"moe_renormalize\": false", "is false", "be true"},
		{"\"latent_moe_use_norm\": true", "\"latent_moe_use_norm\": false", "is false",
		 "be true"},
		{"\"mla_use_nope\": true", "\"mla_use_nope\": false", "is false", "be true"},
		{"\"mla_use_output_gate\": true", "\"mla_use_output_gate\": 0", "is 0", "be true"},
		{"\"vocab_size\": 128", "\"vocab_size\": 128, \"num_expert_group\": 8",
		 "num_expert_group is 8", "be 1"},
		{"\"vocab_size\": 128", "\"vocab_size\": 128, \"topk_group\": 4", "topk_group is 4",
		 "be 1"},
		{"\"vocab_size\": 128", "\"vocab_size\": 128, \"num_nextn_predict_layers\": 1",
		 "num_nextn_predict_layers is 1", "be 0"},
	};

	for (size_t i = 0; i < LENGTH(features); i++)
		config_case_refused(features[i][0], features[i][1], K3_EINVAL,
				    CONFIG_NEEDLES(features[i][2], features[i][3],
						   "nothing else is supported"));
}

Test(config_faults, numbers_that_should_repeat_another)
{
	value_refused("num_key_value_heads", "2", "1", "is 1; it must be num_attention_heads, 2");
	value_refused("mm_hidden_size", "48", "64", "is 64; it must be vt_hidden_size, 48");
	value_refused("text_hidden_size", "64", "48", "is 48; it must be hidden_size, 64");
	config_case_refused("\"num_heads\": 2", "\"num_heads\": 2, \"num_v_heads\": 4", K3_EINVAL,
			    CONFIG_NEEDLES("linear_attn_config.num_v_heads is 4", "num_heads, 2"));
	config_case_refused("\"num_heads\": 2", "\"num_heads\": 2, \"v_head_dim\": 64", K3_EINVAL,
			    CONFIG_NEEDLES("linear_attn_config.v_head_dim is 64", "head_dim, 32"));
}

Test(config_faults, more_experts_a_token_than_experts)
{
	value_refused("num_experts_per_token", "2", "7", "is 7; it must be at most num_experts, 6");
}

Test(config_faults, a_vocabulary_without_room_for_the_special_ids)
{
	value_refused("vocab_size", "128", "4", "is 4; it must be at least 5");
}

Test(config_faults, special_ids_outside_the_vocabulary)
{
	static const char *const keys[] = {"bos_token_id", "eos_token_id"};
	static const char *const bad[] = {"128", "-1", "1.5", "\"2\"", "[1]", "2147483648"};

	for (size_t i = 0; i < LENGTH(keys); i++)
		for (size_t j = 0; j < LENGTH(bad); j++) {
			char new[96], shown[64];
			snprintf(new, sizeof(new), "{\"%s\": %s, \"model_type\"", keys[i], bad[j]);
			snprintf(shown, sizeof(shown), "%s is %s;", keys[i], bad[j]);
			config_case_refused("{\"model_type\"", new, K3_EINVAL,
					    CONFIG_NEEDLES(shown, "a token id from 0 to 127"));
		}
	value_refused("media_placeholder_token_id", "126", "128", "is 128;");
	value_refused("pad_token_id", "127", "128", "is 128;");
}

Test(config_faults, an_image_placeholder_that_is_another_special_token)
{
	config_case_refused(
		"\"media_placeholder_token_id\": 126", "\"media_placeholder_token_id\": 127",
		K3_EINVAL,
		CONFIG_NEEDLES(
			"media_placeholder_token_id is 127; it must differ from pad_token_id"));
}

Test(config_faults, vision_sizes_that_do_not_fit_together)
{
	value_refused("qkv_hidden_size", "64", "63", "is 63; it must be a multiple of 4 times");
	value_refused("qkv_hidden_size", "64", "60", "is 60; it must be a multiple of 4 times");
	value_refused("merge_kernel_size", "[2, 2]", "[2]", "is [2];");
	value_refused("merge_kernel_size", "[2, 2]", "[2, 0]", "is [2,0];");
	value_refused("merge_kernel_size", "[2, 2]", "2", "is 2;");
	value_refused("vt_num_hidden_layers", "2", "257", "is 257; it must be at most 256");
}

Test(config_faults, widths_whose_product_overflows)
{
	value_refused("q_lora_rank", "32", "2147483648", "2147483648");
	config_case_refused("\"num_heads\": 2", "\"num_heads\": 100000000", K3_EINVAL,
			    CONFIG_NEEDLES("KDA", "300000000 times 32", "2147483647"));
	config_case_refused("\"moe_intermediate_size\": 24",
			    "\"moe_intermediate_size\": 2147483647", K3_EINVAL,
			    CONFIG_NEEDLES("shared experts", "2 times 2147483647"));
	config_case_refused("\"qk_nope_head_dim\": 16", "\"qk_nope_head_dim\": 2147483647",
			    K3_EINVAL, CONFIG_NEEDLES("query heads", "2 times 2147483655"));
}

Test(config_faults, texts_that_are_no_json_object)
{
	static const char *const bad[] = {"",	  "{",	  "[]",	 "3", "{\"a\": 1,}",
					  "{} x", "null", "\xff"};
	struct k3_config c;

	for (size_t i = 0; i < LENGTH(bad); i++) {
		cr_expect_eq(k3_config_parse(&c, bad[i], strlen(bad[i]), "case.json"), K3_EFORMAT,
			     "%s", bad[i]);
		cr_expect_not_null(strstr(scratch_log(), "case.json"));
	}
	for (size_t cut = 0; cut + 2 < strlen(config_case_text); cut += 7)
		cr_expect_eq(k3_config_parse(&c, config_case_text, cut, "case.json"), K3_EFORMAT,
			     "%zu", cut);
}

Test(config_faults, keys_that_stand_twice)
{
	config_case_refused("\"hidden_size\": 64", "\"hidden_size\": 64, \"hidden_size\": 32",
			    K3_EFORMAT, CONFIG_NEEDLES("line 3", "duplicate"));
}

Test(config_faults, sections_of_a_wrong_type)
{
	config_case_refused("\"text_config\": {", "\"text_config\": 3, \"x\": {", K3_EINVAL,
			    CONFIG_NEEDLES("text_config is 3", "an object"));
	config_case_refused("\"vision_config\": {", "\"vision_config\": [], \"x\": {", K3_EINVAL,
			    CONFIG_NEEDLES("vision_config is []", "an object"));
	config_case_refused("\"linear_attn_config\": {", "\"linear_attn_config\": true, \"x\": {",
			    K3_EINVAL, CONFIG_NEEDLES("linear_attn_config is true", "an object"));
}
