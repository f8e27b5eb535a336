/* The KDA operator alone in a plan: given q, k, v, g, beta through tiles that hand their states on,
 * forward and backward. */
#ifndef K3_PLANNER_KDA_OP_H
#define K3_PLANNER_KDA_OP_H
#include "plan.h"

struct k3_kda_op {
	size_t t, heads, k, v; /* one document of t tokens */
	size_t tile_tokens;    /* multiple of 64; 0: one tile */
	bool start_state;      /* S0 is given, and its gradient wanted */
	bool end_gradient;     /* dST is given */
};

/**
 * Plans the operator; the host writes the kept input data before submission:
 *   "qkv" [rows, heads (2k+v)] q | k | v, "g" [rows, heads k], "beta" [rows, heads], "do" [rows,
 * heads v], "layout" per tile; "state" of tile -1 (S0) [heads, k v]; "dstate" of the last tile
 * (dST). Kept results: "o", "dqkv" (dq | dk | dv), "dg", "dbeta" per tile; "state" of the last tile
 * (ST); "dstate" of tile -1 (dS0).
 * All but states and layouts have the model's type of activations.
 * @param model  for its handles and that type
 */
int k3_plan_kda_op(struct k3_plan **plan, const struct k3_model *model, const struct k3_kda_op *op);

#endif
