/* AdamW in one pass: 16 bytes read and 12 written per element, and 2 more where the parameter has
 * a bf16 copy (10 and 6 where parameter and moments are bf16), all in flight before the first
 * use.  Scalars of the step are made in double by one thread of each block, while the loads are
 * under way.  The trap: whether anything may change is known on the device alone, and copies are
 * written even when nothing does, since they are not read. */
#include "flat.cuh"

extern "C" {
#include "../../common/op/loss.h"
#include "../../common/op/optim.h"
}

enum { THREADS = 256, PACKS = 2, TILE = THREADS * PACKS * 4 };

struct buffers {
	void *param[FLAT_MOST], *mean[FLAT_MOST], *square[FLAT_MOST];
	const float *grad[FLAT_MOST];
	k3_bf16 *copy[FLAT_MOST]; /* NULL: none */
	bool half[FLAT_MOST];	  /* parameter and moments are bf16 */
};

struct rule {
	double beta1, beta2, eps, weight_decay;
};

struct scalars {
	float coef, beta1, beta2, rest1, rest2, decay, rate, root2, eps;
};

static __device__ struct scalars
step_scalars(const double *out, const double *hyper, const struct rule &r)
{
	double step = hyper[K3_HYPER_STEP], lr = hyper[K3_HYPER_LR];
	struct scalars s;

	s.coef = (float)out[K3_OUT_COEF];
	s.beta1 = (float)r.beta1;
	s.rest1 = (float)(1 - r.beta1);
	s.beta2 = (float)r.beta2;
	s.rest2 = (float)(1 - r.beta2);
	s.decay = (float)(1 - lr * r.weight_decay);
	s.rate = (float)(lr / (1 - pow(r.beta1, step)));
	s.root2 = (float)(1 / sqrt(1 - pow(r.beta2, step)));
	s.eps = (float)r.eps;
	return s;
}

static __device__ __forceinline__ void
update(float *p, float *m, float *v, float g, const struct scalars &s)
{
	float d = g * s.coef;

	*m = s.beta1 * *m + s.rest1 * d;
	*v = s.beta2 * *v + s.rest2 * d * d;
	*p = s.decay * *p - s.rate * *m / (sqrtf(*v) * s.root2 + s.eps);
}

static __device__ __forceinline__ void
load_four(float *x, const float *from)
{
	pack_load(x, from);
}

static __device__ __forceinline__ void
load_four(float *x, const k3_bf16 *from)
{
	uint2 raw = *reinterpret_cast<const uint2 *>(from);
	const k3_bf16 *half = reinterpret_cast<const k3_bf16 *>(&raw);

#pragma unroll
	for (int c = 0; c < 4; c++)
		x[c] = wide(half[c]);
}

static __device__ __forceinline__ void
store_four(float *to, const float *x)
{
	pack_store(to, x);
}

static __device__ __forceinline__ void
store_four(k3_bf16 *to, const float *x)
{
	uint2 raw;
	k3_bf16 *half = reinterpret_cast<k3_bf16 *>(&raw);

#pragma unroll
	for (int c = 0; c < 4; c++)
		half[c] = narrow<k3_bf16>(x[c]);
	*reinterpret_cast<uint2 *>(to) = raw;
}

/* Whole packs of a thread; the rest of a buffer, or one that is not aligned, goes element by
 * element. */
template <typename S>
static __device__ __forceinline__ void
load_packs(float (*x)[4], const S *from, size_t at, size_t n)
{
#pragma unroll
	for (int k = 0; k < PACKS; k++)
		if (at + (size_t)k * THREADS * 4 + 4 <= n)
			load_four(x[k], from + at + (size_t)k * THREADS * 4);
}

/* Elements at .. n-1, four at most. */
template <typename S>
static __device__ __forceinline__ void
update_rest(S *param, S *mean, S *square, const float *grad, k3_bf16 *copy, size_t at, size_t n,
	    bool ok, const struct scalars &s)
{
	for (size_t c = at; c < at + 4 && c < n; c++) {
		float p = wide(param[c]);

		if (ok) {
			float m = wide(mean[c]), v = wide(square[c]);

			update(&p, &m, &v, grad[c], s);
			mean[c] = narrow<S>(m);
			square[c] = narrow<S>(v);
			param[c] = narrow<S>(p);
		}
		if (copy)
			copy[c] = narrow<k3_bf16>(p);
	}
}

/* One tile of a buffer; S: type of parameter and moments. */
template <typename S>
static __device__ __forceinline__ void
update_tile(const struct buffers &b, struct flat_tile at, size_t n, const struct rule &r,
	    bool aligned, const double *out, const double *hyper)
{
	__shared__ struct scalars shared;
	size_t i = at.tile * TILE + threadIdx.x * 4, packed = aligned ? n : 0;
	S *param = (S *)b.param[at.buffer], *mean = (S *)b.mean[at.buffer],
	  *square = (S *)b.square[at.buffer];
	const float *grad = b.grad[at.buffer];
	k3_bf16 *copy = b.copy[at.buffer];
	bool ok = out[K3_OUT_STATE] == K3_STEP_OK;
	float p[PACKS][4], m[PACKS][4], v[PACKS][4], g[PACKS][4];

	load_packs(g, grad, i, packed);
	load_packs(m, mean, i, packed);
	load_packs(v, square, i, packed);
	load_packs(p, param, i, packed);
	if (!ok && !copy)
		return;
	if (threadIdx.x == 0)
		shared = step_scalars(out, hyper, r);
	__syncthreads();
	struct scalars s = shared;
#pragma unroll
	for (int k = 0; k < PACKS; k++, i += THREADS * 4) {
		if (i + 4 > packed) {
			update_rest(param, mean, square, grad, copy, i, n, ok, s);
			continue;
		}
#pragma unroll
		for (int c = 0; c < 4 && ok; c++)
			update(&p[k][c], &m[k][c], &v[k][c], g[k][c], s);
		if (ok) {
			store_four(mean + i, m[k]);
			store_four(square + i, v[k]);
			store_four(param + i, p[k]);
		}
		if (copy)
			store_four(copy + i, p[k]);
	}
}

