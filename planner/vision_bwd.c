/* Backward walk of the projector and the tower.  The trap: sums over tiles need one order, so tiles
 * descend. */
#include "../common/status.h"
#include "vision.h"

static void
project_bwd(struct k3i_walk *w, int block, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	struct k3_vit_project_args base = k3i_vit_project_args(w, i);
	uint32_t du = k3i_vit_merged_data(w, "dvit_project_u", i, base.c, false),
		 ds = k3i_vit_merged_data(w, "dvit_project_s", i, base.dt, false);

	v->dz[i] = k3i_vit_merged_data(w, "dvit_z", i, base.c, false);
	struct k3_vit_project_args *a =
		k3i_task(b, K3_OP_VIT_PROJECT_BWD_DX, -1, k3i_vtile_no(w, i), block, sizeof(*a));
	*a = base;
	k3i_use(b, v->dz[i], K3_W);
	k3i_use(b, du, K3_W);
	k3i_use(b, ds, K3_W);
	k3i_use(b, v->dy[i], K3_R);
	k3i_use(b, v->u[i], K3_R);
	k3i_use(b, v->s[i], K3_R);
	k3i_use(b, v->rstd[i], K3_R);
	k3i_grad(b, &a->dnorm, K3_P_PROJ_NORM, -1);
	k3i_weight(b, &a->w1, K3_P_PROJ_0, -1);
	k3i_weight(b, &a->w2, K3_P_PROJ_2, -1);
	k3i_weight(b, &a->norm, K3_P_PROJ_NORM, -1);
	k3i_task_end(b, k3i_vit_project_flops(&base), 0);

	struct k3_vit_project_args *dw =
		k3i_task(b, K3_OP_VIT_PROJECT_BWD_DW, -1, k3i_vtile_no(w, i), block, sizeof(*dw));
	*dw = base;
	k3i_use(b, du, K3_R);
	k3i_use(b, ds, K3_R);
	k3i_use(b, v->u[i], K3_R);
	k3i_use(b, v->z[i], K3_R);
	k3i_work(b, v->tiles.nominal_m * base.c);
	k3i_grad(b, &dw->w1, K3_P_PROJ_0, -1);
	k3i_grad(b, &dw->w2, K3_P_PROJ_2, -1);
	k3i_task_end(b, k3i_vit_project_flops(&base), 0);
}

static void
merge_bwd(struct k3i_walk *w, int block, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	struct k3_vit_merge_args *a, base = k3i_vit_merge_args(w, i);
	uint32_t dxf = k3i_data(b, "dvit_final", K3_DATA_WORK, b->act, -1, k3i_vtile_no(w, i),
				block, base.n, v->tiles.nominal_n, base.d);

	v->dx[i] = k3i_vit_patch_data(w, "dvit_block", i, (int)v->c->layers - 1, base.d, false);
	a = k3i_task(b, K3_OP_VIT_MERGE_BWD, -1, k3i_vtile_no(w, i), block, sizeof(*a));
	*a = base;
	k3i_use(b, v->dx[i], K3_W);
	k3i_use(b, dxf, K3_W);
	k3i_use(b, v->dz[i], K3_R);
	k3i_use(b, v->x[i], K3_R);
	k3i_use(b, v->rstd_final[i], K3_R);
	k3i_use(b, v->layout[i], K3_R);
	k3i_grad(b, &a->dnorm, K3_P_VIT_FINAL_NORM, -1);
	k3i_weight(b, &a->norm, K3_P_VIT_FINAL_NORM, -1);
	k3i_task_end(b, 10.0 * (double)(base.n * base.d), 0);
	k3i_keep(w, dxf);
}

