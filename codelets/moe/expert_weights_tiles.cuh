/* Tiles of the gradients of the experts' weights (expert_weights.cu), and what a block keeps in
 * shared memory.
 *
 * A tile is 256 latent columns by 192 hidden ones, the sum over an expert's rows, which are cut in
 * parts where they are many.  Blocks take tiles one by one, the longest first, so that they end
 * together.  Of experts that have 3/5 of all rows, dW13 comes before dW2, which needs their
 * weighted hidden rows; of the others it does too.  The trap: experts without rows have tiles:
 * their gradient is zero.
 */
#ifndef K3_MOE_EXPERT_WEIGHTS_TILES_CUH
#define K3_MOE_EXPERT_WEIGHTS_TILES_CUH
#include "expert_launch.cuh"

/* A stage is a slab of SLAB rows: boxes of 64 columns, those of x first. */
enum {
	SLAB = 32,
	SLAB_BYTES = SLAB * BOX_ROW_BYTES,
	GRAD_ROWS = 256,
	GRAD_COLS = 192,
	GRAD_X_BOXES = GRAD_ROWS / BOX,
	GRAD_Y_BOXES = GRAD_COLS / BOX,
	GRAD_STAGE_BYTES = (GRAD_X_BOXES + GRAD_Y_BOXES) * SLAB_BYTES,
	GRAD_STAGES = 5
};

/* A warpgroup has half of a tile's rows, whose sums leave by pieces of 64 rows and 32 columns. */
enum {
	GROUP_ROWS = GRAD_ROWS / GROUPS,
	GROUP_FLOATS = GROUP_ROWS * GRAD_COLS,
	PIECE_COLS = 32,
	PIECE_BYTES = BOX * PIECE_COLS * (int)sizeof(float),
	PIECE_BUFFERS = 4
};

/* Most rows of a part, unless the scratch would be too large; tiles that wait for warpgroups. */
enum { PART_ROWS = 4096, TILES_AHEAD = 2 };

/* Counts in the scratch; zero before the kernel.  Those of parts that are done follow. */
enum { NEXT_TILE, GRAD_COUNTS };

struct grad_job {
	CUtensorMap x[2], y[2], out[2];
	struct expert_task task;
	int *counts;
	int blocked;  /* whole boxes of columns: a stage's boxes come by one copy */
	int tiles[2]; /* of a part: of dW13 and of dW2 */
};

/* As it is handed to the warpgroups; a depth below zero is the end. */
struct grad_tile {
	int expert, side; /* side 1: dW2 */
	int row, col;
	int from, depth; /* first row of the sum, how many */
	int part, parts;
};

/* Shared memory, from a multiple of 1024 on: stages, pieces of each warpgroup, barriers, tiles,
 * words. Addresses are sums of constants, as registers are scarce. */
enum {
	GRAD_PIECES_AT = GRAD_STAGES * GRAD_STAGE_BYTES,
	GRAD_FULL_AT = GRAD_PIECES_AT + GROUPS * PIECE_BUFFERS * PIECE_BYTES,
	GRAD_EMPTY_AT = GRAD_FULL_AT + 8 * GRAD_STAGES,
	GRAD_TILE_FULL_AT = GRAD_EMPTY_AT + 8 * GRAD_STAGES,
	GRAD_TILE_EMPTY_AT = GRAD_TILE_FULL_AT + 8 * TILES_AHEAD,
	GRAD_TILES_AT = GRAD_TILE_EMPTY_AT + 8 * TILES_AHEAD,
	GRAD_LAST_AT = GRAD_TILES_AT + TILES_AHEAD * (int)sizeof(struct grad_tile),
	GRAD_EARLY_AT = GRAD_LAST_AT + GROUPS * (int)sizeof(int),
	GRAD_WORDS_AT = GRAD_EARLY_AT + (int)sizeof(int)
};

static size_t
grad_shared_bytes(int experts)
{
	return 1024 + GRAD_WORDS_AT + sizeof(int) * 3 * ((size_t)experts + 1);
}

/* Experts by length, those of long parts first: `order`, and of each place in it the first part;
 * first rows of experts by their number. */
struct grad_experts {
	int *early; /* parts of the experts whose tiles come first */
	int *first, *offs, *order;
};

static __device__ __forceinline__ unsigned char *
grad_base(void)
{
	extern __shared__ unsigned char raw[];

	return raw + (1024 - (shared_address(raw) & 1023)) % 1024;
}

static __device__ __forceinline__ struct grad_experts
grad_experts_of(unsigned char *base, int experts)
{
	struct grad_experts x;

	x.early = (int *)(base + GRAD_EARLY_AT);
	x.first = (int *)(base + GRAD_WORDS_AT);
	x.offs = x.first + experts + 1;
	x.order = x.offs + experts + 1;
	return x;
}

