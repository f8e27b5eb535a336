/* run.json: what a run can be resumed from.  Every option of the table is stored by its name, and a
 * resumed run compares what is given with what was stored.  The trap: what an older file does not
 * hold had its default then. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/fs.h"
#include "../common/log.h"
#include "../common/options.h"
#include "../common/status.h"
#include "train_resume.h"

enum { MOST_JSON_BYTES = 1 << 20 };

/* What a resumed run may say anew; the rest is the training's and stays. */
static const struct {
	const char *name;
	bool momentary; /* of this run of the program alone: run.json does not hold it */
} may_change[] = {
	{"stop-after", false}, {"save", false},	    {"save-every", false},  {"eval-data", false},
	{"eval-every", false}, {"eval-log", false}, {"fingerprint", false}, {"activations", false},
	{"memory", false},     {"window", false},   {"trace", true},	    {"trace-tasks", true},
	{"machine", true},     {"calibrate", true}, {"device", true},	    {"comm", true},
};
enum { N_MAY_CHANGE = sizeof(may_change) / sizeof(may_change[0]) };

/* Place in the table; N_MAY_CHANGE: not there. */
static size_t
change_of(const char *name)
{
	size_t i = 0;

	while (i < N_MAY_CHANGE && strcmp(may_change[i].name, name) != 0)
		i++;
	return i;
}

static bool
is_momentary(const char *name)
{
	size_t i = change_of(name);

	return i < N_MAY_CHANGE && may_change[i].momentary;
}

/* "--a, --b and --c" for a message. */
const char *
k3i_train_may_change(char *text, size_t bytes)
{
	size_t at = 0;

	for (size_t i = 0; i < N_MAY_CHANGE && at < bytes; i++)
		at += (size_t)snprintf(text + at, bytes - at, "%s--%s",
				       i == 0		      ? ""
				       : i + 1 < N_MAY_CHANGE ? ", "
							      : " and ",
				       may_change[i].name);
	return text;
}

/* A run.json that is older than these does not hold them; they have the default. */
static bool
is_later(const char *name)
{
	static const char *const names[] = {
		"eval-log",    "cut-state",	  "kda-groups", "mla-groups",  "expert-groups",
		"activations", "memory",	  "vision",	"max-patches", "vision-patches",
		"dtype",       "optimizer-dtype", "head-rows"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(names[i], name) == 0)
			return true;
	return false;
}

/* A file is stored by its whole path, so that a run can be resumed from any folder. */
static json_t *
text_json(const struct k3_option *o)
{
	static const char *const paths[] = {"data", "eval-data", "save", "init-from", "eval-log"};
	const char *text = *(const char *const *)o->target;
	char *whole = NULL;

	for (size_t i = 0; text && i < sizeof(paths) / sizeof(paths[0]); i++)
		if (strcmp(paths[i], o->name) == 0)
			whole = realpath(text, NULL);
	json_t *v = whole ? json_string(whole) : text ? json_string(text) : json_null();
	free(whole);
	return v;
}

static json_t *
value_json(const struct k3_option *o)
{
	switch (o->kind) {
	case K3_OPT_SWITCH:
		return json_boolean(*(const bool *)o->target);
	case K3_OPT_STRING:
		return text_json(o);
	case K3_OPT_REAL:
		return json_real(*(const double *)o->target);
	case K3_OPT_TILE:
		if (*(const long long *)o->target == K3_TILE_AUTO)
			return json_string("auto");
		/* fall through */
	case K3_OPT_INT:
		return json_integer(*(const long long *)o->target);
	}
	return json_null();
}

/* In the option's range; 0 stands for an option that was not given. */
static bool
in_range(const struct k3_option *o, double x)
{
	if (o->kind == K3_OPT_TILE)
		return x >= 0 && x <= (1 << 30) && (long long)x % 64 == 0;
	return x == 0 || (x >= o->lo && x <= o->hi);
}

/* Strings live to the end of the program. */
static int
value_set(const struct k3_option *o, const json_t *v)
{
	if (o->kind == K3_OPT_SWITCH && json_is_boolean(v))
		*(bool *)o->target = json_is_true(v);
	else if (o->kind == K3_OPT_STRING && json_string_length(v) > 0)
		*(const char **)o->target = strdup(json_string_value(v));
	else if (o->kind == K3_OPT_STRING && json_is_null(v) && !*(const char **)o->target)
		return K3_OK; /* it has no default either */
	else if (json_is_number(v) && !in_range(o, json_number_value(v)))
		return K3_EFORMAT;
	else if (o->kind == K3_OPT_REAL && json_is_number(v))
		*(double *)o->target = json_number_value(v);
	else if ((o->kind == K3_OPT_INT || o->kind == K3_OPT_TILE) && json_is_integer(v))
		*(long long *)o->target = json_integer_value(v);
	else
		return K3_EFORMAT;
	return K3_OK;
}

static uint64_t
state_number(const json_t *state, const char *key, int *ret)
{
	const json_t *v = json_object_get(state, key);
	char *end;

	/* 64 bits do not fit a JSON integer: text */
	const char *text = json_string_value(v);
	errno = 0;
	uint64_t x = text ? strtoull(text, &end, 10) : 0;
	if (!text || *end || !*text || errno || strspn(text, "0123456789") != strlen(text)) {
		k3_error("drivers",
			 "run.json: state.%s must be a decimal number of 64 bits in quotes", key);
		*ret = K3_EFORMAT;
	}
	return x;
}

