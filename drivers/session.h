/* What the programs that run a model share: model, StarPU, handles, plans by layout. */
#ifndef K3_DRIVERS_SESSION_H
#define K3_DRIVERS_SESSION_H
#include "../common/data.h"
#include "../planner/activations.h"
#include "../planner/plan_cache.h"
#include "../tasks/checkpoint.h"
#include "../tasks/runtime.h"
#include "../tasks/submit.h"
#include "../tasks/trace.h"

/* Line of an option table: where tasks run; target a string. */
#define K3_DEVICE_OPTION(target)                                                                   \
	{                                                                                          \
		"device", "cpu|cuda|all", K3_OPT_STRING, target, 0, 0,                             \
			"where tasks run: CPU cores, GPUs (and cores for what GPUs cannot do), "   \
			"or both (cpu)",                                                           \
			false                                                                      \
	}
/* Line of an option table: types of numbers; target a string. */
#define K3_DTYPE_OPTION(target)                                                                    \
	{                                                                                          \
		"dtype", "fp32|bf16", K3_OPT_STRING, target, 0, 0,                                 \
			"activations, and matrices as tasks read them; gradients of parameters "   \
			"are fp32 (fp32)",                                                         \
			false                                                                      \
	}
/* Line of an option table: type of the optimizer's state; target a string. */
#define K3_OPTIMIZER_DTYPE_OPTION(target)                                                          \
	{                                                                                          \
		"optimizer-dtype", "fp32|bf16", K3_OPT_STRING, target, 0, 0,                       \
			"masters and moments of matrices; bf16, with --dtype bf16: no masters, "   \
			"and moments in bf16 (fp32)",                                              \
			false                                                                      \
	}
/* Line of an option table: what carries communication; target a string. */
#define K3_COMM_OPTION(target)                                                                     \
	{                                                                                          \
		"comm", "none|nccl", K3_OPT_STRING, target, 0, 0,                                  \
			"nccl: communication as on a mesh of GPUs, also on one (none)", false      \
	}
/* Lines of an option table: a trace. */
#define K3_TRACE_OPTIONS(dir, most_tasks)                                                          \
	{"trace",                                                                                  \
	 "DIR",                                                                                    \
	 K3_OPT_STRING,                                                                            \
	 dir,                                                                                      \
	 0,                                                                                        \
	 0,                                                                                        \
	 "records all tasks: DIR gets k3.paje (for ViTE), tasks.tsv, summary.txt, pictures",       \
	 false},                                                                                   \
	{                                                                                          \
		"trace-tasks", "N", K3_OPT_INT, most_tasks, 1, 1e9,                                \
			"most tasks that a trace keeps: the newest (1048576)", false               \
	}

struct k3_session {
	struct k3_runtime *runtime;
	struct k3_model *model;
	struct k3_store *store;
	struct k3_plan_cache *cache;
	struct k3_plan *optimizer[2]; /* by parity of the step; NULL until asked for */
	uint64_t clock;		      /* grows with each step or evaluation: age of cached plans */
};

/** Type that an option names. @return K3_OK, K3_EINVAL (logged) */
int k3_session_dtype(enum k3_dtype *dtype, const char *option, const char *text);
/** The machine that costs are those of: k3_machine_open with this program's BLAS and cores, and
 * the GPU that is here when a device other than CPU is asked for and the file names none. */
int k3_session_machine(struct k3_machine *machine, const char *file, enum k3_device device);
/* Rows of an option table: how a model is cut, and the machine whose rates decide. */
#define K3_MACHINE_OPTION(file)                                                                    \
	{                                                                                          \
		"machine", "FILE", K3_OPT_STRING, (file), 0, 0,                                    \
			"rates of the machine, from k3_bench calibrate ($K3_MACHINE, or in the "   \
			"user's configuration)",                                                   \
			false                                                                      \
	}
