/* The backward of KDA's wide heads: a block has a head, whose chunks and rows it takes from the
 * last to the first. */
#include "kda_wide.cuh"

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
		((T *)x.dbr)[t * hg + i] = narrow<T>(
			x.a.raw ? dbeta : dbeta * kda_sigmoid_slope(wide(h.br[t * h.ld_br])));
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

template <typename T>
void
k3i_kda_wide_back(const struct kda_task *x, const struct wide_states *w, const struct k3_cuda *cuda)
{
	size_t bytes = (5 * x->a.k + 3 * x->a.v + 32) * sizeof(float);

	K3_CUDA_CHECK(cudaFuncSetAttribute(
		wide_backward<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
	wide_backward<T>
		<<<(unsigned)x->heads, WIDE_THREADS, bytes, (cudaStream_t)cuda->stream>>>(*x, *w);
	K3_CUDA_LAUNCHED("wide_backward");
}

template void k3i_kda_wide_back<float>(const struct kda_task *, const struct wide_states *,
				       const struct k3_cuda *);
template void k3i_kda_wide_back<k3_bf16>(const struct kda_task *, const struct wide_states *,
					 const struct k3_cuda *);
