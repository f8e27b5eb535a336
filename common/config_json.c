/* Reads config.json in the layout of the released model: the text part nested in text_config or
 * flat, linear_attn_config inside it, vision_config beside it.
 *
 * Every key that is understood is taken out of its section, so what is left at the end is what was
 * ignored.  The trap: layer lists count from 1, and each layer must stand in exactly one of them.
 * A key whose value is null counts as absent, as the writers of these files mean it.
 */
#include "config.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "config_fields.h"
#include "config_layers.h"
#include "config_source.h"
#include "log.h"
#include "status.h"

static int
field_read(const struct k3i_source *s, const struct k3i_field *field, struct k3_config *config)
{
	json_t *value = k3i_take(s->section[field->section], field->key);
	double number = value ? json_number_value(value) : field->fallback;
	bool absent = !value && field->fallback > 0.0;
	int ret = K3_OK;

	bool typed = k3i_field_is_integer(field) ? json_is_integer(value) : json_is_number(value);
	if (!absent && !typed)
		K3_TRY(k3i_refuse(s, field->section, field->key, value, k3i_field_allowed(field)));
	K3_TRY(k3i_field_check(field, s->origin, number));
	k3i_field_set(field, config, number);
out:
	json_decref(value);
	return ret;
}

static int
fields_read(const struct k3i_source *s, struct k3_config *config)
{
	int ret = K3_OK;

	for (size_t i = 0; i < k3i_n_fields; i++)
		if (s->section[k3i_fields[i].section])
			K3_TRY(field_read(s, &k3i_fields[i], config));
out:
	return ret;
}

static int
list_read(const struct k3i_source *s, const char *key, enum k3i_layer_list which,
          struct k3i_layers *layers)
{
	static const char allowed[] = "a list of layer numbers, the first is 1";
	json_t *list = k3i_take(s->section[K3I_LINEAR], key), *item;
	size_t i;
	int ret = K3_OK;

	if (!json_is_array(list))
		K3_TRY(k3i_refuse(s, K3I_LINEAR, key, list, allowed));
	json_array_foreach(list, i, item) {
		if (!json_is_integer(item))
			K3_TRY(k3i_refuse(s, K3I_LINEAR, key, list, allowed));
		k3i_layers_add(layers, which, json_integer_value(item));
	}
out:
	json_decref(list);
	return ret;
}

static int
layers_read(const struct k3i_source *s, struct k3_config *config)
{
	struct k3i_layers layers;
	int ret;

	K3_TRY(k3i_layers_init(&layers, config->layers, s->origin));
	K3_TRY(list_read(s, "full_attn_layers", K3I_FULL_LIST, &layers));
	K3_TRY(list_read(s, "kda_layers", K3I_KDA_LIST, &layers));
	K3_TRY(k3i_layers_check(&layers));
	for (uint32_t l = 0; l < config->layers; l++)
		config->is_mla[l] = layers.count[K3I_FULL_LIST][l] == 1;
out:
	return ret;
}

/* Special ids stand at the top, in the text part or in both; the top decides. */
static int
ids_read(const struct k3i_source *s, struct k3_config *config)
{
	int ret = K3_OK;

	if (config->vocab < K3I_MIN_VOCAB)
		return K3_OK; /* k3_config_check refuses it */
	k3i_ids_default(config);
	for (int i = 0; i < K3I_N_IDS; i++) {
		json_t *text = k3i_take(s->section[K3I_TEXT], k3i_id_keys[i]);
		json_t *top = k3i_take(s->section[K3I_TOP], k3i_id_keys[i]);
		json_t *value = top ? top : text;
		char allowed[64];

		snprintf(allowed, sizeof(allowed), "a token id from 0 to %u", config->vocab - 1);
		if (value && (!json_is_integer(value) || json_integer_value(value) < 0 ||
		              json_integer_value(value) >= (json_int_t)config->vocab))
			ret = k3i_refuse(s, K3I_TOP, k3i_id_keys[i], value, allowed);
		else if (value)
			*k3i_id(config, i) = (uint32_t)json_integer_value(value);
		if (ret == K3_OK && top && text && !json_equal(top, text))
			k3_warn("common", "%s: %s differs inside and outside text_config; "
			        "the outer one holds", s->origin, k3i_id_keys[i]);
		json_decref(text);
		json_decref(top);
		if (ret != K3_OK)
			break;
	}
	return ret;
}

static int
merge_read(const struct k3i_source *s, struct k3_config *config)
{
	json_t *merge = k3i_take(s->section[K3I_VISION], "merge_kernel_size");
	json_int_t side[2] = { 0, 0 };
	int ret = K3_OK;

	for (size_t i = 0; i < 2; i++)
		if (json_array_size(merge) == 2 && json_is_integer(json_array_get(merge, i)))
			side[i] = json_integer_value(json_array_get(merge, i));
	if (side[0] < 1 || side[1] < 1 || side[0] > INT32_MAX || side[1] > INT32_MAX)
		K3_TRY(k3i_refuse(s, K3I_VISION, "merge_kernel_size", merge,
		                  "a list of two integers from 1"));
	config->vision.merge_h = (uint32_t)side[0];
	config->vision.merge_w = (uint32_t)side[1];
out:
	json_decref(merge);
	return ret;
}

int
k3_config_parse(struct k3_config *config, const char *json, size_t bytes, const char *origin)
{
	struct k3i_source s = { .origin = origin };
	struct k3_config parsed;
	json_error_t error;
	json_t *root = json_loadb(json, bytes, JSON_REJECT_DUPLICATES, &error);
	int ret = K3_OK;

	memset(&parsed, 0, sizeof(parsed));
	snprintf(parsed.name, sizeof(parsed.name), "%s",
	         origin + (strlen(origin) < sizeof(parsed.name)
	                           ? 0
	                           : strlen(origin) - sizeof(parsed.name) + 1));
	if (!json_is_object(root)) {
		if (root)
			k3_error("common", "%s: the text is not a JSON object", origin);
		else
			k3_error("common", "%s: line %d: %s", origin, error.line, error.text);
		K3_TRY(K3_EFORMAT);
	}
	K3_TRY(k3i_sections_take(&s, root));
	parsed.vision.present = s.section[K3I_VISION] != NULL;
	K3_TRY(fields_read(&s, &parsed));
	K3_TRY(k3i_features_check(&s));
	K3_TRY(k3i_repeats_check(&s, &parsed));
	K3_TRY(layers_read(&s, &parsed));
	K3_TRY(ids_read(&s, &parsed));
	if (parsed.vision.present)
		K3_TRY(merge_read(&s, &parsed));
	K3_TRY(k3_config_check(&parsed));
	k3i_rest_report(&s);
	*config = parsed;
out:
	k3i_sections_release(&s);
	json_decref(root);
	return ret;
}
