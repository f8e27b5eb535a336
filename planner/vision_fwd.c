/* Forward walk of the tower and the projector, block by block.  The trap: the attention of a
 * tile waits for the products of all tiles that share an item with it, so each operation goes
 * over all tiles before the next one. */
#include "../common/status.h"
#include "vision.h"

static void
patch_embed_fwd(struct k3i_walk *w, int block, size_t i)
{
	struct k3i_vision *v = w->vision;
	struct k3_builder *b = w->b;
	struct k3_vit_embed_args *a, base = k3i_vit_embed_args(w, i);

	v->x[i] = k3i_vit_patch_data(w, "vit_embed", i, block, base.d, false);
	a = k3i_task(b, K3_OP_VIT_PATCH_EMBED_FWD, -1, k3i_vtile_no(w, i), block, sizeof(*a));
	*a = base;
	k3i_use(b, v->x[i], K3_W);
	k3i_use(b, v->patches[i], K3_R);
	k3i_use(b, v->layout[i], K3_R);
	k3i_weight(b, &a->wpe, K3_P_VIT_PATCH, -1);
	k3i_weight(b, &a->pos, K3_P_VIT_POS, -1);
	k3i_task_end(b, 2.0 * (double)(base.n * base.d * base.pixels), 0);
}

static void
qkv_fwd(struct k3i_walk *w, int block, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_vit_block *bd = &w->vision->block[block];
	struct k3_vit_qkv_args base = k3i_vit_qkv_args(w, i);

	bd->qkv[i] = k3i_vit_patch_data(w, "vit_qkv", i, block, 3 * base.dq, false);
	bd->rstd[i] = k3i_vit_stat(w, "vit_rstd", i, block, 1, true);
	struct k3_vit_qkv_args *a =
		k3i_task(b, K3_OP_VIT_QKV_FWD, -1, k3i_vtile_no(w, i), block, sizeof(*a));
	*a = base;
	k3i_use(b, bd->qkv[i], K3_W);
	k3i_use(b, bd->rstd[i], K3_W);
	k3i_use(b, bd->x[i], K3_R);
	k3i_use(b, w->vision->layout[i], K3_R);
	k3i_work(b, k3_vit_qkv_work_floats(w->vision->tiles.nominal_n, base.d, base.dq / base.h));
	k3i_weight(b, &a->norm, K3_P_VIT_NORM0, block);
	k3i_weight(b, &a->w, K3_P_VIT_QKV, block);
	k3i_task_end(b, 6.0 * (double)(base.n * base.d * base.dq), 0);
}

static void
out_fwd(struct k3i_walk *w, int block, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_vit_block *bd = &w->vision->block[block];
	struct k3_vit_out_args *a, base = k3i_vit_out_args(w, i);

	bd->mid[i] = k3i_vit_patch_data(w, "vit_mid", i, block, base.d, false);
	a = k3i_task(b, K3_OP_VIT_OUT_FWD, -1, k3i_vtile_no(w, i), block, sizeof(*a));
	*a = base;
	k3i_use(b, bd->mid[i], K3_W);
	k3i_use(b, bd->x[i], K3_R);
	k3i_use(b, bd->o[i], K3_R);
	k3i_weight(b, &a->w, K3_P_VIT_O, block);
	k3i_task_end(b, 2.0 * (double)(base.n * base.d * base.dq), 0);
}

static void
mlp_fwd(struct k3i_walk *w, int block, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_vit_block *bd = &w->vision->block[block];
	struct k3_vit_mlp_args *a, base = k3i_vit_mlp_args(w, i);

	w->vision->x[i] = k3i_vit_patch_data(w, "vit_block", i, block, base.d, false);
	bd->u[i] = k3i_vit_patch_data(w, "vit_u", i, block, base.f, true);
	bd->rstd_mlp[i] = k3i_vit_stat(w, "vit_rstd_mlp", i, block, 1, true);
	a = k3i_task(b, K3_OP_VIT_MLP_FWD, -1, k3i_vtile_no(w, i), block, sizeof(*a));
	*a = base;
	k3i_use(b, w->vision->x[i], K3_W);
	k3i_use(b, bd->u[i], K3_W);
	k3i_use(b, bd->rstd_mlp[i], K3_W);
	k3i_use(b, bd->mid[i], K3_R);
	k3i_work(b, w->vision->tiles.nominal_n * (base.d + base.f));
	k3i_weight(b, &a->norm, K3_P_VIT_NORM1, block);
	k3i_weight(b, &a->fc0, K3_P_VIT_FC0, block);
	k3i_weight(b, &a->fc1, K3_P_VIT_FC1, block);
	k3i_task_end(b, 4.0 * (double)(base.n * base.d * base.f), 0);
}

