/* The machine's own rate beside which a step is judged: as many threads as workers, each with a
 * one-thread product of its own.  The trap: the threads must run at the same time, so all begin at
 * one moment, after a first product that makes the library's buffers. */
#include <cblas.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "bench_step.h"

enum { SIDE = 1024, HEAD_START_NS = 100000000 };

struct loop {
	pthread_t thread;
	struct timespec begin;
	double seconds, gflop_per_s;
};

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

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
	double begin, end, done = 0;

	if (!a)
		return NULL;
	for (size_t i = 0; i < 3 * n; i++)
		a[i] = (float)(i % 7) * 0.125f;
	multiply(a);
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &l->begin, NULL);
	begin = now();
	do {
		multiply(a);
		done++;
		end = now();
	} while (end - begin < l->seconds);
	l->gflop_per_s = 2e-9 * SIDE * SIDE * SIDE * done / (end - begin);
	free(a);
	return NULL;
}

double
k3i_sgemm_gflop_per_s(uint32_t threads, double seconds)
{
	struct loop *loop = calloc(threads, sizeof(*loop));
	struct timespec begin;
	uint32_t started = 0;
	double sum = 0;

	if (!loop)
		return 0;
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
		sum += loop[i].gflop_per_s;
	}
	free(loop);
	return started == threads ? sum : 0;
}
