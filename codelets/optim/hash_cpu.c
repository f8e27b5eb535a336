/* Fingerprint of data: FNV-1a over 64-bit words.  The trap: a word-wise FNV never carries high bits
 * down, so each step is followed by a shift that does. */
#include <string.h>

#include "../../common/op/optim.h"
#include "../../common/rng.h"

void
k3_hash_data_cpu(void *const *buf, const struct k3_hash_args *a)
{
	uint64_t h = K3_FNV_START, word;

	for (uint32_t b = 0; b < a->data.n; b++) {
		const unsigned char *p = buf[a->data.first + b];
		size_t n = a->n_bytes[b], i = 0;
		for (; i + 8 <= n; i += 8) {
			memcpy(&word, p + i, 8);
			h = (h ^ word) * UINT64_C(0x100000001B3);
			h ^= h >> 29;
		}
		h = k3_fnv1a(h, p + i, n - i);
	}
	memcpy(buf[0], &h, sizeof(h));
}