#define K3_GROUPS_OPTION(name, target, what)                                                       \
	{                                                                                          \
		name, "N", K3_OPT_INT, (target), 1, 65536,                                         \
			"groups that the " what " are cut in (2, on a GPU 1, or chosen with the "  \
			"tile)",                                                                   \
			false                                                                      \
	}
#define K3_CUT_OPTIONS(cut)                                                                        \
	{"tile-tokens",                                                                            \
	 "N|all|auto",                                                                             \
	 K3_OPT_TILE,                                                                              \
	 &(cut)->tile_tokens,                                                                      \
	 K3_TILE_AUTO,                                                                             \
	 0,                                                                                        \
	 "rows of a token tile: a multiple of 64, all, or chosen for the machine (auto)",          \
	 false},                                                                                   \
		K3_GROUPS_OPTION("kda-groups", &(cut)->kda_groups, "KDA heads"),                   \
		K3_GROUPS_OPTION("mla-groups", &(cut)->mla_groups, "MLA heads"),                   \
		K3_GROUPS_OPTION("expert-groups", &(cut)->expert_groups, "experts"),               \
		{"head-rows",                                                                      \
		 "N",                                                                              \
		 K3_OPT_INT,                                                                       \
		 &(cut)->head_rows,                                                                \
		 64,                                                                               \
		 K3_MAX_TOKENS,                                                                    \
		 "rows whose logits exist at once (chosen for the device)",                        \
		 false},                                                                           \
		K3_MACHINE_OPTION(&(cut)->machine)

struct k3_cut {
	long long tile_tokens;				 /* K3_TILE_AUTO: to be chosen */
	long long kda_groups, mla_groups, expert_groups; /* 0: as the planner does, or chosen */
	long long head_rows;				 /* 0: to be chosen */
	const char *machine;				 /* file; NULL: where it is looked for */
	enum k3_device device;				 /* that it is chosen for */
};

/**
 * Reads the machine and writes the cut into options; what was to be chosen is chosen, said, and
 * stands in cut as a number afterwards.
 * @param machine  out; options point to it
 */
int k3_session_cut(struct k3_plan_options *options, struct k3_machine *machine, struct k3_cut *cut,
		   const struct k3_config *config, size_t tokens);

/** Where the user says nothing about activations: on GPUs that may not hold everything, as many
 * layers recompute as it takes, because that costs less than moving data to main memory and back.
 */
int k3_session_squeeze(struct k3_plan_options *options, const struct k3_config *config,
		       const struct k3_run_shape *shape);
/**
 * Starts StarPU, makes the model's handles. Values are not set: run k3_session_init or load a
 * checkpoint.
 * @param options  what says that they are for GPUs follows from the runtime's device
 * @param runtime  device, transport, window and trace; NULL: CPUs, none.  With a transport the
 *                 plans communicate on one rank too; mesh is set here
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
/** Can the model take the tokens and images of an open data set, with these ids and frames?
 * @return K3_OK, K3_EINVAL (logged) */
int k3_session_check_file(const struct k3_config *config, const struct k3_k3t *file,
			  const char *path);
/** Patches that a vision tile must hold for all images: of a merge row, and more where an image
 * would have too many tiles (k3_vision_least_patches). */
uint64_t k3_session_least_tile(const struct k3_k3t *file);
/** Do vision tiles of so many patches take all images? @return K3_OK, K3_EINVAL (logged) */
int k3_session_check_tiles(const struct k3_k3t *file, const char *path, uint64_t tile_patches);
/** Can the dataset be read, has the model all of its tokens, do its images fit in microbatches of
 * `tokens` and in the plan's tiles, and counts the loss of any token?
 * @return K3_OK, or what is refused, logged with both values */
int k3_session_check_data(const struct k3_session *session, const char *data_path, size_t tokens);
/** Loss over a dataset, once, in microbatches of `tokens`; drained. The mean is taken over labels,
 * not over batches. */
int k3_session_eval(struct k3_session *session, const char *data_path, size_t tokens,
		    struct k3_eval_result *result);

#endif
