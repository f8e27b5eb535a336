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

/** From global memory, zero where there is nothing. */
static __device__ __forceinline__ void
piece_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int col, int row, int matrix)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
		     "l"(map), "r"(barrier), "r"(col), "r"(row), "r"(matrix)
		     : "memory");
}

static __device__ __forceinline__ void
piece_expect(const CUtensorMap *map, int col, int row, int matrix)
{
	asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global [%0, {%1, %2, %3}];" ::"l"(map),
		     "r"(col), "r"(row), "r"(matrix)
		     : "memory");
}

/** The pieces that were sent before the last N have left their buffers. */
template <int N>
static __device__ __forceinline__ void
pieces_left(void)
{
	asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

/* *to = x, or += if `adds` */
static __device__ __forceinline__ void
shared_put(uint32_t to, float x, bool adds)
{
	float old = 0;

	if (adds)
		asm volatile("ld.shared.f32 %0, [%1];" : "=f"(old) : "r"(to) : "memory");
	x += adds ? old : 0;
	asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}

/* d[from] on: 64 latent rows and 32 columns as boxes with the 128-byte swizzle: of dW13 two of 32 latent
 * columns, of dW2 one of 32 hidden ones. */
template <int SIDE, int ADDS, int N>
static __device__ __forceinline__ void
stage_piece(uint32_t piece, const float (&d)[N], int from)
{
	const uint32_t warp = threadIdx.x >> 5 & 3, l = threadIdx.x >> 2 & 7, q = threadIdx.x & 3;
	uint32_t to[16];
	float old[16];

#pragma unroll
	for (int i = 0; i < 16; i++) {
		const int half = i / 2 % 2, eight = i / 4, odd = i % 2;
		if (SIDE)
			to[i] = piece + (16 * warp + 8 * half + l) * 128 +
				(((2 * eight + (q >> 1)) ^ l) << 4) + (q & 1) * 8 + odd * 4;
		else
			to[i] = piece + (warp >> 1) * (PIECE_BYTES / 2) + eight * 1024 + (l & 3) * 4 +
				(2 * q + odd) * 128 +
				(((4 * (warp & 1) + 2 * half + (l >> 2)) ^ (2 * q + odd)) << 4);
		old[i] = 0;
		if (ADDS)
			asm volatile("ld.shared.f32 %0, [%1];" : "=f"(old[i]) : "r"(to[i]) : "memory");
	}
#pragma unroll
	for (int i = 0; i < 16; i++) {
		float x = ADDS ? d[from + i] + old[i] : d[from + i];
		asm volatile("st.shared.f32 [%0], %1;" ::"r"(to[i]), "f"(x) : "memory");
	}
}

/* Way of a warpgroup's sums to memory. */
struct sender {
	uint32_t pieces, olds; /* buffers; barriers of what was there, one for each */
	uint32_t tiles;	       /* that were added */
	int group;
};

enum { PIECES = GROUP_FLOATS / (BOX * PIECE_COLS), PIECES_AHEAD = PIECE_BUFFERS - 2 };

/* First latent and hidden index of a piece. */
static __device__ __forceinline__ void
piece_origin(int *latent, int *hidden, const struct grad_tile *t, int group, int i)
{
	const int across = GRAD_COLS / PIECE_COLS;

	*latent = t->row + group * GROUP_ROWS + i / across * BOX;
	*hidden = t->col + i % across * PIECE_COLS;
}

/* By one thread: what is there comes to the piece's buffer, whose last piece has left. */
template <int SIDE>
static __device__ __forceinline__ void
ask_piece(const struct sender *s, const struct grad_job *job, const struct grad_tile *t, int i)
{
	const CUtensorMap *out = &job->out[SIDE];
	uint32_t to = s->pieces + i % PIECE_BUFFERS * PIECE_BYTES,
		 bar = s->olds + i % PIECE_BUFFERS * 8;
	int latent, hidden;

	piece_origin(&latent, &hidden, t, s->group, i);
	barrier_expect(bar, PIECE_BYTES);
	if (SIDE)
		piece_load(to, out, bar, hidden, latent, t->expert);
	for (int b = 0; b < 2 && !SIDE; b++)
		piece_load(to + b * (PIECE_BYTES / 2), out, bar, latent + 32 * b, hidden, t->expert);
}

template <int SIDE>
static __device__ __forceinline__ void
send_piece(const struct sender *s, const struct grad_job *job, const struct grad_tile *t, int i)
{
	const CUtensorMap *out = &job->out[SIDE];
	uint32_t from = s->pieces + i % PIECE_BUFFERS * PIECE_BYTES;
	int latent, hidden;
#ifdef ADD_REDUCE
	bool adds = job->task.accumulate[SIDE];
#else
	bool adds = false;
#endif

	piece_origin(&latent, &hidden, t, s->group, i);
	if (latent < job->task.r && hidden < (SIDE ? 1 : 2) * job->task.f) {
		if (SIDE)
			piece_store(out, from, hidden, latent, t->expert, adds);
		for (int b = 0; b < 2 && !SIDE; b++)
			piece_store(out, from + b * (PIECE_BYTES / 2), latent + 32 * b, hidden,
				    t->expert, adds);
	}
	asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Before a tile is multiplied, by one thread: what it adds to comes nearer. */
template <int SIDE>
static __device__ __forceinline__ void
expect_sums(const struct sender *s, const struct grad_job *job, const struct grad_tile *t)
{
	const CUtensorMap *out = &job->out[SIDE];
	int latent, hidden;

	for (int i = 0; i < PIECES; i++) {
		piece_origin(&latent, &hidden, t, s->group, i);
		if (latent >= job->task.r || hidden >= (SIDE ? 1 : 2) * job->task.f)
			continue;
		if (SIDE)
			piece_expect(out, hidden, latent, t->expert);
		for (int b = 0; b < 2 && !SIDE; b++)
			piece_expect(out, latent + 32 * b, hidden, t->expert);
	}
}

template <int SIDE, int ADDS, int N>
static __device__ __forceinline__ void
send_sums(const float (&d)[2][N], struct sender *s, const struct grad_job *job,
	  const struct grad_tile *t)
{
	const bool leads = (threadIdx.x & 127) == 0;

	static_assert(PIECES % PIECE_BUFFERS == 0, "a tile begins with the first buffer");
	if (ADDS && leads) {
		pieces_left<0>();
		for (int i = 0; i < PIECES_AHEAD; i++)
			ask_piece<SIDE>(s, job, t, i);
	}
#pragma unroll
	for (int i = 0; i < PIECES; i++) {
		if (leads)
			pieces_left<ADDS ? 1 : PIECE_BUFFERS - 1>();
		if (ADDS && leads && i + PIECES_AHEAD < PIECES)
			ask_piece<SIDE>(s, job, t, i + PIECES_AHEAD);
		if (ADDS)
			phase_wait(s->olds + i % PIECE_BUFFERS * 8,
				   (PIECES / PIECE_BUFFERS * s->tiles + i / PIECE_BUFFERS) & 1);
		else
			group_sync(s->group);
		stage_piece<SIDE, ADDS>(s->pieces + i % PIECE_BUFFERS * PIECE_BYTES,
					d[i / (PIECES / 2)], i % (PIECES / 2) * 16);
		shared_publish();
		group_sync(s->group);
		if (leads)
			send_piece<SIDE>(s, job, t, i);
	}
	s->tiles += ADDS;
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

template <int SIDE, int N>
static __device__ __forceinline__ void
finish_side(float (&d)[2][N], struct sender *s, const struct grad_job *job,
	    const struct grad_tile *t)
{
#ifndef ADD_REDUCE
	if (job->task.accumulate[SIDE])
		send_sums<SIDE, 1>(d, s, job, t);
	else
#endif
		send_sums<SIDE, 0>(d, s, job, t);
}

template <int N>
static __device__ __forceinline__ void
finish_grad(float (&d)[2][N], struct sender *s, const struct grad_job *job,
	    const struct grad_tile *t, unsigned char *base)
{
	if (t->parts > 1 && !join_parts(d, job, t, base, s->group))
		return;
	if (t->side)
		finish_side<1>(d, s, job, t);
	else
		finish_side<0>(d, s, job, t);
}

#endif
