/* Gated MLA layers in the plan (model.md 4).  A query tile attends to ranges of at most key_tiles
 * key tiles, those of its own rank first, then, under context parallelism, those of one earlier
 * rank after the other, as they arrive.  Ranges and pairs without a common document are not
 * planned, but keep their position.  The diagonal is always planned, so every output is written. */
#include "../common/status.h"
#include "text.h"

static uint32_t
group_first(const struct k3i_walk *w, uint32_t g)
{
	return g * w->mla_heads_each;
}

static uint32_t
group_heads(const struct k3i_walk *w, uint32_t g)
{
	size_t first;

	return (uint32_t)k3_heads_of_group(w->c->heads, w->mla_heads_each, g, &first);
}

/* Does a query of own tile i see a key of tile j (not later)? */
static bool
pair_needed(const struct k3i_walk *w, size_t i, size_t j)
{
	const struct k3_tile *q = k3i_tile(w, i), *k = k3i_key_tile(w, j);

	return k3i_key(w, i) == j || (q->first_doc && q->first_doc == k->last_doc);
}

/* Does any query of this rank? */
static bool
key_needed(const struct k3i_walk *w, size_t j)
{
	for (size_t i = 0; i < w->n; i++)
		if (k3i_key(w, i) >= j && pair_needed(w, i, j))
			return true;
	return false;
}

/* Multiply-adds of one pair count twice; the diagonal is half empty. */
static double
pair_flops(const struct k3i_walk *w, size_t i, size_t j, uint32_t g)
{
	double width = (double)(w->c->nope_dim + w->c->rope_dim + w->c->v_dim);
	double pairs = (double)k3i_rows(w, i) * (double)k3i_key_tile(w, j)->rows *
		       (k3i_key(w, i) == j ? 0.5 : 1.0);

	return 2.0 * pairs * width * group_heads(w, g);
}

static void
proj_args(const struct k3i_walk *w, struct k3_mla_proj_args *a, size_t t)
{
	const struct k3_config *c = w->c;

	*a = (struct k3_mla_proj_args){.t = t,
				       .d = c->width,
				       .h = c->heads,
				       .kq = c->nope_dim + c->rope_dim,
				       .v = c->v_dim,
				       .rq = c->q_rank,
				       .rkv = c->kv_rank,
				       .rope = c->rope_dim,
				       .eps = (float)c->mla_norm_eps,
				       .group_heads = w->mla_heads_each};
}

static double
proj_flops(const struct k3_mla_proj_args *a)
{
	return 2.0 * (double)a->t *
	       (double)(a->d * a->rq + a->rq * a->h * a->kq + a->d * (a->rkv + a->rope) +
			a->d * a->h * a->v);
}

static void
proj_fwd(struct k3i_walk *w, int l, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	struct k3_mla_proj_args *a, base;

	proj_args(w, &base, k3i_rows(w, i));
	ld->qa[i] = k3i_saved(w, "qa", l, i, -1, base.rq);
	ld->q[i] = k3i_act(w, "q", l, i, -1, base.h * base.kq);
	uint32_t c = ld->c[k3i_key(w, i)] = k3i_act(w, "c", l, i, -1, base.rkv + base.rope);
	ld->zg[i] = k3i_act(w, "zg", l, i, -1, base.h * base.v);
	a = k3i_task(b, K3_OP_MLA_PROJ_FWD, l, k3i_tile_no(w, i), -1, sizeof(*a));
	*a = base;
	k3i_use(b, ld->qa[i], K3_W);
	k3i_use(b, ld->q[i], K3_W);
	k3i_use(b, c, K3_W);
	k3i_use(b, ld->zg[i], K3_W);
	k3i_use(b, ld->xn[i], K3_R);
	k3i_work(b, w->nominal * base.rq);
	k3i_weight(b, &a->wqa, K3_P_MLA_QA, l);
	k3i_weight(b, &a->qn, K3_P_MLA_QN, l);
	k3i_weight(b, &a->wqb, K3_P_MLA_QB, l);
	k3i_weight(b, &a->wkva, K3_P_MLA_KVA, l);
	k3i_weight(b, &a->wgate, K3_P_MLA_GATE, l);
	k3i_task_end(b, proj_flops(&base), 0);
}

