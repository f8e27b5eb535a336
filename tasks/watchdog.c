/* StarPU's watchdog looks every STARPU_WATCHDOG_TIMEOUT microseconds whether a task has ended since.
 * It says so once per interval and the run goes on: a task may be that long.  Without it a
 * run whose tasks wait for each other looks like one that computes.  The trap: StarPU 1.3.10 aborts
 * at the first silence unless STARPU_WATCHDOG_CRASH is there and 0; 1.4 only when it is there and
 * not 0. */
#include "watchdog.h"

#include <starpu.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "../common/log.h"

static const struct {
	int first[3], last[3];
	bool refuse;
	const char *text;
} known[] = {
	{{0, 0, 0}, {1, 3, 9}, true, "older than any version that this was tried with"},
	{{1, 4, 0},
	 {1, 4, 10},
	 false,
	 "workers that look at each other's queues can block each other (StarPU's commit "
	 "cb6368aad of February 2026 cures it): another STARPU_SCHED, e.g. eager, avoids that"},
};

static bool
at_most(const int *a, const int *b)
{
	for (int i = 0; i < 3; i++)
		if (a[i] != b[i])
			return a[i] < b[i];
	return true;
}

const char *
k3_starpu_fault(int major, int minor, int release, int *refuse)
{
	const int version[] = {major, minor, release};

	*refuse = 0;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (at_most(known[i].first, version) && at_most(version, known[i].last)) {
			*refuse = known[i].refuse;
			return known[i].text;
		}
	return NULL;
}

void
k3i_watchdog_prepare(void)
{
	setenv("STARPU_WATCHDOG_TIMEOUT", K3_WATCHDOG_TIMEOUT_US, 0);
	setenv("STARPU_WATCHDOG_CRASH", "0", 0);
}

static void
on_silence(void *unused)
{
	const char *timeout = getenv("STARPU_WATCHDOG_TIMEOUT");
	int major, minor, release, refuse;

	(void)unused;
	starpu_get_version(&major, &minor, &release);
	const char *fault = k3_starpu_fault(major, minor, release, &refuse);
	k3_warn("tasks",
		"no task has ended for %g s, %d wait or run: if a task may take so long, raise "
		"STARPU_WATCHDOG_TIMEOUT (microseconds); with STARPU_WATCHDOG_CRASH=1 the program "
		"ends here%s%s",
		1e-6 * atof(timeout ? timeout : "0"), starpu_task_nsubmitted(),
		fault ? "; known of this StarPU: " : "", fault ? fault : "");
}

void
k3i_watchdog_start(void)
{
	starpu_task_watchdog_set_hook(on_silence, NULL);
}
