/* What k3_bench calibrate measures, in parts. */
#ifndef K3_DRIVERS_CALIBRATE_H
#define K3_DRIVERS_CALIBRATE_H
#include "../planner/rate_fit.h"
#include "serial.h"

/* Times of the tasks of one operation. */
struct k3_op_samples {
	struct k3_rate_sample *sample; /* [n] */
	size_t n, cap;
};

/** sgemm of n x n x n on this thread, flops per us: the best in 0.4 s; 0 when
 * memory is out. */
double k3i_measure_gemm(uint32_t n);
/** Bytes that one core reads and writes in a us when it copies what no cache holds; 0 when memory
 * is out. */
double k3i_measure_memory(void);
/**
 * What StarPU takes per task: tasks that do nothing with as many data as ours have, on one worker.
 * Starts and ends StarPU.
 * @return K3_OK, K3_ENODEV, K3_ENOMEM
 */
int k3i_measure_runtime(double *task_us);

/**
 * Times the operations of the first layers of a model on one thread: initial values, training
 * microbatches of `tokens` rows in one tile, the last of them in tiles of 256 with recomputed
 * activations besides, and the end of a step.
 * @param repeat   runs of each plan after a first that does not count; a task's time is its least
 * @param samples  [K3_N_OPS], grown
 */
int k3i_measure_model(struct k3_op_samples *samples, const char *preset, const uint32_t *tokens,
		      size_t n_tokens, uint32_t repeat);

#endif
