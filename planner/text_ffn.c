/* Feed-forward parts in the plan: dense SiTU-GLU, latent mixture of experts (model.md 5).
 * Expert groups are the outer loop and tiles the inner one, so that a gathered group serves all
 * tiles; groups of one tile open its sorted buffers in turn and touch only their rows. */
#include "../common/status.h"
#include "text.h"

static void
glu_args(const struct k3i_walk *w, struct k3_glu_args *a, size_t t, size_t f)
{
	*a = (struct k3_glu_args){.t = t,
				  .d = w->c->width,
				  .f = f,
				  .beta1 = (float)w->c->situ_beta1,
				  .beta2 = (float)w->c->situ_beta2};
}

struct glu_kind {
	enum k3_op fwd, gu, dx, dw;
	enum k3_role w1, w3, w2;
	size_t f;
};

static struct glu_kind
glu_kind(const struct k3i_walk *w, bool dense)
{
	if (dense)
		return (struct glu_kind){K3_OP_DENSE_FFN_FWD,
					 K3_OP_DENSE_FFN_GU,
					 K3_OP_DENSE_FFN_BWD_DX,
					 K3_OP_DENSE_FFN_BWD_DW,
					 K3_P_FFN_W1,
					 K3_P_FFN_W3,
					 K3_P_FFN_W2,
					 w->c->dense_ffn};
	return (struct glu_kind){
		K3_OP_SHARED_FFN_FWD,	 K3_OP_SHARED_FFN_GU,
		K3_OP_SHARED_FFN_BWD_DX, K3_OP_SHARED_FFN_BWD_DW,
		K3_P_SHARED_W1,		 K3_P_SHARED_W3,
		K3_P_SHARED_W2,		 (size_t)w->c->shared_experts * w->c->expert_ffn};
}

static void
glu_fwd(struct k3i_walk *w, int l, size_t i, const struct glu_kind *kind, uint32_t y, int32_t p_in)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t t = k3i_rows(w, i);

	ld->gu[i] = k3i_saved(w, "gu", l, i, -1, 2 * kind->f);
	struct k3_glu_args *a = k3i_task(b, kind->fwd, l, k3i_tile_no(w, i), -1, sizeof(*a));
	glu_args(w, a, t, kind->f);
	k3i_use(b, y, K3_W);
	k3i_use(b, ld->gu[i], K3_W);
	k3i_use(b, ld->hn[i], K3_R);
	k3i_work(b, w->nominal * kind->f);
	k3i_list_one(b, &a->p_in, p_in, K3_R);
	k3i_weight(b, &a->w1, kind->w1, l);
	k3i_weight(b, &a->w3, kind->w3, l);
	k3i_weight(b, &a->w2, kind->w2, l);
	k3i_task_end(b, 6.0 * (double)t * (double)(w->c->width * kind->f), 0);
}

/* The saved products alone. */
static void
glu_again(struct k3i_walk *w, int l, size_t i, const struct glu_kind *kind)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t t = k3i_rows(w, i);

	ld->gu[i] = k3i_saved(w, "gu", l, i, -1, 2 * kind->f);
	struct k3_glu_args *a = k3i_task(b, kind->gu, l, k3i_tile_no(w, i), -1, sizeof(*a));
	glu_args(w, a, t, kind->f);
	k3i_use(b, ld->gu[i], K3_W);
	k3i_use(b, ld->hn[i], K3_R);
	k3i_weight(b, &a->w1, kind->w1, l);
	k3i_weight(b, &a->w3, kind->w3, l);
	k3i_task_end(b, 4.0 * (double)t * (double)(w->c->width * kind->f), 0);
}

