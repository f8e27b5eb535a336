/* The measured part of k3_bench vision (inside drivers/). */
#ifndef K3_DRIVERS_BENCH_VISION_H
#define K3_DRIVERS_BENCH_VISION_H
#include "../planner/estimate.h"
#include "../tasks/usage.h"
#include "images.h"
#include "session.h"

enum { K3I_VISION_ROUNDS = 1000 }; /* at most */

struct k3i_vision_bench {
	const char *model, *machine_file;
	struct k3_images images;
	long long workers, steps, rounds, warmup, seed;
	struct k3_config config;
	struct k3_plan_options options;
	struct k3_machine machine;
	struct k3_session session;
	struct k3_layout layout;
	struct k3_plan *plan;
	struct k3_host_batch batch;
	int32_t *rows;		     /* ids, labels, documents */
	double gflop;		     /* the model's, of a pass */
	struct k3_estimate estimate; /* for as many workers, by the rates of the machine file */
	double kernel_ratio;	     /* of the kernels one after the other on one thread */
};

/* What a round gives. */
struct k3i_vision_round {
	double ms;    /* of a pass */
	double sgemm; /* Gflop/s on one thread, before and after */
	/* of sgemm on so many workers: by wall time, time of the kernels, processor time */
	double ratio, task_ratio, cpu_ratio;
	double idle; /* share of the workers' time */
};

/** Forward and backward passes of a plan, drained. */
int k3i_vision_run(struct k3i_vision_bench *b, const struct k3_plan *plan, long long passes);
/** Does a pass give what it must? @return K3_OK, K3_EDIFFER (logged), what running returned */
int k3i_vision_check(struct k3i_vision_bench *b);
/** Sets kernel_ratio. */
int k3i_vision_kernels(struct k3i_vision_bench *b);
/** Gflop/s of one product of 512^3 on one thread, while the workers pause. */
double k3i_vision_sgemm(const struct k3i_vision_bench *b);
/** The passes of a round between two measurements of the machine.
 * @param machine  in: k3i_vision_sgemm before the round; out: after it */
int k3i_vision_round(struct k3i_vision_bench *b, double *machine, struct k3i_vision_round *round,
		     struct k3_usage *usage);

#endif
