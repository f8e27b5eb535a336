/* One configuration of k3_bench step, in this process: a check, a warm-up, then rounds of steps
 * with the machine's own rate measured between them.  Steps are submitted one ahead, as k3_train
 * does; rounds begin and end drained, so that every task of a round lies inside its wall time.  The
 * trap: on a machine that others use, only figures of one round can be compared, so ratios are made
 * per round and the median over the rounds is told. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/clock.h"
#include "../common/log.h"
#include "../common/rng.h"
#include "../common/status.h"
#include "../planner/model_flops.h"
#include "../planner/plan_check.h"
#include "../tasks/gpu_memory.h"
#include "../tasks/trace.h"
#include "../tasks/usage.h"
#include "bench_device.h"
#include "bench_step.h"
#include "median.h"
#include "session.h"

static const double sgemm_s = 0.4;
enum { CHECK_STEPS = 2 };

struct bench {
	const struct k3i_step_case *what;
	struct k3_session session;
	struct k3i_device *device; /* NULL: CPU workers alone */
	struct k3_gpu_memory gpu;
	size_t tokens;		/* of a microbatch */
	int32_t *rows[2], *doc; /* by parity: accumulate x (ids | labels) */
	uint64_t step;		/* next to be submitted */
	double submit_cpu_s, submitted;
};

/* What a round gives. */
struct round {
	double step_s, kernel_share, sgemm, ratio, cpu_ratio;
};

/* Random ids; the label of a row is the next id of its document. */
static void
fill_rows(const struct bench *b, uint64_t step)
{
	uint64_t key = k3_rng_key("bench ids", b->what->seed);
	int32_t *rows = b->rows[step & 1];
	size_t n = b->tokens;

	for (size_t m = 0; m < b->what->accumulate; m++, rows += 2 * n) {
		for (size_t i = 0; i < n; i++)
			rows[i] = (int32_t)(k3_rng_bits(key,
							(step * b->what->accumulate + m) * n + i) %
					    b->what->config.vocab);
		for (size_t i = 0; i < n; i++)
			rows[n + i] = i + 1 < n && b->doc[i + 1] == b->doc[i] ? rows[i + 1]
									      : K3_LABEL_IGNORED;
	}
}

/* Documents and images of every microbatch. */
static struct k3_layout
layout_of(const struct bench *b)
{
	struct k3_layout layout = {.n_tokens = b->tokens, .doc_ids = b->doc};

	k3_images_place(&b->what->images, &layout);
	return layout;
}

/* What StarPU may hold, on a GPU or at all, against what the steps need. */
static int
check_memory(struct bench *b)
{
	const struct k3i_step_case *what = b->what;
	struct k3_run_shape shape = {.tokens = b->tokens,
				     .accumulate = (uint32_t)what->accumulate,
				     .max_patches = what->plan.max_patches,
				     .gpu_scratch = k3_device_scratch_bytes};
	struct k3_memory memory;
	int ret;

	K3_TRY(k3_memory_run(&memory, b->session.model, &shape));
	/* activations that were asked for may need more than the limit */
	if (what->limit_bytes)
		K3_TRY(k3_plan_check_memory(&memory, what->limit_bytes, b->session.model));
	K3_TRY(k3_gpu_memory_check(&b->gpu, &memory));
out:
	k3_memory_fini(&memory);
	return ret;
}

static int
open_all(struct bench *b, const struct k3i_step_case *what)
{
	size_t at = 0;
	int ret = K3_OK;

	b->what = what;
	for (size_t i = 0; i < what->n_docs; i++)
		b->tokens += what->doc_tokens[i];
	b->doc = malloc(b->tokens * sizeof(int32_t));
	for (int i = 0; i < 2; i++)
		b->rows[i] = malloc(2 * b->tokens * what->accumulate * sizeof(int32_t));
	if (!b->doc || !b->rows[0] || !b->rows[1])
		K3_TRY(K3_ENOMEM);
	for (size_t i = 0; i < what->n_docs; i++)
		for (size_t k = 0; k < what->doc_tokens[i]; k++)
			b->doc[at++] = (int32_t)i + 1;
	K3_TRY(k3_session_open(&b->session, &what->config, &what->plan,
			       &(struct k3_runtime_options){.window = what->window,
							    .workers = what->workers,
							    .device = what->device,
							    .trace_dir = what->trace_dir}));
	K3_TRY(check_memory(b));
	if (what->device != K3_DEVICE_CPU)
		K3_TRY(k3i_device_open(&b->device, what->plan.dtype == K3_BF16, 0));
out:
	return ret;
}

