/* Vision in the plan (model.md 6): every microbatch runs the tower once, over its items or over a
 * placeholder of one merged token, so that the collectives of a rank do not depend on its images.  A
 * placeholder has no gradient: the parameters get exact zeros from a task of their own, whatever the
 * weights hold.
 *
 * Order: operation by operation, tile by tile; forward tiles ascend, backward tiles descend.  A vision
 * tile attends to the tiles that share an item with it, which are its neighbours. */
#include "../common/status.h"
#include "text.h"

/* Data of one tower block, per vision tile. */
struct block_data {
	uint32_t *x, *qkv, *rstd, *o, *lse, *mid, *u, *rstd_mlp;
};

struct k3i_vision {
	struct k3i_vtiles tiles;
	const struct k3_vision_config *c;
	uint32_t *patches, *layout;
	struct block_data *block; /* [layers] */
	uint32_t *x;		  /* of the next block, at last the tower's output */
	uint32_t *xf, *rstd_final, *z, *u, *s, *rstd, *features;
	uint32_t *dx;		  /* gradient in the backward walk */
	const int32_t **map_rows; /* [own tile] */
};

static bool
has_backward(const struct k3i_walk *w)
{
	return w->b->what.backward && !w->vision->tiles.placeholder;
}

static const struct k3i_vtile *
vtile(const struct k3i_walk *w, size_t i)
{
	return &w->vision->tiles.tile[i];
}

static size_t
n_tiles(const struct k3i_walk *w)
{
	return w->vision->tiles.n;
}

/* Patches x row_elems of tile i.  What only the backward pass reads is work space without one; the
 * placeholder's result is read by nobody. */
static uint32_t
patch_data(struct k3i_walk *w, const char *what, size_t i, int block, size_t row_elems, bool saved)
{
	return k3i_data(w->b, what, !saved || has_backward(w) ? K3_DATA_ACT : K3_DATA_WORK, K3_F32,
			-1, (int)i, block, vtile(w, i)->n, w->vision->tiles.nominal_n, row_elems);
}

static uint32_t
merged_data(struct k3i_walk *w, const char *what, size_t i, size_t row_elems, bool saved)
{
	return k3i_data(w->b, what, !saved || has_backward(w) ? K3_DATA_ACT : K3_DATA_WORK, K3_F32,
			-1, (int)i, -1, vtile(w, i)->m, w->vision->tiles.nominal_m, row_elems);
}

static void
keep_all(struct k3i_walk *w, const uint32_t *datum)
{
	for (size_t i = 0; i < n_tiles(w); i++)
		k3i_keep(w, datum[i]);
}

/* Which merged token replaces each row of own tile i; -1: none. */
static const int32_t *
map_of(struct k3i_walk *w, size_t i, const struct k3_layout *layout)
{
	const struct k3_tile *t = k3i_tile(w, i);
	int32_t *map = k3i_arena_alloc(w->b->plan->arena, t->rows * sizeof(*map)), merged = 0;

	if (!map) {
		w->b->status = K3_ENOMEM;
		return NULL;
	}
	for (size_t r = 0; r < t->rows; r++)
		map[r] = -1;
	for (size_t k = 0; k < layout->n_items; k++) {
		size_t n = k3i_grid_merged(w->c, &layout->grid[k]), row = layout->item_row[k];
		for (size_t m = 0; m < n; m++, merged++)
			if (row + m >= t->row0 && row + m < t->row0 + t->rows)
				map[row + m - t->row0] = merged;
	}
	return map;
}

static void
load(struct k3i_walk *w)
{
	struct k3i_vision *v = w->vision;
	struct k3_builder *b = w->b;
	size_t pixels = 3 * (size_t)v->c->patch * v->c->patch;

	for (size_t i = 0; i < n_tiles(w); i++) {
		const struct k3i_vtile *t = vtile(w, i);
		struct k3_vit_load_args *a =
			k3i_task(b, K3_OP_VIT_LOAD, -1, (int)i, -1, sizeof(*a));
		*a = (struct k3_vit_load_args){.n = t->n,
					       .pixels = pixels,
					       .layout = t->layout,
					       .layout_len = k3_vit_layout_len(t->parts),
					       .placeholder = v->tiles.placeholder};
		v->patches[i] = k3i_data(b, "vit_patches", K3_DATA_INPUT, K3_F32, -1, (int)i, -1,
					 t->n, v->tiles.nominal_n, pixels);
		v->layout[i] =
			k3i_data(b, "vit_layout", K3_DATA_INPUT, K3_I32, -1, (int)i, -1,
				 a->layout_len, k3_vit_layout_len(v->tiles.nominal_parts), 1);
		k3i_use(b, v->patches[i], K3_W);
		k3i_use(b, v->layout[i], K3_W);
		k3i_task_end(b, 0, 0);
	}
}