static int
load_json(const char *folder, json_t **root)
{
	char path[4200], *text = NULL;
	json_error_t error;
	size_t bytes;
	int ret;

	*root = NULL;
	snprintf(path, sizeof(path), "%s/run.json", folder);
	K3_TRY(k3_fs_read(path, MOST_JSON_BYTES, &text, &bytes));
	*root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
	if (!json_is_object(*root)) {
		k3_error("drivers", "%s: %s at line %d", path, *root ? "no object" : error.text,
			 error.line);
		K3_TRY(K3_EFORMAT);
	}
	const json_t *format = json_object_get(*root, "format");
	if (!json_is_integer(format) || json_integer_value(format) != 1 ||
	    !json_is_object(json_object_get(*root, "options")) ||
	    !json_is_object(json_object_get(*root, "state"))) {
		k3_error("drivers", "%s: must hold format 1 and the objects options and state",
			 path);
		ret = K3_EFORMAT;
	}
out:
	free(text);
	return ret;
}

static int
load_state(const json_t *root, struct k3_run_state *state)
{
	const json_t *s = json_object_get(root, "state");
	int ret = K3_OK;

	state->step = state_number(s, "step", &ret);
	state->position.epoch = state_number(s, "epoch", &ret);
	state->position.doc = state_number(s, "document", &ret);
	state->position.offset = state_number(s, "offset", &ret);
	state->data_checksum = state_number(s, "data_checksum", &ret);
	state->tokens = state_number(s, "tokens", &ret);
	return ret;
}

/* Takes over stored values; what was given and differs is refused. */
static int
merge(struct k3_option *table, size_t n, const json_t *stored)
{
	char list[K3I_MAY_CHANGE_BYTES];
	size_t changed = 0, refused = 0;

	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_object_get(stored, table[i].name);
		if (strcmp(table[i].name, "resume") == 0 || is_momentary(table[i].name) ||
		    (table[i].given && change_of(table[i].name) < N_MAY_CHANGE))
			continue;
		/* a stopping point belongs to the run that it ended */
		if (strcmp(table[i].name, "stop-after") == 0)
			continue;
		if (!v && !table[i].given && is_later(table[i].name))
			continue;
		json_t *mine = value_json(&table[i]);
		if (table[i].given && !json_equal(mine, v)) {
			/* as a user writes them: 0.0008, not its 17 digits */
			const size_t flags = JSON_ENCODE_ANY | JSON_REAL_PRECISION(15);
			char *a = json_dumps(mine, flags), *b = v ? json_dumps(v, flags) : NULL;
			k3_error("drivers", "--%s %s: the run to be resumed has %s", table[i].name,
				 a ? a : "?", b ? b : "nothing");
			free(a);
			free(b);
			changed++;
		} else if (!table[i].given && (!v || value_set(&table[i], v) != K3_OK)) {
			k3_error("drivers",
				 "run.json: options.%s is missing, has a wrong type or is out of "
				 "range",
				 table[i].name);
			refused++;
		}
		json_decref(mine);
	}
	if (changed)
		k3_error("drivers", "a resumed run may change only %s",
			 k3i_train_may_change(list, sizeof(list)));
	return changed || refused ? K3_EINVAL : K3_OK;
}

int
k3i_train_resume(struct k3_option *table, size_t n, struct k3_train_options *o,
		 struct k3_run_state *state, char **folder)
{
	json_t *root = NULL;
	int ret;

	K3_TRY(k3_checkpoint_find(folder, o->resume));
	K3_TRY(k3_checkpoint_check_or_advise(*folder, false, "--resume"));
	K3_TRY(load_json(*folder, &root));
	K3_TRY(merge(table, n, json_object_get(root, "options")));
	K3_TRY(load_state(root, state));
	if (state->step < 1 || state->step > (uint64_t)o->steps) {
		k3_error("drivers", "%s/run.json: state.step is %llu; allowed are 1 to steps, %lld",
			 *folder, (unsigned long long)state->step, o->steps);
		K3_TRY(K3_EFORMAT);
	}
	if (o->stop_after && (uint64_t)o->stop_after < state->step) {
		k3_error("drivers",
			 "--stop-after %lld: %s is of step %llu; allowed are %llu to --steps, %lld",
			 o->stop_after, *folder, (unsigned long long)state->step,
			 (unsigned long long)state->step, o->steps);
		K3_TRY(K3_EINVAL);
	}
	const char *blas = json_string_value(json_object_get(root, "blas"));
	snprintf(state->blas, sizeof(state->blas), "%s", blas ? blas : "");
out:
	json_decref(root);
	return ret;
}

static void
put_number(json_t *state, const char *key, uint64_t x)
{
	char text[24];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)x);
	json_object_set_new(state, key, json_string(text));
}

char *
k3_run_state_json(const struct k3_run_state *state, const struct k3_train_options *options,
		  const char *starpu_version, const char *blas)
{
	struct k3_train_options copy = *options;
	struct k3_option table[K3I_TRAIN_OPTIONS];
	size_t n = k3i_train_table(table, &copy);
	json_t *root = json_object(), *o = json_object(), *s = json_object();

	for (size_t i = 0; i < n; i++)
		if (!is_momentary(table[i].name))
			json_object_set_new(o, table[i].name, value_json(&table[i]));
	put_number(s, "step", state->step);
	put_number(s, "epoch", state->position.epoch);
	put_number(s, "document", state->position.doc);
	put_number(s, "offset", state->position.offset);
	put_number(s, "data_checksum", state->data_checksum);
	put_number(s, "tokens", state->tokens);
	json_object_set_new(root, "format", json_integer(1));
	json_object_set_new(root, "version", json_string(PACKAGE_VERSION));
	json_object_set_new(root, "starpu", json_string(starpu_version));
	json_object_set_new(root, "blas", json_string(blas));
	json_object_set_new(root, "options", o);
	json_object_set_new(root, "state", s);
	char *text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
	json_decref(root);
	return text;
}
