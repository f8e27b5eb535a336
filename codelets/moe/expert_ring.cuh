/* Finished tiles on their way to memory (expert_wgmma.cu): a ring of chunks in shared memory between
 * the warpgroups and the copy engine.
 *
 * A chunk is 64 rows of two boxes of 64 columns: gate and up of the same columns, or neighbours.  One warp
 * loads the gate and up that a tile needs while it is multiplied; its warpgroup replaces them by
 * their gradients; another warp has the copy engine store them as whole lines.  So nobody who multiplies waits
 * for memory.  The traps: chunks are used in the order of tiles, and a warpgroup
 * must not wait for one of a place's phases while the other has not seen the phase before;
 * rows of a box that belong to the next expert must not be stored, so that such chunks go row by row.
 */
#ifndef K3_MOE_EXPERT_RING_CUH
#define K3_MOE_EXPERT_RING_CUH
#include "expert_finish.cuh"

/* The place that is used as number `used`. */
struct chunk {
	uint32_t at, full, done, empty;
	int round; /* parity of how often the place was used */
};

template <int PRODUCT>
static __device__ __forceinline__ struct chunk
chunk_of(const struct layout *l, unsigned used)
{
	const unsigned CHUNKS = chunks_of<PRODUCT>();
	unsigned place = used % CHUNKS, bars = l->ring_bars + 8 * place;
	struct chunk c;

	c.at = l->ring + place * CHUNK_BYTES;
	c.full = bars;
	c.done = bars + 8 * CHUNKS;
	c.empty = bars + 16 * CHUNKS;
	c.round = used / CHUNKS & 1;
	return c;
}

/* By one thread of the block. */
template <int PRODUCT>
static __device__ __forceinline__ void
ring_init(const struct layout *l)
{
	for (unsigned i = 0; i < chunks_of<PRODUCT>(); i++) {
		struct chunk c = chunk_of<PRODUCT>(l, i);
		barrier_init(c.full, 1);
		barrier_init(c.done, 4);
		barrier_init(c.empty, 1);
	}
	for (int i = 0; i < GROUPS; i++)
		barrier_init(l->ring_turn + 8 * i, 4);
}

/* By a warp: gate and up of the tiles, as far ahead as the ring goes. */
template <int PRODUCT>
static __device__ __forceinline__ void
load_chunks(const struct expert_job *job, const struct layout *l, int total)
{
	struct walk w = {0, (int)gridDim.x, total};
	unsigned used = 0;

	for (int i = (int)blockIdx.x, n = 0; i < total; i += w.stride, n++) {
		if (n % 32 == 0)
			walk_find<PRODUCT>(&w, job, l, i);
		struct tile t = walk_tile(&w, n % 32);
#pragma unroll 1
		for (int q = 0; q < TILE_CHUNKS; q++, used++) {
			struct chunk c = chunk_of<PRODUCT>(l, used);
			if ((threadIdx.x & 31) == 0) {
				barrier_wait(c.empty, c.round ^ 1);
				barrier_expect(c.full, CHUNK_BYTES);
				box_load(c.at, &job->gu, c.full, t.col + q % 2 * BOX,
					 t.row + q / 2 * BOX, 0, 0);
			}
		}
		__syncwarp();
	}
}

/* Where a chunk goes. */
struct target {
	int row, end; /* first row, first row that is not there */
	int col[2], width;
	size_t at[2], pitch; /* of the boxes' first columns: elements from the start of a row; of a row */
};

/* Chunk number q of a tile. */
template <int PRODUCT>
static __device__ __forceinline__ struct target
target_of(const struct expert_job *job, const struct tile *t, int q)
{
	const bool pair = PRODUCT == D_HIDDEN;
	struct target to;

	to.row = t->row + q / 2 * BOX;
	to.end = t->end;
	to.width = job->width;
	to.pitch = (size_t)job->width * (pair ? 2 : 1);
	to.col[0] = t->col + q % 2 * (pair ? BOX : 2 * BOX);
	to.col[1] = to.col[0] + (pair ? 0 : BOX);
	to.at[0] = (size_t)to.col[0];
	to.at[1] = (size_t)to.col[1] + (pair ? to.width : 0);
	return to;
}

/* By a warp: the rows that are there, in runs of 16 bytes. */
static __device__ __forceinline__ void
store_rows(k3_bf16 *out, uint32_t chunk, const struct target *to)
{
	const int EACH = 4;
	int lane = threadIdx.x & 31, run = lane & 7;

#pragma unroll 1
	for (int part = 0; part < 8; part++) {
		int b = part / 4, row0 = part % 4 * 16 + (lane >> 3);
		uint4 x[EACH];
#pragma unroll
		for (int i = 0; i < EACH; i++) {
			int row = row0 + 4 * i;
			x[i] = shared_load_16(chunk + b * BOX_BYTES + row * BOX_ROW_BYTES +
					      ((run ^ (row & 7)) << 4));
		}
#pragma unroll
		for (int i = 0; i < EACH; i++) {
			int row = to->row + row0 + 4 * i;
			if (row < to->end && to->col[b] + 8 * run < to->width)
				*reinterpret_cast<uint4 *>(out + row * to->pitch + to->at[b] +
							   8 * run) = x[i];
		}
	}
}

/* By one thread. */
template <int PRODUCT>
static __device__ __forceinline__ void
store_boxes(const struct expert_job *job, uint32_t chunk, const struct target *to)
{
	box_store(chunk, &job->out, to->col[0], to->row);
	if (PRODUCT != D_HIDDEN && to->col[1] < to->width)
		box_store(chunk + BOX_BYTES, &job->out, to->col[1], to->row);
	box_stores_read();
}

