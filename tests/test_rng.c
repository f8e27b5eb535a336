/* Random numbers against values that a Python program computed from the definitions of rng.h with
 * exact integers: FNV-1a 64 (published vectors), splitmix64 (its published first outputs for seed
 * 0), key = FNV-1a(name) xor seed * 0xD1B54A32D192ED03 modulo 2^64. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "../common/rng.h"

static const char name[] = "model.norm.weight";
enum { SEED = 106 };

Test(rng, fnv1a_gives_the_published_hashes, .timeout = 60)
{
	cr_expect_eq(k3_fnv1a(K3_FNV_START, "", 0), UINT64_C(0xcbf29ce484222325));
	cr_expect_eq(k3_fnv1a(K3_FNV_START, "a", 1), UINT64_C(0xaf63dc4c8601ec8c));
	cr_expect_eq(k3_fnv1a(K3_FNV_START, "foobar", 6), UINT64_C(0x85944171f73967e8));
}

Test(rng, fnv1a_of_parts_equals_fnv1a_of_the_whole, .timeout = 60)
{
	uint64_t parts = k3_fnv1a(k3_fnv1a(K3_FNV_START, "foo", 3), "bar", 3);

	cr_expect_eq(parts, UINT64_C(0x85944171f73967e8));
}

Test(rng, bits_of_key_zero_are_splitmix64_from_seed_zero, .timeout = 60)
{
	cr_expect_eq(k3_rng_bits(0, 0), UINT64_C(0xe220a8397b1dcdaf));
	cr_expect_eq(k3_rng_bits(0, 1), UINT64_C(0x6e789e6aa1b965f4));
}

Test(rng, key_and_bits_follow_the_definition, .timeout = 60)
{
	uint64_t key = k3_rng_key(name, SEED);

	cr_expect_eq(key, UINT64_C(0x3c65ca517c027da), "key is %" PRIx64, key);
	cr_expect_eq(k3_rng_bits(key, 0), UINT64_C(0xe51ec4b010ea9a7));
	cr_expect_eq(k3_rng_bits(key, 1), UINT64_C(0xaba9d28ab927b49f));
	cr_expect_eq(k3_rng_bits(key, 2), UINT64_C(0xf72d416f3901630e));
	cr_expect_eq(k3_rng_bits(key, UINT64_C(1) << 63), UINT64_C(0xd99c1b75c1c0ea19));
}

Test(rng, uniform_takes_the_upper_53_bits, .timeout = 60)
{
	uint64_t key = k3_rng_key(name, SEED);

	cr_expect_eq(k3_rng_uniform(key, 0), 0.05593754607348933);
	cr_expect_eq(k3_rng_uniform(key, 1), 0.6705600346259917);
	cr_expect_eq(k3_rng_uniform(key, 2), 0.9655342957057704);
}

Test(rng, normal_is_box_muller_of_the_counters_2i_and_2i_plus_1, .timeout = 60)
{
	static const double want[] = {-0.1624127669246752, 0.958257314627139, -1.8534944347625848,
				      -0.29355345855951065};
	uint64_t key = k3_rng_key(name, SEED);

	for (uint64_t i = 0; i < 4; i++)
		cr_expect(fabs(k3_rng_normal(key, i, 0.0) - want[i]) < 1e-14, "normal %" PRIu64, i);
}

Test(rng, bounded_normal_is_redrawn_under_another_key, .timeout = 60)
{
	uint64_t key = k3_rng_key(name, SEED);

	/* the draw of index 2 is -1.85: only the bound of 1 changes it */
	cr_expect(fabs(k3_rng_normal(key, 2, 1.0) - -0.9334150684526531) < 1e-14);
	cr_expect_eq(k3_rng_normal(key, 2, 2.0), k3_rng_normal(key, 2, 0.0));
}

Test(rng, moments_of_many_draws_are_those_of_the_distribution, .timeout = 60)
{
	enum { N = 200000 };
	uint64_t key = k3_rng_key("moments", 1);
	double sum = 0, square = 0, uniform = 0, largest = 0;

	for (uint64_t i = 0; i < N; i++) {
		double x = k3_rng_normal(key, i, 3.0);
		sum += x;
		square += x * x;
		largest = fmax(largest, fabs(x));
		uniform += k3_rng_uniform(key, i);
	}
	/* variance of a normal cut at 3 is 0.97334; five standard errors */
	cr_expect(fabs(sum / N) < 5 / sqrt(N), "mean %g", sum / N);
	cr_expect(fabs(square / N - 0.97334) < 5 * sqrt(1.8 / N), "square %g", square / N);
	cr_expect(fabs(uniform / N - 0.5) < 5 * sqrt(1.0 / 12 / N), "uniform %g", uniform / N);
	cr_expect(largest <= 3.0 && largest > 2.9, "largest %g", largest);
}

Test(rng, permutation_follows_the_definition_and_the_seed, .timeout = 60)
{
	/* Fisher-Yates from the end, remainder of the bits, counters in order */
	static const uint64_t want[2][10] = {{9, 5, 0, 1, 7, 8, 2, 4, 3, 6},
					     {4, 3, 1, 8, 9, 0, 6, 7, 5, 2}};
	uint64_t perm[10];

	for (uint64_t seed = 7; seed < 9; seed++) {
		k3_rng_permutation(k3_rng_key("order", seed), perm, 10);
		cr_expect_eq(memcmp(perm, want[seed - 7], sizeof(perm)), 0, "seed %" PRIu64, seed);
	}
}

Test(rng, permutation_holds_every_element_once, .timeout = 60)
{
	enum { N = 1000 };
	uint64_t perm[N];
	unsigned char seen[N] = {0};

	k3_rng_permutation(3, perm, N);
	for (size_t i = 0; i < N; i++) {
		cr_assert_lt(perm[i], (uint64_t)N);
		cr_expect_eq(seen[perm[i]]++, 0);
	}
	perm[0] = 77;
	k3_rng_permutation(3, perm, 0);
	cr_expect_eq(perm[0], 77u, "an empty permutation writes nothing");
	k3_rng_permutation(3, perm, 1);
	cr_expect_eq(perm[0], 0u);
}
