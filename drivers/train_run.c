/* The step loop.  It runs one step behind: step n+1 is submitted before the scalars of step n are
 * read, so the workers never wait for the host.  The host arrays of a step are two deep: when step
 * n-1 has been read, its batch was loaded long ago. The trap: what a step does not finish (NaN, no
 * labels) is decided in the graph, by clip_factor; the host only reports it. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../common/fs.h"
#include "../common/log.h"
#include "../common/rng.h"
#include "../common/schedule.h"
#include "../common/status.h"
#include "../planner/plan_check.h"
#include "../tasks/usage.h"
#include "train.h"

struct trainer {
	const struct k3_train_options *options;
	struct k3_train_options chosen; /* options, with numbers for what was to be chosen */
	struct k3_machine machine;
	struct k3_run_state *state;
	struct k3_session session;
	struct k3_config config;
	struct k3_data data;
	int32_t *rows[2]; /* by parity: accumulate x (ids | labels | documents) */
	struct {
		double lr, tokens;	   /* of the step in flight, by parity */
		struct k3_run_state after; /* run state once it is done */
	} flight[2];
	FILE *eval_log; /* NULL: none */
	double last_time;
	uint64_t saved_step; /* of the newest checkpoint of this run; 0: none */
	int failed;
};

static volatile sig_atomic_t stop_signal;

static void
on_signal(int signal)
{
	stop_signal = signal;
}

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t
gib_bytes(double gib)
{
	return (uint64_t)(gib * (1u << 30));
}

static enum k3_balance_rule
rule_of(const char *name)
{
	return strcmp(name, "none") == 0   ? K3_BALANCE_NONE
	       : strcmp(name, "sign") == 0 ? K3_BALANCE_SIGN
					   : K3_BALANCE_QUANTILE;
}

/* Model from preset or file, with the special ids of the data. */
static int
make_config(struct trainer *t)
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
	c->vision.present = false; /* this version trains text */
	K3_TRY(k3_config_check(c));
out:
	return ret;
}

static int
open_data(struct trainer *t)
{
	const struct k3_train_options *o = t->options;
	int ret;

	K3_TRY(k3_data_open(&t->data, o->data, (uint64_t)o->seed, false));
	K3_TRY(k3_data_require(&t->data, o->data, (uint64_t)o->tokens));
	if (t->state->step > 0 && t->state->data_checksum != t->data.file.checksum) {
		k3_error(
			"drivers",
			"%s: its checksum is %016llx, the run to be resumed used data with %016llx",
			o->data, (unsigned long long)t->data.file.checksum,
			(unsigned long long)t->state->data_checksum);
		K3_TRY(K3_EDIFFER);
	}
	t->state->data_checksum = t->data.file.checksum;
	if (t->state->step > 0)
		K3_TRY(k3_data_set_pos(&t->data, &t->state->position));
out:
	return ret;
}

static struct k3_run_shape
run_shape(const struct k3_train_options *o)
{
	return (struct k3_run_shape){(size_t)o->tokens, (uint32_t)o->accumulate,
				     o->eval_data != NULL};
}

/* Activation policies: what was asked for, or what the limit of memory needs. */
static int
choose_activations(struct trainer *t, struct k3_plan_options *plan)
{
	const struct k3_train_options *o = t->options;
	struct k3_run_shape shape = run_shape(o);
	char *text;
	int ret = K3_OK;

	if (o->activations)
		K3_TRY(k3_activations_parse(plan->activations, t->config.layers, o->activations));
	else if (o->memory > 0)
		K3_TRY(k3_activations_choose(plan, &t->config, &shape, gib_bytes(o->memory)));
	text = k3_activations_text(plan->activations, t->config.layers);
	if (!text)
		K3_TRY(K3_ENOMEM);
	k3_info("drivers", "activations: %s", text);
	free(text);
out:
	return ret;
}

