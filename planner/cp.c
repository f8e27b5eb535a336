/* Context parallelism of the text model in the plan (model.md 9.1): what goes between the cp ranks
 * of one stream.
 *
 * A rank boundary is a tile boundary whose neighbour is elsewhere.  At most one document enters a
 * rank and at most one leaves it; the tile where that happens need not be the rank's first or last,
 * since tiles of holes have no segment.  A document may even pass by a whole rank: partners are the
 * owners of tile->prev and tile->next, not rank - 1 and rank + 1.
 *
 * Trap: collectives (states, latents) are planned for every layer whatever the documents; only the
 * halo's point-to-point transfers depend on them, and both partners see the same documents.  A rank
 * alone that is forced to communicate has the collectives and no halo. */
#include "../common/status.h"
#include "mesh_comm.h"
#include "text.h"

static uint32_t
cp(const struct k3i_walk *w)
{
	return w->b->model->options.mesh.cp;
}

static uint32_t
cp_index(const struct k3i_walk *w)
{
	return w->b->model->options.mesh.rank % cp(w);
}

static int32_t
cp_comm(const struct k3i_walk *w)
{
	return k3_mesh_comm(&w->b->model->options.mesh, K3_GROUP_CP);
}

int32_t
k3i_cp_rank(const struct k3i_walk *w, uint32_t index)
{
	return (int32_t)(w->b->model->options.mesh.rank - cp_index(w) + index);
}

int
k3i_neighbour(const struct k3i_walk *w, int32_t tile)
{
	const struct k3_plan *p = w->b->plan;

	if (tile < 0)
		return -1;
	if (tile < (int32_t)p->own_first || tile >= (int32_t)(p->own_first + p->own_n))
		return (int)w->n;
	return tile - (int32_t)p->own_first;
}

int
k3i_cut_tile(const struct k3i_walk *w, bool incoming)
{
	for (size_t i = 0; i < w->n; i++) {
		const struct k3_tile *t = k3i_tile(w, i);
		if (k3i_neighbour(w, incoming ? t->prev : t->next) == (int)w->n)
			return (int)i;
	}
	return -1;
}

/* Tile on the other side of the cut, -1 when there is none. */
static int32_t
beyond(const struct k3i_walk *w, bool incoming)
{
	int i = k3i_cut_tile(w, incoming);

	if (i < 0)
		return -1;
	return incoming ? k3i_tile(w, (size_t)i)->prev : k3i_tile(w, (size_t)i)->next;
}

static void
touch_all(struct k3i_walk *w, const uint32_t *datum, size_t n)
{
	for (size_t i = 0; i < n; i++)
		k3i_touch(w->b, datum[i]);
}

/* One end of a halo transfer: the datum of own tile `tile`, or of what is elsewhere (w->n). */
static void
halo_task(struct k3i_walk *w, int layer, enum k3_op op, const uint32_t *halo, int tile,
	  int32_t other)
{
	struct k3_builder *b = w->b;
	uint64_t count = (uint64_t)(w->c->conv_taps - 1) * 3 * w->c->kda_heads * w->c->kda_dim;

	if (other < 0) {
		k3i_skip(b);
	} else {
		k3i_comm_task(b, op, layer, other, -1, cp_comm(w),
			      k3i_cp_rank(w, b->plan->tile[other].owner_cp), count, b->act, 0);
		k3i_use(b, halo[tile], op == K3_OP_HALO_SEND ? K3_R : K3_W);
		k3i_task_end(b, 0, 0);
	}
	touch_all(w, halo, w->n + 1);
}

void
k3i_halo_send(struct k3i_walk *w, int layer, const uint32_t *halo, bool backward)
{
	if (cp(w) > 1)
		halo_task(w, layer, K3_OP_HALO_SEND, halo,
			  backward ? (int)w->n : k3i_cut_tile(w, false), beyond(w, backward));
}

void
k3i_halo_recv(struct k3i_walk *w, int layer, const uint32_t *halo, bool backward)
{
	if (cp(w) > 1)
		halo_task(w, layer, K3_OP_HALO_RECV, halo,
			  backward ? k3i_cut_tile(w, false) : (int)w->n, beyond(w, !backward));
}

