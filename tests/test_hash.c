/* The fingerprint of data: every bit counts, and where it stands. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../common/op/optim.h"
#include "held.h"

static uint64_t
hash_of(void *const *data, const size_t *n_bytes, uint32_t n)
{
	uint64_t hash = 0;
	struct held_task task = {{&hash}, 1};
	struct k3_hash_args a = {.data = {1, n}, .n_bytes = n_bytes};

	for (uint32_t b = 0; b < n; b++)
		held_push(&task, data[b]);
	a.n_buf = task.n;
	k3_hash_data_cpu(task.buf, &a);
	return hash;
}

static int
by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

Test(hash, every_flipped_bit_gives_another_value, .timeout = 60)
{
	enum { BYTES = 77 };
	unsigned char data[BYTES];
	void *block = data;
	const size_t n = BYTES;
	uint64_t seen[8 * BYTES + 1];

	for (size_t i = 0; i < BYTES; i++)
		data[i] = (unsigned char)(7 * i);
	seen[8 * BYTES] = hash_of(&block, &n, 1);
	for (size_t i = 0; i < (size_t)8 * BYTES; i++) {
		data[i / 8] ^= (unsigned char)(1 << i % 8);
		seen[i] = hash_of(&block, &n, 1);
		data[i / 8] ^= (unsigned char)(1 << i % 8);
	}
	qsort(seen, 8 * BYTES + 1, sizeof(seen[0]), by_value);
	for (size_t i = 0; i < (size_t)8 * BYTES; i++)
		cr_assert_neq(seen[i], seen[i + 1], "two of these data look the same");
}

Test(hash, a_sign_flipped_twice_is_seen, .timeout = 60)
{
	/* the sign of the upper float is bit 63 of a word, which a product never carries down */
	float data[] = {1, 2, 3, 4, 5, 6};
	void *block = data;
	const size_t n = sizeof(data);
	uint64_t before = hash_of(&block, &n, 1);

	for (size_t i = 1; i < 6; i += 2)
		for (size_t j = i + 2; j < 6; j += 2) {
			data[i] = -data[i];
			data[j] = -data[j];
			cr_assert_neq(hash_of(&block, &n, 1), before, "elements %zu and %zu", i, j);
			data[i] = -data[i];
			data[j] = -data[j];
		}
}

Test(hash, order_counts, .timeout = 60)
{
	uint64_t x[] = {1, 2}, y[] = {2, 1}, *xp = x, *yp = y;
	void *blocks[] = {&x[0], &x[1]}, *swapped[] = {&x[1], &x[0]};
	const size_t both = 16, each[] = {8, 8};

	cr_assert_neq(hash_of((void **)&xp, &both, 1), hash_of((void **)&yp, &both, 1));
	cr_assert_neq(hash_of(blocks, each, 2), hash_of(swapped, each, 2));
	cr_assert_eq(hash_of(blocks, each, 2), hash_of((void **)&xp, &both, 1));
}

Test(hash, value_is_that_of_the_documented_formula, .timeout = 60)
{
	/* computed with Python's integers: bytes 1 .. 19, and 1 .. 16 followed by "abc" */
	unsigned char bytes[19], tail[] = "abc";
	void *whole = bytes, *parts[] = {bytes, tail};
	const size_t n = 19, two[] = {16, 3}, none = 0;

	for (size_t i = 0; i < 19; i++)
		bytes[i] = (unsigned char)(i + 1);
	cr_assert_eq(hash_of(&whole, &n, 1), UINT64_C(0x70f720b757d0279a));
	cr_assert_eq(hash_of(parts, two, 2), UINT64_C(0xb0417a30a2fe4a91));
	cr_assert_eq(hash_of(&whole, &none, 1), UINT64_C(0xCBF29CE484222325));
}
