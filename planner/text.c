/* The text model's walk (model.md 2.3 forward, 2.4 backward): embedding, layers, output mix, head.
 * The trap: a block-opening layer mixes the old blocks plus the prefix, and only then freezes that
 * prefix; in the backward walk the payload's gradient is dropped there, after it was added to the
 * prefix's. */
#include "text.h"

#include "../common/status.h"

/* An array as long as any that the walk asks for, so that it need not look at each. */
static bool
make_sink(struct k3i_walk *w)
{
	struct k3_builder *b = w->b;
	const struct k3_params *ps = &b->model->params;
	size_t keys = b->plan->own_first + w->n + 1, groups = w->kda_groups + w->mla_groups;
	size_t vocabulary = ps->param[k3_params_find(ps, K3_P_HEAD, -1)].n_blocks;

	b->array_sink_n = keys * groups + b->model->options.mesh.cp + vocabulary + w->nominal;
	b->array_sink = k3i_arena_alloc(b->plan->arena, b->array_sink_n * sizeof(*b->array_sink));
	return b->array_sink != NULL;
}

/* Documents of earlier ranks' tiles, for the attention's mask. */
static void
load_key_layouts(struct k3i_walk *w)
{
	struct k3_builder *b = w->b;
	size_t first = b->plan->own_first;

	w->n_keys = first + w->n;
	w->key_layout = k3i_array(w, w->n_keys);
	for (size_t j = 0; j < w->n_keys && b->status == K3_OK; j++) {
		if (j >= first) {
			w->key_layout[j] = w->layout[j - first];
			continue;
		}
		const struct k3_tile *t = k3i_key_tile(w, j);
		struct k3_batch_load_args *a =
			k3i_task(b, K3_OP_BATCH_LOAD, -1, (int)j, -1, sizeof(*a));
		a->t = t->rows;
		a->layout = t->layout;
		a->layout_only = 1;
		w->key_layout[j] =
			k3i_data(b, "layout", K3_DATA_INPUT, K3_I32, -1, (int)j, -1,
				 k3_tile_layout_len(t->rows), k3_tile_layout_len(w->nominal), 1);
		k3i_use(b, w->key_layout[j], K3_W);
		k3i_task_end(b, 0, 0);
	}
}

static void
load_inputs(struct k3i_walk *w, const struct k3_layout *layout)
{
	struct k3_builder *b = w->b;
	size_t moe_layers = w->c->layers > w->c->first_dense ? w->c->layers - w->c->first_dense : 0;
	size_t k = w->c->top_k;
	/* the tower alone reads neither labels nor documents */
	enum k3_data_kind kind = b->what.tower ? K3_DATA_WORK : K3_DATA_INPUT;

	if (b->what.first) {
		k3i_task(b, K3_OP_STEP_LOAD, -1, -1, -1, 0);
		k3i_use(b, b->model->hyper, K3_W);
		k3i_task_end(b, 0, 0);
	}
	k3i_vision_begin(w, layout);
	w->ids = k3i_array(w, w->n);
	w->labels = k3i_array(w, w->n);
	w->layout = k3i_array(w, w->n);
	if (b->what.forced_routing) {
		w->forced = k3i_arena_alloc(b->plan->arena, (moe_layers + 1) * sizeof(*w->forced));
		for (size_t m = 0; w->forced && m < moe_layers; m++)
			w->forced[m] = k3i_array(w, w->n);
		if (!w->forced) {
			b->status = K3_ENOMEM;
			return;
		}
	}
	for (size_t i = 0; i < w->n; i++) {
		int tile = (int)(b->plan->own_first + i);
		const struct k3_tile *t = k3i_tile(w, i);
		struct k3_batch_load_args *a =
			k3i_task(b, K3_OP_BATCH_LOAD, -1, tile, -1, sizeof(*a));
		a->t = t->rows;
		a->row0 = t->row0 - b->plan->own_rows * t->owner_cp;
		a->k = k;
		a->layout = t->layout;
		w->ids[i] = k3i_data(b, "ids", K3_DATA_INPUT, K3_I32, -1, tile, -1, t->rows,
				     w->nominal, 1);
		w->labels[i] =
			k3i_data(b, "labels", kind, K3_I32, -1, tile, -1, t->rows, w->nominal, 1);
		w->layout[i] =
			k3i_data(b, "layout", kind, K3_I32, -1, tile, -1,
				 k3_tile_layout_len(t->rows), k3_tile_layout_len(w->nominal), 1);
		k3i_use(b, w->ids[i], K3_W);
		k3i_use(b, w->labels[i], K3_W);
		k3i_use(b, w->layout[i], K3_W);
		k3i_vision_map(w, i, a);
		a->forced.first = 3 + a->map.n;
		for (size_t m = 0; w->forced && m < moe_layers; m++) {
			w->forced[m][i] = k3i_data(b, "forced", K3_DATA_INPUT, K3_I32,
						   (int)(m + w->c->first_dense), tile, -1, t->rows,
						   w->nominal, k);
			k3i_use(b, w->forced[m][i], K3_W);
			a->forced.n++;
		}
		k3i_task_end(b, 0, 0);
	}
	load_key_layouts(w);
}

