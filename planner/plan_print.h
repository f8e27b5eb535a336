/* Plans for people and programs: numbers of a step, the graph as JSON and as a picture. */
#ifndef K3_PLANNER_PLAN_PRINT_H
#define K3_PLANNER_PLAN_PRINT_H
#include <stdio.h>

#include "plan.h"

struct k3_count {
	uint64_t n_tasks;
	double flops, bytes, cost_us; /* of the plan's own cost model: one core */
};

struct k3_comm_count {
	uint64_t n_tasks, elems, bytes; /* elements and bytes per member */
};

/* Sums over the plans of a step, on one rank. */
struct k3_plan_stats {
	const struct k3_model *model;
	struct k3_count total, family[K3_N_FAMILIES];
	struct k3_count *layer; /* [layers + 1]; the last: tasks of no layer */
	struct k3_comm_count comm[K3_N_OPS];
	double critical_us; /* longest chain of tasks, plans one after the other */
	uint64_t persist_bytes[K3_N_DATA_KINDS]; /* of this rank */
	uint64_t peak_bytes[K3_N_DATA_KINDS]; /* short-lived data alive at once in submission order,
						 most over the plans */
	uint64_t peak_all_bytes;
};

/** @return K3_OK, K3_ENOMEM */
int k3_plan_stats_init(struct k3_plan_stats *stats, const struct k3_model *model);
/** Adds a plan that runs `times` times a step. @return K3_OK, K3_ENOMEM */
int k3_plan_stats_add(struct k3_plan_stats *stats, const struct k3_plan *plan, uint64_t times);
void k3_plan_stats_fini(struct k3_plan_stats *stats);

/** Tab-separated table: header, then rows of (table, name, tasks, flops, bytes, cost_us); "-" where
 * a number makes no sense. */
void k3_plan_print(FILE *out, const struct k3_plan_stats *stats, const struct k3_memory *memory);

/** The plan as JSON: totals, communicators, slots, data, tasks with their accesses. @return K3_OK,
 * K3_EIO (not logged), K3_ENOMEM */
int k3_plan_json(FILE *out, const struct k3_plan *plan);
/** Graphviz digraph, one cluster per layer, colours by family, every edge. @return K3_OK, K3_EIO
 * (not logged), K3_ENOMEM */
int k3_plan_dot(FILE *out, const struct k3_plan *plan);

#endif