static void
glu_bwd(struct k3i_walk *w, int l, size_t i, const struct glu_kind *kind, uint32_t dy, uint32_t dx)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t t = k3i_rows(w, i);
	double flops = 6.0 * (double)t * (double)(w->c->width * kind->f);
	uint32_t dgu = k3i_act(w, "dgu", l, i, -1, 2 * kind->f);

	struct k3_glu_args *a = k3i_task(b, kind->dx, l, k3i_tile_no(w, i), -1, sizeof(*a));
	glu_args(w, a, t, kind->f);
	k3i_use(b, dx, K3_W);
	k3i_use(b, dgu, K3_W);
	k3i_use(b, dy, K3_R);
	k3i_use(b, ld->gu[i], K3_R);
	k3i_work(b, w->nominal * kind->f);
	k3i_weight(b, &a->w1, kind->w1, l);
	k3i_weight(b, &a->w3, kind->w3, l);
	k3i_weight(b, &a->w2, kind->w2, l);
	k3i_task_end(b, flops, 0);

	struct k3_glu_args *dw = k3i_task(b, kind->dw, l, k3i_tile_no(w, i), -1, sizeof(*dw));
	glu_args(w, dw, t, kind->f);
	k3i_use(b, dgu, K3_R);
	k3i_use(b, dy, K3_R);
	k3i_use(b, ld->gu[i], K3_R);
	k3i_use(b, ld->hn[i], K3_R);
	k3i_work(b, w->nominal * kind->f);
	k3i_grad(b, &dw->w1, kind->w1, l);
	k3i_grad(b, &dw->w3, kind->w3, l);
	k3i_grad(b, &dw->w2, kind->w2, l);
	k3i_task_end(b, flops, 0);
}

static void
route_fwd(struct k3i_walk *w, int l, size_t i)
{
	struct k3_builder *b = w->b;
	const struct k3_config *c = w->c;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t t = k3i_rows(w, i), e = c->experts, k = c->top_k;
	uint32_t forced = w->forced ? w->forced[(uint32_t)l - c->first_dense][i] : 0;

	ld->route[i] = k3i_data(b, "route", K3_DATA_ACT, K3_I32, l, k3i_tile_no(w, i), -1, 1, 1,
				k3_route_len(t, e, k));
	ld->routew[i] = k3i_data(b, "routew", K3_DATA_ACT, K3_F32, l, k3i_tile_no(w, i), -1, 1, 1,
				 k3_routew_len(t, e, k));
	if (b->status == K3_OK) {
		b->plan->data[ld->route[i]].slot_bytes =
			k3_route_len(w->nominal, e, k) * sizeof(int32_t);
		b->plan->data[ld->routew[i]].slot_bytes =
			k3_routew_len(w->nominal, e, k) * sizeof(float);
	}
	struct k3_moe_route_args *a =
		k3i_task(b, K3_OP_MOE_ROUTE_FWD, l, k3i_tile_no(w, i), -1, sizeof(*a));
	*a = (struct k3_moe_route_args){.t = t,
					.d = c->width,
					.n_experts = e,
					.k = k,
					.sum_eps = (float)c->router_sum_eps,
					.scale = (float)c->route_scale};
	k3i_use(b, ld->route[i], K3_W);
	k3i_use(b, ld->routew[i], K3_W);
	k3i_use(b, ld->hn[i], K3_R);
	k3i_list_one(b, &a->forced, w->forced ? (int32_t)forced : K3_NO_DATUM, K3_R);
	k3i_weight(b, &a->wr, K3_P_ROUTER, l);
	a->bias = (struct k3_weight){k3i_use(b, (uint32_t)b->model->bias[l], K3_R), 1, 1, e, 1, 0};
	k3i_task_end(b, 2.0 * (double)t * (double)(e * c->width), 0);
	k3i_keep(w, ld->route[i]);
	k3i_keep(w, ld->routew[i]);

	if (!b->what.count || b->model->balance[l] == K3_NO_DATUM)
		return;
	struct k3_moe_count_args *n =
		k3i_task(b, K3_OP_MOE_COUNT, l, k3i_tile_no(w, i), -1, sizeof(*n));
	n->t = t;
	n->n_experts = e;
	n->k = k;
	n->bins = b->model->options.balance == K3_BALANCE_QUANTILE ? b->model->options.bins : 0;
	n->accumulate = k3i_use_sum(b, (uint32_t)b->model->balance[l]);
	k3i_use(b, ld->route[i], K3_R);
	k3i_use(b, ld->routew[i], K3_R);
	k3i_use(b, w->layout[i], K3_R);
	n->bias = (struct k3_weight){k3i_use(b, (uint32_t)b->model->bias[l], K3_R), 1, 1, e, 1, 0};
	k3i_task_end(b, (double)(t * e), 0);
}

static void
dispatch_args(const struct k3i_walk *w, struct k3_moe_dispatch_args *a, size_t t)
{
	const struct k3_config *c = w->c;

	*a = (struct k3_moe_dispatch_args){.t = t,
					   .d = c->width,
					   .r = c->latent,
					   .n_experts = c->experts,
					   .k = c->top_k,
					   .sum_eps = (float)c->router_sum_eps,
					   .scale = (float)c->route_scale};
}

