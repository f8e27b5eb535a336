/* Fingerprint on the device: as the sum has no order, each thread adds what it reads, and blocks
 * add to the result as they end. */
#include "../cuda/device.cuh"
#include "rng.cuh"

extern "C" {
#include "../../common/op/optim.h"
#include "../../common/rng.h"
}

enum { THREADS = 256, WORDS = 8, TILE = THREADS * WORDS };

static __global__ void
begin(unsigned long long *value)
{
	*value = K3_FNV_START;
}

/* The bytes after the last whole word; their number is in the top byte. */
static __device__ uint64_t
tail_word(const unsigned char *p, unsigned rest)
{
	uint64_t word = (uint64_t)rest << 56;

	for (unsigned i = 0; i < rest; i++)
		word |= (uint64_t)p[i] << (8 * i);
	return word;
}

/* Data are aligned to 8 bytes. */
static __global__ void
hash(unsigned long long *value, const unsigned char *data, size_t bytes, uint64_t place)
{
	__shared__ unsigned long long part[THREADS / 32];
	const unsigned long long *word = (const unsigned long long *)data;
	size_t words = bytes / 8, first = (size_t)blockIdx.x * TILE + threadIdx.x;
	unsigned long long sum = 0;

#pragma unroll
	for (int k = 0; k < WORDS; k++) {
		size_t i = first + (size_t)k * THREADS;
		if (i < words)
			sum += rng_bits(__ldcs(word + i), place + i);
	}
	if (first == 0 && bytes % 8)
		sum += rng_bits(tail_word(data + words * 8, bytes % 8), place + words);
#pragma unroll
	for (int step = 16; step > 0; step >>= 1)
		sum += __shfl_xor_sync(0xffffffffu, sum, step);
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = sum;
	__syncthreads();
	if (threadIdx.x > 0)
		return;
	for (int w = 1; w < THREADS / 32; w++)
		sum += part[w];
	atomicAdd(value, sum); /* integers: in any order */
}

static void
hash_data(void *const *buf, const struct k3_hash_args *a, const struct k3_cuda *cuda)
{
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	unsigned long long *value = (unsigned long long *)buf[0];
	uint64_t place = 0;

	begin<<<1, 1, 0, stream>>>(value);
	for (uint32_t b = 0; b < a->data.n; b++) {
		const unsigned char *data = (const unsigned char *)buf[a->data.first + b];
		size_t bytes = a->n_bytes[b], words = (bytes + 7) / 8;
		if (words)
			hash<<<blocks_for(words, TILE), THREADS, 0, stream>>>(value, data, bytes,
									      place);
		place += words;
	}
	K3_CUDA_LAUNCHED("hash");
}

K3_CUDA_SAME(hash_data, k3_hash_args)
