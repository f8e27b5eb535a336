/* Token embedding; the table is cut in row blocks, so each token finds its block first. */
#include <string.h>

#include "../../common/op/embed.h"
#include "../linalg/linear.h"

void
k3_embed_fwd_cpu_f32(void *const *buf, const struct k3_embed_args *a)
{
	float *y = buf[0];
	const int32_t *ids = buf[1];

	for (size_t i = 0; i < a->t; i++)
		memcpy(y + i * a->d, k3_weight_row(buf, &a->table, (size_t)ids[i]),
		       a->d * sizeof(*y));
}

void
k3_embed_fwd_cpu_bf16(void *const *buf, const struct k3_embed_args *a)
{
	uint16_t *y = buf[0];
	const int32_t *ids = buf[1];
	const struct k3_weight *w = &a->table;

	for (size_t i = 0; i < a->t; i++) {
		size_t row = (size_t)ids[i];
		const uint16_t *block = buf[w->first + row / w->block_rows];
		memcpy(y + i * a->d, block + row % w->block_rows * a->d, a->d * sizeof(*y));
	}
}

void
k3_embed_bwd_cpu_f32(void *const *buf, const struct k3_embed_args *a)
{
	const float *dy = buf[0];
	const int32_t *ids = buf[1], *map = a->map.n ? buf[a->map.first] : NULL;
	const struct k3_weight *w = &a->table;

	if (!w->accumulate)
		k3_weight_clear(buf, w);
	for (size_t i = 0; i < a->t; i++) {
		if (map && map[i] >= 0)
			continue;
		float *row = k3_weight_row(buf, w, (size_t)ids[i]);
		for (size_t c = 0; c < a->d; c++)
			row[c] += dy[i * a->d + c];
	}
}