/* Next tile of the chain that a cut document makes on its rank, seen from the cut: towards its
 * beginning (forward) or its end; -1 when the segment begins (ends) inside this tile or on another
 * rank. */
static int32_t
chain_step(const struct k3_plan *p, int32_t tile, bool backward)
{
	const struct k3_tile *t = &p->tile[tile];
	int32_t next = backward ? t->next : t->prev;

	if (t->layout[K3_TL_SEGMENTS] != 1 || next < 0 || p->tile[next].owner_cp != t->owner_cp)
		return -1;
	return next;
}

/* Is own tile i part of the document that is cut on the side that matters? */
static bool
in_chain(const struct k3i_walk *w, size_t i, bool backward)
{
	int cut = k3i_cut_tile(w, backward);

	if (cut < 0)
		return false;
	for (int32_t t = k3i_tile_no(w, (size_t)cut); t >= 0;
	     t = chain_step(w->b->plan, t, backward))
		if (t == k3i_tile_no(w, i))
			return true;
	return false;
}

static void
local_task(struct k3i_walk *w, int layer, const struct k3i_kda_cut *cut, uint32_t g, size_t i,
	   uint32_t sm)
{
	struct k3_builder *b = w->b;
	size_t h = w->c->kda_heads, k = w->c->kda_dim;
	uint32_t h0 = g * w->kda_heads_each, h1 = h0 + w->kda_heads_each;

	struct k3_kda_state_local_args *a =
		k3i_task(b, K3_OP_KDA_STATE_LOCAL, layer, k3i_tile_no(w, i), (int)g, sizeof(*a));
	*a = (struct k3_kda_state_local_args){.t = k3i_rows(w, i),
					      .h = h,
					      .k = k,
					      .v = k,
					      .h0 = h0,
					      .h1 = h1 < h ? h1 : (uint32_t)h,
					      .backward = cut->backward,
					      .lower_bound = (float)w->c->gate_lower_bound,
					      .scale = 1.0f / __builtin_sqrtf((float)k)};
	a->accumulate = k3i_use_sum(b, sm);
	k3i_list_one(b, &a->qkv, (int32_t)cut->qkv[i], K3_R);
	k3i_list_one(b, &a->f, (int32_t)cut->f[i], K3_R);
	k3i_list_one(b, &a->br, (int32_t)cut->br[i], K3_R);
	k3i_list_one(b, &a->layout, (int32_t)w->layout[i], K3_R);
	a->work = (struct k3_list){b->cur ? b->cur->n_access : 0, 1};
	k3i_work(b, k3_kda_state_local_work_floats(w->nominal, k, k));
	if (cut->backward)
		k3i_list_one(b, &a->dout, (int32_t)cut->dout[i * w->kda_groups + g], K3_R);
	k3i_weight(b, &a->a_log, K3_P_KDA_ALOG, layer);
	k3i_weight(b, &a->dt_bias, K3_P_KDA_DT, layer);
	k3i_task_end(b, (double)a->t * (a->h1 - a->h0) * (double)(8 * k * k), 0);
}

/* Lifetimes count whether the documents need the task or not. */
static void
touch_inputs(struct k3i_walk *w, const struct k3i_kda_cut *cut, size_t i, uint32_t g)
{
	k3i_touch(w->b, cut->qkv[i]);
	k3i_touch(w->b, cut->f[i]);
	k3i_touch(w->b, cut->br[i]);
	k3i_touch(w->b, w->layout[i]);
	if (cut->backward)
		k3i_touch(w->b, cut->dout[i * w->kda_groups + g]);
}

/* This rank's (S | M) per head group: from the tiles of the cut document.  Without one nothing is
 * written, and the gather takes zeros. */
static void
local_states(struct k3i_walk *w, int layer, const struct k3i_kda_cut *cut, const uint32_t *sm)
{
	for (uint32_t g = 0; g < w->kda_groups; g++) {
		for (size_t n = 0; n < w->n; n++) {
			size_t i = cut->backward ? w->n - 1 - n : n;
			if (in_chain(w, i, cut->backward))
				local_task(w, layer, cut, g, i, sm[g]);
			else
				k3i_skip_work(w->b, k3_kda_state_local_work_floats(w->nominal,
										   w->c->kda_dim,
										   w->c->kda_dim));
			k3i_touch(w->b, sm[g]);
			touch_inputs(w, cut, i, g);
		}
	}
}

