/* KDA's convolution on CUDA, backward; kda_conv_cpu.c has the formulas and traps.
 *
 * A warp walks over some positions of a head of q, k or v, a lane has N neighbouring channels.  At
 * position m it forms da (through norm and SiLU), adds it to the TAPS input gradients that it takes
 * part in, and lets go of the one that is then complete.  A strip begins afresh, so it walks on
 * over TAPS-1 positions of the next; gradients of the taps leave as one part per strip.  Fewer taps
 * than TAPS have zeros in front.
 */
#include "kda_conv.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, ROWS = 64 };

struct conv_bwd {
	struct conv c;
	const void *y; /* qkv */
	const float *rstd;
	const void *dhalo_out;
	void *dx, *dhalo_in;
	float *part;		/* [strips, 3P, taps] */
	size_t group_heads, h0; /* heads h0 .. h0+group_heads-1 have their gradients in dy */
	const void *dy;
};

/* What a warp works on. */
struct strip {
	int lane, i0, i1, valid, segments, last_lo;
	size_t head, part, heads, col, dcol,
		ch; /* heads: of the group; ch: channel inside the head */
	bool live;  /* the lane has channels */
};

/* da of position m; a: convolution there. */
template <typename T, int N>
static __device__ __forceinline__ void
da_at(float *da, const float *a, const struct conv_bwd &b, const struct strip &s, size_t row)
{
	const T *y = (const T *)b.y + row * 3 * b.c.p,
		*dy = (const T *)b.dy + row * s.heads * 3 * b.c.k;
	float vy[N], vdy[N], dot = 0, r = 1;

#pragma unroll
	for (int k = 0; k < N; k++)
		vy[k] = vdy[k] = 0;
	if (s.part < 2 && b.c.k > 32 * N) {
		for (size_t ch = (size_t)s.lane * N; ch < b.c.k; ch += 32 * N) {
			conv_load<T, N>(vy, y + s.col + ch);
			conv_load<T, N>(vdy, dy + s.dcol + ch);
#pragma unroll
			for (int k = 0; k < N; k++)
				dot += vy[k] * vdy[k];
		}
	}
	if (s.live) {
		conv_load<T, N>(vy, y + s.col + s.ch);
		conv_load<T, N>(vdy, dy + s.dcol + s.ch);
	}
	if (s.part < 2) {
		r = b.rstd[row * 2 * b.c.h + s.head];
		if (b.c.k <= 32 * N)
#pragma unroll
			for (int k = 0; k < N; k++)
				dot += vy[k] * vdy[k];
		dot = warp_sum(dot);
	}
#pragma unroll
	for (int k = 0; k < N; k++) {
		float z = sigmoid(a[k]);

		da[k] = r * (vdy[k] - dot * vy[k]) * (z + a[k] * z * (1.0f - z));
	}
}

/* Input gradient of position n is complete. */
template <typename T, int N>
static __device__ __forceinline__ void
let_go(float *du, const struct conv_bwd &b, const struct strip &s, const int32_t *order, int n)
{
	int last = b.c.taps - 1, slot = n - (s.valid - last);
	size_t width = 3 * b.c.p, at = s.col + s.ch;

	if (!s.live || n >= s.i1 || n < (s.i0 ? s.i0 : -last) || (n < 0 && !b.dhalo_in))
		return;
	bool comes_back = b.dhalo_out && slot >= 0 && (n >= s.last_lo || s.segments <= 1);
	bool held = n >= 0 || s.segments == 0 || -n <= b.c.layout[K3_TL_HIST_IN];
	float back[N];
	if (comes_back)
		conv_load<T, N>(back, (const T *)b.dhalo_out + (size_t)slot * width + at);
#pragma unroll
	for (int k = 0; k < N; k++)
		du[k] = held ? du[k] + (comes_back ? back[k] : 0.0f) : 0.0f;
	conv_store<T, N>(n >= 0 ? (T *)b.dx + (size_t)order[n] * width + at
				: (T *)b.dhalo_in + (size_t)(last + n) * width + at,
			 du);
}

template <typename T, int N>
static __device__ __forceinline__ void
input_at(float *u, const struct conv_bwd &b, const struct conv_place &x, const struct strip &s,
	 const int32_t *order, int q)
{
#pragma unroll
	for (int k = 0; k < N; k++)
		u[k] = 0;
	if (s.live && conv_has(b.c, x, q))
		conv_load<T, N>(u, conv_input<T>(b.c, order, q) + s.col + s.ch);
}

