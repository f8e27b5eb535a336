/* KDA's convolution, SiLU and l2 norm on CUDA, forward; kda_conv_cpu.c has the formulas and
 * traps.
 *
 * Fast: kda_conv.cuh; what AHEAD later positions need is copied each lane's for itself, so there
 * is no barrier.  Any other shape: a warp has a position of one head of q, k or v and forms the
 * convolution twice, once for the norm and once for the result.
 */
#include <cuda_pipeline.h>

#include "../cuda/pointers.cuh"
#include "kda_conv.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, BLOCKS = 2, AHEAD = 8 };

/* y = SiLU of the convolution of four inputs; the sum of its squares. */
template <int N>
static __device__ __forceinline__ float
silu_of(float *y, const float (*w)[N], const float *u0, const float *u1, const float *u2,
	const float *u3)
{
	float square = 0;

#pragma unroll
	for (int k = 0; k < N; k++) {
		float a = w[0][k] * u0[k] + w[1][k] * u1[k];

		a += w[2][k] * u2[k];
		a += w[3][k] * u3[k];
		y[k] = a * sigmoid(a);
		square += y[k] * y[k];
	}
	return square;
}

/* What a warp walks over, and where to. */
template <typename T> struct strip {
	T *qkv;
	float *rstd;
	int i, end, lanes;
	bool leads, sums; /* the lane writes its head's factor; some lane of the warp does */
};

/* Zeros in the strip's rows without a document. */
template <typename T, int N>
static __device__ __forceinline__ void
clear_holes(const struct strip<T> &s, const struct conv &c, const struct conv_lanes &l)
{
	const float zero[N] = {};

	if (c.layout[K3_TL_VALID] == c.layout[K3_TL_ROWS])
		return;
	for (int row = s.i; row < s.end; row++) {
		if (conv_doc(c.layout)[row] != 0 || !l.live)
			continue;
		run_store<T, N>(s.qkv + (size_t)row * 3 * c.p + l.col, zero);
		if (s.leads)
			s.rstd[(size_t)row * 2 * c.h + l.head] = 0;
	}
}

/* Begins to copy the inputs of position q; always one group of copies, even of nothing. */
template <typename T>
static __device__ __forceinline__ void
fetch(uint4 *slot, const T *in, uint32_t pitch, const struct conv_rows &rows, int q, int hi)
{
	if (q < hi)
		__pipeline_memcpy_async(slot, in + conv_before(conv_row(rows, q), pitch),
					sizeof(*slot));
	__pipeline_commit();
}

/* Positions lo .. hi-1 of the document x; ring[AHEAD] slots are 32 packs apart. */
template <typename T, int N>
static __device__ __forceinline__ void
walk(const struct strip<T> &s, const struct conv &c, const struct conv_lanes &l, uint4 *ring,
     const float (*w)[N], const struct conv_place &x, int lo, int hi)
{
	const T *in = (const T *)c.u + l.col;
	const uint32_t pitch = (uint32_t)(3 * c.p);
	struct conv_rows rows = conv_rows_of(conv_order(c.layout), lo, hi);
	float u[CONV_TAPS][N], y[N];

#pragma unroll
	for (int b = 0; b < AHEAD; b++)
		fetch(ring + b * 32, in, pitch, rows, lo + b, hi);
	conv_window<T, N>(u, c, l.col, x, rows.order, lo);
	for (int m = lo, turn = 0; m < hi; m += 4, turn ^= 4 * 32) {
#pragma unroll
		for (int b = 0; b < 4; b++) {
			uint4 *slot = ring + turn + b * 32;

			if (m + b >= hi)
				break;
			__pipeline_wait_prior(AHEAD - 1);
			run_load<T, N>(u[b], (const T *)slot);
			fetch(slot, in, pitch, rows, m + b + AHEAD, hi);
			float sum = silu_of<N>(y, w, u[(b + 1) % 4], u[(b + 2) % 4], u[(b + 3) % 4],
					       u[b]);
			uint32_t row = conv_row(rows, m + b);
			if (s.sums) {
				float r = rsqrtf(lanes_sum(sum, s.lanes) + c.eps);
				r = l.part < 2 ? r : 1.0f;
#pragma unroll
				for (int k = 0; k < N; k++)
					y[k] *= r;
				if (s.leads)
					s.rstd[conv_before(row, (uint32_t)(2 * c.h)) + l.head] = r;
			}
			if (l.live)
				run_store<T, N>(s.qkv + conv_before(row, pitch) + l.col, y);
		}
	}
	__pipeline_wait_prior(0);
}

template <typename T, int N>
static __global__ void
__launch_bounds__(THREADS, BLOCKS)
	conv_fast(T *qkv, float *rstd, const __grid_constant__ struct conv c, int rows, int lanes)
{
	size_t job = (size_t)blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
	size_t groups = (3 * c.h * lanes + 31) / 32;
	struct conv_lanes l = conv_lanes_at(c, (job % groups * 32 + lane) * N, 0, c.h);
	int i = (int)(job / groups) * rows, valid = c.layout[K3_TL_VALID];
	int end = i + rows < (int)c.t ? i + rows : (int)c.t;
	bool leads = l.part < 2 && l.live && lane % lanes == 0;
	struct strip<T> s = {
		qkv, rstd, i, end, lanes, leads, __any_sync(0xffffffffu, leads) != 0
	};
	__shared__ uint4 ring[WARPS][AHEAD][32];
	float w[CONV_TAPS][N];

	if (i >= (int)c.t)
		return;
	clear_holes<T, N>(s, c, l);
	conv_taps_load<N>(w, c, l);
	end = end < valid ? end : valid;
	while (i < end) {
		struct conv_place x = conv_locate(c.layout, i);
		int hi = x.hi < end ? x.hi : end;
		walk<T, N>(s, c, l, &ring[threadIdx.x / 32][0][lane], w, x, i, hi);
		i = hi;
	}
}

