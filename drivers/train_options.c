/* Options of k3_train and run.json.  One table serves both: the parser fills the struct, run.json
 * stores every entry by its name, and a resumed run compares what was given with what was stored.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/fs.h"
#include "../common/log.h"
#include "../common/options.h"
#include "../common/status.h"
#include "train.h"

enum { MAX_OPTIONS = 48, MOST_JSON_BYTES = 1 << 20, MOST_LIST_BYTES = 400 };

static size_t
make_table(struct k3_option *table, struct k3_train_options *o)
{
	const struct k3_option all[] = {
		{"model", "PRESET|DIR|FILE", K3_OPT_STRING, &o->model, 0, 0,
		 "preset, config.json or its folder", false},
		{"layers", "N", K3_OPT_INT, &o->layers, 1, 256, "keeps the first N layers", false},
		{"vocab", "V", K3_OPT_INT, &o->vocab, 5, 2147483647, "another vocabulary size",
		 false},
		{"data", "X.k3t", K3_OPT_STRING, &o->data, 0, 0, "training data (k3_data makes it)",
		 false},
		{"eval-data", "X.k3t", K3_OPT_STRING, &o->eval_data, 0, 0, "held-out data", false},
		{"eval-every", "N", K3_OPT_INT, &o->eval_every, 1, 1e9,
		 "held-out loss every N steps, on stderr (at the end: always)", false},
		{"eval-log", "FILE", K3_OPT_STRING, &o->eval_log, 0, 0,
		 "held-out losses as a table; a resumed run adds to it", false},
		{"tokens", "T", K3_OPT_INT, &o->tokens, 1, 1e7, "tokens of a microbatch (256)",
		 false},
		{"accumulate", "M", K3_OPT_INT, &o->accumulate, 1, 1e6,
		 "microbatches of a step (1)", false},
		{"steps", "N", K3_OPT_INT, &o->steps, 1, 1e9, "length of the schedule (10)", false},
		{"stop-after", "N", K3_OPT_INT, &o->stop_after, 1, 1e9,
		 "ends with a checkpoint after step N; the schedule stays", false},
		{"lr", "X", K3_OPT_REAL, &o->lr, 0, 1e3, "highest learning rate (8e-4)", false},
		{"warmup", "STEPS", K3_OPT_INT, &o->warmup, 0, 1e9,
		 "steps of linear warm-up (2, or all)", false},
		{"decay", "RATIO", K3_OPT_REAL, &o->decay, 0, 1,
		 "share of the steps in the final linear decay (0.8)", false},
		{"weight-decay", "X", K3_OPT_REAL, &o->weight_decay, 0, 1e3,
		 "of AdamW, on all parameters (0.1)", false},
		{"clip", "X", K3_OPT_REAL, &o->clip, 0, 1e9,
		 "largest norm of the gradient; 0: no clipping (1)", false},
		{"seed", "N", K3_OPT_INT, &o->seed, 0, 9e15,
		 "of initial values and of the order of documents (0)", false},
		K3_CUT_OPTIONS(&o->cut),
		{"calibrate", NULL, K3_OPT_SWITCH, &o->calibrate, 0, 0,
		 "StarPU measures tasks and schedules by that, not by the plan's costs", false},
		{"window", "N", K3_OPT_INT, &o->window, 0, 1e9,
		 "most tasks in flight; 0: unlimited (0)", false},
		{"vision", "auto|on|off", K3_OPT_STRING, &o->vision, 0, 0,
		 "trains the vision tower: with images in the data (auto), always, never", false},
		{"max-patches", "N", K3_OPT_INT, &o->max_patches, 1, 1e9,
		 "most patches of a microbatch's images (4 a token, or the largest image)", false},
		{"vision-patches", "N", K3_OPT_INT, &o->vision_patches, 1, 1e9,
		 "patches of a vision tile (256)", false},
		{"activations", "POLICY", K3_OPT_STRING, &o->activations, 0, 0,
		 "keep, recompute, or A-B:keep,C-D:recompute by layers (keep, or what --memory or "
		 "the GPU needs)",
		 false},
		{"memory", "GIB", K3_OPT_REAL, &o->memory, 0, 1e9,
		 "limit of each memory node; 0: the machine's memory (0)", false},
		{"balance", "RULE", K3_OPT_STRING, &o->balance, 0, 0,
		 "expert balance: quantile, sign or none (quantile)", false},
		{"init-from", "DIR|FILE", K3_OPT_STRING, &o->init_from, 0, 0,
		 "weights to start from (safetensors)", false},
		{"save", "DIR", K3_OPT_STRING, &o->save, 0, 0,
		 "where checkpoints go: DIR/step-000010 and so on", false},
		{"save-every", "N", K3_OPT_INT, &o->save_every, 1, 1e9,
		 "a checkpoint every N steps (with --save: at the end always)", false},
		{"resume", "DIR", K3_OPT_STRING, &o->resume, 0, 0,
		 "a checkpoint, or the folder above: the newest complete one", false},
		{"fingerprint", NULL, K3_OPT_SWITCH, &o->fingerprint, 0, 0,
		 "a hash over loss, gradients and parameters in each line", false},
		{"cut-state", NULL, K3_OPT_SWITCH, &o->cut_state, 0, 0,
		 "for tests: KDA's state and convolution end at each tile", false},
		K3_DEVICE_OPTION(&o->device),
		K3_COMM_OPTION(&o->comm),
		K3_DTYPE_OPTION(&o->dtype),
		K3_OPTIMIZER_DTYPE_OPTION(&o->optimizer_dtype),
		K3_TRACE_OPTIONS(&o->trace, &o->trace_tasks),
	};

	_Static_assert(sizeof(all) / sizeof(all[0]) <= MAX_OPTIONS, "callers hold that many");
	memcpy(table, all, sizeof(all));
	return sizeof(all) / sizeof(all[0]);
}

static void
defaults(struct k3_train_options *o)
{
	memset(o, 0, sizeof(*o));
	o->tokens = 256;
	o->accumulate = 1;
	o->cut.tile_tokens = K3_TILE_AUTO;
	o->steps = 10;
	o->warmup = 2;
	o->lr = 8e-4;
	o->decay = 0.8;
	o->weight_decay = 0.1;
	o->clip = 1;
	o->balance = "quantile";
	o->vision = "auto";
	o->device = "cpu";
	o->dtype = "fp32";
	o->comm = "none";
	o->optimizer_dtype = "fp32";
}

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
static const char *
change_list(char *text, size_t bytes)
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
	char list[MOST_LIST_BYTES];
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
			char *a = json_dumps(mine, JSON_ENCODE_ANY),
			     *b = v ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
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
			 change_list(list, sizeof(list)));
	return changed || refused ? K3_EINVAL : K3_OK;
}

static int
resume(struct k3_option *table, size_t n, struct k3_train_options *o, struct k3_run_state *state,
       char **folder)
{
	json_t *root = NULL;
	int ret;

	K3_TRY(k3_checkpoint_find(folder, o->resume));
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

/* What one option alone can't tell. */
static int
check(const struct k3_train_options *o)
{
	if (!o->model || !o->data) {
		k3_error("drivers", "--%s is missing (--help tells more)",
			 o->model ? "data" : "model");
		return K3_EINVAL;
	}
	if (o->tokens < 1 || o->accumulate < 1 || o->steps < 1) {
		k3_error("drivers",
			 "tokens %lld, accumulate %lld, steps %lld: each must be 1 or more",
			 o->tokens, o->accumulate, o->steps);
		return K3_EINVAL;
	}
	if (o->warmup > o->steps) {
		k3_error("drivers", "--warmup %lld: at most --steps, %lld", o->warmup, o->steps);
		return K3_EINVAL;
	}
	if (k3_device_parse(&(enum k3_device){0}, o->device) != K3_OK ||
	    k3_transport_parse(&(enum k3_transport){0}, o->comm) != K3_OK ||
	    k3_session_dtype(&(enum k3_dtype){0}, "dtype", o->dtype) != K3_OK ||
	    k3_session_dtype(&(enum k3_dtype){0}, "optimizer-dtype", o->optimizer_dtype) != K3_OK)
		return K3_EINVAL;
	if (strcmp(o->vision, "auto") != 0 && strcmp(o->vision, "on") != 0 &&
	    strcmp(o->vision, "off") != 0) {
		k3_error("drivers", "--vision %s: must be auto, on or off", o->vision);
		return K3_EINVAL;
	}
	if (strcmp(o->balance, "quantile") != 0 && strcmp(o->balance, "sign") != 0 &&
	    strcmp(o->balance, "none") != 0) {
		k3_error("drivers", "--balance %s: must be quantile, sign or none", o->balance);
		return K3_EINVAL;
	}
	if (o->save_every && !o->save) {
		k3_error("drivers", "--save-every %lld needs --save", o->save_every);
		return K3_EINVAL;
	}
	if (o->stop_after > o->steps) {
		k3_error("drivers", "--stop-after %lld: the run ends at step %lld (--steps)",
			 o->stop_after, o->steps);
		return K3_EINVAL;
	}
	if (o->stop_after && !o->save) {
		k3_error("drivers", "--stop-after %lld ends with a checkpoint: it needs --save",
			 o->stop_after);
		return K3_EINVAL;
	}
	if (o->eval_every && !o->eval_data) {
		k3_error("drivers", "--eval-every %lld needs --eval-data", o->eval_every);
		return K3_EINVAL;
	}
	if (o->eval_log && !o->eval_data) {
		k3_error("drivers", "--eval-log %s needs --eval-data", o->eval_log);
		return K3_EINVAL;
	}
	return K3_OK;
}

