/* What becomes of the sums of a tile of weight gradients: each warpgroup has those of its half.
 *
 * They leave by pieces that the copy engine takes from shared memory: it stores, or adds, whole
 * lines, and leaves out what is outside of the gradient.  Parts of an expert's rows go to the
 * scratch; the warpgroup that comes last adds all of them in their order, so that who came last
 * does not matter and an element gets one addition.  The traps: rows are latent, and a piece of
 * dW13 must be turned over, in a swizzle that keeps writes off each other's banks; additions in
 * memory take numbers below 2^-126 for zero.
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

/* Where sum `i` of a thread's 16 in a piece is: boxes with the 128-byte swizzle, of dW13 two of 32
 * latent columns, of dW2 one of 32 hidden ones. */
template <int SIDE>
static __device__ __forceinline__ uint32_t
sum_in_piece(int i)
{
	const uint32_t warp = threadIdx.x >> 5 & 3, l = threadIdx.x >> 2 & 7, q = threadIdx.x & 3;
	const uint32_t half = i / 2 % 2, eight = i / 4, odd = i % 2;

	if (SIDE)
		return (16 * warp + 8 * half + l) * 128 + (((2 * eight + (q >> 1)) ^ l) << 4) +
		       (q & 1) * 8 + odd * 4;
	return (warp >> 1) * (PIECE_BYTES / 2) + eight * 1024 + (2 * q + odd) * 128 +
	       (((4 * (warp & 1) + 2 * half + (l >> 2)) ^ (2 * q + odd)) << 4) + (l & 3) * 4;
}

/* Way of a warpgroup's sums to memory: its buffers. */
struct sender {
	uint32_t pieces;
	int group;
};

enum { PIECES = GROUP_FLOATS / (BOX * PIECE_COLS), PIECE_SUMS = BOX * PIECE_COLS / 128 };

