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

#include "../common/clock.h"
#include "../common/log.h"
#include "../common/schedule.h"
#include "../common/status.h"
#include "../tasks/usage.h"
#include "train_run.h"

static volatile sig_atomic_t stop_signal;

static void
on_signal(int signal)
{
	stop_signal = signal;
}

/* Reads the microbatches of a step and fills its scalars. */
static int
read_step(struct k3i_trainer *t, uint64_t step, double *hyper)
{
	const struct k3_train_options *o = t->options;
	size_t n = (size_t)o->tokens;
	int32_t *rows = t->rows[step & 1];
	double valid = 0;
	int ret = K3_OK;

	for (long long m = 0; m < o->accumulate; m++, rows += 3 * n) {
		K3_TRY(k3_data_next(&t->data, n, rows, rows + n, rows + 2 * n, NULL,
				    t->data.file.n_items ? &t->items[step & 1][m] : NULL));
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
submit_step(struct k3i_trainer *t, uint64_t step)
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
		const struct k3_data_items *items = &t->items[step & 1][m];
		struct k3_layout layout = {.n_tokens = n,
					   .doc_ids = rows + 2 * n,
					   .n_items = items->n,
					   .grid = items->grid,
					   .item_row = items->row};
		struct k3_microbatch what = {.backward = true, .first = m == 0, .count = true};
		struct k3_host_batch batch = {
			.ids = rows, .labels = rows + n, .item_bytes = items->bytes};
		k3_runtime_step(t->session.runtime, (int32_t)step + 1, (int32_t)m);
		K3_TRY(k3_plan_cache_get(t->session.cache, &layout, &what, t->session.clock,
					 &plan));
		K3_TRY(k3_submit_plan(t->session.store, plan, &batch, m == 0 ? hyper : NULL));
	}
	k3_gpu_memory_microbatches_done(&t->gpu, t->session.store);
	K3_TRY(k3_session_optimizer(&t->session, (uint32_t)step & 1, &plan));
	k3_runtime_step(t->session.runtime, (int32_t)step + 1, -1);
	K3_TRY(k3_submit_plan(t->session.store, plan, NULL, NULL));
	k3_gpu_memory_step_done(&t->gpu, t->session.store);
out:
	return ret;
}

/* Waits for the scalars of a step and prints its line. */
static int
finish_step(struct k3i_trainer *t, uint64_t step)
{
	double out[K3_OUT_LEN];
	uint64_t print = 0;
	int ret;

	K3_TRY(k3_store_datum_read(t->session.store, NULL, t->session.model->step_out[step & 1],
				   out));
	double time = k3_clock_s(CLOCK_MONOTONIC), ms = (time - t->last_time) * 1e3;
	t->last_time = time;
	if (t->options->fingerprint)
		K3_TRY(k3_store_fingerprint(t->session.store, &print));
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
save(struct k3i_trainer *t)
{
	double start = k3_clock_s(CLOCK_MONOTONIC);
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
		(unsigned long long)t->state->step, k3_clock_s(CLOCK_MONOTONIC) - start);
	t->last_time += k3_clock_s(CLOCK_MONOTONIC) - start;
out:
	free(json);
	return ret;
}

static int
evaluate(struct k3i_trainer *t)
{
	struct k3_eval_result r;
	double start = k3_clock_s(CLOCK_MONOTONIC);
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
	t->last_time += k3_clock_s(CLOCK_MONOTONIC) - start;
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
after_step(struct k3i_trainer *t, uint64_t last)
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
loop(struct k3i_trainer *t)
{
	const struct k3_train_options *o = t->options;
	uint64_t begin = t->state->step, last = (uint64_t)o->steps;
	uint64_t submitted = begin;
	int ret = K3_OK;

	if (o->stop_after)
		last = (uint64_t)o->stop_after;
	if (begin >= last)
		k3_info("drivers",
			last < (uint64_t)o->steps
				? "step %llu is done already, and --stop-after asks for no more"
				: "all %llu steps are done already: nothing is left to train",
			(unsigned long long)last);
	printf("step\tloss_nats\tgrad_norm\tlr\ttokens_per_s\tstep_ms%s\n",
	       o->fingerprint ? "\tfingerprint" : "");
	fflush(stdout);
	k3_usage_begin();
	t->last_time = k3_clock_s(CLOCK_MONOTONIC);
	while (t->state->step < last && !stop_signal) {
		if (submitted == t->state->step)
			K3_TRY(submit_step(t, submitted++));
		/* one step ahead, unless something comes between */
		if (submitted < last && !pauses(o, submitted, last) && !stop_signal)
			K3_TRY(submit_step(t, submitted++));
		K3_TRY(finish_step(t, t->state->step));
		if (t->state->step == begin + 2)
			k3_gpu_memory_settle(&t->gpu, t->session.store);
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
report_end(struct k3i_trainer *t)
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
	k3_gpu_memory_report(&t->gpu, t->session.store);
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
	struct k3i_trainer t = {.chosen = *options, .state = state};
	struct sigaction action = {.sa_handler = on_signal};
	int status = 2, ret;

	t.options = &t.chosen;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	K3_TRY(k3i_train_open(&t, folder));
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
	for (int i = 0; i < 2; i++) {
		for (long long m = 0; t.items[i] && m < options->accumulate; m++)
			k3_data_items_fini(&t.items[i][m]);
		free(t.items[i]);
		free(t.rows[i]);
	}
	return ret == K3_OK ? 0 : status;
}
