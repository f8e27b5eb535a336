/* MoonViT-V2 tower and projector (model.md section 6).
 *
 * The patches of a microbatch's items (images; videos of up to max_frames frames) are cut in vision
 * tiles.  A tile holds parts; a part is a band of one item: whole merge rows (merge_h grid rows) in
 * every frame, so that the mean over frames and the 2x2 merge stay inside a tile.  A large item has
 * parts in several tiles, small items share one.  Patches of a part: frame by frame, grid row by
 * grid row, column by column; parts one after the other.  Merged tokens of a part: merge row by
 * merge row, column by column (frames are averaged).
 *
 * The vision layout of a tile is one int32 datum, written by vit_load:
 *   header   K3_VL_HEAD numbers
 *   parts    K3_VP_LEN numbers each
 * Kernels take sizes of parts from there; arguments hold the tile's totals alone.
 *
 * n: patches of the tile, m: merged tokens of the tile, d: tower width, dq: attention width, h
 * heads of hd = dq / h, f: hidden width of the MLP, c = merge_h merge_w d, D: text width.
 */
#ifndef K3_OP_VIT_H
#define K3_OP_VIT_H
#include "op.h"

enum k3_vit_header {
	K3_VL_PATCHES, /* n */
	K3_VL_MERGED,  /* m */
	K3_VL_PARTS,
	K3_VL_MERGED0, /* place of the tile's first merged token among all of the microbatch */
	K3_VL_HEAD     /* length of the header */
};
enum k3_vit_part {
	K3_VP_ITEM,		/* number of the item in the microbatch */
	K3_VP_T, K3_VP_H, K3_VP_W, /* grid of the whole item, in patches */
	K3_VP_ROW0, K3_VP_ROWS,	/* grid rows of the band: a multiple of merge_h */
	K3_VP_PATCH0,		/* first patch of the part in the tile */
	K3_VP_MERGED0,		/* first merged token of the part in the tile */
	K3_VP_LEN
};

/** Length of the layout datum, in int32. */
static inline size_t
k3_vit_layout_len(size_t parts)
{
	return K3_VL_HEAD + K3_VP_LEN * parts;
}

static inline const int32_t *
k3_vit_part(const int32_t *layout, int32_t part)
{
	return layout + K3_VL_HEAD + (ptrdiff_t)part * K3_VP_LEN;
}

/** Row of a tile's merged tokens that a map names (its number among all of the microbatch), or -1. */
K3_ON_ANY static inline int64_t
k3_vit_merged_row(const int32_t *layout, int32_t merged)
{
	int64_t row = (int64_t)merged - layout[K3_VL_MERGED0];

	return merged >= 0 && row >= 0 && row < layout[K3_VL_MERGED] ? row : -1;
}

/** Patches of a part in each frame. */
static inline size_t
k3_vit_frame_patches(const int32_t *part)
{
	return (size_t)part[K3_VP_ROWS] * (size_t)part[K3_VP_W];
}

/** Patches of a part in all frames. */
static inline size_t
k3_vit_part_patches(const int32_t *part)
{
	return (size_t)part[K3_VP_T] * k3_vit_frame_patches(part);
}

/** Where the part begins in a frame: number of its first patch among those of the whole item. */
static inline size_t
k3_vit_item_patch(const int32_t *part, int32_t frame)
{
	return ((size_t)frame * (size_t)part[K3_VP_H] + (size_t)part[K3_VP_ROW0]) *
	       (size_t)part[K3_VP_W];
}

/* vit_patch_embed: x = patches Wpe^T + pos(item's grid, row, column) + time(frame, when t > 1).
 *   pos is the table itself when the grid has its size, else its bilinear resampling for the whole
 *   item (model.md 6.2), of which a part takes its rows.
 * vit_patch_embed_fwd: 0 W x [n,d]
 *                      1 R patches [n,pixels]
 *                      2 R layout
 *                      wpe (d,pixels), pos (table_h*table_w, d)
 * vit_patch_embed_bwd: 0 R dx [n,d]
 *                      1 R patches
 *                      2 R layout
 *                      wpe, pos = gradients W/RW; table entries nobody reads get exact zeros when
 *                      it writes
 */
