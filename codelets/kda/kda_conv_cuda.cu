/* KDA's convolution, SiLU and l2 norm on CUDA, forward; kda_conv_cpu.c has the formulas and
 * traps.
 *
 * A warp has some positions of one head of q, k or v, a lane N neighbouring channels of it. Four
 * taps over a head of at most 32 N channels keep weights and result in registers; any other
 * shape forms the convolution twice, once for the norm and once for the result.
 */
#include "kda_conv.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, ROWS = 16, BATCH = 4 };

/* y = SiLU of the convolution at position i; w: FAST's weights [4, N], else the taps in memory. */
template <typename T, int N, bool FAST>
static __device__ __forceinline__ void
silu_at(float *y, const struct conv &c, const struct conv_place &x, const int32_t *order, int i,
	size_t col, const float *w)
{
	int taps = FAST ? 4 : c.taps;

#pragma unroll
	for (int k = 0; k < N; k++)
		y[k] = 0;
#pragma unroll
	for (int j = 0; j < taps; j++) {
		int q = i - (taps - 1) + j;
		float u[N];

		if (!conv_has(c, x, q))
			continue;
		conv_load<T, N>(u, conv_input<T>(c, order, q) + col);
#pragma unroll
		for (int k = 0; k < N; k++)
			y[k] += (FAST ? w[j * N + k] : w[k * taps + j]) * u[k];
	}
#pragma unroll
	for (int k = 0; k < N; k++)
		y[k] *= sigmoid(y[k]);
}

template <typename T, int N, bool FAST>
static __device__ __forceinline__ void
position(T *qkv, float *rstd, const struct conv &c, const struct conv_place &x,
	 const int32_t *order, int i, size_t head, const float *w)
{
	int lane = (int)(threadIdx.x & 31);
	size_t part = head / c.h, first = head * c.k, row = (size_t)order[i];
	const float *taps = conv_taps(c, part) + (head - part * c.h) * c.k * (size_t)c.taps;
	float y[N], sum = 0, r = 1;

	for (size_t ch = (size_t)lane * N; ch < c.k; ch += 32 * N) {
		silu_at<T, N, FAST>(y, c, x, order, i, first + ch,
				    FAST ? w : taps + ch * (size_t)c.taps);
#pragma unroll
		for (int k = 0; k < N; k++)
			sum += y[k] * y[k];
	}
	if (part < 2) {
		r = 1.0f / sqrtf(warp_sum(sum) + c.eps);
		if (lane == 0)
			rstd[row * 2 * c.h + head] = r;
	}
	for (size_t ch = (size_t)lane * N; ch < c.k; ch += 32 * N) {
		if (!FAST)
			silu_at<T, N, FAST>(y, c, x, order, i, first + ch,
					    taps + ch * (size_t)c.taps);
#pragma unroll
		for (int k = 0; k < N; k++)
			y[k] *= r;
		conv_store<T, N>(qkv + row * 3 * c.p + first + ch, y);
	}
}

/* Positions i .. i+BATCH-1 of one document, four taps in registers: all inputs are asked for
 * before the first is used. */
template <typename T, int N>
static __device__ __forceinline__ void
batch(T *qkv, float *rstd, const struct conv &c, const struct conv_place &x, const int32_t *order,
      int i, size_t head, const float *w)
{
	int lane = (int)(threadIdx.x & 31);
	size_t ch = (size_t)lane * N, at = head * c.k + ch;
	float u[BATCH + 3][N], y[BATCH][N], r[BATCH];

#pragma unroll
	for (int j = 0; j < BATCH + 3; j++) {
		int q = i - 3 + j;

#pragma unroll
		for (int k = 0; k < N; k++)
			u[j][k] = 0;
		if (ch < c.k && (j >= 3 || conv_has(c, x, q)))
			conv_load<T, N>(u[j], conv_input<T>(c, order, q) + at);
	}
#pragma unroll
	for (int b = 0; b < BATCH; b++) {
		r[b] = 0;
#pragma unroll
		for (int k = 0; k < N; k++) {
			float a = w[k] * u[b][k] + w[N + k] * u[b + 1][k];

			a += w[2 * N + k] * u[b + 2][k];
			a += w[3 * N + k] * u[b + 3][k];
			y[b][k] = a * sigmoid(a);
			r[b] += y[b][k] * y[b][k];
		}
	}
#pragma unroll
	for (int b = 0; b < BATCH; b++) {
		size_t row = (size_t)order[i + b];

		r[b] = head < 2 * c.h ? 1.0f / sqrtf(warp_sum(r[b]) + c.eps) : 1.0f;
		if (head < 2 * c.h && lane == 0)
			rstd[row * 2 * c.h + head] = r[b];
#pragma unroll
		for (int k = 0; k < N; k++)
			y[b][k] *= r[b];
		if (ch < c.k)
			conv_store<T, N>(qkv + row * 3 * c.p + at, y[b]);
	}
}

