/* Parameters of a layer of the text model, in the order of the table of model.md 11.  The trap:
 * experts are stacked, so one parameter stands for many checkpoint tensors. */
#include "../common/status.h"
#include "params_table.h"

/* Mixer vectors start at zero: uniform weights over depth (model.md 1.3). */
static void
add_mixers(struct k3i_params_table *t, int l, size_t d)
{
	if (l > 0) {
		k3i_params_add(t, K3_P_ATTN_RES_NORM, l, K3_UNIT_LAYER, 0, d,
			       K3I_PARAMS_LAYER "self_attention_res_norm.weight", l);
		struct k3_param *p =
			k3i_params_add(t, K3_P_ATTN_RES_PROJ, l, K3_UNIT_LAYER, 0, d,
				       K3I_PARAMS_LAYER "self_attention_res_proj.weight", l);
		k3i_param_set_dims(p, 2, 1, d, 0, 0);
		k3i_param_set_init(p, K3_INIT_ZERO, 0.02, false);
	}
	k3i_params_add(t, K3_P_FFN_RES_NORM, l, K3_UNIT_LAYER, 0, d,
		       K3I_PARAMS_LAYER "mlp_res_norm.weight", l);
	struct k3_param *p = k3i_params_add(t, K3_P_FFN_RES_PROJ, l, K3_UNIT_LAYER, 0, d,
					    K3I_PARAMS_LAYER "mlp_res_proj.weight", l);
	k3i_param_set_dims(p, 2, 1, d, 0, 0);
	k3i_param_set_init(p, K3_INIT_ZERO, 0.02, false);
}

static void
add_kda(struct k3i_params_table *t, const struct k3_config *c, int l)
{
	size_t d = c->width, p = (size_t)c->kda_heads * c->kda_dim, taps = c->conv_taps;
	static const char *const qkv[] = {"q", "k", "v"};

	for (int i = 0; i < 3; i++)
		k3i_params_add(t, K3_P_KDA_Q + (unsigned)i, l, K3_UNIT_LAYER, p, d,
			       K3I_PARAMS_LAYER "self_attn.%s_proj.weight", l, qkv[i]);
	for (int i = 0; i < 3; i++) {
		struct k3_param *conv =
			k3i_params_add(t, K3_P_KDA_CQ + (unsigned)i, l, K3_UNIT_LAYER, p, taps,
				       K3I_PARAMS_LAYER "self_attn.%s_conv1d.weight", l, qkv[i]);
		/* a few floats a row: the kernels take it whole, whatever block_bytes is */
		conv->block_rows = conv->rows;
		conv->n_blocks = 1;
		k3i_param_set_dims(conv, 3, p, 1, taps, 0);
		k3i_param_set_init(conv, K3_INIT_NORMAL, 0.02, true);
	}
	k3i_params_add(t, K3_P_KDA_FA, l, K3_UNIT_LAYER, c->kda_dim, d,
		       K3I_PARAMS_LAYER "self_attn.f_a_proj.weight", l);
	k3i_params_add(t, K3_P_KDA_FB, l, K3_UNIT_LAYER, p, c->kda_dim,
		       K3I_PARAMS_LAYER "self_attn.f_b_proj.weight", l);
	k3i_params_add(t, K3_P_KDA_B, l, K3_UNIT_LAYER, c->kda_heads, d,
		       K3I_PARAMS_LAYER "self_attn.b_proj.weight", l);
	k3i_params_add(t, K3_P_KDA_G, l, K3_UNIT_LAYER, p, d,
		       K3I_PARAMS_LAYER "self_attn.g_proj.weight", l);
	k3i_param_set_init(k3i_params_add(t, K3_P_KDA_ON, l, K3_UNIT_LAYER, 0, c->kda_dim,
					  K3I_PARAMS_LAYER "self_attn.o_norm.weight", l),
			   K3_INIT_ONE, 0, true);
	k3i_params_add(t, K3_P_KDA_O, l, K3_UNIT_LAYER, d, p,
		       K3I_PARAMS_LAYER "self_attn.o_proj.weight", l);
	struct k3_param *a = k3i_params_add(t, K3_P_KDA_ALOG, l, K3_UNIT_LAYER, 0, c->kda_heads,
					    K3I_PARAMS_LAYER "self_attn.A_log", l);
	k3i_param_set_dims(a, 1, (c->kda_heads + 127) / 128 * 128, 0, 0, 0);
	k3i_param_set_init(a, K3_INIT_LOG_UNIFORM, 0, true);
	k3i_param_set_init(k3i_params_add(t, K3_P_KDA_DT, l, K3_UNIT_LAYER, 0, p,
					  K3I_PARAMS_LAYER "self_attn.dt_bias", l),
			   K3_INIT_ZERO, 0, true);
}

