/* The training program in parts: options, run.json, the step loop. */
#ifndef K3_DRIVERS_TRAIN_H
#define K3_DRIVERS_TRAIN_H
#include <stdbool.h>

#include "session.h"

struct k3_train_options {
	const char *model, *data, *eval_data, *init_from, *save, *resume;
	long long layers, vocab;     /* 0: as the preset says */
	long long tokens, accumulate, steps, stop_after, eval_every, save_every, warmup, seed, tile_tokens, window;
	double lr, decay, weight_decay, clip;
	enum k3_balance_rule balance;
	bool fingerprint;
};

/** Values before any option is read: model.md 7. */
void k3_train_defaults(struct k3_train_options *options);

/**
 * Reads the command line; with --resume the rest comes from run.json, and any other option that differs from it is refused with
 * both values.
 * @return K3_OK, K3_EINVAL (logged; exit status 2), K3_EINTR when --help or --version was printed
 */
int k3_train_parse(struct k3_train_options *options, int argc, char **argv);

/* What run.json holds besides the options. */
struct k3_run_state {
	uint64_t step;               /* steps done */
	struct k3_data_pos position; /* of the training data after them */
	uint64_t data_checksum;
	uint64_t tokens;             /* consumed so far */
};

/** run.json as text, malloc'ed; NULL when memory is out. */
char *k3_run_state_json(const struct k3_run_state *state, const struct k3_train_options *options);
/** Reads run.json of a checkpoint folder; strings in options are malloc'ed and live to the end of the program. */
int k3_run_state_load(struct k3_run_state *state, struct k3_train_options *options, const char *folder);

/** Trains; @return exit status of the program. */
int k3_train_run(const struct k3_train_options *options);

#endif
