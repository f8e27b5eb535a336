/* KDA layers in the plan (model.md 3).  The state of a head group is handed from tile to tile of a
 * document; the halo of the convolution likewise.  Both data exist for every tile, whatever the
 * documents, so that slots do not depend on them; only the accesses do. */
#include "../common/status.h"
#include "text.h"

static uint32_t
group_first(const struct k3i_walk *w, uint32_t g)
{
	return g * w->kda_heads_each;
}

static uint32_t
group_heads(const struct k3i_walk *w, uint32_t g)
{
	size_t first;

	return (uint32_t)k3_heads_of_group(w->c->kda_heads, w->kda_heads_each, g, &first);
}

/* An operand that is there only when the documents need it; its lifetime counts either way. */
static void
list_maybe(struct k3_builder *b, struct k3_list *list, const uint32_t *datum, int tile,
	   enum k3_mode mode)
{
	k3i_list_one(b, list, tile >= 0 ? (int32_t)datum[tile] : K3_NO_DATUM, mode);
}

static void
touch_neighbours(struct k3i_walk *w, const uint32_t *datum, size_t i, size_t stride, size_t offset)
{
	k3i_touch(w->b, datum[i * stride + offset]);
	if (i > 0)
		k3i_touch(w->b, datum[(i - 1) * stride + offset]);
	if (w->b->model->options.mesh.cp > 1)
		k3i_touch(w->b, datum[w->n * stride + offset]);
}

static void
conv_args(const struct k3i_walk *w, struct k3_kda_conv_args *a, size_t t)
{
	a->t = t;
	a->h = w->c->kda_heads;
	a->k = w->c->kda_dim;
	a->p = a->h * a->k;
	a->taps = w->c->conv_taps;
	a->l2_eps = (float)w->c->l2_eps;
	a->group_heads = w->kda_heads_each;
}

static void
proj_fwd(struct k3i_walk *w, int l, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t t = k3i_rows(w, i), d = w->c->width, h = w->c->kda_heads, k = w->c->kda_dim,
	       p = h * k;

	ld->qkvr[i] = k3i_act(w, "qkvr", l, i, -1, 3 * p);
	struct k3_kda_proj_args *a =
		k3i_task(b, K3_OP_KDA_PROJ_FWD, l, k3i_tile_no(w, i), -1, sizeof(*a));
	a->t = t;
	a->d = d;
	a->p = p;
	k3i_use(b, ld->qkvr[i], K3_W);
	k3i_use(b, ld->xn[i], K3_R);
	k3i_weight(b, &a->wq, K3_P_KDA_Q, l);
	k3i_weight(b, &a->wk, K3_P_KDA_K, l);
	k3i_weight(b, &a->wv, K3_P_KDA_V, l);
	k3i_task_end(b, 6.0 * (double)t * (double)(d * p), 0);

	ld->fa[i] = k3i_saved(w, "fa", l, i, -1, k);
	ld->f[i] = k3i_act(w, "f", l, i, -1, p);
	ld->br[i] = k3i_act(w, "br", l, i, -1, h);
	ld->gg[i] = k3i_act(w, "gg", l, i, -1, p);
	struct k3_kda_gate_args *g =
		k3i_task(b, K3_OP_KDA_GATE_FWD, l, k3i_tile_no(w, i), -1, sizeof(*g));
	*g = (struct k3_kda_gate_args){
		.t = t, .d = d, .p = p, .h = h, .k = k, .group_heads = w->kda_heads_each};
	k3i_use(b, ld->fa[i], K3_W);
	k3i_use(b, ld->f[i], K3_W);
	k3i_use(b, ld->br[i], K3_W);
	k3i_use(b, ld->gg[i], K3_W);
	k3i_use(b, ld->xn[i], K3_R);
	k3i_weight(b, &g->wfa, K3_P_KDA_FA, l);
	k3i_weight(b, &g->wfb, K3_P_KDA_FB, l);
	k3i_weight(b, &g->wb, K3_P_KDA_B, l);
	k3i_weight(b, &g->wg, K3_P_KDA_G, l);
	k3i_task_end(b, 2.0 * (double)t * (double)(d * k + k * p + d * h + d * p), 0);
}

