/* Names of StarPU's schedulers. */
#ifndef K3_TASKS_SCHEDULER_H
#define K3_TASKS_SCHEDULER_H
#include <stdbool.h>
#include <stddef.h>

/** Is it a name of StarPU's own schedulers, as STARPU_SCHED takes them? */
bool k3_scheduler_is_known(const char *name);
/** All of them, with blanks between; returns text. */
const char *k3_scheduler_names(char *text, size_t text_bytes);

/** Before StarPU starts: does STARPU_SCHED, if it is there, name one?  With STARPU_SCHED_LIB only
 * an empty name is refused here. @return K3_OK, K3_EINVAL (logged with all names) */
int k3i_scheduler_check(void);
/** When StarPU has started: did it take what STARPU_SCHED names, also from a library?
 * @return K3_OK, K3_EINVAL (logged) */
int k3i_scheduler_check_taken(const char *taken);

#endif
