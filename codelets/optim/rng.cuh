/* The counter-based generator of common/rng.h on the device. */
#ifndef K3_OPTIM_RNG_CUH
#define K3_OPTIM_RNG_CUH
#include <stdint.h>

static const uint64_t golden_ratio = UINT64_C(0x9E3779B97F4A7C15);
static const uint64_t seed_factor = UINT64_C(0xD1B54A32D192ED03);

static __device__ __forceinline__ uint64_t
rng_bits(uint64_t key, uint64_t i)
{
	uint64_t z = key + (i + 1) * golden_ratio;

	z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

#endif