static void
dispatch_fwd(struct k3i_walk *w, int l, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t t = k3i_rows(w, i), k = w->c->top_k, r = w->c->latent;

	ld->zs[i] = k3i_act(w, "zs", l, i, -1, k * r);
	struct k3_moe_dispatch_args *a =
		k3i_task(b, K3_OP_MOE_DISPATCH_FWD, l, k3i_tile_no(w, i), -1, sizeof(*a));
	dispatch_args(w, a, t);
	k3i_use(b, ld->zs[i], K3_W);
	k3i_use(b, ld->hn[i], K3_R);
	k3i_use(b, ld->route[i], K3_R);
	k3i_work(b, w->nominal * r);
	k3i_weight(b, &a->wdown, K3_P_LATENT_DOWN, l);
	k3i_task_end(b, 2.0 * (double)t * (double)(r * w->c->width), 0);
}

static size_t
n_expert_groups(const struct k3i_walk *w, int l)
{
	return w->b->model->params.param[k3_params_find(&w->b->model->params, K3_P_EXPERT_W13, l)]
		.n_blocks;
}

static void
expert_args(const struct k3i_walk *w, struct k3_expert_args *a, int l, size_t t, size_t g)
{
	const struct k3_config *c = w->c;
	const struct k3_params *ps = &w->b->model->params;
	uint32_t each =
		(uint32_t)ps->param[k3_params_find(ps, K3_P_EXPERT_W13, l)].experts_per_block;
	uint32_t e0 = (uint32_t)g * each;

	*a = (struct k3_expert_args){.t = t,
				     .n_experts = c->experts,
				     .k = c->top_k,
				     .r = c->latent,
				     .f = c->expert_ffn,
				     .e0 = e0,
				     .e1 = e0 + each < c->experts ? e0 + each : c->experts,
				     .beta1 = (float)c->situ_beta1,
				     .beta2 = (float)c->situ_beta2};
}

/* Expected rows of the group: an even spread. */
static double
expert_flops(const struct k3_expert_args *a)
{
	return 6.0 * (double)(a->t * a->k) * (a->e1 - a->e0) / (double)a->n_experts *
	       (double)(a->r * a->f);
}

/* Bytes of the current task, whose first `n` buffers hold the sorted rows of all groups: a group
 * reads or writes its own rows alone, once. */
static double
expert_bytes(const struct k3_builder *b, const struct k3_expert_args *a, uint32_t n)
{
	double share = (double)(a->e1 - a->e0) / (double)a->n_experts, sorted = 0;
	const struct k3_task *t = b->cur;

	for (uint32_t i = 0; t && i < n && i < t->n_access; i++)
		sorted += (double)b->plan->data[b->plan->access[t->first_access + i].datum].bytes;
	return share * sorted + k3i_moved_bytes(b, n, UINT32_MAX);
}

static void
expert_fwd(struct k3i_walk *w, int l, size_t i, size_t g, uint32_t ys)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	struct k3_expert_args *a, base;

	expert_args(w, &base, l, k3i_rows(w, i), g);
	a = k3i_task(b, K3_OP_EXPERT_FWD, l, k3i_tile_no(w, i), (int)g, sizeof(*a));
	*a = base;
	k3i_use_sum(b, ld->egu[i]);
	k3i_use_sum(b, ys);
	k3i_use(b, ld->zs[i], K3_R);
	k3i_use(b, ld->route[i], K3_R);
	k3i_work(b, w->nominal * base.k * base.f);
	k3i_weight_block(b, &a->w13, K3_P_EXPERT_W13, l, g);
	k3i_weight_block(b, &a->w2, K3_P_EXPERT_W2, l, g);
	k3i_task_end(b, expert_flops(&base), expert_bytes(b, &base, 5));
}

static void
expert_again(struct k3i_walk *w, int l, size_t i, size_t g)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	struct k3_expert_args *a, base;

	expert_args(w, &base, l, k3i_rows(w, i), g);
	a = k3i_task(b, K3_OP_EXPERT_GU, l, k3i_tile_no(w, i), (int)g, sizeof(*a));
	*a = base;
	k3i_use_sum(b, ld->egu[i]);
	k3i_use(b, ld->zs[i], K3_R);
	k3i_use(b, ld->route[i], K3_R);
	k3i_weight_block(b, &a->w13, K3_P_EXPERT_W13, l, g);
	k3i_task_end(b, expert_flops(&base) * 2 / 3, expert_bytes(b, &base, 3));
}

