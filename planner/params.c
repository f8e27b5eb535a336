/* The parameter table of model.md 11.  The trap: experts are stacked, so one parameter stands for
 * many checkpoint tensors, and layer 0's mixer pair exists in checkpoints but not in the model. */
#include "params.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/grid.h"
#include "../common/log.h"
#include "../common/status.h"

struct table {
	struct k3_params *params;
	size_t cap;
	size_t block_bytes, expert_groups;
	int status;
};

/* A parameter of the table: a matrix [rows, cols], or with rows 0 a vector of cols elements. */
static struct k3_param *
add(struct table *t, enum k3_role role, int layer, enum k3_unit unit, size_t rows, size_t cols,
    const char *fmt, ...)
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

static void
set_dims(struct k3_param *p, uint32_t n, uint64_t d0, uint64_t d1, uint64_t d2, uint64_t d3)
{
	if (!p)
		return;
	p->n_dims = n;
	p->dims[0] = d0;
	p->dims[1] = d1;
	p->dims[2] = d2;
	p->dims[3] = d3;
}

static void
set_init(struct k3_param *p, enum k3_init_kind init, double scale, bool keep_f32)
{
	if (!p)
		return;
	p->init = init;
	p->init_scale = scale;
	p->keep_f32 = keep_f32;
}

#define LAYER "language_model.model.layers.%d."

/* Mixer vectors start at zero: uniform weights over depth (model.md 1.3). */
static void
add_mixers(struct table *t, int l, size_t d)
{
	if (l > 0) {
		add(t, K3_P_ATTN_RES_NORM, l, K3_UNIT_LAYER, 0, d,
		    LAYER "self_attention_res_norm.weight", l);
		struct k3_param *p = add(t, K3_P_ATTN_RES_PROJ, l, K3_UNIT_LAYER, 0, d,
					 LAYER "self_attention_res_proj.weight", l);
		set_dims(p, 2, 1, d, 0, 0);
		set_init(p, K3_INIT_ZERO, 0.02, false);
	}
	add(t, K3_P_FFN_RES_NORM, l, K3_UNIT_LAYER, 0, d, LAYER "mlp_res_norm.weight", l);
	struct k3_param *p =
		add(t, K3_P_FFN_RES_PROJ, l, K3_UNIT_LAYER, 0, d, LAYER "mlp_res_proj.weight", l);
	set_dims(p, 2, 1, d, 0, 0);
	set_init(p, K3_INIT_ZERO, 0.02, false);
}

static void
add_kda(struct table *t, const struct k3_config *c, int l)
{
	size_t d = c->width, p = (size_t)c->kda_heads * c->kda_dim, taps = c->conv_taps;
	static const char *const qkv[] = {"q", "k", "v"};

	for (int i = 0; i < 3; i++)
		add(t, K3_P_KDA_Q + (unsigned)i, l, K3_UNIT_LAYER, p, d,
		    LAYER "self_attn.%s_proj.weight", l, qkv[i]);
	for (int i = 0; i < 3; i++) {
		struct k3_param *conv = add(t, K3_P_KDA_CQ + (unsigned)i, l, K3_UNIT_LAYER, p, taps,
					    LAYER "self_attn.%s_conv1d.weight", l, qkv[i]);
		/* a few floats a row: the kernels take it whole, whatever block_bytes is */
		conv->block_rows = conv->rows;
		conv->n_blocks = 1;
		set_dims(conv, 3, p, 1, taps, 0);
		set_init(conv, K3_INIT_NORMAL, 0.02, true);
	}
	add(t, K3_P_KDA_FA, l, K3_UNIT_LAYER, c->kda_dim, d, LAYER "self_attn.f_a_proj.weight", l);
	add(t, K3_P_KDA_FB, l, K3_UNIT_LAYER, p, c->kda_dim, LAYER "self_attn.f_b_proj.weight", l);
	add(t, K3_P_KDA_B, l, K3_UNIT_LAYER, c->kda_heads, d, LAYER "self_attn.b_proj.weight", l);
	add(t, K3_P_KDA_G, l, K3_UNIT_LAYER, p, d, LAYER "self_attn.g_proj.weight", l);
	set_init(add(t, K3_P_KDA_ON, l, K3_UNIT_LAYER, 0, c->kda_dim,
		     LAYER "self_attn.o_norm.weight", l),
		 K3_INIT_ONE, 0, true);
	add(t, K3_P_KDA_O, l, K3_UNIT_LAYER, d, p, LAYER "self_attn.o_proj.weight", l);
	struct k3_param *a = add(t, K3_P_KDA_ALOG, l, K3_UNIT_LAYER, 0, c->kda_heads,
				 LAYER "self_attn.A_log", l);
	set_dims(a, 1, (c->kda_heads + 127) / 128 * 128, 0, 0, 0);
	set_init(a, K3_INIT_LOG_UNIFORM, 0, true);
	set_init(add(t, K3_P_KDA_DT, l, K3_UNIT_LAYER, 0, p, LAYER "self_attn.dt_bias", l),
		 K3_INIT_ZERO, 0, true);
}

