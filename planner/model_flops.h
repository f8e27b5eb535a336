/* Arithmetic of the model itself, whatever way it is computed: what speeds are quoted in. */
#ifndef K3_PLANNER_MODEL_FLOPS_H
#define K3_PLANNER_MODEL_FLOPS_H
#include "plan.h"

struct k3_model_flops {
	double weights;	  /* products with parameter matrices */
	double attention; /* products of queries, keys and values */
	double kda;	  /* chunk products of Kimi Delta Attention, chunks of 64 */
	double vision;	  /* products of the tower and the projector, attention included */
};

/**
 * Products of one forward and backward pass over a microbatch, in flop (a multiplication and an
 * addition are two).  Over the N tokens of the layout that belong to a document:
 *
 *   weights   = 6 N A
 *   attention = 3 * sum over MLA layers of 2 pairs H (dn + dr + dv)
 *   kda       = 3 * sum over KDA layers of N Hk (10 C dk + 6 dk^2),  C = 64
 *
 * A: elements of the matrices that a token is multiplied with: all but embedding, vectors, mixers
 * and convolutions; of the experts' the k of E that it is sent to.  pairs: query and key of one
 * document, key not after query.  A backward pass has twice the products of the forward pass
 * (model.md 3.4 and 3.6 for KDA); what is computed again to save memory is not counted, nor is
 * anything elementwise.
 *
 *   vision    = sum over items of n patches and m merged tokens:
 *               4 n d 3 P^2 + Lv (6 n (4 d dq + 2 d f) + 12 n^2 dq) + 6 m c (c + D)
 *
 * with c = merge_h merge_w d; the pixels need no gradient.  0 without images: the placeholder is no
 * part of the model.
 */
void k3_model_flops(struct k3_model_flops *flops, const struct k3_model *model,
		    const struct k3_layout *layout);

#endif