void
k3i_vision_begin(struct k3i_walk *w, const struct k3_layout *layout)
{
	struct k3_arena *arena = w->b->plan->arena;
	struct k3i_vision *v;

	if (!w->b->model->options.vision || w->b->status != K3_OK)
		return;
	v = w->vision = k3i_arena_alloc(arena, sizeof(*v));
	w->map = k3i_arena_alloc(arena, sizeof(uint32_t) * (w->n + 1));
	if (!v || !w->map) {
		w->b->status = K3_ENOMEM;
		return;
	}
	v->c = &w->c->vision;
	w->b->status = k3i_vision_cut(&v->tiles, w->b, layout);
	v->map_rows = k3i_arena_alloc(arena, w->n * sizeof(*v->map_rows));
	v->block = k3i_arena_alloc(arena, v->c->layers * sizeof(*v->block));
	if (!v->map_rows || !v->block)
		w->b->status = K3_ENOMEM;
	for (size_t i = 0; i < w->n && w->b->status == K3_OK; i++)
		v->map_rows[i] = map_of(w, i, layout);
	v->patches = k3i_array(w, v->tiles.n);
	v->layout = k3i_array(w, v->tiles.n);
}

void
k3i_vision_map(struct k3i_walk *w, size_t i, struct k3_batch_load_args *a)
{
	struct k3_builder *b = w->b;

	if (!w->vision || b->status != K3_OK)
		return;
	w->map[i] = k3i_data(b, "map", K3_DATA_INPUT, K3_I32, -1, k3i_tile_no(w, i), -1,
			     k3i_rows(w, i), w->nominal, 1);
	a->map_rows = w->vision->map_rows[i];
	k3i_list_one(b, &a->map, (int32_t)w->map[i], K3_W);
}

static void
patch_embed_fwd(struct k3i_walk *w)
{
	struct k3i_vision *v = w->vision;
	struct k3_builder *b = w->b;
	size_t d = v->c->width, pixels = 3 * (size_t)v->c->patch * v->c->patch;

	v->x = k3i_array(w, n_tiles(w));
	for (size_t i = 0; i < n_tiles(w); i++) {
		size_t n = vtile(w, i)->n;
		v->x[i] = patch_data(w, "vit_embed", i, -1, d, false);
		struct k3_vit_embed_args *a =
			k3i_task(b, K3_OP_VIT_PATCH_EMBED_FWD, -1, (int)i, -1, sizeof(*a));
		*a = (struct k3_vit_embed_args){.n = n,
						.d = d,
						.pixels = pixels,
						.table_h = v->c->table_h,
						.table_w = v->c->table_w};
		k3i_use(b, v->x[i], K3_W);
		k3i_use(b, v->patches[i], K3_R);
		k3i_use(b, v->layout[i], K3_R);
		k3i_weight(b, &a->wpe, K3_P_VIT_PATCH, -1);
		k3i_weight(b, &a->pos, K3_P_VIT_POS, -1);
		k3i_task_end(b, 2.0 * (double)(n * d * pixels), 0);
	}
	keep_all(w, v->x);
}

static struct k3_vit_qkv_args
qkv_args(const struct k3i_walk *w, size_t i)
{
	const struct k3_vision_config *c = w->vision->c;

	return (struct k3_vit_qkv_args){.n = vtile(w, i)->n,
					.d = c->width,
					.dq = c->qkv_width,
					.h = c->heads,
					.eps = (float)c->norm_eps};
}