static void
combine_args(const struct k3i_walk *w, struct k3_moe_combine_args *a, size_t t)
{
	const struct k3_config *c = w->c;

	*a = (struct k3_moe_combine_args){.t = t,
					  .d = c->width,
					  .r = c->latent,
					  .n_experts = c->experts,
					  .k = c->top_k,
					  .eps = (float)c->norm_eps};
}

static void
combine_fwd(struct k3i_walk *w, int l, size_t i, uint32_t ys, uint32_t shared)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t t = k3i_rows(w, i), r = w->c->latent;

	ld->y[i] = k3i_kept(w, "y", l, i, r);
	struct k3_moe_combine_args *a =
		k3i_task(b, K3_OP_MOE_COMBINE_FWD, l, k3i_tile_no(w, i), -1, sizeof(*a));
	combine_args(w, a, t);
	k3i_use(b, w->p[i], K3_W);
	k3i_use(b, ld->y[i], K3_W);
	k3i_use(b, ys, K3_R);
	k3i_use(b, ld->route[i], K3_R);
	k3i_use(b, ld->routew[i], K3_R);
	k3i_use(b, shared, K3_R);
	k3i_use(b, ld->p_mid[i], K3_R);
	k3i_work(b, w->nominal * r);
	k3i_weight(b, &a->norm, K3_P_LATENT_NORM, l);
	k3i_weight(b, &a->wup, K3_P_LATENT_UP, l);
	k3i_task_end(b, 2.0 * (double)t * (double)(r * w->c->width), 0);
}

static void
moe_fwd(struct k3i_walk *w, int l)
{
	struct k3i_layer_data *ld = &w->layer[l];
	size_t k = w->c->top_k, groups = n_expert_groups(w, l);
	uint32_t *ys = k3i_array(w, w->n), *shared = k3i_array(w, w->n);
	struct glu_kind kind = glu_kind(w, false);

	ld->route = k3i_array(w, w->n);
	ld->routew = k3i_array(w, w->n);
	ld->zs = k3i_array(w, w->n);
	ld->egu = k3i_array(w, w->n);
	ld->y = k3i_array(w, w->n);
	if (w->b->status != K3_OK)
		return;
	for (size_t i = 0; i < w->n; i++)
		route_fwd(w, l, i);
	for (size_t i = 0; i < w->n; i++)
		dispatch_fwd(w, l, i);
	for (size_t i = 0; i < w->n; i++) {
		ld->egu[i] = k3i_saved(w, "expert_gu", l, i, -1, k * 2 * w->c->expert_ffn);
		ys[i] = k3i_act(w, "ys", l, i, -1, k * w->c->latent);
		shared[i] = k3i_act(w, "shared", l, i, -1, w->c->width);
		glu_fwd(w, l, i, &kind, shared[i], K3_NO_DATUM);
	}
	for (size_t g = 0; g < groups; g++) {
		k3i_unit_open(w->b, K3_UNIT_LAYER, l, (int)g);
		for (size_t i = 0; i < w->n; i++)
			expert_fwd(w, l, i, g, ys[i]);
		k3i_unit_close(w->b, K3_UNIT_LAYER, l, (int)g);
	}
	for (size_t i = 0; i < w->n; i++)
		combine_fwd(w, l, i, ys[i], shared[i]);
}

void
k3i_ffn_fwd(struct k3i_walk *w, int layer)
{
	struct k3i_layer_data *ld = &w->layer[layer];

	ld->gu = k3i_array(w, w->n);
	if ((uint32_t)layer >= w->c->first_dense) {
		moe_fwd(w, layer);
		return;
	}
	struct glu_kind kind = glu_kind(w, true);
	for (size_t i = 0; i < w->n; i++)
		glu_fwd(w, layer, i, &kind, w->p[i], (int32_t)ld->p_mid[i]);
}

void
k3i_ffn_again(struct k3i_walk *w, int layer)
{
	struct k3i_layer_data *ld = &w->layer[layer];
	bool dense = (uint32_t)layer < w->c->first_dense;
	struct glu_kind kind = glu_kind(w, dense);

	for (size_t i = 0; i < w->n; i++)
		glu_again(w, layer, i, &kind);
	for (size_t i = 0; i < w->n && !dense; i++) {
		dispatch_fwd(w, layer, i);
		ld->egu[i] =
			k3i_saved(w, "expert_gu", layer, i, -1, w->c->top_k * 2 * w->c->expert_ffn);
	}
}

