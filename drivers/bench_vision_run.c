/* Passes of the tower, checked and timed.  The trap: on a machine that others use, a rate and
 * what it is compared with must be taken in the same seconds, so the machine is measured before
 * and after each round. */
#include <math.h>
#include <stdlib.h>

#include "../common/clock.h"
#include "../common/log.h"
#include "../common/status.h"
#include "bench_vision.h"
#include "calibrate.h"
#include "serial.h"

enum { SGEMM_SIDE = 512 };

int
k3i_vision_run(struct k3i_vision_bench *b, const struct k3_plan *plan, long long passes)
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
mean_square(struct k3i_vision_bench *b, const struct k3_plan *plan, int32_t datum)
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
int
k3i_vision_check(struct k3i_vision_bench *b)
{
	struct k3_microbatch what = {.backward = true, .first = true, .tower = true, .keep = true};
	const struct k3_model *m = b->session.model;
	int32_t patch = k3_params_find(&m->params, K3_P_VIT_PATCH, -1);
	struct k3_plan *plan = NULL;
	int ret;

	K3_TRY(k3_plan_microbatch(&plan, m, &b->layout, &what));
	K3_TRY(k3i_vision_run(b, plan, 1));
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
int
k3i_vision_kernels(struct k3i_vision_bench *b)
{
	enum { RUNS = 4 };
	const double hyper[K3_HYPER_LEN] = {0};
	size_t n = b->plan->n_tasks;
	double *us = malloc(2 * n * sizeof(*us)), *least, sum_us = 0, machine = 0;
	struct k3_serial *serial = NULL;
	struct k3_plan *init = NULL;
	int ret;

	if (!us)
		return K3_ENOMEM;
	least = us + n;
	k3_runtime_pause(b->session.runtime);
	K3_TRY(k3_serial_create(&serial, b->session.model));
	K3_TRY(k3_plan_init(&init, b->session.model, (uint64_t)b->seed, false));
	K3_TRY(k3_serial_run(serial, init, NULL, NULL, NULL));
	for (int run = 0; run < RUNS; run++) {
		machine += k3i_measure_gemm(SGEMM_SIDE) / RUNS;
		K3_TRY(k3_serial_run(serial, b->plan, &b->batch, hyper, us));
		for (size_t i = 0; i < n; i++)
			least[i] = run == 0 || us[i] < least[i] ? us[i] : least[i];
	}
	for (size_t i = 0; i < n; i++)
		sum_us += least[i];
	b->kernel_ratio = 1e9 * b->gflop / sum_us / machine;
out:
	k3_runtime_resume(b->session.runtime);
	k3_plan_destroy(init);
	k3_serial_destroy(serial);
	free(us);
	return ret;
}

double
k3i_vision_sgemm(const struct k3i_vision_bench *b)
{
	k3_runtime_pause(b->session.runtime);
	double gflop_per_s = 1e-3 * k3i_measure_gemm(SGEMM_SIDE);
	k3_runtime_resume(b->session.runtime);
	return gflop_per_s;
}

int
k3i_vision_round(struct k3i_vision_bench *b, double *machine, struct k3i_vision_round *r,
		 struct k3_usage *usage)
{
	double passes = (double)b->steps, before = *machine,
	       cpu_s = k3_clock_s(CLOCK_PROCESS_CPUTIME_ID), begin = k3_clock_s(CLOCK_MONOTONIC);
	int ret;

	k3_usage_begin();
	K3_TRY(k3i_vision_run(b, b->plan, b->steps));
	k3_usage_read(usage);
	double wall_s = (k3_clock_s(CLOCK_MONOTONIC) - begin) / passes;
	cpu_s = (k3_clock_s(CLOCK_PROCESS_CPUTIME_ID) - cpu_s) / passes;
	*machine = k3i_vision_sgemm(b);
	r->ms = 1e3 * wall_s;
	r->sgemm = 0.5 * (before + *machine);
	r->ratio = b->gflop / wall_s / r->sgemm / usage->workers;
	r->task_ratio = b->gflop / (usage->kernels_s / passes) / r->sgemm;
	r->cpu_ratio = b->gflop / cpu_s / r->sgemm;
	r->idle = 1 - k3_usage_share(usage);
out:
	return ret;
}
