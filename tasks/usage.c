/* StarPU counts for each worker how long it executed codelets; reading sets the counters to zero.
 * The trap: a task that is still running counts when it ends, so readings belong after a drain. */
#include "usage.h"

#include <starpu.h>
#include <string.h>

#include "../common/log.h"

/* Tasks that short lose several percent to the runtime (about 10 us each); on a GPU most of that
 * passes while the task before runs. */
static const double short_task_ms = 1, gpu_short_task_ms = 0.05;

void
k3_usage_begin(void)
{
	struct k3_usage dropped;

	starpu_profiling_status_set(STARPU_PROFILING_ENABLE);
	k3_usage_read(&dropped);
}

void
k3_usage_read(struct k3_usage *usage)
{
	uint32_t n = starpu_worker_get_count();

	memset(usage, 0, sizeof(*usage));
	usage->on_gpus = starpu_cuda_worker_get_count() > 0;
	for (uint32_t i = 0; i < n; i++) {
		struct starpu_profiling_worker_info info = {.executed_tasks = 0};
		bool gpu = starpu_worker_get_type((int)i) == STARPU_CUDA_WORKER;
		if (starpu_profiling_worker_get_info((int)i, &info) != 0 || gpu != usage->on_gpus)
			continue;
		usage->workers++;
		double wall_s = 1e-6 * starpu_timing_timespec_to_us(&info.total_time);
		usage->tasks += (uint64_t)info.executed_tasks;
		usage->kernels_s += 1e-6 * starpu_timing_timespec_to_us(&info.executing_time);
		if (wall_s > usage->wall_s)
			usage->wall_s = wall_s;
	}
}

double
k3_usage_share(const struct k3_usage *usage)
{
	double all = usage->workers * usage->wall_s;

	return all > 0 ? usage->kernels_s / all : 0;
}

double
k3_usage_mean_task_ms(const struct k3_usage *usage)
{
	return usage->tasks ? 1e3 * usage->kernels_s / (double)usage->tasks : 0;
}

void
k3_usage_warn_short(const struct k3_usage *usage)
{
	double mean_ms = k3_usage_mean_task_ms(usage),
	       short_ms = usage->on_gpus ? gpu_short_task_ms : short_task_ms;

	if (usage->tasks && mean_ms < short_ms)
		k3_warn("tasks",
			"a task takes %.3g ms on average; below %.3g ms the runtime's part is "
			"felt: larger tiles or more tokens help (--tile-tokens, --tokens)",
			mean_ms, short_ms);
}