struct k3_vit_embed_args {
	uint32_t n_buf;
	size_t n, d, pixels, table_h, table_w;
	struct k3_weight wpe, pos;
};
void k3_vit_patch_embed_fwd_cpu_f32(void *const *buf, const struct k3_vit_embed_args *a);
void k3_vit_patch_embed_bwd_cpu_f32(void *const *buf, const struct k3_vit_embed_args *a);

/* vit_qkv: q | k | v = RMSNorm(x; norm) Wqkv^T, q and k rotated by the 2-D RoPE of model.md 6.3
 *   with row and column of the whole item.
 * vit_qkv_fwd:    0 W qkv [n,3dq] (q columns, k columns, v columns; each h times hd)
 *                 1 W rstd (f32) [n]
 *                 2 R x [n,d]
 *                 3 R layout
 *                 4 W work [k3_vit_qkv_work_floats]
 *                 norm (1,d), w (3dq,d)
 * vit_qkv_bwd_dx: 0 W dx [n,d] = dy + gradient through norm and product
 *                 1 W dp [n,3dq]: gradient of the product's result (rotated back)
 *                 2 R dy [n,d]: gradient that passes by on the residual path
 *                 3 R dq [n,dq]
 *                 4 R dkv [n,2dq]
 *                 5 R x
 *                 6 R rstd (f32)
 *                 7 R layout
 *                 8 W work [k3_vit_qkv_work_floats]
 *                 dnorm (1,d) W/RW; norm, w
 * vit_qkv_bwd_dw: 0 R dp
 *                 1 R x
 *                 2 R rstd (f32)
 *                 3 W work [n,d]
 *                 norm; w = gradient W/RW
 */
struct k3_vit_qkv_args {
	uint32_t n_buf;
	size_t n, d, dq, h;
	float eps;
	struct k3_weight dnorm, norm, w;
};
void k3_vit_qkv_fwd_cpu_f32(void *const *buf, const struct k3_vit_qkv_args *a);
void k3_vit_qkv_bwd_dx_cpu_f32(void *const *buf, const struct k3_vit_qkv_args *a);
void k3_vit_qkv_bwd_dw_cpu_f32(void *const *buf, const struct k3_vit_qkv_args *a);

/** Normed rows, or factors of the rotation for the rows and columns of a part (at most n + 1). */
static inline size_t
k3_vit_qkv_work_floats(size_t n, size_t d, size_t hd)
{
	size_t rows = n * d, factors = 2 * hd * (n + 2);

	return rows > factors ? rows : factors;
}

/* vit_attn: o = softmax(scale q k^T) v, bidirectional, between parts of the same item alone.
 * vit_attn_fwd: 0 W o [n,dq]
 *               1 W lse [n,h] (f32)
 *               2 R qkv [n,3dq] of the queries' tile
 *               3 R layout of it
 *               4 W work [k3_vit_attn_fwd_work_floats]
 *               kqkv: 1..x R qkv of the tiles that hold keys of the queries' items, in tile order
 *               (the queries' own tile is one of them)
 *               klayout: as many R layouts
 * vit_attn_bwd: one pair of a query tile and a key tile
 *               0 W/RW dq [n,dq] (init_dq = 1: written)
 *               1 W/RW dkv [nk,2dq] (init_dkv = 1: written)
 *               2 R qkv of the queries' tile
 *               3 R qkv of the keys' tile
 *               4 R do [n,dq]
 *               5 R lse [n,h] (f32)
 *               6 R delta [n,h] (f32)
 *               7 R layout of the queries' tile
 *               8 R layout of the keys' tile
 *               9 W work [k3_vit_attn_bwd_work_floats]
 *               Patches without a partner in the other tile get zeros when it writes.
 */
struct k3_vit_attn_args {
	uint32_t n_buf;
	size_t n, nk; /* nk: patches of the keys' tile, vit_attn_bwd alone */
	size_t dq, h;
	float scale;
	uint32_t init_dq, init_dkv;
	struct k3_list kqkv, klayout;
};
void k3_vit_attn_fwd_cpu_f32(void *const *buf, const struct k3_vit_attn_args *a);
void k3_vit_attn_bwd_cpu_f32(void *const *buf, const struct k3_vit_attn_args *a);

/* Queries and keys of one block of scores; a key block, its scores and gradients stay in the
 * second-level cache. */
enum { K3_VIT_QUERY_BLOCK = 128, K3_VIT_KEY_BLOCK = 256 };