static void
close_all(struct bench *b)
{
	k3i_device_close(b->device);
	k3_session_close(&b->session);
	free(b->rows[0]);
	free(b->rows[1]);
	free(b->doc);
}

static double
labels_of(const struct bench *b)
{
	return (double)((b->tokens - b->what->n_docs) * b->what->accumulate);
}

static int
submit_step(struct bench *b)
{
	size_t n = b->tokens;
	double cpu_s = k3_clock_s(CLOCK_THREAD_CPUTIME_ID);
	double hyper[K3_HYPER_LEN] = {[K3_HYPER_VALID] = labels_of(b),
				      [K3_HYPER_INV_N] = 1 / labels_of(b),
				      [K3_HYPER_LR] = 1e-4,
				      [K3_HYPER_STEP] = (double)(b->step + 1)};
	struct k3_layout layout = layout_of(b);
	const struct k3_plan *plan;
	int ret;

	fill_rows(b, b->step);
	b->session.clock++;
	for (size_t m = 0; m < b->what->accumulate; m++) {
		const int32_t *rows = b->rows[b->step & 1] + 2 * n * m;
		struct k3_microbatch what = {.backward = true, .first = m == 0, .count = true};
		struct k3_host_batch batch = {
			.ids = rows, .labels = rows + n, .item_pixels = b->what->images.pixels_of};
		k3_runtime_step(b->session.runtime, (int32_t)b->step + 1, (int32_t)m);
		K3_TRY(k3_plan_cache_get(b->session.cache, &layout, &what, b->session.clock,
					 &plan));
		K3_TRY(k3_submit_plan(b->session.store, plan, &batch, m == 0 ? hyper : NULL));
		b->submitted += (double)plan->n_tasks;
	}
	k3_gpu_memory_microbatches_done(&b->gpu, b->session.store);
	k3_runtime_step(b->session.runtime, (int32_t)b->step + 1, -1);
	K3_TRY(k3_session_optimizer(&b->session, (uint32_t)b->step & 1, &plan));
	K3_TRY(k3_submit_plan(b->session.store, plan, NULL, NULL));
	k3_gpu_memory_step_done(&b->gpu, b->session.store);
	b->submitted += (double)plan->n_tasks;
	b->submit_cpu_s += k3_clock_s(CLOCK_THREAD_CPUTIME_ID) - cpu_s;
	b->step++;
out:
	return ret;
}

/* Scalars of a step; a step that is not finite is an error here. */
static int
wait_step(struct bench *b, uint64_t step, double *loss)
{
	double out[K3_OUT_LEN];
	int ret;

	K3_TRY(k3_store_datum_read(b->session.store, NULL, b->session.model->step_out[step & 1],
				   out));
	*loss = out[K3_OUT_LOSS_SUM] / out[K3_OUT_VALID];
	if (out[K3_OUT_STATE] == K3_STEP_NOT_FINITE || !isfinite(*loss)) {
		k3_error("drivers", "step %llu: loss %g, gradient norm %g: not finite",
			 (unsigned long long)(step + 1), *loss, out[K3_OUT_NORM]);
		ret = K3_EMATH;
	}
out:
	return ret;
}

/* Steps one ahead, drained at the end. */
static int
run_steps(struct bench *b, uint64_t n, double *loss)
{
	uint64_t done = b->step, last = done + n;
	int ret = K3_OK;

	for (; done < last; done++) {
		while (b->step < last && b->step < done + 2)
			K3_TRY(submit_step(b));
		K3_TRY(wait_step(b, done, loss));
	}
out:
	k3_runtime_drain(b->session.runtime);
	return ret;
}

/* Ids are drawn evenly.  Logits are about normal: the head's input has a mean square of 1, its
 * weights are normal with variance 1/D, cut at three deviations, which leaves 0.9733 of that
 * (model.md 1.3).  So the loss is ln V + variance / 2, give or take what that many samples allow.
 */
