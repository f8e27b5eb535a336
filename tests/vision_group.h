/* The plans of a group of context-parallel ranks, and what their own vision tiles say together. */
#ifndef K3_TESTS_VISION_GROUP_H
#define K3_TESTS_VISION_GROUP_H
#include "vision_case.h"

enum { VISION_GROUP_RANKS = 8, VISION_GROUP_MERGED = 4096, VISION_GROUP_TILES = 512 };

struct vision_group {
	uint32_t ranks;
	struct vision_case v;
	struct k3_model *model[VISION_GROUP_RANKS];
	struct k3_plan *plan[VISION_GROUP_RANKS];
	/* of a merged token: item and number in it; -1: no tile has it */
	int item[VISION_GROUP_MERGED], place[VISION_GROUP_MERGED];
	uint64_t patches[VISION_GROUP_RANKS];
	/* by the number of a tile: what its owner says */
	const int32_t *layout[VISION_GROUP_TILES];
	size_t tiles[VISION_GROUP_RANKS];
};

/** Plans for each rank; a merged token that two tiles have, or a tile of two ranks, fails. */
void vision_group_init(struct vision_group *group, uint32_t ranks, const struct k3_plan_options *o,
		       size_t n_tokens, const char *images, struct k3_microbatch what);
void vision_group_fini(struct vision_group *group);
/** Arguments of the n-th task that loads a tile; NULL when there are fewer. */
const struct k3_vit_load_args *vision_group_load(const struct k3_plan *plan, size_t n);

#endif