/* By a warp: chunks that are done. */
template <int PRODUCT>
static __device__ __forceinline__ void
store_chunks(const struct expert_job *job, const struct layout *l, int total)
{
	struct walk w = {0, (int)gridDim.x, total};
	unsigned used = 0;

	for (int i = (int)blockIdx.x, n = 0; i < total; i += w.stride, n++) {
		if (n % 32 == 0)
			walk_find<PRODUCT>(&w, job, l, i);
		struct tile t = walk_tile(&w, n % 32);
#pragma unroll 1
		for (int q = 0; q < TILE_CHUNKS; q++, used++) {
			struct chunk c = chunk_of<PRODUCT>(l, used);
			struct target to = target_of<PRODUCT>(job, &t, q);
			barrier_wait(c.done, c.round);
			if (LSU || to.row + BOX > to.end)
				store_rows((k3_bf16 *)job->task.out[0], c.at, &to);
			else if ((threadIdx.x & 31) == 0)
				store_boxes<PRODUCT>(job, c.at, &to);
			__syncwarp();
			if ((threadIdx.x & 31) == 0)
				barrier_arrive(c.empty);
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
	shared_publish();
	__syncwarp();
	if ((threadIdx.x & 31) == 0)
		barrier_arrive(c->done);
}

/* dg and du of one element from its dh; returns h dh. */
static __device__ __forceinline__ float
hidden_gradient(float *dg, float *du, float dh, float g, float u, float weight, float b1, float b2)
{
	struct situ_parts p = fast_situ(g, u, b1, b2);
	float a = b1 * p.tg, b = b2 * p.tu, h = a * p.sg;

	*dg = weight * dh * (b * p.sg * ((1.0f - p.tg * p.tg) + a * (1.0f - p.sg)));
	*du = weight * dh * (h * (1.0f - p.tu * p.tu));
	return h * b * dh;
}

/* A pair of g and u becomes that of dg and du; returns the sum of h dh. */
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

/* Columns of a half tile, whose g and u are at `place`. */
template <int PIECE>
static __device__ __forceinline__ void
hidden_piece(uint32_t place, const float (&x)[PIECE], const float (&weights)[2], float (&dot)[2],
	     const struct expert_task *task)
{
	const int RUNS = PIECE / 8;
	uint32_t g[RUNS][4], u[RUNS][4];

#pragma unroll
	for (int i = 0; i < RUNS; i++) {
		shared_load_matrices(g[i], place ^ 32u * i);
		shared_load_matrices(u[i], (place ^ 32u * i) + BOX_BYTES);
	}
#pragma unroll
	for (int i = 0; i < RUNS; i++)
#pragma unroll
		for (int q = 0; q < 4; q++) {
			const int k = 8 * i + 2 * q;
			dot[q % 2] = hidden_pair_gradient(&g[i][q], &u[i][q], x[k], x[k + 1],
							  weights[q % 2], dot[q % 2], task);
		}
#pragma unroll
	for (int i = 0; i < RUNS; i++) {
		shared_store_matrices(place ^ 32u * i, g[i]);
		shared_store_matrices((place ^ 32u * i) + BOX_BYTES, u[i]);
	}
}

/* Of the rows of half m: what this column block adds to their dwt. */
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
		dot[half] = 0;
	}
}

template <int N>
static __device__ __forceinline__ void
ring_hidden(const struct expert_job *job, const struct layout *l, const struct tile *t,
	    float (&d)[2][N], float (&weight)[2][2], unsigned used)
{
	unsigned n = used / TILE_CHUNKS, group = n % GROUPS, round = n / GROUPS;
	float dot[2] = {0, 0};

	barrier_wait(l->ring_turn + 8 * group, (round & 1) ^ (group == 0));
#pragma unroll 1
	for (int m = 0; m < 2; m++) {
#pragma unroll
		for (int j = 0; j < 2; j++) {
			struct chunk c = chunk_of<D_HIDDEN>(l, used + 2 * m + j);
			float x[N / 2];
			barrier_wait(c.full, c.round);
			if (m && j && (threadIdx.x & 31) == 0)
				barrier_arrive(l->ring_turn + 8 * (group ^ 1));
#pragma unroll
			for (int k = 0; k < N / 2; k++)
				x[k] = d[0][j * (N / 2) + k];
			hidden_piece(c.at + box_place(), x, weight[0], dot, &job->task);
			chunk_done(&c);
		}
		store_dots(dot, &job->task, t, m);
#pragma unroll
		for (int k = 0; k < N; k++)
			d[0][k] = d[1][k];
		weight[0][0] = weight[1][0], weight[0][1] = weight[1][1];
	}
}
/* Half of a tile as it is, by one of the groups. */
template <int PRODUCT, int N>
static __device__ __forceinline__ void
ring_rows(const struct layout *l, const float (&d)[2][N], unsigned used, int group)
{
#pragma unroll
	for (int m = 0; m < 2; m++) {
		struct chunk c = chunk_of<PRODUCT>(l, used + GROUPS * m + group);
		uint32_t place = c.at + box_place();
		barrier_wait(c.empty, c.round ^ 1);
#pragma unroll
		for (int i = 0; i < N / 8; i++) {
			uint32_t w[4];
#pragma unroll
			for (int q = 0; q < 4; q++)
				w[q] = bf16_pair(d[m][8 * i + 2 * q], d[m][8 * i + 2 * q + 1]);
			shared_store_matrices((place ^ 32u * (i % 4)) + i / 4 * BOX_BYTES, w);
		}
		chunk_done(&c);
	}
}

#endif