/* Slots do not depend on the documents, so one layout tells the bound of the run. */
static int
check_memory(struct trainer *t)
{
	const struct k3_train_options *o = t->options;
	const struct k3_model *model = t->session.model;
	struct k3_run_shape shape = run_shape(o);
	struct k3_memory memory;
	int ret;

	K3_TRY(k3_memory_run(&memory, model, &shape));
	k3_info("drivers", "plan: at most %.1f MiB in handles",
		(double)k3_memory_bound(&memory) / 1048576);
	if (o->memory > 0)
		K3_TRY(k3_plan_check_memory(&memory, gib_bytes(o->memory), model));
out:
	k3_memory_fini(&memory);
	return ret;
}

static int
start_values(struct trainer *t, const char *folder)
{
	struct k3_st *st = NULL;
	int ret;

	K3_TRY(k3_session_init(&t->session, (uint64_t)t->options->seed));
	const char *weights = folder ? folder : t->options->init_from;
	if (!weights)
		return K3_OK;
	K3_TRY(k3_st_open(&st, weights));
	K3_TRY(k3_checkpoint_load_params(t->session.store, st));
	if (folder)
		K3_TRY(k3_checkpoint_load_optimizer(t->session.store, folder));
out:
	k3_st_close(st);
	return ret;
}

/* The folder of checkpoints can be written, and holds none of another run. */
static int
check_save(const struct k3_train_options *o, const char *folder)
{
	char *other = NULL;
	int ret = K3_OK;

	if (!o->save)
		return K3_OK;
	K3_TRY(k3_fs_mkdirs(o->save));
	if (access(o->save, W_OK | X_OK) != 0) {
		k3_error("drivers", "--save %s: cannot be written: %s", o->save, strerror(errno));
		K3_TRY(K3_EIO);
	}
	if (folder)
		return K3_OK;
	K3_TRY(k3_checkpoint_newest(&other, o->save));
	if (other) {
		k3_error("drivers",
			 "--save %s: holds %s of another run; take another folder, or --resume it",
			 o->save, other);
		ret = K3_EEXIST;
	}
out:
	free(other);
	return ret;
}

/* Options of the planner; what was to be chosen becomes a number, here and in run.json. */
static int
plan_options(struct trainer *t, struct k3_plan_options *plan)
{
	const struct k3_train_options *o = t->options;
	int ret;

	k3_plan_options_init(plan);
	plan->balance = rule_of(o->balance);
	plan->weight_decay = o->weight_decay;
	plan->clip_norm = o->clip;
	plan->fingerprint = o->fingerprint;
	plan->cut_state = o->cut_state;
	K3_TRY(k3_session_cut(plan, &t->machine, &t->chosen.cut, &t->config, (size_t)o->tokens));
	K3_TRY(choose_activations(t, plan));
out:
	return ret;
}

/* A resumed run goes on in the table of the one before; else the file is begun anew. */
static int
open_eval_log(struct trainer *t)
{
	const char *path = t->options->eval_log;

	t->eval_log = fopen(path, t->state->step > 0 ? "a" : "w");
	if (!t->eval_log) {
		k3_error("drivers", "--eval-log %s: %s", path, strerror(errno));
		return K3_EIO;
	}
	if (ftell(t->eval_log) == 0)
		fputs("step\tloss_nats\taccuracy\ttokens\n", t->eval_log);
	return K3_OK;
}

static int
open_all(struct trainer *t, const char *folder)
{
	const struct k3_train_options *o = t->options;
	struct k3_plan_options plan;
	size_t rows = 3 * (size_t)o->tokens * (size_t)o->accumulate;
	int ret;

	K3_TRY(open_data(t));
	K3_TRY(make_config(t));
	K3_TRY(check_save(o, folder));
	K3_TRY(plan_options(t, &plan));
	for (int i = 0; i < 2; i++) {
		t->rows[i] = malloc(rows * sizeof(int32_t));
		if (!t->rows[i])
			K3_TRY(K3_ENOMEM);
	}
	K3_TRY(k3_session_open(
		&t->session, &t->config, &plan,
		&(struct k3_runtime_options){.window = (uint32_t)o->window,
					     .trace_dir = o->trace,
					     .trace_most_tasks = (size_t)o->trace_tasks,
					     .calibrate = o->calibrate}));
	k3_info("drivers",
		"k3_train %s, model %s with %llu parameters, seed %lld, data %s with %llu tokens "
		"an epoch",
		PACKAGE_VERSION, t->config.name,
		(unsigned long long)t->session.model->params.n_elems, o->seed, o->data,
		(unsigned long long)k3_data_total_tokens(&t->data));
	const char *blas = k3_runtime_blas(t->session.runtime);
	if (folder && strcmp(t->state->blas, blas) != 0)
		k3_warn("drivers",
			"the run used BLAS kernels for \"%s\", here they are for \"%s\": the bits "
			"will differ "
			"(OPENBLAS_CORETYPE)",
			t->state->blas, blas);
	if (o->cut_state)
		k3_warn("drivers", "--cut-state is for tests: no state passes from tile to tile");
	if (o->eval_data)
		K3_TRY(k3_session_check_data(&t->session, o->eval_data));
	if (o->eval_log)
		K3_TRY(open_eval_log(t));
	K3_TRY(check_memory(t));
	K3_TRY(start_values(t, folder));
out:
	return ret;
}

