/* KDA's gated norm on CUDA: its operands, and the kernels for any shape.  A warp has a head of a
 * row and looks at its values again. */
#ifndef K3_KDA_OUT_CUH
#define K3_KDA_OUT_CUH
#include "../cuda/device.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS };

/* Columns of a head group inside rows of all heads. */
struct span {
	size_t t, heads, first, width, v; /* first column; width: of a row of all heads */
	float eps;
	int lanes; /* of a head; 0: any shape */
};

template <typename T> struct back_buffers {
	T *dout, *dgg;
	float *don; /* [PARTS, v] */
	const T *dy, *gg, *o;
	const float *on;
};

/* 1 / sqrt(mean(o^2) + eps) of a head; the whole warp takes part. */
template <typename T>
static __device__ __forceinline__ float
rms_factor(const T *o, const struct span &s, int lane)
{
	float sum = 0;

	for (size_t c = (size_t)lane; c < s.v; c += 32)
		sum += wide(o[c]) * wide(o[c]);
	return 1.0f / sqrtf(warp_sum(sum) / (float)s.v + s.eps);
}

template <typename T>
static __global__ void
norm_fwd_any(T *y, const T *gg, const T *o, const float *on, struct span s)
{
	size_t i = (size_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
	int lane = (int)(threadIdx.x & 31);

	if (i >= s.t * s.heads)
		return;
	size_t at = i / s.heads * s.width + s.first + i % s.heads * s.v;
	float r = rms_factor<T>(o + i * s.v, s, lane);
	for (size_t c = (size_t)lane; c < s.v; c += 32)
		y[at + c] = narrow<T>(wide(o[i * s.v + c]) * r * on[c] * sigmoid(wide(gg[at + c])));
}

/* The sums over rows and heads lie in shared memory, by warps. */
template <typename T>
static __global__ void
norm_bwd_any(const __grid_constant__ struct back_buffers<T> b,
	     const __grid_constant__ struct span s)
{
	extern __shared__ float sum_wv[];
	float *mine = sum_wv + (threadIdx.x >> 5) * s.v;
	int lane = (int)(threadIdx.x & 31);

	for (size_t c = threadIdx.x; c < WARPS * s.v; c += THREADS)
		sum_wv[c] = 0;
	__syncthreads();
	for (size_t i = (size_t)blockIdx.x * WARPS + (threadIdx.x >> 5); i < s.t * s.heads;
	     i += (size_t)gridDim.x * WARPS) {
		size_t at = i / s.heads * s.width + s.first + i % s.heads * s.v;
		const T *o = b.o + i * s.v;
		float r = rms_factor<T>(o, s, lane), dot = 0;

		for (size_t c = (size_t)lane; c < s.v; c += 32) {
			float d = wide(b.dy[at + c]), z = sigmoid(wide(b.gg[at + c]));
			float n = wide(o[c]) * r, w = b.on[c];
			b.dgg[at + c] = narrow<T>(d * n * w * z * (1.0f - z));
			mine[c] += d * z * n;
			dot += d * z * w * n;
		}
		dot = warp_sum(dot) / (float)s.v;
		for (size_t c = (size_t)lane; c < s.v; c += 32) {
			float d = wide(b.dy[at + c]), z = sigmoid(wide(b.gg[at + c]));
			b.dout[i * s.v + c] =
				narrow<T>(r * (d * z * b.on[c] - wide(o[c]) * r * dot));
		}
	}
	__syncthreads();
	for (size_t c = threadIdx.x; c < s.v; c += THREADS) {
		float sum = 0;
		for (int w = 0; w < WARPS; w++)
			sum += sum_wv[(size_t)w * s.v + c];
		b.don[blockIdx.x * s.v + c] = sum;
	}
}

#endif
