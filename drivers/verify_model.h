/* A model file being verified (inside drivers/). */
#ifndef K3_DRIVERS_VERIFY_MODEL_H
#define K3_DRIVERS_VERIFY_MODEL_H
#include "verify.h"

/* Images and videos of the file. */
struct k3i_verify_items {
	size_t n, n_patches, n_merged;
	struct k3_grid *grid;
	uint32_t *row;
	const float **pixels; /* into all */
	float *all;
};

struct k3i_verify_case {
	const struct k3_st *st;
	const struct k3_verify_options *options;
	struct k3_verify_report *report;
	struct k3_session session;
	struct k3_config config;
	struct k3_plan *plan;
	size_t t; /* tokens of the file */
	int32_t *ids, *labels, *docs;
	int32_t **forced; /* per MoE layer */
	struct k3i_verify_items items;
};

/** Rows of a kept datum, text tile after text tile (and sub-tile after sub-tile), as malloc'ed
 * doubles. */
double *k3i_verify_gather(struct k3i_verify_case *c, const char *what, int layer, size_t *n);
/** Compares all that the file holds. */
void k3i_verify_compare(struct k3i_verify_case *c);
/** The routes of a layer. */
void k3i_verify_routes(struct k3i_verify_case *c, int layer);

/** Reads grids and pixels and finds the items' rows among the ids.
 * @return K3_OK, K3_EFORMAT, K3_EINVAL (logged), K3_ENOMEM */
int k3i_verify_read_items(struct k3i_verify_case *c);
void k3i_verify_free_items(struct k3i_verify_case *c);
/** Activations of the tower, and their gradients. */
void k3i_verify_vision_forward(struct k3i_verify_case *c);
void k3i_verify_vision_backward(struct k3i_verify_case *c);

#endif
