/* k3_bench vision: the vision tower forward and backward on random pixels, beside one-thread
 * sgemm of 512^3.  The text layers are left out (struct k3_microbatch), so that nothing else
 * fills idle workers. The trap: on a machine that others use, a rate and what it is compared
 * with must be taken in the same seconds, so ratios are made per round and the median over the
 * rounds is told. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../common/log.h"
#include "../common/options.h"
#include "../common/rng.h"
#include "../common/status.h"
#include "../planner/estimate.h"
#include "../planner/model_flops.h"
#include "../planner/plan_check.h"
#include "../tasks/usage.h"
#include "bench.h"
#include "calibrate.h"
#include "images.h"
#include "session.h"

enum { VOCABULARY = 64, SGEMM_SIDE = 512, MOST_ROUNDS = 1000 };

struct bench {
	const char *model, *machine_file;
	struct k3_images images;
	long long workers, steps, rounds, warmup, seed;
	struct k3_config config;
	struct k3_plan_options options;
	struct k3_machine machine;
	struct k3_session session;
	struct k3_layout layout;
	struct k3_plan *plan;
	struct k3_host_batch batch;
	int32_t *rows;		     /* ids, labels, documents */
	double gflop;		     /* the model's, of a pass */
	struct k3_estimate estimate; /* for as many workers, by the rates of the machine file */
	double kernel_ratio;	     /* of the kernels one after the other on one thread */
};

/* What a round gives, and then their medians. */
struct round {
	double ms, sgemm, ratio, task_ratio, cpu_ratio, idle;
};

static double
now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Random ids and pixels; the images are the whole of one document. */
static int
make_batch(struct bench *b)
{
	uint64_t key = k3_rng_key("bench vision", (uint64_t)b->seed);
	size_t t = b->images.tokens;

	b->rows = malloc(3 * t * sizeof(*b->rows));
	if (!b->rows)
		return K3_ENOMEM;
	for (size_t i = 0; i < t; i++) {
		b->rows[i] = (int32_t)(k3_rng_bits(key, i) % b->config.vocab);
		b->rows[t + i] = -100;
		b->rows[2 * t + i] = 1;
	}
	b->batch = (struct k3_host_batch){
		.ids = b->rows, .labels = b->rows + t, .item_pixels = b->images.pixels_of};
	b->layout = (struct k3_layout){.n_tokens = t, .doc_ids = b->rows + 2 * t};
	k3_images_place(&b->images, &b->layout);
	return K3_OK;
}

static int
open_all(struct bench *b)
{
	struct k3_microbatch what = {.backward = true, .first = true, .tower = true};
	struct k3_model_flops flops;
	int ret;

	k3_plan_options_init(&b->options);
	k3_images_apply(&b->images, &b->options);
	b->options.machine = &b->machine;
	K3_TRY(k3_images_fill(&b->images, &b->config, (uint64_t)b->seed));
	K3_TRY(make_batch(b));
	K3_TRY(k3_session_open(&b->session, &b->config, &b->options, NULL));
	K3_TRY(k3_session_init(&b->session, (uint64_t)b->seed));
	K3_TRY(k3_plan_microbatch(&b->plan, b->session.model, &b->layout, &what));
	K3_TRY(k3_plan_check(b->plan));
	k3_model_flops(&flops, b->session.model, &b->layout);
	b->gflop = 1e-9 * flops.vision;
out:
	return ret;
}

static void
close_all(struct bench *b)
{
	if (b->session.runtime)
		k3_runtime_drain(b->session.runtime);
	k3_plan_destroy(b->plan);
	k3_session_close(&b->session);
	k3_images_fini(&b->images);
	free(b->rows);
}

