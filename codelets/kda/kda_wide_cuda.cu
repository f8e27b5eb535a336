/* KDA's chunk operations for heads that are wider than the chunk kernels: the recurrence of
 * model.md 3.3 itself in float, row after row.
 *
 * States are [k, v] in scratch memory.  Forward, a thread has a column of the state, which needs
 * nothing of the others.  Backward, a block has a head: the states of a chunk's rows come first, from
 * the one that entered the chunk, then the rows in descending order.  Columns of v belong to threads
 * where sums go over k, rows of k to warps where they go over v.
 */
#include "kda_rows.cuh"

enum { WIDE_THREADS = 256, WIDE_HEADS = 8 };

struct wide_states {
	float *now;	/* [heads, k, v]: state, or its gradient */
	float *entered; /* [heads, slots, k, v] */
	float *rows;	/* [heads, 65, k, v]: before the first row of a chunk, behind each */
	float *errors;	/* [heads, 64, v] */
};

/* What a row says, in shared memory. */
struct wide_row {
	float *q, *key, *decay; /* [k] */
	float beta;
	size_t t;
};

static __device__ __forceinline__ struct wide_row
wide_row_at(float *shared, size_t k)
{
	struct wide_row r = {shared, shared + k, shared + 2 * k, 0, 0};

	return r;
}

/* Reads the row at a position; all threads of the block. */
template <typename T>
static __device__ void
wide_row_load(struct wide_row *r, const struct kda_head<T> &h, const struct kda_task &x,
	      int position)
{
	const struct k3_kda_chunk_args &a = x.a;
	size_t t = (size_t)kda_order(x.layout)[position];
	float beta = wide(h.br[t * h.ld_br]);

	__syncthreads();
	r->t = t;
	r->beta = a.raw ? beta : kda_sigmoid(beta);
	for (size_t c = threadIdx.x; c < a.k; c += WIDE_THREADS) {
		float f = wide(h.f[t * h.ld_f + c]);

		r->q[c] = wide(h.q[t * h.ld_qkv + c]);
		r->key[c] = wide(h.k[t * h.ld_qkv + c]);
		r->decay[c] =
			expf(a.raw ? f : a.lower_bound * kda_sigmoid(h.exp_a * (f + h.dt[c])));
	}
	__syncthreads();
}

/* A column of the state goes on by one row; returns q . state, without scale. */
static __device__ float
wide_step(float *to, const float *from, float *error, const struct wide_row &r, float value,
	  const struct k3_kda_chunk_args &a)
{
	float dot = 0, o = 0, e;

	for (size_t c = 0; c < a.k; c++)
		dot += r.key[c] * (r.decay[c] * from[c * a.v]);
	e = value - dot;
	for (size_t c = 0; c < a.k; c++) {
		float s = r.decay[c] * from[c * a.v] + r.key[c] * (r.beta * e);

		to[c * a.v] = s;
		o += r.q[c] * s;
	}
	*error = e;
	return o;
}

/* to = from, or zeros (NULL), of column j. */
static __device__ void
wide_column(float *to, const float *from, size_t j, const struct k3_kda_chunk_args &a)
{
	for (size_t c = 0; c < a.k; c++)
		to[c * a.v + j] = from ? from[c * a.v + j] : 0.0f;
}

static __device__ __forceinline__ const float *
outside(const float *states, const struct kda_task &x, size_t head)
{
	return states ? states + (x.first + head) * x.a.k * x.a.v : NULL;
}

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

/* Vectors of the backward's block. */
struct wide_back {
	struct wide_row row;
	float *da, *db;	      /* [k]: sums over rows */
	float *d_o, *de, *be; /* [v]: gradients of output and error, beta times error */
	float *part;	      /* 32 */
};

static __device__ __forceinline__ struct wide_back
wide_back_at(float *shared, const struct k3_kda_chunk_args &a)
{
	struct wide_back b;

	b.row = wide_row_at(shared, a.k);
	b.da = shared + 3 * a.k;
	b.db = b.da + a.k;
	b.d_o = b.db + a.k;
	b.de = b.d_o + a.v;
	b.be = b.de + a.v;
	b.part = b.be + a.v;
	return b;
}

