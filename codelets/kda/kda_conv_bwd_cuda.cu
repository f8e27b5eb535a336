/* KDA's convolution on CUDA, backward; kda_conv_cpu.c has the formulas and traps.
 *
 * Fast: the walk of kda_conv_walk.cuh.  It reads three quarters of what the task has: q, k and v
 * follow from their inputs and factors, which are there anyway.
 */
#include "../cuda/pointers.cuh"
#include "../norm/rms_cuda.h"
#include "kda_conv_walk.cuh"

/* Walkers: a constant, so that the order of sums is that of an H200 everywhere. */
enum {
	WARPS = CONV_BWD_WARPS,
	THREADS = CONV_BWD_THREADS,
	BLOCKS = 3,
	WALKERS = 132 * BLOCKS * WARPS
};
enum { ANY_ROWS = 64 };

/* Rows of a warp whose first channel is `first` of those of its part. */
template <typename T>
static __device__ __forceinline__ struct walk_source<T>
source_of(const struct conv_bwd &b, const struct walk_maps &maps, const struct conv_lanes &l,
	  size_t part, size_t first, int lanes) {
	struct walk_source<T> from = {
	};
	size_t left = b.heads * b.c.k - first;

	from.maps = &maps;
	from.u_col = (int)(part * b.c.p + b.h0 * b.c.k + first);
	from.dy_col = (int)(part * b.heads * b.c.k + first);
	from.u = (const T *)b.c.u + from.u_col;
	from.dy = (const T *)b.dy + from.dy_col;
	from.u_pitch = (uint32_t)(3 * b.c.p);
	from.dy_pitch = (uint32_t)(3 * b.heads * b.c.k);
	from.r_pitch = (uint32_t)(2 * b.c.h);
	from.bytes = (uint32_t)((left < WALK_WIDTH ? left : (size_t)WALK_WIDTH) * sizeof(T));
	from.normed = part < 2;
	from.r = b.rstd + (from.normed ? l.head : 0);
	from.lanes = lanes;
	return from;
}

/* A warp has a strip and up to 128 channels of one of q, k and v. */
template <typename T>
static __global__ void
__launch_bounds__(THREADS, BLOCKS)
	conv_bwd_fast(const __grid_constant__ struct conv_bwd b,
		      const __grid_constant__ struct walk_maps maps, int lanes)
{
	__shared__ struct walk_ring<T> rings[WARPS];
	__shared__ uint64_t barriers[WARPS][walk_ring<T>::stages];
	size_t warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
	size_t job = (size_t)blockIdx.x * WARPS + warp, warps = (b.heads * lanes + 31) / 32;
	size_t number = job / warps / 3, first = job % warps * WALK_WIDTH;
	size_t part = (job / warps + number) % 3; /* every multiprocessor gets some of each */
	size_t in = first + lane * WALK_N, all = b.heads * b.c.k;
	struct conv_lanes l = conv_lanes_at(b.c, part * all + (in < all ? in : 0), b.h0, b.heads);
	struct conv_strip s = conv_strip_at(b, number, l.col, in < all);
	struct walk_source<T> from = source_of<T>(b, maps, l, part, first, lanes);
	struct walk x = {};

	if (s.i0 >= (int)b.c.t)
		return;
	from.ring = rings[warp].stage;
	from.barriers = shared_address(barriers[warp]);
	if (lane == 0) {
		for (int i = 0; i < walk_ring<T>::stages; i++)
			phase_init(from.barriers + 8 * i, 1);
		phase_publish();
	}
	__syncwarp();
	conv_clear_holes<T, WALK_N>(b, s);
	conv_taps_load<WALK_N>(x.w, b.c, l);
	int stop = s.i1 + CONV_TAPS - 1 < s.valid ? s.i1 + CONV_TAPS - 1 : s.valid;
	for (int lo = s.i0, hi; lo < s.i1; lo = hi) {
		struct conv_place doc = conv_locate(b.c.layout, lo);
		hi = doc.hi < stop ? doc.hi : stop;
		walk_document<T>(&x, &from, b, s, doc, lo, hi);
	}
	float4 *to = (float4 *)(b.part + (number * 3 * b.c.p + l.col) * CONV_TAPS);
#pragma unroll
	for (int k = 0; k < WALK_N; k++)
		if (s.live)
			to[k] = make_float4(x.dw[0][k], x.dw[1][k], x.dw[2][k], x.dw[3][k]);
}

/* Lanes of a head, 0: the fast kernel does not fit; each head has the factors of a box. */
template <typename T>
static int
lanes_of(const struct k3_kda_conv_args *a)
{
	int lanes = conv_lanes_of(a, WALK_N);

	return lanes < walk_stage<T>::rows ? 0 : lanes;
}

