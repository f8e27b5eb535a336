/* What is proved of plans before anything runs (architecture.md section 6). */
#ifndef K3_PLANNER_PLAN_CHECK_H
#define K3_PLANNER_PLAN_CHECK_H
#include "plan.h"

/**
 * Checks one plan alone:
 *  - accesses name data of the plan, with a legal mode; a task writes nothing that it also names
 * otherwise;
 *  - every read finds a value: written earlier in this plan, or persistent and written by an
 * earlier plan;
 *  - nothing is written in vain: short-lived data are read later, unless kept, work space, or what
 * a communication discards;
 *  - data that share a slot live one after the other, and fit;
 *  - in a microbatch: every parameter is read; with gradients, every row block gets one, and no
 * later contribution overwrites an earlier one; on a shard group of several ranks only
 * communication touches the shards.
 * @return K3_OK; K3_EPLAN (logged: the first offender, by datum and task); K3_ENOMEM
 */
int k3_plan_check(const struct k3_plan *plan);

/* Order of communication over the plans of several ranks: only their communication tasks are
 * copied, so plans can be built, added and destroyed one at a time.  A step's plans of a rank are
 * added one after the other. */
struct k3_order;
/** @param partial  ranks that are never added are left out of their groups, else each must be added
 */
struct k3_order *k3_order_create(uint32_t n_ranks, bool partial);
/** Changes that later, for a mesh that turns out to be too large. */
void k3_order_set_partial(struct k3_order *order, bool partial);
void k3_order_destroy(struct k3_order *order); /* NULL is legal */
/** Appends a plan to the rank's sequence. @return K3_OK, K3_ENOMEM, K3_EPLAN (communicators differ
 * between ranks; logged) */
int k3_order_add(struct k3_order *order, const struct k3_plan *plan, uint32_t rank);
/**
 * Every communicator's members have the same sequence of (operation, count, type), and if every
 * rank did its tasks one at a time in plan order, blocking in each communication, all would end.  A
 * point-to-point task blocks until its partner is there.
 * @return K3_OK; K3_EPLAN (logged: two ranks and the first differing task, or the cycle of ranks
 * that wait); K3_ENOMEM
 */
int k3_order_check(const struct k3_order *order);
/** Communication tasks that were added. */
uint64_t k3_order_tasks(const struct k3_order *order);

/** The same for n plans, one for each rank 0 .. n-1 of a mesh, in order. */
int k3_plan_check_order(struct k3_plan *const *plans, size_t n);

/**
 * Memory of a run against a limit per memory node.
 * @return K3_OK; K3_ELIMIT (logged: missing bytes and what would help, of what the model's options offer)
 */
int k3_plan_check_memory(const struct k3_memory *memory, uint64_t limit_bytes,
			 const struct k3_model *model);

#endif
