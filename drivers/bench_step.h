/* One configuration of k3_bench step, and what was measured (inside drivers/). */
#ifndef K3_DRIVERS_BENCH_STEP_H
#define K3_DRIVERS_BENCH_STEP_H
#include "../tasks/device.h"
#include "images.h"

struct k3i_step_case {
	struct k3_config config;
	struct k3_plan_options plan;
	struct k3_machine machine; /* plan.machine points here */
	const char *scheduler;	   /* NULL: the user's, or StarPU's own choice */
	uint32_t workers;	   /* 0: the user's, or all cores */
	size_t accumulate;
	size_t n_docs, *doc_tokens; /* documents of each microbatch */
	struct k3_images images;    /* of each microbatch; none without a text */
	uint64_t seed, steps, rounds, warmup;
	uint32_t window;
	uint64_t limit_bytes;  /* of a memory node; 0: none was given */
	bool check_only;       /* no figures */
	const char *trace_dir; /* NULL: nothing is traced */
	enum k3_device device;
};

/* Plain data: it goes through a pipe. */
struct k3i_step_result {
	char scheduler[48], starpu[32], blas[48];
	uint64_t fingerprint;
	bool opened; /* nothing was refused: what failed did so in a step */
	bool finished;
	double workers, cuda_workers, loss, expected_loss;
	double second_loss; /* after one update; with all bits where rows are compared */
	double median_ms, least_ms, most_ms; /* of a step */
	double tokens_per_s;
	double model_gflop, plan_gflop; /* of a step: the model's products; all tasks of the plan */
	double gflop_per_s, sgemm_gflop_per_s, ratio;
	double gpu_gflop_per_s; /* cuBLAS, in place of sgemm when there is a device */
	double cpu_ratio; /* the same by processor time, of the process and of the sgemm threads */
	double kernel_share, tasks, mean_task_ms; /* tasks of a step */
	/* of devices' streams, in a round of its own that is traced: in tasks; idle beside a ready
	 * task */
	double gpu_busy, runtime_share;
	double gpu_gib;		   /* taken on the device after the steps */
	double submit_us;	   /* processor time of the submitting thread, a task */
	double plan_s, plan_share; /* of one new layout; of all of a step's, new */
};

/** Checks, then times; starts and ends StarPU in this process. */
int k3i_step_run(const struct k3i_step_case *what, struct k3i_step_result *result);

struct k3i_sgemm_rate {
	double gflop_per_s;	/* of all threads together, by the clock on the wall */
	double gflop_per_cpu_s; /* of one, by its own processor time */
};
/** n threads that each multiply their own matrices of 1024 x 1024 with a one-thread sgemm, for
 * about that long; all 0 when memory is out. */
struct k3i_sgemm_rate k3i_sgemm_rate(uint32_t threads, double seconds);

/**
 * Runs a case in a child process, so that a scheduler that aborts or hangs ends only itself.
 * @param reason  text [reason_bytes]: "ok", or why there is no result
 * @return K3_OK, K3_ELIMIT (took too long), K3_EDIFFER (the case's check failed), K3_EINVAL (it was
 * refused before the first step), K3_ENODEV (ended otherwise)
 */
int k3i_step_child(const struct k3i_step_case *what, double limit_s, struct k3i_step_result *result,
		   char *reason, size_t reason_bytes);

#endif
