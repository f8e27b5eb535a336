/* Checkpoint tensors of the parameter table.  The trap: a stack of experts is one parameter and
 * many tensors, and layer 0's mixer pair exists in checkpoints but not in the model. */
#include <stdio.h>
#include <string.h>

#include "params_table.h"

size_t
k3i_params_tensors_of(const struct k3_params *ps, const struct k3_param *p)
{
	switch (p->role) {
	case K3_P_EXPERT_W13:
		return 2 * (size_t)ps->config->experts;
	case K3_P_EXPERT_W2:
		return ps->config->experts;
	case K3_P_ROUTER:
		return 2; /* weight, selection bias */
	case K3_P_FFN_NORM:
		return p->layer == 0 ? 3 : 1; /* layer 0's unused mixer pair */
	default:
		return 1;
	}
}

size_t
k3_params_n_tensors(const struct k3_params *params)
{
	return params->first_tensor[params->n];
}

/* One expert's matrix: rows of the stack. */
static void
expert_tensor(const struct k3_config *c, const struct k3_param *p, size_t nth,
	      struct k3_ckpt_tensor *t)
{
	size_t f = c->expert_ffn, r = c->latent;
	bool w2 = p->role == K3_P_EXPERT_W2;
	size_t e = w2 ? nth : nth / 2;
	const char *which = w2 ? "w2" : nth % 2 ? "w3" : "w1";

	snprintf(t->name, sizeof(t->name), "%s.%zu.%s.weight", p->name, e, which);
	t->row0 = w2 ? e * r : e * 2 * f + nth % 2 * f;
	t->rows = w2 ? r : f;
	t->n_dims = 2;
	t->dims[0] = t->rows;
	t->dims[1] = p->cols;
}

void
k3_params_tensor(const struct k3_params *params, size_t i, struct k3_ckpt_tensor *tensor)
{
	size_t lo = 0, hi = params->n;

	while (hi - lo > 1) {
		size_t mid = (lo + hi) / 2;
		if (params->first_tensor[mid] <= i)
			lo = mid;
		else
			hi = mid;
	}
	const struct k3_param *p = &params->param[lo];
	size_t nth = i - params->first_tensor[lo];
	memset(tensor, 0, sizeof(*tensor));
	tensor->kind = K3_CKPT_PARAM;
	tensor->param = (int)lo;
	tensor->layer = p->layer;
	tensor->rows = p->rows;
	tensor->n_dims = p->n_dims;
	tensor->keep_f32 = p->keep_f32;
	memcpy(tensor->dims, p->dims, sizeof(tensor->dims));
	if (p->role == K3_P_EXPERT_W13 || p->role == K3_P_EXPERT_W2) {
		expert_tensor(params->config, p, nth, tensor);
	} else if (p->role == K3_P_ROUTER && nth == 1) {
		snprintf(tensor->name, sizeof(tensor->name),
			 K3I_PARAMS_LAYER "block_sparse_moe.gate.e_score_correction_bias",
			 p->layer);
		tensor->kind = K3_CKPT_BIAS;
		tensor->param = -1;
		tensor->n_dims = 1;
		tensor->dims[0] = params->config->experts;
		tensor->dims[1] = 0;
		tensor->rows = 1;
		tensor->keep_f32 = true;
		tensor->n_elems = params->config->experts;
		return;
	} else if (p->role == K3_P_FFN_NORM && nth > 0) {
		snprintf(tensor->name, sizeof(tensor->name),
			 K3I_PARAMS_LAYER "self_attention_res_%s.weight", 0,
			 nth == 1 ? "norm" : "proj");
		tensor->kind = nth == 1 ? K3_CKPT_ONES : K3_CKPT_ZEROS;
		tensor->param = -1;
		if (nth == 2)
			tensor->n_dims = 2;
		tensor->dims[0] = nth == 1 ? p->cols : 1;
		tensor->dims[1] = nth == 1 ? 0 : p->cols;
		tensor->n_elems = p->cols;
		return;
	} else {
		snprintf(tensor->name, sizeof(tensor->name), "%s", p->name);
	}
	tensor->n_elems = (uint64_t)tensor->rows * p->cols;
}

size_t
k3_params_tensor_at(const struct k3_params *params, size_t param, size_t row0)
{
	const struct k3_param *p = &params->param[param];
	size_t rows = p->role == K3_P_EXPERT_W13  ? params->config->expert_ffn
		      : p->role == K3_P_EXPERT_W2 ? params->config->latent
						  : 0;

	return params->first_tensor[param] + (rows ? row0 / rows : 0);
}

size_t
k3_params_overlap(const struct k3_ckpt_tensor *tensor, size_t row0, size_t rows, size_t *first)
{
	size_t end = row0 + rows, tensor_end = tensor->row0 + tensor->rows;

	*first = tensor->row0 > row0 ? tensor->row0 : row0;
	if (end > tensor_end)
		end = tensor_end;
	return tensor->kind == K3_CKPT_PARAM && end > *first ? end - *first : 0;
}
