/* KDA's convolution on CUDA, backward; kda_conv_cpu.c has the formulas and traps.
 *
 * Fast: lanes as in kda_conv.cuh, walk as in kda_conv_bwd.cuh.  It reads three quarters of what the
 * task has: q, k and v follow from their inputs and factors, which are there anyway.
 */
#include "../cuda/pointers.cuh"
#include "../norm/rms_cuda.h"
#include "kda_conv_bwd.cuh"

/* Walkers: a constant, so that the order of sums is that of an H200 everywhere. */
enum {
	WARPS = CONV_BWD_WARPS,
	THREADS = CONV_BWD_THREADS,
	BLOCKS = 2,
	WALKERS = 132 * BLOCKS * WARPS
};
enum { ANY_ROWS = 64 };

/* Number b of four positions has its data at [b]; the taps' gradients are those of the strip. */
template <int N> struct walk {
	float w[CONV_TAPS][N], dw[CONV_TAPS][N], u[CONV_TAPS][N], du[CONV_TAPS][N];
};

/* What is under way to a warp. */
struct ring {
	uint4 u[CONV_AHEAD][32], dy[CONV_AHEAD][32];
	float r[CONV_AHEAD][32];
};

/* Where a lane reads. */
template <typename T> struct source {
	const T *u, *dy;
	const float *r;
	uint32_t u_pitch, dy_pitch, r_pitch;
	int lanes;
	bool normed, sums; /* sums: some lane of the warp has a norm */
};

/* Begins to copy what position q needs; always one group of copies, even of nothing. */
template <typename T>
static __device__ __forceinline__ void
fetch(struct ring *to, int slot, const struct source<T> &from, const struct conv_rows &rows, int q,
      int hi)
{
	int lane = (int)(threadIdx.x % 32);

	if (q < hi) {
		uint32_t row = conv_row(rows, q);
		__pipeline_memcpy_async(&to->u[slot][lane], from.u + conv_before(row, from.u_pitch),
					sizeof(uint4));
		__pipeline_memcpy_async(&to->dy[slot][lane],
					from.dy + conv_before(row, from.dy_pitch), sizeof(uint4));
		if (from.sums)
			__pipeline_memcpy_async(&to->r[slot][lane],
						from.r + conv_before(row, from.r_pitch),
						sizeof(float));
	}
	__pipeline_commit();
}

/* da from dy, through y = r s and s = a sigmoid(a), with a the convolution of four inputs. */
template <int N>
static __device__ __forceinline__ void
gradient(float *da, float r, const float (*w)[N], const float *u0, const float *u1, const float *u2,
	 const float *u3, int lanes, bool normed, bool sums)
{
	float s[N], slope[N], dot = 0;

#pragma unroll
	for (int k = 0; k < N; k++) {
		float a = w[0][k] * u0[k] + w[1][k] * u1[k];

		a += w[2][k] * u2[k];
		a += w[3][k] * u3[k];
		float z = sigmoid(a);
		s[k] = a * z;
		slope[k] = z + s[k] * (1.0f - z);
		dot += da[k] * s[k];
	}
	if (sums)
		dot = lanes_sum(dot, lanes) * r * r;
	if (!normed)
		dot = 0;
#pragma unroll
	for (int k = 0; k < N; k++)
		da[k] = r * (da[k] - dot * s[k]) * slope[k];
}

/* Adds da of the position number b to everything that it takes part in. */
template <int N>
static __device__ __forceinline__ void
add_gradient(struct walk<N> *x, const float *da, int b, bool own)
{
#pragma unroll
	for (int j = 0; j < CONV_TAPS; j++)
#pragma unroll
		for (int k = 0; k < N; k++)
			x->du[(b + 1 + j) % 4][k] += x->w[j][k] * da[k];
	if (!own)
		return;
#pragma unroll
	for (int j = 0; j < CONV_TAPS; j++)
#pragma unroll
		for (int k = 0; k < N; k++)
			x->dw[j][k] += x->u[(b + 1 + j) % 4][k] * da[k];
}

/* The input gradients of the last positions of lo .. hi-1 are complete. */
template <typename T, int N>
static __device__ __forceinline__ void
let_rest_go(struct walk<N> *x, const struct conv_bwd &b, const struct conv_strip &s,
	    const int32_t *order, int lo, int hi)
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		int n = hi - 1 - ((hi - 1 - lo - i) & 3);
		if (n >= lo && n > hi - CONV_TAPS)
			conv_let_go<T, N>(x->du[i], b, s, order, n);
	}
}

/* Positions lo .. hi-1 of a document; those from the strip's end on belong to the next strip. */
template <typename T, int N>
static __device__ __forceinline__ void
walk_document(struct walk<N> *x, struct ring *ring, const struct conv_bwd &b,
	      const struct conv_strip &s, const struct source<T> &from, int lo, int hi)
{
	struct conv_rows rows = conv_rows_of(conv_order(b.c.layout), lo, hi);
	T *dx = (T *)b.dx + s.col;
	int lane = (int)(threadIdx.x % 32);

#pragma unroll
	for (int i = 0; i < CONV_AHEAD; i++)
		fetch(ring, i, from, rows, lo + i, hi);
#pragma unroll
	for (int i = 0; i < CONV_TAPS; i++)
#pragma unroll
		for (int k = 0; k < N; k++)
			x->du[i][k] = 0;
	for (int m = lo, turn = 0; m < hi; m += 4, turn ^= 4) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int done = (i + 1) % 4; /* position m + i - 3 is complete */
			float da[N], r = 1;

			if (m + i >= hi)
				break;
			__pipeline_wait_prior(CONV_AHEAD - 1);
			run_load<T, N>(x->u[i], (const T *)&ring->u[turn + i][lane]);
			run_load<T, N>(da, (const T *)&ring->dy[turn + i][lane]);
			if (from.sums)
				r = from.normed ? ring->r[turn + i][lane] : 1.0f;
			fetch(ring, turn + i, from, rows, m + i + CONV_AHEAD, hi);
			gradient<N>(da, r, x->w, x->u[(i + 1) % 4], x->u[(i + 2) % 4],
				    x->u[(i + 3) % 4], x->u[i], from.lanes, from.normed, from.sums);
			add_gradient<N>(x, da, i, m + i < s.i1);
			if ((i == 3 || m > lo) && s.live)
				run_store<T, N>(
					dx + conv_before(conv_row(rows, m + i - 3), from.u_pitch),
					x->du[done]);
#pragma unroll
			for (int k = 0; k < N; k++)
				x->du[done][k] = 0;
		}
	}
	__pipeline_wait_prior(0);
	let_rest_go<T, N>(x, b, s, rows.order, lo, hi);
}

