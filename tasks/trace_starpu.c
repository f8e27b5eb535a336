/* Between StarPU and the trace: marks of a task come from its callbacks, times from StarPU's
 * profiling, those on devices from events (trace_cuda.h).  The trap is the clock: all times are StarPU's own, which begins in starpu_init;
 * before that, and against any other clock, they mean nothing. */
#include "trace_starpu.h"

#include <math.h>
#include <stdlib.h>

#include "../common/status.h"
#include "trace_cuda.h"

/* clock_gettime and a subtraction: a signal handler may call it */
static int64_t
now_ns(void)
{
	return llrint(starpu_timing_now() * 1e3);
}

static int64_t
ns_of(const struct timespec *t)
{
	return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

/* On the worker, just before it fetches the data and runs the task. */
static void
on_taken(void *record)
{
	k3_trace_start(record, starpu_worker_get_id(), now_ns());
}

/* On the worker, after the task and before StarPU counts it as done: a drain waits for this. */
static void
on_end(void *record)
{
	struct starpu_task *task = starpu_task_get_current();
	const struct starpu_profiling_task_info *info = task->profiling_info;
	int64_t start = ns_of(&info->start_time), end = ns_of(&info->end_time);

	k3i_trace_cuda_times(info->workerid, task, &start, &end);
	k3_trace_end(record, info->workerid, ns_of(&info->push_start_time), start, end, now_ns());
}

void
k3i_trace_starpu_attach(struct starpu_task *task, struct k3_trace_record *record)
{
	if (!record)
		return;
	task->prologue_callback_pop_func = on_taken;
	task->prologue_callback_pop_arg = record;
	task->callback_func = on_end;
	task->callback_arg = record;
}

int
k3i_trace_starpu_create(struct k3_trace **trace, const char *dir, size_t most_tasks)
{
	uint32_t n = starpu_worker_get_count();
	const char **name = calloc(n, sizeof(*name));
	char(*text)[16] = calloc(n, sizeof(*text));
	bool *device = calloc(n, sizeof(*device));
	int ret = name && text && device ? K3_OK : K3_ENOMEM;

	*trace = NULL;
	K3_TRY(ret);
	for (uint32_t w = 0; w < n; w++) {
		device[w] = starpu_worker_get_type((int)w) != STARPU_CPU_WORKER;
		snprintf(text[w], sizeof(text[w]), "%s%d", device[w] ? "gpu" : "cpu",
			 starpu_worker_get_devid((int)w));
		name[w] = text[w];
	}
	K3_TRY(k3_trace_create(trace, &(struct k3_trace_options){.dir = dir,
								 .most_tasks = most_tasks,
								 .n_workers = n,
								 .worker_name = name,
								 .is_device = device,
								 .now_ns = now_ns,
								 .signals = dir != NULL}));
	starpu_profiling_status_set(STARPU_PROFILING_ENABLE);
	k3i_trace_cuda_start(now_ns);
out:
	free(name);
	free(text);
	free(device);
	return ret;
}

void
k3i_trace_starpu_end(struct k3_trace *trace)
{
	k3i_trace_cuda_stop(trace);
}

void
k3i_trace_starpu_destroy(struct k3_trace *trace)
{
	if (!trace)
		return;
	starpu_profiling_status_set(STARPU_PROFILING_DISABLE);
	k3_trace_destroy(trace);
}