static void
expand_args(const struct k3i_walk *w, struct k3_mla_expand_args *a, size_t t)
{
	const struct k3_config *c = w->c;

	*a = (struct k3_mla_expand_args){.t = t,
					 .h = c->heads,
					 .nope = c->nope_dim,
					 .rope = c->rope_dim,
					 .v = c->v_dim,
					 .rkv = c->kv_rank,
					 .eps = (float)c->mla_norm_eps,
					 .group_heads = w->mla_heads_each};
}

static double
expand_flops(const struct k3_mla_expand_args *a)
{
	return 2.0 * (double)a->t * (double)(a->rkv * a->h * (a->nope + a->v));
}

/* Keys and values of tile j, which may be another rank's; its position is taken even when no query
 * needs it. */
static void
expand_fwd(struct k3i_walk *w, int l, size_t j)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	struct k3_mla_expand_args *a, base;
	size_t t = k3i_key_tile(w, j)->rows;

	expand_args(w, &base, t);
	ld->kv[j] = k3i_data(b, "kv", K3_DATA_ACT, b->act, l, (int)j, -1, t, w->nominal,
			     base.h * (base.nope + base.v) + base.rope);
	if (!key_needed(w, j)) {
		k3i_skip_work(b, w->nominal * base.rkv);
		k3i_touch(b, ld->kv[j]);
		k3i_touch(b, ld->c[j]);
		k3i_touch_weight(b, K3_P_MLA_KN, l);
		k3i_touch_weight(b, K3_P_MLA_KVB, l);
		return;
	}
	a = k3i_task(b, K3_OP_MLA_EXPAND_FWD, l, (int)j, -1, sizeof(*a));
	*a = base;
	k3i_use(b, ld->kv[j], K3_W);
	k3i_use(b, ld->c[j], K3_R);
	k3i_work(b, w->nominal * base.rkv);
	k3i_weight(b, &a->kn, K3_P_MLA_KN, l);
	k3i_weight(b, &a->wkvb, K3_P_MLA_KVB, l);
	k3i_task_end(b, expand_flops(&base), 0);
}

static void
attn_args(const struct k3i_walk *w, struct k3_mla_attn_args *a, size_t t, uint32_t g)
{
	const struct k3_config *c = w->c;

	*a = (struct k3_mla_attn_args){
		.t = t,
		.tk_max = w->nominal,
		.h = c->heads,
		.nope = c->nope_dim,
		.rope = c->rope_dim,
		.v = c->v_dim,
		.h0 = group_first(w, g),
		.h1 = group_first(w, g) + group_heads(w, g),
		.scale = 1.0f / __builtin_sqrtf((float)(c->nope_dim + c->rope_dim))};
}

/* Query tile i against the needed key tiles of j0 .. j1-1. */
static void
attn_range(struct k3i_walk *w, int l, size_t i, size_t j0, size_t j1, uint32_t g)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t at = i * w->mla_groups + g, n = 0;
	double flops = 0;

	for (size_t j = j0; j < j1; j++)
		n += pair_needed(w, i, j);
	if (n == 0) {
		k3i_skip_work(b, k3_mla_attn_fwd_work_floats(w->nominal, w->c->nope_dim,
							     w->c->rope_dim, w->c->v_dim));
		for (size_t j = j0; j < j1; j++) {
			k3i_touch(b, ld->kv[j]);
			k3i_touch(b, w->key_layout[j]);
		}
		k3i_touch(b, ld->q[i]);
		k3i_touch(b, w->layout[i]);
		k3i_touch(b, ld->att[at]);
		k3i_touch(b, ld->lse[at]);
		return;
	}
	struct k3_mla_attn_args *a =
		k3i_task(b, K3_OP_MLA_ATTN_FWD, l, k3i_tile_no(w, i), (int)g, sizeof(*a));
	attn_args(w, a, k3i_rows(w, i), g);
	a->first = !k3i_use_sum(b, ld->att[at]);
	k3i_use_sum(b, ld->lse[at]);
	k3i_use(b, ld->q[i], K3_R);
	k3i_use(b, w->layout[i], K3_R);
	k3i_work(b, k3_mla_attn_fwd_work_floats(w->nominal, a->nope, a->rope, a->v));
	a->kv.first = b->cur ? b->cur->n_access : 0;
	a->kv.n = a->klayout.n = (uint32_t)n;
	for (size_t j = j0; j < j1; j++) {
		k3i_touch(b, ld->kv[j]);
		k3i_touch(b, w->key_layout[j]);
		if (!pair_needed(w, i, j))
			continue;
		k3i_use(b, ld->kv[j], K3_R);
		flops += pair_flops(w, i, j, g);
	}
	a->klayout.first = b->cur ? b->cur->n_access : 0;
	for (size_t j = j0; j < j1; j++)
		if (pair_needed(w, i, j))
			k3i_use(b, w->key_layout[j], K3_R);
	k3i_task_end(b, flops, 0);
}