static void
embed(struct k3i_walk *w)
{
	struct k3_builder *b = w->b;

	w->p = k3i_array(w, w->n);
	k3i_unit_open(b, K3_UNIT_EMBED, -1, -1);
	for (size_t i = 0; i < w->n; i++) {
		size_t t = k3i_rows(w, i);
		w->p[i] = k3i_act(w, "embeddings", -1, i, -1, w->c->width);
		struct k3_embed_args *a =
			k3i_task(b, K3_OP_EMBED_FWD, -1, k3i_tile_no(w, i), -1, sizeof(*a));
		a->t = t;
		a->d = w->c->width;
		k3i_use(b, w->p[i], K3_W);
		k3i_use(b, w->ids[i], K3_R);
		k3i_weight(b, &a->table, K3_P_EMBED, -1);
		k3i_task_end(b, 0, 2.0 * (double)(t * w->c->width * k3_dtype_bytes(b->act)));
		if (!w->vision)
			k3i_keep(w, w->p[i]);
	}
	k3i_unit_close(b, K3_UNIT_EMBED, -1, -1);
}

struct mix_roles {
	enum k3_role gamma, rho, norm;
	int layer, norm_layer;
};

/* Mix of `values` blocks and the prefix, then the norm; y and stat per tile. */
static void
mix_fwd(struct k3i_walk *w, const struct mix_roles *r, size_t values, const uint32_t *p,
	uint32_t *y, uint32_t *stat, const char *name)
{
	struct k3_builder *b = w->b;
	uint32_t list[K3_MAX_LAYERS + 1];

	for (size_t i = 0; i < w->n; i++) {
		size_t t = k3i_rows(w, i), d = w->c->width;
		y[i] = k3i_act(w, name, r->layer, i, -1, d);
		stat[i] = k3i_saved_stat(w, "mix_stat", r->layer, i, -1, k3_mix_stat_len(values));
		struct k3_mix_norm_fwd_args *a = k3i_task(b, K3_OP_MIX_NORM_FWD, r->layer,
							  k3i_tile_no(w, i), -1, sizeof(*a));
		a->t = t;
		a->d = d;
		a->eps = (float)w->c->norm_eps;
		k3i_use(b, y[i], K3_W);
		k3i_use(b, stat[i], K3_W);
		k3i_use(b, p[i], K3_R);
		for (size_t j = 0; j < values; j++)
			list[j] = w->block[j][i];
		k3i_list(b, &a->blocks, list, values, K3_R);
		if (values) {
			k3i_weight(b, &a->gamma, r->gamma, r->layer);
			k3i_weight(b, &a->rho, r->rho, r->layer);
		}
		k3i_weight(b, &a->w, r->norm, r->norm_layer);
		k3i_task_end(b, (double)(t * d) * (8.0 * (double)(values + 1) + 4), 0);
	}
}

/* Adds to the gradients of `values` blocks and of the prefix; addends[0..1] (tile arrays or NULL)
 * go into the prefix's. */