static void
qkv_fwd(struct k3i_walk *w, int block, size_t i)
{
	struct k3_builder *b = w->b;
	struct block_data *bd = &w->vision->block[block];
	struct k3_vit_qkv_args base = qkv_args(w, i);

	bd->qkv[i] = patch_data(w, "vit_qkv", i, block, 3 * base.dq, false);
	bd->rstd[i] = patch_data(w, "vit_rstd", i, block, 1, true);
	struct k3_vit_qkv_args *a = k3i_task(b, K3_OP_VIT_QKV_FWD, -1, (int)i, block, sizeof(*a));
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

/* Patches of a pair of tiles that see each other: query times key, summed over the items. */
static double
pair_patches(const struct k3i_walk *w, size_t i, size_t j)
{
	const struct k3i_vtile *q = vtile(w, i), *k = vtile(w, j);
	double pairs = 0;

	for (size_t p = 0; p < q->parts; p++)
		for (size_t r = 0; r < k->parts; r++) {
			const int32_t *a = k3_vit_part(q->layout, (int32_t)p),
				      *e = k3_vit_part(k->layout, (int32_t)r);
			if (a[K3_VP_ITEM] == e[K3_VP_ITEM])
				pairs += (double)a[K3_VP_T] * a[K3_VP_ROWS] * a[K3_VP_W] *
					 e[K3_VP_T] * e[K3_VP_ROWS] * e[K3_VP_W];
		}
	return pairs;
}

static struct k3_vit_attn_args
attn_args(const struct k3i_walk *w, size_t i)
{
	const struct k3_vision_config *c = w->vision->c;

	return (struct k3_vit_attn_args){
		.n = vtile(w, i)->n,
		.dq = c->qkv_width,
		.h = c->heads,
		.scale = 1.0f / __builtin_sqrtf((float)c->qkv_width / (float)c->heads)};
}

static void
attn_fwd(struct k3i_walk *w, int block, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	struct block_data *bd = &v->block[block];
	const struct k3i_vtile *t = vtile(w, i);
	struct k3_vit_attn_args *a, base = attn_args(w, i);
	double pairs = 0;

	bd->o[i] = patch_data(w, "vit_o", i, block, base.dq, false);
	bd->lse[i] = patch_data(w, "vit_lse", i, block, base.h, true);
	a = k3i_task(b, K3_OP_VIT_ATTN_FWD, -1, (int)i, block, sizeof(*a));
	*a = base;
	k3i_use(b, bd->o[i], K3_W);
	k3i_use(b, bd->lse[i], K3_W);
	k3i_use(b, bd->qkv[i], K3_R);
	k3i_use(b, v->layout[i], K3_R);
	k3i_work(b, k3_vit_attn_fwd_work_floats(v->tiles.nominal_n, base.dq / base.h));
	k3i_list(b, &a->kqkv, &bd->qkv[t->key0], t->n_keys, K3_R);
	k3i_list(b, &a->klayout, &v->layout[t->key0], t->n_keys, K3_R);
	for (size_t j = t->key0; j < t->key0 + t->n_keys; j++)
		pairs += pair_patches(w, i, j);
	k3i_task_end(b, 4.0 * pairs * (double)base.dq, 0);
}

static void
out_fwd(struct k3i_walk *w, int block, size_t i)
{
	struct k3_builder *b = w->b;
	struct block_data *bd = &w->vision->block[block];
	const struct k3_vision_config *c = w->vision->c;
	size_t n = vtile(w, i)->n;

	bd->mid[i] = patch_data(w, "vit_mid", i, block, c->width, false);
	struct k3_vit_out_args *a = k3i_task(b, K3_OP_VIT_OUT_FWD, -1, (int)i, block, sizeof(*a));
	*a = (struct k3_vit_out_args){.n = n, .d = c->width, .dq = c->qkv_width, .h = c->heads};
	k3i_use(b, bd->mid[i], K3_W);
	k3i_use(b, bd->x[i], K3_R);
	k3i_use(b, bd->o[i], K3_R);
	k3i_weight(b, &a->w, K3_P_VIT_O, block);
	k3i_task_end(b, 2.0 * (double)n * c->width * c->qkv_width, 0);
}

static struct k3_vit_mlp_args
mlp_args(const struct k3i_walk *w, size_t i)
{
	const struct k3_vision_config *c = w->vision->c;

	return (struct k3_vit_mlp_args){
		.n = vtile(w, i)->n, .d = c->width, .f = c->ffn, .eps = (float)c->norm_eps};
}

static uint32_t
mlp_fwd(struct k3i_walk *w, int block, size_t i)
{
	struct k3_builder *b = w->b;
	struct block_data *bd = &w->vision->block[block];
	struct k3_vit_mlp_args *a, base = mlp_args(w, i);
	uint32_t y = patch_data(w, "vit_block", i, block, base.d, false);

	bd->u[i] = patch_data(w, "vit_u", i, block, base.f, true);
	bd->rstd_mlp[i] = patch_data(w, "vit_rstd_mlp", i, block, 1, true);
	a = k3i_task(b, K3_OP_VIT_MLP_FWD, -1, (int)i, block, sizeof(*a));
	*a = base;
	k3i_use(b, y, K3_W);
	k3i_use(b, bd->u[i], K3_W);
	k3i_use(b, bd->rstd_mlp[i], K3_W);
	k3i_use(b, bd->mid[i], K3_R);
	k3i_work(b, w->vision->tiles.nominal_n * (base.d + base.f));
	k3i_weight(b, &a->norm, K3_P_VIT_NORM1, block);
	k3i_weight(b, &a->fc0, K3_P_VIT_FC0, block);
	k3i_weight(b, &a->fc1, K3_P_VIT_FC1, block);
	k3i_task_end(b, 4.0 * (double)(base.n * base.d * base.f), 0);
	return y;
}

static void
block_fwd(struct k3i_walk *w, int block)
{
	struct k3i_vision *v = w->vision;
	struct block_data *bd = &v->block[block];
	size_t n = n_tiles(w);
	uint32_t *y = k3i_array(w, n);

	*bd = (struct block_data){.x = v->x,
				  .qkv = k3i_array(w, n),
				  .rstd = k3i_array(w, n),
				  .o = k3i_array(w, n),
				  .lse = k3i_array(w, n),
				  .mid = k3i_array(w, n),
				  .u = k3i_array(w, n),
				  .rstd_mlp = k3i_array(w, n)};
	for (size_t i = 0; i < n; i++)
		qkv_fwd(w, block, i);
	for (size_t i = 0; i < n; i++)
		attn_fwd(w, block, i);
	for (size_t i = 0; i < n; i++)
		out_fwd(w, block, i);
	for (size_t i = 0; i < n; i++)
		y[i] = mlp_fwd(w, block, i);
	v->x = y;
	keep_all(w, y);
}

static struct k3_vit_merge_args
merge_args(const struct k3i_walk *w, size_t i)
{
	const struct k3_vision_config *c = w->vision->c;

	return (struct k3_vit_merge_args){.n = vtile(w, i)->n,
					  .m = vtile(w, i)->m,
					  .d = c->width,
					  .merge_h = c->merge_h,
					  .merge_w = c->merge_w,
					  .eps = (float)c->norm_eps};
}

static size_t
merged_width(const struct k3i_walk *w)
{
	const struct k3_vision_config *c = w->vision->c;

	return (size_t)c->merge_h * c->merge_w * c->width;
}

static void
merge_fwd(struct k3i_walk *w, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	struct k3_vit_merge_args *a, base = merge_args(w, i);

	v->z[i] = merged_data(w, "vit_z", i, merged_width(w), false);
	/* read by nobody but a host that asked for it */
	v->xf[i] = k3i_data(b, "vit_final", K3_DATA_WORK, K3_F32, -1, (int)i, -1, base.n,
			    v->tiles.nominal_n, base.d);
	v->rstd_final[i] = patch_data(w, "vit_rstd_final", i, -1, 1, true);
	a = k3i_task(b, K3_OP_VIT_MERGE_FWD, -1, (int)i, -1, sizeof(*a));
	*a = base;
	k3i_use(b, v->z[i], K3_W);
	k3i_use(b, v->xf[i], K3_W);
	k3i_use(b, v->rstd_final[i], K3_W);
	k3i_use(b, v->x[i], K3_R);
	k3i_use(b, v->layout[i], K3_R);
	k3i_weight(b, &a->norm, K3_P_VIT_FINAL_NORM, -1);
	k3i_task_end(b, 5.0 * (double)(base.n * base.d), 0);
}

static struct k3_vit_project_args
project_args(const struct k3i_walk *w, size_t i)
{
	return (struct k3_vit_project_args){.m = vtile(w, i)->m,
					    .c = merged_width(w),
					    .dt = w->c->width,
					    .eps = (float)w->vision->c->projector_eps};
}

static double
project_flops(const struct k3_vit_project_args *a)
{
	return 2.0 * (double)a->m * (double)a->c * (double)(a->c + a->dt);
}

static void
project_fwd(struct k3i_walk *w, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	struct k3_vit_project_args *a, base = project_args(w, i);

	v->features[i] =
		k3i_data(b, "vit_features", v->tiles.placeholder ? K3_DATA_WORK : K3_DATA_ACT,
			 K3_F32, -1, (int)i, -1, base.m, v->tiles.nominal_m, base.dt);
	v->u[i] = merged_data(w, "vit_project_u", i, base.c, true);
	v->s[i] = merged_data(w, "vit_project_s", i, base.dt, true);
	v->rstd[i] = merged_data(w, "vit_project_rstd", i, 1, true);
	a = k3i_task(b, K3_OP_VIT_PROJECT_FWD, -1, (int)i, -1, sizeof(*a));
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
	k3i_task_end(b, project_flops(&base), 0);
}

void
k3i_vision_fwd(struct k3i_walk *w)
{
	struct k3i_vision *v = w->vision;

	if (!v || w->b->status != K3_OK)
		return;
	size_t n = n_tiles(w);
	v->xf = k3i_array(w, n);
	v->rstd_final = k3i_array(w, n);
	v->z = k3i_array(w, n);
	v->u = k3i_array(w, n);
	v->s = k3i_array(w, n);
	v->rstd = k3i_array(w, n);
	v->features = k3i_array(w, n);
	load(w);
	k3i_unit_open(w->b, K3_UNIT_VISION, -1, -1);
	patch_embed_fwd(w);
	for (int block = 0; block < (int)v->c->layers; block++)
		block_fwd(w, block);
	for (size_t i = 0; i < n; i++)
		merge_fwd(w, i);
	for (size_t i = 0; i < n; i++)
		project_fwd(w, i);
	keep_all(w, v->xf);
	keep_all(w, v->features);
	k3i_unit_close(w->b, K3_UNIT_VISION, -1, -1);
}

/* Vision tiles whose features go to rows of own tile i: first and number. */
static size_t
wanted(const struct k3i_walk *w, size_t i, size_t *first)
{
	const int32_t *map = w->vision->map_rows[i];
	size_t last = 0;
	bool any = false;

	for (size_t r = 0; r < k3i_rows(w, i); r++) {
		if (map[r] < 0)
			continue;
		size_t j = any ? last : 0;
		while (vtile(w, j)->merged0 + vtile(w, j)->m <= (size_t)map[r])
			j++;
		if (!any)
			*first = j;
		any = true;
		last = j;
	}
	return any ? last - *first + 1 : 0;
}

void
k3i_vision_scatter(struct k3i_walk *w)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;

	if (!v || b->status != K3_OK)
		return;
	for (size_t i = 0; i < w->n; i++) {
		size_t first = 0, n = wanted(w, i, &first);
		if (n == 0) {
			k3i_skip(b);
		} else {
			struct k3_vision_scatter_args *a = k3i_task(
				b, K3_OP_VISION_SCATTER_FWD, -1, k3i_tile_no(w, i), -1, sizeof(*a));
			a->t = k3i_rows(w, i);
			a->d = w->c->width;
			k3i_use(b, w->p[i], K3_RW);
			k3i_use(b, w->map[i], K3_R);
			k3i_list(b, &a->y, &v->features[first], n, K3_R);
			k3i_list(b, &a->layout, &v->layout[first], n, K3_R);
			k3i_task_end(b, 0, 0);
		}
		k3i_keep(w, w->p[i]);
	}
}

