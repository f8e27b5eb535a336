/* The training program in parts: options, run.json, the step loop. */
#ifndef K3_DRIVERS_TRAIN_H
#define K3_DRIVERS_TRAIN_H
#include <stdbool.h>

#include "session.h"

struct k3_train_options {
	const char *model, *data, *eval_data, *init_from, *save, *resume, *balance, *activations,
		*eval_log, *trace, *vision, *device,
		*dtype, *optimizer_dtype; /* auto, on, off; device.h; session.h */
	long long layers, vocab; /* 0: as the preset says */
	long long tokens, accumulate, steps, stop_after, eval_every, save_every, warmup, seed,
		window, trace_tasks, vision_patches, max_patches; /* of a tile; of a microbatch */
	struct k3_cut cut;
	double lr, decay, weight_decay, clip;
	double memory; /* GiB of a memory node, 0: no limit */
	bool fingerprint, cut_state, calibrate;
};

/* What run.json holds besides the options. */
struct k3_run_state {
	uint64_t step;		     /* steps done */
	struct k3_data_pos position; /* of the training data after them */
	uint64_t data_checksum;
	char blas[64];	 /* kernels of the run so far */
	uint64_t tokens; /* consumed so far */
};

/**
 * Reads the command line.  With --resume the checkpoint is looked up and everything else comes from
 * its run.json; any other option that is given and differs is refused with both values.
 * @param folder  of the checkpoint to resume, malloc'ed; NULL without --resume
 * @return K3_OK; K3_EINTR when --help or --version was printed; else a failure that was logged
 * (exit status 2)
 */
int k3_train_parse(struct k3_train_options *options, struct k3_run_state *state, char **folder,
		   int argc, char **argv);

/** run.json as text, malloc'ed; NULL when memory is out. */
char *k3_run_state_json(const struct k3_run_state *state, const struct k3_train_options *options,
			const char *starpu_version, const char *blas);

/** Trains. @return exit status of the program: 0 ok, 1 failed, 2 wrong input */
int k3_train_run(const struct k3_train_options *options, struct k3_run_state *state,
		 const char *folder);

#endif
