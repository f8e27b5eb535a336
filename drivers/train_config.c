/* The model that is trained: from preset or file, with the special ids of the data.  The trap: a
 * resumed run names its model by preset or path, as it was begun, so a file that was edited since
 * (or a checkpoint that was) would go on as another model wherever the shapes of its weights agree.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "../common/log.h"
#include "../common/status.h"
#include "train_run.h"

enum { LISTED_FIELDS = 10 };

struct comparison {
	const char *folder, *model;
	size_t differ;
};

static void
tell(struct comparison *c, const char *section, const char *key, const json_t *stored,
     const json_t *now)
{
	const size_t flags = JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15);
	char *a = stored ? json_dumps(stored, flags) : NULL,
	     *b = now ? json_dumps(now, flags) : NULL;

	if (c->differ++ < LISTED_FIELDS)
		k3_error("drivers", "%s/config.json: %s%s%s is %s; the run's --model %s has %s",
			 c->folder, section, *section ? "." : "", key, a ? a : "absent", c->model,
			 b ? b : "none");
	free(a);
	free(b);
}

/* Objects; a section within is told by its own name. */
static void
compare(struct comparison *c, const char *section, json_t *stored, json_t *now)
{
	const char *key;
	json_t *value;

	json_object_foreach(now, key, value)
	{
		json_t *old = json_object_get(stored, key);
		if (json_is_object(value) && json_is_object(old))
			compare(c, key, old, value);
		else if (!json_equal(value, old))
			tell(c, section, key, old, value);
	}
	json_object_foreach(stored, key, value) if (!json_object_get(now, key))
		tell(c, section, key, value, NULL);
}

/* Is the model of a checkpoint's config.json this one?  Both are written by this program, so that
 * keys which it does not know do not count. */
static int
check_same(const char *model, const struct k3_config *now, const char *folder)
{
	struct comparison c = {.folder = folder, .model = model};
	char path[4300], *texts[2] = {NULL, NULL};
	json_t *json[2] = {NULL, NULL};
	struct k3_config stored;
	int ret;

	snprintf(path, sizeof(path), "%s/config.json", folder);
	K3_TRY(k3_config_load(&stored, path));
	texts[0] = k3_config_json(&stored);
	texts[1] = k3_config_json(now);
	for (int i = 0; i < 2; i++)
		json[i] = texts[i] ? json_loads(texts[i], 0, NULL) : NULL;
	if (!json[0] || !json[1])
		K3_TRY(K3_ENOMEM);
	compare(&c, "", json[0], json[1]);
	if (c.differ > 0) {
		k3_error("drivers",
			 "%zu of their fields differ: one of the two was changed since the "
			 "checkpoint was written",
			 c.differ);
		ret = K3_EDIFFER;
	}
out:
	for (int i = 0; i < 2; i++) {
		json_decref(json[i]);
		free(texts[i]);
	}
	return ret;
}

int
k3i_train_config(struct k3i_trainer *t, const char *folder)
{
	const struct k3_train_options *o = t->options;
	const uint32_t none = K3_K3T_NO_ID;
	struct k3_config *c = &t->config;
	int ret;

	K3_TRY(k3_config_load(c, o->model));
	if (o->layers)
		K3_TRY(k3_config_set_layers(c, o->layers));
	if (o->vocab)
		K3_TRY(k3_config_set_vocab(c, o->vocab));
	if (t->data.file.ids.vocab > c->vocab) {
		k3_error("drivers",
			 "%s has %u tokens, the model has %u: a vocabulary of at least that many "
			 "is needed (--vocab)",
			 o->data, t->data.file.ids.vocab, c->vocab);
		K3_TRY(K3_EINVAL);
	}
	if (t->data.file.ids.bos != none)
		c->bos = t->data.file.ids.bos;
	if (t->data.file.ids.eos != none)
		c->eos = t->data.file.ids.eos;
	if (t->data.file.ids.pad != none)
		c->pad = t->data.file.ids.pad;
	if (t->data.file.ids.placeholder != none)
		c->placeholder = t->data.file.ids.placeholder;
	K3_TRY(k3i_train_choose_vision(t));
	K3_TRY(k3_config_check(c));
	if (folder)
		K3_TRY(check_same(o->model, c, folder));
out:
	return ret;
}
