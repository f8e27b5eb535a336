/* The trap: StarPU takes another scheduler for a name that it does not know, and says so only when it
 * may speak; "help" makes it print and go on. */
#include "scheduler.h"

#include <starpu.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"

bool
k3_scheduler_is_known(const char *name)
{
	for (struct starpu_sched_policy **p = starpu_sched_get_predefined_policies(); *p; p++)
		if (strcmp((*p)->policy_name, name) == 0)
			return true;
	return strncmp(name, "heft", 4) == 0; /* StarPU's old name of dmda */
}

const char *
k3_scheduler_names(char *text, size_t text_bytes)
{
	size_t at = 0;

	*text = 0;
	for (struct starpu_sched_policy **p = starpu_sched_get_predefined_policies(); *p; p++)
		if (at < text_bytes)
			at += (size_t)snprintf(text + at, text_bytes - at, "%s%s", at ? " " : "",
					       (*p)->policy_name);
	return text;
}

int
k3i_scheduler_check(void)
{
	const char *name = getenv("STARPU_SCHED");
	char known[2048];

	if (!name || (*name && getenv("STARPU_SCHED_LIB")) || k3_scheduler_is_known(name))
		return K3_OK;
	k3_error("tasks",
		 "STARPU_SCHED=%s (environment): this StarPU has no such scheduler; it has %s",
		 name, k3_scheduler_names(known, sizeof(known)));
	return K3_EINVAL;
}

int
k3i_scheduler_check_taken(const char *taken)
{
	const char *name = getenv("STARPU_SCHED"), *library = getenv("STARPU_SCHED_LIB");

	if (!name || !library || strcmp(name, taken) == 0 || k3_scheduler_is_known(name))
		return K3_OK;
	k3_error("tasks",
		 "STARPU_SCHED=%s (environment): neither StarPU nor STARPU_SCHED_LIB=%s has such a "
		 "scheduler",
		 name, library);
	return K3_EINVAL;
}
