/* A parameter table in the making (inside planner/). */
#ifndef K3_PLANNER_PARAMS_TABLE_H
#define K3_PLANNER_PARAMS_TABLE_H
#include "params.h"

/* Tensors of a layer are named so. */
#define K3I_PARAMS_LAYER "language_model.model.layers.%d."

struct k3i_params_table {
	struct k3_params *params;
	size_t cap;
	size_t block_bytes, expert_groups;
	int status;
};

/** A parameter of the table: a matrix [rows, cols], or with rows 0 a vector of cols elements;
 * named as printf does. NULL when memory is out; what follows takes that. */
struct k3_param *k3i_params_add(struct k3i_params_table *t, enum k3_role role, int layer,
				enum k3_unit unit, size_t rows, size_t cols, const char *fmt, ...)
	__attribute__((format(printf, 7, 8)));
/** Its shape in a checkpoint. */
void k3i_param_set_dims(struct k3_param *p, uint32_t n, uint64_t d0, uint64_t d1, uint64_t d2,
			uint64_t d3);
void k3i_param_set_init(struct k3_param *p, enum k3_init_kind init, double scale, bool keep_f32);
/** Parameters of a layer of the text model. */
void k3i_params_add_layer(struct k3i_params_table *t, const struct k3_config *c, int l);

/** Checkpoint tensors that belong to a parameter's place in the order. */
size_t k3i_params_tensors_of(const struct k3_params *ps, const struct k3_param *p);

#endif
