/* What becomes of the sums of a tile of weight gradients: each warpgroup has those of its half.
 *
 * They leave by pieces that the copy engine takes from shared memory, while the next tile is multiplied:
 * it stores, or adds to, whole lines, and leaves out what is outside of the gradient.  Parts of an
 * expert's rows go to the scratch; the warpgroup that comes last adds all of them in their order, so
 * that who came last does not matter and an element gets one addition.  The trap: rows are latent,
 * and a piece of dW13 must be turned over; the swizzle keeps both ways off each other's banks.
 */
#ifndef K3_MOE_EXPERT_WEIGHTS_FINISH_CUH
#define K3_MOE_EXPERT_WEIGHTS_FINISH_CUH
#include "expert_weights_tiles.cuh"

/** To global memory, stored or added. */
static __device__ __forceinline__ void
piece_store(const CUtensorMap *map, uint32_t from, int col, int row, int matrix, bool adds)
{
	if (adds)
		asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group"
			     " [%0, {%2, %3, %4}], [%1];" ::"l"(map),
			     "r"(from), "r"(col), "r"(row), "r"(matrix)
			     : "memory");
	else
		asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group"
			     " [%0, {%2, %3, %4}], [%1];" ::"l"(map),
			     "r"(from), "r"(col), "r"(row), "r"(matrix)
			     : "memory");
}

/** The pieces that were sent before the last N have left their buffers. */
template <int N>
static __device__ __forceinline__ void
pieces_left(void)
{
	asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

static __device__ __forceinline__ void
shared_store(uint32_t to, float x)
{
	asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}

static __device__ __forceinline__ void
shared_store(uint32_t to, float x, float y)
{
	asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}

/* d[from] on: 64 latent rows and 32 columns as boxes with the 128-byte swizzle: of dW13 two of 32 latent
 * columns, of dW2 one of 32 hidden ones. */
template <int SIDE, int N>
static __device__ __forceinline__ void
stage_piece(uint32_t piece, const float (&d)[N], int from)
{
	const uint32_t warp = threadIdx.x >> 5 & 3, l = threadIdx.x >> 2 & 7, q = threadIdx.x & 3;

#pragma unroll
	for (int i = 0; i < 16; i += 2) {
		const int half = i / 2 % 2, eight = i / 4;
		float x = d[from + i], y = d[from + i + 1];
		if (SIDE) {
			uint32_t row = 16 * warp + 8 * half + l;
			shared_store(piece + row * 128 + (((2 * eight + (q >> 1)) ^ l) << 4) +
					     (q & 1) * 8,
				     x, y);
		} else {
			uint32_t to = piece + (warp >> 1) * (PIECE_BYTES / 2) + eight * 1024 +
				      (l & 3) * 4;
			uint32_t at = 4 * (warp & 1) + 2 * half + (l >> 2);
			shared_store(to + 2 * q * 128 + ((at ^ (2 * q)) << 4), x);
			shared_store(to + (2 * q + 1) * 128 + ((at ^ (2 * q + 1)) << 4), y);
		}
	}
}

template <int SIDE, int N>
static __device__ __forceinline__ void
send_piece(uint32_t piece, const float (&d)[N], int from, const struct grad_job *job,
	   const struct grad_tile *t, int row, int group)
{
	const bool adds = job->task.accumulate[SIDE];
	const CUtensorMap *out = &job->out[SIDE];
	int col = t->col + 2 * from;

	if ((threadIdx.x & 127) == 0)
		pieces_left<PIECE_BUFFERS - 1>();
	group_sync(group);
	stage_piece<SIDE>(piece, d, from);
	shared_publish();
	group_sync(group);
	if ((threadIdx.x & 127) > 0)
		return;
	if (row < job->task.r && col < (SIDE ? 1 : 2) * job->task.f) {
		if (SIDE)
			piece_store(out, piece, col, row, t->expert, adds);
		for (int i = 0; i < 2 && !SIDE; i++)
			piece_store(out, piece + i * (PIECE_BYTES / 2), row + 32 * i, col,
				    t->expert, adds);
	}
	asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

template <int SIDE, int N>
static __device__ __forceinline__ void
send_sums(const float (&d)[2][N], const struct grad_job *job, const struct grad_tile *t,
	  uint32_t pieces, int group)
{
	static_assert(2 * (N / 16) % PIECE_BUFFERS == 0, "a tile begins with the first buffer");
#pragma unroll
	for (int m = 0; m < 2; m++)
#pragma unroll
		for (int i = 0; i < N / 16; i++)
			send_piece<SIDE>(pieces + (m * (N / 16) + i) % PIECE_BUFFERS * PIECE_BYTES,
					 d[m], 16 * i, job, t, t->row + group * GROUP_ROWS + m * BOX,
					 group);
}

/* Number of a warpgroup's tile among those of all parts.  An expert of more than one part has more rows
 * than a part, so twice its first row over the rows of a part leaves room for all parts before. */
static __device__ __forceinline__ size_t
sums_number(const struct grad_job *job, const struct grad_tile *t, int row0, int group)
{
	int per_row = ((t->side ? 1 : 2) * job->task.f + GRAD_COLS - 1) / GRAD_COLS;
	size_t before = 2 * (size_t)row0 / job->task.part_rows;
	int tile = (t->side ? job->tiles[0] : 0) + t->row / GRAD_ROWS * per_row + t->col / GRAD_COLS;

	return (before * (job->tiles[0] + job->tiles[1]) + tile) * GROUPS + group;
}

/* These sums go to the scratch.  True in the group that comes last: there they are those of all parts. */
template <int N>
static __device__ __forceinline__ bool
join_parts(float (&d)[2][N], const struct grad_job *job, const struct grad_tile *t,
	   unsigned char *base, int group)
{
	const int runs = N / 2;
	int *last = (int *)(base + GRAD_LAST_AT) + group;
	const int *offs = grad_experts_of(base, job->task.experts).offs;
	size_t number = sums_number(job, t, offs[t->expert] - offs[0], group),
	       step = (size_t)(job->tiles[0] + job->tiles[1]) * GROUPS * runs * 128;
	float4 *at = (float4 *)job->task.part + number * runs * 128 + (threadIdx.x & 127);
	float *x = &d[0][0];

#pragma unroll
	for (int i = 0; i < runs; i++)
		at[t->part * step + i * 128] =
			make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
	__threadfence();
	group_sync(group);
	if ((threadIdx.x & 127) == 0)
		*last = atomicAdd(&job->task.arrived[number], 1) == t->parts - 1;
	group_sync(group);
	if (!*last)
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

template <int N>
static __device__ __forceinline__ void
finish_grad(float (&d)[2][N], const struct grad_job *job, const struct grad_tile *t,
	    unsigned char *base, int group)
{
	uint32_t pieces =
		shared_address(base) + GRAD_PIECES_AT + group * PIECE_BUFFERS * PIECE_BYTES;

	if (t->parts > 1 && !join_parts(d, job, t, base, group))
		return;
	if (t->side)
		send_sums<1>(d, job, t, pieces, group);
	else
		send_sums<0>(d, job, t, pieces, group);
}

#endif
