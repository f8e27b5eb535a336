/* RMSNorm of rows.  A team of warps has a row in registers.  Backward, teams walk over rows,
 * because the weight's gradient is a sum over rows: each keeps its columns' sums in shared
 * memory, a thread block adds its teams', and a second kernel the blocks'.  Rows that are not
 * aligned to 16 bytes, or too long, are looked at twice in memory. */
#include "../cuda/runs.cuh"
#include "../cuda/team.cuh"
#include "rms_any.cuh"

enum { THREADS = 256, PACKS = 4, BLOCKS = 2, PROCESSORS = 132 };
enum { PARTS = 1056, PARTS_LEAST = 264 };

/* The thread's packs of a row, zeros behind its end. */
template <typename T>
static __device__ __forceinline__ void
row_packs(uint4 *raw, const T *x, size_t d)
{
#pragma unroll
	for (int i = 0; i < PACKS; i++) {
		size_t c = (threadIdx.x + i * blockDim.x) * k3_pack<T>::n;
		raw[i] = make_uint4(0, 0, 0, 0);
		if (x && c < d)
			raw[i] = *(const uint4 *)(x + c);
	}
}

template <typename T>
static __global__ void
__launch_bounds__(THREADS)
	rms_fwd(T *y, struct factors f, const T *x, const float *w, size_t n, size_t d)
{
	constexpr int N = k3_pack<T>::n;
	__shared__ float part[TEAMS_MOST];
	size_t row = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
	uint4 raw[PACKS];
	float v[PACKS][N], square = 0, r;

	if (row >= n)
		return;
	row_packs(raw, x + row * d, d);
#pragma unroll
	for (int i = 0; i < PACKS; i++) {
		pack_load(v[i], (const T *)&raw[i]);
#pragma unroll
		for (int k = 0; k < N; k++)
			square += v[i][k] * v[i][k];
	}
	if (f.again) {
		r = f.stat[(row + 1) * f.step - 1];
	} else {
		team_sums<1>(&square, part + threadIdx.y * (blockDim.x / 32));
		r = 1.0f / sqrtf(square / (float)d + f.eps);
		if (threadIdx.x == 0)
			put_factor(f, row, r);
	}
#pragma unroll
	for (int i = 0; i < PACKS; i++) {
		size_t c = (threadIdx.x + i * blockDim.x) * N;
		float u[N];
		if (c >= d)
			continue;
		run_load<float, N>(u, w + c);
#pragma unroll
		for (int k = 0; k < N; k++)
			v[i][k] *= r * u[k];
		pack_store(y + row * d + c, v[i]);
	}
}

/* dx of a pack, and its part of dw. */
template <typename T>
static __device__ __forceinline__ void
pack_back(float *sum, const struct k3_cuda_rms_bwd &b, const uint4 &x, const uint4 &dy,
	  const uint4 *addend, float r, float mean, size_t at, size_t c)
{
	constexpr int N = k3_pack<T>::n;
	float v[N], g[N], u[N], s[N], more[N];

	pack_load(v, (const T *)&x);
	pack_load(g, (const T *)&dy);
	run_load<float, N>(u, b.w + c);
	run_load<float, N>(s, sum + c);
#pragma unroll
	for (int k = 0; k < N; k++) {
		s[k] += g[k] * (v[k] * r);
		v[k] = r * (g[k] * u[k] - v[k] * r * mean);
	}
	run_store<float, N>(sum + c, s);
#pragma unroll
	for (int a = 0; a < 2; a++) {
		pack_load(more, (const T *)&addend[a * PACKS]);
#pragma unroll
		for (int k = 0; k < N; k++)
			v[k] += more[k];
	}
	pack_store((T *)b.dx + at + c, v);
}

