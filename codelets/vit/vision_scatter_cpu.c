/* Features into the text, and their gradients back (model.md 6.6).  Rows are replaced, not added
 * to: a replaced embedding has no gradient (embed_bwd reads the same map). */
#include <string.h>

#include "../../common/op/vit.h"

void
k3_vision_scatter_fwd_cpu_f32(void *const *buf, const struct k3_vision_scatter_args *a)
{
	const int32_t *map = buf[1];
	float *p = buf[0];

	for (size_t i = 0; i < a->t; i++)
		for (uint32_t j = 0; map[i] >= 0 && j < a->y.n; j++) {
			int64_t row = k3_vit_merged_row(buf[a->layout.first + j], map[i]);
			if (row >= 0)
				memcpy(p + i * a->d,
				       (const float *)buf[a->y.first + j] + (size_t)row * a->d,
				       a->d * sizeof(*p));
		}
}

void
k3_vision_scatter_bwd_cpu_f32(void *const *buf, const struct k3_vision_scatter_args *a)
{
	float *dy = buf[0];

	memset(dy, 0, a->m * a->d * sizeof(*dy));
	for (uint32_t j = 0; j < a->dp.n; j++) {
		const float *dp = buf[a->dp.first + j];
		const int32_t *map = buf[a->map.first + j];
		for (size_t i = 0; i < a->rows[j]; i++) {
			int64_t row = k3_vit_merged_row(buf[1], map[i]);
			if (row >= 0)
				memcpy(dy + (size_t)row * a->d, dp + i * a->d, a->d * sizeof(*dy));
		}
	}
}

void
k3_zero_grads_cpu_f32(void *const *buf, const struct k3_zero_args *a)
{
	for (uint32_t i = 0; !a->accumulate && i < a->n_buf; i++)
		memset(buf[i], 0, a->elems[i] * sizeof(float));
}
