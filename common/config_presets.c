/* The presets.  The trap: special ids of 0 mean "the last four of the vocabulary"; only
 * the release has ids of its own. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "config_fields.h"
#include "log.h"
#include "status.h"

#define TEXT_COMMON                                                                         \
	.gate_lower_bound = -5.0, .first_dense = 1, .route_scale = 1.0, .situ_beta1 = 4.0,  \
	.situ_beta2 = 25.0, .norm_eps = 1e-5, .mla_norm_eps = 1e-6, .l2_eps = 1e-6,         \
	.router_sum_eps = 1e-20
#define VISION_COMMON                                                                       \
	.present = true, .merge_h = 2, .merge_w = 2, .norm_eps = 1e-5, .projector_eps = 1e-5

static const struct k3_config presets[] = {
	{
		.name = "small", TEXT_COMMON,
		.width = 64, .vocab = 32, .layers = 2, .block_layers = 1, .heads = 2,
		.q_rank = 32, .kv_rank = 32, .nope_dim = 16, .rope_dim = 16, .v_dim = 16,
		.kda_heads = 2, .kda_dim = 32, .conv_taps = 3, .dense_ffn = 128, .experts = 2,
		.top_k = 1, .latent = 32, .expert_ffn = 32, .shared_experts = 1,
		.vision = { VISION_COMMON,
		            .width = 48, .qkv_width = 48, .heads = 3, .ffn = 96, .layers = 1,
		            .patch = 2, .table_h = 2, .table_w = 2, .max_frames = 1 },
	},
	{
		.name = "tiny", TEXT_COMMON,
		.width = 64, .vocab = 320, .layers = 5, .block_layers = 2, .heads = 2,
		.q_rank = 32, .kv_rank = 24, .nope_dim = 16, .rope_dim = 8, .v_dim = 16,
		.kda_heads = 2, .kda_dim = 32, .conv_taps = 4, .dense_ffn = 128, .experts = 6,
		.top_k = 2, .latent = 32, .expert_ffn = 24, .shared_experts = 2,
	},
	{
		/* No MLA layer: what it remembers, it remembers in the states of KDA. */
		.name = "recall", TEXT_COMMON,
		.width = 64, .vocab = 260, .layers = 2, .block_layers = 2, .heads = 2,
		.q_rank = 32, .kv_rank = 24, .nope_dim = 16, .rope_dim = 8, .v_dim = 16,
		.kda_heads = 2, .kda_dim = 64, .conv_taps = 4, .dense_ffn = 128, .experts = 4,
		.top_k = 2, .latent = 32, .expert_ffn = 32, .shared_experts = 2,
	},
	{
		.name = "debug", TEXT_COMMON,
		.width = 256, .vocab = 163840, .layers = 13, .block_layers = 12, .heads = 4,
		.q_rank = 128, .kv_rank = 64, .nope_dim = 32, .rope_dim = 16, .v_dim = 32,
		.kda_heads = 4, .kda_dim = 32, .conv_taps = 4, .dense_ffn = 1024, .experts = 8,
		.top_k = 2, .latent = 128, .expert_ffn = 128, .shared_experts = 2,
		.vision = { VISION_COMMON,
		            .width = 256, .qkv_width = 384, .heads = 3, .ffn = 1024, .layers = 4,
		            .patch = 14, .table_h = 16, .table_w = 16, .max_frames = 4 },
	},
	{
		.name = "debug17", TEXT_COMMON,
		.width = 256, .vocab = 2048, .layers = 17, .block_layers = 4, .heads = 4,
		.q_rank = 128, .kv_rank = 64, .nope_dim = 128, .rope_dim = 64, .v_dim = 128,
		.kda_heads = 4, .kda_dim = 128, .conv_taps = 4, .dense_ffn = 512, .experts = 8,
		.top_k = 2, .latent = 128, .expert_ffn = 128, .shared_experts = 2,
		.vision = { VISION_COMMON,
		            .width = 256, .qkv_width = 512, .heads = 4, .ffn = 512, .layers = 2,
		            .patch = 14, .table_h = 32, .table_w = 32, .max_frames = 4 },
	},
	{
		.name = "debug24", TEXT_COMMON,
		.width = 1024, .vocab = 163840, .layers = 24, .block_layers = 12, .heads = 16,
		.q_rank = 512, .kv_rank = 256, .nope_dim = 64, .rope_dim = 32, .v_dim = 64,
		.kda_heads = 16, .kda_dim = 128, .conv_taps = 4, .dense_ffn = 4096,
		.experts = 32, .top_k = 4, .latent = 512, .expert_ffn = 384, .shared_experts = 2,
		.vision = { VISION_COMMON,
		            .width = 512, .qkv_width = 768, .heads = 6, .ffn = 2048, .layers = 8,
		            .patch = 14, .table_h = 32, .table_w = 32, .max_frames = 4 },
	},
	{
		.name = "mini", TEXT_COMMON,
		.width = 512, .vocab = 2016, .layers = 21, .block_layers = 12, .heads = 4,
		.q_rank = 128, .kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128,
		.kda_heads = 4, .kda_dim = 128, .conv_taps = 4, .dense_ffn = 896, .experts = 8,
		.top_k = 2, .latent = 256, .expert_ffn = 224, .shared_experts = 2,
		.vision = { VISION_COMMON,
		            .width = 256, .qkv_width = 384, .heads = 4, .ffn = 1024, .layers = 4,
		            .patch = 14, .table_h = 64, .table_w = 64, .max_frames = 4 },
	},
	{
		.name = "Kimi-K3", TEXT_COMMON,
		.width = 7168, .vocab = 163840, .layers = 93, .block_layers = 12, .heads = 96,
		.q_rank = 1536, .kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128,
		.kda_heads = 96, .kda_dim = 128, .conv_taps = 4, .dense_ffn = 33792,
		.experts = 896, .top_k = 16, .latent = 3584, .expert_ffn = 3072,
		.shared_experts = 2,
		.bos = 163584, .eos = 163586, .pad = 163839, .placeholder = 163605,
		.vision = { VISION_COMMON,
		            .width = 1024, .qkv_width = 1536, .heads = 12, .ffn = 4096,
		            .layers = 27, .patch = 14, .table_h = 64, .table_w = 64,
		            .max_frames = 4 },
	},
};
enum { N_PRESETS = sizeof(presets) / sizeof(presets[0]) };

const char *const *
k3_config_presets(void)
{
	static const char *const names[N_PRESETS + 1] = {
		"small", "tiny", "recall", "debug", "debug17", "debug24", "mini", "Kimi-K3", NULL
	};

	return names;
}

/* The schedule of the release, for all presets but one: every fourth layer is MLA, and the last. */
static void
schedule_fill(struct k3_config *config)
{
	if (strcmp(config->name, "recall") == 0)
		return;
	for (uint32_t l = 0; l < config->layers; l++)
		config->is_mla[l] = l % 4 == 3 || l + 1 == config->layers;
}

int
k3_config_preset(struct k3_config *config, const char *name)
{
	char known[128] = "";
	size_t used = 0;

	for (int i = 0; i < N_PRESETS; i++) {
		if (strcmp(presets[i].name, name) == 0) {
			*config = presets[i];
			schedule_fill(config);
			if (config->bos == 0)
				k3i_ids_default(config);
			return K3_OK;
		}
		used += (size_t)snprintf(known + used, sizeof(known) - used, " %s",
		                         presets[i].name);
	}
	k3_error("common", "model \"%s\" is no file, no folder and none of the presets%s", name,
	         known);
	return K3_ENOENT;
}
