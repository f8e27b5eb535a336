/* KDA's chunk operations on CUDA: cuts scratch memory and runs the stages (kda_chunk.cuh), for some
 * heads at a time where all of them would need too much of it. */
#include "kda_chunk.cuh"

enum { HEADS_AT_ONCE = 32, ALIGN = 256, CLEAR_THREADS = 256, CLEAR_ROWS = 16 };

/* Takes n bytes; without a base it only counts. */
static void *
take(char *base, size_t *used, size_t n)
{
	char *p = base ? base + *used : NULL;

	*used += (n + ALIGN - 1) / ALIGN * ALIGN;
	return p;
}

static bool
is_wide(const struct k3_kda_chunk_args *a)
{
	return a->k > KDA_MAX_WIDTH;
}

/* Heads that go through the stages together. */
static size_t
heads_at_once(const struct k3_kda_chunk_args *a)
{
	size_t hg = a->h1 - a->h0;

	if (is_wide(a))
		return k3i_kda_wide_heads(a);
	return hg < HEADS_AT_ONCE ? hg : HEADS_AT_ONCE;
}

/* elem: bytes of an element of what tasks read and write; that of tiles is kda_tile's. */
static struct kda_scratch
cut(char *base, size_t *used, const struct k3_kda_chunk_args *a, bool backward, size_t elem)
{
	struct kda_scratch w = {};
	size_t heads = heads_at_once(a), kp = k3i_kda_width(a->k), rows = heads * a->t;

	if (kp < KDA_MAX_WIDTH)
		elem = sizeof(float);
	size_t keys = rows * kp * elem;

	*used = 0;
	w.t = a->t;
	w.slots = a->t / KDA_CHUNK;
	w.vp = (a->v + KDA_BV - 1) / KDA_BV * KDA_BV;
	w.table = (int *)take(base, used, (KDA_TABLE_HEAD + 4 * a->t) * sizeof(int));
	if (is_wide(a)) {
		w.wide = (float *)take(base, used, k3i_kda_wide_bytes(a, backward));
		return w;
	}
	w.w = take(base, used, keys);
	w.kbar = take(base, used, keys);
	w.qd = take(base, used, keys);
	w.u = take(base, used, rows * w.vp * elem);
	w.p = take(base, used, rows * 64 * elem);
	w.last = (float *)take(base, used, heads * (w.slots + 1) * kp * sizeof(float));
	if (!backward)
		return w;
	w.vt = take(base, used, rows * w.vp * elem);
	w.dvt = take(base, used, rows * w.vp * elem);
	w.m = (float *)take(base, used, rows * 64 * sizeof(float));
	w.tm = (float *)take(base, used, rows * 64 * sizeof(float));
	w.s = take(base, used, heads * w.slots * kp * w.vp * elem);
	w.ds = take(base, used, heads * w.slots * kp * w.vp * elem);
	w.s_edge = take(base, used, heads * kp * w.vp * elem);
	w.ds_edge = take(base, used, heads * kp * w.vp * elem);
	w.dx = take(base, used, keys);
	w.dl = take(base, used, rows * 64 * elem);
	w.dbeta = (float *)take(base, used, rows * KDA_DBETA_PARTS * sizeof(float));
	w.dab = (float *)take(base, used,
			      heads * k3i_kda_blocks(a->t) * (KDA_DAB_HEAD + kp) * sizeof(float));
	return w;
}

extern "C" size_t
k3_kda_chunk_fwd_cuda_scratch(const struct k3_kda_chunk_args *a)
{
	size_t used;

	cut(NULL, &used, a, false, sizeof(float));
	return used;
}

extern "C" size_t
k3_kda_chunk_bwd_cuda_scratch(const struct k3_kda_chunk_args *a)
{
	size_t used;

	cut(NULL, &used, a, true, sizeof(float));
	return used;
}

/* Results by rows of the tile, of which those without a document become zero. */
struct results {
	void *x[3];
	size_t width[3];
};

/* Most tiles have no such row. */
template <typename T>
static __global__ void
clear_holes(struct results r, const int32_t *layout)
{
	if (layout[K3_TL_VALID] == layout[K3_TL_ROWS])
		return;
	for (int row = (int)blockIdx.x; row < layout[K3_TL_ROWS]; row += (int)gridDim.x)
		for (int i = 0; layout[K3_TL_HEAD + row] == 0 && i < 3; i++)
			for (size_t c = threadIdx.x; c < r.width[i]; c += CLEAR_THREADS)
				((T *)r.x[i])[(size_t)row * r.width[i] + c] = narrow<T>(0);
}

