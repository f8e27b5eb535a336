/* KDA's convolution backward: what its kernels share, and the one for any shape.
 *
 * At position m a warp forms da (through norm and SiLU), adds it to the input gradients that it
 * takes part in, and lets go of the one that is then complete.  A strip begins afresh, so it
 * walks on over taps-1 positions of the next; gradients of the taps leave as one part per strip.
 */
#ifndef K3_KDA_CONV_BWD_CUH
#define K3_KDA_CONV_BWD_CUH

#include "kda_conv.cuh"

enum { CONV_BWD_WARPS = 4, CONV_BWD_THREADS = 32 * CONV_BWD_WARPS };

struct conv_bwd {
	struct conv c;
	const void *y; /* qkv */
	const float *rstd;
	const void *dhalo_out;
	void *dx, *dhalo_in;
	float *part;	  /* [strips, 3P, taps] */
	size_t h0, heads; /* whose gradients are in dy */
	const void *dy;
	int rows; /* of a strip; 0: the entering halo alone */
};

/* Positions i0 .. i1-1, and the lane's channels from column col of the inputs on. */
struct conv_strip {
	int i0, i1, valid, segments, last_lo;
	size_t col;
	bool live; /* the lane has channels */
};

static __device__ __forceinline__ struct conv_strip
conv_strip_at(const struct conv_bwd &b, size_t strip, size_t col, bool live)
{
	struct conv_strip s;

	s.i0 = (int)strip * b.rows;
	s.valid = b.c.layout[K3_TL_VALID];
	s.i1 = s.i0 + b.rows < s.valid ? s.i0 + b.rows : s.valid;
	s.segments = b.c.layout[K3_TL_SEGMENTS];
	s.last_lo = s.segments ? conv_segments(b.c.layout)[s.segments - 1] : 0;
	s.col = col;
	s.live = live;
	return s;
}

/** Zeros in the strip's rows without a document. */
template <typename T, int N>
static __device__ __forceinline__ void
conv_clear_holes(const struct conv_bwd &b, const struct conv_strip &s)
{
	const float zero[N] = {};
	int end = s.i0 + b.rows < (int)b.c.t ? s.i0 + b.rows : (int)b.c.t;

	if (s.valid == b.c.layout[K3_TL_ROWS] || !s.live)
		return;
	for (int i = s.i0; i < end; i++)
		if (conv_doc(b.c.layout)[i] == 0)
			run_store<T, N>((T *)b.dx + (size_t)i * 3 * b.c.p + s.col, zero);
}

/** The input gradient of position n is complete; n < 0: of the entering halo. */
template <typename T, int N>
static __device__ __forceinline__ void
conv_let_go(float *du, const struct conv_bwd &b, const struct conv_strip &s, const int32_t *order,
	    int n)
{
	int last = b.c.taps - 1, slot = n - (s.valid - last);
	size_t width = 3 * b.c.p;

	if (!s.live || n >= s.i1 || n < (s.i0 ? s.i0 : -last) || (n < 0 && !b.dhalo_in))
		return;
	bool comes_back = b.dhalo_out && slot >= 0 && (n >= s.last_lo || s.segments <= 1);
	bool held = n >= 0 || s.segments == 0 || -n <= b.c.layout[K3_TL_HIST_IN];
	float back[N];
	if (comes_back)
		run_load<T, N>(back, (const T *)b.dhalo_out + (size_t)slot * width + s.col);
#pragma unroll
	for (int k = 0; k < N; k++)
		du[k] = held ? du[k] + (comes_back ? back[k] : 0.0f) : 0.0f;
	run_store<T, N>(n >= 0 ? (T *)b.dx + (size_t)order[n] * width + s.col
			       : (T *)b.dhalo_in + (size_t)(last + n) * width + s.col,
			du);
}

/* What a lane of the kernel for any shape works on, one channel of a head. */
struct conv_channel {
	size_t head, part, ch, dcol; /* head of 3h; channel in it; column of the head in dy */
	int lane;
};

/* da of position m; a: convolution there. */
template <typename T>
static __device__ __forceinline__ float
conv_da(float a, const struct conv_bwd &b, const struct conv_channel &x, bool live, size_t row)
{
	const T *y = (const T *)b.y + row * 3 * b.c.p + x.head * b.c.k,
		*dy = (const T *)b.dy + row * b.heads * 3 * b.c.k + x.dcol;
	float dot = 0, r = 1, z = sigmoid(a);

	if (x.part < 2) {
		for (size_t ch = (size_t)x.lane; ch < b.c.k; ch += 32)
			dot += wide(y[ch]) * wide(dy[ch]);
		dot = warp_sum(dot);
		r = b.rstd[row * 2 * b.c.h + x.head];
	}
	if (!live)
		return 0;
	return r * (wide(dy[x.ch]) - dot * wide(y[x.ch])) * (z + a * z * (1.0f - z));
}