/* Query tile i against key tiles j0 .. j1-1 in ranges; a piece that arrives together is never mixed
 * with another. */
static void
attn_fwd(struct k3i_walk *w, int l, size_t i, size_t j0, size_t j1)
{
	size_t step = w->b->model->options.key_tiles;

	for (uint32_t g = 0; g < w->mla_groups; g++)
		for (size_t j = j0; j < j1; j += step)
			attn_range(w, l, i, j, j + step < j1 ? j + step : j1, g);
}

/* The own piece first, which is there; then those of earlier ranks. */
static void
attn_pieces(struct k3i_walk *w, int l)
{
	struct k3i_layer_data *ld = &w->layer[l];
	size_t first = w->b->plan->own_first;

	for (size_t i = 0; i < w->n; i++)
		for (uint32_t g = 0; g < w->mla_groups; g++) {
			size_t at = i * w->mla_groups + g;
			ld->att[at] =
				k3i_act(w, "att", l, i, (int)g, group_heads(w, g) * w->c->v_dim);
			ld->lse[at] = k3i_saved_stat(w, "lse", l, i, (int)g, group_heads(w, g));
		}
	for (size_t i = 0; i < w->n; i++)
		attn_fwd(w, l, i, first, first + i + 1);
	for (size_t j = 0; j < first; j += w->n) {
		for (size_t k = j; k < j + w->n; k++)
			expand_fwd(w, l, k);
		for (size_t i = 0; i < w->n; i++)
			attn_fwd(w, l, i, j, j + w->n);
	}
}

static void
out_args(const struct k3i_walk *w, struct k3_mla_out_args *a, size_t t)
{
	*a = (struct k3_mla_out_args){.t = t,
				      .d = w->c->width,
				      .h = w->c->heads,
				      .v = w->c->v_dim,
				      .group_heads = w->mla_heads_each};
}

static void
out_fwd(struct k3i_walk *w, int l, size_t i, bool opens)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t t = k3i_rows(w, i), hv = (size_t)w->c->heads * w->c->v_dim;

	struct k3_mla_out_args *a =
		k3i_task(b, K3_OP_MLA_OUT_FWD, l, k3i_tile_no(w, i), -1, sizeof(*a));
	out_args(w, a, t);
	k3i_use(b, ld->p_mid[i], K3_W);
	k3i_use(b, ld->zg[i], K3_R);
	k3i_work(b, w->nominal * hv);
	k3i_list(b, &a->o, &ld->att[i * w->mla_groups], w->mla_groups, K3_R);
	k3i_list_one(b, &a->p_in, opens ? K3_NO_DATUM : (int32_t)ld->p_in[i], K3_R);
	k3i_weight(b, &a->wo, K3_P_MLA_O, l);
	k3i_task_end(b, 2.0 * (double)t * (double)(hv * w->c->width), 0);
}

void
k3i_mla_fwd(struct k3i_walk *w, int layer, bool opens)
{
	struct k3i_layer_data *ld = &w->layer[layer];

	ld->qa = k3i_array(w, w->n);
	ld->q = k3i_array(w, w->n);
	ld->c = k3i_array(w, w->n_keys);
	ld->zg = k3i_array(w, w->n);
	ld->kv = k3i_array(w, w->n_keys);
	ld->att = k3i_array(w, w->n * w->mla_groups);
	ld->lse = k3i_array(w, w->n * w->mla_groups);
	for (size_t i = 0; i < w->n; i++)
		proj_fwd(w, layer, i);
	k3i_gather_kv(w, layer, ld->c);
	for (size_t i = 0; i < w->n; i++)
		expand_fwd(w, layer, k3i_key(w, i));
	attn_pieces(w, layer);
	for (size_t i = 0; i < w->n && !w->again; i++) /* the prefix was kept */
		out_fwd(w, layer, i, opens);
}

