/* The parts of k3_plan: what was asked, and the planning of all ranks. */
#ifndef K3_DRIVERS_PLAN_TOOL_H
#define K3_DRIVERS_PLAN_TOOL_H
#include "../planner/plan_print.h"
#include "images.h"

struct k3_plan_request {
	const struct k3_plan_options *options; /* of every rank, but for mesh.rank */
	size_t n_tokens;		       /* of a microbatch of one data-parallel rank */
	const int32_t *doc_ids;
	const struct k3_images *images; /* NULL: none */
	uint64_t accumulate;
	const char *dot, *json; /* files to write; NULL: none */
	const struct k3_dot_layers *dot_layers;
};

/* Give it back with k3_plan_result_fini, whatever k3_plan_all returned. */
struct k3_plan_result {
	struct k3_model *model;	     /* of rank 0 */
	struct k3_plan_stats stats;  /* of rank 0 */
	struct k3_memory_use memory; /* of the rank that needs most */
	uint32_t ranks_checked;
};

/**
 * Builds, checks and counts the step of every rank; on a mesh whose ranks have more than 4,000,000
 * tasks together only of the cp ranks of the first and of the last data-parallel rank.  Writes the
 * files that were asked for: a file is complete or is not there.
 * @return K3_OK or what planning, checking and writing returned (logged, but K3_ENOMEM)
 */
int k3_plan_all(const struct k3_plan_request *request, const struct k3_config *config,
		struct k3_plan_result *result);
void k3_plan_result_fini(struct k3_plan_result *result);

#endif