/** A packed key block, a slice of scores, and maximum and sum of each query of a part. */
static inline size_t
k3_vit_attn_fwd_work_floats(size_t n, size_t hd)
{
	size_t hdp = (hd + 31) / 32 * 32;

	return K3_VIT_KEY_BLOCK * (hd + hdp + 16) + 2 * n + 320;
}
/** A packed key block, a packed query block, their scores and gradients. */
static inline size_t
k3_vit_attn_bwd_work_floats(size_t hd)
{
	size_t hdp = (hd + 31) / 32 * 32;

	return K3_VIT_KEY_BLOCK * (2 * hd + hdp) +
	       K3_VIT_QUERY_BLOCK * (2 * hdp + 2 * (K3_VIT_KEY_BLOCK + 16)) + 16;
}

/* vit_out: y = x + o Wo^T.
 * vit_out_fwd:    0 W y [n,d]
 *                 1 R x [n,d]
 *                 2 R o [n,dq]
 *                 w (d,dq)
 * vit_out_bwd_dx: 0 W do [n,dq]
 *                 1 W delta (f32) [n,h]: sum over a head's columns of do o
 *                 2 R dy [n,d]
 *                 3 R o
 *                 w
 * vit_out_bwd_dw: 0 R dy
 *                 1 R o
 *                 w = gradient W/RW
 */
struct k3_vit_out_args {
	uint32_t n_buf;
	size_t n, d, dq, h;
	struct k3_weight w;
};
void k3_vit_out_fwd_cpu_f32(void *const *buf, const struct k3_vit_out_args *a);
void k3_vit_out_bwd_dx_cpu_f32(void *const *buf, const struct k3_vit_out_args *a);
void k3_vit_out_bwd_dw_cpu_f32(void *const *buf, const struct k3_vit_out_args *a);

/* vit_mlp: y = x + gelu_tanh(u) Wfc1^T, u = RMSNorm(x; norm) Wfc0^T (model.md 6.3).
 * vit_mlp_fwd:    0 W y [n,d]
 *                 1 W u [n,f]
 *                 2 W rstd (f32) [n]
 *                 3 R x [n,d]
 *                 4 W work [n,d+f]
 *                 norm (1,d), fc0 (f,d), fc1 (d,f)
 * vit_mlp_bwd_dx: 0 W dx [n,d] = dy + gradient through the MLP
 *                 1 W du [n,f]
 *                 2 R dy [n,d]
 *                 3 R u
 *                 4 R x
 *                 5 R rstd (f32)
 *                 6 W work [n,d]
 *                 dnorm (1,d) W/RW; norm, fc0, fc1
 * vit_mlp_bwd_dw: 0 R du
 *                 1 R dy
 *                 2 R u
 *                 3 R x
 *                 4 R rstd (f32)
 *                 5 W work [n,d+f]
 *                 norm; fc0, fc1 = gradients W/RW
 */
struct k3_vit_mlp_args {
	uint32_t n_buf;
	size_t n, d, f;
	float eps;
	struct k3_weight dnorm, norm, fc0, fc1;
};
void k3_vit_mlp_fwd_cpu_f32(void *const *buf, const struct k3_vit_mlp_args *a);
void k3_vit_mlp_bwd_dx_cpu_f32(void *const *buf, const struct k3_vit_mlp_args *a);
void k3_vit_mlp_bwd_dw_cpu_f32(void *const *buf, const struct k3_vit_mlp_args *a);

/* vit_merge: final norm, mean over frames, merge of 2x2 patches: merged token (i,j) is the
 *   concatenation of its merge_h x merge_w patches, row by row (model.md 6.4).
 * vit_merge_fwd: 0 W z [m,c]
 *                1 W xf [n,d] after the norm
 *                2 W rstd (f32) [n]
 *                3 R x [n,d]
 *                4 R layout
 *                norm (1,d)
 * vit_merge_bwd: 0 W dx [n,d]
 *                1 W dxf [n,d] gradient of xf
 *                2 R dz [m,c]
 *                3 R x
 *                4 R rstd (f32)
 *                5 R layout
 *                dnorm (1,d) W/RW; norm
 */