/* Reads the microbatches of a step and fills its scalars. */
static int
read_step(struct trainer *t, uint64_t step, double *hyper)
{
	const struct k3_train_options *o = t->options;
	size_t n = (size_t)o->tokens;
	int32_t *rows = t->rows[step & 1];
	double valid = 0;
	int ret = K3_OK;

	for (long long m = 0; m < o->accumulate; m++, rows += 3 * n) {
		K3_TRY(k3_data_next(&t->data, n, rows, rows + n, rows + 2 * n, NULL, NULL));
		for (size_t i = 0; i < n; i++)
			valid += rows[n + i] >= 0;
	}
	memset(hyper, 0, K3_HYPER_LEN * sizeof(*hyper));
	hyper[K3_HYPER_VALID] = valid;
	hyper[K3_HYPER_INV_N] = valid > 0 ? 1 / valid : 0;
	hyper[K3_HYPER_LR] =
		o->lr * k3_lr_factor((long long)step, o->steps, o->warmup, o->decay, 0);
	hyper[K3_HYPER_STEP] = (double)(step + 1);
	t->flight[step & 1].lr = hyper[K3_HYPER_LR];
	t->flight[step & 1].tokens = (double)(n * (size_t)o->accumulate);
	struct k3_run_state *after = &t->flight[step & 1].after;
	*after = *t->state;
	after->step = step + 1;
	after->tokens = (step + 1) * n * (uint64_t)o->accumulate;
	k3_data_get_pos(&t->data, &after->position);
out:
	return ret;
}

static int
submit_step(struct trainer *t, uint64_t step)
{
	const struct k3_train_options *o = t->options;
	size_t n = (size_t)o->tokens;
	double hyper[K3_HYPER_LEN];
	const struct k3_plan *plan;
	int ret;

	K3_TRY(read_step(t, step, hyper));
	t->session.clock++;
	for (long long m = 0; m < o->accumulate; m++) {
		const int32_t *rows = t->rows[step & 1] + 3 * n * (size_t)m;
		struct k3_layout layout = {.n_tokens = n, .doc_ids = rows + 2 * n};
		struct k3_microbatch what = {.backward = true, .first = m == 0, .count = true};
		struct k3_host_batch batch = {.ids = rows, .labels = rows + n};
		k3_runtime_step(t->session.runtime, (int32_t)step + 1, (int32_t)m);
		K3_TRY(k3_plan_cache_get(t->session.cache, &layout, &what, t->session.clock,
					 &plan));
		K3_TRY(k3_submit_plan(t->session.store, plan, &batch, m == 0 ? hyper : NULL));
	}
	K3_TRY(k3_session_optimizer(&t->session, (uint32_t)step & 1, &plan));
	k3_runtime_step(t->session.runtime, (int32_t)step + 1, -1);
	K3_TRY(k3_submit_plan(t->session.store, plan, NULL, NULL));
out:
	return ret;
}

/* Hash words of the step just done; only after a drain, they are single. */
static int
fingerprint(struct trainer *t, uint64_t *print)
{
	const struct k3_model *m = t->session.model;
	uint64_t word;
	int ret = K3_OK;

	*print = K3_FNV_START;
	for (uint32_t i = 0; i < m->n_hash; i++) {
		K3_TRY(k3_store_datum_read(t->session.store, NULL, m->hash + i, &word));
		*print = k3_fnv1a(*print, &word, sizeof(word));
	}
out:
	return ret;
}