static void
mlp_bwd(struct k3i_walk *w, int block, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	struct k3i_vit_block *bd = &v->block[block];
	struct k3_vit_mlp_args base = k3i_vit_mlp_args(w, i);
	double flops = 4.0 * (double)(base.n * base.d * base.f);
	uint32_t du = k3i_vit_patch_data(w, "dvit_u", i, block, base.f, false);

	v->dmid[i] = k3i_vit_patch_data(w, "dvit_mid", i, block, base.d, false);
	struct k3_vit_mlp_args *a =
		k3i_task(b, K3_OP_VIT_MLP_BWD_DX, -1, k3i_vtile_no(w, i), block, sizeof(*a));
	*a = base;
	k3i_use(b, v->dmid[i], K3_W);
	k3i_use(b, du, K3_W);
	k3i_use(b, v->dx[i], K3_R);
	k3i_use(b, bd->u[i], K3_R);
	k3i_use(b, bd->mid[i], K3_R);
	k3i_use(b, bd->rstd_mlp[i], K3_R);
	k3i_work(b, v->tiles.nominal_n * base.d);
	k3i_grad(b, &a->dnorm, K3_P_VIT_NORM1, block);
	k3i_weight(b, &a->norm, K3_P_VIT_NORM1, block);
	k3i_weight(b, &a->fc0, K3_P_VIT_FC0, block);
	k3i_weight(b, &a->fc1, K3_P_VIT_FC1, block);
	k3i_task_end(b, flops, 0);

	struct k3_vit_mlp_args *dw =
		k3i_task(b, K3_OP_VIT_MLP_BWD_DW, -1, k3i_vtile_no(w, i), block, sizeof(*dw));
	*dw = base;
	k3i_use(b, du, K3_R);
	k3i_use(b, v->dx[i], K3_R);
	k3i_use(b, bd->u[i], K3_R);
	k3i_use(b, bd->mid[i], K3_R);
	k3i_use(b, bd->rstd_mlp[i], K3_R);
	k3i_work(b, v->tiles.nominal_n * (base.d + base.f));
	k3i_weight(b, &dw->norm, K3_P_VIT_NORM1, block);
	k3i_grad(b, &dw->fc0, K3_P_VIT_FC0, block);
	k3i_grad(b, &dw->fc1, K3_P_VIT_FC1, block);
	k3i_task_end(b, flops, 0);
}

static void
out_bwd(struct k3i_walk *w, int block, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	struct k3i_vit_block *bd = &v->block[block];
	struct k3_vit_out_args base = k3i_vit_out_args(w, i);
	double flops = 2.0 * (double)(base.n * base.d * base.dq);

	v->dout[i] = k3i_vit_patch_data(w, "dvit_o", i, block, base.dq, false);
	v->delta[i] = k3i_vit_stat(w, "dvit_delta", i, block, base.h, false);
	struct k3_vit_out_args *a =
		k3i_task(b, K3_OP_VIT_OUT_BWD_DX, -1, k3i_vtile_no(w, i), block, sizeof(*a));
	*a = base;
	k3i_use(b, v->dout[i], K3_W);
	k3i_use(b, v->delta[i], K3_W);
	k3i_use(b, v->dmid[i], K3_R);
	k3i_use(b, bd->o[i], K3_R);
	k3i_weight(b, &a->w, K3_P_VIT_O, block);
	k3i_task_end(b, flops, 0);

	struct k3_vit_out_args *dw =
		k3i_task(b, K3_OP_VIT_OUT_BWD_DW, -1, k3i_vtile_no(w, i), block, sizeof(*dw));
	*dw = base;
	k3i_use(b, v->dmid[i], K3_R);
	k3i_use(b, bd->o[i], K3_R);
	k3i_grad(b, &dw->w, K3_P_VIT_O, block);
	k3i_task_end(b, flops, 0);
}

static void
qkv_bwd(struct k3i_walk *w, int block, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	struct k3i_vit_block *bd = &v->block[block];
	struct k3_vit_qkv_args base = k3i_vit_qkv_args(w, i);
	double flops = 6.0 * (double)(base.n * base.d * base.dq);
	uint32_t dx = k3i_vit_patch_data(w, block > 0 ? "dvit_block" : "dvit_embed", i, block - 1,
					 base.d, false),
		 dp = k3i_vit_patch_data(w, "dvit_qkv", i, block, 3 * base.dq, false);

	struct k3_vit_qkv_args *a =
		k3i_task(b, K3_OP_VIT_QKV_BWD_DX, -1, k3i_vtile_no(w, i), block, sizeof(*a));
	*a = base;
	k3i_use(b, dx, K3_W);
	k3i_use(b, dp, K3_W);
	k3i_use(b, v->dmid[i], K3_R);
	k3i_use(b, v->dq[i], K3_R);
	k3i_use(b, v->dkv[i], K3_R);
	k3i_use(b, bd->x[i], K3_R);
	k3i_use(b, bd->rstd[i], K3_R);
	k3i_use(b, v->layout[i], K3_R);
	k3i_work(b, k3_vit_qkv_work_floats(v->tiles.nominal_n, base.d, base.dq / base.h));
	k3i_grad(b, &a->dnorm, K3_P_VIT_NORM0, block);
	k3i_weight(b, &a->norm, K3_P_VIT_NORM0, block);
	k3i_weight(b, &a->w, K3_P_VIT_QKV, block);
	k3i_task_end(b, flops, 0);

	struct k3_vit_qkv_args *dw =
		k3i_task(b, K3_OP_VIT_QKV_BWD_DW, -1, k3i_vtile_no(w, i), block, sizeof(*dw));
	*dw = base;
	k3i_use(b, dp, K3_R);
	k3i_use(b, bd->x[i], K3_R);
	k3i_use(b, bd->rstd[i], K3_R);
	k3i_work(b, v->tiles.nominal_n * base.d);
	k3i_weight(b, &dw->norm, K3_P_VIT_NORM0, block);
	k3i_grad(b, &dw->w, K3_P_VIT_QKV, block);
	k3i_task_end(b, flops, 0);
	v->dx[i] = dx;
}