/* Parts of an expert: one if there are no rows. */
static __device__ __forceinline__ int
parts_of(int rows, int part_rows)
{
	return rows > 0 ? (rows + part_rows - 1) / part_rows : 1;
}

/* Experts with the longest parts first; x->first is used for the lengths. */
static __device__ __forceinline__ void
order_parts(const struct grad_experts *x, const struct expert_task *task)
{
	for (int e = threadIdx.x; e < task->experts; e += BLOCK_THREADS) {
		int rows = x->offs[e + 1] - x->offs[e], parts = parts_of(rows, task->part_rows);
		x->first[e] = (rows + SLAB * parts - 1) / (SLAB * parts);
	}
	__syncthreads();
	for (int e = threadIdx.x; e < task->experts; e += BLOCK_THREADS) {
		int mine = x->first[e], before = e;
		for (int i = 0; i < task->experts; i++)
			before += (x->first[i] > mine && i > e) - (x->first[i] < mine && i < e);
		x->order[before] = e;
	}
	__syncthreads();
}

/* Sum over the lanes up to this one. */
static __device__ __forceinline__ int
sum_upto(int n)
{
#pragma unroll
	for (int step = 1; step < 32; step <<= 1) {
		int below = __shfl_up_sync(0xffffffffu, n, step);
		n += (int)(threadIdx.x & 31) >= step ? below : 0;
	}
	return n;
}

/* By warp 0: parts, and early ones. */
static __device__ __forceinline__ void
list_parts(const struct grad_experts *x, const struct expert_task *task)
{
	int lane = threadIdx.x, parts = 0, before = 0, early = 0;
	int all = x->offs[task->experts] - x->offs[0];

	for (int from = 0; from < task->experts; from += 32) {
		int i = from + lane, rows = 0, n = 0;
		if (i < task->experts) {
			rows = x->offs[x->order[i] + 1] - x->offs[x->order[i]];
			n = parts_of(rows, task->part_rows);
		}
		int n_upto = sum_upto(n), rows_upto = sum_upto(rows);
		if (i < task->experts) {
			x->first[i] = parts + n_upto - n;
			if (before + rows_upto - rows < all / 5 * 3)
				early = parts + n_upto;
		}
		parts += __shfl_sync(0xffffffffu, n_upto, 31);
		before += __shfl_sync(0xffffffffu, rows_upto, 31);
	}
	early = __reduce_max_sync(0xffffffffu, early);
	if (lane == 0) {
		*x->early = early;
		x->first[task->experts] = parts;
	}
}

/* The last of n places whose first number is not behind. */
static __device__ __forceinline__ int
place_of(const int *first, int n, int number)
{
	int low = 0, high = n - 1;

	while (low < high) {
		int middle = (low + high + 1) / 2;
		if (first[middle] <= number)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

/* Side of a tile and, in *unit, its part: early ones of dW13, of dW2, then the others. */
static __device__ __forceinline__ int
side_of(int *unit, int *left, const struct grad_job *job, const struct grad_experts *x, int index)
{
	int early = *x->early, late = x->first[job->task.experts] - early, first = 0, side = 0;

	if (index >= early * (job->tiles[0] + job->tiles[1])) {
		index -= early * (job->tiles[0] + job->tiles[1]);
		first = early;
		early = late;
	}
	if (index >= early * job->tiles[0]) {
		index -= early * job->tiles[0];
		side = 1;
	}
	*unit = first + index / job->tiles[side];
	*left = index % job->tiles[side];
	return side;
}

static __device__ __forceinline__ struct grad_tile
grad_tile_at(const struct grad_job *job, const struct grad_experts *x, int index)
{
	int unit, place, left, per_row, rows, slabs, first, last;
	struct grad_tile t;

	t.side = side_of(&unit, &left, job, x, index);
	place = place_of(x->first, job->task.experts, unit);
	t.expert = x->order[place];
	t.part = unit - x->first[place];
	t.parts = x->first[place + 1] - x->first[place];
	per_row = ((t.side ? 1 : 2) * job->task.f + GRAD_COLS - 1) / GRAD_COLS;
	t.row = left / per_row * GRAD_ROWS;
	t.col = left % per_row * GRAD_COLS;
	rows = x->offs[t.expert + 1] - x->offs[t.expert];
	slabs = (rows + SLAB - 1) / SLAB;
	first = slabs * t.part / t.parts;
	last = slabs * (t.part + 1) / t.parts;
	t.from = x->offs[t.expert] + first * SLAB;
	t.depth = min(rows, last * SLAB) - first * SLAB;
	return t;
}

#endif
