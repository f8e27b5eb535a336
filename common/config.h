/* Model configuration: presets, Hugging Face config.json, checks.
 *
 * Symbols and values: model.md 1.1.  Layer indices are 0-based here, 1-based in
 * config.json's lists.
 */
#ifndef K3_CONFIG_H
#define K3_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { K3_MAX_LAYERS = 256, K3_MAX_EXPERTS = 65536, K3_MAX_TAPS = 64 };

struct k3_vision_config {
	bool present;
	uint32_t width;		   /* dvw, vt_hidden_size */
	uint32_t qkv_width;	   /* dq, qkv_hidden_size */
	uint32_t heads;		   /* Hv */
	uint32_t ffn;		   /* Fv, vt_intermediate_size */
	uint32_t layers;	   /* Lv */
	uint32_t patch;		   /* patch_size, pixels a side */
	uint32_t table_h, table_w; /* Ph, Pw */
	uint32_t max_frames;	   /* init_pos_emb_time */
	uint32_t merge_h, merge_w;
	double norm_eps;      /* norm0, norm1, final_layernorm; vt_norm_eps, default 1e-5 */
	double projector_eps; /* post_norm; default 1e-5 */
};

struct k3_config {
	char name[64];			    /* preset name or file it came from; for people */
	uint32_t width;			    /* D, hidden_size */
	uint32_t vocab;			    /* Vv */
	uint32_t layers;		    /* L */
	bool is_mla[K3_MAX_LAYERS];	    /* layer l is gated MLA, else KDA */
	uint32_t block_layers;		    /* Bres, attn_res_block_size */
	uint32_t heads;			    /* H */
	uint32_t q_rank, kv_rank;	    /* rq, rkv */
	uint32_t nope_dim, rope_dim, v_dim; /* dn, dr, dv */
	uint32_t kda_heads;		    /* Hk */
	uint32_t kda_dim;		    /* dk = dv of KDA */
	uint32_t conv_taps;		    /* W */
	double gate_lower_bound;	    /* lb, in [-5, 0) */
	uint32_t dense_ffn;		    /* Fd, intermediate_size */
	uint32_t first_dense;		    /* first_k_dense_replace */
	uint32_t experts, top_k;	    /* E, k */
	uint32_t latent;		    /* R, routed_expert_hidden_size */
	uint32_t expert_ffn;		    /* F, moe_intermediate_size */
	uint32_t shared_experts;	    /* Ns */
	double route_scale;		    /* routed_scaling_factor */
	double situ_beta1, situ_beta2;
	double norm_eps;       /* rms_norm_eps: every text norm but MLA's latent ones */
	double mla_norm_eps;   /* q_a_layernorm, kv_a_layernorm; mla_latent_norm_eps, 1e-6 */
	double l2_eps;	       /* KDA's q and k; qk_l2norm_eps, default 1e-6 */
	double router_sum_eps; /* router_sum_eps, default 1e-20 */
	uint32_t bos, eos, pad, placeholder; /* token ids */
	struct k3_vision_config vision;
};

/**
 * Fills config with a preset: small tiny recall debug debug17 debug24 mini Kimi-K3 (model.md 1.1;
 * tiny has the sizes of the golden case text_tiny with vocabulary 320 and no vision tower; recall
 * has KDA layers alone, for the data of k3t_recall.h).
 * @return K3_OK, or K3_ENOENT (logged with the list of presets).
 */
int k3_config_preset(struct k3_config *config, const char *name);

/** Names of the presets, NULL at the end. */
const char *const *k3_config_presets(void);

/**
 * Reads a Hugging Face config.json text (text part nested in "text_config" or flat).
 * @param origin  shown in messages, e.g. the path
 * @return K3_OK, K3_EFORMAT or K3_EINVAL, logged with field, value and what is allowed; config is
 * unchanged then. Unknown keys are ignored with one info line. The eps that the layout has no place
 * for are read from keys of our own, named above, and have defaults.
 */
int k3_config_parse(struct k3_config *config, const char *json, size_t bytes, const char *origin);

/** Preset name, config.json file, or folder that holds one; a preset's name wins over a file. */
int k3_config_load(struct k3_config *config, const char *preset_or_path);

/** Keeps the first n layers of the schedule (1 <= n <= layers). */
int k3_config_set_layers(struct k3_config *config, long long n);

/** Replaces the vocabulary (>= 5); the special ids move to V-4 (bos), V-3 (eos), V-2, V-1 (pad). */
int k3_config_set_vocab(struct k3_config *config, long long vocab);

/** Checks every constraint of the model; logs the first offender. Changes nothing. */
int k3_config_check(const struct k3_config *config);

/** config.json text (Hugging Face layout), malloc'ed; NULL when memory is out. */
char *k3_config_json(const struct k3_config *config);

#endif