template <typename T, int N, int TAPS>
static __device__ void
walk(const struct conv_bwd &b, const struct strip &s, const float (*w)[N], float (*dw)[N])
{
	const int32_t *order = conv_order(b.c.layout);
	float u[TAPS][N] = {}, du[TAPS][N] = {};
	struct conv_place x = {0, 0, 0};

	if (s.i0 < s.valid)
		x = conv_locate(b.c.layout, s.i0);
#pragma unroll
	for (int j = 0; j < TAPS - 1; j++)
		if (s.i0 < s.valid && s.i0 - (TAPS - 1) + j >= -(b.c.taps - 1))
			input_at<T, N>(u[j], b, x, s, order, s.i0 - (TAPS - 1) + j);
	for (int m = s.i0; m < s.i1 + TAPS - 1; m++) {
		float a[N] = {}, da[N] = {};

		if (m < s.valid) {
			if (m >= x.hi) {
				x = conv_locate(b.c.layout, m);
#pragma unroll
				for (int j = 0; j < TAPS - 1; j++)
#pragma unroll
					for (int k = 0; k < N; k++)
						u[j][k] = 0;
			}
			input_at<T, N>(u[TAPS - 1], b, x, s, order, m);
#pragma unroll
			for (int j = 0; j < TAPS; j++)
#pragma unroll
				for (int k = 0; k < N; k++)
					a[k] += w[j][k] * u[j][k];
			da_at<T, N>(da, a, b, s, (size_t)order[m]);
		}
#pragma unroll
		for (int j = 0; j < TAPS; j++) {
			bool here = m < s.valid && conv_has(b.c, x, m - (TAPS - 1) + j);
#pragma unroll
			for (int k = 0; k < N; k++) {
				du[j][k] += here ? w[j][k] * da[k] : 0.0f;
				dw[j][k] += m < s.i1 ? u[j][k] * da[k] : 0.0f;
			}
		}
		let_go<T, N>(du[0], b, s, order, m - (TAPS - 1));
#pragma unroll
		for (int j = 0; j < TAPS; j++)
#pragma unroll
			for (int k = 0; k < N; k++) {
				du[j][k] = j + 1 < TAPS ? du[(j + 1) % TAPS][k] : 0.0f;
				u[j][k] = j + 1 < TAPS ? u[(j + 1) % TAPS][k] : 0.0f;
			}
	}
}

template <typename T, int N>
static __device__ __forceinline__ void
clear_holes(const struct conv_bwd &b, const struct strip &s)
{
	const float zero[4] = {0, 0, 0, 0};
	int end = s.i0 + ROWS < (int)b.c.t ? s.i0 + ROWS : (int)b.c.t;

	for (int i = s.i0; s.live && i < end; i++)
		if (conv_doc(b.c.layout)[i] == 0)
			conv_store<T, N>((T *)b.dx + (size_t)i * 3 * b.c.p + s.col + s.ch, zero);
}

/* One warp a strip, a head of the group in q, k or v, and 32 N channels of it. */
template <typename T, int N, int TAPS>
static __global__ void
__launch_bounds__(THREADS) conv_bwd(struct conv_bwd b)
{
	size_t job = (size_t)blockIdx.x * WARPS + (threadIdx.x >> 5), left = b.c.h - b.h0;
	size_t cuts = (b.c.k + 32 * N - 1) / (32 * N), taps = (size_t)b.c.taps, pad = TAPS - taps;
	float w[TAPS][N] = {}, dw[TAPS][N] = {};
	struct strip s;

	s.lane = (int)(threadIdx.x & 31);
	s.heads = left < b.group_heads ? left : b.group_heads;
	s.ch = job % cuts * 32 * N + (size_t)s.lane * N;
	s.live = s.ch < b.c.k;
	job /= cuts;
	s.part = job % (3 * s.heads) / s.heads;
	s.dcol = job % (3 * s.heads) * b.c.k;
	s.head = s.part * b.c.h + b.h0 + job % s.heads;
	s.col = s.head * b.c.k;
	size_t strip = job / (3 * s.heads);
	s.i0 = (int)strip * ROWS;
	s.valid = b.c.layout[K3_TL_VALID];
	s.i1 = s.i0 + ROWS < s.valid ? s.i0 + ROWS : s.valid;
	s.segments = b.c.layout[K3_TL_SEGMENTS];
	s.last_lo = s.segments ? conv_segments(b.c.layout)[s.segments - 1] : 0;
	if (strip > 0 && s.i0 >= (int)b.c.t)
		return;
	const float *taps_at = conv_taps(b.c, s.part) + (s.col - s.part * b.c.p + s.ch) * taps;
#pragma unroll
	for (int j = 0; j < TAPS; j++)
#pragma unroll
		for (int k = 0; k < N; k++)
			if (s.live && j >= (int)pad)
				w[j][k] = taps_at[(size_t)k * taps + j - pad];
	clear_holes<T, N>(b, s);
	if (strip == 0 || s.i0 < s.valid)
		walk<T, N, TAPS>(b, s, w, dw);
	float *part = b.part + (strip * 3 * b.c.p + s.col + s.ch) * taps;
#pragma unroll
	for (int j = 0; j < TAPS; j++)
#pragma unroll
		for (int k = 0; k < N; k++)
			if (s.live && j >= (int)pad)
				part[(size_t)k * taps + j - pad] = dw[j][k];
}

