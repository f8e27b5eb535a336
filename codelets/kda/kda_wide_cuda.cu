/* The forward of KDA's wide heads, which also repeats the states for the backward, and what all
 * of it needs of scratch memory. */
#include "kda_wide.cuh"

/* Output, or (keep) entering states. */
template <typename T>
static __global__ void
wide_forward(struct kda_task x, struct wide_states w, bool keep)
{
	extern __shared__ float shared[];
	size_t head = blockIdx.y, v = x.a.v, kv = x.a.k * v, hg = x.a.h1 - x.a.h0;
	size_t j = (size_t)blockIdx.x * WIDE_THREADS + threadIdx.x;
	struct kda_head<T> h = kda_head_of<T>(x, head);
	struct wide_row r = wide_row_at(shared, x.a.k);
	const float *s_in = outside(x.s_in, x, head);
	float *s_out = (float *)outside(x.s_out, x, head), *s = w.now + head * kv, error;
	struct kda_entry e = {0, 0, KDA_OUTSIDE, KDA_NONE};

	for (int i = 0; i < x.work.table[0]; i++) {
		e = kda_entry_at(x.work, i);
		if (e.from < 0 && j < v)
			wide_column(s, e.from == KDA_OUTSIDE ? s_in : NULL, j, x.a);
		else if (keep && j < v)
			wide_column(w.entered + (head * x.work.slots + (size_t)e.from) * kv, s, j,
				    x.a);
		for (int n = 0; n < e.n; n++) {
			wide_row_load<T>(&r, h, x, e.row + n);
			if (j >= v)
				continue;
			float o = wide_step(s + j, s + j, &error, r, wide(h.v[r.t * h.ld_qkv + j]),
					    x.a);
			if (!keep)
				((T *)x.o)[(r.t * hg + x.first + head) * v + j] =
					narrow<T>(x.a.scale * o);
		}
	}
	if (!s_out || keep || j >= v)
		return;
	if (e.to != KDA_OUTSIDE)
		wide_column(s, x.work.table[1] ? s_in : NULL, j, x.a);
	wide_column(s_out, s, j, x.a);
}

/* Cuts scratch memory; returns how many floats of it are used.  Without w it only counts. */
static size_t
cut(struct wide_states *w, float *base, const struct k3_kda_chunk_args *a, bool backward)
{
	size_t heads = k3i_kda_wide_heads(a), now = heads * a->k * a->v;
	size_t entered = now * (a->t / KDA_CHUNK), rows = now * (KDA_CHUNK + 1);

	if (w) {
		w->now = base;
		w->entered = backward ? base + now : NULL;
		w->rows = backward ? w->entered + entered : NULL;
		w->errors = backward ? w->rows + rows : NULL;
	}
	return backward ? now + entered + rows + heads * KDA_CHUNK * a->v : now;
}

size_t
k3i_kda_wide_bytes(const struct k3_kda_chunk_args *a, bool backward)
{
	return cut(NULL, NULL, a, backward) * sizeof(float);
}

size_t
k3i_kda_wide_heads(const struct k3_kda_chunk_args *a)
{
	size_t hg = a->h1 - a->h0;

	return hg < WIDE_HEADS ? hg : WIDE_HEADS;
}

template <typename T>
void
k3i_kda_wide(const struct kda_task *x, bool backward, const struct k3_cuda *cuda)
{
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	dim3 grid(blocks_for(x->a.v, WIDE_THREADS), (unsigned)x->heads);
	size_t row = 3 * x->a.k * sizeof(float);
	struct wide_states w;

	cut(&w, x->work.wide, &x->a, backward);
	K3_CUDA_CHECK(cudaFuncSetAttribute(wide_forward<T>,
					   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)row));
	wide_forward<T><<<grid, WIDE_THREADS, row, stream>>>(*x, w, backward);
	K3_CUDA_LAUNCHED("wide_forward");
	if (backward)
		k3i_kda_wide_back<T>(x, &w, cuda);
}

template void k3i_kda_wide<float>(const struct kda_task *, bool, const struct k3_cuda *);
template void k3i_kda_wide<k3_bf16>(const struct kda_task *, bool, const struct k3_cuda *);
