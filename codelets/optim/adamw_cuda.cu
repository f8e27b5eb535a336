/* AdamW in one pass: 16 bytes read and 12 written per element, all in flight before the first use.
 * Scalars of the step are made in double by one thread of each block, while the loads are under way.
 * The trap: whether anything may change is known on the device alone. */
#include "flat.cuh"

extern "C" {
#include "../../common/op/loss.h"
#include "../../common/op/optim.h"
}

enum { THREADS = 256, PACKS = 2, TILE = THREADS * PACKS * 4 };

struct buffers {
	float *param[FLAT_MOST], *mean[FLAT_MOST], *square[FLAT_MOST];
	const float *grad[FLAT_MOST];
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

/* Whole packs of a thread; the rest of a buffer, or one that is not aligned, goes element by element. */
static __device__ __forceinline__ void
load_packs(float (*x)[4], const float *from, size_t at, size_t n)
{
#pragma unroll
	for (int k = 0; k < PACKS; k++)
		if (at + (size_t)k * THREADS * 4 + 4 <= n)
			pack_load(x[k], from + at + (size_t)k * THREADS * 4);
}

static __global__ void
adamw(struct buffers b, struct flat f, struct rule r, bool aligned, const double *out,
      const double *hyper)
{
	__shared__ struct scalars shared;
	struct flat_tile at = flat_find(f, blockIdx.x);
	size_t n = f.elems[at.buffer], i = at.tile * TILE + threadIdx.x * 4;
	size_t packed = aligned ? n : 0;
	float *param = b.param[at.buffer], *mean = b.mean[at.buffer], *square = b.square[at.buffer];
	const float *grad = b.grad[at.buffer];
	float p[PACKS][4], m[PACKS][4], v[PACKS][4], g[PACKS][4];

	load_packs(g, grad, i, packed);
	load_packs(m, mean, i, packed);
	load_packs(v, square, i, packed);
	load_packs(p, param, i, packed);
	if (out[K3_OUT_STATE] != K3_STEP_OK)
		return;
	if (threadIdx.x == 0)
		shared = step_scalars(out, hyper, r);
	__syncthreads();
	struct scalars s = shared;
#pragma unroll
	for (int k = 0; k < PACKS; k++, i += THREADS * 4) {
		if (i + 4 <= packed) {
#pragma unroll
			for (int c = 0; c < 4; c++)
				update(&p[k][c], &m[k][c], &v[k][c], g[k][c], s);
			pack_store(mean + i, m[k]);
			pack_store(square + i, v[k]);
			pack_store(param + i, p[k]);
			continue;
		}
		for (size_t c = i; c < i + 4 && c < n; c++)
			update(param + c, mean + c, square + c, grad[c], s);
	}
}

/* Parameters here are the float masters, whatever the type of the kernels that use them. */
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
			b.param[i] = (float *)buf[a->params.first + first + i];
			b.mean[i] = (float *)buf[a->exp_avg.first + first + i];
			b.square[i] = (float *)buf[a->exp_avg_sq.first + first + i];
			b.grad[i] = (const float *)buf[a->grads.first + first + i];
			bits |= (uintptr_t)b.param[i] | (uintptr_t)b.mean[i] |
				(uintptr_t)b.square[i] | (uintptr_t)b.grad[i];
		}
		if (f.first_tile[n] == 0)
			continue;
		adamw<<<(unsigned)f.first_tile[n], THREADS, 0, (cudaStream_t)cuda->stream>>>(
			b, f, r, bits % 16 == 0, (const double *)buf[0], (const double *)buf[1]);
		K3_CUDA_LAUNCHED("adamw");
	}
}

K3_CUDA_SAME(adamw_step, k3_adamw_args)
