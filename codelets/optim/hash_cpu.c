/* Fingerprint of data: a sum over 64-bit words, each mixed with its place.  Sums of integers may
 * be taken in any order, so any number of threads gives the same bits.  The trap: mixing must map
 * words one to one, so that a change of one word always shows. */
#include <string.h>

#include "../../common/op/optim.h"
#include "../../common/rng.h"

void
k3_hash_data_cpu(void *const *buf, const struct k3_hash_args *a)
{
	uint64_t sum = K3_FNV_START, place = 0, word;

	for (uint32_t b = 0; b < a->data.n; b++) {
		const unsigned char *p = buf[a->data.first + b];
		size_t words = a->n_bytes[b] / 8, rest = a->n_bytes[b] % 8;
		for (size_t i = 0; i < words; i++) {
			memcpy(&word, p + 8 * i, 8);
			sum += k3_rng_bits(word, place + i);
		}
		place += words;
		if (!rest)
			continue;
		word = (uint64_t)rest << 56;
		for (size_t i = 0; i < rest; i++)
			word |= (uint64_t)p[8 * words + i] << (8 * i);
		sum += k3_rng_bits(word, place++);
	}
	memcpy(buf[0], &sum, sizeof(sum));
}