/* A group's share of it, while the group's weights are there. */
static void
group_again(struct k3i_walk *w, int l, size_t g)
{
	if (!k3i_recomputes(w, l))
		return;
	w->b->pass = K3_PASS_RECOMPUTE;
	for (size_t i = 0; i < w->n; i++)
		expert_again(w, l, i, g);
	w->b->pass = K3_PASS_BACKWARD;
}

struct grads {
	uint32_t *dys, *edgu, *dzs, *dwt, *dz, *dl;
};

static void
combine_bwd(struct k3i_walk *w, int l, size_t i, const uint32_t *dp, struct grads *gr)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t t = k3i_rows(w, i), r = w->c->latent;
	double flops = 2.0 * (double)t * (double)(r * w->c->width);

	gr->dys[i] = k3i_act(w, "dys", l, i, -1, w->c->top_k * r);
	struct k3_moe_combine_args *a =
		k3i_task(b, K3_OP_MOE_COMBINE_BWD_DX, l, k3i_tile_no(w, i), -1, sizeof(*a));
	combine_args(w, a, t);
	k3i_use(b, gr->dys[i], K3_W);
	k3i_use(b, dp[i], K3_R);
	k3i_use(b, ld->y[i], K3_R);
	k3i_use(b, ld->route[i], K3_R);
	k3i_work(b, 2 * w->nominal * r);
	k3i_grad(b, &a->dnorm, K3_P_LATENT_NORM, l);
	k3i_weight(b, &a->norm, K3_P_LATENT_NORM, l);
	k3i_weight(b, &a->wup, K3_P_LATENT_UP, l);
	k3i_task_end(b, flops, 0);

	struct k3_moe_combine_args *dw =
		k3i_task(b, K3_OP_MOE_COMBINE_BWD_DW, l, k3i_tile_no(w, i), -1, sizeof(*dw));
	combine_args(w, dw, t);
	k3i_use(b, dp[i], K3_R);
	k3i_use(b, ld->y[i], K3_R);
	k3i_work(b, w->nominal * r);
	k3i_weight(b, &dw->norm, K3_P_LATENT_NORM, l);
	k3i_grad(b, &dw->wup, K3_P_LATENT_UP, l);
	k3i_task_end(b, flops, 0);
}

static void
expert_dgrad(struct k3i_walk *w, int l, size_t i, size_t g, struct grads *gr)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	struct k3_expert_args *a, base;

	expert_args(w, &base, l, k3i_rows(w, i), g);
	a = k3i_task(b, K3_OP_EXPERT_DGRAD, l, k3i_tile_no(w, i), (int)g, sizeof(*a));
	*a = base;
	k3i_use_sum(b, gr->edgu[i]);
	k3i_use_sum(b, gr->dzs[i]);
	k3i_use_sum(b, gr->dwt[i]);
	k3i_use(b, gr->dys[i], K3_R);
	k3i_use(b, ld->egu[i], K3_R);
	k3i_use(b, ld->route[i], K3_R);
	k3i_use(b, ld->routew[i], K3_R);
	k3i_work(b, w->nominal * base.k * base.f);
	k3i_weight_block(b, &a->w13, K3_P_EXPERT_W13, l, g);
	k3i_weight_block(b, &a->w2, K3_P_EXPERT_W2, l, g);
	k3i_task_end(b, expert_flops(&base), expert_bytes(b, &base, 8));
}

static void
expert_wgrad(struct k3i_walk *w, int l, size_t i, size_t g, struct grads *gr)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	struct k3_expert_args *a, base;

	expert_args(w, &base, l, k3i_rows(w, i), g);
	a = k3i_task(b, K3_OP_EXPERT_WGRAD, l, k3i_tile_no(w, i), (int)g, sizeof(*a));
	*a = base;
	k3i_use(b, gr->edgu[i], K3_R);
	k3i_use(b, gr->dys[i], K3_R);
	k3i_use(b, ld->egu[i], K3_R);
	k3i_use(b, ld->zs[i], K3_R);
	k3i_use(b, ld->route[i], K3_R);
	k3i_use(b, ld->routew[i], K3_R);
	k3i_work(b, w->nominal * base.k * base.f);
	k3i_grad_block(b, &a->w13, K3_P_EXPERT_W13, l, g);
	k3i_grad_block(b, &a->w2, K3_P_EXPERT_W2, l, g);
	k3i_task_end(b, expert_flops(&base), expert_bytes(b, &base, 7));
}

