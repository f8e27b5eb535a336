/* Initial values on the device: the counter-based generator of common/rng.c, in double as there, so
 * that values differ from the CPU's by float rounding at most. */
#include "../cuda/device.cuh"
#include "rng.cuh"

extern "C" {
#include "../../common/op/optim.h"
}

enum { THREADS = 256 };

static __device__ __forceinline__ double
rng_uniform(uint64_t key, uint64_t i)
{
	return (double)(rng_bits(key, i) >> 11) * 0x1p-53;
}

/* A redraw changes the key, never the counter (rng.c). */
static __device__ double
rng_normal(uint64_t key, uint64_t i, double bound)
{
	const double two_pi = 6.28318530717958647692;
	double x;

	do {
		double radius = sqrt(-2.0 * log(1.0 - rng_uniform(key, 2 * i)));
		x = radius * cos(two_pi * rng_uniform(key, 2 * i + 1));
		key = rng_bits(key ^ seed_factor, 0);
	} while (bound > 0.0 && fabs(x) > bound);
	return x;
}

template <typename T>
static __global__ void
init(T *to, struct k3_param_init_args a)
{
	size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
	double x = 0, bound = 0;

	if (i >= a.n_elems)
		return;
	if (a.kind == K3_INIT_NORMAL)
		bound = 2 / a.scale;
	else if (a.kind == K3_INIT_NORMAL_3S)
		bound = 3;
	if (a.kind == K3_INIT_ONE)
		x = 1;
	else if (a.kind == K3_INIT_LOG_UNIFORM)
		x = log(1 + 15 * rng_uniform(a.key, a.first_elem + i));
	else if (a.kind != K3_INIT_ZERO)
		x = a.scale * rng_normal(a.key, a.first_elem + i, bound);
	to[i] = narrow<T>((float)x);
}

template <typename T>
static void
fill(void *to, const struct k3_param_init_args *a, const struct k3_cuda *cuda)
{
	init<T><<<blocks_for(a->n_elems, THREADS), THREADS, 0, (cudaStream_t)cuda->stream>>>(
		(T *)to + a->offset_elems, *a);
	K3_CUDA_LAUNCHED("init");
}

static void
param_init(void *const *buf, const struct k3_param_init_args *a, const struct k3_cuda *cuda)
{
	if (a->n_elems == 0)
		return;
	if (a->half)
		fill<k3_bf16>(buf[0], a, cuda);
	else
		fill<float>(buf[0], a, cuda);
}

K3_CUDA_SAME(param_init, k3_param_init_args)
