/* The machine's own rate beside which a step is judged: as many threads as workers, each with a
 * one-thread product of its own.  The trap: the threads must run at the same time, so all begin at
 * one moment, after a first product that makes the library's buffers. */
#include <cblas.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "../common/clock.h"
#include "bench_step.h"

enum { SIDE = 1024, HEAD_START_NS = 100000000 };

struct loop {
	pthread_t thread;
	struct timespec begin;
	double seconds, gflop_per_s, cpu_s, gflop;
};

static void
multiply(float *a)
{
	size_t n = (size_t)SIDE * SIDE;

	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, SIDE, SIDE, SIDE, 1, a, SIDE, a + n,
		    SIDE, 0, a + 2 * n, SIDE);
}

static void *
run_loop(void *argument)
{
	struct loop *l = argument;
	size_t n = (size_t)SIDE * SIDE;
	float *a = malloc(3 * n * sizeof(*a));
	double begin, end, cpu_s, done = 0;

	if (!a)
		return NULL;
	for (size_t i = 0; i < 3 * n; i++)
		a[i] = (float)(i % 7) * 0.125f;
	multiply(a);
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &l->begin, NULL);
	begin = k3_clock_s(CLOCK_MONOTONIC);
	cpu_s = k3_clock_s(CLOCK_THREAD_CPUTIME_ID);
	do {
		multiply(a);
		done++;
		end = k3_clock_s(CLOCK_MONOTONIC);
	} while (end - begin < l->seconds);
	l->cpu_s = k3_clock_s(CLOCK_THREAD_CPUTIME_ID) - cpu_s;
	l->gflop = 2e-9 * SIDE * SIDE * SIDE * done;
	l->gflop_per_s = l->gflop / (end - begin);
	free(a);
	return NULL;
}

struct k3i_sgemm_rate
k3i_sgemm_rate(uint32_t threads, double seconds)
{
	struct loop *loop = calloc(threads, sizeof(*loop));
	struct timespec begin;
	uint32_t started = 0;
	struct k3i_sgemm_rate rate = {0};
	double gflop = 0, cpu_s = 0;

	if (!loop)
		return rate;
#ifdef K3_HAVE_OPENBLAS
	openblas_set_num_threads(1);
#endif
	clock_gettime(CLOCK_MONOTONIC, &begin);
	begin.tv_nsec += HEAD_START_NS;
	begin.tv_sec += begin.tv_nsec / 1000000000;
	begin.tv_nsec %= 1000000000;
	for (; started < threads; started++) {
		loop[started] = (struct loop){.begin = begin, .seconds = seconds};
		if (pthread_create(&loop[started].thread, NULL, run_loop, &loop[started]) != 0)
			break;
	}
	for (uint32_t i = 0; i < started; i++) {
		pthread_join(loop[i].thread, NULL);
		rate.gflop_per_s += loop[i].gflop_per_s;
		gflop += loop[i].gflop;
		cpu_s += loop[i].cpu_s;
	}
	if (cpu_s > 0)
		rate.gflop_per_cpu_s = gflop / cpu_s;
	free(loop);
	return started == threads ? rate : (struct k3i_sgemm_rate){0};
}
