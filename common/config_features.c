/* Keys of config.json that are no sizes: switches of features that we do not have, and numbers that
 * repeat another one.  The trap: a switch that is ignored trains another model without a word. */
#include "config_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "status.h"

/* A key that may be absent and has one value that this project can compute, as JSON text. */
static int
fixed_check(const struct k3i_source *s, int section, const char *key, const char *want)
{
	json_t *value = k3i_take(s->section[section], key);
	char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
	char allowed[64];
	int ret = K3_OK;

	snprintf(allowed, sizeof(allowed), "%s: nothing else is supported", want);
	if (value && (!text || strcmp(text, want) != 0))
		ret = k3i_refuse(s, section, key, value, allowed);
	free(text);
	json_decref(value);
	return ret;
}

/* Features of the layout that we do not have: silence would train another model. */
int
k3i_features_check(const struct k3i_source *s)
{
	static const struct {
		int section;
		const char *key, *want;
	} features[] = {
		{ K3I_TOP, "tie_word_embeddings", "false" },
		{ K3I_TEXT, "tie_word_embeddings", "false" },
		{ K3I_TEXT, "moe_renormalize", "true" },
		{ K3I_TEXT, "latent_moe_use_norm", "true" },
		{ K3I_TEXT, "mla_use_nope", "true" },
		{ K3I_TEXT, "mla_use_output_gate", "true" },
		{ K3I_TEXT, "num_expert_group", "1" },
		{ K3I_TEXT, "topk_group", "1" },
		{ K3I_TEXT, "num_nextn_predict_layers", "0" },
		{ K3I_LINEAR, "use_full_rank_gate", "true" },
	};
	int ret = K3_OK;

	for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++)
		K3_TRY(fixed_check(s, features[i].section, features[i].key, features[i].want));
out:
	return ret;
}

/* Keys that repeat another number of the file, or would be a feature if they did not. */
int
k3i_repeats_check(const struct k3i_source *s, const struct k3_config *config)
{
	const struct {
		int section;
		const char *key, *same_as;
		uint32_t want;
	} repeats[] = {
		{ K3I_TEXT, "num_key_value_heads", "num_attention_heads", config->heads },
		{ K3I_LINEAR, "num_v_heads", "num_heads", config->kda_heads },
		{ K3I_LINEAR, "num_value_heads", "num_heads", config->kda_heads },
		{ K3I_LINEAR, "v_head_dim", "head_dim", config->kda_dim },
		{ K3I_LINEAR, "head_v_dim", "head_dim", config->kda_dim },
		{ K3I_VISION, "mm_hidden_size", "vt_hidden_size", config->vision.width },
		{ K3I_VISION, "text_hidden_size", "hidden_size", config->width },
	};

	for (size_t i = 0; i < sizeof(repeats) / sizeof(repeats[0]); i++) {
		json_t *value = k3i_take(s->section[repeats[i].section], repeats[i].key);
		char allowed[80];
		int ret = K3_OK;

		snprintf(allowed, sizeof(allowed), "%s, %u", repeats[i].same_as, repeats[i].want);
		if (value && (!json_is_integer(value) ||
		              json_integer_value(value) != (json_int_t)repeats[i].want))
			ret = k3i_refuse(s, repeats[i].section, repeats[i].key, value, allowed);
		json_decref(value);
		if (ret != K3_OK)
			return ret;
	}
	return K3_OK;
}