/* Own text tiles that hold rows of vision tile j, in order. */
static size_t
holders(const struct k3i_walk *w, size_t j, uint32_t *own)
{
	const struct k3i_vtile *t = vtile(w, j);
	size_t n = 0;

	for (size_t i = 0; i < w->n; i++) {
		const int32_t *map = w->vision->map_rows[i];
		bool holds = false;
		for (size_t r = 0; r < k3i_rows(w, i) && !holds; r++)
			holds = map[r] >= (int32_t)t->merged0 &&
				map[r] < (int32_t)(t->merged0 + t->m);
		if (holds)
			own[n++] = (uint32_t)i;
	}
	return n;
}

static uint32_t
scatter_bwd(struct k3i_walk *w, size_t j)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	uint32_t dy = merged_data(w, "dvit_features", j, w->c->width, false);
	uint32_t *own = k3i_array(w, w->n),
		 *rows = k3i_arena_alloc(b->plan->arena, (w->n + 1) * sizeof(*rows));

	if (!rows)
		b->status = K3_ENOMEM;
	if (b->status != K3_OK)
		return dy;
	size_t n = holders(w, j, own);
	struct k3_vision_scatter_args *a =
		k3i_task(b, K3_OP_VISION_SCATTER_BWD, -1, (int)j, -1, sizeof(*a));
	a->m = vtile(w, j)->m;
	a->d = w->c->width;
	a->rows = rows;
	k3i_use(b, dy, K3_W);
	k3i_use(b, v->layout[j], K3_R);
	a->dp.first = b->cur ? b->cur->n_access : 0;
	a->dp.n = a->map.n = (uint32_t)n;
	for (size_t k = 0; k < n; k++) {
		rows[k] = (uint32_t)k3i_rows(w, own[k]);
		k3i_use(b, w->dp[own[k]], K3_R);
	}
	a->map.first = b->cur ? b->cur->n_access : 0;
	for (size_t k = 0; k < n; k++)
		k3i_use(b, w->map[own[k]], K3_R);
	k3i_task_end(b, 0, 0);
	k3i_keep(w, dy);
	return dy;
}