static void
conv_fwd(struct k3i_walk *w, int l, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	const struct k3_tile *tile = k3i_tile(w, i);
	size_t h = w->c->kda_heads, p = h * w->c->kda_dim;

	ld->qkv[i] = k3i_act(w, "qkv", l, i, -1, 3 * p);
	ld->rstd[i] = k3i_saved_stat(w, "rstd", l, i, -1, 2 * h);
	struct k3_kda_conv_args *a =
		k3i_task(b, K3_OP_KDA_CONV_FWD, l, k3i_tile_no(w, i), -1, sizeof(*a));
	conv_args(w, a, tile->rows);
	k3i_use(b, ld->qkv[i], K3_W);
	k3i_use(b, ld->rstd[i], K3_W);
	k3i_use(b, ld->qkvr[i], K3_R);
	k3i_use(b, w->layout[i], K3_R);
	touch_neighbours(w, ld->halo, i, 1, 0);
	list_maybe(b, &a->halo_in, ld->halo, k3i_neighbour(w, tile->prev), K3_R);
	list_maybe(b, &a->halo_out, ld->halo, tile->next >= 0 ? (int)i : -1, K3_W);
	k3i_weight(b, &a->cq, K3_P_KDA_CQ, l);
	k3i_weight(b, &a->ck, K3_P_KDA_CK, l);
	k3i_weight(b, &a->cv, K3_P_KDA_CV, l);
	k3i_task_end(b, (double)tile->rows * (double)(3 * p) * (2.0 * w->c->conv_taps + 12), 0);
}

static void
chunk_args(const struct k3i_walk *w, struct k3_kda_chunk_args *a, size_t t, uint32_t g)
{
	a->t = t;
	a->h = w->c->kda_heads;
	a->k = a->v = w->c->kda_dim;
	a->h0 = group_first(w, g);
	a->h1 = a->h0 + group_heads(w, g);
	a->lower_bound = (float)w->c->gate_lower_bound;
	a->scale = 1.0f / __builtin_sqrtf((float)w->c->kda_dim);
}

/* Products of model.md 3.4 with chunks of 64. */
static double
chunk_flops(const struct k3i_walk *w, size_t t, uint32_t g)
{
	double k = w->c->kda_dim, c = 64;

	return (double)t * group_heads(w, g) * (4 * c * k + 4 * c * k + 6 * k * k + 2 * c * k);
}

static void
chunk_fwd(struct k3i_walk *w, int l, size_t i, uint32_t g)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	const struct k3_tile *tile = k3i_tile(w, i);
	size_t hg = group_heads(w, g), k = w->c->kda_dim, at = i * w->kda_groups + g;
	int prev = k3i_neighbour(w, tile->prev), next = k3i_neighbour(w, tile->next);

	ld->o[at] = k3i_act(w, "o", l, i, (int)g, hg * k);
	struct k3_kda_chunk_args *a =
		k3i_task(b, K3_OP_KDA_CHUNK_FWD, l, k3i_tile_no(w, i), (int)g, sizeof(*a));
	chunk_args(w, a, tile->rows, g);
	k3i_use(b, ld->o[at], K3_W);
	k3i_use(b, ld->qkv[i], K3_R);
	k3i_use(b, ld->f[i], K3_R);
	k3i_use(b, ld->br[i], K3_R);
	k3i_use(b, w->layout[i], K3_R);
	k3i_work(b, k3_kda_chunk_fwd_work_floats(w->nominal, hg, k, k));
	touch_neighbours(w, ld->state, i, w->kda_groups, g);
	k3i_list_one(b, &a->s_in,
		     prev >= 0 ? (int32_t)ld->state[(size_t)prev * w->kda_groups + g] : K3_NO_DATUM,
		     K3_R);
	/* across ranks the state goes another way, see cp.c */
	k3i_list_one(b, &a->s_out,
		     next >= 0 && next < (int)w->n ? (int32_t)ld->state[at] : K3_NO_DATUM, K3_W);
	k3i_weight(b, &a->a_log, K3_P_KDA_ALOG, l);
	k3i_weight(b, &a->dt_bias, K3_P_KDA_DT, l);
	k3i_task_end(b, chunk_flops(w, tile->rows, g), 0);
}

static void
out_args(const struct k3i_walk *w, struct k3_kda_out_args *a, size_t t)
{
	a->t = t;
	a->d = w->c->width;
	a->h = w->c->kda_heads;
	a->v = w->c->kda_dim;
	a->p = a->h * a->v;
	a->eps = (float)w->c->norm_eps;
	a->group_heads = w->kda_heads_each;
}

