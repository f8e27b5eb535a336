/* The trace when the program is stopped or breaks.
 *
 * The handler takes a snapshot and writes both files with what a handler may use, then lets the
 * signal do what it would have done.  The traps: a thread that breaks while it writes must not wait
 * for itself; another that breaks meanwhile must wait, or the process ends in the middle of a line;
 * and abort() ends the process as soon as its handler returns. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "../common/log.h"
#include "../common/status.h"
#include "trace_record.h"

static const int numbers[] = {SIGINT, SIGTERM, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
enum { N_SIGNALS = sizeof(numbers) / sizeof(numbers[0]), WAIT_MS = 30000 };

static struct k3_trace *_Atomic active;
static struct sigaction before[N_SIGNALS];
static _Atomic uintptr_t writer; /* the thread that writes; 0: none */

bool
k3i_trace_lock(void)
{
	uintptr_t none = 0;

	return atomic_compare_exchange_strong(&writer, &none, (uintptr_t)pthread_self());
}

bool
k3i_trace_lock_is_mine(void)
{
	return atomic_load(&writer) == (uintptr_t)pthread_self();
}

void
k3i_trace_unlock(void)
{
	atomic_store(&writer, 0);
}

static void
dump(struct k3_trace *trace)
{
	struct k3i_window all = {0, INT64_MAX};
	struct timespec ms = {0, 1000000};

	for (int i = 0; !k3i_trace_lock(); i++) {
		if (k3i_trace_lock_is_mine() || i == WAIT_MS)
			return;
		nanosleep(&ms, NULL);
	}
	k3i_trace_snapshot(trace);
	(void)k3i_trace_write_paje(trace, trace->paje, all, &trace->paje_bytes);
	(void)k3i_trace_write_tsv(trace, trace->tsv, &trace->tsv_bytes);
	k3i_trace_unlock();
}

/* What would have happened without us. */
static void
pass_on(int number, siginfo_t *info, void *context, const struct sigaction *old)
{
	bool goes_on = number == SIGINT || number == SIGTERM;

	if (goes_on && !(old->sa_flags & SA_SIGINFO) && old->sa_handler == SIG_IGN)
		return;
	if (goes_on && (old->sa_flags & SA_SIGINFO)) {
		old->sa_sigaction(number, info, context);
	} else if (goes_on && old->sa_handler != SIG_DFL) {
		old->sa_handler(number);
	} else {
		/* blocked until this handler returns, then the old action runs */
		sigaction(number, old, NULL);
		raise(number);
	}
}

static void
on_signal(int number, siginfo_t *info, void *context)
{
	struct k3_trace *trace = atomic_load(&active);
	int saved = errno;

	if (trace)
		dump(trace);
	for (int i = 0; i < N_SIGNALS; i++)
		if (numbers[i] == number)
			pass_on(number, info, context, &before[i]);
	errno = saved;
}

int
k3i_trace_signals_take(struct k3_trace *trace)
{
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	struct k3_trace *none = NULL;

	sigemptyset(&action.sa_mask);
	if (!atomic_compare_exchange_strong(&active, &none, trace)) {
		k3_error("tasks", "a trace in %s is being made: only one at a time", none->dir);
		return K3_EEXIST;
	}
	trace->signals = true;
	for (int i = 0; i < N_SIGNALS; i++)
		sigaction(numbers[i], &action, &before[i]);
	return K3_OK;
}

void
k3i_trace_signals_return(struct k3_trace *trace)
{
	K3_ASSERT(atomic_load(&active) == trace);
	for (int i = 0; i < N_SIGNALS; i++)
		sigaction(numbers[i], &before[i], NULL);
	atomic_store(&active, NULL);
	trace->signals = false;
}