static uint32_t
project_bwd(struct k3i_walk *w, size_t i, uint32_t dy)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	struct k3_vit_project_args base = project_args(w, i);
	uint32_t dz = merged_data(w, "dvit_z", i, base.c, false),
		 du = merged_data(w, "dvit_project_u", i, base.c, false),
		 ds = merged_data(w, "dvit_project_s", i, base.dt, false);

	struct k3_vit_project_args *a =
		k3i_task(b, K3_OP_VIT_PROJECT_BWD_DX, -1, (int)i, -1, sizeof(*a));
	*a = base;
	k3i_use(b, dz, K3_W);
	k3i_use(b, du, K3_W);
	k3i_use(b, ds, K3_W);
	k3i_use(b, dy, K3_R);
	k3i_use(b, v->u[i], K3_R);
	k3i_use(b, v->s[i], K3_R);
	k3i_use(b, v->rstd[i], K3_R);
	k3i_grad(b, &a->dnorm, K3_P_PROJ_NORM, -1);
	k3i_weight(b, &a->w1, K3_P_PROJ_0, -1);
	k3i_weight(b, &a->w2, K3_P_PROJ_2, -1);
	k3i_weight(b, &a->norm, K3_P_PROJ_NORM, -1);
	k3i_task_end(b, project_flops(&base), 0);

	struct k3_vit_project_args *dw =
		k3i_task(b, K3_OP_VIT_PROJECT_BWD_DW, -1, (int)i, -1, sizeof(*dw));
	*dw = base;
	k3i_use(b, du, K3_R);
	k3i_use(b, ds, K3_R);
	k3i_use(b, v->u[i], K3_R);
	k3i_use(b, v->z[i], K3_R);
	k3i_work(b, v->tiles.nominal_m * base.c);
	k3i_grad(b, &dw->w1, K3_P_PROJ_0, -1);
	k3i_grad(b, &dw->w2, K3_P_PROJ_2, -1);
	k3i_task_end(b, project_flops(&base), 0);
	return dz;
}

