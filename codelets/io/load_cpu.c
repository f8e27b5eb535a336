/* Host values into the graph: one tile of a batch, the scalars of a step. */
#include <string.h>

#include "../../common/op/io.h"
#include "../../common/op/loss.h"

void
k3_batch_load_cpu(void *const *buf, const struct k3_batch_load_args *a,
		  const struct k3_host_batch *batch)
{
	if (a->layout_only) {
		memcpy(buf[0], a->layout, k3_tile_layout_len(a->t) * sizeof(int32_t));
		return;
	}
	memcpy(buf[0], batch->ids + a->row0, a->t * sizeof(int32_t));
	memcpy(buf[1], batch->labels + a->row0, a->t * sizeof(int32_t));
	memcpy(buf[2], a->layout, k3_tile_layout_len(a->t) * sizeof(int32_t));
	if (a->map.n)
		memcpy(buf[a->map.first], a->map_rows, a->t * sizeof(int32_t));
	for (uint32_t l = 0; l < a->forced.n; l++)
		memcpy(buf[a->forced.first + l], batch->forced[l] + a->row0 * a->k,
		       a->t * a->k * sizeof(int32_t));
}

void
k3_step_load_cpu(void *const *buf, const double *hyper)
{
	memcpy(buf[0], hyper, K3_HYPER_LEN * sizeof(*hyper));
}
