/* KDA's chunk kernels on CUDA (model.md 3.4 to 3.6): what their stages hand on in scratch memory.
 *
 * Stages: a table of chunks; then for all chunks at once the gates, triangles and WY form (intra);
 * then one after the other the states, by heads and columns of v (scan); the backward repeats both,
 * walks back over the states, and forms the local gradients for all chunks at once.
 *
 * Positions count the layout's valid rows.  Arrays by position hold [heads, t, width], so nothing
 * grows with the number of documents; a state passes from a chunk to the next of the same document
 * in one of at most t / 64 slots.  The grid is the same whatever the layout: blocks walk over the
 * table.  Widths are padded to KP and VP with zeros.
 *
 * Scan and way back exist twice: for any type and width, and for bf16 heads of width 128 by
 * warpgroup products (kda_walk.cuh).  Heads wider than that have the recurrence alone
 * (kda_wide_cuda.cu).  Intra and the local gradients exist twice: for any type, gate and width,
 * and for bf16 with bounded gates by channels (kda_channels.cuh), which keeps and reads the same
 * but for tm (T) and m (none). bf16 heads of up to 64 have float tiles; only what they load and
 * store is bf16.
 */
#ifndef K3_KDA_CHUNK_CUH
#define K3_KDA_CHUNK_CUH

#include "kda_mma.cuh"

extern "C" {
#include "../../common/op/kda.h"
}

enum { KDA_CHUNK = 64, KDA_SUB = 16, KDA_BV = 16, KDA_MAX_WIDTH = 128 };

/* States that are in no slot. */
enum { KDA_NONE = -1, KDA_OUTSIDE = -2 }; /* zero or not wanted; s_in, s_out */

/* Parts of dbeta: dY V, and 16 channels each; and of the sum of a head's df (f + dt). */
enum { KDA_DBETA_PARTS = 9, KDA_DAB_HEAD = 2 };

struct kda_entry {
	int row, n;   /* positions row .. row + n-1 */
	int from, to; /* slot of the entering and of the leaving state */
};

/* head[0] chunks, head[1] 1: states are handed on; then the entries. */
enum { KDA_TABLE_HEAD = 4 };

/** Type of tiles, of what stages hand on and of the operands of products.  It is float for narrow
 * heads: a few products that cancel (dO V~^T, Q K^T) show what the rounding of V~ and Pq adds,
 * which the sums of wide heads average out. */
template <typename T, int KP> struct kda_tile {
	typedef float type;
};
template <> struct kda_tile<k3_bf16, KDA_MAX_WIDTH> {
	typedef k3_bf16 type;
};

/* Scratch memory; T is the type of tiles. */
struct kda_scratch {
	int *table;
	void *w, *kbar, *qd; /* T [heads, t, KP]: W, K exp(G_last - G), s Q exp(G) */
	void *u;	     /* T [heads, t, VP] */
	void *p;	     /* T [heads, t, 64]: s tril(Q K^T decayed) */
	float *last; /* [heads, slots + 1, KP]: exp(G_last); the last one is of the state out */
	/* backward alone */
	void *vt, *dvt; /* T [heads, t, VP] */
	float *m, *tm;	/* [heads, t, 64]; by channels T *tm alone */
	void *s, *ds;	/* T [heads, slots, KP, VP]: entering state, gradient of the leaving */
	void *s_edge, *ds_edge; /* T [heads, KP, VP]: s_in and ds_out rounded */
	void *dx, *dl; /* T [heads, t, KP], [heads, t, 64]: between the parts of the local stage */
	float *dbeta;  /* [heads, KDA_DBETA_PARTS, t] */
	float *dab;    /* [heads, blocks, KDA_DAB_HEAD + KP] */
	float *wide;   /* heads beyond KDA_MAX_WIDTH: all but the table */
	size_t t, slots, vp;
};

