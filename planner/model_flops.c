/* Counted from the parameter table and the documents, not from the plan's tasks, so that a plan
 * that computes something twice is not quoted as faster. */
#include "model_flops.h"

/* Elements that one token is multiplied with. */
static double
active_elems(const struct k3_params *params)
{
	double sum = 0;

	for (size_t i = 0; i < params->n; i++) {
		const struct k3_param *p = &params->param[i];
		double n = (double)p->rows * (double)p->cols;
		bool mixer = p->role == K3_P_ATTN_RES_PROJ || p->role == K3_P_FFN_RES_PROJ ||
			     p->role == K3_P_OUT_RES_PROJ;
		if (p->experts_per_block)
			sum += n * params->config->top_k / params->config->experts;
		else if (p->n_dims == 2 && !mixer && p->role != K3_P_EMBED &&
			 p->unit != K3_UNIT_VISION)
			sum += n;
	}
	return sum;
}

/* Forward and backward over one item. */
static double
item_flops(const struct k3_config *config, const struct k3_grid *g)
{
	const struct k3_vision_config *v = &config->vision;
	double n = (double)k3_grid_patches(g), d = v->width, dq = v->qkv_width,
	       merge = (double)v->merge_h * v->merge_w, c = merge * d,
	       m = (double)g->h * g->w / merge, pixels = 3.0 * v->patch * v->patch;

	return 4 * n * d * pixels +
	       v->layers * (6 * n * (4 * d * dq + 2 * d * v->ffn) + 12 * n * n * dq) +
	       6 * m * c * (c + config->width);
}

void
k3_model_flops(struct k3_model_flops *flops, const struct k3_model *model,
	       const struct k3_layout *layout)
{
	const struct k3_config *c = &model->config;
	double tokens = 0, pairs = 0, in_doc = 0, k = c->kda_dim;
	double per_pair = 2.0 * c->heads * (double)(c->nope_dim + c->rope_dim + c->v_dim);
	double per_token = c->kda_heads * (10 * 64 * k + 6 * k * k);
	int32_t doc = 0;

	for (size_t i = 0; i < layout->n_tokens; i++) {
		if (layout->doc_ids[i] == 0)
			continue; /* padding, or a hole inside a document */
		if (layout->doc_ids[i] != doc)
			in_doc = 0;
		doc = layout->doc_ids[i];
		pairs += ++in_doc;
		tokens++;
	}
	*flops = (struct k3_model_flops){.weights = 6 * tokens * active_elems(&model->params)};
	for (uint32_t l = 0; l < c->layers; l++)
		if (c->is_mla[l])
			flops->attention += 3 * per_pair * pairs;
		else
			flops->kda += 3 * per_token * tokens;
	for (size_t i = 0; i < layout->n_items; i++)
		flops->vision += item_flops(c, &layout->grid[i]);
}
