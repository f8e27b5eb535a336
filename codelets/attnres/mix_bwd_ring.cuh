/* Attention-residual mix and norm backward, fast: teams of warps walk over tokens, whose rows the
 * copy engine brings into shared memory ahead of them (cuda/ring.cuh).  A team looks three times
 * at its token's values there: for the mix, for the dot products, for the outputs.  The sums over
 * tokens stay in registers; a thread block adds those of its teams.
 *
 * The trap: what is in flight is what fits in shared memory, a few tokens, and a token stays there
 * until its outputs are made.  So many threads share a token, with one pack each where they can. */
#ifndef K3_ATTNRES_MIX_BWD_RING_CUH
#define K3_ATTNRES_MIX_BWD_RING_CUH
#include "mix_bwd_slots.cuh"

/* Threads of a block by packs of a thread: 96 and 128 registers. */
enum { RING_THREADS_ONE = 640, RING_THREADS_TWO = 448 };

struct bwd_task {
	struct k3_pointers<RING_ROWS> row;  /* values, dy, addends, old gradients */
	struct k3_pointers<RING_ROWS> grad; /* of the values */
	struct mix_vectors vec;
	float *part;
	size_t t;
	uint32_t d, rows, values, addends;
	uint32_t olds; /* old gradients among the rows; with `adds` but none, they are read late */
	bool adds;
	uint32_t slots, team_bytes;
};

/* What a thread holds all the time: its columns' weights and sums over tokens. */
template <int PACKS, int N> struct bwd_columns {
	float g[PACKS][N], w[PACKS][N]; /* gamma rho */
	float dw[PACKS][N], e[PACKS][N];
	uint32_t at[PACKS]; /* in a row, bytes */
};

template <typename T, int PACKS, int N>
static __device__ __forceinline__ void
columns_open(struct bwd_columns<PACKS, N> *c, const struct bwd_task &k)
{
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		uint32_t at = (threadIdx.x + p * blockDim.x) * N;
		float rho[N];
		c->at[p] = (at < k.d ? at : k.d) * sizeof(T);
#pragma unroll
		for (int i = 0; i < N; i++)
			c->g[p][i] = c->w[p][i] = c->dw[p][i] = c->e[p][i] = 0;
		if (at >= k.d)
			continue;
		run_load<float, N>(c->g[p], k.vec.gamma + at);
		run_load<float, N>(rho, k.vec.rho + at);
		run_load<float, N>(c->w[p], k.vec.w + at);
#pragma unroll
		for (int i = 0; i < N; i++)
			c->g[p][i] *= rho[i];
	}
}

/* What is added to the gradient of value j, pack at byte `at` of a row whose first byte is `row`.
 */
template <typename T>
static __device__ __forceinline__ void
add_more(float *out, const struct bwd_task &k, const struct row_ring &ring, uint32_t more,
	 uint32_t j, uint32_t at, size_t row)
{
	constexpr int N = k3_pack<T>::n;
	bool last = j + 1 == k.values;
	uint32_t slot = ring_ahead(ring, more, last ? 0 : k.addends + j);
	float x[N];

#pragma unroll 1
	for (uint32_t q = last ? k.addends : k.olds > 0; q > 0; q--) {
		slot_wide<T>(x, slot + at);
		slot = ring_ahead(ring, slot, 1);
#pragma unroll
		for (int i = 0; i < N; i++)
			out[i] += x[i];
	}
	if (last || !k.adds || k.olds || at >= ring.row_bytes)
		return;
	pack_wide<T>(x, *(const uint4 *)((const char *)k.grad.p[j] + row + at));
#pragma unroll
	for (int i = 0; i < N; i++)
		out[i] += x[i];
}

/* Outputs of a thread's pack p; x is the mix, slot the token's first. */
template <typename T, int PACKS, int N>
static __device__ __forceinline__ void
put_pack(struct bwd_columns<PACKS, N> *c, const struct bwd_task &k, const struct row_ring &ring,
	 uint32_t slot, int p, const float *x, float r, float rm, const float *slopes, size_t row)
{
	uint32_t dy = ring_ahead(ring, slot, k.values), more = ring_ahead(ring, dy, 1),
		 at = c->at[p];
	float dx[N];

	slot_wide<T>(dx, dy + at);
#pragma unroll
	for (int i = 0; i < N; i++)
		dx[i] = r * (dx[i] * c->w[p][i] - x[i] * rm);
#pragma unroll 2
	for (uint32_t j = 0; j < k.values; j++, slot = ring_ahead(ring, slot, 1)) {
		float4 a = *(const float4 *)(slopes + 4 * j); /* share, scale, shrink */
		float v[N], out[N];
		slot_wide<T>(v, slot + at);
#pragma unroll
		for (int i = 0; i < N; i++) {
			c->e[p][i] += a.y * v[i];
			out[i] = a.x * dx[i] + (a.y * c->g[p][i] + a.z * v[i]);
		}
		add_more<T>(out, k, ring, more, j, at, row);
		if (at < ring.row_bytes)
			pack_store((T *)((char *)k.grad.p[j] + row + at), out);
	}
}

