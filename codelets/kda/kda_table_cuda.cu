/* The table of chunks of a tile: segments cut in 64 rows from their own first row, so that results
 * do not depend on what else is in the tile. One block; a thread has a run of segments. */
#include "kda_chunk.cuh"

enum { THREADS = 1024 };

/* Sums of x and y over the threads before this one. */
static __device__ void
sums_before(int *x, int *y)
{
	__shared__ int sum_x[THREADS], sum_y[THREADS];
	int own_x = *x, own_y = *y, i = (int)threadIdx.x;

	sum_x[i] = own_x;
	sum_y[i] = own_y;
	__syncthreads();
	for (int step = 1; step < THREADS; step *= 2) {
		int add_x = i >= step ? sum_x[i - step] : 0,
		    add_y = i >= step ? sum_y[i - step] : 0;

		__syncthreads();
		sum_x[i] += add_x;
		sum_y[i] += add_y;
		__syncthreads();
	}
	*x = sum_x[i] - own_x;
	*y = sum_y[i] - own_y;
}

static __global__ void
make_table(int *table, const int32_t *layout)
{
	const int32_t *seg = layout + K3_TL_HEAD + 2 * (ptrdiff_t)layout[K3_TL_ROWS];
	int4 *entry = reinterpret_cast<int4 *>(table + KDA_TABLE_HEAD);
	int segments = layout[K3_TL_SEGMENTS], run = (segments + THREADS - 1) / THREADS;
	int from = (int)threadIdx.x * run, to = min(from + run, segments), chunks = 0, slots = 0;

	for (int s = from; s < to; s++) {
		int n = (seg[s + 1] - seg[s] + KDA_CHUNK - 1) / KDA_CHUNK;

		chunks += n;
		slots += max(n - 1, 0);
	}
	int mine = chunks;
	sums_before(&chunks, &slots);
	if (threadIdx.x == THREADS - 1) {
		table[0] = chunks + mine;
		table[1] = chunks + mine == 0 && segments <= 1;
	}
	for (int s = from; s < to; s++)
		for (int r = seg[s]; r < seg[s + 1]; r += KDA_CHUNK) {
			bool begins = r == seg[s], ends = seg[s + 1] - r <= KDA_CHUNK;

			entry[chunks++] = make_int4(r, min(seg[s + 1] - r, (int)KDA_CHUNK),
						    !begins  ? slots - 1
						    : s == 0 ? KDA_OUTSIDE
							     : KDA_NONE,
						    !ends		? slots
						    : s + 1 == segments ? KDA_OUTSIDE
									: KDA_NONE);
			slots += !ends;
		}
}

void
k3i_kda_table(const struct kda_task *x, const struct k3_cuda *cuda)
{
	make_table<<<1, THREADS, 0, (cudaStream_t)cuda->stream>>>(x->work.table, x->layout);
	K3_CUDA_LAUNCHED("make_table");
}
