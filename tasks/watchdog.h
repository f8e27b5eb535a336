/* What is known to be wrong with versions of StarPU, and a word when nothing goes on. */
#ifndef K3_TASKS_WATCHDOG_H
#define K3_TASKS_WATCHDOG_H

/** Microseconds without a finished task after which the watchdog speaks, unless the user has set
 * STARPU_WATCHDOG_TIMEOUT: 120 s. */
#define K3_WATCHDOG_TIMEOUT_US "120000000"

/**
 * A fault of this version that a run can meet; NULL when none is known.
 * @param refuse  1 when programs must not run with it, else 0
 */
const char *k3_starpu_fault(int major, int minor, int release, int *refuse);

/** Sets StarPU's environment; before starpu_init. */
void k3i_watchdog_prepare(void);
/** Takes StarPU's message over; after starpu_init. */
void k3i_watchdog_start(void);

#endif
