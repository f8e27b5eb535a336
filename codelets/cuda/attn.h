/* Attention on CUDA, for text and vision: what the launchers in codelets/mla and codelets/vit hand
 * to the kernels of attn_fwd.cu and attn_bwd.cu.
 *
 * Queries and keys lie in tiles.  A row has an id: its document in a tile layout, its item in a
 * vision layout; 0 is none.  A query sees the keys of its id, with ATTN_DOCUMENTS only up to its
 * own global row.  Head i of an operand begins `head` elements after head i - 1.
 */
#ifndef K3_CUDA_ATTN_H
#define K3_CUDA_ATTN_H

#ifdef __cplusplus
extern "C" {
#endif
#include "gemm.h"

enum k3_attn_ids { K3_ATTN_DOCUMENTS, K3_ATTN_ITEMS };

/* One operand: first element of the first head's row 0. */
struct k3_attn_rows {
	const void *x;
	size_t ld, head; /* elements to the next row, to the next head */
};

/* Columns: a key is (nope | rope), rope is shared by the heads. */
struct k3_attn_shape {
	enum k3_attn_ids ids;
	int heads, nope, rope, v;
	float scale;
};

/* A tile of keys as the kernels read it: columns of the first head in its rows. */
struct k3_attn_keys {
	size_t ld, head;
	size_t k, rope, v; /* first columns of keys, shared part and values */
};

enum { K3_ATTN_TILES = 32 }; /* key tiles of one launch */
struct k3_attn_fwd {
	struct k3_attn_shape shape;
	struct k3_attn_rows q, o; /* o is written */
	float *lse;		  /* [t, heads] */
	const int32_t *layout;
	int t, n_tiles, first;
	struct k3_attn_keys keys;
	const void *kv[K3_ATTN_TILES];
	const int32_t *klayout[K3_ATTN_TILES];
};

struct k3_attn_bwd {
	struct k3_attn_shape shape;
	struct k3_attn_rows q, da, dq;
	const float *lse, *delta; /* [t, heads] */
	const int32_t *layout, *klayout;
	int t, tk; /* most rows of the tiles */
	int add_dq, add_dkv;
	struct k3_attn_keys keys, dkeys; /* in rows of kv and of dkv */
	const void *kv;
	void *dkv;
	float *drope; /* [heads, tk, rope] scratch: each head's part of the shared gradient */
};

/** One launch; p->n_tiles >= 0. */
void k3_cuda_attn_fwd(const struct k3_cuda *cuda, enum k3_cuda_type type,
		      const struct k3_attn_fwd *p);
void k3_cuda_attn_bwd(const struct k3_cuda *cuda, enum k3_cuda_type type,
		      const struct k3_attn_bwd *p);

#ifdef __cplusplus
}
#endif
#endif
