/* The machine apart from our operations: products, memory, the runtime.  The trap: the first
 * product of a size makes buffers and wakes the wide units, so the best of several counts. */
#include <cblas.h>
#include <starpu.h>
#include <stdlib.h>
#include <string.h>

#include "../common/clock.h"
#include "../common/log.h"
#include "../common/status.h"
#include "../tasks/runtime.h"
#include "calibrate.h"

double
k3i_measure_gemm(uint32_t n)
{
	const double least_us = 4e5;
	size_t elems = (size_t)n * n;
	float *a = malloc(3 * elems * sizeof(*a));
	double best = 0, begin = k3i_thread_us();

	if (!a)
		return 0;
	for (size_t i = 0; i < 3 * elems; i++)
		a[i] = (float)(i % 7) * 0.125f;
	for (int run = 0; run < 5 || k3i_thread_us() - begin < least_us; run++) {
		double start = k3i_thread_us();
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)n, (int)n, (int)n, 1, a,
			    (int)n, a + elems, (int)n, 0, a + 2 * elems, (int)n);
		double rate = 2.0 * (double)elems * n / (k3i_thread_us() - start);
		best = rate > best ? rate : best;
	}
	free(a);
	return best;
}

double
k3i_measure_memory(void)
{
	const size_t bytes = (size_t)256 << 20;
	char *from = malloc(bytes), *to = malloc(bytes);
	double best = 0;

	if (from && to) {
		memset(from, 1, bytes);
		memset(to, 2, bytes);
		for (int run = 0; run < 5; run++) {
			double start = k3i_thread_us();
			memcpy(to, from, bytes);
			double rate = 2.0 * (double)bytes / (k3i_thread_us() - start);
			/* the copy is used, so that it is made */
			best = rate > best && to[bytes / 2] == 1 ? rate : best;
		}
	}
	free(from);
	free(to);
	return best;
}

static void
nothing(void *buffers[], void *arg)
{
	(void)buffers;
	(void)arg;
}

enum { EMPTY_TASKS = 1000, EMPTY_RUNS = 40, EMPTY_DATA = 8, EMPTY_HANDLES = 64 };

static int
submit_empty(starpu_data_handle_t *handle)
{
	static struct starpu_codelet cl = {
		.name = "k3_empty", .cpu_funcs = {nothing}, .nbuffers = STARPU_VARIABLE_NBUFFERS};

	for (int i = 0; i < EMPTY_TASKS; i++) {
		struct starpu_task *task = starpu_task_create();
		if (!task)
			return K3_ENOMEM;
		task->cl = &cl;
		task->nbuffers = EMPTY_DATA;
		for (int k = 0; k < EMPTY_DATA; k++) {
			/* a variable: StarPU 1.4's macro does not parenthesise its argument */
			enum starpu_data_access_mode mode = k < 2 ? STARPU_RW : STARPU_R;
			STARPU_TASK_SET_HANDLE(task, handle[(i + 7 * k) % EMPTY_HANDLES], k);
			STARPU_TASK_SET_MODE(task, mode, k);
		}
		if (starpu_task_submit(task) != 0)
			return K3_ENODEV;
	}
	return K3_OK;
}

int
k3i_measure_runtime(double *task_us)
{
	static float values[EMPTY_HANDLES][EMPTY_DATA];
	starpu_data_handle_t handle[EMPTY_HANDLES];
	struct k3_runtime *runtime;
	int ret;

	setenv("STARPU_NCPU", "1", 1);
	K3_TRY(k3_runtime_create(&runtime, &(struct k3_runtime_options){0}));
	for (size_t i = 0; i < EMPTY_HANDLES; i++)
		starpu_vector_data_register(&handle[i], STARPU_MAIN_RAM, (uintptr_t)values[i],
					    EMPTY_DATA, sizeof(float));
	for (int run = 0; run < EMPTY_RUNS && ret == K3_OK; run++) {
		double start = k3_clock_s(CLOCK_MONOTONIC);
		ret = submit_empty(handle);
		k3_runtime_drain(runtime);
		double us = 1e6 * (k3_clock_s(CLOCK_MONOTONIC) - start) / EMPTY_TASKS;
		*task_us = run == 0 || us < *task_us ? us : *task_us;
	}
	for (size_t i = 0; i < EMPTY_HANDLES; i++)
		starpu_data_unregister(handle[i]);
	k3_runtime_destroy(runtime);
out:
	return ret;
}
