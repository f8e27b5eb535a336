/* Token embedding; the table is cut in row blocks, so each token finds its block first. */
#include "../../common/op/embed.h"

#include <string.h>

static float *
table_row(void *const *buf, const struct k3_weight *w, size_t row)
{
	return (float *)buf[w->first + row / w->block_rows] + row % w->block_rows * w->cols;
}

void
k3_embed_fwd_cpu_f32(void *const *buf, const struct k3_embed_args *a)
{
	float *y = buf[0];
	const int32_t *ids = buf[1];

	for (size_t i = 0; i < a->t; i++)
		memcpy(y + i * a->d, table_row(buf, &a->table, (size_t)ids[i]), a->d * sizeof(*y));
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

	for (size_t b = 0; !w->accumulate && b < w->n; b++) {
		size_t first = b * w->block_rows,
		       rows = first + w->block_rows < w->rows ? w->block_rows : w->rows - first;
		memset(buf[w->first + b], 0, rows * w->cols * sizeof(float));
	}
	for (size_t i = 0; i < a->t; i++) {
		if (map && map[i] >= 0)
			continue;
		float *row = table_row(buf, w, (size_t)ids[i]);
		for (size_t c = 0; c < a->d; c++)
			row[c] += dy[i * a->d + c];
	}
}