/* The states of a chunk's rows, and their errors. */
template <typename T>
static __device__ void
wide_rows(struct wide_back *b, const struct kda_head<T> &h, const struct kda_task &x,
	  const struct kda_entry &e, float *rows, float *errors, const float *entering)
{
	size_t v = x.a.v, kv = x.a.k * v;

	for (size_t j = threadIdx.x; j < v; j += WIDE_THREADS)
		wide_column(rows, entering, j, x.a);
	for (int n = 0; n < e.n; n++) {
		float *from = rows + (size_t)n * kv;

		wide_row_load<T>(&b->row, h, x, e.row + n);
		for (size_t j = threadIdx.x; j < v; j += WIDE_THREADS)
			wide_step(from + kv + j, from + j, errors + (size_t)n * v + j, b->row,
				  wide(h.v[b->row.t * h.ld_qkv + j]), x.a);
	}
}

/* Sums over k: ds += s q dO^T, dv, and the gradient of beta. */
template <typename T>
static __device__ void
wide_columns_back(struct wide_back *b, const struct kda_head<T> &h, const struct kda_task &x,
		  size_t head, float *ds, const float *errors)
{
	size_t v = x.a.v, hg = x.a.h1 - x.a.h0, i = x.first + head, t = b->row.t;
	const T *d_o = (const T *)x.d_o + (t * hg + i) * v;
	T *dv = (T *)x.dqkv + t * hg * (2 * x.a.k + v) + 2 * hg * x.a.k + i * v;
	float beta = b->row.beta, dbeta = 0;

	for (size_t j = threadIdx.x; j < v; j += WIDE_THREADS) {
		float g = wide(d_o[j]), du = 0;

		for (size_t c = 0; c < x.a.k; c++) {
			float d = ds[c * v + j] + x.a.scale * b->row.q[c] * g;

			ds[c * v + j] = d;
			du += d * b->row.key[c];
		}
		b->d_o[j] = g;
		b->de[j] = beta * du;
		b->be[j] = beta * errors[j];
		dbeta += du * errors[j];
		dv[j] = narrow<T>(beta * du);
	}
	dbeta = block_sum(dbeta, b->part);
	if (threadIdx.x == 0)
		((T *)x.dbr)[t * hg + i] =
			narrow<T>(x.a.raw ? dbeta : dbeta * beta * (1.0f - beta));
}

/* Gradient of the gate's input from that of the gate; adds to the sums over rows. */
template <typename T>
static __device__ __forceinline__ float
wide_gate(struct wide_back *b, const struct kda_head<T> &h, const struct kda_task &x, size_t c,
	  float dg)
{
	if (x.a.raw)
		return dg;
	float in = wide(h.f[b->row.t * h.ld_f + c]) + h.dt[c], y = h.exp_a * in;

	dg *= x.a.lower_bound * h.exp_a * kda_sigmoid(y) * kda_sigmoid(-y);
	b->da[c] += dg * in;
	b->db[c] += dg;
	return dg;
}

/* Sums over v: dq, dk and the gates; ds becomes the gradient of the state before the row. */
template <typename T>
static __device__ void
wide_keys_back(struct wide_back *b, const struct kda_head<T> &h, const struct kda_task &x,
	       size_t head, float *ds, const float *before, const float *behind)
{
	size_t k = x.a.k, v = x.a.v, hg = x.a.h1 - x.a.h0, i = x.first + head, t = b->row.t;
	T *dq = (T *)x.dqkv + t * hg * (2 * k + v) + i * k, *dk = dq + hg * k;
	T *df = (T *)x.df + (t * hg + i) * k;

	for (size_t c = threadIdx.x / 32; c < k; c += WIDE_THREADS / 32) {
		float key = b->row.key[c], decay = b->row.decay[c], q = 0, sum = 0, dg = 0;

		for (size_t j = threadIdx.x % 32; j < v; j += 32) {
			float d = ds[c * v + j], s = decay * before[c * v + j];
			float rest = d - key * b->de[j];

			q += behind[c * v + j] * b->d_o[j];
			sum += d * b->be[j] - s * b->de[j];
			dg += rest * s;
			ds[c * v + j] = decay * rest;
		}
		q = warp_sum(q);
		sum = warp_sum(sum);
		dg = warp_sum(dg);
		if (threadIdx.x % 32 != 0)
			continue;
		dq[c] = narrow<T>(x.a.scale * q);
		dk[c] = narrow<T>(sum);
		df[c] = narrow<T>(wide_gate<T>(b, h, x, c, dg));
	}
}

