/* Numbers of a step: its plans are built, added here and destroyed one at a time. */
#ifndef K3_PLANNER_PLAN_STATS_H
#define K3_PLANNER_PLAN_STATS_H
#include "plan.h"

struct k3_count {
	uint64_t n_tasks;
	double flops, bytes, cost_us; /* of the plan's own cost model: one core */
	uint64_t critical_tasks;      /* of these tasks, those on the critical path */
	double critical_us;
};

/* One operation on one communicator; elements and bytes are those of a member. */
struct k3_comm_count {
	char comm[32]; /* name of the communicator */
	uint32_t n_members;
	enum k3_op op;
	uint64_t n_tasks, elems, bytes;
};

/* A task of the critical path; copied, as the plan may be gone. */
struct k3_path_task {
	char name[64];
	uint32_t plan; /* index in plan[] */
	enum k3_op op;
	int layer;
	double flops, bytes, cost_us;
	double end_us; /* length of its plan's chain up to here, the task included */
};

/* A plan that was added. */
struct k3_plan_count {
	const char *name; /* "first", "next" microbatch, "end" of the step; "setup" */
	uint64_t times;	  /* how often the step runs it */
	uint64_t n_tasks; /* of one run, like the following */
	double critical_us;
};

/* Sums over the plans of a step, on one rank.  The critical path of a step is that of its plans one
 * after the other, each as often as it runs. */
struct k3_plan_stats {
	const struct k3_model *model;
	struct k3_count total, family[K3_N_FAMILIES], pass[K3_N_PASSES];
	struct k3_count *layer; /* [layers + 1]; the last: tasks of no layer */
	struct k3_count *tower; /* [vision layers + 1]: its blocks; the last: what is around them */
	size_t n_comms;
	struct k3_comm_count *comm; /* in the order of the first use */
	size_t n_plans;
	struct k3_plan_count *plan;
	size_t n_path;
	struct k3_path_task *path;
	size_t n_tokens, n_tiles, own_tiles; /* of the largest microbatch; 0: there was none */
};

/** @return K3_OK, K3_ENOMEM */
int k3_plan_stats_init(struct k3_plan_stats *stats, const struct k3_model *model);
/** Adds a plan that runs `times` times a step. @return K3_OK, K3_ENOMEM */
int k3_plan_stats_add(struct k3_plan_stats *stats, const struct k3_plan *plan, uint64_t times);
void k3_plan_stats_fini(struct k3_plan_stats *stats);

/** What a plan does: "first" or "next" microbatch, "end" of a step, "setup". */
const char *k3_plan_name(const struct k3_plan *plan);

/** "kda", "mla" and whether the layer's feed-forward part is a mixture of experts. */
const char *k3_layer_attention(const struct k3_config *config, uint32_t layer);
bool k3_layer_is_moe(const struct k3_config *config, uint32_t layer);

/* Memory of one rank by kind of data, on one memory node: main memory, or a GPU that holds a copy
 * of everything. */
struct k3_memory_use {
	struct k3_memory memory; /* the bound */
	uint64_t persist_bytes[K3_N_DATA_KINDS];
	/* Slots by the kind that holds them longest, in positions: slots are shared by data of all
	 * kinds, so this is how the bound is spent, not what one kind needs alone. */
	uint64_t slot_bytes[K3_N_DATA_KINDS];
	/* High-water mark of short-lived data in submission order, each datum for its lifetime:
	 * most of each kind, and most of all together.  A run may need more, up to the bound. */
	uint64_t peak_bytes[K3_N_DATA_KINDS], peak_all_bytes;
	size_t n_classes;
	struct k3_slot_class *cls;
};
void k3_memory_use_init(struct k3_memory_use *use, const struct k3_model *model);
/** @return K3_OK, K3_ENOMEM */
int k3_memory_use_add(struct k3_memory_use *use, const struct k3_plan *plan);
void k3_memory_use_fini(struct k3_memory_use *use);

#endif
