/* How busy the workers are, from StarPU's profiling information. */
#ifndef K3_TASKS_USAGE_H
#define K3_TASKS_USAGE_H
#include <stdbool.h>
#include <stdint.h>

/* Of the workers of GPUs where there are any: cores beside them have little to do. */
struct k3_usage {
	bool on_gpus;
	uint64_t tasks;	  /* executed */
	double kernels_s; /* sum of their (end - start) over the workers */
	double wall_s;	  /* since the counting began */
	uint32_t workers;
};

/** Turns StarPU's profiling on and begins to count; costs about a microsecond a task. */
void k3_usage_begin(void);
/** What was executed since k3_usage_begin or the last call; only tasks that have ended count. */
void k3_usage_read(struct k3_usage *usage);
/** Share of the workers' time that went into kernels, 0 .. 1. */
double k3_usage_share(const struct k3_usage *usage);
/** Mean length of a task, 0 when there was none. */
double k3_usage_mean_task_ms(const struct k3_usage *usage);
/** Warns when tasks are so short that the runtime's part is felt, and says what helps. */
void k3_usage_warn_short(const struct k3_usage *usage);

#endif
