/* What the tests of vision plans share: preset tiny with the tower of preset small (two blocks,
 * videos of up to four frames), microbatches with images written as text. */
#ifndef K3_TESTS_VISION_CASE_H
#define K3_TESTS_VISION_CASE_H
#include "plan_case.h"

enum { VISION_CASE_ITEMS = 256 };

/* A microbatch of one document. */
struct vision_case {
	struct k3_layout layout;
	struct k3_grid grid[VISION_CASE_ITEMS];
	uint32_t row[VISION_CASE_ITEMS];
	int32_t *ids;
};

/** Images "1x4x4@0 2x6x2@10": frames, rows, columns of patches, first row of the stream. */
void vision_case_init(struct vision_case *v, size_t n_tokens, const char *images);
void vision_case_fini(struct vision_case *v);
/** Adds an image; its place follows the last one's when row is UINT32_MAX. */
void vision_case_add(struct vision_case *v, struct k3_grid grid, uint32_t row);

/** Defaults with the tower. */
struct k3_plan_options vision_case_options(void);
void vision_case_config(struct k3_config *config);
/** Of the options' mesh `forced` alone counts. */
struct k3_model *vision_case_model(const char *mesh, uint32_t rank,
				   const struct k3_plan_options *options);

/** Plans, proves the plan and gives it; images as above. */
struct k3_plan *vision_case_plan(const struct k3_model *model, size_t n_tokens, const char *images,
				 struct k3_microbatch what);

/** The n-th task of an operation; NULL when there are fewer. */
const struct k3_task *vision_case_task(const struct k3_plan *plan, enum k3_op op, size_t n);
size_t vision_case_count(const struct k3_plan *plan, enum k3_op op);
/** Layout of vision tile i (vit.h); NULL when there is none. */
const int32_t *vision_case_tile(const struct k3_plan *plan, size_t i);

#endif
