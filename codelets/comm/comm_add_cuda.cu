/* Adds this rank's part of a sum over the ranks to what earlier microbatches left. */
#include "../optim/flat.cuh"

extern "C" {
#include "comm_nccl.h"
}

enum { THREADS = 256, TILE = THREADS * 4 * 4 };

struct blocks {
	float *to[FLAT_MOST];
	const float *from[FLAT_MOST];
};

static __global__ void
add_blocks(const __grid_constant__ struct blocks b, const __grid_constant__ struct flat f,
	   bool aligned)
{
	struct flat_tile at = flat_find(f, blockIdx.x);
	float *to = b.to[at.buffer];
	const float *from = b.from[at.buffer];
	size_t n = f.elems[at.buffer];

#pragma unroll
	for (int k = 0; k < 4; k++) {
		size_t i = at.tile * TILE + ((size_t)k * THREADS + threadIdx.x) * 4;
		if (aligned && i + 4 <= n) {
			float x[4], y[4];
			pack_load(x, to + i);
			pack_load(y, from + i);
			for (int c = 0; c < 4; c++)
				x[c] += y[c];
			pack_store(to + i, x);
			continue;
		}
		for (size_t e = i; e < i + 4 && e < n; e++)
			to[e] += from[e];
	}
}

extern "C" void
k3i_comm_add(float *const *to, const float *const *from, const size_t *elems, uint32_t n,
	     void *stream)
{
	struct flat f = flat_of(elems, n, TILE);
	struct blocks b = {};
	uintptr_t bits = 0;

	for (uint32_t i = 0; i < n; i++) {
		b.to[i] = to[i];
		b.from[i] = from[i];
		bits |= (uintptr_t)to[i] | (uintptr_t)from[i];
	}
	if (f.first_tile[n] == 0)
		return;
	add_blocks<<<(unsigned)f.first_tile[n], THREADS, 0, (cudaStream_t)stream>>>(b, f,
										    bits % 16 == 0);
	K3_CUDA_LAUNCHED("add_blocks");
}
