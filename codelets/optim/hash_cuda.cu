/* Fingerprint on the device.  Each step of the chain needs the one before it, so one thread walks
 * while the other warps bring the next words to shared memory: what is left is the latency of a
 * 64-bit product, some 0.7 GB/s.  A CPU core is five times faster, so schedulers prefer it for large
 * data; small ones (the loss) stay here. */
#include "../cuda/device.cuh"

extern "C" {
#include "../../common/op/optim.h"
#include "../../common/rng.h"
}

enum { MOST = 64, THREADS = 256, CHUNK = 2048 };

struct list {
	uint32_t n;
	const unsigned char *data[MOST];
	size_t bytes[MOST];
};

static __device__ __forceinline__ uint64_t
fnv_step(uint64_t h, uint64_t word)
{
	return (h ^ word) * UINT64_C(0x100000001B3);
}

/* Words first .. of a datum, at most CHUNK; data are aligned to 8 bytes. */
static __device__ __forceinline__ void
bring(uint64_t *to, const unsigned char *data, size_t first, size_t words)
{
	const uint64_t *from = (const uint64_t *)data + first;
	size_t n = words - first < CHUNK ? words - first : CHUNK;

	for (size_t i = threadIdx.x - 32; i < n; i += THREADS - 32)
		to[i] = __ldcs((const unsigned long long *)from + i);
}

static __global__ void
hash(uint64_t *value, struct list list, bool goes_on)
{
	__shared__ uint64_t chunk[2][CHUNK];
	uint64_t h = goes_on ? *value : K3_FNV_START;

	for (uint32_t b = 0; b < list.n; b++) {
		size_t words = list.bytes[b] / 8;
		if (threadIdx.x >= 32 && words)
			bring(chunk[0], list.data[b], 0, words);
		__syncthreads();
		for (size_t first = 0, turn = 0; first < words; first += CHUNK, turn ^= 1) {
			size_t n = words - first < CHUNK ? words - first : CHUNK;
			if (threadIdx.x >= 32 && first + CHUNK < words)
				bring(chunk[turn ^ 1], list.data[b], first + CHUNK, words);
			if (threadIdx.x == 0) {
#pragma unroll 16
				for (size_t i = 0; i < n; i++) {
					h = fnv_step(h, chunk[turn][i]);
					h ^= h >> 29;
				}
			}
			__syncthreads();
		}
		for (size_t i = words * 8; i < list.bytes[b]; i++)
			h = fnv_step(h, list.data[b][i]);
	}
	if (threadIdx.x == 0)
		*value = h;
}

static void
hash_data(void *const *buf, const struct k3_hash_args *a, const struct k3_cuda *cuda)
{
	uint32_t first = 0;

	do {
		struct list list = {};
		list.n = a->data.n - first < MOST ? a->data.n - first : MOST;
		for (uint32_t i = 0; i < list.n; i++) {
			list.data[i] = (const unsigned char *)buf[a->data.first + first + i];
			list.bytes[i] = a->n_bytes[first + i];
		}
		hash<<<1, THREADS, 0, (cudaStream_t)cuda->stream>>>((uint64_t *)buf[0], list,
								    first > 0);
		K3_CUDA_LAUNCHED("hash");
		first += list.n;
	} while (first < a->data.n);
}

K3_CUDA_SAME(hash_data, k3_hash_args)