struct grads {
	uint32_t *dzg, *da, *delta, *dq, *dkv, *dc,
		*dqa; /* dkv: [key * groups + g]; dc: [n_keys] */
	bool *made;   /* [n_keys]: some query of this rank gives a gradient */
};

static void
out_bwd(struct k3i_walk *w, int l, size_t i, const uint32_t *dp, struct grads *gr)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t t = k3i_rows(w, i), hv = (size_t)w->c->heads * w->c->v_dim, at = i * w->mla_groups;
	double flops = 2.0 * (double)t * (double)(hv * w->c->width);

	gr->dzg[i] = k3i_act(w, "dzg", l, i, -1, hv);
	for (uint32_t g = 0; g < w->mla_groups; g++) {
		gr->da[at + g] = k3i_act(w, "da", l, i, (int)g, group_heads(w, g) * w->c->v_dim);
		gr->delta[at + g] = k3i_stat(w, "delta", l, i, (int)g, group_heads(w, g));
	}
	struct k3_mla_out_args *a =
		k3i_task(b, K3_OP_MLA_OUT_BWD_DX, l, k3i_tile_no(w, i), -1, sizeof(*a));
	out_args(w, a, t);
	k3i_use(b, gr->dzg[i], K3_W);
	k3i_use(b, dp[i], K3_R);
	k3i_use(b, ld->zg[i], K3_R);
	k3i_work(b, w->nominal * hv);
	k3i_list(b, &a->da, &gr->da[at], w->mla_groups, K3_W);
	k3i_list(b, &a->delta, &gr->delta[at], w->mla_groups, K3_W);
	k3i_list(b, &a->o, &ld->att[at], w->mla_groups, K3_R);
	k3i_weight(b, &a->wo, K3_P_MLA_O, l);
	k3i_task_end(b, flops, 0);

	struct k3_mla_out_args *dw =
		k3i_task(b, K3_OP_MLA_OUT_BWD_DW, l, k3i_tile_no(w, i), -1, sizeof(*dw));
	out_args(w, dw, t);
	k3i_use(b, dp[i], K3_R);
	k3i_use(b, ld->zg[i], K3_R);
	k3i_work(b, w->nominal * hv);
	k3i_list(b, &dw->o, &ld->att[at], w->mla_groups, K3_R);
	k3i_grad(b, &dw->wo, K3_P_MLA_O, l);
	k3i_task_end(b, flops, 0);
}

/* Pairs in row-major order, rows descending: dq_i sums over j in one order, dkv_j over i. */
static void
attn_pair_bwd(struct k3i_walk *w, int l, size_t i, size_t j, uint32_t g, struct grads *gr)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t qi = i * w->mla_groups + g, kj = j * w->mla_groups + g;

	if (!pair_needed(w, i, j)) {
		k3i_skip_work(b, k3_mla_attn_bwd_work_floats(w->nominal, w->c->nope_dim,
							     w->c->rope_dim, w->c->v_dim));
	} else {
		struct k3_mla_attn_args *a =
			k3i_task(b, K3_OP_MLA_ATTN_BWD, l, k3i_tile_no(w, i), (int)g, sizeof(*a));
		attn_args(w, a, k3i_rows(w, i), g);
		a->init_dq = !k3i_use_sum(b, gr->dq[qi]);
		a->init_dkv = !k3i_use_sum(b, gr->dkv[kj]);
		k3i_use(b, ld->q[i], K3_R);
		k3i_use(b, ld->kv[j], K3_R);
		k3i_use(b, gr->da[qi], K3_R);
		k3i_use(b, ld->lse[qi], K3_R);
		k3i_use(b, gr->delta[qi], K3_R);
		k3i_use(b, w->layout[i], K3_R);
		k3i_use(b, w->key_layout[j], K3_R);
		k3i_work(b, k3_mla_attn_bwd_work_floats(w->nominal, a->nope, a->rope, a->v));
		k3i_task_end(b, 2.5 * pair_flops(w, i, j, g), 0);
	}
	const uint32_t operand[] = {gr->dq[qi],	   gr->dkv[kj],	 ld->q[i],
				    ld->kv[j],	   gr->da[qi],	 ld->lse[qi],
				    gr->delta[qi], w->layout[i], w->key_layout[j]};
	for (size_t n = 0; n < sizeof(operand) / sizeof(operand[0]); n++)
		k3i_touch(b, operand[n]);
}

