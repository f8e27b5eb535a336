/* The text is the metadata `hf_config` of the golden file mm_tiny, with line breaks. */
#include "config_case.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "scratch.h"

const char config_case_text[] =
	"{\"model_type\": \"kimi_k3\", \"media_placeholder_token_id\": 126, \"pad_token_id\": 127,\n"
	" \"text_config\": {\"model_type\": \"kimi_linear\", \"vocab_size\": 128,\n"
	"  \"hidden_size\": 64, \"intermediate_size\": 128, \"num_hidden_layers\": 5,\n"
	"  \"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-05,\n"
	"  \"q_lora_rank\": 32, \"kv_lora_rank\": 24, \"qk_nope_head_dim\": 16,\n"
	"  \"qk_rope_head_dim\": 8, \"v_head_dim\": 16, \"mla_use_nope\": true,\n"
	"  \"mla_use_output_gate\": true, \"moe_intermediate_size\": 24, \"num_experts\": 6,\n"
	"  \"num_experts_per_token\": 2, \"num_shared_experts\": 2,\n"
	"  \"first_k_dense_replace\": 1, \"moe_renormalize\": true,\n"
	"  \"routed_scaling_factor\": 1.0, \"routed_expert_hidden_size\": 32,\n"
	"  \"latent_moe_use_norm\": true, \"attn_res_block_size\": 2,\n"
	"  \"activation_situ_beta\": 4.0, \"activation_situ_linear_beta\": 25.0,\n"
	"  \"tie_word_embeddings\": false, \"pad_token_id\": 127,\n"
	"  \"linear_attn_config\": {\"head_dim\": 32, \"num_heads\": 2,\n"
	"   \"short_conv_kernel_size\": 4, \"use_full_rank_gate\": true,\n"
	"   \"gate_lower_bound\": -5.0, \"full_attn_layers\": [4, 5],\n"
	"   \"kda_layers\": [1, 2, 3]}},\n"
	" \"vision_config\": {\"patch_size\": 14, \"init_pos_emb_height\": 8,\n"
	"  \"init_pos_emb_width\": 8, \"init_pos_emb_time\": 4, \"vt_num_attention_heads\": 2,\n"
	"  \"vt_num_hidden_layers\": 2, \"vt_hidden_size\": 48, \"vt_intermediate_size\": 96,\n"
	"  \"qkv_hidden_size\": 64, \"merge_kernel_size\": [2, 2], \"mm_hidden_size\": 48,\n"
	"  \"projector_ln_eps\": 1e-05, \"text_hidden_size\": 64}}\n";

char *
config_case_edit(const char *text, const char *old, const char *new)
{
	const char *at = strstr(text, old);

	cr_assert_not_null(at, "no %s in the text", old);
	size_t head = (size_t)(at - text);
	char *out = malloc(strlen(text) + strlen(new) + 1);

	cr_assert_not_null(out);
	memcpy(out, text, head);
	strcpy(out + head, new);
	strcat(out, at + strlen(old));
	return out;
}

int
config_case_parse(struct k3_config *config, const char *old, const char *new)
{
	char *text = config_case_edit(config_case_text, old, new);
	int ret = k3_config_parse(config, text, strlen(text), "case.json");

	free(text);
	return ret;
}

void
config_case_refused(const char *old, const char *new, int status, const char *const needles[])
{
	struct k3_config config, before;
	int ret;

	memset(&before, 0xa5, sizeof(before));
	memcpy(&config, &before, sizeof(config));
	ret = config_case_parse(&config, old, new);
	const char *log = scratch_log();

	cr_expect_eq(ret, status, "%s gives %s, expected %s", new, k3_status_text(ret),
	             k3_status_text(status));
	cr_expect_eq(memcmp(&config, &before, sizeof(config)), 0, "%s: something is stored", new);
	cr_expect(*log && strchr(log, '\n') == log + strlen(log) - 1, "%s: not one line: %s", new,
	          log);
	for (; *needles; needles++)
		cr_expect_not_null(strstr(log, *needles), "%s: \"%s\" is not in: %s", new, *needles,
		                   log);
}
