/* What does not depend on the batch: options with their defaults, the persistent data of this rank.
 */
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "build.h"
#include "optimizer.h"
#include "shard.h"
#include "whole.h"

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
			 "%d "
			 "(--vision-patches)",
			 o->vision_patches, merge, K3_VISION_MOST_PATCHES);
		ret = K3_EINVAL;
	}
	if (o->max_patches && (o->max_patches < merge || o->max_patches > K3_VISION_MOST_PATCHES)) {
		k3_error(
			"planner",
			"%llu patches in a microbatch: allowed are %u, those of a merged token, to "
			"%d (--max-patches)",
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

/* Refuses what can't be; replaces zeros by what is chosen. */
static int
choose(struct k3_plan_options *o, const struct k3_config *c)
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

static struct k3_datum
persistent(const char *what, enum k3_data_kind kind, enum k3_dtype dtype, int layer, int index,
	   size_t rows, size_t row_elems)
{
	struct k3_datum d = {.what = what,
			     .kind = (uint8_t)kind,
			     .dtype = (uint8_t)dtype,
			     .layer = (int16_t)layer,
			     .tile = -1,
			     .index = index,
			     .param = -1,
			     .rows = rows,
			     .row_elems = row_elems,
			     .slot = K3_NO_SLOT};

	d.bytes = d.slot_bytes = rows * row_elems * k3_dtype_bytes(dtype);
	return d;
}

/* Parameters and moments of matrices may be bf16; vectors and gradients are float. */
static enum k3_dtype
block_dtype(const struct k3_model *m, const struct k3_param *p, enum k3_data_kind kind)
{
	return kind != K3_DATA_GRAD && k3_param_is_matrix(p) ? m->options.optimizer_dtype : K3_F32;
}

static void
put_blocks(struct k3_model *m, size_t *at, const char *what, enum k3_data_kind kind, bool note)
{
	for (size_t i = 0; i < m->params.n; i++) {
		const struct k3_param *p = &m->params.param[i];
		if (note)
			m->param_block[i] = (uint32_t)*at;
		for (size_t b = 0; b < p->n_blocks; b++) {
			size_t row0, rows;
			k3i_shard_block(m, p, b, m->options.mesh.rank, &row0, &rows);
			struct k3_datum d = persistent(what, kind, block_dtype(m, p, kind),
						       p->layer, (int)b, rows, p->cols);
			d.param = (int32_t)i;
			d.row0 = row0;
			m->persist[(*at)++] = d;
		}
	}
}

/* Copies of the matrices' blocks, which have the same rows.  A parameter that is bf16 itself is
 * read as it is. */
static void
put_copies(struct k3_model *m, size_t *at)
{
	for (uint32_t i = 0; i < m->n_blocks; i++) {
		struct k3_datum d = m->persist[i];
		m->copy[i] = K3_NO_DATUM;
		if (m->options.dtype != K3_BF16 || !k3_param_is_matrix(&m->params.param[d.param]))
			continue;
		if (d.dtype == K3_BF16) {
			m->copy[i] = (int32_t)i;
			continue;
		}
		d.what = "copy";
		d.kind = K3_DATA_COPY;
		d.dtype = K3_BF16;
		d.bytes = d.slot_bytes = d.rows * d.row_elems * k3_dtype_bytes(K3_BF16);
		m->copy[i] = (int32_t)*at;
		m->persist[(*at)++] = d;
	}
}

static void
put_buffers(struct k3_model *m, size_t *at)
{
	const struct k3_config *c = &m->config;
	size_t bins = m->options.balance == K3_BALANCE_QUANTILE ? m->options.bins : 0;

	for (uint32_t l = 0; l < c->layers; l++) {
		m->bias[l] = m->balance[l] = K3_NO_DATUM;
		if (l < c->first_dense)
			continue;
		m->bias[l] = (int32_t)*at;
		m->persist[(*at)++] =
			persistent("bias", K3_DATA_BUFFER, K3_F32, (int)l, -1, 1, c->experts);
		if (m->options.balance == K3_BALANCE_NONE)
			continue;
		m->balance[l] = (int32_t)*at;
		m->persist[(*at)++] = persistent("balance", K3_DATA_BUFFER, K3_I32, (int)l, -1, 1,
						 c->experts * (1 + bins));
	}
	m->hyper = (uint32_t)*at;
	m->persist[(*at)++] = persistent("hyper", K3_DATA_BUFFER, K3_F64, -1, -1, 1, K3_HYPER_LEN);
	m->loss_acc = (uint32_t)*at;
	m->persist[(*at)++] =
		persistent("loss_acc", K3_DATA_BUFFER, K3_F64, -1, -1, 1, K3_LOSS_LEN);
	for (int i = 0; i < 2; i++) {
		m->step_out[i] = (uint32_t)*at;
		m->persist[(*at)++] =
			persistent("step_out", K3_DATA_BUFFER, K3_F64, -1, i, 1, K3_OUT_LEN);
	}
	m->turn = (uint32_t)*at;
	for (uint32_t i = 0; i < m->n_turns; i++)
		m->persist[(*at)++] = persistent("turn", K3_DATA_BUFFER, K3_F64, -1, (int)i, 1, 1);
	m->norm_partial = (uint32_t)*at;
	for (uint32_t i = 0; i < m->n_norm_partial; i++)
		m->persist[(*at)++] =
			persistent("norm_partial", K3_DATA_BUFFER, K3_F64, -1, (int)i, 1, 1);
	m->hash = (uint32_t)*at;
	for (uint32_t i = 0; i < m->n_hash; i++)
		m->persist[(*at)++] = persistent("hash", K3_DATA_BUFFER, K3_U64, -1, (int)i, 1, 1);
}

int
k3_model_create(struct k3_model **model, const struct k3_config *config,
		const struct k3_plan_options *options)
{
	struct k3_model *m = calloc(1, sizeof(*m));
	size_t at = 0;
	int ret = K3_OK;

	*model = NULL;
	if (!m)
		return K3_ENOMEM;
	m->config = *config;
	m->options = *options;
	if (options->machine)
		m->machine = *options->machine;
	else
		k3_machine_init(&m->machine, "", 1);
	m->options.machine = &m->machine;
	K3_TRY(k3_config_check(config));
	K3_TRY(choose(&m->options, config));
	K3_TRY(k3_params_init(&m->params, &m->config, m->options.vision, m->options.block_bytes,
			      m->options.expert_groups));
	for (size_t i = 0; i < m->params.n; i++)
		m->n_blocks += (uint32_t)m->params.param[i].n_blocks;
	m->param_block = calloc(m->params.n, sizeof(*m->param_block));
	m->bias = calloc(config->layers, sizeof(*m->bias));
	m->balance = calloc(config->layers, sizeof(*m->balance));
	m->copy = calloc(m->n_blocks, sizeof(*m->copy));
	if (!m->param_block || !m->bias || !m->balance || !m->copy)
		K3_TRY(K3_ENOMEM);
	/* the groups depend on the blocks alone, whose sizes put_blocks sets */
	m->persist = calloc(5 * (size_t)m->n_blocks, sizeof(*m->persist));
	if (!m->persist)
		K3_TRY(K3_ENOMEM);
	put_blocks(m, &at, "param", K3_DATA_PARAM, true);
	put_blocks(m, &at, "grad", K3_DATA_GRAD, false);
	put_blocks(m, &at, "exp_avg", K3_DATA_EXP_AVG, false);
	put_blocks(m, &at, "exp_avg_sq", K3_DATA_EXP_AVG_SQ, false);
	put_copies(m, &at);
	K3_TRY(k3i_order_blocks(m));
	m->n_hash = m->options.fingerprint ? 1 + 2 * m->n_norm_partial : 0;
	size_t n = at + 2 * config->layers + 4 + m->n_turns + m->n_norm_partial + m->n_hash;
	struct k3_datum *grown = realloc(m->persist, n * sizeof(*grown));
	if (!grown)
		K3_TRY(K3_ENOMEM);
	m->persist = grown;
	put_buffers(m, &at);
	m->n_persist = at;
	K3_TRY(k3i_make_wholes(m));
	for (size_t i = 0; i < at; i++)
		m->persist_bytes += k3_datum_place_bytes(&m->persist[i]);
	*model = m;
out:
	if (ret != K3_OK)
		k3_model_destroy(m);
	return ret;
}

void
k3_model_destroy(struct k3_model *model)
{
	if (!model)
		return;
	k3_params_fini(&model->params);
	free(model->param_block);
	free(model->copy);
	free(model->table);
	free(model->update);
	free(model->bias);
	free(model->balance);
	free(model->persist);
	free(model);
}