/* Ranks that the incoming document (backward: the outgoing one) lies on, farthest first: the order
 * of the products. */
static size_t
ranks_beyond(const struct k3i_walk *w, bool backward, uint32_t *from)
{
	const struct k3_plan *p = w->b->plan;
	size_t n = 0;

	for (int32_t t = beyond(w, !backward); t >= 0;) {
		if (n == 0 || from[n - 1] != p->tile[t].owner_cp)
			from[n++] = p->tile[t].owner_cp;
		t = p->tile[t].layout[K3_TL_SEGMENTS] != 1 ? -1
		    : backward				   ? p->tile[t].next
							   : p->tile[t].prev;
	}
	for (size_t i = 0; i < n / 2; i++) {
		uint32_t swap = from[i];
		from[i] = from[n - 1 - i];
		from[n - 1 - i] = swap;
	}
	return n;
}

static void
combine_task(struct k3i_walk *w, int layer, uint32_t g, uint32_t state, uint32_t gathered,
	     size_t hg, bool backward)
{
	struct k3_builder *b = w->b;
	uint32_t *from = k3i_array(w, cp(w));
	size_t k = w->c->kda_dim, n = b->status == K3_OK ? ranks_beyond(w, backward, from) : 0;

	struct k3_kda_state_combine_args *a =
		k3i_task(b, K3_OP_KDA_STATE_COMBINE, layer, -1, (int)g, sizeof(*a));
	*a = (struct k3_kda_state_combine_args){
		.hg = hg, .k = k, .v = k, .n_from = n, .from = from};
	k3i_use(b, state, K3_W);
	k3i_use(b, gathered, K3_R);
	k3i_task_end(b, 2.0 * (double)n * (double)(hg * k * k * k), 0);
}

void
k3i_kda_cut_states(struct k3i_walk *w, int layer, const struct k3i_kda_cut *cut)
{
	struct k3_builder *b = w->b;
	size_t k = w->c->kda_dim, groups = w->kda_groups;
	int target = cut->backward		 ? k3i_cut_tile(w, false)
		     : k3i_cut_tile(w, true) < 0 ? -1
						 : (int)w->n;
	uint64_t count = (uint64_t)w->c->kda_heads * k * 2 * k;

	if (cp_comm(w) < 0)
		return;
	uint32_t *sm = k3i_array(w, groups), *all = k3i_array(w, groups);
	for (size_t g = 0; g < groups && b->status == K3_OK; g++) {
		size_t left = w->c->kda_heads - g * w->kda_heads_each,
		       hg = left < w->kda_heads_each ? left : w->kda_heads_each;
		sm[g] = k3i_data(b, "cut_state", K3_DATA_ACT, K3_F32, layer, -1, (int)g, hg, hg,
				 2 * k * k);
		all[g] = k3i_data(b, "cut_states", K3_DATA_ACT, K3_F32, layer, -1, (int)g,
				  cp(w) * hg, cp(w) * hg, 2 * k * k);
	}
	if (b->status != K3_OK)
		return;
	local_states(w, layer, cut, sm);
	struct k3_kda_state_gather_args *a =
		k3i_comm_task(b, K3_OP_KDA_STATE_GATHER, layer, -1, -1, cp_comm(w), -1, count,
			      K3_F32, sizeof(*a));
	k3i_list(b, &a->all, all, groups, K3_W);
	k3i_list(b, &a->sm, sm, k3i_cut_tile(w, cut->backward) < 0 ? 0 : groups, K3_R);
	touch_all(w, sm, groups);
	k3i_task_end(b, 0, 0);
	for (size_t g = 0; g < groups; g++) {
		if (target >= 0) {
			combine_task(w, layer, (uint32_t)g, cut->state[(size_t)target * groups + g],
				     all[g], b->plan->data[sm[g]].rows, cut->backward);
		} else {
			k3i_skip(b);
			k3i_touch(b, all[g]);
		}
		touch_all(w, cut->state, (w->n + 1) * groups);
	}
}