static void
add_mla(struct table *t, const struct k3_config *c, int l)
{
	size_t d = c->width, h = c->heads, kq = c->nope_dim + c->rope_dim;

	add(t, K3_P_MLA_QA, l, K3_UNIT_LAYER, c->q_rank, d, LAYER "self_attn.q_a_proj.weight", l);
	add(t, K3_P_MLA_QN, l, K3_UNIT_LAYER, 0, c->q_rank, LAYER "self_attn.q_a_layernorm.weight",
	    l);
	add(t, K3_P_MLA_QB, l, K3_UNIT_LAYER, h * kq, c->q_rank, LAYER "self_attn.q_b_proj.weight",
	    l);
	add(t, K3_P_MLA_KVA, l, K3_UNIT_LAYER, c->kv_rank + c->rope_dim, d,
	    LAYER "self_attn.kv_a_proj_with_mqa.weight", l);
	add(t, K3_P_MLA_KN, l, K3_UNIT_LAYER, 0, c->kv_rank,
	    LAYER "self_attn.kv_a_layernorm.weight", l);
	add(t, K3_P_MLA_KVB, l, K3_UNIT_LAYER, h * (c->nope_dim + c->v_dim), c->kv_rank,
	    LAYER "self_attn.kv_b_proj.weight", l);
	add(t, K3_P_MLA_GATE, l, K3_UNIT_LAYER, h * c->v_dim, d, LAYER "self_attn.g_proj.weight",
	    l);
	add(t, K3_P_MLA_O, l, K3_UNIT_LAYER, d, h * c->v_dim, LAYER "self_attn.o_proj.weight", l);
}

/* A stack of experts: row blocks are groups of whole experts. */
static void
stack(struct table *t, struct k3_param *p, size_t experts, size_t rows_each)
{
	size_t per_bytes = rows_each * (p ? p->cols : 1) * sizeof(float);
	size_t groups = t->expert_groups ? t->expert_groups : experts > 1 ? 2 : 1;
	size_t each = (experts + groups - 1) / groups;

	if (!p)
		return;
	if (!t->expert_groups && each * per_bytes > t->block_bytes)
		each = t->block_bytes / per_bytes > 0 ? t->block_bytes / per_bytes : 1;
	p->experts_per_block = each;
	p->block_rows = each * rows_each;
	p->n_blocks = (experts + each - 1) / each;
	p->init = K3_INIT_NORMAL;
	p->n_dims = 0;
}