static void
mix_bwd(struct k3i_walk *w, const struct mix_roles *r, size_t values, const uint32_t *p,
	const uint32_t *dy, const uint32_t *stat, const uint32_t *const addends[2], uint32_t *dp,
	const char *name, int name_layer)
{
	struct k3_builder *b = w->b;
	uint32_t list[K3_MAX_LAYERS + 1];

	for (size_t i = w->n; i-- > 0;) {
		size_t t = k3i_rows(w, i), d = w->c->width;
		dp[i] = k3i_act(w, name, name_layer, i, -1, d);
		struct k3_mix_norm_bwd_args *a = k3i_task(b, K3_OP_MIX_NORM_BWD, r->layer,
							  k3i_tile_no(w, i), -1, sizeof(*a));
		a->t = t;
		a->d = d;
		a->eps = (float)w->c->norm_eps;
		k3i_use(b, dp[i], K3_W);
		k3i_use(b, dy[i], K3_R);
		k3i_use(b, stat[i], K3_R);
		k3i_use(b, p[i], K3_R);
		size_t n = 0;
		for (size_t k = 0; k < 2; k++)
			if (addends[k])
				list[n++] = addends[k][i];
		k3i_list(b, &a->addends, list, n, K3_R);
		for (size_t j = 0; j < values; j++)
			list[j] = w->block[j][i];
		k3i_list(b, &a->blocks, list, values, K3_R);
		a->dblocks.first = b->cur ? b->cur->n_access : 0;
		a->dblocks.n = (uint32_t)values;
		for (size_t j = 0; j < values; j++)
			a->blocks_accumulate = k3i_use_sum(b, w->dblock[j][i]);
		if (values) {
			k3i_grad(b, &a->dgamma, r->gamma, r->layer);
			k3i_grad(b, &a->drho, r->rho, r->layer);
		}
		k3i_grad(b, &a->dw, r->norm, r->norm_layer);
		if (values) {
			k3i_weight(b, &a->gamma, r->gamma, r->layer);
			k3i_weight(b, &a->rho, r->rho, r->layer);
		}
		k3i_weight(b, &a->w, r->norm, r->norm_layer);
		k3i_task_end(b, (double)(t * d) * (14.0 * (double)(values + 1) + 10), 0);
	}
}

static struct mix_roles
attn_roles(int layer)
{
	return (struct mix_roles){K3_P_ATTN_RES_NORM, K3_P_ATTN_RES_PROJ, K3_P_ATTN_NORM, layer,
				  layer};
}

static struct mix_roles
ffn_roles(int layer)
{
	return (struct mix_roles){K3_P_FFN_RES_NORM, K3_P_FFN_RES_PROJ, K3_P_FFN_NORM, layer,
				  layer};
}

static const struct mix_roles final_roles = {K3_P_OUT_RES_NORM, K3_P_OUT_RES_PROJ, K3_P_NORM, -1,
					     -1};

static void
layer_fwd(struct k3i_walk *w, int l)
{
	struct k3i_layer_data *ld = &w->layer[l];
	bool opens = (uint32_t)l % w->c->block_layers == 0;
	struct mix_roles attn = attn_roles(l), ffn = ffn_roles(l);

	ld->xn = k3i_array(w, w->n);
	ld->stat_attn = k3i_array(w, w->n);
	ld->hn = k3i_array(w, w->n);
	ld->stat_ffn = k3i_array(w, w->n);
	ld->p_in = w->p;
	k3i_unit_open(w->b, K3_UNIT_LAYER, l, -1);
	mix_fwd(w, &attn, w->n_blocks, w->p, ld->xn, ld->stat_attn, "attn_in");
	if (opens)
		w->block[w->n_blocks++] = w->p;
	w->p = k3i_array(w, w->n);
	for (size_t i = 0; i < w->n; i++)
		w->p[i] = k3i_act(w, "prefix_mid", l, i, -1, w->c->width);
	ld->p_mid = w->p;
	if (w->c->is_mla[l])
		k3i_mla_fwd(w, l, opens);
	else
		k3i_kda_fwd(w, l, opens);
	mix_fwd(w, &ffn, w->n_blocks, w->p, ld->hn, ld->stat_ffn, "ffn_in");
	uint32_t *after = k3i_array(w, w->n);
	for (size_t i = 0; i < w->n; i++) {
		after[i] = k3i_act(w, "prefix", l, i, -1, w->c->width);
		k3i_keep(w, after[i]);
	}
	w->p = after;
	k3i_ffn_fwd(w, l);
	k3i_unit_close(w->b, K3_UNIT_LAYER, l, -1);
}

/* Everything between the two prefixes and the backward tasks.  The attention mix saw the blocks
 * before this layer opened one; both prefixes, routes and the experts' sum were kept. */
