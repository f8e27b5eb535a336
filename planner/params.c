/* The parameter table of model.md 11. */
#include "params.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/grid.h"
#include "../common/log.h"
#include "../common/status.h"
#include "params_table.h"

struct k3_param *
k3i_params_add(struct k3i_params_table *t, enum k3_role role, int layer, enum k3_unit unit,
	       size_t rows, size_t cols, const char *fmt, ...)
{
	struct k3_params *ps = t->params;
	va_list ap;

	if (ps->n == t->cap) {
		size_t cap = t->cap ? 2 * t->cap : 256;
		struct k3_param *grown = realloc(ps->param, cap * sizeof(*grown));
		if (!grown) {
			t->status = K3_ENOMEM;
			return NULL;
		}
		ps->param = grown;
		t->cap = cap;
	}
	struct k3_param *p = &ps->param[ps->n];
	/* rows 0 means a vector: a matrix of one row is no norm and keeps both dimensions */
	bool vector = rows == 0;
	rows = vector ? 1 : rows;
	memset(p, 0, sizeof(*p));
	p->role = role;
	p->layer = layer;
	p->unit = unit;
	p->rows = rows;
	p->cols = cols;
	p->n_dims = vector ? 1 : 2;
	p->dims[0] = vector ? cols : rows;
	p->dims[1] = vector ? 0 : cols;
	p->init = vector ? K3_INIT_ONE : K3_INIT_NORMAL;
	p->init_scale = 0.02;
	va_start(ap, fmt);
	vsnprintf(p->name, sizeof(p->name), fmt, ap);
	va_end(ap);
	size_t most = t->block_bytes / (cols * sizeof(float));
	p->block_rows = most < 1 ? 1 : most < rows ? most : rows;
	p->n_blocks = (rows + p->block_rows - 1) / p->block_rows;
	ps->index[(size_t)(layer + 1) * K3_N_ROLES + role] = (int)ps->n;
	ps->n++;
	ps->n_elems += (uint64_t)rows * cols;
	return p;
}

void
k3i_param_set_dims(struct k3_param *p, uint32_t n, uint64_t d0, uint64_t d1, uint64_t d2,
		   uint64_t d3)
{
	if (!p)
		return;
	p->n_dims = n;
	p->dims[0] = d0;
	p->dims[1] = d1;
	p->dims[2] = d2;
	p->dims[3] = d3;
}

void
k3i_param_set_init(struct k3_param *p, enum k3_init_kind init, double scale, bool keep_f32)
{
	if (!p)
		return;
	p->init = init;
	p->init_scale = scale;
	p->keep_f32 = keep_f32;
}

#define TOWER "vision_tower."

static void
add_vision(struct k3i_params_table *t, const struct k3_config *c)
{
	const struct k3_vision_config *v = &c->vision;
	size_t w = v->width, m = (size_t)v->merge_h * v->merge_w * w,
	       pixels = k3_patch_values(v->patch);
	const enum k3_unit u = K3_UNIT_VISION;

	k3i_param_set_dims(k3i_params_add(t, K3_P_VIT_PATCH, -1, u, w, pixels,
					  TOWER "patch_embed.proj.weight"),
			   4, w, 3, v->patch, v->patch);
	struct k3_param *pos =
		k3i_params_add(t, K3_P_VIT_POS, -1, u, (size_t)v->table_h * v->table_w, w,
			       TOWER "patch_embed.pos_emb.weight");
	k3i_param_set_dims(pos, 3, v->table_h, v->table_w, w, 0);
	k3i_param_set_init(pos, K3_INIT_NORMAL_FREE, 1.0, false);
	for (int i = 0; i < (int)v->layers; i++) {
		const char *const block = TOWER "encoder.blocks.%d.%s.weight";
		k3i_params_add(t, K3_P_VIT_NORM0, i, u, 0, w, block, i, "norm0");
		k3i_params_add(t, K3_P_VIT_NORM1, i, u, 0, w, block, i, "norm1");
		k3i_params_add(t, K3_P_VIT_QKV, i, u, 3 * (size_t)v->qkv_width, w, block, i,
			       "wqkv");
		k3i_params_add(t, K3_P_VIT_O, i, u, w, v->qkv_width, block, i, "wo");
		k3i_param_set_init(
			k3i_params_add(t, K3_P_VIT_FC0, i, u, v->ffn, w, block, i, "mlp.fc0"),
			K3_INIT_NORMAL, sqrt(2.0 / (double)w), false);
		k3i_param_set_init(
			k3i_params_add(t, K3_P_VIT_FC1, i, u, w, v->ffn, block, i, "mlp.fc1"),
			K3_INIT_NORMAL, sqrt(2.0 / v->ffn), false);
	}
	k3i_params_add(t, K3_P_VIT_FINAL_NORM, -1, u, 0, w, TOWER "encoder.final_layernorm.weight");
	k3i_param_set_init(
		k3i_params_add(t, K3_P_PROJ_0, -1, u, m, m, "mm_projector.proj.0.weight"),
		K3_INIT_NORMAL, sqrt(2.0 / (double)m), false);
	k3i_param_set_init(
		k3i_params_add(t, K3_P_PROJ_2, -1, u, c->width, m, "mm_projector.proj.2.weight"),
		K3_INIT_NORMAL, sqrt(2.0 / (double)m), false);
	k3i_params_add(t, K3_P_PROJ_NORM, -1, u, 0, c->width, "mm_projector.post_norm.weight");
}

