/* What becomes of a finished tile of WEIGHTS (expert_wgmma.cu).
 *
 * Rows of a tile are latent columns: a tile of dW13 is stored turned over, four rows of a column
 * together, one of dW2 as it is, four columns together.  Parts of an expert's rows go to the scratch;
 * the block that comes last adds all of them in their order, so that who came last does not matter.
 * The trap: what is added to is read in runs before anything is stored, or each read would wait for
 * the one before.
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

/* Runs of four floats, `step` apart, those below `n`: stored or added to. */
template <int RUNS>
static __device__ __forceinline__ void
put_runs(float *to, size_t step, int n, const float (&x)[RUNS][4], bool adds)
{
	float4 old[RUNS];

#pragma unroll
	for (int i = 0; i < RUNS; i++)
		old[i] = adds && i < n ? __ldcg(reinterpret_cast<float4 *>(to + i * step))
				       : make_float4(0, 0, 0, 0);
#pragma unroll
	for (int i = 0; i < RUNS; i++)
		if (i < n)
			*reinterpret_cast<float4 *>(to + i * step) =
				make_float4(old[i].x + x[i][0], old[i].y + x[i][1],
					    old[i].z + x[i][2], old[i].w + x[i][3]);
}

enum { RUN_COUNT = 6 };

/* How many of RUN_COUNT runs, `step` apart, begin below `end`. */
static __device__ __forceinline__ int
runs_below(int first, int step, int end)
{
	return end <= first ? 0 : (end - first + step - 1) / step;
}

/* d[row of latent][column of dW13's rows]: four lanes, whose rows follow each other, trade words. */
template <int N>
static __device__ __forceinline__ void
finish_turned(const struct expert_task *task, const struct tile *t, const float (&d)[N], int m)
{
	const int lane = threadIdx.x & 31, place = lane >> 2 & 3;
	size_t r = (size_t)task->r, rows = 2 * (size_t)task->f;
	float *out = (float *)task->out[0] + (size_t)t->expert * rows * r;
	/* of each 16 columns this thread gets one, of the latent rows four */
	int col = t->col + 8 * (place >> 1) + 2 * (lane & 3) + (place & 1);

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int row = t->row + (local_row(m, half) & ~3);
#pragma unroll
		for (int from = 0; from < N; from += 8 * RUN_COUNT) {
			float x[RUN_COUNT][4];
#pragma unroll
			for (int i = 0; i < RUN_COUNT; i++) {
				const int at = from + 8 * i + 2 * half;
				x[i][0] = d[at], x[i][1] = d[at + 1];
				x[i][2] = d[at + 4], x[i][3] = d[at + 5];
				turn<4>(x[i]);
			}
			int first = col + 2 * from;
			put_runs(out + first * r + row, 16 * r,
				 row < t->end ? runs_below(first, 16, (int)rows) : 0, x,
				 task->accumulate[0]);
		}
	}
}

/* d[row of dW2][column]: two lanes trade their halves of two runs of eight. */
template <int N>
static __device__ __forceinline__ void
finish_straight(const struct expert_task *task, const struct tile *t, const float (&d)[N], int m)
{
	const int lane = threadIdx.x & 31, odd = lane & 1;
	size_t f = (size_t)task->f;
	float *out = (float *)task->out[1] + (size_t)t->expert * task->r * f;
	int col = t->col + 8 * odd + 4 * (lane >> 1 & 1);

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int row = t->row + local_row(m, half);
#pragma unroll
		for (int from = 0; from < N; from += 8 * RUN_COUNT) {
			float x[RUN_COUNT][4];
#pragma unroll
			for (int i = 0; i < RUN_COUNT; i++) {
				const int at = from + 8 * i + 2 * half;
#pragma unroll
				for (int q = 0; q < 2; q++) {
					float mine = odd ? d[at + 4 + q] : d[at + q];
					float got = __shfl_xor_sync(
						0xffffffffu, odd ? d[at + q] : d[at + 4 + q], 1);
					x[i][q] = odd ? got : mine;
					x[i][q + 2] = odd ? mine : got;
				}
			}
			int first = col + 2 * from;
			put_runs(out + row * f + first, 16,
				 row < t->end ? runs_below(first, 16, (int)f) : 0, x,
				 task->accumulate[1]);
		}
	}
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
