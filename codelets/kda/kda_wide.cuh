/* KDA's chunk operations for heads that are wider than the chunk kernels: the recurrence of
 * model.md 3.3 itself in float, row after row.
 *
 * States are [k, v] in scratch memory.  Forward, a thread has a column of the state, which needs
 * nothing of the others.  Backward, a block has a head: the states of a chunk's rows come first,
 * from the one that entered the chunk, then the rows in descending order.  Columns of v belong to
 * threads where sums go over k, rows of k to warps where they go over v.
 */
#ifndef K3_KDA_WIDE_CUH
#define K3_KDA_WIDE_CUH

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

/** The backward behind the entering states. */
template <typename T>
void k3i_kda_wide_back(const struct kda_task *x, const struct wide_states *w,
		       const struct k3_cuda *cuda);

#endif