/* Two tasks: input gradient, then weight gradient. */
static void
skip_expand_bwd(struct k3i_walk *w, int l, size_t j, struct grads *gr)
{
	struct k3_builder *b = w->b;

	for (int task = 0; task < 2; task++) {
		k3i_skip_work(b, w->nominal * w->c->kv_rank);
		k3i_touch(b, w->layer[l].c[j]);
		if (task == 0)
			k3i_touch(b, gr->dc[j]);
		for (uint32_t g = 0; g < w->mla_groups; g++)
			k3i_touch(b, gr->dkv[j * w->mla_groups + g]);
		k3i_touch_weight(b, K3_P_MLA_KN, l);
		if (task == 0)
			k3i_touch_weight(b, K3_P_MLA_KVB, l);
	}
}

static void
expand_bwd(struct k3i_walk *w, int l, size_t j, struct grads *gr)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	struct k3_mla_expand_args *a, base;

	expand_args(w, &base, k3i_key_tile(w, j)->rows);
	gr->dc[j] = k3i_data(b, "dc", K3_DATA_ACT, b->act, l, (int)j, -1, base.t, w->nominal,
			     base.rkv + base.rope);
	gr->made[j] = key_needed(w, j);
	if (!gr->made[j]) {
		skip_expand_bwd(w, l, j, gr);
		return;
	}
	a = k3i_task(b, K3_OP_MLA_EXPAND_BWD_DX, l, (int)j, -1, sizeof(*a));
	*a = base;
	k3i_use(b, gr->dc[j], K3_W);
	k3i_use(b, ld->c[j], K3_R);
	k3i_work(b, w->nominal * base.rkv);
	k3i_list(b, &a->dkv, &gr->dkv[j * w->mla_groups], w->mla_groups, K3_R);
	k3i_grad(b, &a->dkn, K3_P_MLA_KN, l);
	k3i_weight(b, &a->kn, K3_P_MLA_KN, l);
	k3i_weight(b, &a->wkvb, K3_P_MLA_KVB, l);
	k3i_task_end(b, expand_flops(&base), 0);

	struct k3_mla_expand_args *dw =
		k3i_task(b, K3_OP_MLA_EXPAND_BWD_DW, l, (int)j, -1, sizeof(*dw));
	*dw = base;
	k3i_use(b, ld->c[j], K3_R);
	k3i_work(b, w->nominal * base.rkv);
	k3i_list(b, &dw->dkv, &gr->dkv[j * w->mla_groups], w->mla_groups, K3_R);
	k3i_weight(b, &dw->kn, K3_P_MLA_KN, l);
	k3i_grad(b, &dw->wkvb, K3_P_MLA_KVB, l);
	k3i_task_end(b, expand_flops(&base), 0);
}

