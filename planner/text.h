/* The text model's walk, cut in files by family (inside planner/).
 *
 * Order of submission: layer by layer, operation by operation, tile by tile; forward tiles ascend,
 * backward tiles descend (the KDA state's gradient flows from late tiles to early ones).  Per-tile
 * arrays are indexed by the tile's number among this rank's.
 */
#ifndef K3_PLANNER_TEXT_H
#define K3_PLANNER_TEXT_H
#include "build.h"
#include "vision_tiles.h"

/* Data that a layer's forward pass leaves for its backward pass; each array has one entry per own
 * tile (times groups). */
struct k3i_layer_data {
	uint32_t *p_in, *p_mid;	  /* prefix before the layer, after attention */
	uint32_t *xn, *stat_attn; /* normalised attention input, statistics of its mix */
	uint32_t *hn, *stat_ffn;
	/* KDA */
	uint32_t *qkvr, *fa, *f, *br, *gg, *qkv, *rstd, *halo, *o,
		*state; /* o, state: [tile * groups + g] */
	/* under context parallelism halo and state have one tile more: what came from another rank
	 */
	/* MLA */
	uint32_t *qa, *q, *c, *zg, *kv, *att,
		*lse; /* c, kv: [n_keys]; att, lse: [tile * groups + g] */
	/* feed-forward */
	uint32_t *gu, *zs, *route, *routew, *egu, *y;
};

struct k3i_walk {
	struct k3_builder *b;
	const struct k3_config *c;
	size_t n;	/* own tiles */
	size_t nominal; /* rows of a full tile */
	size_t n_keys;	/* tiles of earlier cp ranks, then the own ones: whose keys are attended to
			 */
	uint32_t *ids, *labels, *layout; /* inputs per own tile */
	uint32_t *key_layout;		 /* [n_keys]; the last n are `layout` */
	uint32_t **forced;		 /* [moe layer][tile] or NULL */
	struct k3i_layer_data *layer;
	uint32_t **block;  /* residual block payloads: [block][tile] */
	uint32_t **dblock; /* their gradients */
	size_t n_blocks;
	uint32_t *p;				 /* current prefix per tile */
	uint32_t *dp;				 /* its gradient in the backward walk */
	uint32_t *hf, *stat_final;		 /* head input */
	uint32_t kda_heads_each, mla_heads_each; /* heads of a group */
	uint32_t kda_groups, mla_groups;
	struct k3i_vision *vision; /* NULL in a text model */
	uint32_t *map;		   /* NULL, or [tile]: which rows features replace */
	bool again; /* forward tasks of a layer are being planned for the second time */
};

/* Tile i of this rank. */
static inline const struct k3_tile *
k3i_tile(const struct k3i_walk *w, size_t i)
{
	return &w->b->plan->tile[w->b->plan->own_first + i];
}

static inline size_t
k3i_rows(const struct k3i_walk *w, size_t i)
{
	return k3i_tile(w, i)->rows;
}

/* Tile of a key. */
static inline const struct k3_tile *
k3i_key_tile(const struct k3i_walk *w, size_t key)
{
	return &w->b->plan->tile[key];
}

/* Key of own tile i. */
static inline size_t
k3i_key(const struct k3i_walk *w, size_t i)
{
	return w->b->plan->own_first + i;
}

/* Its number among all tiles of the stream: what tasks and data are labelled with. */
static inline int
k3i_tile_no(const struct k3i_walk *w, size_t i)
{
	return (int)(w->b->plan->own_first + i);
}

/* planner/cp.c: context parallelism.  All do nothing on one cp rank. */

/* Own-tile number of a neighbour in a document: -1 when there is none, w->n when it is on another
 * rank. */
int k3i_neighbour(const struct k3i_walk *w, int32_t tile);
/** Own tile whose document comes from (incoming) or goes on to another rank, -1 when there is none.
 */