static void
layer_again(struct k3i_walk *w, int l)
{
	struct k3i_layer_data *ld = &w->layer[l];
	bool opens = (uint32_t)l % w->c->block_layers == 0;
	struct mix_roles attn = attn_roles(l), ffn = ffn_roles(l);

	w->again = true;
	w->b->pass = K3_PASS_RECOMPUTE;
	mix_fwd(w, &attn, w->n_blocks - opens, ld->p_in, ld->xn, ld->stat_attn, "attn_in");
	if (w->c->is_mla[l])
		k3i_mla_fwd(w, l, opens);
	else
		k3i_kda_fwd(w, l, opens);
	mix_fwd(w, &ffn, w->n_blocks, ld->p_mid, ld->hn, ld->stat_ffn, "ffn_in");
	k3i_ffn_again(w, l);
	w->b->pass = K3_PASS_BACKWARD;
	w->again = false;
}

static void
layer_bwd(struct k3i_walk *w, int l)
{
	struct k3i_layer_data *ld = &w->layer[l];
	bool opens = (uint32_t)l % w->c->block_layers == 0;
	struct mix_roles attn = attn_roles(l), ffn = ffn_roles(l);
	uint32_t *dh = k3i_array(w, w->n), *dmid = k3i_array(w, w->n), *dx = k3i_array(w, w->n),
		 *dprev = k3i_array(w, w->n);

	k3i_unit_open(w->b, K3_UNIT_LAYER, l, -1);
	if (k3i_recomputes(w, l))
		layer_again(w, l);
	k3i_ffn_bwd(w, l, w->dp, dh);
	mix_bwd(w, &ffn, w->n_blocks, ld->p_mid, dh, ld->stat_ffn,
		(const uint32_t *const[2]){w->dp, NULL}, dmid, "dprefix_mid", l);
	if (w->c->is_mla[l])
		k3i_mla_bwd(w, l, dmid, dx);
	else
		k3i_kda_bwd(w, l, dmid, dx);
	const uint32_t *add = dmid;
	if (opens)
		add = w->dblock[--w->n_blocks]; /* the payload is the prefix that came in; y alone
						   went on */
	mix_bwd(w, &attn, w->n_blocks, ld->p_in, dx, ld->stat_attn,
		(const uint32_t *const[2]){add, NULL}, dprev, l > 0 ? "dprefix" : "dembeddings",
		l - 1);
	for (size_t i = 0; i < w->n; i++)
		k3i_keep(w, dprev[i]);
	w->dp = dprev;
	k3i_unit_close(w->b, K3_UNIT_LAYER, l, -1);
	k3i_unit_reduce(w->b, K3_UNIT_LAYER, l, -1);
}

static void
embed_bwd(struct k3i_walk *w)
{
	struct k3_builder *b = w->b;

	for (size_t i = w->n; i-- > 0;) {
		size_t t = k3i_rows(w, i);
		struct k3_embed_args *a =
			k3i_task(b, K3_OP_EMBED_BWD, -1, k3i_tile_no(w, i), -1, sizeof(*a));
		a->t = t;
		a->d = w->c->width;
		k3i_use(b, w->dp[i], K3_R);
		k3i_use(b, w->ids[i], K3_R);
		k3i_list_one(b, &a->map, w->map ? (int32_t)w->map[i] : K3_NO_DATUM, K3_R);
		k3i_grad(b, &a->table, K3_P_EMBED, -1);
		/* the first clears the table, each updates the rows of its tokens */
		size_t cleared = a->table.accumulate ? 0 : a->table.rows;
		size_t moved = t * k3_dtype_bytes(b->act) + (2 * t + cleared) * sizeof(float);
		k3i_task_end(b, (double)(t * w->c->width), (double)(moved * w->c->width));
	}
	k3i_unit_reduce(b, K3_UNIT_EMBED, -1, -1);
}

static void
backward(struct k3i_walk *w, const uint32_t *dh)
{
	const uint32_t *const none[2] = {NULL, NULL};

	w->b->pass = K3_PASS_BACKWARD;
	w->dp = k3i_array(w, w->n);
	w->dblock = k3i_arena_alloc(w->b->plan->arena, (w->n_blocks + 1) * sizeof(*w->dblock));
	if (!w->dblock) {
		w->b->status = K3_ENOMEM;
		return;
	}
	for (size_t j = 0; j < w->n_blocks; j++) {
		w->dblock[j] = k3i_array(w, w->n);
		for (size_t i = 0; i < w->n; i++)
			w->dblock[j][i] = k3i_act(w, "dblock", -1, i, (int)j, w->c->width);
	}
	k3i_unit_open(w->b, K3_UNIT_ROOT, -1, -1);
	mix_bwd(w, &final_roles, w->n_blocks, w->p, dh, w->stat_final, none, w->dp, "dprefix",
		(int)w->c->layers - 1);
	for (size_t i = 0; i < w->n; i++)
		k3i_keep(w, w->dp[i]);
	k3i_unit_close(w->b, K3_UNIT_ROOT, -1, -1);
	k3i_unit_close(w->b, K3_UNIT_HEAD, -1, -1);
	k3i_unit_reduce(w->b, K3_UNIT_ROOT, -1, -1);
	k3i_unit_reduce(w->b, K3_UNIT_HEAD, -1, -1);
	for (int l = (int)w->c->layers - 1; l >= 0; l--)
		layer_bwd(w, l);
	embed_bwd(w);
	k3i_vision_bwd(w);
}

