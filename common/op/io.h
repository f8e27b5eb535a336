/* Tasks that bring host values into the graph. Their arguments come with the submission, not
 * with the plan. */
#ifndef K3_OP_IO_H
#define K3_OP_IO_H
#include "op.h"

/* batch_load:
 *    0 W    ids i32 [t]
 *    1 W    labels i32 [t]
 *    2 W    layout i32 [k3_tile_layout_len(t)]
 *   forced: one W i32 [t,k] per MoE layer
 *   map: 0..1 W i32 [t] merged token that replaces the row's embedding, -1: none (vit.h)
 *   layout_only = 1: buffer 0 is the layout and there is no other (a tile of another rank whose
 *   keys are attended to). */
struct k3_batch_load_args {
	uint32_t n_buf;
	size_t t, row0, k;
	uint32_t layout_only;
	const int32_t *layout; /* of the tile; lives in the plan */
	const int32_t *map_rows; /* [t] of the tile, in the plan; read when there is a map */
	struct k3_list forced, map;
};
/** Host arrays of one microbatch of this rank; must live until the microbatch's first tasks have
 * run. */
struct k3_host_batch {
	const int32_t *ids, *labels; /* [T] rows of the rank */
	/* per MoE layer in order [T,k]; NULL without forced routing */
	const int32_t *const *forced;
	/* patches of each item, frame by frame in raster order; bytes v stand for the pixels
	 * (v/255 - 0.5) / 0.5.  One of the two, or none without items. */
	const float *const *item_pixels;
	const uint8_t *const *item_bytes;
};
void k3_batch_load_cpu(void *const *buf, const struct k3_batch_load_args *a,
		       const struct k3_host_batch *batch);

/* step_load: 0 W hyper f64 [K3_HYPER_LEN]. */
void k3_step_load_cpu(void *const *buf, const double *hyper);
#endif
