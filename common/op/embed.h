/* Token embedding (model.md 2.3, 6.6): y[t] = table[ids[t]]. */
#ifndef K3_OP_EMBED_H
#define K3_OP_EMBED_H
#include "op.h"

/* embed_fwd:
 *    0 W    y [t,d]
 *    1 R    ids i32 [t]
 *   table (vocab, d)
 * embed_bwd:
 *    0 R    dy [t,d]
 *    1 R    ids
 *   map: 0..1 R i32 [t]: rows with map >= 0 were replaced by image features (vit.h) and add nothing
 *   dtable (vocab, d) W/RW: rows of absent ids get exact zeros when it writes
 *   Tokens are added in ascending order. */
struct k3_embed_args {
	uint32_t n_buf;
	size_t t, d;
	struct k3_list map; /* embed_bwd */
	struct k3_weight table; /* table, or its gradient in embed_bwd */
};
void k3_embed_fwd_cpu_f32(void *const *buf, const struct k3_embed_args *a);
/* Rows of bf16 are copied as they are: a table of a whole vocabulary is not widened for a few of them. */
void k3_embed_fwd_cpu_bf16(void *const *buf, const struct k3_embed_args *a);
void k3_embed_bwd_cpu_f32(void *const *buf, const struct k3_embed_args *a);
#endif