static void
block_bwd(struct k3i_walk *w, int block)
{
	struct k3i_vision *v = w->vision;
	const struct k3i_vit_block *bd = &v->block[block];
	size_t n = k3i_vtiles_n(w), dq = v->c->qkv_width;

	v->dmid = k3i_array(w, n);
	v->dout = k3i_array(w, n);
	v->delta = k3i_array(w, n);
	v->dq = k3i_array(w, n);
	v->dkv = k3i_array(w, n);
	for (size_t i = 0; i < n; i++) {
		v->dq[i] = k3i_vit_patch_data(w, "dvit_q", i, block, dq, false);
		v->dkv[i] = k3i_vit_patch_data(w, "dvit_kv", i, block, 2 * dq, false);
	}
	k3i_vit_down(w, block, mlp_bwd);
	k3i_vit_down(w, block, out_bwd);
	/* whichever pairs there are */
	k3i_vit_touch(w, v->dq);
	k3i_vit_touch(w, v->dkv);
	k3i_vit_down(w, block, k3i_vit_attn_bwd);
	k3i_vit_pad_pairs(w);
	k3i_vit_touch(w, bd->qkv);
	k3i_vit_touch(w, bd->lse);
	k3i_vit_touch(w, v->dout);
	k3i_vit_touch(w, v->delta);
	v->dx = k3i_array(w, n);
	k3i_vit_down(w, block, qkv_bwd);
	k3i_vit_keep(w, v->dx);
}

static void
patch_embed_bwd(struct k3i_walk *w, int block, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	struct k3_vit_embed_args *a, base = k3i_vit_embed_args(w, i);

	a = k3i_task(b, K3_OP_VIT_PATCH_EMBED_BWD, -1, k3i_vtile_no(w, i), block, sizeof(*a));
	*a = base;
	k3i_use(b, v->dx[i], K3_R);
	k3i_use(b, v->patches[i], K3_R);
	k3i_use(b, v->layout[i], K3_R);
	k3i_grad(b, &a->wpe, K3_P_VIT_PATCH, -1);
	k3i_grad(b, &a->pos, K3_P_VIT_POS, -1);
	k3i_task_end(b, 2.0 * (double)(base.n * base.d * base.pixels), 0);
}

void
k3i_vision_bwd(struct k3i_walk *w)
{
	struct k3i_vision *v = w->vision;

	if (!v || w->b->status != K3_OK)
		return;
	size_t n = k3i_vtiles_n(w);
	v->dy = k3i_array(w, k3i_vplaces_n(w));
	v->dz = k3i_array(w, n);
	v->dx = k3i_array(w, n);
	/* a placeholder gathers too: the collectives of all ranks are the same */
	k3i_unit_open(w->b, K3_UNIT_VISION, -1, -1);
	k3i_vision_scatter_bwd(w);
	k3i_vision_sum_grads(w);
	k3i_vit_down(w, -1, project_bwd);
	k3i_vit_down(w, -1, merge_bwd);
	k3i_vit_keep(w, v->dx);
	for (int block = (int)v->c->layers - 1; block >= 0; block--)
		block_bwd(w, block);
	k3i_vit_down(w, -1, patch_embed_bwd);
	k3i_unit_close(w->b, K3_UNIT_VISION, -1, -1);
	k3i_vision_zero_grads(w);
	k3i_unit_reduce(w->b, K3_UNIT_VISION, -1, -1);
}
