/* Counter-based random numbers: the value depends on (seed, name, index) alone, so that the same
 * model comes out on every mesh, tile size and machine.  Generator: FNV-1a of the name, splitmix64
 * finaliser (Steele, Lea, Flood 2014) of key + (counter+1) * golden ratio.
 */
#ifndef K3_RNG_H
#define K3_RNG_H

#include <stddef.h>
#include <stdint.h>

/** FNV-1a, 64 bits. Chain calls by passing the last result as start (K3_FNV_START first). */
#define K3_FNV_START UINT64_C(0xCBF29CE484222325)
uint64_t k3_fnv1a(uint64_t start, const void *data, size_t bytes);

/** Key of a stream: name and seed. */
uint64_t k3_rng_key(const char *name, uint64_t seed);

/** 64 random bits of counter i; inlined, as fingerprints mix every word by it. */
static inline uint64_t
k3_rng_bits(uint64_t key, uint64_t i)
{
	uint64_t z = key + (i + 1) * UINT64_C(0x9E3779B97F4A7C15);

	z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

/** Uniform in [0, 1), 53 bits. */
double k3_rng_uniform(uint64_t key, uint64_t i);

/** Standard normal (Box-Muller of two uniforms), redrawn until |x| <= bound; bound <= 0: no bound.
 */
double k3_rng_normal(uint64_t key, uint64_t i, double bound);

/** Seeded permutation of 0..n-1: position -> element, in place in perm (Fisher-Yates). */
void k3_rng_permutation(uint64_t key, uint64_t *perm, size_t n);

#endif
