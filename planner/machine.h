/* The machine as the cost model sees it: what it is called, and what one of its cores does.
 *
 * A task of operation op with f flops, b bytes of activations and w bytes of parameters (weights,
 * gradients, moments) takes
 *
 *   cost_us = task_us + call_us[op] + f / flops_per_us[op] + b / bytes_per_us[op]
 *                     + w / param_bytes_per_us[op]
 *
 * on one core.  The speed that a product reaches grows with its size because the other terms weigh
 * less: its weights are packed once a call, however few rows there are, and rows are normalised or
 * activated one by one.  So size is in the formula, and an operation needs no table of sizes.
 * `k3_bench calibrate` measures the terms and writes a file that names the machine; without one the
 * defaults of this build serve.
 */
#ifndef K3_PLANNER_MACHINE_H
#define K3_PLANNER_MACHINE_H
#include <stdbool.h>
#include <stdint.h>

#include "../common/ops.h"
#include "gpu.h"

/* Terms of one operation; a rate of 0 leaves its term out. */
struct k3_rate {
	double call_us, flops_per_us, bytes_per_us, param_bytes_per_us;
};

enum { K3_GEMM_SIZES = 5 };

struct k3_machine {
	char host[64], processor[96];
	char blas[48]; /* kernels of the BLAS, "" when it does not tell */
	uint32_t cores;
	bool measured;	     /* by k3_bench calibrate, here or elsewhere; false: defaults */
	double task_us;	     /* what the runtime takes per task */
	double bytes_per_us; /* read and written by one core, in buffers that no cache holds */
	/* sgemm of n x n x n on one thread, n = 64, 128, 256, 512, 1024; 0: not measured */
	double gemm_flops_per_us[K3_GEMM_SIZES];
	struct k3_rate rate[K3_N_OPS];
	struct k3_gpu gpu; /* each of its GPUs */
};

/** n of an entry of gemm_flops_per_us. */
static inline uint32_t
k3_machine_gemm_size(size_t i)
{
	return 64u << i;
}

/**
 * This machine's names, with the default rates.
 * @param blas   kernels of the BLAS, as k3_runtime_blas says
 * @param cores  that this process may use, >= 1
 */
void k3_machine_init(struct k3_machine *machine, const char *blas, uint32_t cores);

/**
 * Cost of a task on one core, us; see above. Positive for every operation.
 * @param bytes        all that it moves
 * @param param_bytes  of them parameters, gradients, moments
 */
double k3_machine_cost_us(const struct k3_machine *machine, enum k3_op op, double flops,
			  double bytes, double param_bytes);

/**
 * Where the file is without --machine: $K3_MACHINE, else
 * ${XDG_CONFIG_HOME:-~/.config}/starpu-k3/machine-<host>.json.
 * @return malloc'ed; NULL when memory is out or no folder is known (no HOME)
 */
char *k3_machine_path(const char *host);

/**
 * Reads a file of k3_machine_save; what it does not measure keeps its default.
 * @return K3_OK; K3_EIO, K3_ELIMIT (cannot be read, too long), K3_EFORMAT (logged with file, field
 * and value), K3_ENOMEM; the machine is unchanged then
 */
int k3_machine_load(struct k3_machine *machine, const char *path);
/** Writes it whole or not at all, making the folder. @return K3_OK, K3_EIO (logged), K3_ENOMEM */
int k3_machine_save(const struct k3_machine *machine, const char *path);

/**
 * The machine that a program plans for: `file`, else the default place, else (nothing is there) the
 * default rates.  A file of another host, processor or BLAS is used with a warning that names both.
 * @param file  of --machine; NULL when the option was not given
 * @return as k3_machine_load; a file that was named (option or $K3_MACHINE) must exist
 */
int k3_machine_open(struct k3_machine *machine, const char *file, const char *blas, uint32_t cores);

#endif