static void
out_fwd(struct k3i_walk *w, int l, size_t i, bool opens)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t t = k3i_rows(w, i), p = (size_t)w->c->kda_heads * w->c->kda_dim;

	struct k3_kda_out_args *a =
		k3i_task(b, K3_OP_KDA_OUT_FWD, l, k3i_tile_no(w, i), -1, sizeof(*a));
	out_args(w, a, t);
	k3i_use(b, ld->p_mid[i], K3_W);
	k3i_use(b, ld->gg[i], K3_R);
	k3i_work(b, w->nominal * p);
	k3i_list(b, &a->o, &ld->o[i * w->kda_groups], w->kda_groups, K3_R);
	k3i_list_one(b, &a->p_in, opens ? K3_NO_DATUM : (int32_t)ld->p_in[i], K3_R);
	k3i_weight(b, &a->on, K3_P_KDA_ON, l);
	k3i_weight(b, &a->wo, K3_P_KDA_O, l);
	k3i_task_end(b, 2.0 * (double)t * (double)(p * w->c->width), 0);
}

/* Halo rows of every own tile, and what came from another rank. */
static uint32_t *
halo_data(struct k3i_walk *w, int layer, const char *what)
{
	size_t rows = w->c->conv_taps - 1;
	uint32_t *d = k3i_array(w, w->n + 1);

	for (size_t i = 0; i <= w->n && w->b->status == K3_OK; i++)
		d[i] = k3i_data(w->b, what, K3_DATA_ACT, w->b->act, layer,
				i < w->n ? k3i_tile_no(w, i) : -1, -1, rows, rows,
				3 * (size_t)w->c->kda_heads * w->c->kda_dim);
	return d;
}

/* States of every own tile and head group, and what came from another rank. */
static uint32_t *
state_data(struct k3i_walk *w, int layer, const char *what)
{
	size_t k = w->c->kda_dim;
	uint32_t *d = k3i_array(w, (w->n + 1) * w->kda_groups);

	for (size_t i = 0; i <= w->n; i++)
		for (uint32_t g = 0; g < w->kda_groups && w->b->status == K3_OK; g++) {
			size_t hg = group_heads(w, g);
			d[i * w->kda_groups + g] =
				k3i_data(w->b, what, K3_DATA_ACT, K3_F32, layer,
					 i < w->n ? k3i_tile_no(w, i) : -1, (int)g, hg, hg, k * k);
		}
	return d;
}

void
k3i_kda_fwd(struct k3i_walk *w, int layer, bool opens)
{
	struct k3i_layer_data *ld = &w->layer[layer];

	ld->qkvr = k3i_array(w, w->n);
	ld->fa = k3i_array(w, w->n);
	ld->f = k3i_array(w, w->n);
	ld->br = k3i_array(w, w->n);
	ld->gg = k3i_array(w, w->n);
	ld->qkv = k3i_array(w, w->n);
	ld->rstd = k3i_array(w, w->n);
	ld->o = k3i_array(w, w->n * w->kda_groups);
	ld->halo = halo_data(w, layer, "halo");
	ld->state = state_data(w, layer, "state");
	for (size_t i = 0; i < w->n; i++)
		proj_fwd(w, layer, i);
	k3i_halo_recv(w, layer, ld->halo, false);
	for (size_t i = 0; i < w->n; i++)
		conv_fwd(w, layer, i);
	k3i_halo_send(w, layer, ld->halo, false);
	k3i_kda_cut_states(w, layer,
			   &(struct k3i_kda_cut){
				   .qkv = ld->qkv, .f = ld->f, .br = ld->br, .state = ld->state});
	for (size_t i = 0; i < w->n; i++)
		for (uint32_t g = 0; g < w->kda_groups; g++)
			chunk_fwd(w, layer, i, g);
	for (size_t i = 0; i < w->n && !w->again; i++) /* the prefix was kept */
		out_fwd(w, layer, i, opens);
}

/* Gradients that the backward steps of one layer hand on. */
struct grads {
	uint32_t *dgg, *dout, *dqkv, *df, *dbr, *dab, *dstate, *dqkvr, *dhalo, *dfa;
};