/* One task, for the heads h0 .. h0+heads-1 of the layer: `first` heads behind the group's first. */
struct kda_task {
	struct k3_kda_chunk_args a;
	const void *qkv, *f, *br;
	const int32_t *layout;
	const float *a_log, *dt_bias, *s_in;
	float *s_out;
	void *o;
	/* backward */
	const void *d_o;
	const float *ds_out;
	float *ds_in, *dab;
	void *dqkv, *df, *dbr;
	size_t first, heads;
	struct kda_scratch work;
};

static __device__ __forceinline__ struct kda_entry
kda_entry_at(const struct kda_scratch &w, int i)
{
	int4 x = reinterpret_cast<const int4 *>(w.table + KDA_TABLE_HEAD)[i];
	struct kda_entry e = {x.x, x.y, x.z, x.w};

	return e;
}

static __device__ __forceinline__ const int32_t *
kda_order(const int32_t *layout)
{
	return layout + K3_TL_HEAD + layout[K3_TL_ROWS];
}

/** Copies rows 0 .. n-1 of [64, COLS] from `from` (COLS apart) to a tile; rows behind become
 * zero. */
template <typename T, int COLS, int THREADS>
static __device__ __forceinline__ void
tile_copy(T *to, const T *from, int n)
{
	const int pack = 16 / sizeof(T), packs = COLS / pack, ld = tile_ld<T>(COLS);

	for (int i = (int)threadIdx.x; i < KDA_CHUNK * packs; i += THREADS) {
		int r = i / packs, c = i % packs * pack;

		copy_async(to + r * ld + c, from + (r < n ? (size_t)r * COLS + c : 0), r < n);
	}
}

/** Stages; the ones by chunks have `blocks` blocks a head. */
void k3i_kda_table(const struct kda_task *x, const struct k3_cuda *cuda);
template <typename T>
void k3i_kda_intra(const struct kda_task *x, bool backward, const struct k3_cuda *cuda);
template <typename T>
void k3i_kda_scan(const struct kda_task *x, bool backward, const struct k3_cuda *cuda);
template <typename T> void k3i_kda_scan_back(const struct kda_task *x, const struct k3_cuda *cuda);
/** Scan, or (backward) its repetition and the way back, of wide bf16 heads where the device has
 * warpgroup products. */
bool k3i_kda_walks(size_t k);
void k3i_kda_walk(const struct kda_task *x, bool backward, const struct k3_cuda *cuda);
template <typename T> void k3i_kda_local(const struct kda_task *x, const struct k3_cuda *cuda);

template <typename T>
void k3i_kda_local_plain(const struct kda_task *x, const struct k3_cuda *cuda);
/** The same for bf16 by channels (kda_channels.cuh). */
void k3i_kda_wy(const struct kda_task *x, bool backward, const struct k3_cuda *cuda);
void k3i_kda_wy_back(const struct kda_task *x, const struct k3_cuda *cuda);
void k3i_kda_sums_back(const struct kda_task *x, const struct k3_cuda *cuda);

/** Heads beyond KDA_MAX_WIDTH, all stages; so many of them at a time, and scratch memory. */
template <typename T>
void k3i_kda_wide(const struct kda_task *x, bool backward, const struct k3_cuda *cuda);
size_t k3i_kda_wide_heads(const struct k3_kda_chunk_args *a);
size_t k3i_kda_wide_bytes(const struct k3_kda_chunk_args *a, bool backward);

/** Padded width of a head. */
static inline size_t
k3i_kda_width(size_t k)
{
	return k <= 32 ? 32 : k <= 64 ? 64 : KDA_MAX_WIDTH;
}

/** Blocks a head of the stages by chunks. */
static inline size_t
k3i_kda_blocks(size_t t)
{
	return (t + 31) / 32;
}

/** Chunks of t rows in one document. */
static inline size_t
k3i_kda_chunks(size_t t)
{
	return (t + KDA_CHUNK - 1) / KDA_CHUNK;
}

#endif