static uint32_t
merge_bwd(struct k3i_walk *w, size_t i, uint32_t dz)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	struct k3_vit_merge_args *a, base = merge_args(w, i);
	uint32_t dx = patch_data(w, "dvit_block", i, (int)v->c->layers - 1, base.d, false);
	uint32_t dxf = k3i_data(b, "dvit_final", K3_DATA_WORK, K3_F32, -1, (int)i, -1, base.n,
				v->tiles.nominal_n, base.d);

	a = k3i_task(b, K3_OP_VIT_MERGE_BWD, -1, (int)i, -1, sizeof(*a));
	*a = base;
	k3i_use(b, dx, K3_W);
	k3i_use(b, dxf, K3_W);
	k3i_use(b, dz, K3_R);
	k3i_use(b, v->x[i], K3_R);
	k3i_use(b, v->rstd_final[i], K3_R);
	k3i_use(b, v->layout[i], K3_R);
	k3i_grad(b, &a->dnorm, K3_P_VIT_FINAL_NORM, -1);
	k3i_weight(b, &a->norm, K3_P_VIT_FINAL_NORM, -1);
	k3i_task_end(b, 10.0 * (double)(base.n * base.d), 0);
	k3i_keep(w, dxf);
	return dx;
}

/* Gradients inside one block. */
struct block_grads {
	uint32_t *dmid, *dout, *delta, *dq, *dkv;
};

static void
mlp_bwd(struct k3i_walk *w, int block, size_t i, struct block_grads *g)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	struct block_data *bd = &v->block[block];
	struct k3_vit_mlp_args base = mlp_args(w, i);
	double flops = 4.0 * (double)(base.n * base.d * base.f);
	uint32_t du = patch_data(w, "dvit_u", i, block, base.f, false);

	g->dmid[i] = patch_data(w, "dvit_mid", i, block, base.d, false);
	struct k3_vit_mlp_args *a =
		k3i_task(b, K3_OP_VIT_MLP_BWD_DX, -1, (int)i, block, sizeof(*a));
	*a = base;
	k3i_use(b, g->dmid[i], K3_W);
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
		k3i_task(b, K3_OP_VIT_MLP_BWD_DW, -1, (int)i, block, sizeof(*dw));
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
out_bwd(struct k3i_walk *w, int block, size_t i, struct block_grads *g)
{
	struct k3_builder *b = w->b;
	const struct k3_vision_config *c = w->vision->c;
	struct block_data *bd = &w->vision->block[block];
	struct k3_vit_out_args base = {
		.n = vtile(w, i)->n, .d = c->width, .dq = c->qkv_width, .h = c->heads};
	double flops = 2.0 * (double)(base.n * base.d * base.dq);

	g->dout[i] = patch_data(w, "dvit_o", i, block, base.dq, false);
	g->delta[i] = patch_data(w, "dvit_delta", i, block, base.h, false);
	struct k3_vit_out_args *a =
		k3i_task(b, K3_OP_VIT_OUT_BWD_DX, -1, (int)i, block, sizeof(*a));
	*a = base;
	k3i_use(b, g->dout[i], K3_W);
	k3i_use(b, g->delta[i], K3_W);
	k3i_use(b, g->dmid[i], K3_R);
	k3i_use(b, bd->o[i], K3_R);
	k3i_weight(b, &a->w, K3_P_VIT_O, block);
	k3i_task_end(b, flops, 0);

	struct k3_vit_out_args *dw =
		k3i_task(b, K3_OP_VIT_OUT_BWD_DW, -1, (int)i, block, sizeof(*dw));
	*dw = base;
	k3i_use(b, g->dmid[i], K3_R);
	k3i_use(b, bd->o[i], K3_R);
	k3i_grad(b, &dw->w, K3_P_VIT_O, block);
	k3i_task_end(b, flops, 0);
}

