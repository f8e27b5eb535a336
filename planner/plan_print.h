/* Plans for people and programs: the report of a step, the graph as JSON and as a picture. */
#ifndef K3_PLANNER_PLAN_PRINT_H
#define K3_PLANNER_PLAN_PRINT_H
#include <stdio.h>

#include "plan_stats.h"

struct k3_plan_report {
	const struct k3_plan_stats *stats;  /* counts of one rank */
	const struct k3_memory_use *memory; /* of the rank that needs most */
	uint32_t ranks_checked;		    /* ranks whose order of communication was proved */
	uint64_t limit_bytes;		    /* of each memory node; 0: none was given */
	bool critical_path;		    /* list its tasks */
};

/** Does the bound of the report's memory stay within its limit? */
bool k3_plan_fits(const struct k3_plan_report *report);

/** For people: tables per layer, family and pass, critical path, memory, communication, and the
 * line "fits: yes" or "fits: no" when there is a limit.  @return K3_OK, K3_EIO (not logged) */
int k3_plan_print(FILE *out, const struct k3_plan_report *report);

/**
 * The same for programs: tab-separated, header first.  Columns:
 *
 *   table name kind tasks elems flops bytes cost_us critical_tasks critical_us
 *
 * "-" where a number makes no sense.  Rows by table, in this order:
 *   step    all; parameters (elems: of the whole model); activations (kind: the policy)
 *   pass    forward, backward, optimizer, recompute
 *   family  those that have tasks
 *   layer   0 .. layers-1, kind kda_dense, kda_moe, mla_dense, mla_moe; none: tasks of no layer
 *   tower   0 .. blocks-1, kind block; around: embedding, projector, scatter (with images)
 *   plan    first, next, end; kind: how often it runs; tasks, and critical_us of one run
 *   path    tasks of the critical path (when asked for): task, kind: plan; critical_us: length of
 *           its plan's chain up to here
 *   comm    communicator, kind: operation; elems and bytes per member
 *   memory  node (main); kind: persistent_, slots_, high_water_ and the kind of data, then
 *           persistent, slots, bound, high_water, limit, missing
 *   ranks   checked, all (tasks: how many)
 *   fits    yes, no (when there is a limit)
 *
 * @return K3_OK, K3_EIO (not logged)
 */
int k3_plan_tsv(FILE *out, const struct k3_plan_report *report);

/** "parameters", "activations", ...: a kind of data in words, without spaces. */
const char *k3_data_kind_name(enum k3_data_kind kind);
const char *k3_pass_name(enum k3_pass pass);

/** The plan as JSON: totals, options, communicators, slots, tiles, data, tasks with their accesses
 * and the tasks they wait for. @return K3_OK, K3_EIO (not logged), K3_ENOMEM */
int k3_plan_json(FILE *out, const struct k3_plan *plan);

/* Layers a picture shows; all: first = -1. */
struct k3_dot_layers {
	int first, last;
};

/**
 * Graphviz digraph: a cluster per layer, a box per task in its family's colour, every edge that
 * StarPU will see.  A solid edge hands on a value; a dashed one only orders (a place in memory is
 * used again).
 *
 * With some layers alone, an edge from or to a task of another layer ends in a stub of the task
 * that is shown: text that lists the layers and passes at the other end, one stub for values and
 * one for mere order in each direction.
 *
 * @param layers  NULL: all
 * @return K3_OK, K3_EIO (not logged), K3_ENOMEM
 */
int k3_plan_dot(FILE *out, const struct k3_plan *plan, const struct k3_dot_layers *layers);

#endif
