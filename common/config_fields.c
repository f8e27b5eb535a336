/* Table of the plain config.json fields.  The trap: the order is the order of messages and of the
 * written file; a key that is read but not in this table is in no check either. */
#include "config_fields.h"

#include <float.h>

#include "log.h"
#include "status.h"

#define FIELD(section, kind, key, member, fallback) \
	{ K3I_##section, K3I_##kind, key, offsetof(struct k3_config, member), fallback, false }
#define OUR_FIELD(section, key, member, fallback) \
	{ K3I_##section, K3I_POSITIVE, key, offsetof(struct k3_config, member), fallback, true }

const struct k3i_field k3i_fields[] = {
	FIELD(TEXT, SIZE, "hidden_size", width, 0),
	FIELD(TEXT, SIZE, "vocab_size", vocab, 0),
	FIELD(TEXT, SIZE, "num_hidden_layers", layers, 0),
	FIELD(TEXT, SIZE, "attn_res_block_size", block_layers, 0),
	FIELD(TEXT, SIZE, "num_attention_heads", heads, 0),
	FIELD(TEXT, SIZE, "q_lora_rank", q_rank, 0),
	FIELD(TEXT, SIZE, "kv_lora_rank", kv_rank, 0),
	FIELD(TEXT, SIZE, "qk_nope_head_dim", nope_dim, 0),
	FIELD(TEXT, SIZE, "qk_rope_head_dim", rope_dim, 0),
	FIELD(TEXT, SIZE, "v_head_dim", v_dim, 0),
	FIELD(TEXT, SIZE, "intermediate_size", dense_ffn, 0),
	FIELD(TEXT, COUNT, "first_k_dense_replace", first_dense, 0),
	FIELD(TEXT, SIZE, "num_experts", experts, 0),
	FIELD(TEXT, SIZE, "num_experts_per_token", top_k, 0),
	FIELD(TEXT, SIZE, "routed_expert_hidden_size", latent, 0),
	FIELD(TEXT, SIZE, "moe_intermediate_size", expert_ffn, 0),
	FIELD(TEXT, SIZE, "num_shared_experts", shared_experts, 0),
	FIELD(TEXT, POSITIVE, "routed_scaling_factor", route_scale, 0),
	FIELD(TEXT, POSITIVE, "activation_situ_beta", situ_beta1, 0),
	FIELD(TEXT, POSITIVE, "activation_situ_linear_beta", situ_beta2, 0),
	FIELD(TEXT, POSITIVE, "rms_norm_eps", norm_eps, 0),
	OUR_FIELD(TEXT, "mla_latent_norm_eps", mla_norm_eps, 1e-6),
	OUR_FIELD(TEXT, "qk_l2norm_eps", l2_eps, 1e-6),
	OUR_FIELD(TEXT, "router_sum_eps", router_sum_eps, 1e-20),
	FIELD(LINEAR, SIZE, "num_heads", kda_heads, 0),
	FIELD(LINEAR, SIZE, "head_dim", kda_dim, 0),
	FIELD(LINEAR, SIZE, "short_conv_kernel_size", conv_taps, 0),
	FIELD(LINEAR, DECAY, "gate_lower_bound", gate_lower_bound, 0),
	FIELD(VISION, SIZE, "vt_hidden_size", vision.width, 0),
	FIELD(VISION, SIZE, "qkv_hidden_size", vision.qkv_width, 0),
	FIELD(VISION, SIZE, "vt_num_attention_heads", vision.heads, 0),
	FIELD(VISION, SIZE, "vt_intermediate_size", vision.ffn, 0),
	FIELD(VISION, SIZE, "vt_num_hidden_layers", vision.layers, 0),
	FIELD(VISION, SIZE, "patch_size", vision.patch, 0),
	FIELD(VISION, SIZE, "init_pos_emb_height", vision.table_h, 0),
	FIELD(VISION, SIZE, "init_pos_emb_width", vision.table_w, 0),
	FIELD(VISION, SIZE, "init_pos_emb_time", vision.max_frames, 0),
	OUR_FIELD(VISION, "vt_norm_eps", vision.norm_eps, 1e-5),
	FIELD(VISION, POSITIVE, "projector_ln_eps", vision.projector_eps, 1e-5),
};
const size_t k3i_n_fields = sizeof(k3i_fields) / sizeof(k3i_fields[0]);

const char *const k3i_id_keys[K3I_N_IDS] = {
	"bos_token_id", "eos_token_id", "pad_token_id", "media_placeholder_token_id"
};

const char *
k3i_section_prefix(enum k3i_section section)
{
	static const char *const prefixes[] = { "", "linear_attn_config.", "vision_config." };

	return prefixes[section];
}

bool
k3i_field_is_integer(const struct k3i_field *field)
{
	return field->kind == K3I_SIZE || field->kind == K3I_COUNT;
}

const char *
k3i_field_allowed(const struct k3i_field *field)
{
	static const char *const allowed[] = {
		[K3I_SIZE] = "an integer from 1 to 2147483647",
		[K3I_COUNT] = "an integer from 0 to 2147483647",
		[K3I_POSITIVE] = "a number above 0 within float's range",
		[K3I_DECAY] = "a number from -5 to below 0",
	};

	return allowed[field->kind];
}

double
k3i_field_get(const struct k3i_field *field, const struct k3_config *config)
{
	const char *at = (const char *)config + field->offset;

	return k3i_field_is_integer(field) ? (double)*(const uint32_t *)at : *(const double *)at;
}

void
k3i_field_set(const struct k3i_field *field, struct k3_config *config, double value)
{
	char *at = (char *)config + field->offset;

	if (k3i_field_is_integer(field))
		*(uint32_t *)at = (uint32_t)value;
	else
		*(double *)at = value;
}

static bool
is_allowed(enum k3i_field_kind kind, double value)
{
	switch (kind) {
	case K3I_SIZE:
		return value >= 1.0 && value <= INT32_MAX;
	case K3I_COUNT:
		return value >= 0.0 && value <= INT32_MAX;
	case K3I_POSITIVE:
		return value >= (double)FLT_MIN && value <= (double)FLT_MAX;
	case K3I_DECAY:
		/* -1e-60 is 0 as a float: a gate that never decays and has no gradient */
		return value >= -5.0 && value <= -(double)FLT_MIN;
	}
	return false;
}

int
k3i_field_check(const struct k3i_field *field, const char *origin, double value)
{
	if (is_allowed(field->kind, value))
		return K3_OK;
	k3_error("common", "%s: %s%s is %.15g; it must be %s", origin,
	         k3i_section_prefix(field->section), field->key, value, k3i_field_allowed(field));
	return K3_EINVAL;
}

uint32_t *
k3i_id(struct k3_config *config, int which)
{
	uint32_t *const ids[K3I_N_IDS] = {
		&config->bos, &config->eos, &config->pad, &config->placeholder
	};

	return ids[which];
}

void
k3i_ids_default(struct k3_config *config)
{
	config->bos = config->vocab - 4;
	config->eos = config->vocab - 3;
	config->placeholder = config->vocab - 2;
	config->pad = config->vocab - 1;
}
