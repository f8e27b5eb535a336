/* What a run needs of memory: data that persist, and the slots of all its plans. */
#ifndef K3_PLANNER_MEMORY_H
#define K3_PLANNER_MEMORY_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct k3_model;
struct k3_plan;

/* Memory of a run: the most slots per class over its plans, plus persistent data. */
struct k3_memory {
	const struct k3_model *model;
	uint64_t persist_bytes;
	uint64_t wide_bytes;	    /* scratch of a CPU worker: what the largest task needs */
	uint64_t gpu_scratch_bytes; /* of a GPU worker; 0 when the run's shape did not ask */
	uint64_t task_bytes; /* most that the data of one task take: no node can do with less */
	uint32_t cores;	     /* CPU workers at most */
	size_t n_classes;
	struct {
		size_t bytes;
		uint32_t n;
	} * cls; /* ascending bytes */
};
/** Most that the data of one task of a plan take. */
uint64_t k3_plan_task_bytes(const struct k3_plan *plan);
void k3_memory_init(struct k3_memory *memory, const struct k3_model *model);
int k3_memory_add(struct k3_memory *memory, const struct k3_plan *plan);
void k3_memory_add_scratch(struct k3_memory *memory, uint64_t gpu_scratch_bytes);
/** Of the bound: scratch of CPU workers, one for each core; none of it lies on a GPU. */
uint64_t k3_memory_wide_bytes(const struct k3_memory *memory);
/** Bound in bytes over every order that the edges allow, per memory node. */
uint64_t k3_memory_bound(const struct k3_memory *memory);
void k3_memory_fini(struct k3_memory *memory);

/* Plans that a training run builds; documents do not matter. */
struct k3_run_shape {
	size_t tokens;	     /* of a microbatch */
	uint32_t accumulate; /* microbatches of a step */
	bool evaluates;	     /* a held-out loss between steps */
	/* of a microbatch's images; 0: none.  The model's option must allow them, as it is what
	 * makes the bound hold for all images */
	uint64_t max_patches;
	/* scratch of a GPU worker for a plan (tasks/device.h); NULL: not asked for */
	size_t (*gpu_scratch)(const struct k3_plan *plan);
};
/** Memory of a run: its first microbatch, further ones, evaluation and optimizer together.
 * @return K3_OK, K3_EINVAL (more patches than the model plans for; logged) or what planning
 * returned; k3_memory_fini is legal either way */
int k3_memory_run(struct k3_memory *memory, const struct k3_model *model,
		  const struct k3_run_shape *shape);

#endif
