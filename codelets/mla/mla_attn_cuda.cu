/* Document-causal attention on CUDA: operands of the text for the kernels of codelets/cuda/attn.h.
 * Many key tiles go in several launches, each of which goes on from (o, lse) of the one before. */
#include "../cuda/attn.h"
#include "../cuda/device.cuh"

extern "C" {
#include "../../common/op/mla.h"
}

static struct k3_attn_shape
shape_of(const struct k3_mla_attn_args *a)
{
	return {K3_ATTN_DOCUMENTS, (int)(a->h1 - a->h0), (int)a->nope, (int)a->rope, (int)a->v,
		a->scale};
}

/* Rows of kv or dkv with `heads` heads, from head h0 on. */
static struct k3_attn_keys
keys_of(const struct k3_mla_attn_args *a, size_t heads, size_t h0)
{
	size_t head = a->nope + a->v, wide = heads * head;

	return {wide + a->rope, head, h0 * head, wide, h0 * head + a->nope};
}

template <typename T>
static struct k3_attn_rows
queries_of(void *const *buf, const struct k3_mla_attn_args *a)
{
	size_t kq = a->nope + a->rope;

	return {(const T *)buf[2] + a->h0 * kq, a->h * kq, kq};
}

template <typename T>
static void
mla_attn_fwd(void *const *buf, const struct k3_mla_attn_args *a, const struct k3_cuda *cuda)
{
	struct k3_attn_fwd p = {};
	uint32_t done = 0;

	p.shape = shape_of(a);
	p.q = queries_of<T>(buf, a);
	p.o = {buf[0], (a->h1 - a->h0) * a->v, a->v};
	p.lse = (float *)buf[1];
	p.layout = (const int32_t *)buf[3];
	p.t = (int)a->t;
	p.keys = keys_of(a, a->h, a->h0);
	do {
		p.first = a->first && done == 0;
		for (p.n_tiles = 0; p.n_tiles < K3_ATTN_TILES && done < a->kv.n; done++) {
			p.kv[p.n_tiles] = buf[a->kv.first + done];
			p.klayout[p.n_tiles++] = (const int32_t *)buf[a->klayout.first + done];
		}
		k3_cuda_attn_fwd(cuda, k3_type<T>::id, &p);
	} while (done < a->kv.n);
}

template <typename T>
static void
mla_attn_bwd(void *const *buf, const struct k3_mla_attn_args *a, const struct k3_cuda *cuda)
{
	struct k3_attn_bwd p = {};
	size_t heads = a->h1 - a->h0, kq = a->nope + a->rope;

	p.shape = shape_of(a);
	p.q = queries_of<T>(buf, a);
	p.da = {buf[4], heads * a->v, a->v};
	p.dq = {buf[0], heads * kq, kq};
	p.lse = (const float *)buf[5];
	p.delta = (const float *)buf[6];
	p.layout = (const int32_t *)buf[7];
	p.klayout = (const int32_t *)buf[8];
	p.t = (int)a->t;
	p.tk = (int)a->tk_max;
	p.add_dq = !a->init_dq;
	p.add_dkv = !a->init_dkv;
	p.keys = keys_of(a, a->h, a->h0);
	p.dkeys = keys_of(a, heads, 0);
	p.kv = buf[3];
	p.dkv = buf[1];
	p.drope = (float *)cuda->scratch;
	k3_cuda_attn_bwd(cuda, k3_type<T>::id, &p);
}

/* Each head's gradient of the shared key part. */
extern "C" size_t
k3_mla_attn_bwd_cuda_scratch(const struct k3_mla_attn_args *a)
{
	return (a->h1 - a->h0) * a->tk_max * a->rope * sizeof(float);
}

K3_CUDA_BOTH(mla_attn_fwd, k3_mla_attn_args)
K3_CUDA_BOTH(mla_attn_bwd, k3_mla_attn_args)
