/* What the walks over the states of wide bf16 heads share (model.md 3.4, 3.6).
 *
 * A block has 64 columns of v of one head's state, transposed: [64 v, 128 k] in the registers of
 * one warpgroup, which is the accumulator of one product and, rounded, the left operand of the
 * next.  So nothing of the chain from chunk to chunk passes through shared memory, and its warps
 * meet at no barrier.  Three more warps bring the chunks' tiles, each into a stage of its own: the
 * fence before a stage is handed over waits for all copies of its warp.
 *
 * A tile of rows becomes operand or accumulator by transposing loads, and results become rows by
 * transposing stores.  The trap: rows behind a chunk's last are zero in every tile, as products do
 * not know where a chunk ends.
 */
#ifndef K3_KDA_WALK_CUH
#define K3_KDA_WALK_CUH

#include "kda_chunk.cuh"
#include "kda_wgmma.cuh"

enum { WALK_K = 128, WALK_V = 64, WALK_STAGES = 3, WALK_GROUP = 128 };
/* A stage is handed over between a warp and the group. */
enum { WALK_PAIR = WALK_GROUP + 32 };
/* Other targets have no code for warpgroups, and say so by a smaller block. */
enum { WALK_THREADS = K3_WGMMA ? WALK_GROUP + 32 * WALK_STAGES : 32 };

/* Named barriers: a stage is filled, a stage is empty (from STAGES on), rows are in their tile. */
enum { WALK_FULL = 1, WALK_EMPTY = WALK_FULL + WALK_STAGES, WALK_TILE = WALK_EMPTY + WALK_STAGES };

/* Tiles of 64 rows; columns holds the block's columns of U or of the output's gradient. */
struct walk_stage {
	unsigned char w[2 * WALK_PANEL], kbar[2 * WALK_PANEL], qd[2 * WALK_PANEL];
	unsigned char p[WALK_PANEL], columns[WALK_PANEL];
};

struct walk_shared {
	struct walk_stage stage[WALK_STAGES];
	unsigned char rows[WALK_PANEL], state[2 * WALK_PANEL]; /* results */
	float last[WALK_STAGES][WALK_K];
};

enum { WALK_BYTES = sizeof(struct walk_shared) + 1024 };

/** Tiles begin at multiples of 1024 bytes. */
static __device__ __forceinline__ struct walk_shared &
walk_shared_at(unsigned char *raw)
{
	uint32_t at = shared_address(raw);

	return *reinterpret_cast<struct walk_shared *>(raw + (1024 - at % 1024) % 1024);
}

static __device__ __forceinline__ void
walk_arrive(int barrier)
{
	asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"((int)WALK_PAIR) : "memory");
}

/** The state [k, v] of a group's head i, or NULL. */
static __device__ __forceinline__ const float *
walk_outside(const float *states, const struct kda_task &x)
{
	return states ? states + (x.first + blockIdx.y) * x.a.k * x.a.v : NULL;
}

/* Element i of a thread's piece [64 v, k]: k, and v in the block's columns. */
static __device__ __forceinline__ int
walk_k(int i)
{
	return (i >> 2) * 8 + (int)(threadIdx.x & 3) * 2 + (i & 1);
}

static __device__ __forceinline__ int
walk_v(int i)
{
	return (int)(threadIdx.x >> 5 & 3) * 16 + (int)(threadIdx.x & 31) / 4 + (i >> 1 & 1) * 8;
}

/** From a float state [k, v], or zeros (NULL). */
static __device__ __forceinline__ void
walk_state_load(float *s, const float *from, int col, const struct k3_kda_chunk_args &a)
{
#pragma unroll
	for (int i = 0; i < WALK_K / 2; i++) {
		size_t k = (size_t)walk_k(i), v = (size_t)(col + walk_v(i));

		s[i] = from && k < a.k && v < a.v ? from[k * a.v + v] : 0.0f;
	}
}

static __device__ __forceinline__ void
walk_state_store(float *to, const float *s, int col, const struct k3_kda_chunk_args &a)
{
#pragma unroll
	for (int i = 0; i < WALK_K / 2; i++) {
		size_t k = (size_t)walk_k(i), v = (size_t)(col + walk_v(i));

		if (k < a.k && v < a.v)
			to[k * a.v + v] = s[i];
	}
}

static __device__ __forceinline__ void
walk_decay(float *s, const float *last)
{
#pragma unroll
	for (int i = 0; i < WALK_K / 8; i++) {
		float2 by = *reinterpret_cast<const float2 *>(last + walk_k(4 * i));

		s[4 * i] *= by.x;
		s[4 * i + 1] *= by.y;
		s[4 * i + 2] *= by.x;
		s[4 * i + 3] *= by.y;
	}
}