/* Forward and backward passes, drained. */
static int
run(struct bench *b, const struct k3_plan *plan, long long passes)
{
	const double hyper[K3_HYPER_LEN] = {[K3_HYPER_VALID] = 1, [K3_HYPER_INV_N] = 1};
	int ret = K3_OK;

	for (long long i = 0; i < passes && ret == K3_OK; i++)
		ret = k3_submit_plan(b->session.store, plan, &b->batch, hyper);
	k3_runtime_drain(b->session.runtime);
	return ret;
}

/* Mean square of a datum's values; NAN when memory is out or it can't be read. */
static double
mean_square(struct bench *b, const struct k3_plan *plan, int32_t datum)
{
	const struct k3_datum *d = &(plan ? plan->data : b->session.model->persist)[datum];
	size_t n = d->bytes / sizeof(float);
	float *x = malloc(d->bytes);
	double sum = 0;

	if (!x || k3_store_datum_read(b->session.store, plan, (uint32_t)datum, x) != K3_OK)
		n = 0;
	for (size_t i = 0; i < n; i++)
		sum += (double)x[i] * (double)x[i];
	free(x);
	return n ? sum / (double)n : NAN;
}

/* Features are normalised, so their mean square is 1; what the embeddings' gradient leaves at
 * the pixels' end is finite and not zero. */
static int
check(struct bench *b)
{
	struct k3_microbatch what = {.backward = true, .first = true, .tower = true, .keep = true};
	const struct k3_model *m = b->session.model;
	int32_t patch = k3_params_find(&m->params, K3_P_VIT_PATCH, -1);
	struct k3_plan *plan;
	int ret;

	K3_TRY(k3_plan_microbatch(&plan, m, &b->layout, &what));
	K3_TRY(run(b, plan, 1));
	double features = mean_square(b, plan, k3_plan_find(plan, "vit_features", -1, 0, -1)),
	       gradient = mean_square(b, NULL, (int32_t)(m->param_block[patch] + m->n_blocks));
	if (!(fabs(features - 1) < 1e-2) || !(gradient > 0) || isinf(gradient)) {
		k3_error(
			"drivers",
			"mean squares: features %.9g, expected 1; gradient of the patches' weights "
			"%.9g, expected more than 0",
			features, gradient);
		ret = K3_EDIFFER;
	}
out:
	k3_plan_destroy(plan);
	return ret;
}

/* What the kernels reach one after the other on this thread, by its own clock: other programs
 * and idle workers do not count. */
static int
time_kernels(struct bench *b)
{
	enum { RUNS = 4 };
	const double hyper[K3_HYPER_LEN] = {0};
	double *us = malloc(2 * b->plan->n_tasks * sizeof(*us)), *least = us + b->plan->n_tasks,
	       sum_us = 0, machine = 0;
	struct k3_serial *serial = NULL;
	struct k3_plan *init = NULL;
	int ret = us ? K3_OK : K3_ENOMEM;

	K3_TRY(ret);
	k3_runtime_pause(b->session.runtime);
	K3_TRY(k3_serial_create(&serial, b->session.model));
	K3_TRY(k3_plan_init(&init, b->session.model, (uint64_t)b->seed, false));
	K3_TRY(k3_serial_run(serial, init, NULL, NULL, NULL));
	for (int run = 0; run < RUNS; run++) {
		machine += k3i_measure_gemm(SGEMM_SIDE) / RUNS;
		K3_TRY(k3_serial_run(serial, b->plan, &b->batch, hyper, us));
		for (size_t i = 0; i < b->plan->n_tasks; i++)
			least[i] = run == 0 || us[i] < least[i] ? us[i] : least[i];
	}
	for (size_t i = 0; i < b->plan->n_tasks; i++)
		sum_us += least[i];
	b->kernel_ratio = 1e9 * b->gflop / sum_us / machine;
out:
	k3_runtime_resume(b->session.runtime);
	k3_plan_destroy(init);
	k3_serial_destroy(serial);
	free(us);
	return ret;
}

