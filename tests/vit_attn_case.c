#include "vit_attn_case.h"

#include <math.h>
#include <stdio.h>

struct vit_attn
vit_attn_golden(const char *dump, const struct vit_grid *items, size_t n, size_t h, size_t hd)
{
	struct vit_attn d = {dump, items, n, h, hd, NULL, NULL, NULL, NULL};
	float **to[] = {&d.qkv, &d.dout, &d.lse, &d.delta};
	static const char *const name[] = {"qkv", "do", "lse", "delta"};

	for (size_t i = 0; i < 4; i++) {
		char tensor[32];
		snprintf(tensor, sizeof(tensor), "%s.%s", dump, name[i]);
		*to[i] = held_input("vit_block", tensor);
	}
	return d;
}

size_t
vit_attn_widths(const struct k3i_vit_attn *table[3])
{
	size_t n = 0;

	for (; n <= k3_lanes_of_cpu(); n++)
		table[n] = K3_LANES_TABLE(k3i_vit_attn, n);
	return n;
}

static struct k3_vit_attn_args
args_of(const struct vit_attn *d, const struct vit_tile *tile)
{
	return (struct k3_vit_attn_args){
		.n = tile->n, .dq = d->h * d->hd, .h = d->h, .scale = sqrtf(1.0f / (float)d->hd)};
}

void
vit_attn_forward(const struct k3i_vit_attn *run, const struct vit_attn *d,
		 const struct vit_tile *tile, const struct vit_tile *keys, size_t n_keys, float *o,
		 float *lse)
{
	struct k3_vit_attn_args a = args_of(d, tile);
	size_t width = 3 * a.dq;
	float *work = held_out(k3_vit_attn_fwd_work_floats(tile->n, d->hd));
	struct held_task task = {{o, lse, vit_gather(tile, d->qkv, width), tile->layout, work}, 5};

	a.kqkv = (struct k3_list){5, (uint32_t)n_keys};
	for (size_t i = 0; i < n_keys; i++)
		held_push(&task, vit_gather(&keys[i], d->qkv, width));
	a.klayout = (struct k3_list){task.n, (uint32_t)n_keys};
	for (size_t i = 0; i < n_keys; i++)
		held_push(&task, keys[i].layout);
	a.n_buf = task.n;
	run->fwd(task.buf, &a);
}

void
vit_attn_backward(const struct k3i_vit_attn *run, const struct vit_attn *d,
		  const struct vit_tile *tile, const struct vit_tile *keys, int init_dq,
		  int init_dkv, float *dq, float *dkv)
{
	struct k3_vit_attn_args a = args_of(d, tile);
	void *buf[] = {dq,
		       dkv,
		       vit_gather(tile, d->qkv, 3 * a.dq),
		       vit_gather(keys, d->qkv, 3 * a.dq),
		       vit_gather(tile, d->dout, a.dq),
		       vit_gather(tile, d->lse, d->h),
		       vit_gather(tile, d->delta, d->h),
		       tile->layout,
		       keys->layout,
		       held_out(k3_vit_attn_bwd_work_floats(d->hd))};

	a.nk = keys->n;
	a.init_dq = (uint32_t)init_dq;
	a.init_dkv = (uint32_t)init_dkv;
	a.n_buf = 10;
	run->bwd(buf, &a);
}