/* Where a lane's row of piece s of 16 rows lies for transposing loads and stores. */
template <int ROWS>
static __device__ __forceinline__ uint32_t
walk_piece(int s)
{
	int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5 & 3;

	return piece_at(ROWS, 16 * s + (lane >> 4) * 8 + (lane & 7), 2 * warp + (lane >> 3 & 1));
}

/** A tile [64, 64 v], transposed, as left operand. */
static __device__ __forceinline__ void
walk_left(uint32_t *a, const unsigned char *tile)
{
#pragma unroll
	for (int s = 0; s < WALK_ROWS / 16; s++)
		ldmatrix_trans(a + 4 * s, tile + walk_piece<WALK_ROWS>(s));
}

/** The same as accumulators. */
static __device__ __forceinline__ void
walk_accumulators(float *d, const unsigned char *tile)
{
	uint32_t a[16];

	walk_left(a, tile);
#pragma unroll
	for (int i = 0; i < 16; i++) {
		float2 x = unpack_two(a[i]);

		d[2 * i] = x.x;
		d[2 * i + 1] = x.y;
	}
}

/* Rows in memory: those of an array by position, or those that an order names. */
struct walk_rows {
	k3_bf16 *at; /* the block's first column of row 0 */
	size_t ld;
	int n, cols; /* rows and columns that are there */
	bool whole;  /* pieces of 8 columns are aligned and there or not there */
};

/** Left operands of a piece [64 v, ROWS] to a tile of rows; all warps of the group. */
template <int ROWS>
static __device__ __forceinline__ void
walk_tile_store(unsigned char *tile, const uint32_t *a)
{
	group_sync(WALK_TILE, WALK_GROUP);
#pragma unroll
	for (int s = 0; s < ROWS / 16; s++)
		stmatrix_trans(tile + walk_piece<ROWS>(s), a + 4 * s);
	group_sync(WALK_TILE, WALK_GROUP);
}

/** A tile of rows to memory; row (thread / 8) + 16 m goes to row index[m], or to its own (NULL). */
template <int ROWS>
static __device__ __forceinline__ void
walk_rows_store(const struct walk_rows &to, const int *index, const unsigned char *tile)
{
	int i = (int)threadIdx.x % WALK_GROUP, piece = i % 8, row = i / 8;

#pragma unroll
	for (int m = 0; m < ROWS / 16; m++) {
		int r = row + 16 * m;
		k3_bf16 *at = to.at + (size_t)(index ? index[m] : r) * to.ld + 8 * piece;
		const unsigned char *from = tile + piece_at(ROWS, r, piece);
		int cols = r < to.n ? min(to.cols - 8 * piece, 8) : 0;

		if (to.whole && cols > 0)
			*reinterpret_cast<uint4 *>(at) = *reinterpret_cast<const uint4 *>(from);
#pragma unroll
		for (int c = 0; c < 8; c++)
			if (!to.whole && c < cols)
				at[c] = reinterpret_cast<const k3_bf16 *>(from)[c];
	}
}

/** Rows of an array by position, or of a state in a slot; col is the block's first column. */
static __device__ __forceinline__ struct walk_rows
walk_rows_at(void *array, size_t row, int n, int col, size_t vp)
{
	struct walk_rows r = {(k3_bf16 *)array + row * vp + col, vp, n, (int)vp - col, true};

	return r;
}

/** Rows of the output or of its gradient. */
static __device__ __forceinline__ struct walk_rows
walk_rows_of(const void *o, int n, int col, const struct kda_task &x)
{
	size_t hg = x.a.h1 - x.a.h0, v = x.a.v;
	struct walk_rows r;

	r.at = (k3_bf16 *)o + (x.first + blockIdx.y) * v + col;
	r.ld = hg * v;
	r.n = n;
	r.cols = (int)v - col;
	r.whole = ((uintptr_t)o | v * sizeof(k3_bf16)) % 16 == 0;
	return r;
}

/** Places of the rows (thread / 8) + STEP m of a chunk; 0 behind its last. */
template <int STEP>
static __device__ __forceinline__ void
walk_order(int *order, const int32_t *rows, const struct kda_entry &e)
{
	int row = (int)threadIdx.x % (8 * STEP) / 8;

#pragma unroll
	for (int m = 0; m < WALK_ROWS / STEP; m++)
		order[m] = row + STEP * m < e.n ? rows[e.row + row + STEP * m] : 0;
}

#endif
