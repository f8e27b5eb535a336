/* config.json in the layout of the released model: text part nested in text_config or flat, linear_attn_config inside it,
 * vision_config beside it.  The trap: the layer lists are 1-based, and each layer must stand in exactly one of them. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_fields.h"
#include "log.h"
#include "status.h"

struct source {
	json_t *part[3]; /* text, linear attention, vision (may be NULL) */
	json_t *root;
	const char *origin;
};

static int
read_field(const struct source *s, const struct k3i_field *f, struct k3_config *c)
{
	json_t *v = json_object_get(s->part[f->section], f->key);
	double value;

	if (!v && !(f->fallback > 0)) {
		k3_error("common", "%s: %s%s is missing; it must be %s", s->origin, k3i_section_prefix(f->section), f->key,
		         k3i_field_allowed(f));
		return K3_EFORMAT;
	}
	value = v ? json_number_value(v) : f->fallback;
	if (v && (!json_is_number(v) || (k3i_field_is_integer(f) && value != floor(value)))) {
		char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
		k3_error("common", "%s: %s%s is %.60s; it must be %s", s->origin, k3i_section_prefix(f->section), f->key,
		         text ? text : "?", k3i_field_allowed(f));
		free(text);
		return K3_EINVAL;
	}
	if (k3i_field_check(f, s->origin, value) != K3_OK)
		return K3_EINVAL;
	k3i_field_set(f, c, value);
	return K3_OK;
}

/* Features of the layout that this project does not have, by the one value that it does. */
static int
check_features(const struct source *s, const struct k3_config *c)
{
	static const struct {
		int part;
		const char *key;
		int want;
	} flag[] = {
		{ 0, "tie_word_embeddings", 0 }, { 0, "moe_renormalize", 1 }, { 0, "latent_moe_use_norm", 1 }, { 0, "mla_use_nope", 1 },
		{ 0, "mla_use_output_gate", 1 }, { 1, "use_full_rank_gate", 1 },
	};
	const struct {
		int part;
		const char *key;
		long long want;
	} number[] = {
		{ 0, "num_key_value_heads", c->heads }, { 0, "num_expert_group", 1 }, { 0, "topk_group", 1 },
		{ 0, "num_nextn_predict_layers", 0 }, { 1, "num_v_heads", c->kda_heads }, { 1, "num_value_heads", c->kda_heads },
		{ 1, "v_head_dim", c->kda_dim }, { 1, "head_v_dim", c->kda_dim },
	};

	for (size_t i = 0; i < sizeof(flag) / sizeof(flag[0]); i++) {
		json_t *v = json_object_get(s->part[flag[i].part], flag[i].key);
		if (v && (!json_is_boolean(v) || json_is_true(v) != flag[i].want)) {
			k3_error("common", "%s: %s is %s; only %s is supported", s->origin, flag[i].key,
			         json_is_true(v) ? "true" : json_is_false(v) ? "false" : "not a boolean", flag[i].want ? "true" : "false");
			return K3_EINVAL;
		}
	}
	for (size_t i = 0; i < sizeof(number) / sizeof(number[0]); i++) {
		json_t *v = json_object_get(s->part[number[i].part], number[i].key);
		if (v && !json_is_null(v) && (!json_is_integer(v) || json_integer_value(v) != number[i].want)) {
			k3_error("common", "%s: %s is %lld; only %lld is supported", s->origin, number[i].key,
			         (long long)json_number_value(v), number[i].want);
			return K3_EINVAL;
		}
	}
	return K3_OK;
}

/* Marks the layers of one list; kind[l] becomes `value`. */
static int
read_list(const struct source *s, const char *key, const struct k3_config *c, signed char *kind, signed char value)
{
	json_t *list = json_object_get(s->part[K3I_LINEAR], key), *item;
	size_t i;

	if (!json_is_array(list)) {
		k3_error("common", "%s: linear_attn_config.%s must be a list of layer numbers from 1", s->origin, key);
		return K3_EFORMAT;
	}
	json_array_foreach(list, i, item) {
		long long l = json_is_integer(item) ? json_integer_value(item) : -1;
		if (l < 1 || l > c->layers) {
			k3_error("common", "%s: linear_attn_config.%s[%zu] is %lld; it must be a layer number from 1 to %u", s->origin, key,
			         i, json_is_integer(item) ? (long long)json_integer_value(item) : -1LL, c->layers);
			return K3_EINVAL;
		}
		if (kind[l - 1] >= 0) {
			k3_error("common", "%s: layer %lld stands twice in full_attn_layers and kda_layers (again in %s[%zu])", s->origin, l,
			         key, i);
			return K3_EINVAL;
		}
		kind[l - 1] = value;
	}
	return K3_OK;
}

static int
read_layers(const struct source *s, struct k3_config *c)
{
	signed char kind[K3_MAX_LAYERS];
	int ret;

	if (c->layers > K3_MAX_LAYERS) {
		k3_error("common", "%s: num_hidden_layers is %u; it must be at most %d", s->origin, c->layers, K3_MAX_LAYERS);
		return K3_EINVAL;
	}
	memset(kind, -1, sizeof(kind));
	K3_TRY(read_list(s, "full_attn_layers", c, kind, 1));
	K3_TRY(read_list(s, "kda_layers", c, kind, 0));
	for (uint32_t l = 0; l < c->layers; l++) {
		if (kind[l] < 0) {
			k3_error("common", "%s: layer %u of %u stands neither in full_attn_layers nor in kda_layers", s->origin, l + 1,
			         c->layers);
			return K3_EINVAL;
		}
		c->is_mla[l] = kind[l] == 1;
	}
out:
	return ret;
}