struct tap_grads {
	float *dc[3];
	uint32_t adds[3];
};

/* dc = (adds ? dc : 0) + sum over the strips. */
static __global__ void
sum_taps(struct tap_grads g, const float *part, size_t n, size_t strips)
{
	size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
	float sum = 0;

	if (i >= 3 * n)
		return;
	for (size_t s = 0; s < strips; s++)
		sum += part[s * 3 * n + i];
	float *dc = (i < n ? g.dc[0] : i < 2 * n ? g.dc[1] : g.dc[2]) + i % n;
	*dc = (i < n ? g.adds[0] : i < 2 * n ? g.adds[1] : g.adds[2]) ? *dc + sum : sum;
}

/* One strip at least, which gives the entering halo its gradient. */
static size_t
strips_of(const struct k3_kda_conv_args *a)
{
	return a->t ? (a->t + ROWS - 1) / ROWS : 1;
}

extern "C" size_t
k3_kda_conv_bwd_cuda_scratch(const struct k3_kda_conv_args *a)
{
	return strips_of(a) * 3 * a->p * a->taps * sizeof(float);
}

template <typename T, int N, int TAPS>
static void
launch(const struct conv_bwd &b, size_t strips, size_t heads, cudaStream_t stream)
{
	size_t cuts = (b.c.k + 32 * N - 1) / (32 * N);

	conv_bwd<T, N, TAPS>
		<<<blocks_for(strips * 3 * heads * cuts, WARPS), THREADS, 0, stream>>>(b);
	K3_CUDA_LAUNCHED("conv_bwd");
}

template <typename T>
static void
kda_conv_bwd(void *const *buf, const struct k3_kda_conv_args *a, const struct k3_cuda *cuda)
{
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	const struct k3_weight *dc[] = {&a->dcq, &a->dck, &a->dcv};
	struct conv_bwd b = {conv_of(buf, a, 3, 4),
			     buf[1],
			     (const float *)buf[2],
			     NULL,
			     buf[0],
			     NULL,
			     (float *)cuda->scratch,
			     a->group_heads,
			     0,
			     NULL};
	size_t n = a->p * a->taps, strips = strips_of(a);
	struct tap_grads g;

	b.dhalo_out = a->dhalo_out.n ? buf[a->dhalo_out.first] : NULL;
	b.dhalo_in = a->dhalo_in.n ? buf[a->dhalo_in.first] : NULL;
	for (uint32_t i = 0; i < a->dqkv.n; i++) {
		b.h0 = (size_t)i * a->group_heads;
		b.dy = buf[a->dqkv.first + i];
		size_t heads = a->h - b.h0 < a->group_heads ? a->h - b.h0 : a->group_heads;
		if (a->taps <= 4 && a->k % 4 == 0)
			launch<T, 4, 4>(b, strips, heads, stream);
		else if (a->taps <= 4)
			launch<T, 1, 4>(b, strips, heads, stream);
		else
			launch<T, 1, K3_MAX_TAPS>(b, strips, heads, stream);
	}
	for (int i = 0; i < 3; i++) {
		g.dc[i] = (float *)buf[dc[i]->first];
		g.adds[i] = dc[i]->accumulate;
	}
	sum_taps<<<blocks_for(3 * n, THREADS), THREADS, 0, stream>>>(g, b.part, n, strips);
	K3_CUDA_LAUNCHED("sum_taps");
}

K3_CUDA_BOTH(kda_conv_bwd, k3_kda_conv_args)