static void
out_bwd(struct k3i_walk *w, int l, size_t i, const uint32_t *dp, struct grads *gr)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t t = k3i_rows(w, i), p = (size_t)w->c->kda_heads * w->c->kda_dim,
	       at = i * w->kda_groups;
	double flops = 2.0 * (double)t * (double)(p * w->c->width);

	gr->dgg[i] = k3i_act(w, "dgg", l, i, -1, p);
	for (uint32_t g = 0; g < w->kda_groups; g++)
		gr->dout[at + g] =
			k3i_act(w, "do", l, i, (int)g, group_heads(w, g) * w->c->kda_dim);
	struct k3_kda_out_args *a =
		k3i_task(b, K3_OP_KDA_OUT_BWD_DX, l, k3i_tile_no(w, i), -1, sizeof(*a));
	out_args(w, a, t);
	k3i_use(b, gr->dgg[i], K3_W);
	k3i_use(b, dp[i], K3_R);
	k3i_use(b, ld->gg[i], K3_R);
	k3i_work(b, w->nominal * p);
	k3i_list(b, &a->dout, &gr->dout[at], w->kda_groups, K3_W);
	k3i_list(b, &a->o, &ld->o[at], w->kda_groups, K3_R);
	k3i_grad(b, &a->don, K3_P_KDA_ON, l);
	k3i_weight(b, &a->on, K3_P_KDA_ON, l);
	k3i_weight(b, &a->wo, K3_P_KDA_O, l);
	k3i_task_end(b, flops, 0);

	struct k3_kda_out_args *dw =
		k3i_task(b, K3_OP_KDA_OUT_BWD_DW, l, k3i_tile_no(w, i), -1, sizeof(*dw));
	out_args(w, dw, t);
	k3i_use(b, dp[i], K3_R);
	k3i_use(b, ld->gg[i], K3_R);
	k3i_work(b, w->nominal * p);
	k3i_list(b, &dw->o, &ld->o[at], w->kda_groups, K3_R);
	k3i_weight(b, &dw->on, K3_P_KDA_ON, l);
	k3i_grad(b, &dw->wo, K3_P_KDA_O, l);
	k3i_task_end(b, flops, 0);
}

static void
chunk_bwd(struct k3i_walk *w, int l, size_t i, uint32_t g, struct grads *gr)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	const struct k3_tile *tile = k3i_tile(w, i);
	size_t hg = group_heads(w, g), k = w->c->kda_dim, at = i * w->kda_groups + g;
	int prev = k3i_neighbour(w, tile->prev), next = k3i_neighbour(w, tile->next);

	gr->dqkv[at] = k3i_act(w, "dqkv", l, i, (int)g, 3 * hg * k);
	gr->df[at] = k3i_act(w, "df", l, i, (int)g, hg * k);
	gr->dbr[at] = k3i_act(w, "dbr", l, i, (int)g, hg);
	gr->dab[at] = k3i_data(b, "dab", K3_DATA_ACT, K3_F32, l, k3i_tile_no(w, i), (int)g, hg, hg,
			       1 + k);
	struct k3_kda_chunk_args *a =
		k3i_task(b, K3_OP_KDA_CHUNK_BWD, l, k3i_tile_no(w, i), (int)g, sizeof(*a));
	chunk_args(w, a, tile->rows, g);
	k3i_use(b, gr->dqkv[at], K3_W);
	k3i_use(b, gr->df[at], K3_W);
	k3i_use(b, gr->dbr[at], K3_W);
	k3i_use(b, gr->dab[at], K3_W);
	k3i_use(b, gr->dout[at], K3_R);
	k3i_use(b, ld->qkv[i], K3_R);
	k3i_use(b, ld->f[i], K3_R);
	k3i_use(b, ld->br[i], K3_R);
	k3i_use(b, w->layout[i], K3_R);
	k3i_work(b, k3_kda_chunk_bwd_work_floats(w->nominal, hg, k, k));
	touch_neighbours(w, ld->state, i, w->kda_groups, g);
	/* dstate[i] is the gradient of the state that tile i hands on: written by the next tile of
	 * the document */
	touch_neighbours(w, gr->dstate, i, w->kda_groups, g);
	k3i_list_one(b, &a->s_in,
		     prev >= 0 ? (int32_t)ld->state[(size_t)prev * w->kda_groups + g] : K3_NO_DATUM,
		     K3_R);
	k3i_list_one(b, &a->ds_out, next >= 0 ? (int32_t)gr->dstate[at] : K3_NO_DATUM, K3_R);
	bool own_prev = prev >= 0 && prev < (int)w->n;
	k3i_list_one(b, &a->ds_in,
		     own_prev ? (int32_t)gr->dstate[(size_t)prev * w->kda_groups + g] : K3_NO_DATUM,
		     K3_W);
	k3i_weight(b, &a->a_log, K3_P_KDA_ALOG, l);
	k3i_weight(b, &a->dt_bias, K3_P_KDA_DT, l);
	k3i_task_end(b, 2.5 * chunk_flops(w, tile->rows, g), 0);
}