static void
add_mla(struct k3i_params_table *t, const struct k3_config *c, int l)
{
	size_t d = c->width, h = c->heads, kq = c->nope_dim + c->rope_dim;

	k3i_params_add(t, K3_P_MLA_QA, l, K3_UNIT_LAYER, c->q_rank, d,
		       K3I_PARAMS_LAYER "self_attn.q_a_proj.weight", l);
	k3i_params_add(t, K3_P_MLA_QN, l, K3_UNIT_LAYER, 0, c->q_rank,
		       K3I_PARAMS_LAYER "self_attn.q_a_layernorm.weight", l);
	k3i_params_add(t, K3_P_MLA_QB, l, K3_UNIT_LAYER, h * kq, c->q_rank,
		       K3I_PARAMS_LAYER "self_attn.q_b_proj.weight", l);
	k3i_params_add(t, K3_P_MLA_KVA, l, K3_UNIT_LAYER, c->kv_rank + c->rope_dim, d,
		       K3I_PARAMS_LAYER "self_attn.kv_a_proj_with_mqa.weight", l);
	k3i_params_add(t, K3_P_MLA_KN, l, K3_UNIT_LAYER, 0, c->kv_rank,
		       K3I_PARAMS_LAYER "self_attn.kv_a_layernorm.weight", l);
	k3i_params_add(t, K3_P_MLA_KVB, l, K3_UNIT_LAYER, h * (c->nope_dim + c->v_dim), c->kv_rank,
		       K3I_PARAMS_LAYER "self_attn.kv_b_proj.weight", l);
	k3i_params_add(t, K3_P_MLA_GATE, l, K3_UNIT_LAYER, h * c->v_dim, d,
		       K3I_PARAMS_LAYER "self_attn.g_proj.weight", l);
	k3i_params_add(t, K3_P_MLA_O, l, K3_UNIT_LAYER, d, h * c->v_dim,
		       K3I_PARAMS_LAYER "self_attn.o_proj.weight", l);
}

/* A stack of experts: row blocks are groups of whole experts. */
static void
stack(struct k3i_params_table *t, struct k3_param *p, size_t experts, size_t rows_each)
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
add_moe(struct k3i_params_table *t, const struct k3_config *c, int l)
{
	size_t d = c->width, r = c->latent, f = c->expert_ffn, e = c->experts,
	       fs = (size_t)c->shared_experts * f;

	k3i_params_add(t, K3_P_ROUTER, l, K3_UNIT_LAYER, e, d,
		       K3I_PARAMS_LAYER "block_sparse_moe.gate.weight", l);
	k3i_params_add(t, K3_P_LATENT_DOWN, l, K3_UNIT_LAYER, r, d,
		       K3I_PARAMS_LAYER "block_sparse_moe.routed_expert_down_proj.weight", l);
	k3i_params_add(t, K3_P_LATENT_UP, l, K3_UNIT_LAYER, d, r,
		       K3I_PARAMS_LAYER "block_sparse_moe.routed_expert_up_proj.weight", l);
	k3i_params_add(t, K3_P_LATENT_NORM, l, K3_UNIT_LAYER, 0, r,
		       K3I_PARAMS_LAYER "block_sparse_moe.routed_expert_norm.weight", l);
	k3i_params_add(t, K3_P_SHARED_W1, l, K3_UNIT_LAYER, fs, d,
		       K3I_PARAMS_LAYER "block_sparse_moe.shared_experts.gate_proj.weight", l);
	k3i_params_add(t, K3_P_SHARED_W3, l, K3_UNIT_LAYER, fs, d,
		       K3I_PARAMS_LAYER "block_sparse_moe.shared_experts.up_proj.weight", l);
	k3i_params_add(t, K3_P_SHARED_W2, l, K3_UNIT_LAYER, d, fs,
		       K3I_PARAMS_LAYER "block_sparse_moe.shared_experts.down_proj.weight", l);
	stack(t,
	      k3i_params_add(t, K3_P_EXPERT_W13, l, K3_UNIT_LAYER, e * 2 * f, r,
			     K3I_PARAMS_LAYER "block_sparse_moe.experts", l),
	      e, 2 * f);
	stack(t,
	      k3i_params_add(t, K3_P_EXPERT_W2, l, K3_UNIT_LAYER, e * r, f,
			     K3I_PARAMS_LAYER "block_sparse_moe.experts", l),
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

void
k3i_params_add_layer(struct k3i_params_table *t, const struct k3_config *c, int l)
{
	size_t d = c->width;

	k3i_params_add(t, K3_P_ATTN_NORM, l, K3_UNIT_LAYER, 0, d,
		       K3I_PARAMS_LAYER "input_layernorm.weight", l);
	k3i_params_add(t, K3_P_FFN_NORM, l, K3_UNIT_LAYER, 0, d,
		       K3I_PARAMS_LAYER "post_attention_layernorm.weight", l);
	add_mixers(t, l, d);
	if (c->is_mla[l])
		add_mla(t, c, l);
	else
		add_kda(t, c, l);
	if ((uint32_t)l < c->first_dense) {
		k3i_params_add(t, K3_P_FFN_W1, l, K3_UNIT_LAYER, c->dense_ffn, d,
			       K3I_PARAMS_LAYER "mlp.gate_proj.weight", l);
		k3i_params_add(t, K3_P_FFN_W3, l, K3_UNIT_LAYER, c->dense_ffn, d,
			       K3I_PARAMS_LAYER "mlp.up_proj.weight", l);
		k3i_params_add(t, K3_P_FFN_W2, l, K3_UNIT_LAYER, d, c->dense_ffn,
			       K3I_PARAMS_LAYER "mlp.down_proj.weight", l);
	} else {
		add_moe(t, c, l);
	}
}
