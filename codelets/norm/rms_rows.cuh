/* RMSNorm of rows whose packs of 16 bytes fit in the registers of a team of warps.  Teams walk
 * over rows, and the loads of the next row are on their way while this one is summed: the trap is
 * a block that loads, sums and stores in turn, because then memory rests while it sums. */
#ifndef K3_NORM_RMS_ROWS_CUH
#define K3_NORM_RMS_ROWS_CUH
#include "../cuda/runs.cuh"
#include "../cuda/team.cuh"
#include "rms_any.cuh"

enum {
	FWD_THREADS = 256,
	FWD_PACKS = 4,	/* of a thread, at most */
	FWD_BLOCKS = 3, /* on a multiprocessor */
	BWD_THREADS = 512,
	BWD_PACKS = 2,
	BWD_ROWS = 4 /* x, dy, addends */
};

/** Where the packs of a thread begin in a row, in bytes; those behind its end are not there. */
template <int PACKS>
static __device__ __forceinline__ void
pack_places(uint32_t *at)
{
#pragma unroll
	for (int i = 0; i < PACKS; i++)
		at[i] = (threadIdx.x + i * blockDim.x) * 16;
}

template <int PACKS>
static __device__ __forceinline__ void
row_packs(uint4 *raw, const void *row, const uint32_t *at, uint32_t bytes)
{
#pragma unroll
	for (int i = 0; i < PACKS; i++) {
		raw[i] = make_uint4(0, 0, 0, 0);
		if (at[i] < bytes)
			raw[i] = *(const uint4 *)((const char *)row + at[i]);
	}
}

/* The thread's packs, widened; their sum of squares. */
template <typename T>
static __device__ __forceinline__ float
wide_squares(float (*v)[k3_pack<T>::n], const uint4 *raw)
{
	float even = 0, odd = 0;

#pragma unroll
	for (int i = 0; i < FWD_PACKS; i++) {
		pack_wide<T>(v[i], raw[i]);
#pragma unroll
		for (int k = 0; k < k3_pack<T>::n; k += 2) {
			even += v[i][k] * v[i][k];
			odd += v[i][k + 1] * v[i][k + 1];
		}
	}
	return even + odd;
}

/* Scales a row and stores it. */
template <typename T>
static __device__ __forceinline__ void
put_row(char *to, float (*v)[k3_pack<T>::n], const float *w, float r, const uint32_t *at,
	uint32_t bytes)
{
	constexpr int N = k3_pack<T>::n;

#pragma unroll
	for (int i = 0; i < FWD_PACKS; i++) {
		float u[N];
		if (at[i] >= bytes)
			continue;
		run_load<float, N>(u, w + at[i] / sizeof(T));
#pragma unroll
		for (int k = 0; k < N; k++)
			v[i][k] *= r * u[k];
		pack_store((T *)(to + at[i]), v[i]);
	}
}

/* AGAIN: factors are read, not made. */
template <typename T, bool AGAIN>
static __global__ void
__launch_bounds__(FWD_THREADS, FWD_BLOCKS)
	rms_fwd(T *y, struct factors f, const T *x, const float *w, uint32_t n, uint32_t bytes)
{
	constexpr int N = k3_pack<T>::n;
	__shared__ float part[2][FWD_THREADS / 32];
	uint32_t row = threadIdx.y * gridDim.x + blockIdx.x, step = gridDim.x * blockDim.y;
	unsigned first = threadIdx.y * (blockDim.x / 32), turn = 0;
	uint32_t at[FWD_PACKS];
	uint4 raw[FWD_PACKS];

	pack_places<FWD_PACKS>(at);
	row_packs<FWD_PACKS>(raw, (const char *)x + (size_t)row * bytes, at, row < n ? bytes : 0);
	for (; row < n; row += step, turn ^= 1) {
		float v[FWD_PACKS][N], sum = wide_squares<T>(v, raw), r;
		row_packs<FWD_PACKS>(raw, (const char *)x + (size_t)(row + step) * bytes, at,
				     row + step < n ? bytes : 0);
		if (AGAIN) {
			r = f.stat[((size_t)row + 1) * f.step - 1];
		} else {
			team_sums<1>(&sum, part[turn] + first);
			r = 1.0f / sqrtf(sum / (float)(bytes / sizeof(T)) + f.eps);
			if (threadIdx.x == 0)
				put_factor(f, row, r);
		}
		put_row<T>((char *)y + (size_t)row * bytes, v, w, r, at, bytes);
	}
}

/* What a thread keeps of a row: x r, r dy w plus the addends. */
template <typename T> struct kept {
	float n[BWD_PACKS][k3_pack<T>::n], rest[BWD_PACKS][k3_pack<T>::n];
};

