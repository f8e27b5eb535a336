/* The numbers of a configuration that config.json holds one by one, as a table: reading, writing
 * and checking are loops over it, so that a field can't be read and then forgotten by the check.
 * Internal to the config_*.c files.
 */
#ifndef K3_CONFIG_FIELDS_H
#define K3_CONFIG_FIELDS_H

#include "config.h"

enum k3i_section { K3I_TEXT, K3I_LINEAR, K3I_VISION };

enum k3i_field_kind {
	K3I_SIZE,     /* uint32_t, from 1 */
	K3I_COUNT,    /* uint32_t, from 0 */
	K3I_POSITIVE, /* double above 0 that a float can hold */
	K3I_DECAY,    /* double in [-5, 0): the chunked KDA kernels are stable for these only */
};

struct k3i_field {
	enum k3i_section section;
	enum k3i_field_kind kind;
	const char *key;
	size_t offset;   /* in struct k3_config */
	double fallback; /* value of an absent key; 0: the key is required */
	bool ours;       /* no key of the released layout: written only when it differs */
};

extern const struct k3i_field k3i_fields[];
extern const size_t k3i_n_fields;

/** Key of the section for messages, with its dot: "", "linear_attn_config.", "vision_config.". */
const char *k3i_section_prefix(enum k3i_section section);

bool k3i_field_is_integer(const struct k3i_field *field);
const char *k3i_field_allowed(const struct k3i_field *field);
double k3i_field_get(const struct k3i_field *field, const struct k3_config *config);
/** The value must have passed k3i_field_check. */
void k3i_field_set(const struct k3i_field *field, struct k3_config *config, double value);
/** K3_OK or K3_EINVAL, logged with origin, key, value and what is allowed. */
int k3i_field_check(const struct k3i_field *field, const char *origin, double value);

/** Four special ids and one other token. */
enum { K3I_MIN_VOCAB = 5 };

/** The four special token ids, in the order bos, eos, pad, placeholder. */
enum { K3I_N_IDS = 4 };
extern const char *const k3i_id_keys[K3I_N_IDS];
uint32_t *k3i_id(struct k3_config *config, int which);
/** Sets the ids of a vocabulary without ids of its own: V-4 V-3 V-1 V-2; vocab >= K3I_MIN_VOCAB. */
void k3i_ids_default(struct k3_config *config);

#endif