int
k3_train_parse(struct k3_train_options *options, struct k3_run_state *state, char **folder,
	       int argc, char **argv)
{
	struct k3_option table[MAX_OPTIONS];
	char list[MOST_LIST_BYTES], about[MOST_LIST_BYTES + 400];
	size_t n = make_table(table, options);
	int first, ret;

	snprintf(about, sizeof(about),
		 "Trains Kimi K3 as a StarPU task graph. stdout: a header and one line per step, "
		 "tab-separated.\n"
		 "StarPU's environment (STARPU_NCPU, STARPU_SCHED, ...) applies.\n"
		 "A resumed run has the options that it was begun with; beside --resume it takes "
		 "%s.",
		 change_list(list, sizeof(list)));
	*folder = NULL;
	memset(state, 0, sizeof(*state));
	defaults(options);
	K3_TRY(k3_options_parse("k3_train",
				"--model MODEL --data X.k3t [OPTIONS] | --resume DIR [OPTIONS]",
				about, table, n, argc, argv, &first));
	if (first < argc) {
		k3_error("drivers", "%s: k3_train takes options only", argv[first]);
		K3_TRY(K3_EINVAL);
	}
	/* the default must not forbid a short run */
	if (!k3_option_given(table, n, "warmup") && options->warmup > options->steps)
		options->warmup = options->steps;
	if (options->resume)
		K3_TRY(resume(table, n, options, state, folder));
	K3_TRY(check(options));
out:
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
	struct k3_option table[MAX_OPTIONS];
	size_t n = make_table(table, &copy);
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