static double
sgemm(const struct bench *b)
{
	k3_runtime_pause(b->session.runtime);
	double gflop_per_s = 1e-3 * k3i_measure_gemm(SGEMM_SIDE);
	k3_runtime_resume(b->session.runtime);
	return gflop_per_s;
}

/* The round's passes between two measurements of the machine. */
static int
time_round(struct bench *b, double *machine, struct round *r, struct k3_usage *usage)
{
	double passes = (double)b->steps, before = *machine, cpu_s = now(CLOCK_PROCESS_CPUTIME_ID),
	       begin = now(CLOCK_MONOTONIC);
	int ret;

	k3_usage_begin();
	K3_TRY(run(b, b->plan, b->steps));
	k3_usage_read(usage);
	double wall_s = (now(CLOCK_MONOTONIC) - begin) / passes;
	cpu_s = (now(CLOCK_PROCESS_CPUTIME_ID) - cpu_s) / passes;
	*machine = sgemm(b);
	r->ms = 1e3 * wall_s;
	r->sgemm = 0.5 * (before + *machine);
	r->ratio = b->gflop / wall_s / r->sgemm / usage->workers;
	r->task_ratio = b->gflop / (usage->kernels_s / passes) / r->sgemm;
	r->cpu_ratio = b->gflop / cpu_s / r->sgemm;
	r->idle = 1 - k3_usage_share(usage);
out:
	return ret;
}