/* y = SiLU of the convolution of a channel at position i. */
template <typename T>
static __device__ __forceinline__ float
silu_at(const struct conv &c, const struct conv_place &x, const int32_t *order, int i, size_t col,
	const float *taps)
{
	float a = 0;

	for (int j = 0; j < c.taps; j++) {
		int q = i - (c.taps - 1) + j;

		if (conv_has(c, x, q))
			a += taps[j] * wide(conv_input<T>(c, order, q)[col]);
	}
	return a * sigmoid(a);
}

/* A warp has a head in position i, or in row i if that is a hole. */
template <typename T>
static __global__ void
conv_any(T *qkv, float *rstd, const __grid_constant__ struct conv c)
{
	size_t job = (size_t)blockIdx.x * WARPS + threadIdx.x / 32, heads = 3 * c.h;
	size_t head = job % heads, part = head / c.h, lane = threadIdx.x % 32;
	const float *taps = conv_taps(c, part) + (head - part * c.h) * c.k * (size_t)c.taps;
	const int32_t *order = conv_order(c.layout);
	int i = (int)(job / heads);
	float sum = 0, r = 1;

	if (i >= (int)c.t)
		return;
	if (conv_doc(c.layout)[i] == 0) {
		for (size_t ch = lane; ch < c.k; ch += 32)
			qkv[(size_t)i * 3 * c.p + head * c.k + ch] = narrow<T>(0);
		if (part < 2 && lane == 0)
			rstd[(size_t)i * 2 * c.h + head] = 0;
	}
	if (i >= c.layout[K3_TL_VALID])
		return;
	struct conv_place x = conv_locate(c.layout, i);
	size_t row = (size_t)order[i];
	for (size_t ch = lane; part < 2 && ch < c.k; ch += 32) {
		float y = silu_at<T>(c, x, order, i, head * c.k + ch, taps + ch * c.taps);
		sum += y * y;
	}
	if (part < 2) {
		r = 1.0f / sqrtf(warp_sum(sum) + c.eps);
		if (lane == 0)
			rstd[row * 2 * c.h + head] = r;
	}
	for (size_t ch = lane; ch < c.k; ch += 32)
		qkv[row * 3 * c.p + head * c.k + ch] = narrow<T>(
			r * silu_at<T>(c, x, order, i, head * c.k + ch, taps + ch * c.taps));
}

/* The last taps-1 inputs of the last document, or the entering halo where there is none. */
template <typename T>
static __global__ void
halo_fwd(T *halo_out, struct conv c)
{
	size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, width = 3 * c.p;
	int segments = c.layout[K3_TL_SEGMENTS], valid = c.layout[K3_TL_VALID];
	int slot = (int)(i / width), q = slot - (c.taps - 1);
	struct conv_place x = {segments - 1, 0, 0};

	if (slot >= c.taps - 1)
		return;
	if (segments == 0) {
		halo_out[i] = c.halo ? ((const T *)c.halo)[i] : narrow<T>(0);
		return;
	}
	x.lo = conv_segments(c.layout)[segments - 1];
	q += valid;
	halo_out[i] = conv_has(c, x, q) ? conv_input<T>(c, conv_order(c.layout), q)[i % width]
					: narrow<T>(0);
}

template <typename T>
static void
kda_conv_fwd(void *const *buf, const struct k3_kda_conv_args *a, const struct k3_cuda *cuda)
{
	const int n = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	struct conv c = conv_of(buf, a, 2, 3);
	T *qkv = (T *)buf[0];
	float *rstd = (float *)buf[1];
	int lanes = all_aligned(buf, 0, a->n_buf) ? conv_lanes_of(a, n) : 0;

	if (a->t && lanes) {
		size_t groups = (3 * a->h * lanes + 31) / 32;
		size_t rows = conv_strip_rows(a->t, groups, BLOCKS * WARPS * cuda->processors);
		size_t jobs = (a->t + rows - 1) / rows * groups;

		conv_fast<T, n><<<blocks_for(jobs, WARPS), THREADS, 0, stream>>>(qkv, rstd, c,
										 (int)rows, lanes);
		K3_CUDA_LAUNCHED("conv_fast");
	} else if (a->t) {
		conv_any<T>
			<<<blocks_for(a->t * 3 * a->h, WARPS), THREADS, 0, stream>>>(qkv, rstd, c);
		K3_CUDA_LAUNCHED("conv_any");
	}
	if (a->halo_out.n && a->taps > 1) {
		halo_fwd<T><<<blocks_for((a->taps - 1) * 3 * a->p, THREADS), THREADS, 0, stream>>>(
			(T *)buf[a->halo_out.first], c);
		K3_CUDA_LAUNCHED("halo_fwd");
	}
}

K3_CUDA_BOTH(kda_conv_fwd, k3_kda_conv_args)
