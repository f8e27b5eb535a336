/* Feed-forward parts in the plan: dense SiTU-GLU, which the shared experts of a mixture are, too
 * (model.md 5); a mixture's walk is text_moe.c. */
#include "text.h"
#include "text_moe.h"

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

void
k3i_glu_fwd(struct k3i_walk *w, int l, size_t i, bool dense, uint32_t y, int32_t p_in)
{
	const struct glu_kind kind = glu_kind(w, dense);
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t t = k3i_rows(w, i);

	ld->gu[i] = k3i_saved(w, "gu", l, i, -1, 2 * kind.f);
	struct k3_glu_args *a = k3i_task(b, kind.fwd, l, k3i_tile_no(w, i), -1, sizeof(*a));
	glu_args(w, a, t, kind.f);
	k3i_use(b, y, K3_W);
	k3i_use(b, ld->gu[i], K3_W);
	k3i_use(b, ld->hn[i], K3_R);
	k3i_work(b, w->nominal * kind.f);
	k3i_list_one(b, &a->p_in, p_in, K3_R);
	k3i_weight(b, &a->w1, kind.w1, l);
	k3i_weight(b, &a->w3, kind.w3, l);
	k3i_weight(b, &a->w2, kind.w2, l);
	k3i_task_end(b, 6.0 * (double)t * (double)(w->c->width * kind.f), 0);
}

/* The saved products alone. */
static void
glu_again(struct k3i_walk *w, int l, size_t i, bool dense)
{
	const struct glu_kind kind = glu_kind(w, dense);
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t t = k3i_rows(w, i);

	ld->gu[i] = k3i_saved(w, "gu", l, i, -1, 2 * kind.f);
	struct k3_glu_args *a = k3i_task(b, kind.gu, l, k3i_tile_no(w, i), -1, sizeof(*a));
	glu_args(w, a, t, kind.f);
	k3i_use(b, ld->gu[i], K3_W);
	k3i_use(b, ld->hn[i], K3_R);
	k3i_weight(b, &a->w1, kind.w1, l);
	k3i_weight(b, &a->w3, kind.w3, l);
	k3i_task_end(b, 4.0 * (double)t * (double)(w->c->width * kind.f), 0);
}

void
k3i_glu_bwd(struct k3i_walk *w, int l, size_t i, bool dense, uint32_t dy, uint32_t dx)
{
	const struct glu_kind kind = glu_kind(w, dense);
	struct k3_builder *b = w->b;
	struct k3i_layer_data *ld = &w->layer[l];
	size_t t = k3i_rows(w, i);
	double flops = 6.0 * (double)t * (double)(w->c->width * kind.f);
	uint32_t dgu = k3i_act(w, "dgu", l, i, -1, 2 * kind.f);

	struct k3_glu_args *a = k3i_task(b, kind.dx, l, k3i_tile_no(w, i), -1, sizeof(*a));
	glu_args(w, a, t, kind.f);
	k3i_use(b, dx, K3_W);
	k3i_use(b, dgu, K3_W);
	k3i_use(b, dy, K3_R);
	k3i_use(b, ld->gu[i], K3_R);
	k3i_work(b, w->nominal * kind.f);
	k3i_weight(b, &a->w1, kind.w1, l);
	k3i_weight(b, &a->w3, kind.w3, l);
	k3i_weight(b, &a->w2, kind.w2, l);
	k3i_task_end(b, flops, 0);

	struct k3_glu_args *dw = k3i_task(b, kind.dw, l, k3i_tile_no(w, i), -1, sizeof(*dw));
	glu_args(w, dw, t, kind.f);
	k3i_use(b, dgu, K3_R);
	k3i_use(b, dy, K3_R);
	k3i_use(b, ld->gu[i], K3_R);
	k3i_use(b, ld->hn[i], K3_R);
	k3i_work(b, w->nominal * kind.f);
	k3i_grad(b, &dw->w1, kind.w1, l);
	k3i_grad(b, &dw->w3, kind.w3, l);
	k3i_grad(b, &dw->w2, kind.w2, l);
	k3i_task_end(b, flops, 0);
}

void
k3i_ffn_fwd(struct k3i_walk *w, int layer)
{
	struct k3i_layer_data *ld = &w->layer[layer];

	ld->gu = k3i_array(w, w->n);
	if ((uint32_t)layer >= w->c->first_dense) {
		k3i_moe_fwd(w, layer);
		return;
	}
	for (size_t i = 0; i < w->n; i++)
		k3i_glu_fwd(w, layer, i, true, w->p[i], (int32_t)ld->p_mid[i]);
}

void
k3i_ffn_again(struct k3i_walk *w, int layer)
{
	bool dense = (uint32_t)layer < w->c->first_dense;

	for (size_t i = 0; i < w->n; i++)
		glu_again(w, layer, i, dense);
	if (!dense)
		k3i_moe_again(w, layer);
}

void
k3i_ffn_bwd(struct k3i_walk *w, int layer, const uint32_t *dp, uint32_t *dh)
{
	if ((uint32_t)layer >= w->c->first_dense) {
		k3i_moe_bwd(w, layer, dp, dh);
		return;
	}
	for (size_t i = w->n; i-- > 0;) {
		dh[i] = k3i_act(w, "dffn_in", layer, i, -1, w->c->width);
		k3i_glu_bwd(w, layer, i, true, dp[i], dh[i]);
	}
}