struct k3_vit_merge_args {
	uint32_t n_buf;
	size_t n, m, d, merge_h, merge_w;
	float eps;
	struct k3_weight dnorm, norm;
};
void k3_vit_merge_fwd_cpu_f32(void *const *buf, const struct k3_vit_merge_args *a);
void k3_vit_merge_bwd_cpu_f32(void *const *buf, const struct k3_vit_merge_args *a);

/* vit_project: y = RMSNorm(s; norm), s = gelu_erf(u) W2^T, u = z W1^T (model.md 6.4).
 * vit_project_fwd:    0 W y [m,D]
 *                     1 W u [m,c]
 *                     2 W s [m,D]
 *                     3 W rstd (f32) [m]
 *                     4 R z [m,c]
 *                     5 W work [m,c]
 *                     w1 (c,c), w2 (D,c), norm (1,D)
 * vit_project_bwd_dx: 0 W dz [m,c]
 *                     1 W du [m,c]
 *                     2 W ds [m,D]
 *                     3 R dy [m,D]
 *                     4 R u
 *                     5 R s
 *                     6 R rstd (f32)
 *                     dnorm (1,D) W/RW; w1, w2, norm
 * vit_project_bwd_dw: 0 R du
 *                     1 R ds
 *                     2 R u
 *                     3 R z
 *                     4 W work [m,c]
 *                     w1, w2 = gradients W/RW
 */
struct k3_vit_project_args {
	uint32_t n_buf;
	size_t m, c, dt; /* dt: D */
	float eps;
	struct k3_weight dnorm, norm, w1, w2;
};
void k3_vit_project_fwd_cpu_f32(void *const *buf, const struct k3_vit_project_args *a);
void k3_vit_project_bwd_dx_cpu_f32(void *const *buf, const struct k3_vit_project_args *a);
void k3_vit_project_bwd_dw_cpu_f32(void *const *buf, const struct k3_vit_project_args *a);

/* Features into the text (model.md 6.6).  map i32 [t]: merged token (of the microbatch) that
 *   replaces the row's embedding, -1: none; written by batch_load.
 * vision_scatter_fwd: 0 RW p [t,D]: rows with map >= 0 are replaced
 *                     1 R map [t]
 *                     y: list R features [m_j,D] of the vision tiles that the rows need
 *                     layout: as many R vision layouts (K3_VL_MERGED0 and K3_VL_MERGED say which
 *                     merged tokens a tile holds)
 * vision_scatter_bwd: 0 W dy [m,D]: gradient rows of the tile's merged tokens; exact zeros where
 *                     no row asks
 *                     1 R vision layout
 *                     dp: list R dp [t_i,D] of the text tiles that hold its rows
 *                     map: as many R maps
 *                     row lengths t_i come with the arguments
 */
struct k3_vision_scatter_args {
	uint32_t n_buf;
	size_t t, m, d;
	struct k3_list y, layout; /* forward */
	struct k3_list dp, map;	  /* backward */
	const uint32_t *rows;	  /* [dp.n] rows of each text tile; backward */
};
void k3_vision_scatter_fwd_cpu_f32(void *const *buf, const struct k3_vision_scatter_args *a);
void k3_vision_scatter_bwd_cpu_f32(void *const *buf, const struct k3_vision_scatter_args *a);

/* vit_load: 0 W patches [n,pixels]; 1 W layout.  Its values come with the submission (io.h); the
 *   placeholder of a microbatch without images has patches of zero.  With layout_only (a tile of
 *   another cp rank) there is 0 W layout alone.
 */
struct k3_vit_load_args {
	uint32_t n_buf;
	size_t n, pixels;
	const int32_t *layout; /* of the tile; lives in the plan */
	size_t layout_len;
	uint32_t placeholder, layout_only;
};
struct k3_host_batch;
void k3_vit_load_cpu(void *const *buf, const struct k3_vit_load_args *a,
		     const struct k3_host_batch *batch);

/* zero_grads: what a microbatch without images gives the vision parameters: exact zeros, whatever
 *   the weights hold.  0 .. W/RW gradients (f32) of elems[i] floats (accumulate = 1: untouched).
 */
struct k3_zero_args {
	uint32_t n_buf;
	uint32_t accumulate;
	const size_t *elems; /* [n_buf] */
};
void k3_zero_grads_cpu_f32(void *const *buf, const struct k3_zero_args *a);

#endif