static void
conv_bwd(struct k3i_walk *w, int l, size_t i, struct grads *gr)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	const struct k3_tile *tile = k3i_tile(w, i);
	size_t p = (size_t)w->c->kda_heads * w->c->kda_dim;
	int prev = k3i_neighbour(w, tile->prev), next = k3i_neighbour(w, tile->next);

	gr->dqkvr[i] = k3i_act(w, "dqkvr", l, i, -1, 3 * p);
	struct k3_kda_conv_args *a =
		k3i_task(b, K3_OP_KDA_CONV_BWD, l, k3i_tile_no(w, i), -1, sizeof(*a));
	conv_args(w, a, tile->rows);
	k3i_use(b, gr->dqkvr[i], K3_W);
	k3i_use(b, ld->qkv[i], K3_R);
	k3i_use(b, ld->rstd[i], K3_R);
	k3i_use(b, ld->qkvr[i], K3_R);
	k3i_use(b, w->layout[i], K3_R);
	touch_neighbours(w, ld->halo, i, 1, 0);
	touch_neighbours(w, gr->dhalo, i, 1, 0);
	k3i_list(b, &a->dqkv, &gr->dqkv[i * w->kda_groups], w->kda_groups, K3_R);
	list_maybe(b, &a->halo_in, ld->halo, prev, K3_R);
	list_maybe(b, &a->dhalo_out, gr->dhalo, next >= 0 ? (int)i : -1, K3_R);
	list_maybe(b, &a->dhalo_in, gr->dhalo, prev, K3_W);
	k3i_grad(b, &a->dcq, K3_P_KDA_CQ, l);
	k3i_grad(b, &a->dck, K3_P_KDA_CK, l);
	k3i_grad(b, &a->dcv, K3_P_KDA_CV, l);
	k3i_weight(b, &a->cq, K3_P_KDA_CQ, l);
	k3i_weight(b, &a->ck, K3_P_KDA_CK, l);
	k3i_weight(b, &a->cv, K3_P_KDA_CV, l);
	k3i_task_end(b, (double)tile->rows * (double)(3 * p) * (6.0 * w->c->conv_taps + 30), 0);
}

static void
proj_bwd(struct k3i_walk *w, int l, size_t i, struct grads *gr, uint32_t *dx)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t t = k3i_rows(w, i), d = w->c->width, h = w->c->kda_heads, k = w->c->kda_dim,
	       p = h * k;
	double flops = 6.0 * (double)t * (double)(d * p);

	dx[i] = k3i_act(w, "dattn_in", l, i, -1, d);
	struct k3_kda_proj_args *a =
		k3i_task(b, K3_OP_KDA_PROJ_BWD_DX, l, k3i_tile_no(w, i), -1, sizeof(*a));
	a->t = t;
	a->d = d;
	a->p = p;
	k3i_use(b, dx[i], K3_W);
	k3i_use(b, gr->dqkvr[i], K3_R);
	k3i_weight(b, &a->wq, K3_P_KDA_Q, l);
	k3i_weight(b, &a->wk, K3_P_KDA_K, l);
	k3i_weight(b, &a->wv, K3_P_KDA_V, l);
	k3i_task_end(b, flops, 0);

	struct k3_kda_proj_args *dw =
		k3i_task(b, K3_OP_KDA_PROJ_BWD_DW, l, k3i_tile_no(w, i), -1, sizeof(*dw));
	dw->t = t;
	dw->d = d;
	dw->p = p;
	k3i_use(b, gr->dqkvr[i], K3_R);
	k3i_use(b, ld->xn[i], K3_R);
	k3i_grad(b, &dw->wq, K3_P_KDA_Q, l);
	k3i_grad(b, &dw->wk, K3_P_KDA_K, l);
	k3i_grad(b, &dw->wv, K3_P_KDA_V, l);
	k3i_task_end(b, flops, 0);
}