int
k3_params_init(struct k3_params *params, const struct k3_config *config, bool vision,
	       size_t block_bytes, size_t expert_groups)
{
	struct k3i_params_table t = {
		.params = params, .block_bytes = block_bytes, .expert_groups = expert_groups};
	const struct k3_config *c = config;
	size_t d = c->width;
	uint32_t layers = c->layers > c->vision.layers ? c->layers : c->vision.layers;
	int ret = K3_OK;

	memset(params, 0, sizeof(*params));
	params->config = config;
	params->index = malloc((layers + 1) * K3_N_ROLES * sizeof(int));
	if (!params->index)
		return K3_ENOMEM;
	for (size_t i = 0; i < (layers + 1) * (size_t)K3_N_ROLES; i++)
		params->index[i] = -1;
	if (expert_groups > c->experts) {
		k3_error("planner", "expert groups %zu: more than the %u experts", expert_groups,
			 c->experts);
		K3_TRY(K3_EINVAL);
	}
	k3i_param_set_init(k3i_params_add(&t, K3_P_EMBED, -1, K3_UNIT_EMBED, c->vocab, d,
					  "language_model.model.embed_tokens.weight"),
			   K3_INIT_NORMAL_FREE, 1.0, false);
	for (int l = 0; l < (int)c->layers; l++)
		k3i_params_add_layer(&t, c, l);
	k3i_params_add(&t, K3_P_OUT_RES_NORM, -1, K3_UNIT_ROOT, 0, d,
		       "language_model.model.output_attn_res_norm.weight");
	struct k3_param *rho = k3i_params_add(&t, K3_P_OUT_RES_PROJ, -1, K3_UNIT_ROOT, 0, d,
					      "language_model.model.output_attn_res_proj.weight");
	k3i_param_set_dims(rho, 2, 1, d, 0, 0);
	k3i_param_set_init(rho, K3_INIT_ZERO, 0.02, false);
	k3i_params_add(&t, K3_P_NORM, -1, K3_UNIT_HEAD, 0, d, "language_model.model.norm.weight");
	k3i_param_set_init(k3i_params_add(&t, K3_P_HEAD, -1, K3_UNIT_HEAD, c->vocab, d,
					  "language_model.lm_head.weight"),
			   K3_INIT_NORMAL_3S, 1.0 / sqrt((double)d), false);
	if (vision && c->vision.present)
		add_vision(&t, c);
	K3_TRY(t.status);
	params->first_tensor = calloc(params->n + 1, sizeof(*params->first_tensor));
	if (!params->first_tensor)
		K3_TRY(K3_ENOMEM);
	for (size_t i = 0; i < params->n; i++)
		params->first_tensor[i + 1] =
			params->first_tensor[i] + k3i_params_tensors_of(params, &params->param[i]);
out:
	if (ret != K3_OK)
		k3_params_fini(params);
	return ret;
}

void
k3_params_fini(struct k3_params *params)
{
	free(params->param);
	free(params->index);
	free(params->first_tensor);
	memset(params, 0, sizeof(*params));
}

bool
k3_param_is_matrix(const struct k3_param *param)
{
	/* the mixers' vectors have two dimensions in the checkpoint */
	bool mixer = param->role == K3_P_ATTN_RES_PROJ || param->role == K3_P_FFN_RES_PROJ ||
		     param->role == K3_P_OUT_RES_PROJ;

	return param->n_dims != 1 && !param->keep_f32 && !mixer;
}

int
k3_params_find(const struct k3_params *params, enum k3_role role, int layer)
{
	return params->index[(size_t)(layer + 1) * K3_N_ROLES + role];
}

void
k3_params_count(const struct k3_config *config, uint64_t *text, uint64_t *routed_experts,
		uint64_t *vision, uint64_t *active)
{
	struct k3_params params;

	*text = *routed_experts = *vision = *active = 0;
	if (k3_params_init(&params, config, true, (size_t)64 << 20, 0) != K3_OK)
		return;
	for (size_t i = 0; i < params.n; i++) {
		const struct k3_param *p = &params.param[i];
		uint64_t n = (uint64_t)p->rows * p->cols;
		if (p->unit == K3_UNIT_VISION)
			*vision += n;
		else
			*text += n;
		if (p->experts_per_block)
			*routed_experts += n;
	}
	*active = *text - *routed_experts;
	if (config->experts)
		*active += *routed_experts / config->experts * config->top_k;
	k3_params_fini(&params);
}
