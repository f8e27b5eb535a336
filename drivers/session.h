/* What the programs that run a model share: model, StarPU, handles, plans by layout. */
#ifndef K3_DRIVERS_SESSION_H
#define K3_DRIVERS_SESSION_H
#include "../common/data.h"
#include "../planner/plan_cache.h"
#include "../tasks/checkpoint.h"
#include "../tasks/runtime.h"
#include "../tasks/submit.h"

struct k3_session {
	struct k3_runtime *runtime;
	struct k3_model *model;
	struct k3_store *store;
	struct k3_plan_cache *cache;
	struct k3_plan *optimizer[2]; /* by parity of the step; NULL until asked for */
	uint64_t clock;		      /* grows with each step or evaluation: age of cached plans */
};

/** The machine that costs are those of: k3_machine_open with this program's BLAS and cores. */
int k3_session_machine(struct k3_machine *machine, const char *file);
/** k3_choose into options, which hold the machine; says what was chosen. */
int k3_session_choose(struct k3_plan_options *options, const struct k3_config *config,
		      size_t tokens);

/**
 * Starts StarPU, makes the model's handles. Values are not set: run k3_session_init or load a
 * checkpoint.
 */
int k3_session_open(struct k3_session *session, const struct k3_config *config,
		    const struct k3_plan_options *options,
		    const struct k3_runtime_options *runtime);
/** Drains and frees; a session that is all zero is legal. */
void k3_session_close(struct k3_session *session);

/** Initial values of everything (seeded), drained. */
int k3_session_init(struct k3_session *session, uint64_t seed);

/** Optimizer plan of a parity, checked. */
int k3_session_optimizer(struct k3_session *session, uint32_t parity, const struct k3_plan **plan);

struct k3_eval_result {
	double loss_sum, tokens, correct; /* over counted labels */
};
/** Can the dataset be read, and has the model all of its tokens? */
int k3_session_check_data(const struct k3_session *session, const char *data_path);
/** Loss over a dataset, once, in microbatches of `tokens`; drained. The mean is taken over labels,
 * not over batches. */
int k3_session_eval(struct k3_session *session, const char *data_path, size_t tokens,
		    struct k3_eval_result *result);

#endif
