/* Communication between ranks, and the state algebra of context parallelism (model.md 9.1).
 *
 * A communication task names its communicator, partner or root, elements per member and type in
 * the plan's task (plan.h); its buffers are:
 *
 * gather_params:
 *   n x W full block [S * pitch, cols]
 *   n x R shard [<= pitch, cols]
 *   Member m's rows go to rows m*pitch of the full block; a shard may be short or empty, what
 *   stands in the missing rows means nothing.
 *   pitch = bytes of the full block / S.
 * reduce_scatter_grads:
 *   n x W/RW shard (f32) (W: sets, RW: adds)
 *   n x RW full block (f32): summed in place, then discarded
 * allreduce: n x RW, summed in place.
 * halo_send, halo_recv: 1 x R, 1 x W.
 * kda_state_gather:
 *   n x W (f32) [cp, hg, k, v + k]
 *   n x R (f32) [hg, k, v + k], or none: no document is cut here, zeros are given
 * gather_kv:
 *   Broadcast from the root of its rows [own rows, rkv + rope], a message per tile: one buffer per
 *   tile in order, R on the root, W on later ranks; earlier ranks need none of it and have one work
 *   buffer W for all rows.
 * scatter_kv_grads:
 *   Sum on the root, added to its own: one RW buffer per tile in order.
 *   Later ranks have one work buffer W for all rows, then one R buffer for each tile that they
 *   have a gradient of (k3_kv_args); their other rows, and all rows of earlier ranks, which have
 *   the work buffer alone, count as zeros.
 *
 * gather_features:
 *   Broadcast from the root of its vision features [m, D], a message per vision tile: one buffer
 *   per tile in order, R on the root, W on all others.
 * sum_feature_grads:
 *   Their gradient summed on the root: one buffer per tile in order, RW on the root, R on others.
 *
 * Sums have the type of their data.  Their order, hence their bits, depends on the ranks of the
 * communicator and on what moves them (codelets/comm/comm_nccl.h), never on the schedule. */
#ifndef K3_OP_COMM_H
#define K3_OP_COMM_H
#include "op.h"

/* reduce_scatter_grads. accumulate = 0: the shards are set. */
struct k3_reduce_scatter_args {
	uint32_t n_buf;
	uint32_t accumulate;
};

struct k3_kda_state_gather_args {
	uint32_t n_buf;
	struct k3_list all, sm; /* sm: as many as all, or none */
};

/* A tile of the root: where it lies in its rows, and whether `tiles` has a buffer of it. */
struct k3_kv_tile {
	size_t row0, rows;
	uint32_t listed;
};

/* gather_kv, scatter_kv_grads, and of features. work: 0..1, holds the tiles that are not listed. */
struct k3_kv_args {
	uint32_t n_buf;
	size_t width; /* of a row */
	struct k3_list work, tiles;
	size_t n_tiles; /* of the root; the same on all ranks */
	const struct k3_kv_tile *tile;
};

/* kda_state_local:
 *    0 W/RW sm (f32) [hg, k, v + k]: per head (S | M): the state that the segment leaves when it starts
 *             from zero, and the product of its transitions: (S | M) <- (M_t S + S_t | M_t M) for
 *             each tile t, in order
 *   qkv, f, br, layout, work: 1 each
 *   a_log (1,h), dt_bias (1,P)
 *   backward = 0: the last segment of the tile, tiles ascend.
 *   backward = 1: its first segment with dout [t, hg*v], tiles descend: the gradient that reaches
 *   the segment's entry from this rank's outputs, and the product of the transposed transitions.
 *   accumulate = 0: the segment's first tile (in that order). */
struct k3_kda_state_local_args {
	uint32_t n_buf;
	size_t t, h, k, v;
	uint32_t h0, h1;
	uint32_t backward, accumulate;
	float lower_bound, scale;
	struct k3_list qkv, f, br, layout, work, dout;
	struct k3_weight a_log, dt_bias;
};

/* kda_state_combine:
 *    0 W    state (f32) [hg,k,v]
 *    1 R    sm (f32) [cp, hg, k, v + k]
 *   state = 0; for j in from: state = M_j state + S_j. */
struct k3_kda_state_combine_args {
	uint32_t n_buf;
	size_t hg, k, v;
	size_t n_from;
	const uint32_t *from; /* cp indices in the order of the products */
};

/** Floats of kda_state_local's work buffer for a tile of at most t rows. */
static inline size_t
k3_kda_state_local_work_floats(size_t t, size_t k, size_t v)
{
	(void)t;
	return 2 * k * (v + k) + 8 * (k + v);
}
#endif
