/* The sections of a config.json that is being read.  The trap: a flat file's text section is the
 * top itself, so a key must be taken before somebody else looks for it at the other place. */
#include "config_source.h"

#include <stdio.h>
#include <stdlib.h>

#include "log.h"
#include "status.h"

json_t *
k3i_take(json_t *section, const char *key)
{
	json_t *value = json_incref(json_object_get(section, key));

	json_object_del(section, key);
	if (json_is_null(value))
		return NULL;
	return value;
}

static const char *
section_prefix(int section)
{
	return section == K3I_TOP ? "" : k3i_section_prefix((enum k3i_section)section);
}

int
k3i_refuse(const struct k3i_source *s, int section, const char *key, const json_t *value,
           const char *allowed)
{
	char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
	const char *prefix = section_prefix(section);

	if (value)
		k3_error("common", "%s: %s%s is %.80s; it must be %s", s->origin, prefix, key,
		         text ? text : "unreadable", allowed);
	else
		k3_error("common", "%s: %s%s is missing; it must be %s", s->origin, prefix, key,
		         allowed);
	free(text);
	return value ? K3_EINVAL : K3_EFORMAT;
}

void
k3i_rest_report(const struct k3i_source *s)
{
	static const char *const silent[] = {
		"model_type", "architectures", "auto_map", "dtype", "torch_dtype",
		"transformers_version"
	};
	char list[1024] = "";
	size_t used = 0;

	for (int i = 0; i < K3I_N_SECTIONS; i++) {
		const char *prefix = section_prefix(i);
		const char *key;
		json_t *value;

		for (size_t j = 0; j < sizeof(silent) / sizeof(silent[0]); j++)
			json_object_del(s->section[i], silent[j]);
		if (i == K3I_TOP && s->section[K3I_TOP] == s->section[K3I_TEXT])
			break;
		json_object_foreach(s->section[i], key, value)
			if (used < sizeof(list))
				used += (size_t)snprintf(list + used, sizeof(list) - used, " %s%s",
				                         prefix, key);
	}
	if (used)
		k3_info("common", "%s: ignored:%s", s->origin, list);
}

int
k3i_sections_take(struct k3i_source *s, json_t *root)
{
	s->section[K3I_TOP] = json_incref(root);
	s->section[K3I_TEXT] = k3i_take(root, "text_config");
	if (!s->section[K3I_TEXT])
		s->section[K3I_TEXT] = json_incref(root);
	if (!json_is_object(s->section[K3I_TEXT]))
		return k3i_refuse(s, K3I_TOP, "text_config", s->section[K3I_TEXT], "an object");
	s->section[K3I_LINEAR] = k3i_take(s->section[K3I_TEXT], "linear_attn_config");
	if (!json_is_object(s->section[K3I_LINEAR]))
		return k3i_refuse(s, K3I_TOP, "linear_attn_config", s->section[K3I_LINEAR],
		                  "an object");
	s->section[K3I_VISION] = k3i_take(root, "vision_config");
	if (s->section[K3I_VISION] && !json_is_object(s->section[K3I_VISION]))
		return k3i_refuse(s, K3I_TOP, "vision_config", s->section[K3I_VISION], "an object");
	return K3_OK;
}

void
k3i_sections_release(struct k3i_source *s)
{
	for (int i = 0; i < K3I_N_SECTIONS; i++)
		json_decref(s->section[i]);
}