/* Zeros in the rows without a document. */
template <typename T, int N>
static __device__ __forceinline__ void
clear_hole(T *qkv, float *rstd, const struct conv &c, size_t row, size_t head)
{
	const float zero[4] = {0, 0, 0, 0};

	for (size_t ch = (threadIdx.x & 31) * N; ch < c.k; ch += 32 * N)
		conv_store<T, N>(qkv + row * 3 * c.p + head * c.k + ch, zero);
	if (head < 2 * c.h && (threadIdx.x & 31) == 0)
		rstd[row * 2 * c.h + head] = 0;
}

template <typename T, int N, bool FAST>
static __global__ void
conv_fwd(T *qkv, float *rstd, struct conv c)
{
	size_t job = (size_t)blockIdx.x * WARPS + (threadIdx.x >> 5), heads = 3 * c.h;
	const int32_t *order = conv_order(c.layout);
	int valid = c.layout[K3_TL_VALID], i = (int)(job / heads) * ROWS;
	int end = i + ROWS < (int)c.t ? i + ROWS : (int)c.t;
	size_t head = job % heads, part = head / c.h;
	struct conv_place x = {-1, 0, 0};
	float w[FAST ? 4 * N : 1];

	if (i >= (int)c.t)
		return;
	if (FAST) {
		const float *taps = conv_taps(c, part) + (head - part * c.h) * c.k * 4;
		size_t ch = (threadIdx.x & 31) * N;
#pragma unroll
		for (int k = 0; k < 4 * N; k++)
			w[k] = ch < c.k ? taps[(ch + k % N) * 4 + k / N] : 0.0f;
	}
	for (int row = i; row < end; row++)
		if (conv_doc(c.layout)[row] == 0)
			clear_hole<T, N>(qkv, rstd, c, (size_t)row, head);
	end = end < valid ? end : valid;
	while (i < end) {
		if (i >= x.hi)
			x = conv_locate(c.layout, i);
		if (FAST && i + BATCH <= end && i + BATCH <= x.hi) {
			batch<T, N>(qkv, rstd, c, x, order, i, head, w);
			i += BATCH;
		} else {
			position<T, N, FAST>(qkv, rstd, c, x, order, i++, head, w);
		}
	}
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

template <typename T, int N, bool FAST>
static void
launch(void *const *buf, const struct conv &c, cudaStream_t stream)
{
	size_t strips = (c.t + ROWS - 1) / ROWS;

	conv_fwd<T, N, FAST><<<blocks_for(strips * 3 * c.h, WARPS), THREADS, 0, stream>>>(
		(T *)buf[0], (float *)buf[1], c);
	K3_CUDA_LAUNCHED("conv_fwd");
}

template <typename T>
static void
kda_conv_fwd(void *const *buf, const struct k3_kda_conv_args *a, const struct k3_cuda *cuda)
{
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	struct conv c = conv_of(buf, a, 2, 3);

	if (a->t && a->k % 4 == 0 && a->k <= 128 && a->taps == 4)
		launch<T, 4, true>(buf, c, stream);
	else if (a->t)
		launch<T, 1, false>(buf, c, stream);
	if (a->halo_out.n && a->taps > 1) {
		halo_fwd<T><<<blocks_for((a->taps - 1) * 3 * a->p, THREADS), THREADS, 0, stream>>>(
			(T *)buf[a->halo_out.first], c);
		K3_CUDA_LAUNCHED("halo_fwd");
	}
}

K3_CUDA_BOTH(kda_conv_fwd, k3_kda_conv_args)