static void
dispatch_bwd(struct k3i_walk *w, int l, size_t i, struct grads *gr, uint32_t dh)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t t = k3i_rows(w, i), r = w->c->latent, e = w->c->experts;
	double flops = 2.0 * (double)t * (double)((r + e) * w->c->width);

	gr->dz[i] = k3i_act(w, "dz", l, i, -1, r);
	gr->dl[i] = k3i_stat(w, "dl", l, i, -1, e);
	struct k3_moe_dispatch_args *a =
		k3i_task(b, K3_OP_MOE_DISPATCH_BWD_DX, l, k3i_tile_no(w, i), -1, sizeof(*a));
	dispatch_args(w, a, t);
	k3i_use(b, dh, K3_RW);
	k3i_use(b, gr->dz[i], K3_W);
	k3i_use(b, gr->dl[i], K3_W);
	k3i_use(b, gr->dzs[i], K3_R);
	k3i_use(b, gr->dwt[i], K3_R);
	k3i_use(b, ld->route[i], K3_R);
	k3i_use(b, ld->routew[i], K3_R);
	k3i_weight(b, &a->wdown, K3_P_LATENT_DOWN, l);
	k3i_weight(b, &a->wr, K3_P_ROUTER, l);
	k3i_task_end(b, flops, 0);

	struct k3_moe_dispatch_args *dw =
		k3i_task(b, K3_OP_MOE_DISPATCH_BWD_DW, l, k3i_tile_no(w, i), -1, sizeof(*dw));
	dispatch_args(w, dw, t);
	k3i_use(b, gr->dz[i], K3_R);
	k3i_use(b, gr->dl[i], K3_R);
	k3i_use(b, ld->hn[i], K3_R);
	k3i_grad(b, &dw->wdown, K3_P_LATENT_DOWN, l);
	k3i_grad(b, &dw->wr, K3_P_ROUTER, l);
	k3i_task_end(b, flops, 0);
}

static void
moe_bwd(struct k3i_walk *w, int l, const uint32_t *dp, uint32_t *dh)
{
	size_t k = w->c->top_k, groups = n_expert_groups(w, l);
	struct glu_kind kind = glu_kind(w, false);
	struct grads gr = {
		.dys = k3i_array(w, w->n),
		.edgu = k3i_array(w, w->n),
		.dzs = k3i_array(w, w->n),
		.dwt = k3i_array(w, w->n),
		.dz = k3i_array(w, w->n),
		.dl = k3i_array(w, w->n),
	};

	if (w->b->status != K3_OK)
		return;
	for (size_t i = w->n; i-- > 0;)
		combine_bwd(w, l, i, dp, &gr);
	for (size_t i = w->n; i-- > 0;) {
		gr.edgu[i] = k3i_act(w, "expert_dgu", l, i, -1, k * 2 * w->c->expert_ffn);
		gr.dzs[i] = k3i_act(w, "dzs", l, i, -1, k * w->c->latent);
		gr.dwt[i] = k3i_stat(w, "dwt", l, i, -1, k);
		dh[i] = k3i_act(w, "dffn_in", l, i, -1, w->c->width);
		glu_bwd(w, l, i, &kind, dp[i], dh[i]);
	}
	for (size_t g = 0; g < groups; g++) {
		k3i_unit_open(w->b, K3_UNIT_LAYER, l, (int)g);
		group_again(w, l, g);
		for (size_t i = w->n; i-- > 0;)
			expert_dgrad(w, l, i, g, &gr);
		k3i_unit_close(w->b, K3_UNIT_LAYER, l, (int)g);
		for (size_t i = w->n; i-- > 0;)
			expert_wgrad(w, l, i, g, &gr);
		k3i_unit_reduce(w->b, K3_UNIT_LAYER, l, (int)g);
	}
	for (size_t i = w->n; i-- > 0;)
		dispatch_bwd(w, l, i, &gr, dh[i]);
}

void
k3i_ffn_bwd(struct k3i_walk *w, int layer, const uint32_t *dp, uint32_t *dh)
{
	if ((uint32_t)layer >= w->c->first_dense) {
		moe_bwd(w, layer, dp, dh);
		return;
	}
	struct glu_kind kind = glu_kind(w, true);
	for (size_t i = w->n; i-- > 0;) {
		dh[i] = k3i_act(w, "dffn_in", layer, i, -1, w->c->width);
		glu_bwd(w, layer, i, &kind, dp[i], dh[i]);
	}
}
