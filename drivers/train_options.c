/* Command line of k3_train.  One table serves it and run.json (train_resume.c): the parser fills the
 * struct, run.json stores every entry by its name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/options.h"
#include "../common/status.h"
#include "train_resume.h"

size_t
k3i_train_table(struct k3_option *table, struct k3_train_options *o)
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

	_Static_assert(sizeof(all) / sizeof(all[0]) <= K3I_TRAIN_OPTIONS, "callers hold that many");
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

/* One of two or three words. */
static bool
is_one_of(const char *option, const char *value, const char *const *words, const char *allowed)
{
	for (; *words; words++)
		if (strcmp(value, *words) == 0)
			return true;
	k3_error("drivers", "--%s %s: must be %s", option, value, allowed);
	return false;
}

/* Values of text, and options that need another one. */
static int
check_words(const struct k3_train_options *o)
{
	static const char *const vision[] = {"auto", "on", "off", NULL}, *const balance[] = {
										 "quantile", "sign",
										 "none", NULL};
	const struct {
		bool given;
		const char *option, *needs;
		bool there;
	} pairs[] = {
		{o->save_every > 0, "save-every", "save", o->save != NULL},
		{o->stop_after > 0, "stop-after", "save", o->save != NULL},
		{o->eval_every > 0, "eval-every", "eval-data", o->eval_data != NULL},
		{o->eval_log != NULL, "eval-log", "eval-data", o->eval_data != NULL},
	};
	size_t bad = 0;

	bad += k3_device_parse(&(enum k3_device){0}, o->device) != K3_OK;
	bad += k3_transport_parse(&(enum k3_transport){0}, o->comm) != K3_OK;
	bad += k3_session_dtype(&(enum k3_dtype){0}, "dtype", o->dtype) != K3_OK;
	bad += k3_session_dtype(&(enum k3_dtype){0}, "optimizer-dtype", o->optimizer_dtype) !=
	       K3_OK;
	bad += !is_one_of("vision", o->vision, vision, "auto, on or off");
	bad += !is_one_of("balance", o->balance, balance, "quantile, sign or none");
	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
		if (pairs[i].given && !pairs[i].there) {
			k3_error("drivers", "--%s needs --%s", pairs[i].option, pairs[i].needs);
			bad++;
		}
	return bad ? K3_EINVAL : K3_OK;
}

/* What one option alone can't tell; all that is wrong is told. */
static int
check(const struct k3_train_options *o)
{
	int ret = check_words(o);

	if (!o->model || !o->data) {
		k3_error("drivers", "%s missing (--help tells more)",
			 o->model  ? "--data is"
			 : o->data ? "--model is"
				   : "--model and --data are");
		ret = K3_EINVAL;
	}
	if (o->tokens < 1 || o->accumulate < 1 || o->steps < 1) {
		k3_error("drivers",
			 "tokens %lld, accumulate %lld, steps %lld: each must be 1 or more",
			 o->tokens, o->accumulate, o->steps);
		ret = K3_EINVAL;
	}
	if (o->warmup > o->steps) {
		k3_error("drivers", "--warmup %lld: at most --steps, %lld", o->warmup, o->steps);
		ret = K3_EINVAL;
	}
	if (o->stop_after > o->steps) {
		k3_error("drivers", "--stop-after %lld: the run ends at step %lld (--steps)",
			 o->stop_after, o->steps);
		ret = K3_EINVAL;
	}
	return ret;
}

int
k3_train_parse(struct k3_train_options *options, struct k3_run_state *state, char **folder,
	       int argc, char **argv)
{
	struct k3_option table[K3I_TRAIN_OPTIONS];
	char list[K3I_MAY_CHANGE_BYTES], about[K3I_MAY_CHANGE_BYTES + 400];
	size_t n = k3i_train_table(table, options);
	int first, ret;

	snprintf(about, sizeof(about),
		 "Trains Kimi K3 as a StarPU task graph. stdout: a header and one line per step, "
		 "tab-separated.\n"
		 "StarPU's environment (STARPU_NCPU, STARPU_SCHED, ...) applies.\n"
		 "A resumed run has the options that it was begun with; beside --resume it takes "
		 "%s.",
		 k3i_train_may_change(list, sizeof(list)));
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
		K3_TRY(k3i_train_resume(table, n, options, state, folder));
	K3_TRY(check(options));
out:
	return ret;
}
