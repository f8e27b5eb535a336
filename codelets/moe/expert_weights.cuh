/* What becomes of a finished tile of WEIGHTS (expert_wgmma.cu).
 *
 * Rows of a tile are latent columns: a tile of dW13 is stored turned over, one of dW2 as it is.  Parts of
 * an expert's rows go to the scratch; the block that comes last adds all of them in their order, so
 * that who came last does not matter.  The trap: lines must be stored, and read, whole; threads that store
 * what they hold, 16 or 32 bytes of a line, keep the memory busy five times as long.
 */
#ifndef K3_MOE_EXPERT_WEIGHTS_CUH
#define K3_MOE_EXPERT_WEIGHTS_CUH
#include "expert_finish.cuh"

/* Before the tile is computed: what it adds to comes nearer. */
static __device__ __forceinline__ void
expect_weights(const struct expert_task *task, const struct tile *t)
{
	const int cols = tile_columns<WEIGHTS>(), line = 32;
	const int across = t->side ? cols : TILE_ROWS, down = t->side ? TILE_ROWS : cols;
	int row0 = t->side ? t->row : t->col, col0 = t->side ? t->col : t->row;
	int rows = t->side ? task->r : 2 * task->f, width = t->side ? task->f : task->r;
	const float *from = (const float *)task->out[t->side] + (size_t)t->expert * rows * width;

	if (!task->accumulate[t->side])
		return;
	for (int i = threadIdx.x & 127; i < across / line * down; i += 128) {
		int row = row0 + i / (across / line), col = col0 + i % (across / line) * line;
		if (row < rows && col < width)
			asm volatile(
				"prefetch.global.L2 [%0];" ::"l"(from + (size_t)row * width + col));
	}
}

/* 64 latent rows and 32 columns go through shared memory, from which a warp stores whole lines.  SIDE 0:
 * dW13, whose lines run along the latent rows; 1: dW2.  `pitch` keeps writes and reads off each other's
 * banks. */
template <int SIDE, int N>
static __device__ __forceinline__ void
finish_columns(float *out, float *staged, const struct tile *t, const float (&d)[N], int m,
	       int from, const struct expert_task *task, int group)
{
	const int pitch = SIDE ? 40 : 68, runs = SIDE ? 8 : 16;
	const int thread = threadIdx.x & 127, lane = threadIdx.x & 31;
	int rows = SIDE ? task->r : 2 * task->f, width = SIDE ? task->f : task->r;
	int row0 = SIDE ? t->row + BOX * m : t->col + 2 * from,
	    col0 = SIDE ? t->col + 2 * from : t->row + BOX * m;
	float4 old[STAGED_RUNS];

#pragma unroll
	for (int i = 0; i < STAGED_RUNS; i++) {
		int run = thread + 128 * i, row = row0 + run / runs, col = col0 + run % runs * 4;
		old[i] = make_float4(0, 0, 0, 0);
		if (task->accumulate[SIDE] && row < rows && col < width)
			old[i] =
				__ldcg(reinterpret_cast<float4 *>(out + (size_t)row * width + col));
	}
#pragma unroll
	for (int i = 0; i < 16; i += 2) {
		int latent = local_row(0, i / 2 % 2), other = i / 4 * 8 + 2 * (lane & 3);
		float2 x = make_float2(d[from + i], d[from + i + 1]);
		if (SIDE) {
			*reinterpret_cast<float2 *>(staged + latent * pitch + other) = x;
		} else {
			staged[other * pitch + latent] = x.x;
			staged[(other + 1) * pitch + latent] = x.y;
		}
	}
	group_sync(group);
#pragma unroll
	for (int i = 0; i < STAGED_RUNS; i++) {
		int run = thread + 128 * i, row = row0 + run / runs, col = col0 + run % runs * 4;
		float4 x = *reinterpret_cast<const float4 *>(staged + run / runs * pitch +
							     run % runs * 4);
		if (row < rows && col < width)
			*reinterpret_cast<float4 *>(out + (size_t)row * width + col) = make_float4(
				x.x + old[i].x, x.y + old[i].y, x.z + old[i].z, x.w + old[i].w);
	}
	group_sync(group);
}

template <int SIDE, int N>
static __device__ __forceinline__ void
finish_weights(const float (&d)[2][N], const struct expert_task *task, const struct tile *t,
	       float *staged, int group)
{
	float *out = (float *)task->out[SIDE] +
		     (size_t)t->expert * (SIDE ? 1 : 2) * (size_t)task->r * (size_t)task->f;

#pragma unroll
	for (int m = 0; m < 2; m++)
#pragma unroll
		for (int from = 0; from < N; from += 16)
			finish_columns<SIDE>(out, staged, t, d[m], m, from, task, group);
}

/* Number of a tile among those of all parts.  An expert of more than one part has more rows than a part,
 * so twice its first row over the rows of a part leaves room for all parts before. */
static __device__ __forceinline__ size_t
part_number(const struct expert_job *job, const struct tile *t, const struct layout *l, int index)
{
	int each = job->tiles[0] + job->tiles[1];
	size_t before = 2 * (size_t)(l->offs[t->expert] - l->offs[0]) / job->task.part_rows;

	return before * each + index % each;
}

/* These sums go to the scratch.  True in the group that comes last: there they are those of all parts. */
template <int N>
static __device__ __forceinline__ bool
join_parts(float (&d)[2][N], const struct expert_job *job, const struct tile *t,
	   const struct layout *l, int index, int group)
{
	const int runs = N / 2;
	size_t number = part_number(job, t, l, index),
	       step = (size_t)(job->tiles[0] + job->tiles[1]) * runs * 128;
	float4 *at = (float4 *)job->task.part + number * runs * 128 + (threadIdx.x & 127);
	float *x = &d[0][0];

#pragma unroll
	for (int i = 0; i < runs; i++)
		at[t->part * step + i * 128] =
			make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
	__threadfence();
	group_sync(group);
	if ((threadIdx.x & 127) == 0)
		l->last_part[group] = atomicAdd(&job->task.arrived[number], 1) == t->parts - 1;
	group_sync(group);
	if (!l->last_part[group])
		return false;
	__threadfence();
#pragma unroll
	for (int i = 0; i < 2 * N; i++)
		x[i] = 0;
	for (int p = 0; p < t->parts; p++)
#pragma unroll
		for (int i = 0; i < runs; i++) {
			float4 more = __ldcg(&at[p * step + i * 128]);
			x[4 * i] += more.x, x[4 * i + 1] += more.y;
			x[4 * i + 2] += more.z, x[4 * i + 3] += more.w;
		}
	return true;
}

#endif