template <typename T>
static void
clear(const struct results *r, const struct kda_task *task, const struct k3_cuda *cuda)
{
	unsigned blocks = blocks_for(task->a.t, CLEAR_ROWS);

	clear_holes<T><<<blocks, CLEAR_THREADS, 0, (cudaStream_t)cuda->stream>>>(*r, task->layout);
	K3_CUDA_LAUNCHED("clear_holes");
}

static void *
optional(void *const *buf, const struct k3_list *l)
{
	return l->n ? buf[l->first] : NULL;
}

/* Operands from buffer `qkv` on, and scratch memory. */
static struct kda_task
task_of(void *const *buf, const struct k3_kda_chunk_args *a, uint32_t qkv, bool backward,
	size_t elem, const struct k3_cuda *cuda)
{
	struct kda_task x = {};
	size_t used;

	x.a = *a;
	x.qkv = buf[qkv];
	x.f = buf[qkv + 1];
	x.br = buf[qkv + 2];
	x.layout = (const int32_t *)buf[qkv + 3];
	x.a_log = a->raw ? NULL : (const float *)buf[a->a_log.first];
	x.dt_bias = a->raw ? NULL : (const float *)buf[a->dt_bias.first];
	x.s_in = (const float *)optional(buf, &a->s_in);
	x.work = cut((char *)cuda->scratch, &used, a, backward, elem);
	return x;
}

/* The next heads of the group; false: there are none. */
static bool
next_heads(struct kda_task *x)
{
	size_t hg = x->a.h1 - x->a.h0, most = heads_at_once(&x->a);

	x->first += x->heads;
	x->heads = hg - x->first < most ? hg - x->first : most;
	return x->heads > 0;
}

template <typename T>
static void
kda_chunk_fwd(void *const *buf, const struct k3_kda_chunk_args *a, const struct k3_cuda *cuda)
{
	struct kda_task x = task_of(buf, a, 1, false, sizeof(T), cuda);

	x.o = buf[0];
	x.s_out = (float *)optional(buf, &a->s_out);
	struct results outputs = {{x.o}, {(a->h1 - a->h0) * a->v}};
	clear<T>(&outputs, &x, cuda);
	k3i_kda_table(&x, cuda);
	while (next_heads(&x)) {
		if (is_wide(a)) {
			k3i_kda_wide<T>(&x, false, cuda);
			continue;
		}
		if (a->t)
			k3i_kda_intra<T>(&x, false, cuda);
		k3i_kda_scan<T>(&x, false, cuda);
	}
}

template <typename T>
static void
kda_chunk_bwd(void *const *buf, const struct k3_kda_chunk_args *a, const struct k3_cuda *cuda)
{
	struct kda_task x = task_of(buf, a, 5, true, sizeof(T), cuda);
	size_t hg = a->h1 - a->h0;

	x.dqkv = buf[0];
	x.df = buf[1];
	x.dbr = buf[2];
	x.dab = (float *)buf[3];
	x.d_o = buf[4];
	x.ds_out = (const float *)optional(buf, &a->ds_out);
	x.ds_in = (float *)optional(buf, &a->ds_in);
	struct results outputs = {{x.dqkv, x.df, x.dbr}, {hg * (2 * a->k + a->v), hg * a->k, hg}};
	clear<T>(&outputs, &x, cuda);
	k3i_kda_table(&x, cuda);
	while (next_heads(&x)) {
		if (is_wide(a)) {
			k3i_kda_wide<T>(&x, true, cuda);
			continue;
		}
		if (a->t)
			k3i_kda_intra<T>(&x, true, cuda);
		k3i_kda_scan<T>(&x, true, cuda);
		k3i_kda_scan_back<T>(&x, cuda);
		k3i_kda_local<T>(&x, cuda);
	}
}

K3_CUDA_BOTH(kda_chunk_fwd, k3_kda_chunk_args)
K3_CUDA_BOTH(kda_chunk_bwd, k3_kda_chunk_args)
