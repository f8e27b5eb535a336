/* The trap: StarPU aborts at what is no number, and under STARPU_SILENT it does not say why. */
#include "environment.h"

#include <errno.h>
#include <stdlib.h>

#include "../common/log.h"
#include "../common/status.h"

static const struct {
	const char *name;
	long least, most;
} variables[] = {
	{"STARPU_NCPU", 0, 65536},
	{"STARPU_NCUDA", 0, 65536},
	{"STARPU_NWORKER_PER_CUDA", 1, 65536},
	{"STARPU_CUDA_THREAD_PER_WORKER", 0, 1},
	{"STARPU_LIMIT_CPU_MEM", 0, 1000000000}, /* MiB */
	{"STARPU_LIMIT_CUDA_MEM", 0, 1000000000},
};

int
k3i_environment_check(void)
{
	int ret = K3_OK;

	for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
		const char *text = getenv(variables[i].name);
		char *end;
		long value;

		if (!text)
			continue;
		errno = 0;
		value = strtol(text, &end, 10);
		if (end != text && !*end && !errno && value >= variables[i].least &&
		    value <= variables[i].most)
			continue;
		k3_error("tasks", "%s=%s (environment): must be an integer from %ld to %ld",
			 variables[i].name, text, variables[i].least, variables[i].most);
		ret = K3_EINVAL;
	}
	return ret;
}