static void
attn_pair_bwd(struct k3i_walk *w, int block, size_t i, size_t j, struct block_grads *g)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	struct block_data *bd = &v->block[block];
	struct k3_vit_attn_args *a, base = attn_args(w, i);

	a = k3i_task(b, K3_OP_VIT_ATTN_BWD, -1, (int)i, block, sizeof(*a));
	*a = base;
	a->nk = vtile(w, j)->n;
	a->init_dq = !k3i_use_sum(b, g->dq[i]);
	a->init_dkv = !k3i_use_sum(b, g->dkv[j]);
	k3i_use(b, bd->qkv[i], K3_R);
	k3i_use(b, bd->qkv[j], K3_R);
	k3i_use(b, g->dout[i], K3_R);
	k3i_use(b, bd->lse[i], K3_R);
	k3i_use(b, g->delta[i], K3_R);
	k3i_use(b, v->layout[i], K3_R);
	k3i_use(b, v->layout[j], K3_R);
	k3i_work(b, k3_vit_attn_bwd_work_floats(base.dq / base.h));
	k3i_task_end(b, 10.0 * pair_patches(w, i, j) * (double)base.dq, 0);
}

static uint32_t
qkv_bwd(struct k3i_walk *w, int block, size_t i, struct block_grads *g)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	struct block_data *bd = &v->block[block];
	struct k3_vit_qkv_args base = qkv_args(w, i);
	double flops = 6.0 * (double)(base.n * base.d * base.dq);
	uint32_t dx = patch_data(w, block > 0 ? "dvit_block" : "dvit_embed", i, block - 1, base.d,
				 false),
		 dp = patch_data(w, "dvit_qkv", i, block, 3 * base.dq, false);

	struct k3_vit_qkv_args *a =
		k3i_task(b, K3_OP_VIT_QKV_BWD_DX, -1, (int)i, block, sizeof(*a));
	*a = base;
	k3i_use(b, dx, K3_W);
	k3i_use(b, dp, K3_W);
	k3i_use(b, g->dmid[i], K3_R);
	k3i_use(b, g->dq[i], K3_R);
	k3i_use(b, g->dkv[i], K3_R);
	k3i_use(b, bd->x[i], K3_R);
	k3i_use(b, bd->rstd[i], K3_R);
	k3i_use(b, v->layout[i], K3_R);
	k3i_work(b, k3_vit_qkv_work_floats(v->tiles.nominal_n, base.d, base.dq / base.h));
	k3i_grad(b, &a->dnorm, K3_P_VIT_NORM0, block);
	k3i_weight(b, &a->norm, K3_P_VIT_NORM0, block);
	k3i_weight(b, &a->w, K3_P_VIT_QKV, block);
	k3i_task_end(b, flops, 0);

	struct k3_vit_qkv_args *dw =
		k3i_task(b, K3_OP_VIT_QKV_BWD_DW, -1, (int)i, block, sizeof(*dw));
	*dw = base;
	k3i_use(b, dp, K3_R);
	k3i_use(b, bd->x[i], K3_R);
	k3i_use(b, bd->rstd[i], K3_R);
	k3i_work(b, v->tiles.nominal_n * base.d);
	k3i_weight(b, &dw->norm, K3_P_VIT_NORM0, block);
	k3i_grad(b, &dw->w, K3_P_VIT_QKV, block);
	k3i_task_end(b, flops, 0);
	return dx;
}