/* Waits for the scalars of a step and prints its line. */
static int
finish_step(struct trainer *t, uint64_t step)
{
	double out[K3_OUT_LEN];
	uint64_t print = 0;
	int ret;

	K3_TRY(k3_store_datum_read(t->session.store, NULL, t->session.model->step_out[step & 1],
				   out));
	double time = now(), ms = (time - t->last_time) * 1e3;
	t->last_time = time;
	if (t->options->fingerprint)
		K3_TRY(fingerprint(t, &print));
	double loss = out[K3_OUT_VALID] > 0 ? out[K3_OUT_LOSS_SUM] / out[K3_OUT_VALID] : 0;
	printf("%llu\t%.9g\t%.9g\t%.9g\t%.9g\t%.9g", (unsigned long long)(step + 1), loss,
	       out[K3_OUT_NORM], t->flight[step & 1].lr, t->flight[step & 1].tokens / ms * 1e3, ms);
	if (t->options->fingerprint)
		printf("\t%016llx", (unsigned long long)print);
	printf("\n");
	if (fflush(stdout) != 0) {
		k3_error("drivers", "the line of step %llu could not be written: %s",
			 (unsigned long long)(step + 1), strerror(errno));
		K3_TRY(K3_EIO);
	}
	if (out[K3_OUT_STATE] == K3_STEP_NO_LABELS)
		k3_warn("drivers", "step %llu has no label to learn from: nothing was updated",
			(unsigned long long)(step + 1));
	if (out[K3_OUT_STATE] == K3_STEP_NOT_FINITE) {
		k3_error("drivers",
			 "step %llu: loss %g, gradient norm %g: not finite, nothing was updated; "
			 "the run ends",
			 (unsigned long long)(step + 1), loss, out[K3_OUT_NORM]);
		K3_TRY(K3_EMATH);
	}
	*t->state = t->flight[step & 1].after;
out:
	return ret;
}

static int
save(struct trainer *t)
{
	double start = now();
	char *json = k3_run_state_json(t->state, t->options, k3_runtime_version(t->session.runtime),
				       k3_runtime_blas(t->session.runtime));
	int ret = json ? K3_OK : K3_ENOMEM;

	k3_runtime_drain(t->session.runtime);
	K3_TRY(ret);
	if (t->saved_step == t->state->step)
		goto out;
	K3_TRY(k3_checkpoint_save(t->session.store, t->options->save, t->state->step, json, 0));
	t->saved_step = t->state->step;
	k3_info("drivers", "checkpoint %s/step-%06llu in %.2f s", t->options->save,
		(unsigned long long)t->state->step, now() - start);
	t->last_time += now() - start;
out:
	free(json);
	return ret;
}

static int
evaluate(struct trainer *t)
{
	struct k3_eval_result r;
	double start = now();
	int ret;

	K3_TRY(k3_session_eval(&t->session, t->options->eval_data, (size_t)t->options->tokens, &r));
	k3_info("drivers", "step %llu: held-out loss %.6g nats over %.0f labels, accuracy %.4g",
		(unsigned long long)t->state->step, r.loss_sum / r.tokens, r.tokens,
		r.correct / r.tokens);
	if (t->eval_log) {
		fprintf(t->eval_log, "%llu\t%.9g\t%.9g\t%.0f\n", (unsigned long long)t->state->step,
			r.loss_sum / r.tokens, r.correct / r.tokens, r.tokens);
		if (fflush(t->eval_log) != 0) {
			k3_error("drivers", "--eval-log %s: %s", t->options->eval_log,
				 strerror(errno));
			K3_TRY(K3_EIO);
		}
	}
	t->last_time += now() - start;
out:
	return ret;
}

/* Something must be done after this step before the next may begin. */
static bool
pauses(const struct k3_train_options *o, uint64_t done, uint64_t last)
{
	return done == last || o->fingerprint ||
	       (o->save_every && done % (uint64_t)o->save_every == 0) ||
	       (o->eval_every && done % (uint64_t)o->eval_every == 0);
}