int k3i_cut_tile(const struct k3i_walk *w, bool incoming);
/** Global rank of a cp index in this rank's group. */
int32_t k3i_cp_rank(const struct k3i_walk *w, uint32_t cp_index);
/** Sends or receives halo rows between the ends of a cut document; forward or backward. */
void k3i_halo_send(struct k3i_walk *w, int layer, const uint32_t *halo, bool backward);
void k3i_halo_recv(struct k3i_walk *w, int layer, const uint32_t *halo, bool backward);
/** What kda_state_local reads of a layer; dout only backward. */
struct k3i_kda_cut {
	const uint32_t *qkv, *f, *br, *dout; /* [tile], dout [tile * groups + g] */
	uint32_t *state;		     /* [(n + 1) * groups]: where the combined state goes */
	bool backward;
};
void k3i_kda_cut_states(struct k3i_walk *w, int layer, const struct k3i_kda_cut *cut);
/** Brings the latents of all tiles c [n_keys] here: own ones are there, the others are made. */
void k3i_gather_kv(struct k3i_walk *w, int layer, uint32_t *c);
/** Adds the gradients dc [n_keys] of other ranks' tiles to those of their owners; made = false:
 * zero, there is no value. */
void k3i_scatter_kv_grads(struct k3i_walk *w, int layer, const uint32_t *dc, const bool *made);

/** Array of n datum indices, zeroed. */
uint32_t *k3i_array(struct k3i_walk *w, size_t n);
/** Per-tile activation [rows, row_elems]. */
uint32_t k3i_act(struct k3i_walk *w, const char *what, int layer, size_t tile, int index,
		 size_t row_elems);
/** The same of an fp32 island: statistics. */
uint32_t k3i_stat(struct k3i_walk *w, const char *what, int layer, size_t tile, int index,
		  size_t row_elems);
/** The same when it serves the backward pass alone: work space where that pass does not read it. */
uint32_t k3i_saved(struct k3i_walk *w, const char *what, int layer, size_t tile, int index,
		   size_t row_elems);
uint32_t k3i_saved_stat(struct k3i_walk *w, const char *what, int layer, size_t tile, int index,
			size_t row_elems);
/** The same, and it stays there whatever the layer's activations do. */
uint32_t k3i_kept(struct k3i_walk *w, const char *what, int layer, size_t tile, size_t row_elems);
/** Does the backward pass compute the layer's activations again? */
bool k3i_recomputes(const struct k3i_walk *w, int layer);
/** Marks a datum as readable after the plan, when the plan keeps things. */
void k3i_keep(struct k3i_walk *w, uint32_t datum);

/* planner/vision.c: tower, projector, scatter; all do nothing in a text model. */

/** Cuts the items; before the inputs are loaded. */
void k3i_vision_begin(struct k3i_walk *w, const struct k3_layout *layout);
/** Adds the map of own tile i to its batch_load task. */
void k3i_vision_map(struct k3i_walk *w, size_t i, struct k3_batch_load_args *a);
void k3i_vision_fwd(struct k3i_walk *w);
/** Features into the embeddings w->p. */
void k3i_vision_scatter(struct k3i_walk *w);
/** From the gradient w->dp of the embeddings on. */
void k3i_vision_bwd(struct k3i_walk *w);

void k3i_kda_fwd(struct k3i_walk *w, int layer, bool opens);
void k3i_kda_bwd(struct k3i_walk *w, int layer, const uint32_t *dp, uint32_t *dx);
void k3i_mla_fwd(struct k3i_walk *w, int layer, bool opens);
void k3i_mla_bwd(struct k3i_walk *w, int layer, const uint32_t *dp, uint32_t *dx);
void k3i_ffn_fwd(struct k3i_walk *w, int layer);
/** What k3i_ffn_bwd reads of the forward pass, again; the experts' share comes with each group. */
void k3i_ffn_again(struct k3i_walk *w, int layer);
void k3i_ffn_bwd(struct k3i_walk *w, int layer, const uint32_t *dp, uint32_t *dh);
/** Head, loss and their gradients; dh [tile] receives the gradient of the head's input. */
void k3i_head(struct k3i_walk *w, uint32_t *dh);

#endif