/* Special ids, from the top or from the text part; the pair of the merge kernel. */
static int
read_rest(const struct source *s, struct k3_config *c)
{
	k3i_ids_default(c);
	for (int i = 0; i < K3I_N_IDS; i++) {
		json_t *v = json_object_get(s->root, k3i_id_keys[i]);
		if (!v || json_is_null(v))
			v = json_object_get(s->part[K3I_TEXT], k3i_id_keys[i]);
		if (!v || json_is_null(v))
			continue;
		if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= c->vocab) {
			k3_error("common", "%s: %s is %lld; it must be an id from 0 to %u", s->origin, k3i_id_keys[i],
			         json_is_integer(v) ? (long long)json_integer_value(v) : -1LL, c->vocab - 1);
			return K3_EINVAL;
		}
		*k3i_id(c, i) = (uint32_t)json_integer_value(v);
	}
	if (!c->vision.present)
		return K3_OK;
	json_t *merge = json_object_get(s->part[K3I_VISION], "merge_kernel_size");
	json_t *h = json_array_get(merge, 0), *w = json_array_get(merge, 1);
	if (json_array_size(merge) != 2 || !json_is_integer(h) || !json_is_integer(w) || json_integer_value(h) != 2 ||
	    json_integer_value(w) != 2) {
		k3_error("common", "%s: vision_config.merge_kernel_size must be [2, 2]", s->origin);
		return K3_EINVAL;
	}
	c->vision.merge_h = c->vision.merge_w = 2;
	return K3_OK;
}

int
k3_config_parse(struct k3_config *config, const char *json, size_t bytes, const char *origin)
{
	struct source s = { .origin = origin };
	json_error_t error;
	int ret = K3_OK;

	memset(config, 0, sizeof(*config));
	snprintf(config->name, sizeof(config->name), "%.63s", origin);
	s.root = json_loadb(json, bytes, JSON_REJECT_DUPLICATES, &error);
	if (!json_is_object(s.root)) {
		k3_error("common", "%s: no JSON object: %s at line %d", origin, s.root ? "another value" : error.text, error.line);
		K3_TRY(K3_EFORMAT);
	}
	json_t *nested = json_object_get(s.root, "text_config");
	s.part[K3I_TEXT] = nested ? nested : s.root;
	s.part[K3I_LINEAR] = json_object_get(s.part[K3I_TEXT], "linear_attn_config");
	s.part[K3I_VISION] = json_object_get(s.root, "vision_config");
	if (!json_is_object(s.part[K3I_TEXT]) || !json_is_object(s.part[K3I_LINEAR])) {
		k3_error("common", "%s: %s must be an object", origin,
		         json_is_object(s.part[K3I_TEXT]) ? "linear_attn_config" : "text_config");
		K3_TRY(K3_EFORMAT);
	}
	config->vision.present = json_is_object(s.part[K3I_VISION]);
	for (size_t i = 0; i < k3i_n_fields; i++)
		if (k3i_fields[i].section != K3I_VISION || config->vision.present)
			K3_TRY(read_field(&s, &k3i_fields[i], config));
	K3_TRY(check_features(&s, config));
	K3_TRY(read_layers(&s, config));
	K3_TRY(read_rest(&s, config));
	K3_TRY(k3_config_check(config));
out:
	json_decref(s.root);
	return ret;
}

static json_t *
layer_list(const struct k3_config *c, bool mla)
{
	json_t *list = json_array();

	for (uint32_t l = 0; l < c->layers; l++)
		if (c->is_mla[l] == mla)
			json_array_append_new(list, json_integer(l + 1));
	return list;
}

char *
k3_config_json(const struct k3_config *config)
{
	json_t *part[3] = { json_object(), json_object(), config->vision.present ? json_object() : NULL }, *root = json_object();
	char *text = NULL;

	for (size_t i = 0; i < k3i_n_fields; i++) {
		const struct k3i_field *f = &k3i_fields[i];
		double value = k3i_field_get(f, config);
		if (part[f->section])
			json_object_set_new(part[f->section], f->key,
			                    k3i_field_is_integer(f) ? json_integer((json_int_t)value) : json_real(value));
	}
	json_object_set_new(part[0], "model_type", json_string("kimi_linear"));
	json_object_set_new(part[0], "num_key_value_heads", json_integer(config->heads));
	json_object_set_new(part[0], "mla_use_nope", json_true());
	json_object_set_new(part[0], "mla_use_output_gate", json_true());
	json_object_set_new(part[0], "moe_renormalize", json_true());
	json_object_set_new(part[0], "latent_moe_use_norm", json_true());
	json_object_set_new(part[0], "tie_word_embeddings", json_false());
	json_object_set_new(part[1], "use_full_rank_gate", json_true());
	json_object_set_new(part[1], "full_attn_layers", layer_list(config, true));
	json_object_set_new(part[1], "kda_layers", layer_list(config, false));
	if (part[2]) {
		json_object_set_new(part[2], "merge_kernel_size", json_pack("[ii]", 2, 2));
		json_object_set_new(part[2], "mm_hidden_size", json_integer(config->vision.width));
		json_object_set_new(part[2], "text_hidden_size", json_integer(config->width));
	}
	json_object_set_new(root, "model_type", json_string("kimi_k3"));
	for (int i = 0; i < K3I_N_IDS; i++)
		json_object_set_new(root, k3i_id_keys[i], json_integer(*k3i_id((struct k3_config *)(uintptr_t)config, i)));
	json_object_set_new(part[0], "linear_attn_config", part[1]);
	json_object_set_new(root, "text_config", part[0]);
	if (part[2])
		json_object_set_new(root, "vision_config", part[2]);
	text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
	json_decref(root);
	return text;
}
