/* Global norm and the verdict on a step.  Squares are summed in double; the number of partial sums
 * and the order of their elements depend on the sizes alone, never on the device. */
#include "../cuda/pointers.cuh"
#include "flat.cuh"

extern "C" {
#include "../../common/op/loss.h"
#include "../../common/op/optim.h"
}
#include "verdict.h"

enum { THREADS = 256, TILE = THREADS * 4 * 4, PARTS = 1056, CLIP_MOST = 256 };

struct grads {
	const float *x[FLAT_MOST];
};

/** Sum over a block of THREADS threads, in thread 0; elsewhere 0, as thread 0 may still write. */
static __device__ double
block_total(double x, double *shared)
{
	shared[threadIdx.x] = x;
	for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
		__syncthreads();
		if (threadIdx.x < half)
			shared[threadIdx.x] += shared[threadIdx.x + half];
	}
	return threadIdx.x == 0 ? shared[0] : 0;
}

static __device__ __forceinline__ double
tile_squares(const float *x, size_t first, size_t n, bool aligned)
{
	double sum = 0;

#pragma unroll
	for (int k = 0; k < 4; k++) {
		size_t i = first + ((size_t)k * THREADS + threadIdx.x) * 4;
		float v[4] = {0, 0, 0, 0};
		if (aligned && i + 4 <= n)
			pack_load(v, x + i);
		else
			for (int c = 0; c < 4; c++)
				v[c] = i + c < n ? x[i + c] : 0.0f;
#pragma unroll
		for (int c = 0; c < 4; c++)
			sum += (double)v[c] * (double)v[c];
	}
	return sum;
}

static __global__ void
squares(double *part, const __grid_constant__ struct grads g, const __grid_constant__ struct flat f,
	bool aligned, bool adds)
{
	__shared__ double shared[THREADS];
	double sum = 0;

	for (size_t tile = blockIdx.x; tile < f.first_tile[f.n]; tile += gridDim.x) {
		struct flat_tile at = flat_find(f, tile);
		sum += tile_squares(g.x[at.buffer], at.tile * TILE, f.elems[at.buffer], aligned);
	}
	sum = block_total(sum, shared);
	if (threadIdx.x == 0)
		part[blockIdx.x] = adds ? part[blockIdx.x] + sum : sum;
}

static __global__ void
add_parts(double *total, const double *part, size_t n)
{
	__shared__ double shared[THREADS];
	double sum = 0;

	for (size_t i = threadIdx.x; i < n; i += THREADS)
		sum += part[i];
	sum = block_total(sum, shared);
	if (threadIdx.x == 0)
		*total = sum;
}

/* Parts of the longest launch; every launch of a task adds to the same ones. */
static size_t
parts_of(const struct k3_grad_norm_args *a)
{
	size_t most = 1;

	for (uint32_t first = 0; first < a->grads.n; first += FLAT_MOST) {
		size_t tiles = 0;
		for (uint32_t i = first; i < first + FLAT_MOST && i < a->grads.n; i++)
			tiles += (a->n_elems[i] + TILE - 1) / TILE;
		most = tiles > most ? tiles : most;
	}
	return most < PARTS ? most : (size_t)PARTS;
}

extern "C" size_t
k3_grad_norm_cuda_scratch(const struct k3_grad_norm_args *a)
{
	return parts_of(a) * sizeof(double);
}

static void
grad_norm(void *const *buf, const struct k3_grad_norm_args *a, const struct k3_cuda *cuda)
{
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	double *part = (double *)cuda->scratch;
	size_t parts = parts_of(a);
	uint32_t first = 0;

	do {
		uint32_t n = a->grads.n - first < FLAT_MOST ? a->grads.n - first : FLAT_MOST;
		struct flat f = flat_of(a->n_elems + first, n, TILE);
		struct grads g = {};

		for (uint32_t i = 0; i < n; i++)
			g.x[i] = (const float *)buf[a->grads.first + first + i];
		squares<<<(unsigned)parts, THREADS, 0, stream>>>(
			part, g, f, all_aligned(buf, a->grads.first + first, n), first > 0);
		K3_CUDA_LAUNCHED("squares");
		first += n;
	} while (first < a->grads.n);
	add_parts<<<1, THREADS, 0, stream>>>((double *)buf[0], part, parts);
	K3_CUDA_LAUNCHED("add_parts");
}

/* The sum so far waits in out[K3_OUT_NORM] for the next launch.  Loads in parallel, sum in order.
 */
static __global__ void
clip(double *out, struct k3_pointers<CLIP_MOST> partial, uint32_t n, bool adds, bool last,
     const double *acc, const double *hyper, double max_norm, double eps)
{
	__shared__ double x[CLIP_MOST];

	if (threadIdx.x < n)
		x[threadIdx.x] = *(const double *)partial.p[threadIdx.x];
	__syncthreads();
	if (threadIdx.x > 0)
		return;
	double sum = adds ? out[K3_OUT_NORM] : 0;
	for (uint32_t i = 0; i < n; i++)
		sum += x[i];
	if (last)
		k3_step_verdict(out, sum, acc, hyper, max_norm, eps);
	else
		out[K3_OUT_NORM] = sum;
}

static void
clip_factor(void *const *buf, const struct k3_clip_args *a, const struct k3_cuda *cuda)
{
	uint32_t first = 0;

	do {
		uint32_t rest = a->partials.n - first, n = rest < CLIP_MOST ? rest : CLIP_MOST;
		clip<<<1, CLIP_MOST, 0, (cudaStream_t)cuda->stream>>>(
			(double *)buf[0], pointers_of<CLIP_MOST>(buf, a->partials.first + first, n),
			n, first > 0, n == rest, (const double *)buf[1], (const double *)buf[2],
			a->max_norm, a->eps);
		K3_CUDA_LAUNCHED("clip");
		first += n;
	} while (first < a->partials.n);
}

K3_CUDA_SAME(grad_norm, k3_grad_norm_args)
K3_CUDA_SAME(clip_factor, k3_clip_args)