static void
block_fwd(struct k3i_walk *w, int block)
{
	struct k3i_vision *v = w->vision;
	struct k3i_vit_block *bd = &v->block[block];
	size_t n = k3i_vtiles_n(w);

	*bd = (struct k3i_vit_block){.x = v->x,
				     .qkv = k3i_array(w, n),
				     .rstd = k3i_array(w, n),
				     .o = k3i_array(w, n),
				     .lse = k3i_array(w, n),
				     .mid = k3i_array(w, n),
				     .u = k3i_array(w, n),
				     .rstd_mlp = k3i_array(w, n)};
	k3i_vit_up(w, block, qkv_fwd);
	k3i_vit_up(w, block, k3i_vit_attn_fwd);
	/* whichever tiles saw them */
	k3i_vit_touch(w, bd->qkv);
	k3i_vit_up(w, block, out_fwd);
	v->x = k3i_array(w, n);
	k3i_vit_up(w, block, mlp_fwd);
	k3i_vit_keep(w, v->x);
}

static void
merge_fwd(struct k3i_walk *w, int block, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	struct k3_vit_merge_args *a, base = k3i_vit_merge_args(w, i);

	v->z[i] = k3i_vit_merged_data(w, "vit_z", i, k3i_vit_merged_width(w), false);
	/* read by nobody but a host that asked for it */
	v->xf[i] = k3i_data(b, "vit_final", K3_DATA_WORK, b->act, -1, k3i_vtile_no(w, i), block,
			    base.n, v->tiles.nominal_n, base.d);
	v->rstd_final[i] = k3i_vit_stat(w, "vit_rstd_final", i, block, 1, true);
	a = k3i_task(b, K3_OP_VIT_MERGE_FWD, -1, k3i_vtile_no(w, i), block, sizeof(*a));
	*a = base;
	k3i_use(b, v->z[i], K3_W);
	k3i_use(b, v->xf[i], K3_W);
	k3i_use(b, v->rstd_final[i], K3_W);
	k3i_use(b, v->x[i], K3_R);
	k3i_use(b, v->layout[i], K3_R);
	k3i_weight(b, &a->norm, K3_P_VIT_FINAL_NORM, -1);
	k3i_task_end(b, 5.0 * (double)(base.n * base.d), 0);
}

static void
project_fwd(struct k3i_walk *w, int block, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	struct k3_vit_project_args *a, base = k3i_vit_project_args(w, i);

	/* other cp ranks' rows may be all that ask for them */
	v->features[i] = k3i_data(b, "vit_features",
				  k3i_vision_is_read(w, i) ? K3_DATA_ACT : K3_DATA_WORK, b->act, -1,
				  k3i_vtile_no(w, i), block, base.m, v->tiles.nominal_m, base.dt);
	v->u[i] = k3i_vit_merged_data(w, "vit_project_u", i, base.c, true);
	v->s[i] = k3i_vit_merged_data(w, "vit_project_s", i, base.dt, true);
	v->rstd[i] =
		k3i_data(b, "vit_project_rstd", k3i_vit_backward(w) ? K3_DATA_ACT : K3_DATA_WORK,
			 K3_F32, -1, k3i_vtile_no(w, i), -1, base.m, v->tiles.nominal_m, 1);
	a = k3i_task(b, K3_OP_VIT_PROJECT_FWD, -1, k3i_vtile_no(w, i), block, sizeof(*a));
	*a = base;
	k3i_use(b, v->features[i], K3_W);
	k3i_use(b, v->u[i], K3_W);
	k3i_use(b, v->s[i], K3_W);
	k3i_use(b, v->rstd[i], K3_W);
	k3i_use(b, v->z[i], K3_R);
	k3i_work(b, v->tiles.nominal_m * base.c);
	k3i_weight(b, &a->w1, K3_P_PROJ_0, -1);
	k3i_weight(b, &a->w2, K3_P_PROJ_2, -1);
	k3i_weight(b, &a->norm, K3_P_PROJ_NORM, -1);
	k3i_task_end(b, k3i_vit_project_flops(&base), 0);
}

void
k3i_vision_fwd(struct k3i_walk *w)
{
	struct k3i_vision *v = w->vision;

	if (!v || w->b->status != K3_OK)
		return;
	size_t n = k3i_vtiles_n(w);
	v->xf = k3i_array(w, n);
	v->rstd_final = k3i_array(w, n);
	v->z = k3i_array(w, n);
	v->u = k3i_array(w, n);
	v->s = k3i_array(w, n);
	v->rstd = k3i_array(w, n);
	v->features = k3i_array(w, k3i_vplaces_n(w));
	k3i_vit_up(w, -1, k3i_vision_load);
	k3i_vit_up_others(w, -1, k3i_vision_load);
	k3i_unit_open(w->b, K3_UNIT_VISION, -1, -1);
	v->x = k3i_array(w, n);
	k3i_vit_up(w, -1, patch_embed_fwd);
	k3i_vit_keep(w, v->x);
	for (int block = 0; block < (int)v->c->layers; block++)
		block_fwd(w, block);
	k3i_vit_up(w, -1, merge_fwd);
	k3i_vit_up(w, -1, project_fwd);
	k3i_vit_keep(w, v->xf);
	k3i_vit_keep(w, v->features);
	k3i_unit_close(w->b, K3_UNIT_VISION, -1, -1);
	k3i_vision_gather(w);
}
