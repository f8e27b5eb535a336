/* What the tests of traces share: a trace without StarPU, whose clock the test sets. */
#ifndef K3_TESTS_TRACE_CASE_H
#define K3_TESTS_TRACE_CASE_H
#include "../tasks/trace.h"
#include "paje.h"

/** A trace of workers "cpu0", "cpu1" into folder "t" of the scratch folder; most_tasks 0: the
 * default. */
struct k3_trace *trace_case(size_t most_tasks, bool signals);
/** The same of workers "cpu0", "gpu1"; dir NULL: no files. */
struct k3_trace *trace_case_device(const char *dir);
/** What the clock tells from now on, us. */
void trace_case_now(double us);
/** A task of layer, tile and group that is submitted now. */
struct k3_trace_record *trace_case_submit(struct k3_trace *trace, enum k3_op op, enum k3_pass pass,
					  int layer, int tile, int group);
/** The same, seen and released by the runtime at `released`. */
void trace_case_released(struct k3_trace *trace, int worker, double ready, double start, double end,
			 double released);
/** One that ran from start to end (us) on a worker and was ready at `ready`. */
void trace_case_ran(struct k3_trace *trace, enum k3_op op, enum k3_pass pass, int layer, int worker,
		    double ready, double start, double end);

/** Two steps on two workers, 20 ms each: 10 tasks in the first, 2 in the second. */
void trace_case_two_steps(struct k3_trace *trace);

/** A file of the scratch folder as text (malloc'ed). */
char *trace_case_file(const char *name);
/** The n-th state of a container is this one; times in ms. */
void trace_case_expect(const struct paje *paje, const char *container, size_t n, const char *value,
		       double begin, double end);

#endif
