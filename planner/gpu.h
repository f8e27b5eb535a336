/* A GPU as the cost model sees it: what its hardware can do at most, and which shares of that the
 * operations reach.
 *
 * A task with f flops that moves b bytes takes
 *
 *   cost_us = task_us + call_us[kind] + f / (product_share[kind] * flops_per_us[dtype])
 *                     + b / (memory_share[kind] * bytes_per_us)
 *
 * dtype is that of the plan's activations.  The shares are those of this library's kernels (gpu.c);
 * the rates are the device's: from the machine file, else from the device that is there, else those
 * of an H200.
 */
#ifndef K3_PLANNER_GPU_H
#define K3_PLANNER_GPU_H
#include "../common/ops.h"
#include "../common/safetensors.h"

struct k3_gpu {
	char name[64];	/* "": none is known, the rates are defaults */
	double task_us; /* what the runtime takes per task */
	/* of fp32 arithmetic without tensor cores, and of bf16 products on them */
	double f32_flops_per_us, bf16_flops_per_us;
	double bytes_per_us; /* of its memory, read and written together */
};

/** Rates of an H200, without its name. */
void k3_gpu_init(struct k3_gpu *gpu);
/**
 * Rates from what a CUDA device tells of itself.
 * @param major          compute capability
 * @param processors     multiprocessors
 * @param clock_mhz      highest, of the multiprocessors
 * @param memory_mhz     highest, of the memory, which moves two words a clock
 * @param memory_bits    width of its bus
 */
void k3_gpu_describe(struct k3_gpu *gpu, const char *name, int major, double processors,
		     double clock_mhz, double memory_mhz, double memory_bits);

/** Cost of a task there, us; see above.  Positive. */
double k3_gpu_cost_us(const struct k3_gpu *gpu, enum k3_op op, enum k3_dtype dtype, double flops,
		      double bytes);

#endif