/* A chunk from its last row to its first. */
template <typename T>
static __device__ void
wide_chunk_back(struct wide_back *b, const struct kda_head<T> &h, const struct kda_task &x,
		const struct kda_entry &e, const struct wide_states &w, size_t head)
{
	size_t v = x.a.v, kv = x.a.k * v;
	float *rows = w.rows + head * (KDA_CHUNK + 1) * kv;
	float *errors = w.errors + head * KDA_CHUNK * v, *ds = w.now + head * kv;
	const float *entering = e.from == KDA_OUTSIDE ? outside(x.s_in, x, head) : NULL;

	if (e.from >= 0)
		entering = w.entered + (head * x.work.slots + (size_t)e.from) * kv;
	wide_rows<T>(b, h, x, e, rows, errors, entering);
	for (int n = e.n - 1; n >= 0; n--) {
		float *before = rows + (size_t)n * kv;

		wide_row_load<T>(&b->row, h, x, e.row + n);
		wide_columns_back<T>(b, h, x, head, ds, errors + (size_t)n * v);
		wide_keys_back<T>(b, h, x, head, ds, before, before + kv);
	}
	__syncthreads();
}

template <typename T>
static __global__ void
wide_backward(struct kda_task x, struct wide_states w)
{
	extern __shared__ float shared[];
	size_t head = blockIdx.x, k = x.a.k, v = x.a.v, hg = x.a.h1 - x.a.h0, i = x.first + head;
	struct kda_head<T> h = kda_head_of<T>(x, head);
	struct wide_back b = wide_back_at(shared, x.a);
	const float *ds_out = outside(x.ds_out, x, head);
	float *ds_in = (float *)outside(x.ds_in, x, head), *ds = w.now + head * k * v, da = 0;
	struct kda_entry e = {0, 0, KDA_NONE, KDA_OUTSIDE};

	for (size_t c = threadIdx.x; c < k; c += WIDE_THREADS)
		b.da[c] = b.db[c] = 0;
	for (int n = x.work.table[0] - 1; n >= 0; n--) {
		e = kda_entry_at(x.work, n);
		for (size_t j = threadIdx.x; e.to < 0 && j < v; j += WIDE_THREADS)
			wide_column(ds, e.to == KDA_OUTSIDE ? ds_out : NULL, j, x.a);
		wide_chunk_back<T>(&b, h, x, e, w, head);
	}
	__syncthreads();
	for (size_t c = threadIdx.x; c < k; c += WIDE_THREADS) {
		da += b.da[c];
		x.dab[hg + i * k + c] = b.db[c];
	}
	da = block_sum(da, b.part);
	if (threadIdx.x == 0)
		x.dab[i] = da;
	if (e.from != KDA_OUTSIDE)
		ds = (float *)(x.work.table[1] ? ds_out : NULL);
	for (size_t j = threadIdx.x; ds_in && j < v; j += WIDE_THREADS)
		wide_column(ds_in, ds, j, x.a);
}

/* Cuts scratch memory; returns how much of it is used, in floats. */
static size_t
cut(struct wide_states *w, float *base, const struct k3_kda_chunk_args *a, bool backward)
{
	size_t heads = k3i_kda_wide_heads(a), kv = a->k * a->v, used = heads * kv;

	w->now = base;
	if (!backward)
		return used;
	w->entered = w->now + used;
	used = heads * (a->t / KDA_CHUNK) * kv;
	w->rows = w->entered + used;
	used = heads * (KDA_CHUNK + 1) * kv;
	w->errors = w->rows + used;
	return (size_t)(w->errors - base) + heads * KDA_CHUNK * a->v;
}

size_t
k3i_kda_wide_bytes(const struct k3_kda_chunk_args *a, bool backward)
{
	struct wide_states w;

	return cut(&w, NULL, a, backward) * sizeof(float);
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
	size_t back = (5 * x->a.k + 3 * x->a.v + 32) * sizeof(float);
	struct wide_states w;

	cut(&w, x->work.wide, &x->a, backward);
	K3_CUDA_CHECK(cudaFuncSetAttribute(wide_forward<T>,
					   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)row));
	wide_forward<T><<<grid, WIDE_THREADS, row, stream>>>(*x, w, backward);
	K3_CUDA_LAUNCHED("wide_forward");
	if (!backward)
		return;
	K3_CUDA_CHECK(cudaFuncSetAttribute(wide_backward<T>,
					   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)back));
	wide_backward<T><<<(unsigned)x->heads, WIDE_THREADS, back, stream>>>(*x, w);
	K3_CUDA_LAUNCHED("wide_backward");
}

template void k3i_kda_wide<float>(const struct kda_task *, bool, const struct k3_cuda *);
template void k3i_kda_wide<k3_bf16>(const struct kda_task *, bool, const struct k3_cuda *);
