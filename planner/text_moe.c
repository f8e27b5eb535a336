/* The latent mixture of experts in the plan (model.md 5), forward.  Expert groups are the outer loop
 * and tiles the inner one, so that a gathered group serves all tiles; groups of one tile open its
 * sorted buffers in turn and touch only their rows. */
#include "../common/status.h"
#include "text_moe.h"

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

void
k3i_dispatch_args(const struct k3i_walk *w, struct k3_moe_dispatch_args *a, size_t t)
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
	k3i_dispatch_args(w, a, t);
	k3i_use(b, ld->zs[i], K3_W);
	k3i_use(b, ld->hn[i], K3_R);
	k3i_use(b, ld->route[i], K3_R);
	k3i_work(b, w->nominal * r);
	k3i_weight(b, &a->wdown, K3_P_LATENT_DOWN, l);
	k3i_task_end(b, 2.0 * (double)t * (double)(r * w->c->width), 0);
}

size_t
k3i_expert_groups(const struct k3i_walk *w, int l)
{
	return w->b->model->params.param[k3_params_find(&w->b->model->params, K3_P_EXPERT_W13, l)]
		.n_blocks;
}

void
k3i_expert_args(const struct k3i_walk *w, struct k3_expert_args *a, int l, size_t t, size_t g)
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

double
k3i_expert_flops(const struct k3_expert_args *a)
{
	return 6.0 * (double)(a->t * a->k) * (a->e1 - a->e0) / (double)a->n_experts *
	       (double)(a->r * a->f);
}

double
k3i_expert_bytes(const struct k3_builder *b, const struct k3_expert_args *a, uint32_t n)
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

	k3i_expert_args(w, &base, l, k3i_rows(w, i), g);
	a = k3i_task(b, K3_OP_EXPERT_FWD, l, k3i_tile_no(w, i), (int)g, sizeof(*a));
	*a = base;
	k3i_use_sum(b, ld->egu[i]);
	k3i_use_sum(b, ys);
	k3i_use(b, ld->zs[i], K3_R);
	k3i_use(b, ld->route[i], K3_R);
	k3i_work(b, w->nominal * base.k * base.f);
	k3i_weight_block(b, &a->w13, K3_P_EXPERT_W13, l, g);
	k3i_weight_block(b, &a->w2, K3_P_EXPERT_W2, l, g);
	k3i_task_end(b, k3i_expert_flops(&base), k3i_expert_bytes(b, &base, 5));
}

static void
expert_again(struct k3i_walk *w, int l, size_t i, size_t g)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	struct k3_expert_args *a, base;

	k3i_expert_args(w, &base, l, k3i_rows(w, i), g);
	a = k3i_task(b, K3_OP_EXPERT_GU, l, k3i_tile_no(w, i), (int)g, sizeof(*a));
	*a = base;
	k3i_use_sum(b, ld->egu[i]);
	k3i_use(b, ld->zs[i], K3_R);
	k3i_use(b, ld->route[i], K3_R);
	k3i_weight_block(b, &a->w13, K3_P_EXPERT_W13, l, g);
	k3i_task_end(b, k3i_expert_flops(&base) * 2 / 3, k3i_expert_bytes(b, &base, 3));
}

void
k3i_combine_args(const struct k3i_walk *w, struct k3_moe_combine_args *a, size_t t)
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
	k3i_combine_args(w, a, t);
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

void
k3i_moe_fwd(struct k3i_walk *w, int l)
{
	struct k3i_layer_data *ld = &w->layer[l];
	size_t k = w->c->top_k, groups = k3i_expert_groups(w, l);
	uint32_t *ys = k3i_array(w, w->n), *shared = k3i_array(w, w->n);

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
		k3i_glu_fwd(w, l, i, false, shared[i], K3_NO_DATUM);
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
k3i_moe_again(struct k3i_walk *w, int l)
{
	struct k3i_layer_data *ld = &w->layer[l];

	for (size_t i = 0; i < w->n; i++) {
		dispatch_fwd(w, l, i);
		ld->egu[i] =
			k3i_saved(w, "expert_gu", l, i, -1, w->c->top_k * 2 * w->c->expert_ffn);
	}
}

void
k3i_moe_group_again(struct k3i_walk *w, int l, size_t g)
{
	if (!k3i_recomputes(w, l))
		return;
	w->b->pass = K3_PASS_RECOMPUTE;
	for (size_t i = 0; i < w->n; i++)
		expert_again(w, l, i, g);
	w->b->pass = K3_PASS_BACKWARD;
}