static void
block_bwd(struct k3i_walk *w, int block)
{
	struct k3i_vision *v = w->vision;
	size_t n = n_tiles(w), dq = v->c->qkv_width;
	struct block_grads g = {.dmid = k3i_array(w, n),
				.dout = k3i_array(w, n),
				.delta = k3i_array(w, n),
				.dq = k3i_array(w, n),
				.dkv = k3i_array(w, n)};
	uint32_t *dx = k3i_array(w, n);

	if (w->b->status != K3_OK)
		return;
	for (size_t i = 0; i < n; i++) {
		g.dq[i] = patch_data(w, "dvit_q", i, block, dq, false);
		g.dkv[i] = patch_data(w, "dvit_kv", i, block, 2 * dq, false);
	}
	for (size_t i = n; i-- > 0;)
		mlp_bwd(w, block, i, &g);
	for (size_t i = n; i-- > 0;)
		out_bwd(w, block, i, &g);
	for (size_t i = n; i-- > 0;) {
		const struct k3i_vtile *t = vtile(w, i);
		for (size_t j = t->key0 + t->n_keys; j-- > t->key0;)
			attn_pair_bwd(w, block, i, j, &g);
	}
	for (size_t i = n; i-- > 0;)
		dx[i] = qkv_bwd(w, block, i, &g);
	v->dx = dx;
	keep_all(w, dx);
}

static void
patch_embed_bwd(struct k3i_walk *w, size_t i)
{
	struct k3_builder *b = w->b;
	struct k3i_vision *v = w->vision;
	size_t n = vtile(w, i)->n, d = v->c->width, pixels = 3 * (size_t)v->c->patch * v->c->patch;

	struct k3_vit_embed_args *a =
		k3i_task(b, K3_OP_VIT_PATCH_EMBED_BWD, -1, (int)i, -1, sizeof(*a));
	*a = (struct k3_vit_embed_args){.n = n,
					.d = d,
					.pixels = pixels,
					.table_h = v->c->table_h,
					.table_w = v->c->table_w};
	k3i_use(b, v->dx[i], K3_R);
	k3i_use(b, v->patches[i], K3_R);
	k3i_use(b, v->layout[i], K3_R);
	k3i_grad(b, &a->wpe, K3_P_VIT_PATCH, -1);
	k3i_grad(b, &a->pos, K3_P_VIT_POS, -1);
	k3i_task_end(b, 2.0 * (double)(n * d * pixels), 0);
}

/* Zeros for all vision parameters, a handful of blocks a task. */
static void
zero_grads(struct k3i_walk *w)
{
	enum { BLOCKS_OF_TASK = 32 };
	struct k3_builder *b = w->b;
	const struct k3_params *ps = &b->model->params;
	struct k3_zero_args *a = NULL;
	size_t *elems = NULL, n = 0;

	for (size_t i = 0; i < ps->n && b->status == K3_OK; i++) {
		const struct k3_view *g = &b->grad[i];
		if (ps->param[i].unit != K3_UNIT_VISION)
			continue;
		for (size_t k = 0; k < g->n && b->status == K3_OK; k++, n++) {
			if (n % BLOCKS_OF_TASK == 0) {
				if (a)
					k3i_task_end(b, 0, 0);
				a = k3i_task(b, K3_OP_ZERO_GRADS, -1, -1, (int)(n / BLOCKS_OF_TASK),
					     sizeof(*a));
				elems = k3i_arena_alloc(b->plan->arena,
							BLOCKS_OF_TASK * sizeof(*elems));
				if (!elems) {
					b->status = K3_ENOMEM;
					return;
				}
				a->elems = elems;
			}
			elems[n % BLOCKS_OF_TASK] =
				b->plan->data[g->datum[k]].rows * ps->param[i].cols;
			a->accumulate = k3i_use_sum(b, g->datum[k]);
		}
	}
	if (a)
		k3i_task_end(b, 0, 0);
}

void
k3i_vision_bwd(struct k3i_walk *w)
{
	struct k3i_vision *v = w->vision;

	if (!v || w->b->status != K3_OK)
		return;
	if (v->tiles.placeholder) {
		zero_grads(w);
	} else {
		size_t n = n_tiles(w);
		uint32_t *dy = k3i_array(w, n), *dz = k3i_array(w, n);
		k3i_unit_open(w->b, K3_UNIT_VISION, -1, -1);
		v->dx = k3i_array(w, n);
		for (size_t i = n; i-- > 0;)
			dy[i] = scatter_bwd(w, i);
		for (size_t i = n; i-- > 0;)
			dz[i] = project_bwd(w, i, dy[i]);
		for (size_t i = n; i-- > 0;)
			v->dx[i] = merge_bwd(w, i, dz[i]);
		keep_all(w, v->dx);
		for (int block = (int)v->c->layers - 1; block >= 0; block--)
			block_bwd(w, block);
		for (size_t i = n; i-- > 0;)
			patch_embed_bwd(w, i);
		k3i_unit_close(w->b, K3_UNIT_VISION, -1, -1);
	}
	k3i_unit_reduce(w->b, K3_UNIT_VISION, -1, -1);
}