static int
compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Median of one figure over the rounds, which lies `field` bytes into each. */
static double
median(const struct round *round, size_t n, size_t field)
{
	double x[MOST_ROUNDS];

	for (size_t i = 0; i < n; i++)
		memcpy(&x[i], (const char *)&round[i] + field, sizeof(*x));
	qsort(x, n, sizeof(*x), compare);
	return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

static void
print(const struct bench *b, const struct round *round, const struct k3_usage *usage)
{
	const struct k3_runtime *runtime = b->session.runtime;
	size_t n = (size_t)b->rounds, patches = 0, tiles = 0;

	for (size_t i = 0; i < b->images.n; i++)
		patches += k3_grid_patches(&b->images.grid[i]);
	for (size_t i = 0; i < b->plan->n_tasks; i++)
		tiles += b->plan->task[i].op == K3_OP_VIT_LOAD;
	printf("model\timages\tpatches\ttiles\tscheduler\tworkers\tstarpu\tblas\tgflop\tplan_"
	       "gflop\t"
	       "median_ms\tsgemm512_gflop_per_s\tratio\ttask_ratio\tcpu_ratio\tidle_share\t"
	       "kernel_ratio\testimate_ms\testimate_idle\ttasks\tmean_task_ms\n");
	printf("%s\t%s\t%zu\t%zu\t%s\t%u\t%s\t%s\t%.9g\t%.9g", b->config.name, b->images.text,
	       patches, tiles, k3_runtime_scheduler(runtime), usage->workers,
	       k3_runtime_version(runtime), k3_runtime_blas(runtime), b->gflop,
	       1e-9 * b->plan->flops);
	static const size_t field[] = {
		offsetof(struct round, ms),	   offsetof(struct round, sgemm),
		offsetof(struct round, ratio),	   offsetof(struct round, task_ratio),
		offsetof(struct round, cpu_ratio), offsetof(struct round, idle)};
	for (size_t i = 0; i < sizeof(field) / sizeof(field[0]); i++)
		printf("\t%.9g", median(round, n, field[i]));
	printf("\t%.9g\t%.9g\t%.9g\t%zu\t%.9g\n", b->kernel_ratio, 1e-3 * b->estimate.makespan_us,
	       b->estimate.idle_share, b->plan->n_tasks, k3_usage_mean_task_ms(usage));
}

static int
time_rounds(struct bench *b)
{
	struct round round[MOST_ROUNDS];
	struct k3_usage usage;
	int ret;

	K3_TRY(time_kernels(b));
	K3_TRY(k3_plan_estimate(&b->estimate, b->plan, k3_runtime_workers(b->session.runtime)));
	K3_TRY(run(b, b->plan, b->warmup));
	double machine = sgemm(b);
	for (long long i = 0; i < b->rounds; i++)
		K3_TRY(time_round(b, &machine, &round[i], &usage));
	print(b, round, &usage);
out:
	return ret;
}

static int
parse(struct bench *b, int argc, char **argv)
{
	struct k3_option table[] = {
		{"model", "PRESET|DIR|FILE", K3_OPT_STRING, &b->model, 0, 0,
		 "preset, config.json or its folder (mini)", false},
		K3_IMAGES_OPTIONS(&b->images),
		{"workers", "N", K3_OPT_INT, &b->workers, 1, 4096,
		 "CPU workers (STARPU_NCPU, or all cores)", false},
		{"steps", "N", K3_OPT_INT, &b->steps, 1, 1e6, "passes of a round (4)", false},
		{"rounds", "N", K3_OPT_INT, &b->rounds, 1, MOST_ROUNDS,
		 "measured rounds; the median is told (5)", false},
		{"warmup", "N", K3_OPT_INT, &b->warmup, 0, 1e6, "passes before the first round (2)",
		 false},
		{"seed", "N", K3_OPT_INT, &b->seed, 0, 9e15, "of initial values and pixels (0)",
		 false},
		K3_MACHINE_OPTION(&b->machine_file),
	};
	int first, ret;

	K3_TRY(k3_options_parse(
		"k3_bench vision", "[OPTIONS]",
		"Times the vision tower, forward and backward, on random pixels (--images "
		"1x32x32), "
		"without the text\nlayers.  stdout: a header and a row, tab-separated.\n"
		"ratio = (gflop / time) / (workers x sgemm of 512^3 on one thread); task_ratio: by "
		"the "
		"time of the kernels;\ncpu_ratio: by processor time, which other programs disturb "
		"less; kernel_ratio: one after the other on\none thread, by its processor time.  "
		"gflop: products of the model, attention included; plan_gflop: of the "
		"plan's "
		"tasks, with scores that are computed again.",
		table, sizeof(table) / sizeof(table[0]), argc, argv, &first));
	if (first < argc) {
		k3_error("drivers", "%s: k3_bench vision takes options only", argv[first]);
		K3_TRY(K3_EINVAL);
	}
	K3_TRY(k3_config_load(&b->config, b->model));
	/* the text part is not run, so as little of it as there can be */
	K3_TRY(k3_config_set_layers(&b->config, 1));
	K3_TRY(k3_config_set_vocab(&b->config, VOCABULARY));
	K3_TRY(k3_images_read(&b->images, &b->config));
	if (b->images.n == 0) {
		k3_error("drivers", "--images %s: nothing to measure", b->images.text);
		K3_TRY(K3_EINVAL);
	}
	K3_TRY(k3_session_machine(&b->machine, b->machine_file));
	if (b->workers) {
		char text[24];
		snprintf(text, sizeof(text), "%lld", b->workers);
		setenv("STARPU_NCPU", text, 1);
	}
out:
	return ret;
}

int
k3_bench_vision(int argc, char **argv)
{
	struct bench b = {
		.model = "mini", .images.text = "1x32x32", .steps = 4, .rounds = 5, .warmup = 2};
	int status = 2, ret = parse(&b, argc, argv);

	if (ret == K3_EINTR)
		return 0;
	K3_TRY(ret);
	ret = open_all(&b);
	/* images that the tower can't take are the user's */
	status = ret == K3_ESHAPE || ret == K3_ELIMIT || ret == K3_EINVAL ? 2 : 1;
	K3_TRY(ret);
	status = 1;
	K3_TRY(check(&b));
	K3_TRY(time_rounds(&b));
	if (fflush(stdout) == 0 && !ferror(stdout))
		status = 0;
out:
	close_all(&b);
	return status;
}