/* Heads of a launch. */
static size_t
group_of(const struct k3_kda_conv_args *a)
{
	return a->h < a->group_heads ? a->h : a->group_heads;
}

/* Rows of a strip: with the window behind it they are whole turns.  Two strips after each other where
 * one to a walker leaves many without. */
static size_t
rows_of(const struct k3_kda_conv_args *a)
{
	size_t lanes = (size_t)conv_lanes_of(a, WALK_N);
	size_t warps = 3 * ((group_of(a) * lanes + 31) / 32);
	size_t each = lanes && WALKERS / warps * warps < WALKERS / 20 * 19 ? 2 : 1;

	if (lanes == 0)
		return ANY_ROWS;
	return (conv_strip_rows(a->t, warps, each * WALKERS) + 2) / WALK_TURN * WALK_TURN + 5;
}

/* One strip at least, which gives the entering halo its gradient. */
static size_t
strips_of(const struct k3_kda_conv_args *a, size_t rows)
{
	return a->t ? (a->t + rows - 1) / rows : 1;
}

extern "C" size_t
k3_kda_conv_bwd_cuda_scratch(const struct k3_kda_conv_args *a)
{
	return strips_of(a, rows_of(a)) * 3 * a->p * a->taps * sizeof(float);
}

template <typename T>
static void
launch_any(const struct conv_bwd &b, size_t strips, cudaStream_t stream)
{
	unsigned blocks = blocks_for(strips * 3 * b.heads * ((b.c.k + 31) / 32), WARPS);

	if (b.c.taps <= CONV_TAPS)
		conv_bwd_any<T, CONV_TAPS><<<blocks, THREADS, 0, stream>>>(b);
	else
		conv_bwd_any<T, K3_MAX_TAPS><<<blocks, THREADS, 0, stream>>>(b);
	K3_CUDA_LAUNCHED("conv_bwd_any");
}

template <typename T>
static void
launch_fast(struct conv_bwd b, size_t strips, int lanes, cudaStream_t stream)
{
	size_t jobs = strips * 3 * ((b.heads * (size_t)lanes + 31) / 32);
	struct walk_maps maps;

	if (b.c.t) {
		tensor_map_of<T>(&maps.u, b.c.u, b.c.t, 3 * b.c.p, walk_stage<T>::rows, WALK_WIDTH);
		tensor_map_of<T>(&maps.dy, b.dy, b.c.t, 3 * b.heads * b.c.k, walk_stage<T>::rows,
				 WALK_WIDTH);
		conv_bwd_fast<T><<<blocks_for(jobs, WARPS), THREADS, 0, stream>>>(b, maps, lanes);
		K3_CUDA_LAUNCHED("conv_bwd_fast");
	}
	b.rows = 0;
	if (b.dhalo_in)
		launch_any<T>(b, 1, stream);
}

template <typename T>
static void
kda_conv_bwd(void *const *buf, const struct k3_kda_conv_args *a, const struct k3_cuda *cuda)
{
	const struct k3_weight *dc[] = {&a->dcq, &a->dck, &a->dcv};
	size_t n = a->p * a->taps, rows = rows_of(a), strips = strips_of(a, rows);
	int lanes = all_aligned(buf, 0, a->n_buf) ? lanes_of<T>(a) : 0;
	struct k3_cuda_column_sum sums[3];
	struct conv_bwd b = {
		.c = conv_of(buf, a, 3, 4), .y = buf[1], .rstd = (const float *)buf[2]};

	b.dhalo_out = a->dhalo_out.n ? buf[a->dhalo_out.first] : NULL;
	b.dx = buf[0];
	b.dhalo_in = a->dhalo_in.n ? buf[a->dhalo_in.first] : NULL;
	b.part = (float *)cuda->scratch;
	b.rows = (int)rows;
	for (uint32_t i = 0; i < a->dqkv.n; i++) {
		b.heads = k3_heads_of_group(a->h, a->group_heads, i, &b.h0);
		b.dy = buf[a->dqkv.first + i];
		if (lanes)
			launch_fast<T>(b, strips, lanes, (cudaStream_t)cuda->stream);
		else
			launch_any<T>(b, strips, (cudaStream_t)cuda->stream);
	}
	for (int i = 0; i < 3; i++)
		sums[i] = {(float *)buf[dc[i]->first], NULL, b.part + (size_t)i * n,
			   dc[i]->accumulate != 0};
	k3_cuda_column_sums(cuda, sums, 3, a->t || !lanes ? strips : 0, 3 * n, n);
}

K3_CUDA_BOTH(kda_conv_bwd, k3_kda_conv_args)