static __global__ void
adamw(struct buffers b, struct flat f, struct rule r, bool aligned, const double *out,
      const double *hyper)
{
	struct flat_tile at = flat_find(f, blockIdx.x);
	size_t n = f.elems[at.buffer];

	if (b.half[at.buffer])
		update_tile<k3_bf16>(b, at, n, r, aligned, out, hyper);
	else
		update_tile<float>(b, at, n, r, aligned, out, hyper);
}

/* The copy of parameter i; NULL: it has none. */
static k3_bf16 *
copy_of(void *const *buf, const struct k3_list *copies, const int32_t *copy, uint32_t i)
{
	if (!copies->n || copy[i] < 0)
		return NULL;
	return (k3_bf16 *)buf[copies->first + (uint32_t)copy[i]];
}

/* Types are those that the arguments say, whatever the type of the kernels that use the
 * parameters. */
static void
adamw_step(void *const *buf, const struct k3_adamw_args *a, const struct k3_cuda *cuda)
{
	struct rule r = {a->beta1, a->beta2, a->eps, a->weight_decay};

	for (uint32_t first = 0; first < a->params.n; first += FLAT_MOST) {
		uint32_t n = a->params.n - first < FLAT_MOST ? a->params.n - first : FLAT_MOST;
		struct flat f = flat_of(a->n_elems + first, n, TILE);
		struct buffers b = {};
		uintptr_t bits = 0;

		for (uint32_t i = 0; i < n; i++) {
			b.param[i] = buf[a->params.first + first + i];
			b.mean[i] = buf[a->exp_avg.first + first + i];
			b.square[i] = buf[a->exp_avg_sq.first + first + i];
			b.half[i] = a->half && a->half[first + i];
			b.grad[i] = (const float *)buf[a->grads.first + first + i];
			b.copy[i] = copy_of(buf, &a->copies, a->copy, first + i);
			bits |= (uintptr_t)b.param[i] | (uintptr_t)b.mean[i] |
				(uintptr_t)b.square[i] | (uintptr_t)b.grad[i] |
				(uintptr_t)b.copy[i];
		}
		if (f.first_tile[n] == 0)
			continue;
		adamw<<<(unsigned)f.first_tile[n], THREADS, 0, (cudaStream_t)cuda->stream>>>(
			b, f, r, bits % 16 == 0, (const double *)buf[0], (const double *)buf[1]);
		K3_CUDA_LAUNCHED("adamw");
	}
}

K3_CUDA_SAME(adamw_step, k3_adamw_args)

struct cast_buffers {
	const float *param[FLAT_MOST];
	k3_bf16 *copy[FLAT_MOST];
};

static __global__ void
cast(struct cast_buffers b, struct flat f, bool aligned)
{
	struct flat_tile at = flat_find(f, blockIdx.x);
	size_t n = f.elems[at.buffer], i = at.tile * TILE + threadIdx.x * 4;
	size_t packed = aligned ? n : 0;
	const float *param = b.param[at.buffer];
	k3_bf16 *copy = b.copy[at.buffer];
	float p[PACKS][4];

	load_packs(p, param, i, packed);
#pragma unroll
	for (int k = 0; k < PACKS; k++, i += THREADS * 4) {
		if (i + 4 <= packed)
			store_four(copy + i, p[k]);
		for (size_t c = i; i + 4 > packed && c < i + 4 && c < n; c++)
			copy[c] = narrow<k3_bf16>(param[c]);
	}
}

static void
cast_some(const struct cast_buffers *b, const size_t *elems, uint32_t n, const struct k3_cuda *cuda)
{
	struct flat f = flat_of(elems, n, TILE);
	uintptr_t bits = 0;

	for (uint32_t i = 0; i < n; i++)
		bits |= (uintptr_t)b->param[i] | (uintptr_t)b->copy[i];
	if (n == 0 || f.first_tile[n] == 0)
		return;
	cast<<<(unsigned)f.first_tile[n], THREADS, 0, (cudaStream_t)cuda->stream>>>(*b, f,
										    bits % 16 == 0);
	K3_CUDA_LAUNCHED("cast_params");
}

static void
cast_params(void *const *buf, const struct k3_cast_args *a, const struct k3_cuda *cuda)
{
	struct cast_buffers b = {};
	size_t elems[FLAT_MOST];
	uint32_t n = 0;

	for (uint32_t i = 0; i < a->params.n; i++) {
		b.copy[n] = copy_of(buf, &a->copies, a->copy, i);
		if (!b.copy[n])
			continue;
		b.param[n] = (const float *)buf[a->params.first + i];
		elems[n++] = a->n_elems[i];
		if (n < FLAT_MOST)
			continue;
		cast_some(&b, elems, n, cuda);
		n = 0;
	}
	cast_some(&b, elems, n, cuda);
}

K3_CUDA_SAME(cast_params, k3_cast_args)
