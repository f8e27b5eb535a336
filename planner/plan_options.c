/* Options of a model's plans: their defaults, what zeros stand for, what is refused. */
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "build.h"

void
k3_plan_options_init(struct k3_plan_options *options)
{
	memset(options, 0, sizeof(*options));
	options->balance = K3_BALANCE_QUANTILE;
	options->adam_beta1 = 0.9;
	options->adam_beta2 = 0.95;
	options->adam_eps = 1e-8;
	options->weight_decay = 0.1;
	options->clip_norm = 1.0;
	options->clip_eps = 1e-6;
}

static uint32_t
groups_of(uint32_t asked, uint32_t heads)
{
	return asked ? asked : heads > 1 ? 2 : 1;
}

static int
choose_vision(struct k3_plan_options *o, const struct k3_config *c)
{
	uint32_t merge = c->vision.merge_h * c->vision.merge_w;
	int ret = K3_OK;

	if (!o->vision_patches)
		o->vision_patches = K3_VISION_TILE_PATCHES;
	if (!o->vision)
		return K3_OK;
	if (!c->vision.present) {
		k3_error("planner", "%s: has no vision tower", c->name);
		return K3_EINVAL;
	}
	if (o->vision_patches < merge || o->vision_patches > K3_VISION_MOST_PATCHES) {
		k3_error("planner",
			 "vision tiles of %u patches: allowed are %u, those of a merged token, to "
			 "%d (--vision-patches)",
			 o->vision_patches, merge, K3_VISION_MOST_PATCHES);
		ret = K3_EINVAL;
	}
	if (o->max_patches && (o->max_patches < merge || o->max_patches > K3_VISION_MOST_PATCHES)) {
		k3_error("planner",
			 "%llu patches in a microbatch: allowed are %u, those of a merged token, "
			 "to %d (--max-patches)",
			 (unsigned long long)o->max_patches, merge, K3_VISION_MOST_PATCHES);
		ret = K3_EINVAL;
	}
	if (o->max_patches && o->vision_bands) {
		k3_error("planner",
			 "%u bands of each image: the slots of %llu patches are not bounded then "
			 "(--bands or --max-patches, not both)",
			 o->vision_bands, (unsigned long long)o->max_patches);
		ret = K3_EINVAL;
	}
	return ret;
}

static int
choose_mesh(struct k3_mesh *m)
{
	if (!m->dp_replicate)
		m->dp_replicate = 1;
	if (!m->dp_shard)
		m->dp_shard = 1;
	if (!m->cp)
		m->cp = 1;
	uint64_t ranks = (uint64_t)m->dp_replicate * m->dp_shard * m->cp;
	if (m->rank >= ranks) {
		k3_error("planner", "rank %u: the mesh has %llu ranks", m->rank,
			 (unsigned long long)ranks);
		return K3_EINVAL;
	}
	return K3_OK;
}

/* 1, logged, when there are more groups than what they are made of. */
static int
check_groups(const char *what, uint32_t groups, uint32_t most, const char *option)
{
	if (groups <= most)
		return 0;
	k3_error("planner", "%u groups of %s: there are %u (%s)", groups, what, most, option);
	return 1;
}

int
k3i_options_choose(struct k3_plan_options *o, const struct k3_config *c)
{
	if (o->tile_tokens % 64 != 0) {
		k3_error("planner", "tile_tokens %u: must be a multiple of 64 (0: one tile)",
			 o->tile_tokens);
		return K3_EINVAL;
	}
	if (check_groups("KDA heads", o->kda_groups, c->kda_heads, "--kda-groups") +
	    check_groups("MLA heads", o->mla_groups, c->heads, "--mla-groups") +
	    check_groups("experts", o->expert_groups, c->experts, "--expert-groups"))
		return K3_EINVAL;
	if (o->dtype != K3_F32 && o->dtype != K3_BF16) {
		k3_error("planner", "type %d of activations: must be %s or %s", (int)o->dtype,
			 k3_dtype_name(K3_F32), k3_dtype_name(K3_BF16));
		return K3_EINVAL;
	}
	if (o->optimizer_dtype != K3_F32 && o->optimizer_dtype != o->dtype) {
		k3_error("planner",
			 "type %s of the optimizer's state, %s of activations: the state must be "
			 "%s, or %s as activations (--optimizer-dtype bf16 needs --dtype bf16)",
			 k3_dtype_name(o->optimizer_dtype), k3_dtype_name(o->dtype),
			 k3_dtype_name(K3_F32), k3_dtype_name(K3_BF16));
		return K3_EINVAL;
	}
	o->kda_groups = groups_of(o->kda_groups, c->kda_heads);
	o->mla_groups = groups_of(o->mla_groups, c->heads);
	if (!o->key_tiles)
		o->key_tiles = 8;
	if (!o->block_bytes)
		o->block_bytes = K3_BLOCK_BYTES;
	if (!o->head_rows)
		o->head_rows = k3_plan_head_rows(o, c);
	if (o->head_rows < 64)
		o->head_rows = 64;
	if (!o->piece_bytes)
		o->piece_bytes = (size_t)256 << 20;
	if (!o->gather_slots)
		o->gather_slots = 2;
	if (!o->run_ahead)
		o->run_ahead = 24;
	if (!o->bins)
		o->bins = 1000;
	if (!(o->balance_u > 0))
		o->balance_u = 1e-3;
	int ret = choose_vision(o, c);
	if (ret != K3_OK)
		return ret;
	return choose_mesh(&o->mesh);
}
