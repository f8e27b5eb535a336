/* The tower's attention on CUDA: operands of the vision tiles for the kernels of
 * codelets/cuda/attn.h. Rows hold (q | k | v), each all heads. */
#include "../cuda/attn.h"
#include "../cuda/device.cuh"

extern "C" {
#include "../../common/op/vit.h"
}

static struct k3_attn_shape
shape_of(const struct k3_vit_attn_args *a)
{
	int hd = (int)(a->dq / a->h);

	return {K3_ATTN_ITEMS, (int)a->h, hd, 0, hd, a->scale};
}

template <typename T>
static void
vit_attn_fwd(void *const *buf, const struct k3_vit_attn_args *a, const struct k3_cuda *cuda)
{
	struct k3_attn_fwd p = {};
	size_t hd = a->dq / a->h;
	uint32_t done = 0;

	p.shape = shape_of(a);
	p.q = {buf[2], 3 * a->dq, hd};
	p.o = {buf[0], a->dq, hd};
	p.lse = (float *)buf[1];
	p.layout = (const int32_t *)buf[3];
	p.t = (int)a->n;
	p.keys = {3 * a->dq, hd, a->dq, 0, 2 * a->dq};
	do {
		p.first = done == 0;
		for (p.n_tiles = 0; p.n_tiles < K3_ATTN_TILES && done < a->kqkv.n; done++) {
			p.kv[p.n_tiles] = buf[a->kqkv.first + done];
			p.klayout[p.n_tiles++] = (const int32_t *)buf[a->klayout.first + done];
		}
		k3_cuda_attn_fwd(cuda, k3_type<T>::id, &p);
	} while (done < a->kqkv.n);
}

template <typename T>
static void
vit_attn_bwd(void *const *buf, const struct k3_vit_attn_args *a, const struct k3_cuda *cuda)
{
	struct k3_attn_bwd p = {};
	size_t hd = a->dq / a->h;

	p.shape = shape_of(a);
	p.q = {buf[2], 3 * a->dq, hd};
	p.da = {buf[4], a->dq, hd};
	p.dq = {buf[0], a->dq, hd};
	p.lse = (const float *)buf[5];
	p.delta = (const float *)buf[6];
	p.layout = (const int32_t *)buf[7];
	p.klayout = (const int32_t *)buf[8];
	p.t = (int)a->n;
	p.tk = (int)a->nk;
	p.add_dq = !a->init_dq;
	p.add_dkv = !a->init_dkv;
	p.keys = {3 * a->dq, hd, a->dq, 0, 2 * a->dq};
	p.dkeys = {2 * a->dq, hd, 0, 0, a->dq};
	p.kv = buf[3];
	p.dkv = buf[1];
	k3_cuda_attn_bwd(cuda, k3_type<T>::id, &p);
}

K3_CUDA_BOTH(vit_attn_fwd, k3_vit_attn_args)
K3_CUDA_BOTH(vit_attn_bwd, k3_vit_attn_args)
