/* The mixture of experts in the text model's walk, and the dense part that it shares (inside
 * planner/). */
#ifndef K3_PLANNER_TEXT_MOE_H
#define K3_PLANNER_TEXT_MOE_H
#include "text.h"

/* text_ffn.c: SiTU-GLU of a tile, dense or of the shared experts. */

/** y = its output, on top of p_in when there is one. */
void k3i_glu_fwd(struct k3i_walk *w, int layer, size_t i, bool dense, uint32_t y, int32_t p_in);
void k3i_glu_bwd(struct k3i_walk *w, int layer, size_t i, bool dense, uint32_t dy, uint32_t dx);

/* text_moe.c, text_moe_bwd.c: all tiles of a layer. */

void k3i_moe_fwd(struct k3i_walk *w, int layer);
/** What the backward pass reads, again, but for the experts' first products. */
void k3i_moe_again(struct k3i_walk *w, int layer);
/** A group's share of those, while the group's weights are there; nothing where they were kept. */
void k3i_moe_group_again(struct k3i_walk *w, int layer, size_t g);
void k3i_moe_bwd(struct k3i_walk *w, int layer, const uint32_t *dp, uint32_t *dh);

size_t k3i_expert_groups(const struct k3i_walk *w, int layer);
void k3i_expert_args(const struct k3i_walk *w, struct k3_expert_args *a, int layer, size_t t,
		     size_t g);
/** Of the expected rows of the group: an even spread. */
double k3i_expert_flops(const struct k3_expert_args *a);
/** Bytes of the current task, whose first `n` buffers hold the sorted rows of all groups: a group
 * reads or writes its own rows alone, once. */
double k3i_expert_bytes(const struct k3_builder *b, const struct k3_expert_args *a, uint32_t n);
void k3i_dispatch_args(const struct k3i_walk *w, struct k3_moe_dispatch_args *a, size_t t);
void k3i_combine_args(const struct k3i_walk *w, struct k3_moe_combine_args *a, size_t t);

#endif
