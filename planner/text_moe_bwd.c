/* The latent mixture of experts in the plan, backward: a group's input gradients while its weights
 * are there, then its weight gradients. */
#include "../common/status.h"
#include "text_moe.h"

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
	k3i_combine_args(w, a, t);
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
	k3i_combine_args(w, dw, t);
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

	k3i_expert_args(w, &base, l, k3i_rows(w, i), g);
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
	k3i_task_end(b, k3i_expert_flops(&base), k3i_expert_bytes(b, &base, 8));
}

static void
expert_wgrad(struct k3i_walk *w, int l, size_t i, size_t g, struct grads *gr)
{
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	struct k3_expert_args *a, base;

	k3i_expert_args(w, &base, l, k3i_rows(w, i), g);
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
	k3i_task_end(b, k3i_expert_flops(&base), k3i_expert_bytes(b, &base, 7));
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
	k3i_dispatch_args(w, a, t);
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
	k3i_dispatch_args(w, dw, t);
	k3i_use(b, gr->dz[i], K3_R);
	k3i_use(b, gr->dl[i], K3_R);
	k3i_use(b, ld->hn[i], K3_R);
	k3i_grad(b, &dw->wdown, K3_P_LATENT_DOWN, l);
	k3i_grad(b, &dw->wr, K3_P_ROUTER, l);
	k3i_task_end(b, flops, 0);
}

void
k3i_moe_bwd(struct k3i_walk *w, int l, const uint32_t *dp, uint32_t *dh)
{
	size_t k = w->c->top_k, groups = k3i_expert_groups(w, l);
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
		k3i_glu_bwd(w, l, i, false, dp[i], dh[i]);
	}
	for (size_t g = 0; g < groups; g++) {
		k3i_unit_open(w->b, K3_UNIT_LAYER, l, (int)g);
		k3i_moe_group_again(w, l, g);
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
