/* Data and arguments that both walks of the vision tower use.  The trap: data are sized by a
 * full tile, whatever the images are. */
#include "vision.h"

uint32_t
k3i_vit_patch_data(struct k3i_walk *w, const char *what, size_t i, int block, size_t row_elems,
		   bool saved)
{
	return k3i_data(w->b, what, !saved || k3i_vit_backward(w) ? K3_DATA_ACT : K3_DATA_WORK,
			w->b->act, -1, k3i_vtile_no(w, i), block, k3i_vtile(w, i)->n,
			w->vision->tiles.nominal_n, row_elems);
}

uint32_t
k3i_vit_stat(struct k3i_walk *w, const char *what, size_t i, int block, size_t row_elems,
	     bool saved)
{
	return k3i_data(w->b, what, !saved || k3i_vit_backward(w) ? K3_DATA_ACT : K3_DATA_WORK,
			K3_F32, -1, k3i_vtile_no(w, i), block, k3i_vtile(w, i)->n,
			w->vision->tiles.nominal_n, row_elems);
}

uint32_t
k3i_vit_merged_data(struct k3i_walk *w, const char *what, size_t i, size_t row_elems, bool saved)
{
	return k3i_data(w->b, what, !saved || k3i_vit_backward(w) ? K3_DATA_ACT : K3_DATA_WORK,
			w->b->act, -1, k3i_vtile_no(w, i), -1, k3i_vtile(w, i)->m,
			w->vision->tiles.nominal_m, row_elems);
}

void
k3i_vit_keep(struct k3i_walk *w, const uint32_t *datum)
{
	for (size_t i = 0; i < w->vision->tiles.n; i++)
		k3i_keep(w, datum[i]);
}

static void
touch(struct k3i_walk *w, const uint32_t *datum, size_t n)
{
	for (size_t i = 0; i < n; i++)
		k3i_touch(w->b, datum[i]);
}

void
k3i_vit_touch(struct k3i_walk *w, const uint32_t *datum)
{
	touch(w, datum, k3i_vtiles_n(w));
}

void
k3i_vit_touch_places(struct k3i_walk *w, const uint32_t *datum)
{
	touch(w, datum, k3i_vplaces_n(w));
}

void
k3i_vit_up(struct k3i_walk *w, int block, k3i_vit_step step)
{
	for (size_t i = 0; i < k3i_vtiles_n(w); i++) {
		w->b->phantom = i >= w->vision->tiles.n;
		step(w, block, i);
	}
	w->b->phantom = false;
}

void
k3i_vit_down(struct k3i_walk *w, int block, k3i_vit_step step)
{
	for (size_t i = k3i_vtiles_n(w); i-- > 0;) {
		w->b->phantom = i >= w->vision->tiles.n || w->vision->tiles.placeholder;
		step(w, block, i);
	}
	w->b->phantom = false;
}

void
k3i_vit_up_others(struct k3i_walk *w, int block, k3i_vit_step step)
{
	for (size_t i = k3i_vtiles_n(w); i < k3i_vplaces_n(w); i++) {
		w->b->phantom = i >= k3i_vtiles_n(w) + w->vision->tiles.others;
		step(w, block, i);
	}
	w->b->phantom = false;
}

void
k3i_vit_down_others(struct k3i_walk *w, int block, k3i_vit_step step)
{
	for (size_t i = k3i_vplaces_n(w); i-- > k3i_vtiles_n(w);) {
		w->b->phantom = i >= k3i_vtiles_n(w) + w->vision->tiles.others;
		step(w, block, i);
	}
	w->b->phantom = false;
}

struct k3_vit_embed_args
k3i_vit_embed_args(const struct k3i_walk *w, size_t i)
{
	const struct k3_vision_config *c = w->vision->c;

	return (struct k3_vit_embed_args){.n = k3i_vtile(w, i)->n,
					  .d = c->width,
					  .pixels = k3_patch_values(c->patch),
					  .table_h = c->table_h,
					  .table_w = c->table_w};
}

struct k3_vit_qkv_args
k3i_vit_qkv_args(const struct k3i_walk *w, size_t i)
{
	const struct k3_vision_config *c = w->vision->c;

	return (struct k3_vit_qkv_args){.n = k3i_vtile(w, i)->n,
					.d = c->width,
					.dq = c->qkv_width,
					.h = c->heads,
					.eps = (float)c->norm_eps};
}

struct k3_vit_attn_args
k3i_vit_attn_args(const struct k3i_walk *w, size_t i)
{
	const struct k3_vision_config *c = w->vision->c;

	return (struct k3_vit_attn_args){
		.n = k3i_vtile(w, i)->n,
		.dq = c->qkv_width,
		.h = c->heads,
		.scale = 1.0f / __builtin_sqrtf((float)c->qkv_width / (float)c->heads)};
}

struct k3_vit_out_args
k3i_vit_out_args(const struct k3i_walk *w, size_t i)
{
	const struct k3_vision_config *c = w->vision->c;

	return (struct k3_vit_out_args){
		.n = k3i_vtile(w, i)->n, .d = c->width, .dq = c->qkv_width, .h = c->heads};
}

struct k3_vit_mlp_args
k3i_vit_mlp_args(const struct k3i_walk *w, size_t i)
{
	const struct k3_vision_config *c = w->vision->c;

	return (struct k3_vit_mlp_args){
		.n = k3i_vtile(w, i)->n, .d = c->width, .f = c->ffn, .eps = (float)c->norm_eps};
}

struct k3_vit_merge_args
k3i_vit_merge_args(const struct k3i_walk *w, size_t i)
{
	const struct k3_vision_config *c = w->vision->c;

	return (struct k3_vit_merge_args){.n = k3i_vtile(w, i)->n,
					  .m = k3i_vtile(w, i)->m,
					  .d = c->width,
					  .merge_h = c->merge_h,
					  .merge_w = c->merge_w,
					  .eps = (float)c->norm_eps};
}

size_t
k3i_vit_merged_width(const struct k3i_walk *w)
{
	const struct k3_vision_config *c = w->vision->c;

	return (size_t)c->merge_h * c->merge_w * c->width;
}

struct k3_vit_project_args
k3i_vit_project_args(const struct k3i_walk *w, size_t i)
{
	return (struct k3_vit_project_args){.m = k3i_vtile(w, i)->m,
					    .c = k3i_vit_merged_width(w),
					    .dt = w->c->width,
					    .eps = (float)w->vision->c->projector_eps};
}

double
k3i_vit_project_flops(const struct k3_vit_project_args *a)
{
	return 2.0 * (double)a->m * (double)a->c * (double)(a->c + a->dt);
}