static void
proj_bwd(struct k3i_walk *w, int l, size_t i, struct grads *gr, uint32_t *dx)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	struct k3_mla_proj_args *a, base;
	size_t at = i * w->mla_groups;

	proj_args(w, &base, k3i_rows(w, i));
	dx[i] = k3i_act(w, "dattn_in", l, i, -1, base.d);
	gr->dqa[i] = k3i_act(w, "dqa", l, i, -1, base.rq);
	a = k3i_task(b, K3_OP_MLA_PROJ_BWD_DX, l, k3i_tile_no(w, i), -1, sizeof(*a));
	*a = base;
	k3i_use(b, dx[i], K3_W);
	k3i_use(b, gr->dqa[i], K3_W);
	k3i_use(b, gr->dc[k3i_key(w, i)], K3_R);
	k3i_use(b, gr->dzg[i], K3_R);
	k3i_use(b, ld->qa[i], K3_R);
	k3i_work(b, w->nominal * base.rq);
	k3i_list(b, &a->dq, &gr->dq[at], w->mla_groups, K3_R);
	k3i_grad(b, &a->dqn, K3_P_MLA_QN, l);
	k3i_weight(b, &a->qn, K3_P_MLA_QN, l);
	k3i_weight(b, &a->wqa, K3_P_MLA_QA, l);
	k3i_weight(b, &a->wqb, K3_P_MLA_QB, l);
	k3i_weight(b, &a->wkva, K3_P_MLA_KVA, l);
	k3i_weight(b, &a->wgate, K3_P_MLA_GATE, l);
	k3i_task_end(b, proj_flops(&base), 0);

	struct k3_mla_proj_args *dw =
		k3i_task(b, K3_OP_MLA_PROJ_BWD_DW, l, k3i_tile_no(w, i), -1, sizeof(*dw));
	*dw = base;
	k3i_use(b, gr->dqa[i], K3_R);
	k3i_use(b, gr->dc[k3i_key(w, i)], K3_R);
	k3i_use(b, gr->dzg[i], K3_R);
	k3i_use(b, ld->qa[i], K3_R);
	k3i_use(b, ld->xn[i], K3_R);
	k3i_work(b, w->nominal * base.rq);
	k3i_list(b, &dw->dq, &gr->dq[at], w->mla_groups, K3_R);
	k3i_weight(b, &dw->qn, K3_P_MLA_QN, l);
	k3i_grad(b, &dw->wqa, K3_P_MLA_QA, l);
	k3i_grad(b, &dw->wqb, K3_P_MLA_QB, l);
	k3i_grad(b, &dw->wkva, K3_P_MLA_KVA, l);
	k3i_grad(b, &dw->wgate, K3_P_MLA_GATE, l);
	k3i_task_end(b, proj_flops(&base), 0);
}

void
k3i_mla_bwd(struct k3i_walk *w, int layer, const uint32_t *dp, uint32_t *dx)
{
	size_t n = w->n, ng = w->n * w->mla_groups, kq = w->c->nope_dim + w->c->rope_dim;
	struct grads gr = {
		.dzg = k3i_array(w, n),
		.da = k3i_array(w, ng),
		.delta = k3i_array(w, ng),
		.dq = k3i_array(w, ng),
		.dkv = k3i_array(w, w->n_keys * w->mla_groups),
		.dc = k3i_array(w, w->n_keys),
		.dqa = k3i_array(w, n),
		.made = k3i_arena_alloc(w->b->plan->arena, w->n_keys),
	};

	if (!gr.made)
		w->b->status = K3_ENOMEM;
	if (w->b->status != K3_OK)
		return;
	for (uint32_t g = 0; g < w->mla_groups; g++) {
		size_t hg = group_heads(w, g);
		for (size_t i = 0; i < n; i++)
			gr.dq[i * w->mla_groups + g] = k3i_act(w, "dq", layer, i, (int)g, hg * kq);
		for (size_t j = 0; j < w->n_keys; j++)
			gr.dkv[j * w->mla_groups + g] =
				k3i_data(w->b, "dkv", K3_DATA_ACT, w->b->act, layer, (int)j, (int)g,
					 k3i_key_tile(w, j)->rows, w->nominal,
					 hg * (w->c->nope_dim + w->c->v_dim) + w->c->rope_dim);
	}
	for (size_t i = n; i-- > 0;)
		out_bwd(w, layer, i, dp, &gr);
	for (size_t i = n; i-- > 0;)
		for (size_t j = k3i_key(w, i) + 1; j-- > 0;)
			for (uint32_t g = 0; g < w->mla_groups; g++)
				attn_pair_bwd(w, layer, i, j, g, &gr);
	for (size_t j = w->n_keys; j-- > 0;)
		expand_bwd(w, layer, j, &gr);
	k3i_scatter_kv_grads(w, layer, gr.dc, gr.made);
	for (size_t i = n; i-- > 0;)
		proj_bwd(w, layer, i, &gr, dx);
}