template <typename T, int N>
static __global__ void
__launch_bounds__(THREADS, BLOCKS)
	conv_bwd_fast(const __grid_constant__ struct conv_bwd b, int lanes)
{
	size_t job = (size_t)blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
	size_t groups = (3 * b.heads * lanes + 31) / 32, first = (job % groups * 32 + lane) * N;
	struct conv_lanes l = conv_lanes_at(b.c, first, b.h0, b.heads);
	struct conv_strip s = conv_strip_at(b, job / groups, l.col, l.live);
	bool normed = l.part < 2;
	struct source<T> from = {
		(const T *)b.c.u + l.col,
			(const T *)b.dy + (l.live ? first : 0), b.rstd + (normed ? l.head : 0),
			(uint32_t)(3 * b.c.p), (uint32_t)(3 * b.heads * b.c.k),
			(uint32_t)(2 * b.c.h), lanes, normed, __any_sync(0xffffffffu, normed) != 0
	};
	__shared__ struct ring rings[WARPS];
	struct walk<N> x = {
	};

	if (s.i0 >= (int)b.c.t)
		return;
	conv_clear_holes<T, N>(b, s);
	conv_taps_load<N>(x.w, b.c, l);
	int stop = s.i1 + CONV_TAPS - 1 < s.valid ? s.i1 + CONV_TAPS - 1 : s.valid;
	for (int lo = s.i0; lo < s.i1;) {
		struct conv_place doc = conv_locate(b.c.layout, lo);
		int hi = doc.hi < stop ? doc.hi : stop;
		conv_window<T, N>(x.u, b.c, l, doc, conv_order(b.c.layout), lo);
		walk_document<T, N>(&x, &rings[threadIdx.x / 32], b, s, from, lo, hi);
		lo = hi;
	}
	float4 *part = (float4 *)(b.part + (job / groups * 3 * b.c.p + l.col) * CONV_TAPS);
#pragma unroll
	for (int k = 0; k < N; k++)
		if (l.live)
			part[k] = make_float4(x.dw[0][k], x.dw[1][k], x.dw[2][k], x.dw[3][k]);
}

/* Heads of a launch. */
static size_t
group_of(const struct k3_kda_conv_args *a)
{
	return a->h < a->group_heads ? a->h : a->group_heads;
}

/* Rows of a strip with n channels a lane. */
static size_t
rows_of(const struct k3_kda_conv_args *a, size_t n)
{
	size_t lanes = (size_t)conv_lanes_of(a, n), groups = (3 * group_of(a) * lanes + 31) / 32;

	return lanes ? conv_strip_rows(a->t, groups, WALKERS) : ANY_ROWS;
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
	size_t narrow = rows_of(a, k3_pack<float>::n), wide = rows_of(a, k3_pack<k3_bf16>::n);

	return strips_of(a, narrow < wide ? narrow : wide) * 3 * a->p * a->taps * sizeof(float);
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
	size_t jobs = strips * ((3 * b.heads * (size_t)lanes + 31) / 32);

	conv_bwd_fast<T, k3_pack<T>::n><<<blocks_for(jobs, WARPS), THREADS, 0, stream>>>(b, lanes);
	K3_CUDA_LAUNCHED("conv_bwd_fast");
	b.rows = 0;
	if (b.dhalo_in)
		launch_any<T>(b, 1, stream);
}

template <typename T>
static void
kda_conv_bwd(void *const *buf, const struct k3_kda_conv_args *a, const struct k3_cuda *cuda)
{
	const struct k3_weight *dc[] = {&a->dcq, &a->dck, &a->dcv};
	size_t n = a->p * a->taps, rows = rows_of(a, k3_pack<T>::n), strips = strips_of(a, rows);
	int lanes = all_aligned(buf, 0, a->n_buf) ? conv_lanes_of(a, k3_pack<T>::n) : 0;
	struct k3_cuda_column_sum sums[3];
	struct conv_bwd b = {
		.c = conv_of(buf, a, 3, 4), .y = buf[1], .rstd = (const float *)buf[2]};

	b.dhalo_out = a->dhalo_out.n ? buf[a->dhalo_out.first] : NULL;
	b.dx = buf[0];
	b.dhalo_in = a->dhalo_in.n ? buf[a->dhalo_in.first] : NULL;
	b.part = (float *)cuda->scratch;
	b.rows = (int)rows;
	for (uint32_t i = 0; i < a->dqkv.n; i++) {
		b.h0 = (size_t)i * a->group_heads;
		b.heads = a->h - b.h0 < a->group_heads ? a->h - b.h0 : a->group_heads;
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