template <typename T>
static __device__ __forceinline__ float
conv_u(const struct conv_bwd &b, const struct conv_place &x, const struct conv_strip &s,
       const int32_t *order, int q)
{
	return s.live && conv_has(b.c, x, q) ? wide(conv_input<T>(b.c, order, q)[s.col]) : 0.0f;
}

/* Fewer taps than TAPS have zeros in front. */
template <typename T, int TAPS>
static __device__ void
conv_walk_any(float *dw, const float *w, const struct conv_bwd &b, const struct conv_strip &s,
	      const struct conv_channel &ch)
{
	const int32_t *order = conv_order(b.c.layout);
	float u[TAPS] = {}, du[TAPS] = {};
	struct conv_place x = {0, 0, 0};

	if (s.i0 < s.valid)
		x = conv_locate(b.c.layout, s.i0);
#pragma unroll
	for (int j = 0; j < TAPS - 1; j++)
		if (s.i0 < s.valid && s.i0 - (TAPS - 1) + j >= -(b.c.taps - 1))
			u[j] = conv_u<T>(b, x, s, order, s.i0 - (TAPS - 1) + j);
	for (int m = s.i0; m < s.i1 + TAPS - 1; m++) {
		float a = 0, da = 0;

		if (m < s.valid) {
			if (m >= x.hi) {
				x = conv_locate(b.c.layout, m);
#pragma unroll
				for (int j = 0; j < TAPS - 1; j++)
					u[j] = 0;
			}
			u[TAPS - 1] = conv_u<T>(b, x, s, order, m);
#pragma unroll
			for (int j = 0; j < TAPS; j++)
				a += w[j] * u[j];
			da = conv_da<T>(a, b, ch, s.live, (size_t)order[m]);
		}
#pragma unroll
		for (int j = 0; j < TAPS; j++) {
			bool here = m < s.valid && conv_has(b.c, x, m - (TAPS - 1) + j);
			du[j] += here ? w[j] * da : 0.0f;
			dw[j] += m < s.i1 ? u[j] * da : 0.0f;
		}
		conv_let_go<T, 1>(du, b, s, order, m - (TAPS - 1));
#pragma unroll
		for (int j = 0; j < TAPS; j++) {
			du[j] = j + 1 < TAPS ? du[(j + 1) % TAPS] : 0.0f;
			u[j] = j + 1 < TAPS ? u[(j + 1) % TAPS] : 0.0f;
		}
	}
}

/* A warp has a strip and 32 channels of a head. */
template <typename T, int TAPS>
static __global__ void
__launch_bounds__(CONV_BWD_THREADS) conv_bwd_any(const __grid_constant__ struct conv_bwd b)
{
	size_t job = (size_t)blockIdx.x * CONV_BWD_WARPS + threadIdx.x / 32;
	size_t cuts = (b.c.k + 31) / 32, taps = (size_t)b.c.taps, pad = TAPS - taps;
	float w[TAPS] = {}, dw[TAPS] = {};
	struct conv_channel x;

	x.lane = (int)(threadIdx.x % 32);
	x.ch = job % cuts * 32 + (size_t)x.lane;
	job /= cuts;
	x.part = job % (3 * b.heads) / b.heads;
	x.dcol = job % (3 * b.heads) * b.c.k;
	x.head = x.part * b.c.h + b.h0 + job % b.heads;
	size_t number = job / (3 * b.heads), col = x.head * b.c.k + x.ch;
	struct conv_strip s = conv_strip_at(b, number, col, x.ch < b.c.k);
	if (number > 0 && s.i0 >= (int)b.c.t)
		return;
	const float *taps_at = conv_taps(b.c, x.part) + (s.col - x.part * b.c.p) * taps;
#pragma unroll
	for (int j = 0; j < TAPS; j++)
		if (s.live && j >= (int)pad)
			w[j] = taps_at[j - pad];
	conv_clear_holes<T, 1>(b, s);
	if (number == 0 || s.i0 < s.valid)
		conv_walk_any<T, TAPS>(dw, w, b, s, x);
#pragma unroll
	for (int j = 0; j < TAPS; j++)
		if (s.live && b.rows && j >= (int)pad)
			b.part[(number * 3 * b.c.p + s.col) * taps + j - pad] = dw[j];
}

#endif