static int
after_step(struct trainer *t, uint64_t last)
{
	const struct k3_train_options *o = t->options;
	uint64_t done = t->state->step;
	int ret = K3_OK;

	if (o->eval_data &&
	    ((o->eval_every && done % (uint64_t)o->eval_every == 0) || done == last))
		K3_TRY(evaluate(t));
	if (o->save &&
	    ((o->save_every && done % (uint64_t)o->save_every == 0) || done == last || stop_signal))
		K3_TRY(save(t));
out:
	return ret;
}

static int
loop(struct trainer *t)
{
	const struct k3_train_options *o = t->options;
	uint64_t begin = t->state->step, last = (uint64_t)o->steps;
	uint64_t submitted = begin;
	int ret = K3_OK;

	if (o->stop_after && (uint64_t)o->stop_after < last)
		last = (uint64_t)o->stop_after;
	if (begin >= last)
		k3_info("drivers", "all %llu steps are done already: nothing is left to train",
			(unsigned long long)last);
	printf("step\tloss_nats\tgrad_norm\tlr\ttokens_per_s\tstep_ms%s\n",
	       o->fingerprint ? "\tfingerprint" : "");
	fflush(stdout);
	k3_usage_begin();
	t->last_time = now();
	while (t->state->step < last && !stop_signal) {
		if (submitted == t->state->step)
			K3_TRY(submit_step(t, submitted++));
		/* one step ahead, unless something comes between */
		if (submitted < last && !pauses(o, submitted, last) && !stop_signal)
			K3_TRY(submit_step(t, submitted++));
		K3_TRY(finish_step(t, t->state->step));
		if (submitted == t->state->step)
			K3_TRY(after_step(t, last));
	}
	while (submitted > t->state->step)
		K3_TRY(finish_step(t, t->state->step));
	if (stop_signal && t->state->step < last) {
		k3_info("drivers", "stopped by signal %d after step %llu", (int)stop_signal,
			(unsigned long long)t->state->step);
		if (o->save && t->state->step > begin)
			K3_TRY(save(t));
	}
out:
	k3_runtime_drain(t->session.runtime);
	return ret;
}

static void
report_end(struct trainer *t)
{
	double seconds, high = 0;
	size_t built = k3_plan_cache_built(t->session.cache, &seconds);
	struct k3_usage usage;
	char line[256];
	FILE *f = fopen("/proc/self/status", "r");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "VmHWM: %lf", &high) == 1)
			break;
	if (f)
		fclose(f);
	k3_info("drivers",
		"%llu tokens; %zu layouts planned in %.3f s; %.1f MiB held by handles, VmHWM %.1f "
		"MiB",
		(unsigned long long)t->state->tokens, built, seconds,
		(double)k3_store_bytes_held(t->session.store) / 1048576, high / 1024);
	k3_usage_read(&usage);
	k3_info("drivers",
		"%llu tasks of %.3g ms on average; kernels took %.1f %% of the workers' time, "
		"pauses "
		"for held-out losses and checkpoints included",
		(unsigned long long)usage.tasks, k3_usage_mean_task_ms(&usage),
		100 * k3_usage_share(&usage));
	k3_usage_warn_short(&usage);
}

int
k3_train_run(const struct k3_train_options *options, struct k3_run_state *state, const char *folder)
{
	struct trainer t = {.chosen = *options, .state = state};
	struct sigaction action = {.sa_handler = on_signal};
	int status = 2, ret;

	t.options = &t.chosen;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	K3_TRY(open_all(&t, folder));
	status = 1;
	K3_TRY(loop(&t));
	report_end(&t);
	K3_TRY(k3_runtime_trace_finish(t.session.runtime));
	status = 0;
out:
	if (ret == K3_ENOMEM)
		k3_error("drivers", "%s", k3_status_text(ret));
	k3_session_close(&t.session);
	k3_data_close(&t.data);
	if (t.eval_log)
		fclose(t.eval_log);
	free(t.rows[0]);
	free(t.rows[1]);
	return ret == K3_OK ? 0 : status;
}
