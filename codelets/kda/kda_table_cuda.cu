/* The table of chunks of a tile: segments cut in 64 rows from their own first row, so that results
 * do not depend on what else is in the tile.
 *
 * One block; a thread has a run of segments.  A segment of one chunk is written by its thread, a
 * longer one by the warp, as all of the tile may be one document.
 */
#include "kda_chunk.cuh"

enum { THREADS = 1024, WARPS = THREADS / 32 };

/* Sums of x and y over the threads before this one. */
static __device__ int2
sums_before(int x, int y)
{
	__shared__ int2 warps[WARPS];
	int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
	int2 sum = make_int2(x, y), before = make_int2(0, 0);

#pragma unroll
	for (int step = 1; step < 32; step *= 2) {
		int add_x = __shfl_up_sync(0xffffffffu, sum.x, step),
		    add_y = __shfl_up_sync(0xffffffffu, sum.y, step);

		sum.x += lane >= step ? add_x : 0;
		sum.y += lane >= step ? add_y : 0;
	}
	if (lane == 31)
		warps[warp] = sum;
	__syncthreads();
	for (int w = 0; w < warp; w++) {
		before.x += warps[w].x;
		before.y += warps[w].y;
	}
	return make_int2(before.x + sum.x - x, before.y + sum.y - y);
}

/* A segment: its rows, its first chunk and slot in the table, where its states come from and go. */
struct segment {
	int from, to, chunk, slot, enters, leaves;
};

static __device__ __forceinline__ int
chunks_of(const struct segment &s)
{
	return (s.to - s.from + KDA_CHUNK - 1) / KDA_CHUNK;
}

static __device__ __forceinline__ void
write_entry(int4 *entry, const struct segment &s, int i)
{
	int row = s.from + i * KDA_CHUNK, rest = s.to - row;

	entry[s.chunk + i] =
		make_int4(row, min(rest, (int)KDA_CHUNK), i == 0 ? s.enters : s.slot + i - 1,
			  rest <= KDA_CHUNK ? s.leaves : s.slot + i);
}

/* The warp writes the segment of one of its lanes. */
static __device__ __forceinline__ void
write_by_warp(int4 *entry, const struct segment &own, int lane)
{
	struct segment s;

	s.from = __shfl_sync(0xffffffffu, own.from, lane);
	s.to = __shfl_sync(0xffffffffu, own.to, lane);
	s.chunk = __shfl_sync(0xffffffffu, own.chunk, lane);
	s.slot = __shfl_sync(0xffffffffu, own.slot, lane);
	s.enters = __shfl_sync(0xffffffffu, own.enters, lane);
	s.leaves = __shfl_sync(0xffffffffu, own.leaves, lane);
	for (int i = (int)threadIdx.x & 31; i < chunks_of(s); i += 32)
		write_entry(entry, s, i);
}

static __global__ void
__launch_bounds__(THREADS) make_table(int *table, const int32_t *layout)
{
	const int32_t *seg = layout + K3_TL_HEAD + 2 * (ptrdiff_t)layout[K3_TL_ROWS];
	int4 *entry = reinterpret_cast<int4 *>(table + KDA_TABLE_HEAD);
	int segments = layout[K3_TL_SEGMENTS], run = (segments + THREADS - 1) / THREADS;
	int first = (int)threadIdx.x * run, chunks = 0, slots = 0;
	struct segment s = {};

	for (int i = first; i < min(first + run, segments); i++) {
		int n = (seg[i + 1] - seg[i] + KDA_CHUNK - 1) / KDA_CHUNK;

		chunks += n;
		slots += max(n - 1, 0);
	}
	int2 before = sums_before(chunks, slots);
	if (threadIdx.x == THREADS - 1) {
		table[0] = before.x + chunks;
		table[1] = before.x + chunks == 0 && segments <= 1;
	}
	s.chunk = before.x;
	s.slot = before.y;
	for (int i = first; i < first + run; i++) {
		bool there = i < segments;

		s.from = there ? seg[i] : 0;
		s.to = there ? seg[i + 1] : 0;
		s.enters = i == 0 ? KDA_OUTSIDE : KDA_NONE;
		s.leaves = i + 1 == segments ? KDA_OUTSIDE : KDA_NONE;
		int n = chunks_of(s);
		if (n == 1)
			write_entry(entry, s, 0);
		for (unsigned longer = __ballot_sync(0xffffffffu, n > 1); longer;
		     longer &= longer - 1)
			write_by_warp(entry, s, __ffs((int)longer) - 1);
		s.chunk += n;
		s.slot += max(n - 1, 0);
	}
}

void
k3i_kda_table(const struct kda_task *x, const struct k3_cuda *cuda)
{
	make_table<<<1, THREADS, 0, (cudaStream_t)cuda->stream>>>(x->work.table, x->layout);
	K3_CUDA_LAUNCHED("make_table");
}
