/* The trace of a run: which task ran on which worker, from when to when.
 *
 * A record per task is taken from a ring when the task is submitted, marked when a worker takes the
 * task, and completed when it has ended; workers allocate nothing and wait for nothing.  Everything
 * that the files show is copied into the record, so plans may go before the trace is written.
 * When the ring is full the oldest records make room; how many did is reported.
 *
 * Nothing here knows StarPU (trace_starpu.h connects the two), so tests feed times of their own.
 * Times are in nanoseconds of one monotonic clock and not negative.
 *
 * Files in the folder, see doc/tracing.md: k3.paje, tasks.tsv, summary.txt and pictures.  The first
 * two are also written when a signal ends or interrupts the program; a task that was running then
 * has no end.
 */
#ifndef K3_TASKS_TRACE_H
#define K3_TASKS_TRACE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../planner/plan.h"

struct k3_trace;
struct k3_trace_record;

/** Records kept unless told otherwise: 64 MiB once all are used, and 24 MiB to sort them. */
#define K3_TRACE_MOST_TASKS ((size_t)1 << 20)

struct k3_trace_options {
	const char *dir;   /* made when it is not there; NULL: no files, only k3_trace_share */
	size_t most_tasks; /* records in the ring; 0: K3_TRACE_MOST_TASKS */
	uint32_t rank;
	uint32_t n_workers;
	const char *const *worker_name; /* [n_workers], e.g. "cpu0"; copied, 15 bytes at most */
	const bool *is_device;	 /* [n_workers]: a device's stream, counted apart; NULL: none is */
	int64_t (*now_ns)(void); /* the clock; a signal handler may call it */
	bool signals; /* write on SIGINT SIGTERM (and go on), SIGABRT SIGSEGV SIGBUS SIGFPE
			 SIGILL; whoever handled them before is called after */
};

/**
 * Only one trace of a process may ask for signals at a time.
 * @return K3_OK; K3_EIO (the folder cannot be written), K3_EEXIST (signals are taken), K3_EINVAL
 * (no worker, or more than 32767; all logged); K3_ENOMEM
 */
int k3_trace_create(struct k3_trace **trace, const struct k3_trace_options *options);
/** Takes the signal handlers back and frees; writes nothing. NULL is legal. */
void k3_trace_destroy(struct k3_trace *trace);

/** What the tasks submitted from now on belong to; step -1: to no step (initial values, held-out
 * loss). trace may be NULL. */
void k3_trace_step(struct k3_trace *trace, int32_t step, int32_t microbatch);

/**
 * A record for a task that is about to be submitted; from one thread only.
 * @return NULL when the oldest record belongs to a task that has not ended: this one is lost, and
 * counted
 */
struct k3_trace_record *k3_trace_submit(struct k3_trace *trace, const struct k3_task *task);
/** The submission failed: the task is forgotten. */
void k3_trace_cancel(struct k3_trace *trace, struct k3_trace_record *record);
/** A worker has taken the task. */
void k3_trace_start(struct k3_trace_record *record, int worker, int64_t now_ns);
/** It has ended. ready_ns: when its last input was there; released_ns: when the runtime had seen
 * the end and let those go that waited for it. */
void k3_trace_end(struct k3_trace_record *record, int worker, int64_t ready_ns, int64_t start_ns,
		  int64_t end_ns, int64_t released_ns);
/** A worker's clock ran off since from_ns: its times become from_ns + (time - from_ns) factor. No
 * task may be in flight. */
void k3_trace_rescale(struct k3_trace *trace, int worker, int64_t from_ns, double factor);

/**
 * Writes k3.paje and tasks.tsv, and warns with the numbers when tasks are missing.
 * @return K3_OK, K3_EIO (logged)
 */
int k3_trace_write(struct k3_trace *trace);
/* Where the time of some workers went: inside the steps, or all of it when there are none. */
struct k3_trace_share {
	uint32_t workers;
	size_t tasks;
	double wall_s;
	double kernels, runtime; /* of workers x wall: in tasks; idle while a task was ready */
};
/**
 * Of all devices' streams, or of all other workers; all 0 when there are none. No task may be in
 * flight.
 * @return K3_OK, K3_ENOMEM
 */
int k3_trace_share(struct k3_trace *trace, bool device, struct k3_trace_share *share);

/**
 * All that there is: k3_trace_write, the summary in summary.txt and on stderr, pictures. No task
 * may be in flight.
 * @return K3_OK, K3_EIO (logged), K3_ENOMEM. A picture that can't be made is no failure.
 */
int k3_trace_finish(struct k3_trace *trace);

#endif
