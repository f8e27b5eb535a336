/* D_HIDDEN's tiles on their way through shared memory (expert_wgmma.cu): a ring of chunks between
 * memory and the warpgroups.
 *
 * A chunk is gate and up of 64 rows and 64 columns.  One warp loads those that a tile needs while it is
 * multiplied; its warpgroup puts their gradients in their place; another warp has the copy engine store
 * them as whole lines.  So nobody who multiplies waits for memory.  The traps: both warpgroups use
 * the ring in the order of tiles, and who waits for a place's phase must know that the phase before is
 * over, so they pass each other a turn; rows that belong to the next expert are not stored, so that
 * such chunks go row by row.  Longer runs of instructions than the caches for them hold come slower
 * than they are done: the halves of a tile share theirs.
 */
#ifndef K3_MOE_EXPERT_DGRAD_CUH
#define K3_MOE_EXPERT_DGRAD_CUH
#include "expert_finish.cuh"

/* The place that is used as number `used`. */
struct chunk {
	uint32_t at, full, done, empty;
	int round; /* parity of how often the place was used */
};

static __device__ __forceinline__ struct chunk
chunk_of(const struct layout *l, unsigned used)
{
	unsigned place = used % RING_CHUNKS;
	struct chunk c;

	c.at = l->ring + place * CHUNK_BYTES;
	c.full = l->ring_turn + 8 * (GROUPS + place);
	c.done = c.full + 8 * RING_CHUNKS;
	c.empty = c.done + 8 * RING_CHUNKS;
	c.round = used / RING_CHUNKS & 1;
	return c;
}

/* By one thread of the block. */
static __device__ __forceinline__ void
ring_init(const struct layout *l)
{
	for (unsigned i = 0; i < RING_CHUNKS; i++) {
		struct chunk c = chunk_of(l, i);
		phase_init(c.full, 1);
		phase_init(c.done, 4);
		phase_init(c.empty, 1);
	}
	for (int i = 0; i < GROUPS; i++)
		phase_init(l->ring_turn + 8 * i, 4);
}

/* First row and column of chunk number q of a tile. */
static __device__ __forceinline__ int
chunk_row(const struct tile *t, int q)
{
	return t->row + q / 2 * BOX;
}

static __device__ __forceinline__ int
chunk_col(const struct tile *t, int q)
{
	return t->col + q % 2 * BOX;
}

/* By a warp: gate and up of the tiles, as far ahead as the ring goes. */
static __device__ __forceinline__ void
load_chunks(const struct expert_job *job, const struct layout *l, int total)
{
	struct walk w = {0, (int)gridDim.x, total};
	unsigned used = 0;

	for (int i = (int)blockIdx.x, n = 0; i < total; i += w.stride, n++) {
		if (n % 32 == 0)
			walk_find<D_HIDDEN>(&w, job, l, i);
		struct tile t = walk_tile(&w, n % 32);
#pragma unroll 1
		for (int q = 0; q < TILE_CHUNKS; q++, used++) {
			struct chunk c = chunk_of(l, used);
			if ((threadIdx.x & 31) == 0) {
				phase_wait_guarded(c.empty, c.round ^ 1);
				phase_expect(c.full, CHUNK_BYTES);
				box_load(c.at, &job->gu, c.full, chunk_col(&t, q), chunk_row(&t, q),
					 0, 0);
			}
		}
		__syncwarp();
	}
}

/* By a warp: the rows of a chunk before `rows`, in runs of 16 bytes. */
static __device__ __forceinline__ void
store_rows(const struct expert_task *task, uint32_t chunk, int first, int rows, int col)
{
	int lane = threadIdx.x & 31, run = lane & 7;
	size_t f = (size_t)task->f;

	if (col + 8 * run >= task->f)
		return;
#pragma unroll 2
	for (int row = lane >> 3; row < rows; row += 4) {
		uint32_t from = chunk + row * BOX_ROW_BYTES + ((run ^ (row & 7)) << 4);
		k3_bf16 *to =
			(k3_bf16 *)task->out[0] + (size_t)(first + row) * 2 * f + col + 8 * run;
		*reinterpret_cast<uint4 *>(to) = shared_load_16(from);
		*reinterpret_cast<uint4 *>(to + f) = shared_load_16(from + BOX_BYTES);
	}
}

/* By a warp: chunks that are done. */
static __device__ __forceinline__ void
store_chunks(const struct expert_job *job, const struct layout *l, int total)
{
	struct walk w = {0, (int)gridDim.x, total};
	unsigned used = 0;

	for (int i = (int)blockIdx.x, n = 0; i < total; i += w.stride, n++) {
		if (n % 32 == 0)
			walk_find<D_HIDDEN>(&w, job, l, i);
		struct tile t = walk_tile(&w, n % 32);
#pragma unroll 1
		for (int q = 0; q < TILE_CHUNKS; q++, used++) {
			struct chunk c = chunk_of(l, used);
			int row = chunk_row(&t, q), col = chunk_col(&t, q);
			phase_wait_guarded(c.done, c.round);
			if (t.end - row < BOX)
				store_rows(&job->task, c.at, row, t.end - row, col);
			else if ((threadIdx.x & 31) == 0)
				box_store(c.at, &job->dgu, col, row);
			__syncwarp();
			if ((threadIdx.x & 31) == 0)
				phase_arrive(c.empty);
		}
	}
}