/* A token whose rows are there. */
template <typename T, int PACKS, int N>
static __device__ __forceinline__ void
bwd_token(struct bwd_columns<PACKS, N> *c, const struct bwd_task &k, const struct row_ring &ring,
	  const struct bwd_shared &shared, struct bwd_stat *stat, uint32_t slot, size_t token,
	  size_t step)
{
	uint32_t dy = ring_ahead(ring, slot, k.values);
	float x[PACKS][N], g[PACKS][N], gx = 0;

	mix_slots<T, PACKS, N>(x, ring, slot, c->at, stat->share, k.values);
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		slot_wide<T>(g[p], dy + c->at[p]);
#pragma unroll
		for (int i = 0; i < N; i++) {
			c->dw[p][i] += g[p][i] * (x[p][i] * stat->r);
			g[p][i] *= c->w[p][i];
			gx += g[p][i] * x[p][i];
		}
	}
	gx = warp_sum(gx);
	if (threadIdx.x % 32 == 0)
		shared.norm[threadIdx.x / 32] = gx;
	dot_slots<T, PACKS, N>(shared.dots, ring, slot, c->at, g, x, k.values);
	team_sync();
	float rm = slopes_put(shared, *stat, k.values, k.d), r = stat->r;
	if (token + step < k.t)
		stat_load(stat, k.vec.stat, k.values, token + step);
#pragma unroll
	for (int p = 0; p < PACKS; p++)
		put_pack<T, PACKS, N>(c, k, ring, slot, p, x[p], r, rm, shared.slopes,
				      token * ring.row_bytes);
}

/* The sums of a block's teams, to its part [MIX_COLUMNS][d]. */
template <typename T, int PACKS, int N>
static __device__ __forceinline__ void
columns_put(const struct bwd_columns<PACKS, N> &c, const struct bwd_task &k, float *shared)
{
	uint32_t d = k.d, all = MIX_COLUMNS * d;

	__syncthreads();
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		float *to = shared + threadIdx.y * all + c.at[p] / sizeof(T);
		if (c.at[p] >= d * sizeof(T))
			continue;
		run_store<float, N>(to, c.dw[p]);
		run_store<float, N>(to + d, c.e[p]);
	}
	teams_add(k.part + (size_t)blockIdx.x * all, shared, all);
}

template <typename T, int PACKS>
static __global__ void
__launch_bounds__(PACKS == 1 ? RING_THREADS_ONE : RING_THREADS_TWO, 1)
	mix_bwd(const __grid_constant__ struct bwd_task k)
{
	constexpr int N = k3_pack<T>::n;
	extern __shared__ __align__(16) float shared[];
	size_t step = (size_t)gridDim.x * blockDim.y;
	size_t first = (size_t)threadIdx.y * gridDim.x + blockIdx.x;
	uint32_t warps = blockDim.x / 32, warp = threadIdx.x / 32;
	struct row_ring ring;
	struct row_feed feed;
	struct bwd_shared part;
	struct bwd_stat stat = {};
	struct bwd_columns<PACKS, N> columns;

	let_successor_start();
	part.slopes = (float *)ring_open(&ring, (char *)shared + threadIdx.y * k.team_bytes,
					 k.d * sizeof(T), k.rows, k.slots);
	part.dots = part.slopes + warps * k.values * 4;
	part.norm = part.dots + warps * k.values * 2;
	part.slopes += warp * k.values * 4;
	if (warp == 0)
		feed_first(&feed, ring, k.row, first, step, k.t);
	columns_open<T, PACKS, N>(&columns, k);
	if (first < k.t)
		stat_load(&stat, k.vec.stat, k.values, first);
	team_sync();
	struct row_place place = {ring.first, ring.bars, 0};
	size_t token = first;
	for (; token < k.t; token += step) {
		ring_wait(&place, ring);
		bwd_token<T, PACKS, N>(&columns, k, ring, part, &stat, place.at, token, step);
		place.at = ring_ahead(ring, place.at, k.rows);
		team_sync();
		if (warp == 0)
			feed_more(&feed, ring, step, k.t);
	}
	team_catch_up(token, k.t, 2);
	columns_put<T, PACKS, N>(columns, k, shared);
}

/* Shared memory of a team behind its ring. */
static inline size_t
bwd_team_bytes(size_t values, size_t team)
{
	return (team / 32 * (values * 16 + (2 * values + 1) * 4) + 15) / 16 * 16;
}

#endif
