/* The tower under context parallelism (model.md 9.2): each rank of the group encodes whole
 * items, its share by patches (k3_vision_balance), and the projected features travel.  The
 * members of the group see the same images, so that all of them know every rank's tiles; a rank
 * without items encodes a placeholder, which stays at home.
 *
 * A row of the stream belongs to one rank, so the gradient of a feature is not zero on one rank
 * at most: sums over the ranks are exact in any type. */
#include "../common/status.h"
#include "mesh_comm.h"
#include "vision.h"

static uint32_t
cp(const struct k3i_walk *w)
{
	return w->b->model->options.mesh.cp;
}

static int32_t
cp_comm(const struct k3i_walk *w)
{
	return k3_mesh_comm(&w->b->model->options.mesh, K3_GROUP_CP);
}

static bool
is_mine(const struct k3i_walk *w, uint32_t rank)
{
	return rank == w->b->model->options.mesh.rank % cp(w);
}

bool
k3i_vision_is_read(const struct k3i_walk *w, size_t i)
{
	const uint32_t *first = w->vision->readers.first;

	return first[i + 1] > first[i] || (cp_comm(w) >= 0 && !w->vision->tiles.placeholder);
}

/* Begins the exchange of a rank's features, or of their gradient: all its rows, a tile after the
 * other. */
static void
rows_task(struct k3i_walk *w, enum k3_op op, uint32_t root, const uint32_t *datum,
	  enum k3_mode mode)
{
	const struct k3i_vrange *range = &w->vision->tiles.rank[root];
	struct k3_kv_tile *tile = k3i_arena_alloc(w->b->plan->arena, range->n * sizeof(*tile));
	size_t rows = 0;

	if (!tile)
		w->b->status = K3_ENOMEM;
	for (size_t i = 0; i < range->n && w->b->status == K3_OK; i++) {
		size_t m = k3i_vtile(w, range->first + i)->m;
		tile[i] = (struct k3_kv_tile){.row0 = rows, .rows = m, .listed = 1};
		rows += m;
	}
	struct k3_kv_args *a =
		k3i_comm_task(w->b, op, -1, -1, (int)root, cp_comm(w), k3i_cp_rank(w, root),
			      rows * w->c->width, w->b->act, sizeof(*a));
	a->width = w->c->width;
	a->n_tiles = range->n;
	a->tile = tile;
	k3i_list(w->b, &a->tiles, datum + range->first, range->n, mode);
	k3i_task_end(w->b, 0, 0);
}

/* Each rank in turn is the root; one without tiles has its position alone. */
static void
exchange(struct k3i_walk *w, enum k3_op op, const uint32_t *datum, enum k3_mode mine,
	 enum k3_mode other)
{
	for (uint32_t r = 0; r < cp(w) && cp_comm(w) >= 0 && w->b->status == K3_OK; r++) {
		if (w->vision->tiles.rank[r].n > 0)
			rows_task(w, op, r, datum, is_mine(w, r) ? mine : other);
		else
			k3i_skip(w->b);
		k3i_vit_touch_places(w, datum);
	}
}

static void
others_features(struct k3i_walk *w, int block, size_t i)
{
	(void)block;
	w->vision->features[i] = k3i_vit_merged_data(w, "vit_features", i, w->c->width, false);
}

void
k3i_vision_gather(struct k3i_walk *w)
{
	k3i_vit_up_others(w, -1, others_features);
	exchange(w, K3_OP_GATHER_FEATURES, w->vision->features, K3_R, K3_W);
}

void
k3i_vision_sum_grads(struct k3i_walk *w)
{
	exchange(w, K3_OP_SUM_FEATURE_GRADS, w->vision->dy, K3_RW, K3_R);
}