/* What a thread says to matrix instructions: its row of a box and half of its first two runs of 16
 * bytes.  The runs 2i and 2i + 1 are at this address ^ 32 i. */
static __device__ __forceinline__ uint32_t
box_place(void)
{
	int lane = threadIdx.x & 31, row = (int)(threadIdx.x >> 5 & 3) * 16 + (lane & 15);

	return (uint32_t)(row * BOX_ROW_BYTES + ((lane >> 4 ^ (row & 7)) << 4));
}

/* A warp is done with a chunk. */
static __device__ __forceinline__ void
chunk_done(const struct chunk *c)
{
	shared_fence();
	__syncwarp();
	if ((threadIdx.x & 31) == 0)
		phase_arrive(c->done);
}

/* dg and du of one element from its dh; returns h dh. */
static __device__ __forceinline__ float
hidden_gradient(float *dg, float *du, float dh, float g, float u, float weight, float b1, float b2)
{
	struct situ_parts p = fast_situ(g, u, b1, b2);
	float a = b1 * p.tg, b = b2 * p.tu, s = dh * p.sg, ws = weight * s;

	*dg = b * ws * ((1.0f - p.tg * p.tg) + a * (1.0f - p.sg));
	*du = a * ws * (1.0f - p.tu * p.tu);
	return a * b * s;
}

/* Pairs of g and u become those of dg and du; returns dot and the sum of h dh. */
static __device__ __forceinline__ float
hidden_pair_gradient(uint32_t *g, uint32_t *u, float dh0, float dh1, float weight, float dot,
		     const struct expert_task *task)
{
	const float b1 = task->beta1, b2 = task->beta2;
	float dg[2], du[2];

	dot += hidden_gradient(dg, du, dh0, pair_first(*g), pair_first(*u), weight, b1, b2);
	dot += hidden_gradient(dg + 1, du + 1, dh1, pair_second(*g), pair_second(*u), weight, b1,
			       b2);
	*g = bf16_pair(dg[0], dg[1]);
	*u = bf16_pair(du[0], du[1]);
	return dot;
}

/* A warp's rows of a chunk, d[FROM] on.  All of g and u is read before the first is used. */
template <int FROM, int N>
static __device__ __forceinline__ void
finish_chunk(uint32_t chunk, const float (&d)[N], const float (&weight)[2], float (&dot)[2],
	     const struct expert_task *task)
{
	const int RUNS = N / 16;
	uint32_t place = chunk + box_place(), g[RUNS][4], u[RUNS][4];

#pragma unroll
	for (int i = 0; i < RUNS; i++) {
		shared_load_matrices(g[i], place ^ 32u * i);
		shared_load_matrices(u[i], (place ^ 32u * i) + BOX_BYTES);
	}
#pragma unroll
	for (int i = 0; i < RUNS; i++)
#pragma unroll
		for (int q = 0; q < 4; q++) {
			const int k = FROM + 8 * i + 2 * q;
			dot[q % 2] = hidden_pair_gradient(&g[i][q], &u[i][q], d[k], d[k + 1],
							  weight[q % 2], dot[q % 2], task);
		}
#pragma unroll
	for (int i = 0; i < RUNS; i++) {
		shared_store_matrices(place ^ 32u * i, g[i]);
		shared_store_matrices((place ^ 32u * i) + BOX_BYTES, u[i]);
	}
}

/* Of the rows of half m: what these columns add to their dwt. */
static __device__ __forceinline__ void
store_dots(float (&dot)[2], const struct expert_task *task, const struct tile *t, int m)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		size_t row = (size_t)(t->row + local_row(m, half));
		dot[half] += __shfl_xor_sync(0xffffffffu, dot[half], 1);
		dot[half] += __shfl_xor_sync(0xffffffffu, dot[half], 2);
		if (row < (size_t)t->end && (threadIdx.x & 3) == 0)
			task->part[row * task->parts + t->col / tile_columns<D_HIDDEN>()] =
				dot[half];
	}
}

/* Tile number n of the block; d and weight are lost. */
template <int N>
static __device__ __forceinline__ void
finish_hidden(const struct expert_task *task, const struct layout *l, const struct tile *t,
	      float (&d)[2][N], float (&weight)[2][2], unsigned n)
{
	unsigned group = n % GROUPS, last = TILE_CHUNKS * n + TILE_CHUNKS - 1;

	phase_wait_guarded(l->ring_turn + 8 * group, (n / GROUPS & 1) ^ (group == 0));
#pragma unroll 1
	for (int m = 0; m < 2; m++) {
		struct chunk left = chunk_of(l, TILE_CHUNKS * n + 2 * m),
			     right = chunk_of(l, TILE_CHUNKS * n + 2 * m + 1);
		float dot[2] = {0, 0};
		phase_wait_guarded(left.full, left.round);
		finish_chunk<0>(left.at, d[0], weight[0], dot, task);
		chunk_done(&left);
		phase_wait_guarded(right.full, right.round);
		if (TILE_CHUNKS * n + 2 * m + 1 == last && (threadIdx.x & 31) == 0)
			phase_arrive(l->ring_turn + 8 * (group ^ 1));
		finish_chunk<N / 2>(right.at, d[0], weight[0], dot, task);
		chunk_done(&right);
		store_dots(dot, task, t, m);
#pragma unroll
		for (int k = 0; k < N; k++)
			d[0][k] = d[1][k];
		weight[0][0] = weight[1][0], weight[0][1] = weight[1][1];
	}
}

#endif