/* By one thread: piece `i` of a tile leaves its buffer. */
template <int SIDE>
static __device__ __forceinline__ void
send_piece(const struct sender *s, const struct grad_job *job, const struct grad_tile *t, int i)
{
	const CUtensorMap *out = &job->out[SIDE];
	const int across = GRAD_COLS / PIECE_COLS;
	const bool adds = job->task.accumulate[SIDE];
	uint32_t from = s->pieces + i % PIECE_BUFFERS * PIECE_BYTES;
	int latent = t->row + s->group * GROUP_ROWS + i / across * BOX,
	    hidden = t->col + i % across * PIECE_COLS;

	if (latent < job->task.r && hidden < (SIDE ? 1 : 2) * job->task.f) {
		if (SIDE)
			piece_store(out, from, hidden, latent, t->expert, adds);
		for (int b = 0; b < 2 && !SIDE; b++)
			piece_store(out, from + b * (PIECE_BYTES / 2), latent + 32 * b, hidden,
				    t->expert, adds);
	}
	asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Piece `i`, of whose sums this thread has x[from] on. */
template <int SIDE, int N>
static __device__ __forceinline__ void
pass_piece(const float (&x)[N], int from, const struct sender *s, const struct grad_job *job,
	   const struct grad_tile *t, int i)
{
	uint32_t piece = s->pieces + i % PIECE_BUFFERS * PIECE_BYTES;

	static_assert(PIECES % PIECE_BUFFERS == 0, "a tile begins with the first buffer");
	if ((threadIdx.x & 127) == 0)
		pieces_left<PIECE_BUFFERS - 1>();
	group_sync(s->group + 1, GROUP);
#pragma unroll
	for (int n = 0; n < PIECE_SUMS; n++)
		asm volatile("st.shared.f32 [%0], %1;" ::"r"(piece + sum_in_piece<SIDE>(n)),
			     "f"(x[from + n])
			     : "memory");
	shared_fence();
	group_sync(s->group + 1, GROUP);
	if ((threadIdx.x & 127) == 0)
		send_piece<SIDE>(s, job, t, i);
}

/* Number of a warpgroup's tile among those of all parts.  An expert of more than one part has more
 * rows than a part, so twice its first row over the rows of a part leaves room for all parts
 * before. */
static __device__ __forceinline__ size_t
sums_number(const struct grad_job *job, const struct grad_tile *t, int row0, int group)
{
	int per_row = ((t->side ? 1 : 2) * job->task.f + GRAD_COLS - 1) / GRAD_COLS;
	size_t before = 2 * (size_t)row0 / job->task.part_rows;
	int tile =
		(t->side ? job->tiles[0] : 0) + t->row / GRAD_ROWS * per_row + t->col / GRAD_COLS;

	return (before * (job->tiles[0] + job->tiles[1]) + tile) * GROUPS + group;
}

/* Where this thread's share of a part's sums is in the scratch, in runs of four. */
static __device__ __forceinline__ float4 *
part_sums(const struct grad_job *job, size_t number, int part)
{
	size_t step = (size_t)(job->tiles[0] + job->tiles[1]) * GROUPS;

	return (float4 *)job->task.part + (number + part * step) * (GROUP_FLOATS / 4) +
	       (threadIdx.x & 127);
}

/* These sums go to the scratch.  True in the group that comes last. */
template <int N>
static __device__ __forceinline__ bool
leave_part(const float (&d)[2][N], const struct grad_job *job, const struct grad_tile *t,
	   size_t number, int *last, int group)
{
	float4 *to = part_sums(job, number, t->part);
	const float *x = &d[0][0];

#pragma unroll
	for (int i = 0; i < N / 2; i++)
		to[i * 128] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
	__threadfence();
	group_sync(group + 1, GROUP);
	if ((threadIdx.x & 127) == 0)
		*last = atomicAdd(&job->task.arrived[number], 1) == t->parts - 1;
	group_sync(group + 1, GROUP);
	if (!*last)
		return false;
	__threadfence();
	return true;
}

/* Pieces that are joined together, as each part's loads wait for memory. */
enum { JOINED = 3 };

/* x = sums of JOINED pieces over all parts, in their order. */
static __device__ __forceinline__ void
join_pieces(float (&x)[JOINED * PIECE_SUMS], const float4 *from, size_t step, int parts)
{
	const int runs = JOINED * PIECE_SUMS / 4;
	float4 next[runs];

#pragma unroll
	for (int q = 0; q < 4 * runs; q++)
		x[q] = 0;
#pragma unroll
	for (int q = 0; q < runs; q++)
		next[q] = __ldcg(from + q * 128);
#pragma unroll 1
	for (int p = 1; p <= parts; p++) {
		from += step;
#pragma unroll
		for (int q = 0; q < runs; q++) {
			float4 now = next[q];
			if (p < parts)
				next[q] = __ldcg(from + q * 128);
			x[4 * q] += now.x, x[4 * q + 1] += now.y;
			x[4 * q + 2] += now.z, x[4 * q + 3] += now.w;
		}
	}
}

template <int SIDE>
static __device__ __forceinline__ void
finish_parts(const struct sender *s, const struct grad_job *job, const struct grad_tile *t,
	     size_t number)
{
	const float4 *from = part_sums(job, number, 0);
	size_t step = part_sums(job, number, 1) - from;

	static_assert(PIECES % JOINED == 0, "all pieces are joined");
#pragma unroll 1
	for (int i = 0; i < PIECES; i += JOINED) {
		float x[JOINED * PIECE_SUMS];
		join_pieces(x, from + i * (PIECE_SUMS / 4) * 128, step, t->parts);
#pragma unroll
		for (int j = 0; j < JOINED; j++)
			pass_piece<SIDE>(x, j * PIECE_SUMS, s, job, t, i + j);
	}
}

template <int SIDE, int N>
static __device__ __forceinline__ void
finish_side(const float (&d)[2][N], const struct sender *s, const struct grad_job *job,
	    const struct grad_tile *t, unsigned char *base)
{
	if (t->parts == 1) {
#pragma unroll
		for (int i = 0; i < PIECES; i++)
			pass_piece<SIDE>(d[i / (N / PIECE_SUMS)], i % (N / PIECE_SUMS) * PIECE_SUMS,
					 s, job, t, i);
	} else {
		const int *offs = grad_experts_of(base, job->task.experts).offs;
		size_t number = sums_number(job, t, offs[t->expert] - offs[0], s->group);
		if (!leave_part(d, job, t, number, (int *)(base + GRAD_LAST_AT) + s->group,
				s->group))
			return;
		finish_parts<SIDE>(s, job, t, number);
	}
}

template <int N>
static __device__ __forceinline__ void
finish_grad(const float (&d)[2][N], const struct sender *s, const struct grad_job *job,
	    const struct grad_tile *t, unsigned char *base)
{
	if (t->side)
		finish_side<1>(d, s, job, t, base);
	else
		finish_side<0>(d, s, job, t, base);
}

#endif