static void
add_moe(struct table *t, const struct k3_config *c, int l)
{
	size_t d = c->width, r = c->latent, f = c->expert_ffn, e = c->experts,
	       fs = (size_t)c->shared_experts * f;

	add(t, K3_P_ROUTER, l, K3_UNIT_LAYER, e, d, LAYER "block_sparse_moe.gate.weight", l);
	add(t, K3_P_LATENT_DOWN, l, K3_UNIT_LAYER, r, d,
	    LAYER "block_sparse_moe.routed_expert_down_proj.weight", l);
	add(t, K3_P_LATENT_UP, l, K3_UNIT_LAYER, d, r,
	    LAYER "block_sparse_moe.routed_expert_up_proj.weight", l);
	add(t, K3_P_LATENT_NORM, l, K3_UNIT_LAYER, 0, r,
	    LAYER "block_sparse_moe.routed_expert_norm.weight", l);
	add(t, K3_P_SHARED_W1, l, K3_UNIT_LAYER, fs, d,
	    LAYER "block_sparse_moe.shared_experts.gate_proj.weight", l);
	add(t, K3_P_SHARED_W3, l, K3_UNIT_LAYER, fs, d,
	    LAYER "block_sparse_moe.shared_experts.up_proj.weight", l);
	add(t, K3_P_SHARED_W2, l, K3_UNIT_LAYER, d, fs,
	    LAYER "block_sparse_moe.shared_experts.down_proj.weight", l);
	stack(t,
	      add(t, K3_P_EXPERT_W13, l, K3_UNIT_LAYER, e * 2 * f, r,
		  LAYER "block_sparse_moe.experts", l),
	      e, 2 * f);
	stack(t,
	      add(t, K3_P_EXPERT_W2, l, K3_UNIT_LAYER, e * r, f, LAYER "block_sparse_moe.experts",
		  l),
	      e, r);
	/* both stacks are cut alike: the larger block decides */
	struct k3_params *ps = t->params;
	if (t->status == K3_OK) {
		struct k3_param *a = &ps->param[ps->n - 2], *b = &ps->param[ps->n - 1];
		size_t each = a->experts_per_block < b->experts_per_block ? a->experts_per_block
									  : b->experts_per_block;
		a->experts_per_block = b->experts_per_block = each;
		a->block_rows = each * 2 * f;
		b->block_rows = each * r;
		a->n_blocks = b->n_blocks = (e + each - 1) / each;
	}
}

static void
add_layer(struct table *t, const struct k3_config *c, int l)
{
	size_t d = c->width;

	add(t, K3_P_ATTN_NORM, l, K3_UNIT_LAYER, 0, d, LAYER "input_layernorm.weight", l);
	add(t, K3_P_FFN_NORM, l, K3_UNIT_LAYER, 0, d, LAYER "post_attention_layernorm.weight", l);
	add_mixers(t, l, d);
	if (c->is_mla[l])
		add_mla(t, c, l);
	else
		add_kda(t, c, l);
	if ((uint32_t)l < c->first_dense) {
		add(t, K3_P_FFN_W1, l, K3_UNIT_LAYER, c->dense_ffn, d, LAYER "mlp.gate_proj.weight",
		    l);
		add(t, K3_P_FFN_W3, l, K3_UNIT_LAYER, c->dense_ffn, d, LAYER "mlp.up_proj.weight",
		    l);
		add(t, K3_P_FFN_W2, l, K3_UNIT_LAYER, d, c->dense_ffn, LAYER "mlp.down_proj.weight",
		    l);
	} else {
		add_moe(t, c, l);
	}
}

#define TOWER "vision_tower."

