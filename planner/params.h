/* The table of parameters of a model: roles, shapes, checkpoint names, initial values, row blocks.
 *
 * Sources: model.md 1.2 (counts), 1.3 (initial values), 11 (names).  Experts are stacked: per layer
 * one parameter W1|W3 [E*2F, R] (per expert W1's rows, then W3's) and one W2 [E*R, F]; a row block
 * is a group of whole experts. Every other parameter is cut in row blocks of at most block_bytes
 * (whole tensor if smaller).
 */
#ifndef K3_PLANNER_PARAMS_H
#define K3_PLANNER_PARAMS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../common/config.h"
#include "../common/op/optim.h"

/* What a parameter is for; per layer unless global. */
enum k3_role {
	/* global */
	K3_P_EMBED,
	K3_P_NORM,
	K3_P_OUT_RES_NORM,
	K3_P_OUT_RES_PROJ,
	K3_P_HEAD,
	/* every layer (ATTN_RES_* not in layer 0) */
	K3_P_ATTN_NORM,
	K3_P_FFN_NORM,
	K3_P_ATTN_RES_NORM,
	K3_P_ATTN_RES_PROJ,
	K3_P_FFN_RES_NORM,
	K3_P_FFN_RES_PROJ,
	/* KDA */
	K3_P_KDA_Q,
	K3_P_KDA_K,
	K3_P_KDA_V,
	K3_P_KDA_CQ,
	K3_P_KDA_CK,
	K3_P_KDA_CV,
	K3_P_KDA_FA,
	K3_P_KDA_FB,
	K3_P_KDA_B,
	K3_P_KDA_G,
	K3_P_KDA_ON,
	K3_P_KDA_O,
	K3_P_KDA_ALOG,
	K3_P_KDA_DT,
	/* MLA */
	K3_P_MLA_QA,
	K3_P_MLA_QN,
	K3_P_MLA_QB,
	K3_P_MLA_KVA,
	K3_P_MLA_KN,
	K3_P_MLA_KVB,
	K3_P_MLA_GATE,
	K3_P_MLA_O,
	/* dense feed-forward */
	K3_P_FFN_W1,
	K3_P_FFN_W3,
	K3_P_FFN_W2,
	/* latent mixture of experts */
	K3_P_ROUTER,
	K3_P_LATENT_DOWN,
	K3_P_LATENT_UP,
	K3_P_LATENT_NORM,
	K3_P_SHARED_W1,
	K3_P_SHARED_W3,
	K3_P_SHARED_W2,
	K3_P_EXPERT_W13,
	K3_P_EXPERT_W2,
	K3_N_TEXT_ROLES,
	/* vision tower and projector (layer = tower block) */
	K3_P_VIT_PATCH = K3_N_TEXT_ROLES,
	K3_P_VIT_POS,
	K3_P_VIT_NORM0,
	K3_P_VIT_NORM1,
	K3_P_VIT_QKV,
	K3_P_VIT_O,
	K3_P_VIT_FC0,
	K3_P_VIT_FC1,
	K3_P_VIT_FINAL_NORM,
	K3_P_PROJ_0,
	K3_P_PROJ_2,
	K3_P_PROJ_NORM,
	K3_N_ROLES
};

/* What travels together under FSDP (model.md 10). */
enum k3_unit { K3_UNIT_EMBED, K3_UNIT_LAYER, K3_UNIT_HEAD, K3_UNIT_VISION, K3_UNIT_ROOT };

struct k3_param {
	enum k3_role role;
	int layer; /* -1 for global ones */
	enum k3_unit unit;
	char name[120];	   /* checkpoint key; of expert stacks the common prefix of the keys */
	size_t rows, cols; /* as a matrix; a vector is one row */
	uint32_t n_dims;   /* shape in the checkpoint (not of expert stacks) */
	uint64_t dims[4];
	bool keep_f32; /* stored as fp32 in a bf16 checkpoint */
	enum k3_init_kind init;
	double init_scale;
	size_t block_rows; /* rows of a block; the last may be short */
	size_t n_blocks;
	size_t experts_per_block; /* of expert stacks, else 0 */
};

struct k3_params {
	const struct k3_config *config;
	size_t n;
	struct k3_param *param; /* checkpoint order */
	int *index;		/* [layers + 1][roles] -> parameter or -1 */
	size_t *first_tensor;	/* [n + 1] checkpoint tensors before each parameter's */
	uint64_t n_elems;	/* trained parameters */
};

/**
 * Builds the table.
 * @param vision       with the vision tower (if the configuration has one)
 * @param block_bytes  most bytes (fp32) of a row block, >= one row
 * @param expert_groups  groups the experts of a layer are cut in, 1..E; 0: chosen (two when E > 1,
 * more when a group would exceed block_bytes)
 * @return K3_OK, K3_ENOMEM, K3_EINVAL
 */
int k3_params_init(struct k3_params *params, const struct k3_config *config, bool vision,
		   size_t block_bytes, size_t expert_groups);
void k3_params_fini(struct k3_params *params);

/** Is it a matrix that bf16 mode reads as a bf16 copy?  Vectors, and what the release keeps in fp32, are
 * read as they are. */
bool k3_param_is_matrix(const struct k3_param *param);

/** Index of a parameter, -1 when the layer does not have it. layer -1 for global roles. */
int k3_params_find(const struct k3_params *params, enum k3_role role, int layer);

/* One tensor of a checkpoint, as a part of a parameter, a buffer or a constant. */
enum k3_ckpt_kind {
	K3_CKPT_PARAM, /* rows row0 .. row0+rows-1 of param */
	K3_CKPT_BIAS,  /* router selection bias of `layer` */
	K3_CKPT_ONES,  /* layer 0's unused mixer norm: written as ones, ignored on reading */
	K3_CKPT_ZEROS  /* layer 0's unused mixer vector: written as zeros */
};
struct k3_ckpt_tensor {
	char name[160];
	enum k3_ckpt_kind kind;
	int param, layer;
	size_t row0, rows; /* of the parameter's matrix */
	uint32_t n_dims;
	uint64_t dims[4]; /* shape in the file; A_log is padded with zeros to a multiple of 128 */
	uint64_t n_elems; /* elements that belong to the parameter (without padding) */
	bool keep_f32;
};

/** Number of tensors in a checkpoint of this model, constants and buffers included. */
size_t k3_params_n_tensors(const struct k3_params *params);
/** The i-th, i < n_tensors, in the order of the model. */
void k3_params_tensor(const struct k3_params *params, size_t i, struct k3_ckpt_tensor *tensor);

/** First tensor of a parameter that may have rows from row0 on: those before it end earlier, and
 * all up to first_tensor[param + 1] follow in the order of their rows. */
size_t k3_params_tensor_at(const struct k3_params *params, size_t param, size_t row0);

/**
 * Rows that a tensor and a row block (or the shard of one) have in common.
 * @param row0   first row of the block in its parameter; rows: how many it has
 * @param first  out: first common row, in rows of the parameter
 * @return number of common rows; 0: none, or the tensor is no part of a parameter
 */
size_t k3_params_overlap(const struct k3_ckpt_tensor *tensor, size_t row0, size_t rows,
			 size_t *first);

/** Trained parameters of text and vision, counted from the configuration (model.md 1.2). */
void k3_params_count(const struct k3_config *config, uint64_t *text, uint64_t *routed_experts,
		     uint64_t *vision, uint64_t *active);

#endif