static void
gate_bwd(struct k3i_walk *w, int l, size_t i, struct grads *gr, uint32_t *dx)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t t = k3i_rows(w, i), d = w->c->width, h = w->c->kda_heads, k = w->c->kda_dim,
	       p = h * k, at = i * w->kda_groups;
	double flops = 2.0 * (double)t * (double)(d * k + k * p + d * h + d * p);
	struct k3_kda_gate_args base = {
		.t = t, .d = d, .p = p, .h = h, .k = k, .group_heads = w->kda_heads_each};

	gr->dfa[i] = k3i_act(w, "dfa", l, i, -1, k);
	struct k3_kda_gate_args *a =
		k3i_task(b, K3_OP_KDA_GATE_BWD_DX, l, k3i_tile_no(w, i), -1, sizeof(*a));
	*a = base;
	k3i_use(b, dx[i], K3_RW);
	k3i_use(b, gr->dfa[i], K3_W);
	k3i_use(b, gr->dgg[i], K3_R);
	k3i_list(b, &a->df, &gr->df[at], w->kda_groups, K3_R);
	k3i_list(b, &a->dbr, &gr->dbr[at], w->kda_groups, K3_R);
	k3i_weight(b, &a->wfa, K3_P_KDA_FA, l);
	k3i_weight(b, &a->wfb, K3_P_KDA_FB, l);
	k3i_weight(b, &a->wb, K3_P_KDA_B, l);
	k3i_weight(b, &a->wg, K3_P_KDA_G, l);
	k3i_task_end(b, flops, 0);

	struct k3_kda_gate_args *dw =
		k3i_task(b, K3_OP_KDA_GATE_BWD_DW, l, k3i_tile_no(w, i), -1, sizeof(*dw));
	*dw = base;
	k3i_use(b, gr->dfa[i], K3_R);
	k3i_use(b, gr->dgg[i], K3_R);
	k3i_use(b, ld->xn[i], K3_R);
	k3i_use(b, ld->fa[i], K3_R);
	k3i_list(b, &dw->df, &gr->df[at], w->kda_groups, K3_R);
	k3i_list(b, &dw->dbr, &gr->dbr[at], w->kda_groups, K3_R);
	k3i_list(b, &dw->dab, &gr->dab[at], w->kda_groups, K3_R);
	k3i_grad(b, &dw->wfa, K3_P_KDA_FA, l);
	k3i_grad(b, &dw->wfb, K3_P_KDA_FB, l);
	k3i_grad(b, &dw->wb, K3_P_KDA_B, l);
	k3i_grad(b, &dw->wg, K3_P_KDA_G, l);
	k3i_grad(b, &dw->a_log, K3_P_KDA_ALOG, l);
	k3i_grad(b, &dw->dt_bias, K3_P_KDA_DT, l);
	k3i_task_end(b, flops, 0);
}

void
k3i_kda_bwd(struct k3i_walk *w, int layer, const uint32_t *dp, uint32_t *dx)
{
	struct k3i_layer_data *ld = &w->layer[layer];
	size_t n = w->n, ng = w->n * w->kda_groups;
	struct grads gr = {
		.dgg = k3i_array(w, n),
		.dout = k3i_array(w, ng),
		.dqkv = k3i_array(w, ng),
		.df = k3i_array(w, ng),
		.dbr = k3i_array(w, ng),
		.dab = k3i_array(w, ng),
		.dqkvr = k3i_array(w, n),
		.dfa = k3i_array(w, n),
		.dstate = state_data(w, layer, "dstate"),
		.dhalo = halo_data(w, layer, "dhalo"),
	};

	if (w->b->status != K3_OK)
		return;
	for (size_t i = n; i-- > 0;)
		out_bwd(w, layer, i, dp, &gr);
	k3i_kda_cut_states(w, layer,
			   &(struct k3i_kda_cut){.qkv = ld->qkv,
						 .f = ld->f,
						 .br = ld->br,
						 .dout = gr.dout,
						 .state = gr.dstate,
						 .backward = true});
	for (size_t i = n; i-- > 0;)
		for (uint32_t g = 0; g < w->kda_groups; g++)
			chunk_bwd(w, layer, i, g, &gr);
	k3i_halo_recv(w, layer, gr.dhalo, true);
	for (size_t i = n; i-- > 0;)
		conv_bwd(w, layer, i, &gr);
	k3i_halo_send(w, layer, gr.dhalo, true);
	for (size_t i = n; i-- > 0;)
		proj_bwd(w, layer, i, &gr, dx);
	for (size_t i = n; i-- > 0;)
		gate_bwd(w, layer, i, &gr, dx);
}