static void
walk(struct k3i_walk *w, const struct k3_layout *layout)
{
	const struct k3_config *c = w->c;
	struct k3_arena *arena = w->b->plan->arena;

	w->layer = k3i_arena_alloc(arena, c->layers * sizeof(*w->layer));
	w->block = k3i_arena_alloc(arena, (c->layers + 1) * sizeof(*w->block));
	if (!w->layer || !w->block || !make_sink(w)) {
		w->b->status = K3_ENOMEM;
		return;
	}
	load_inputs(w, layout);
	if (w->b->status != K3_OK)
		return;
	k3i_vision_fwd(w);
	embed(w);
	k3i_vision_scatter(w);
	if (w->b->what.tower) {
		w->b->pass = K3_PASS_BACKWARD;
		w->dp = w->p;
		embed_bwd(w);
		k3i_vision_bwd(w);
		return;
	}
	for (int l = 0; l < (int)c->layers; l++)
		layer_fwd(w, l);
	w->hf = k3i_array(w, w->n);
	w->stat_final = k3i_array(w, w->n);
	uint32_t *dh = k3i_array(w, w->n);
	k3i_unit_open(w->b, K3_UNIT_ROOT, -1, -1);
	k3i_unit_open(w->b, K3_UNIT_HEAD, -1, -1);
	mix_fwd(w, &final_roles, w->n_blocks, w->p, w->hf, w->stat_final, "head_in");
	k3i_unit_close(w->b, K3_UNIT_ROOT, -1, -1);
	k3i_head(w, dh);
	/* the final norm belongs to the head's unit, which therefore stays until its gradient is
	 * done */
	if (w->b->what.backward)
		backward(w, dh);
	else
		k3i_unit_close(w->b, K3_UNIT_HEAD, -1, -1);
}

/* What earlier microbatches of the step have written. */
static void
mark_written(struct k3_builder *b)
{
	const struct k3_model *m = b->model;

	if (b->what.first)
		return;
	for (uint32_t i = 0; i < m->n_blocks; i++)
		b->written[m->n_blocks + i] = 1;
	for (uint32_t l = 0; l < m->config.layers; l++)
		if (m->balance[l] != K3_NO_DATUM)
			b->written[m->balance[l]] = 1;
	b->written[m->loss_acc] = 1;
}

int
k3_plan_microbatch(struct k3_plan **plan, const struct k3_model *model,
		   const struct k3_layout *layout, const struct k3_microbatch *what)
{
	struct k3_builder b;
	struct k3i_walk w = {.b = &b, .c = &model->config};
	int ret = k3_layout_check(layout);

	*plan = NULL;
	if (ret == K3_OK)
		ret = k3_plan_check_tokens(model, layout->n_tokens, what->backward);
	if (ret != K3_OK)
		return ret;
	if (k3i_builder_init(&b, model) == K3_OK) {
		b.what = *what;
		mark_written(&b);
		b.status = k3i_layout_tiles(&b, layout);
	}
	if (b.status == K3_OK) {
		w.n = b.plan->own_n;
		w.nominal =
			model->options.tile_tokens ? model->options.tile_tokens : b.plan->own_rows;
		if (w.nominal > b.plan->own_rows)
			w.nominal = b.plan->own_rows;
		w.kda_heads_each = (w.c->kda_heads + model->options.kda_groups - 1) /
				   model->options.kda_groups;
		w.mla_heads_each =
			(w.c->heads + model->options.mla_groups - 1) / model->options.mla_groups;
		w.kda_groups = (w.c->kda_heads + w.kda_heads_each - 1) / w.kda_heads_each;
		w.mla_groups = (w.c->heads + w.mla_heads_each - 1) / w.mla_heads_each;
		walk(&w, layout);
	}
	return k3i_builder_finish(&b, plan);
}
