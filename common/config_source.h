/* What the readers of config.json share. Internal to the config_*.c files. */
#ifndef K3_CONFIG_SOURCE_H
#define K3_CONFIG_SOURCE_H

#include <jansson.h>

#include "config_fields.h"

enum { K3I_TOP = K3I_VISION + 1, K3I_N_SECTIONS };

struct k3i_source {
	json_t *section[K3I_N_SECTIONS]; /* vision may be NULL; K3I_TOP may be the text */
	const char *origin;
};

/** Finds the sections, each with a reference of its own; all zero before. */
int k3i_sections_take(struct k3i_source *s, json_t *root);
void k3i_sections_release(struct k3i_source *s);

/** Takes a key out of a section (NULL: an empty one); the caller owns the value. NULL: absent. */
json_t *k3i_take(json_t *section, const char *key);

/** Logs what a value (NULL: absent) is and what it must be. @return K3_EINVAL, absent K3_EFORMAT */
int k3i_refuse(const struct k3i_source *s, int section, const char *key, const json_t *value,
               const char *allowed);

/** Refuses features that we do not have. */
int k3i_features_check(const struct k3i_source *s);
/** Refuses numbers that should repeat another one and do not. */
int k3i_repeats_check(const struct k3i_source *s, const struct k3_config *config);

/** One info line with the keys that nobody took. */
void k3i_rest_report(const struct k3i_source *s);

#endif
