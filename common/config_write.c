/* Writes config.json as the released model has it.  Keys of our own (the eps that the layout has no
 * place for) appear only when they differ from their default, so that a plain model's file is a
 * plain Hugging Face file. */
#include "config.h"

#include <jansson.h>
#include <stdlib.h>

#include "config_fields.h"

static json_t *
layer_list(const struct k3_config *config, bool mla)
{
	json_t *list = json_array();

	for (uint32_t l = 0; l < config->layers; l++)
		if (config->is_mla[l] == mla)
			json_array_append_new(list, json_integer(l + 1));
	return list;
}

static void
fields_write(const struct k3_config *config, json_t *const section[])
{
	for (size_t i = 0; i < k3i_n_fields; i++) {
		const struct k3i_field *field = &k3i_fields[i];
		double value = k3i_field_get(field, config);

		if (!section[field->section] || (field->ours && value == field->fallback))
			continue;
		json_object_set_new(section[field->section], field->key,
		                    k3i_field_is_integer(field) ? json_integer((json_int_t)value)
		                                                : json_real(value));
	}
}

static json_t *
text_write(const struct k3_config *config, json_t *const section[])
{
	json_t *text = section[K3I_TEXT], *linear = section[K3I_LINEAR];

	json_object_set_new(text, "model_type", json_string("kimi_linear"));
	json_object_set_new(text, "num_key_value_heads", json_integer(config->heads));
	json_object_set_new(text, "pad_token_id", json_integer(config->pad));
	json_object_set_new(text, "mla_use_nope", json_true());
	json_object_set_new(text, "mla_use_output_gate", json_true());
	json_object_set_new(text, "moe_renormalize", json_true());
	json_object_set_new(text, "latent_moe_use_norm", json_true());
	json_object_set_new(text, "tie_word_embeddings", json_false());
	json_object_set_new(linear, "use_full_rank_gate", json_true());
	json_object_set_new(linear, "full_attn_layers", layer_list(config, true));
	json_object_set_new(linear, "kda_layers", layer_list(config, false));
	json_object_set_new(text, "linear_attn_config", linear);
	return text;
}

static json_t *
vision_write(const struct k3_config *config, json_t *vision)
{
	const struct k3_vision_config *v = &config->vision;

	json_object_set_new(vision, "merge_kernel_size",
	                    json_pack("[ii]", (int)v->merge_h, (int)v->merge_w));
	json_object_set_new(vision, "mm_hidden_size", json_integer(v->width));
	json_object_set_new(vision, "text_hidden_size", json_integer(config->width));
	return vision;
}

/* The text with as few digits as give every number back: 1e-05 and not 1.0000000000000001e-05. */
static char *
shortest_text(const json_t *root)
{
	for (size_t digits = 6; digits <= 17; digits++) {
		char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(digits));
		json_t *back = text ? json_loads(text, 0, NULL) : NULL;
		bool same = json_equal(root, back);

		json_decref(back);
		if (!text || same)
			return text;
		free(text);
	}
	return NULL;
}

char *
k3_config_json(const struct k3_config *config)
{
	json_t *section[] = { [K3I_TEXT] = json_object(),
		              [K3I_LINEAR] = json_object(),
		              [K3I_VISION] = config->vision.present ? json_object() : NULL };
	struct k3_config ids = *config;
	json_t *root = json_object();

	fields_write(config, section);
	json_object_set_new(root, "model_type", json_string("kimi_k3"));
	for (int i = 0; i < K3I_N_IDS; i++)
		json_object_set_new(root, k3i_id_keys[i], json_integer(*k3i_id(&ids, i)));
	json_object_set_new(root, "text_config", text_write(config, section));
	if (section[K3I_VISION])
		json_object_set_new(root, "vision_config",
		                    vision_write(config, section[K3I_VISION]));
	char *text = shortest_text(root);
	json_decref(root);
	return text;
}