/* Places of the tiles of a root within its rows; which of them have a buffer here (NULL: all). */
static void
kv_args(struct k3i_walk *w, struct k3_kv_args *a, size_t first, const bool *listed)
{
	struct k3_arena *arena = w->b->plan->arena;
	struct k3_kv_tile *tile = k3i_arena_alloc(arena, w->n * sizeof(*tile));

	if (!tile) {
		w->b->status = K3_ENOMEM;
		return;
	}
	for (size_t i = 0; i < w->n; i++) {
		const struct k3_tile *t = k3i_key_tile(w, first + i);
		tile[i] = (struct k3_kv_tile){.row0 = t->row0 - k3i_key_tile(w, first)->row0,
					      .rows = t->rows,
					      .listed = !listed || listed[i]};
	}
	a->width = w->c->kv_rank + w->c->rope_dim;
	a->n_tiles = w->n;
	a->tile = tile;
}

/* Begins the exchange of the rows of cp rank `root`. */
static struct k3_kv_args *
kv_task(struct k3i_walk *w, enum k3_op op, int layer, uint32_t root)
{
	struct k3_builder *b = w->b;
	uint64_t count = (uint64_t)b->plan->own_rows * (w->c->kv_rank + w->c->rope_dim);

	return k3i_comm_task(b, op, layer, -1, (int)root, cp_comm(w), k3i_cp_rank(w, root), count,
			     b->act, sizeof(struct k3_kv_args));
}

static void
kv_work(struct k3i_walk *w, struct k3_kv_args *a)
{
	a->work = (struct k3_list){w->b->cur ? w->b->cur->n_access : 0, 1};
	k3i_work(w->b, w->b->plan->own_rows * (w->c->kv_rank + w->c->rope_dim));
}

void
k3i_gather_kv(struct k3i_walk *w, int layer, uint32_t *c)
{
	struct k3_builder *b = w->b;
	uint32_t mine = cp_index(w);
	bool *none = k3i_arena_alloc(b->plan->arena, w->n * sizeof(*none));

	if (!none) {
		b->status = K3_ENOMEM;
		return;
	}
	for (uint32_t s = 0; s < cp(w) && cp_comm(w) >= 0 && b->status == K3_OK; s++) {
		size_t first = s * w->n;
		for (size_t j = first; j < first + w->n && s < mine; j++)
			c[j] = k3i_data(b, "c", K3_DATA_ACT, b->act, layer, (int)j, -1,
					k3i_key_tile(w, j)->rows, w->nominal,
					w->c->kv_rank + w->c->rope_dim);
		struct k3_kv_args *a = kv_task(w, K3_OP_GATHER_KV, layer, s);
		kv_args(w, a, first, s > mine ? none : NULL);
		if (s > mine)
			kv_work(w, a);
		else
			k3i_list(b, &a->tiles, c + first, w->n, s == mine ? K3_R : K3_W);
		k3i_task_end(b, 0, 0);
	}
}

void
k3i_scatter_kv_grads(struct k3i_walk *w, int layer, const uint32_t *dc, const bool *made)
{
	struct k3_builder *b = w->b;
	uint32_t mine = cp_index(w);
	bool *listed = k3i_arena_alloc(b->plan->arena, w->n * sizeof(*listed));

	if (!listed) {
		b->status = K3_ENOMEM;
		return;
	}
	for (uint32_t s = 0; s < cp(w) && cp_comm(w) >= 0 && b->status == K3_OK; s++) {
		size_t first = s * w->n;
		struct k3_kv_args *a = kv_task(w, K3_OP_SCATTER_KV_GRADS, layer, s);
		if (s != mine)
			kv_work(w, a);
		a->tiles.first = b->cur ? b->cur->n_access : 0;
		for (size_t i = 0; i < w->n; i++) {
			listed[i] = s <= mine && made[first + i];
			if (s <= mine)
				k3i_touch(b, dc[first + i]);
			if (!listed[i])
				continue;
			k3i_use(b, dc[first + i], s == mine ? K3_RW : K3_R);
			a->tiles.n++;
		}
		kv_args(w, a, first, listed);
		k3i_task_end(b, 0, 0);
	}
}
