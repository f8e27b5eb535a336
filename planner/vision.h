/* Parts of the vision walk (inside planner/): vision.c joins the tower to the text, vision_fwd.c
 * and vision_bwd.c walk through it. */
#ifndef K3_PLANNER_VISION_H
#define K3_PLANNER_VISION_H
#include "text.h"

/* Data of one tower block, per vision tile. */
struct k3i_vit_block {
	uint32_t *x, *qkv, *rstd, *o, *lse, *mid, *u, *rstd_mlp;
};

/* Numbers in lists: those of i are at[first[i]] .. at[first[i + 1] - 1]. */
struct k3i_lists {
	uint32_t *first, *at;
};

struct k3i_vision {
	struct k3i_vtiles tiles;
	const struct k3_vision_config *c;
	uint32_t *patches, *layout;
	struct k3i_vit_block *block; /* [layers] */
	uint32_t *x;		     /* of the next block, at last the tower's output */
	uint32_t *xf, *rstd_final, *z, *u, *s, *rstd, *features;
	/* backward: of the features, of the merged tokens, of the patches; of this block's inner
	 * values */
	uint32_t *dy, *dz, *dx, *dmid, *dout, *delta, *dq, *dkv;
	const int32_t **map_rows; /* [own text tile] */
	/* places of the vision tiles whose features an own text tile takes, in the order of its
	 * rows; own text tiles that take those of a place, ascending */
	struct k3i_lists takes, readers;
};

/* A placeholder has no backward pass. */
static inline bool
k3i_vit_backward(const struct k3i_walk *w)
{
	return w->b->what.backward && !w->vision->tiles.placeholder;
}

static inline const struct k3i_vtile *
k3i_vtile(const struct k3i_walk *w, size_t i)
{
	return &w->vision->tiles.tile[i];
}

/* What its tasks and data are labelled with. */
static inline int
k3i_vtile_no(const struct k3i_walk *w, size_t i)
{
	return w->vision->tiles.tile[i].number;
}

/* Own tiles that positions are taken for; those from tiles.n on are phantoms. */
static inline size_t
k3i_vtiles_n(const struct k3i_walk *w)
{
	return w->vision->tiles.n_most;
}

/* With those of other cp ranks, which have a layout, features and their gradient here. */
static inline size_t
k3i_vplaces_n(const struct k3i_walk *w)
{
	return w->vision->tiles.n_most + w->vision->tiles.others_most;
}

/* Part of a walk: one operation on one tile; block -1: none. */
typedef void (*k3i_vit_step)(struct k3i_walk *w, int block, size_t tile);
/** A step on every tile, ascending; a phantom takes its positions and prolongs lives, no more. */
void k3i_vit_up(struct k3i_walk *w, int block, k3i_vit_step step);
/** The same descending; a placeholder's tile is a phantom here. */
void k3i_vit_down(struct k3i_walk *w, int block, k3i_vit_step step);
/** The same for tiles of other ranks. */
void k3i_vit_up_others(struct k3i_walk *w, int block, k3i_vit_step step);
void k3i_vit_down_others(struct k3i_walk *w, int block, k3i_vit_step step);
/** The datum of every own tile, or of every place, lives to the current position at least. */
void k3i_vit_touch(struct k3i_walk *w, const uint32_t *datum);
void k3i_vit_touch_places(struct k3i_walk *w, const uint32_t *datum);

/** Patches x row_elems of tile i; saved: only the backward pass reads it, so it is work space
 * without one. */
uint32_t k3i_vit_patch_data(struct k3i_walk *w, const char *what, size_t i, int block,
			    size_t row_elems, bool saved);
/** The same of an fp32 island: statistics. */
uint32_t k3i_vit_stat(struct k3i_walk *w, const char *what, size_t i, int block, size_t row_elems,
		      bool saved);
/** The same by merged tokens, no statistics. */
uint32_t k3i_vit_merged_data(struct k3i_walk *w, const char *what, size_t i, size_t row_elems,
			     bool saved);
/** k3i_keep of every tile's datum. */
void k3i_vit_keep(struct k3i_walk *w, const uint32_t *datum);

/* Arguments of tile i, without operands. */
struct k3_vit_embed_args k3i_vit_embed_args(const struct k3i_walk *w, size_t i);
struct k3_vit_qkv_args k3i_vit_qkv_args(const struct k3i_walk *w, size_t i);
struct k3_vit_attn_args k3i_vit_attn_args(const struct k3i_walk *w, size_t i);
struct k3_vit_out_args k3i_vit_out_args(const struct k3i_walk *w, size_t i);
struct k3_vit_mlp_args k3i_vit_mlp_args(const struct k3i_walk *w, size_t i);
struct k3_vit_merge_args k3i_vit_merge_args(const struct k3i_walk *w, size_t i);
struct k3_vit_project_args k3i_vit_project_args(const struct k3i_walk *w, size_t i);

/* planner/vision_attn.c */
void k3i_vit_attn_fwd(struct k3i_walk *w, int block, size_t i);
void k3i_vit_attn_bwd(struct k3i_walk *w, int block, size_t i);
/** Pairs of attention depend on the images: every tile meets itself at least, and more work space
 * than K3I_WORK_AHEAD pairs take is never held, so the sweep has at least so many positions. */
void k3i_vit_pad_pairs(struct k3i_walk *w);

/** Width of a merged token. */
size_t k3i_vit_merged_width(const struct k3i_walk *w);
/** Of either direction of the gradient, and of the forward pass. */
double k3i_vit_project_flops(const struct k3_vit_project_args *a);
/** Fills map_rows, takes, readers. */
void k3i_vision_make_maps(struct k3i_walk *w, const struct k3_layout *layout);
/** Patches and layout of a tile; of a tile of another rank the layout alone. */
void k3i_vision_load(struct k3i_walk *w, int block, size_t i);
/** Does any task of this rank but the one that makes them read the features of own tile i? */
bool k3i_vision_is_read(const struct k3i_walk *w, size_t i);
/** Gradients of the features of all tiles, as far as this rank's rows give any. */
void k3i_vision_scatter_bwd(struct k3i_walk *w);
/* planner/vision_cp.c: features of all cp ranks come here; gradients of a rank's features go there.
 * They do nothing on one cp rank that is not forced to communicate. */
void k3i_vision_gather(struct k3i_walk *w);
void k3i_vision_sum_grads(struct k3i_walk *w);
/** What a placeholder gives the parameters of the tower, exact zeros; with images the positions
 * of that alone. */
void k3i_vision_zero_grads(struct k3i_walk *w);

#endif