static int
check_loss(const struct bench *b, double loss, double *expected)
{
	const struct k3_config *c = &b->what->config;
	const double variance = 0.9733;
	double allowed = 0.1 + 6 * sqrt(variance / labels_of(b));

	*expected = log(c->vocab) + variance / 2;
	if (fabs(loss - *expected) <= allowed)
		return K3_OK;
	k3_error("drivers",
		 "the first loss is %.6g; with random ids and initial values it must be within "
		 "%.3g of %.6g",
		 loss, allowed, *expected);
	return K3_EDIFFER;
}

/* First steps from initial values; twice, if there are fingerprints to compare. */
static int
check(struct bench *b, struct k3i_step_result *r)
{
	uint64_t again;
	double later;
	int ret;

	for (int i = 0; i < (b->session.model->n_hash ? 2 : 1); i++) {
		b->step = 0;
		K3_TRY(k3_session_init(&b->session, b->what->seed));
		K3_TRY(run_steps(b, 1, &r->loss));
		K3_TRY(check_loss(b, r->loss, &r->expected_loss));
		K3_TRY(run_steps(b, CHECK_STEPS - 1, &later));
		r->second_loss = later;
		K3_TRY(k3_store_fingerprint(b->session.store, i == 0 ? &r->fingerprint : &again));
	}
	if (b->session.model->n_hash && again != r->fingerprint) {
		k3_error("drivers", "the same steps gave the fingerprints %016llx and %016llx",
			 (unsigned long long)r->fingerprint, (unsigned long long)again);
		ret = K3_EDIFFER;
	}
out:
	return ret;
}

static void
count_flops(struct bench *b, struct k3i_step_result *r)
{
	struct k3_layout layout = layout_of(b);
	struct k3_model_flops flops;

	k3_model_flops(&flops, b->session.model, &layout);
	r->model_gflop = 1e-9 * (double)b->what->accumulate *
			 (flops.weights + flops.attention + flops.kda + flops.vision);
}

/* Of the plans that the steps ran, all in the cache by now. */
static int
count_plans(struct bench *b, struct k3i_step_result *r)
{
	struct k3_layout layout = layout_of(b);
	const struct k3_plan *plan;
	double seconds;
	size_t built;
	int ret = K3_OK;

	for (size_t m = 0; m < b->what->accumulate; m++) {
		struct k3_microbatch what = {.backward = true, .first = m == 0, .count = true};
		K3_TRY(k3_plan_cache_get(b->session.cache, &layout, &what, b->session.clock,
					 &plan));
		r->plan_gflop += 1e-9 * plan->flops;
	}
	K3_TRY(k3_session_optimizer(&b->session, 0, &plan));
	r->plan_gflop += 1e-9 * plan->flops;
	built = k3_plan_cache_built(b->session.cache, &seconds);
	r->plan_s = seconds / (double)built;
out:
	return ret;
}

/* Medians over the rounds. */
static void
summarise(const struct bench *b, struct k3i_step_result *r, const struct round *round)
{
	size_t n = b->what->rounds;
	double step[n], share[n], sgemm[n], ratio[n], cpu_ratio[n];

	for (size_t i = 0; i < n; i++) {
		step[i] = round[i].step_s;
		share[i] = round[i].kernel_share;
		sgemm[i] = round[i].sgemm;
		ratio[i] = round[i].ratio;
		cpu_ratio[i] = round[i].cpu_ratio;
	}
	r->median_ms = 1e3 * k3i_median(step, n);
	r->least_ms = 1e3 * step[0];
	r->most_ms = 1e3 * step[n - 1];
	r->kernel_share = k3i_median(share, n);
	*(b->device ? &r->gpu_gflop_per_s : &r->sgemm_gflop_per_s) = k3i_median(sgemm, n);
	r->ratio = k3i_median(ratio, n);
	r->cpu_ratio = k3i_median(cpu_ratio, n);
	r->tokens_per_s = (double)(b->tokens * b->what->accumulate) / r->median_ms * 1e3;
	r->gflop_per_s = r->model_gflop / r->median_ms * 1e3;
	r->submit_us = 1e6 * b->submit_cpu_s / b->submitted;
	r->plan_share = 1e3 * r->plan_s * (double)b->what->accumulate / r->median_ms;
}

/* Of the device when there is one, else of as many cores as there are workers. */
static struct k3i_sgemm_rate
machine_rate(const struct bench *b)
{
	struct k3i_sgemm_rate rate = {0};

	k3_runtime_pause(b->session.runtime);
	if (b->device)
		rate.gflop_per_s = 1e-9 * k3i_device_rate(b->device, K3I_DEVICE_PRODUCT);
	else
		rate = k3i_sgemm_rate(k3_runtime_workers(b->session.runtime), sgemm_s);
	k3_runtime_resume(b->session.runtime);
	return rate;
}

