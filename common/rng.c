/* Counter-based random numbers: a value is a pure function of (name, seed, index), so every tile
 * of every process makes its part of a tensor alone.
 *
 * The trap: two draws must never share a counter.  A normal number of index i uses the counters 2i
 * and 2i+1; a redraw changes the key and not the counter, because any other counter belongs to a
 * neighbour.
 */
#include "rng.h"

#include <math.h>

static const uint64_t seed_factor = UINT64_C(0xD1B54A32D192ED03);

uint64_t
k3_fnv1a(uint64_t start, const void *data, size_t bytes)
{
	const unsigned char *at = data;
	uint64_t hash = start;

	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ at[i]) * UINT64_C(0x100000001B3);
	return hash;
}

uint64_t
k3_rng_key(const char *name, uint64_t seed)
{
	size_t bytes = 0;

	while (name[bytes])
		bytes++;
	return k3_fnv1a(K3_FNV_START, name, bytes) ^ (seed * seed_factor);
}

double
k3_rng_uniform(uint64_t key, uint64_t i)
{
	return (double)(k3_rng_bits(key, i) >> 11) * 0x1p-53;
}

double
k3_rng_normal(uint64_t key, uint64_t i, double bound)
{
	const double two_pi = 6.28318530717958647692;
	double x;

	do {
		/* 1 - u lies in (0, 1]: the logarithm stays finite */
		double radius = sqrt(-2.0 * log(1.0 - k3_rng_uniform(key, 2 * i)));
		x = radius * cos(two_pi * k3_rng_uniform(key, 2 * i + 1));
		key = k3_rng_bits(key ^ seed_factor, 0);
	} while (bound > 0.0 && fabs(x) > bound);
	return x;
}

/* Uniform in 0..n-1 without the bias of a plain remainder: draws above the last multiple of n are
 * repeated with the next counter. */
static uint64_t
below(uint64_t key, uint64_t *counter, uint64_t n)
{
	uint64_t rest = (UINT64_MAX % n + 1) % n;
	uint64_t bits;

	do {
		bits = k3_rng_bits(key, (*counter)++);
	} while (bits > UINT64_MAX - rest);
	return bits % n;
}

void
k3_rng_permutation(uint64_t key, uint64_t *perm, size_t n)
{
	uint64_t counter = 0;

	for (size_t i = 0; i < n; i++)
		perm[i] = i;
	for (size_t i = n; i > 1; i--) {
		size_t j = (size_t)below(key, &counter, i);
		uint64_t swapped = perm[i - 1];

		perm[i - 1] = perm[j];
		perm[j] = swapped;
	}
}