/* The dot product of dn = dy w and x, then dx = r (dn - x r mean). */
template <typename T>
static __global__ void
__launch_bounds__(THREADS, BLOCKS)
	rms_bwd(float *part, const __grid_constant__ struct k3_cuda_rms_bwd b)
{
	constexpr int N = k3_pack<T>::n;
	extern __shared__ __align__(16) float shared[];
	__shared__ float warps[2][TEAMS_MOST];
	size_t d = b.d, team = threadIdx.y, turn = 0;
	float *sum = shared + team * d;

	for (size_t c = threadIdx.x; c < d; c += blockDim.x)
		sum[c] = 0;
	team_sync();
	for (size_t row = (size_t)blockIdx.x * blockDim.y + team; row < b.n;
	     row += (size_t)gridDim.x * blockDim.y, turn ^= 1) {
		uint4 x[PACKS], dy[PACKS], addend[2 * PACKS];
		float r = b.stat[(row + 1) * b.step - 1], dot = 0;
		row_packs(x, (const T *)b.x + row * d, d);
		row_packs(dy, (const T *)b.dy + row * d, d);
		for (int a = 0; a < 2; a++)
			row_packs(addend + a * PACKS,
				  b.addend[a] ? (const T *)b.addend[a] + row * d : (const T *)NULL,
				  d);
#pragma unroll
		for (int i = 0; i < PACKS; i++) {
			size_t c = (threadIdx.x + i * blockDim.x) * N;
			float v[N], g[N], u[N];
			if (c >= d)
				continue;
			pack_load(v, (const T *)&x[i]);
			pack_load(g, (const T *)&dy[i]);
			run_load<float, N>(u, b.w + c);
#pragma unroll
			for (int k = 0; k < N; k++)
				dot += g[k] * u[k] * v[k];
		}
		team_sums<1>(&dot, warps[turn] + team * (blockDim.x / 32));
#pragma unroll
		for (int i = 0; i < PACKS; i++) {
			size_t c = (threadIdx.x + i * blockDim.x) * N;
			if (c < d)
				pack_back<T>(sum, b, x[i], dy[i], addend + i, r, dot * r / (float)d,
					     row * d, c);
		}
	}
	__syncthreads();
	for (size_t c = team * blockDim.x + threadIdx.x; c < d; c += blockDim.x * blockDim.y) {
		float all = 0;
		for (unsigned k = 0; k < blockDim.y; k++)
			all += shared[k * d + c];
		part[blockIdx.x * d + c] = all;
	}
}

struct column_sums {
	struct k3_cuda_column_sum s[K3_CUDA_COLUMN_SUMS];
};

/* 32 columns a block; row y of the block adds every 32nd part. */
static __global__ void
column_sums(const __grid_constant__ struct column_sums all, size_t parts, size_t pitch, size_t d)
{
	const struct k3_cuda_column_sum &s = all.s[blockIdx.y];
	__shared__ float sum[32][33];
	size_t c = (size_t)blockIdx.x * 32 + threadIdx.x;
	float x = 0;

	if (c < d)
#pragma unroll 8
		for (size_t p = threadIdx.y; p < parts; p += 32)
			x += s.part[p * pitch + c];
	sum[threadIdx.y][threadIdx.x] = x;
	__syncthreads();
	x = warp_sum(sum[threadIdx.x][threadIdx.y]);
	c = (size_t)blockIdx.x * 32 + threadIdx.y;
	if (threadIdx.x > 0 || c >= d)
		return;
	x *= s.factor ? s.factor[c] : 1.0f;
	s.to[c] = s.accumulate ? s.to[c] + x : x;
}

extern "C" size_t
k3_cuda_row_parts(size_t n, size_t d)
{
	size_t parts = (size_t)PARTS * 1024 / (d ? d : 1);

	if (parts > PARTS)
		parts = PARTS;
	if (parts < PARTS_LEAST)
		parts = PARTS_LEAST;
	return parts < n ? parts : n;
}

extern "C" void
k3_cuda_column_sums(const struct k3_cuda *cuda, const struct k3_cuda_column_sum *sums,
		    size_t n_sums, size_t parts, size_t pitch, size_t d)
{
	struct column_sums all = {};

	if (d == 0 || n_sums == 0)
		return;
	for (size_t i = 0; i < n_sums; i++)
		all.s[i] = sums[i];
	column_sums<<<dim3(blocks_for(d, 32), (unsigned)n_sums), dim3(32, 32), 0,
		      (cudaStream_t)cuda->stream>>>(all, parts, pitch, d);
	K3_CUDA_LAUNCHED("column_sums");
}

/* Aligned to 16 bytes? */
static bool
packs_fit(const void *a, const void *b, const void *c, const void *d)
{
	return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) & 15) == 0;
}

/* Threads of a team for a row, 0: it does not fit. */
static unsigned
team_of(size_t d, size_t unit)
{
	unsigned threads = team_threads(d / (16 / unit), PACKS);

	return d % (16 / unit) == 0 && threads <= THREADS ? threads : 0;
}