/* The round's steps between two measurements of the machine. */
static int
time_round(struct bench *b, const struct k3i_step_result *r, struct k3i_sgemm_rate *machine,
	   struct round *round, struct k3_usage *usage)
{
	double steps = (double)b->what->steps, loss;
	struct k3i_sgemm_rate before = *machine;
	double begin = k3_clock_s(CLOCK_MONOTONIC), cpu_s = k3_clock_s(CLOCK_PROCESS_CPUTIME_ID);
	int ret;

	k3_usage_begin();
	K3_TRY(run_steps(b, b->what->steps, &loss));
	k3_usage_read(usage);
	cpu_s = (k3_clock_s(CLOCK_PROCESS_CPUTIME_ID) - cpu_s) / steps;
	round->step_s = (k3_clock_s(CLOCK_MONOTONIC) - begin) / steps;
	round->kernel_share = b->device ? 0 : k3_usage_share(usage);
	*machine = machine_rate(b);
	round->sgemm = 0.5 * (before.gflop_per_s + machine->gflop_per_s);
	round->ratio = r->model_gflop / round->step_s / round->sgemm;
	round->cpu_ratio =
		b->device ? 0
			  : r->model_gflop / cpu_s /
				    (0.5 * (before.gflop_per_cpu_s + machine->gflop_per_cpu_s));
out:
	return ret;
}

/* A round of its own: recording may cost time. */
static int
look_at_device(struct bench *b, struct k3i_step_result *r)
{
	struct k3_trace_share share;
	double loss;
	int ret;

	r->gpu_gib = k3i_device_bytes_used(b->device) / (1 << 30);
	if (!b->what->trace_dir)
		K3_TRY(k3_runtime_trace_start(b->session.runtime, NULL));
	K3_TRY(run_steps(b, b->what->steps, &loss));
	K3_TRY(k3_runtime_trace_share(b->session.runtime, true, &share));
	r->gpu_busy = share.kernels;
	r->runtime_share = share.runtime;
	K3_TRY(k3_runtime_trace_finish(b->session.runtime));
out:
	return ret;
}

static int
time_rounds(struct bench *b, struct k3i_step_result *r)
{
	const struct k3i_step_case *what = b->what;
	struct round round[what->rounds];
	struct k3_usage usage, all = {.workers = k3_runtime_workers(b->session.runtime)};
	double loss;
	int ret;

	K3_TRY(run_steps(b, what->warmup, &loss));
	b->submit_cpu_s = b->submitted = 0;
	struct k3i_sgemm_rate machine = machine_rate(b);
	for (size_t i = 0; i < what->rounds; i++) {
		K3_TRY(time_round(b, r, &machine, &round[i], &usage));
		all.tasks += usage.tasks;
		all.kernels_s += usage.kernels_s;
	}
	r->tasks = (double)all.tasks / (double)(what->rounds * what->steps);
	r->mean_task_ms = k3_usage_mean_task_ms(&all);
	summarise(b, r, round);
	if (b->device)
		K3_TRY(look_at_device(b, r));
	else
		k3_usage_warn_short(&all);
out:
	return ret;
}

int
k3i_step_run(const struct k3i_step_case *what, struct k3i_step_result *result)
{
	struct bench b = {0};
	int ret;

	memset(result, 0, sizeof(*result));
	K3_TRY(open_all(&b, what));
	result->opened = true;
	strncpy(result->scheduler, k3_runtime_scheduler(b.session.runtime),
		sizeof(result->scheduler) - 1);
	strncpy(result->starpu, k3_runtime_version(b.session.runtime), sizeof(result->starpu) - 1);
	strncpy(result->blas, k3_runtime_blas(b.session.runtime), sizeof(result->blas) - 1);
	result->workers = k3_runtime_workers(b.session.runtime);
	result->cuda_workers = k3_runtime_cuda_workers(b.session.runtime);
	K3_TRY(check(&b, result));
	count_flops(&b, result);
	if (!what->check_only) {
		K3_TRY(count_plans(&b, result));
		K3_TRY(time_rounds(&b, result));
	}
	result->finished = true;
out:
	close_all(&b);
	return ret;
}
