/* Attention of the tower: a tile sees the tiles that share an item with it.  The trap: backward
 * there is a task for each pair of tiles, and sums need one order, so of a tile the keys
 * descend. */
#include "vision.h"

/* Pairs of a patch of tile i and one of tile j that see each other. */
static double
pair_patches(const struct k3i_walk *w, size_t i, size_t j)
{
	const struct k3i_vtile *q = k3i_vtile(w, i), *k = k3i_vtile(w, j);
	double pairs = 0;
	size_t first = 0;

	/* items ascend in both */
	for (size_t p = 0; p < q->parts; p++) {
		const int32_t *a = k3_vit_part(q->layout, (int32_t)p);
		while (first < k->parts && k3i_vtile_item(k, first) < a[K3_VP_ITEM])
			first++;
		for (size_t r = first; r < k->parts && k3i_vtile_item(k, r) == a[K3_VP_ITEM]; r++)
			pairs += (double)k3_vit_part_patches(a) *
				 (double)k3_vit_part_patches(k3_vit_part(k->layout, (int32_t)r));
	}
	w->b->plan->steps += q->parts + k->parts;
	return pairs;
}

void
k3i_vit_attn_fwd(struct k3i_walk *w, int block, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	struct k3i_vit_block *bd = &v->block[block];
	const struct k3i_vtile *t = k3i_vtile(w, i);
	struct k3_vit_attn_args *a, base = k3i_vit_attn_args(w, i);
	double pairs = 0;

	bd->o[i] = k3i_vit_patch_data(w, "vit_o", i, block, base.dq, false);
	bd->lse[i] = k3i_vit_stat(w, "vit_lse", i, block, base.h, true);
	a = k3i_task(b, K3_OP_VIT_ATTN_FWD, -1, k3i_vtile_no(w, i), block, sizeof(*a));
	*a = base;
	k3i_use(b, bd->o[i], K3_W);
	k3i_use(b, bd->lse[i], K3_W);
	k3i_use(b, bd->qkv[i], K3_R);
	k3i_use(b, v->layout[i], K3_R);
	k3i_work(b, k3_vit_attn_fwd_work_floats(v->tiles.nominal_n, base.dq / base.h));
	k3i_list(b, &a->kqkv, &bd->qkv[t->key0], t->n_keys, K3_R);
	k3i_list(b, &a->klayout, &v->layout[t->key0], t->n_keys, K3_R);
	/* an image may lie in all tiles */
	k3i_wide_most(b, bd->o[i], 1, bd->qkv[i], v->tiles.n_most + 1);
	for (size_t j = t->key0; j < t->key0 + t->n_keys; j++)
		pairs += pair_patches(w, i, j);
	k3i_task_end(b, 4.0 * pairs * (double)base.dq, 0);
}

static void
attn_pair_bwd(struct k3i_walk *w, int block, size_t i, size_t j)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	struct k3i_vit_block *bd = &v->block[block];
	struct k3_vit_attn_args *a, base = k3i_vit_attn_args(w, i);

	a = k3i_task(b, K3_OP_VIT_ATTN_BWD, -1, k3i_vtile_no(w, i), block, sizeof(*a));
	*a = base;
	a->nk = k3i_vtile(w, j)->n;
	a->init_dq = !k3i_use_sum(b, v->dq[i]);
	a->init_dkv = !k3i_use_sum(b, v->dkv[j]);
	k3i_use(b, bd->qkv[i], K3_R);
	k3i_use(b, bd->qkv[j], K3_R);
	k3i_use(b, v->dout[i], K3_R);
	k3i_use(b, bd->lse[i], K3_R);
	k3i_use(b, v->delta[i], K3_R);
	k3i_use(b, v->layout[i], K3_R);
	k3i_use(b, v->layout[j], K3_R);
	k3i_work(b, k3_vit_attn_bwd_work_floats(base.dq / base.h));
	k3i_task_end(b, 10.0 * pair_patches(w, i, j) * (double)base.dq, 0);
}

void
k3i_vit_attn_bwd(struct k3i_walk *w, int block, size_t i)
{
	const struct k3i_vtile *t = k3i_vtile(w, i);

	for (size_t j = t->key0 + t->n_keys; j-- > t->key0;)
		attn_pair_bwd(w, block, i, j);
}

void
k3i_vit_pad_pairs(struct k3i_walk *w)
{
	const struct k3i_vtiles *t = &w->vision->tiles;
	const struct k3_vision_config *c = w->vision->c;
	size_t pairs = 0, most = t->n_most * t->n_most;

	for (size_t i = 0; i < t->n_most; i++)
		pairs += t->placeholder ? 1 : t->tile[i].n_keys;
	for (; pairs < most && pairs < K3I_WORK_AHEAD + 1; pairs++)
		k3i_skip_work(w->b, k3_vit_attn_bwd_work_floats(c->qkv_width / c->heads));
}