static void
add_vision(struct table *t, const struct k3_config *c)
{
	const struct k3_vision_config *v = &c->vision;
	size_t w = v->width, m = (size_t)v->merge_h * v->merge_w * w,
	       pixels = k3_patch_values(v->patch);
	const enum k3_unit u = K3_UNIT_VISION;

	set_dims(add(t, K3_P_VIT_PATCH, -1, u, w, pixels, TOWER "patch_embed.proj.weight"), 4, w, 3,
		 v->patch, v->patch);
	struct k3_param *pos = add(t, K3_P_VIT_POS, -1, u, (size_t)v->table_h * v->table_w, w,
				   TOWER "patch_embed.pos_emb.weight");
	set_dims(pos, 3, v->table_h, v->table_w, w, 0);
	set_init(pos, K3_INIT_NORMAL_FREE, 1.0, false);
	for (int i = 0; i < (int)v->layers; i++) {
		const char *const block = TOWER "encoder.blocks.%d.%s.weight";
		add(t, K3_P_VIT_NORM0, i, u, 0, w, block, i, "norm0");
		add(t, K3_P_VIT_NORM1, i, u, 0, w, block, i, "norm1");
		add(t, K3_P_VIT_QKV, i, u, 3 * (size_t)v->qkv_width, w, block, i, "wqkv");
		add(t, K3_P_VIT_O, i, u, w, v->qkv_width, block, i, "wo");
		set_init(add(t, K3_P_VIT_FC0, i, u, v->ffn, w, block, i, "mlp.fc0"), K3_INIT_NORMAL,
			 sqrt(2.0 / (double)w), false);
		set_init(add(t, K3_P_VIT_FC1, i, u, w, v->ffn, block, i, "mlp.fc1"), K3_INIT_NORMAL,
			 sqrt(2.0 / v->ffn), false);
	}
	add(t, K3_P_VIT_FINAL_NORM, -1, u, 0, w, TOWER "encoder.final_layernorm.weight");
	set_init(add(t, K3_P_PROJ_0, -1, u, m, m, "mm_projector.proj.0.weight"), K3_INIT_NORMAL,
		 sqrt(2.0 / (double)m), false);
	set_init(add(t, K3_P_PROJ_2, -1, u, c->width, m, "mm_projector.proj.2.weight"),
		 K3_INIT_NORMAL, sqrt(2.0 / (double)m), false);
	add(t, K3_P_PROJ_NORM, -1, u, 0, c->width, "mm_projector.post_norm.weight");
}

/* Checkpoint tensors that belong to a parameter's place in the order. */
static size_t
tensors_of(const struct k3_params *ps, const struct k3_param *p)
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

int
k3_params_init(struct k3_params *params, const struct k3_config *config, bool vision,
	       size_t block_bytes, size_t expert_groups)
{
	struct table t = {
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
	set_init(add(&t, K3_P_EMBED, -1, K3_UNIT_EMBED, c->vocab, d,
		     "language_model.model.embed_tokens.weight"),
		 K3_INIT_NORMAL_FREE, 1.0, false);
	for (int l = 0; l < (int)c->layers; l++)
		add_layer(&t, c, l);
	add(&t, K3_P_OUT_RES_NORM, -1, K3_UNIT_ROOT, 0, d,
	    "language_model.model.output_attn_res_norm.weight");
	struct k3_param *rho = add(&t, K3_P_OUT_RES_PROJ, -1, K3_UNIT_ROOT, 0, d,
				   "language_model.model.output_attn_res_proj.weight");
	set_dims(rho, 2, 1, d, 0, 0);
	set_init(rho, K3_INIT_ZERO, 0.02, false);
	add(&t, K3_P_NORM, -1, K3_UNIT_HEAD, 0, d, "language_model.model.norm.weight");
	set_init(add(&t, K3_P_HEAD, -1, K3_UNIT_HEAD, c->vocab, d, "language_model.lm_head.weight"),
		 K3_INIT_NORMAL_3S, 1.0 / sqrt((double)d), false);
	if (vision && c->vision.present)
		add_vision(&t, c);
	K3_TRY(t.status);
	params->first_tensor = calloc(params->n + 1, sizeof(*params->first_tensor));
	if (!params->first_tensor)
		K3_TRY(K3_ENOMEM);
	for (size_t i = 0; i < params->n; i++)
		params->first_tensor[i + 1] =
			params->first_tensor[i] + tensors_of(params, &params->param[i]);
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
			 LAYER "block_sparse_moe.gate.e_score_correction_bias", p->layer);
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
		snprintf(tensor->name, sizeof(tensor->name), LAYER "self_attention_res_%s.weight",
			 0, nth == 1 ? "norm" : "proj");
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
k3_params_overlap(const struct k3_ckpt_tensor *tensor, size_t row0, size_t rows, size_t *first)
{
	size_t end = row0 + rows, tensor_end = tensor->row0 + tensor->rows;

	*first = tensor->row0 > row0 ? tensor->row0 : row0;
	if (end > tensor_end)
		end = tensor_end;
	return tensor->kind == K3_CKPT_PARAM && end > *first ? end - *first : 0;
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