template <typename T>
static void
forward(const struct k3_cuda *cuda, void *y, const struct factors &f, const void *x, const float *w,
	size_t n, size_t d)
{
	unsigned team = packs_fit(y, x, w, NULL) ? team_of(d, sizeof(T)) : 0;
	cudaStream_t stream = (cudaStream_t)cuda->stream;

	if (n == 0 || d == 0)
		return;
	if (team)
		rms_fwd<T>
			<<<blocks_for(n, THREADS / team), dim3(team, THREADS / team), 0, stream>>>(
				(T *)y, f, (const T *)x, w, n, d);
	else
		rms_fwd_any<T><<<blocks_for(n, RMS_ROWS), 32 * RMS_ROWS, 0, stream>>>(
			(T *)y, f, (const T *)x, w, n, d);
	K3_CUDA_LAUNCHED("rms_fwd");
}

extern "C" void
k3_cuda_rms_fwd(const struct k3_cuda *cuda, enum k3_cuda_type type, void *y, float *stat,
		size_t step, const void *x, const float *w, size_t n, size_t d, float eps)
{
	struct factors f = {stat, step, eps, false};

	if (type == K3_CUDA_BF16)
		forward<k3_bf16>(cuda, y, f, x, w, n, d);
	else
		forward<float>(cuda, y, f, x, w, n, d);
}

extern "C" void
k3_cuda_rms_again(const struct k3_cuda *cuda, enum k3_cuda_type type, void *y, const float *stat,
		  size_t step, const void *x, const float *w, size_t n, size_t d)
{
	struct factors f = {(float *)(uintptr_t)stat, step, 0, true}; /* read alone */

	if (type == K3_CUDA_BF16)
		forward<k3_bf16>(cuda, y, f, x, w, n, d);
	else
		forward<float>(cuda, y, f, x, w, n, d);
}

/* Blocks of the backward, all resident on an H200. */
static size_t
parts_of(size_t n, size_t d, unsigned team)
{
	size_t teams = team ? THREADS / team : 1, parts = (n + teams - 1) / teams;

	if (!team)
		return k3_cuda_row_parts(n, d);
	return parts < BLOCKS * PROCESSORS ? parts : (size_t)BLOCKS * PROCESSORS;
}

extern "C" size_t
k3_cuda_rms_bwd_scratch(size_t n, size_t d)
{
	size_t any = k3_cuda_row_parts(n, d), f32 = parts_of(n, d, team_of(d, sizeof(float))),
	       bf16 = parts_of(n, d, team_of(d, sizeof(k3_bf16))), most = f32 > bf16 ? f32 : bf16;

	return (any > most ? any : most) * d * sizeof(float);
}

/* The number of parts. */
template <typename T>
static size_t
backward(const struct k3_cuda *cuda, const struct k3_cuda_rms_bwd *b, float *part)
{
	bool fit = packs_fit(b->dx, b->dy, b->x, b->w) &&
		   packs_fit(b->addend[0], b->addend[1], part, NULL);
	unsigned team = fit ? team_of(b->d, sizeof(T)) : 0;
	size_t parts = parts_of(b->n, b->d, team), bytes = b->d * sizeof(float);
	cudaStream_t stream = (cudaStream_t)cuda->stream;

	if (parts == 0 || b->d == 0)
		return parts;
	if (team) {
		bytes *= THREADS / team;
		rms_bwd<T>
			<<<(unsigned)parts, dim3(team, THREADS / team), bytes, stream>>>(part, *b);
	} else {
		rms_bwd_any<T><<<(unsigned)parts, THREADS, 0, stream>>>(part, *b);
	}
	K3_CUDA_LAUNCHED("rms_bwd");
	return parts;
}

extern "C" void
k3_cuda_rms_bwd(const struct k3_cuda *cuda, enum k3_cuda_type type, const struct k3_cuda_rms_bwd *b)
{
	float *part = (float *)cuda->scratch;
	size_t parts = type == K3_CUDA_BF16 ? backward<k3_bf16>(cuda, b, part)
					    : backward<float>(cuda, b, part);
	struct k3_cuda_column_sum sum = {b->dw, NULL, part, b->accumulate};

	if (parts || !b->accumulate)
		k3_cuda_column_sums(cuda, &sum, 1, parts, b->d, b->d);
}