/* The thread's part of the dot product of dn = dy w and n = x r; its columns' sums go on. */
template <typename T>
static __device__ __forceinline__ float
take_row(struct kept<T> *row, float (*columns)[k3_pack<T>::n], const uint4 (*raw)[BWD_PACKS],
	 const float (*w)[k3_pack<T>::n], float r)
{
	constexpr int N = k3_pack<T>::n;
	float even = 0, odd = 0;

#pragma unroll
	for (int i = 0; i < BWD_PACKS; i++) {
		float g[N], a[N], b[N], *n = row->n[i];
		pack_wide<T>(n, raw[0][i]);
		pack_wide<T>(g, raw[1][i]);
		pack_wide<T>(a, raw[2][i]);
		pack_wide<T>(b, raw[3][i]);
#pragma unroll
		for (int k = 0; k < N; k++) {
			n[k] *= r;
			columns[i][k] += g[k] * n[k];
			g[k] *= w[i][k];
			row->rest[i][k] = a[k] + b[k] + r * g[k];
			(k % 2 ? odd : even) += g[k] * n[k];
		}
	}
	return even + odd;
}

/* Packs of a row of x, dy and the addends; zeros for what is not there. */
static __device__ __forceinline__ void
rows_packs(uint4 (*raw)[BWD_PACKS], const struct k3_cuda_rms_bwd &b, size_t row, const uint32_t *at,
	   uint32_t bytes)
{
	const void *from[BWD_ROWS] = {b.x, b.dy, b.addend[0], b.addend[1]};

#pragma unroll
	for (int q = 0; q < BWD_ROWS; q++)
		row_packs<BWD_PACKS>(raw[q], (const char *)from[q] + row * bytes, at,
				     from[q] ? bytes : 0);
}

/* The columns' sums of a block's teams, to its part. */
template <typename T>
static __device__ __forceinline__ void
put_columns(float *part, float *shared, const float (*columns)[k3_pack<T>::n], const uint32_t *at,
	    uint32_t bytes)
{
	uint32_t d = bytes / sizeof(T);

#pragma unroll
	for (int i = 0; i < BWD_PACKS; i++)
		if (at[i] < bytes)
			run_store<float, k3_pack<T>::n>(
				shared + threadIdx.y * d + at[i] / sizeof(T), columns[i]);
	teams_add(part + (size_t)blockIdx.x * d, shared, d);
}

/* dx = r (dn - n mean(dn n)) + addends.  The sums over rows that give the weight's gradient stay in
 * registers; bytes: of a row. */
template <typename T>
static __global__ void
__launch_bounds__(BWD_THREADS, 1)
	rms_bwd(float *part, const __grid_constant__ struct k3_cuda_rms_bwd b, uint32_t bytes)
{
	constexpr int N = k3_pack<T>::n;
	extern __shared__ __align__(16) float shared[];
	__shared__ float dots[2][BWD_THREADS / 32];
	size_t row = (size_t)threadIdx.y * gridDim.x + blockIdx.x;
	size_t step = (size_t)gridDim.x * blockDim.y;
	unsigned first = threadIdx.y * (blockDim.x / 32), turn = 0;
	float columns[BWD_PACKS][N] = {}, w[BWD_PACKS][N] = {}, r = 0;
	uint4 raw[BWD_ROWS][BWD_PACKS];
	uint32_t at[BWD_PACKS];

	let_successor_start();
	pack_places<BWD_PACKS>(at);
	if (row < b.n) {
		r = b.stat[(row + 1) * b.step - 1];
		rows_packs(raw, b, row, at, bytes);
	}
#pragma unroll
	for (int i = 0; i < BWD_PACKS; i++)
		if (at[i] < bytes)
			run_load<float, N>(w[i], b.w + at[i] / sizeof(T));
	for (; row < b.n; row += step, turn ^= 1) {
		struct kept<T> kept;
		float dot = take_row<T>(&kept, columns, raw, w, r),
		      mean = r / (float)(bytes / sizeof(T));
		if (row + step < b.n) {
			r = b.stat[(row + step + 1) * b.step - 1];
			rows_packs(raw, b, row + step, at, bytes);
		}
		team_sums<1>(&dot, dots[turn] + first);
		mean *= dot;
#pragma unroll
		for (int i = 0; i < BWD_PACKS; i++) {
#pragma unroll
			for (int k = 0; k < N; k++)
				kept.rest[i][k] -= kept.n[i][k] * mean;
			if (at[i] < bytes)
				pack_store((T *)((char *)b.dx + row * bytes + at[i]), kept.rest[i]);
		}
	}
	team_catch_up(row, b.n, 1);
	put_columns<T>(part, shared, columns, at, bytes);
}

#endif
