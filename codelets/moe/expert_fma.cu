/* Experts' products by multiply-adds, float and bf16, any widths: the float mode's way, and that of bf16
 * operands which the tensor cores' boxes cannot hold.
 *
 * A block of 256 threads computes a tile of 64 x 64, a thread 4 x 4 of it, over slices of 16 along the
 * contraction in shared memory.  Operands are told by their two strides, so that one text serves all
 * five products; GATE_UP accumulates two tiles that share their rows.
 */
#include "expert_task.h"
#include "../cuda/device.cuh"
#include "../cuda/situ.cuh"

enum { THREADS = 256, TILE = FMA_PART_COLS, SLICE = 16 };

/* Element (i, k), k along the contraction, is at i*by + k*along; `rows` and `depth` bound them. */
template <typename T> struct operand {
	const T *p;
	size_t by, along;
	int rows, depth;
};

template <typename T> struct tile {
	struct operand<T> x, y, u; /* u: W3 of GATE_UP */
	size_t row;		   /* first row of the result */
	int rows, col, cols, expert, side;
};

typedef float slice[SLICE][TILE + 4];

/* Neighbours in memory are read by neighbouring threads. */
template <typename T>
static __device__ __forceinline__ void
load_slice(slice &to, const struct operand<T> *o, int k0)
{
	for (int n = threadIdx.x; n < TILE * SLICE; n += THREADS) {
		int i = o->along == 1 ? n / SLICE : n % TILE;
		int k = o->along == 1 ? n % SLICE : n / TILE;
		bool there = i < o->rows && k0 + k < o->depth;
		to[k][i] = there ? wide(o->p[i * o->by + (size_t)(k0 + k) * o->along]) : 0.0f;
	}
}

static __device__ __forceinline__ void
multiply_slice(float (&d)[4][4], const slice &x, const slice &y)
{
	int i = threadIdx.x / 16 * 4, j = threadIdx.x % 16 * 4;

#pragma unroll
	for (int k = 0; k < SLICE; k++) {
		float4 a = *reinterpret_cast<const float4 *>(&x[k][i]);
		float4 b = *reinterpret_cast<const float4 *>(&y[k][j]);
		const float p[4] = {a.x, a.y, a.z, a.w}, q[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
		for (int r = 0; r < 4; r++)
#pragma unroll
			for (int c = 0; c < 4; c++)
				d[r][c] += p[r] * q[c];
	}
}

/* Expert and first row of the n-th tile of rows; false: there are fewer. */
static __device__ __forceinline__ bool
find_rows(const struct expert_task *task, int n, int *expert, size_t *row, int *rows)
{
	for (int e = 0; e < task->experts; e++) {
		int from = task->offs[e], have = task->offs[e + 1] - from;
		int tiles = (have + TILE - 1) / TILE;
		if (n < tiles) {
			*expert = e;
			*row = (size_t)from + (size_t)n * TILE;
			*rows = have - n * TILE < TILE ? have - n * TILE : TILE;
			return true;
		}
		n -= tiles;
	}
	return false;
}

template <typename T, int PRODUCT>
static __device__ __forceinline__ bool
rows_tile(struct tile<T> *t, const struct expert_task *task)
{
	const bool narrow_out = PRODUCT == GATE_UP || PRODUCT == D_HIDDEN;
	size_t r = (size_t)task->r, f = (size_t)task->f;
	size_t depth = narrow_out ? r : PRODUCT == DOWN ? f : 2 * f, width = narrow_out ? f : r;
	const T *y = (const T *)task->y[0];

	if (!find_rows(task, (int)blockIdx.x, &t->expert, &t->row, &t->rows))
		return false;
	t->side = 0;
	t->col = (int)blockIdx.y * TILE;
	t->cols = (int)width - t->col < TILE ? (int)width - t->col : TILE;
	t->x.p = (const T *)task->x[0] + t->row * depth;
	t->x.by = depth, t->x.along = 1;
	t->x.rows = t->rows, t->x.depth = (int)depth;
	y += (size_t)t->expert * width * depth * (PRODUCT == GATE_UP ? 2 : 1);
	if (PRODUCT == GATE_UP || PRODUCT == DOWN) {
		t->y.p = y + t->col * depth;
		t->y.by = depth, t->y.along = 1;
	} else {
		t->y.p = y + t->col;
		t->y.by = 1, t->y.along = width;
	}
	t->y.rows = t->cols, t->y.depth = (int)depth;
	t->u = t->y;
	t->u.p += f * depth;
	return true;
}

template <typename T>
static __device__ __forceinline__ bool
weights_tile(struct tile<T> *t, const struct expert_task *task)
{
	int n2 = (task->r + TILE - 1) / TILE, n13 = (2 * task->f + TILE - 1) / TILE;
	int across[2] = {n2, (task->f + TILE - 1) / TILE}, n = (int)blockIdx.y;
	size_t from, width;

	t->expert = (int)blockIdx.x;
	t->side = n >= n13 * n2;
	n -= t->side ? n13 * n2 : 0;
	t->row = (size_t)(n / across[t->side] * TILE);
	t->col = n % across[t->side] * TILE;
	t->rows = (t->side ? task->r : 2 * task->f) - (int)t->row;
	t->cols = (t->side ? task->f : task->r) - t->col;
	from = (size_t)task->offs[t->expert];
	width = (size_t)(t->side ? task->r : 2 * task->f);
	t->x.p = (const T *)task->x[t->side] + from * width + t->row;
	t->x.by = 1, t->x.along = width, t->x.rows = t->rows;
	width = (size_t)(t->side ? task->f : task->r);
	t->y.p = (const T *)task->y[t->side] + from * width + t->col;
	t->y.by = 1, t->y.along = width, t->y.rows = t->cols;
	t->x.depth = t->y.depth = task->offs[t->expert + 1] - (int)from;
	return true;
}

/* Element (i, j) of the tile. */
template <typename T>
static __device__ __forceinline__ void
finish_gate_up(const struct expert_task *task, const struct tile<T> *t, int i, int j, float g,
	       float u)
{
	size_t f = (size_t)task->f, row = t->row + i, col = (size_t)(t->col + j);
	T *gu = (T *)task->out[0] + row * 2 * f + col, *h = (T *)task->out[1];

	gu[0] = narrow<T>(g);
	gu[f] = narrow<T>(u);
	if (!h)
		return;
	struct situ_parts p = situ_parts(wide(gu[0]), wide(gu[f]), task->beta1, task->beta2);
	h[row * f + col] = narrow<T>(situ_value(&p, task->beta1, task->beta2));
}

/* Returns h dh of the element. */
template <typename T>
static __device__ __forceinline__ float
finish_hidden(const struct expert_task *task, const struct tile<T> *t, int i, int j, float dh,
	      float weight)
{
	size_t f = (size_t)task->f, at = (t->row + i) * 2 * f + t->col + j;
	const T *gu = (const T *)task->gu + at;
	T *dgu = (T *)task->out[0] + at;
	struct situ_parts p = situ_parts(wide(gu[0]), wide(gu[f]), task->beta1, task->beta2);
	float slope_g, slope_u;

	situ_slopes(&p, task->beta1, task->beta2, &slope_g, &slope_u);
	dgu[0] = narrow<T>(weight * dh * slope_g);
	dgu[f] = narrow<T>(weight * dh * slope_u);
	return situ_value(&p, task->beta1, task->beta2) * dh;
}

static __device__ __forceinline__ void
finish_weight(const struct expert_task *task, size_t row, size_t col, int expert, int side, float d)
{
	size_t width = (size_t)(side ? task->f : task->r),
	       rows = (size_t)(side ? task->r : 2 * task->f);
	float *to = (float *)task->out[side] + ((size_t)expert * rows + row) * width + col;

	*to = task->accumulate[side] ? *to + d : d;
}

template <typename T, int PRODUCT>
static __device__ __forceinline__ void
finish(const struct expert_task *task, const struct tile<T> *t, const float (&d)[4][4],
       const float (&u)[4][4])
{
	int i0 = threadIdx.x / 16 * 4, j0 = threadIdx.x % 16 * 4;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		bool live = i0 + i < t->rows;
		size_t row = t->row + i0 + i;
		float dot = 0, weight = 0;
		if (PRODUCT == D_HIDDEN && live)
			weight = task->w[task->src[row]];
#pragma unroll
		for (int j = 0; j < 4; j++) {
			if (!live || j0 + j >= t->cols)
				continue;
			if (PRODUCT == GATE_UP)
				finish_gate_up<T>(task, t, i0 + i, j0 + j, d[i][j], u[i][j]);
			else if (PRODUCT == D_HIDDEN)
				dot += finish_hidden<T>(task, t, i0 + i, j0 + j, d[i][j], weight);
			else if (PRODUCT == WEIGHTS)
				finish_weight(task, row, (size_t)(t->col + j0 + j), t->expert,
					      t->side, d[i][j]);
			else
				((T *)task->out[0])[row * task->r + t->col + j0 + j] =
					narrow<T>(d[i][j]);
		}
		if (PRODUCT == D_HIDDEN) {
#pragma unroll
			for (int step = 8; step > 0; step >>= 1)
				dot += __shfl_xor_sync(0xffffffffu, dot, step);
			if (live && j0 == 0)
				task->part[row * task->parts + blockIdx.y] = dot;
		}
	}
}

/* The tiles of the first columns add up dwt. */
static __device__ __forceinline__ void
sum_parts(const struct expert_task *task, size_t row, int rows)
{
	float sum = 0;

	if (blockIdx.y > 0 || (int)threadIdx.x >= rows)
		return;
	row += threadIdx.x;
	for (int i = 0; i < task->parts; i++)
		sum += task->part[row * task->parts + i];
	task->dwt[row] = sum;
}

template <typename T, int PRODUCT>
static __global__ void
__launch_bounds__(THREADS) multiply(struct expert_task task)
{
	__shared__ slice x, y, z;
	float d[4][4] = {}, u[4][4] = {};
	struct tile<T> t;

	if (PRODUCT == WEIGHTS)
		weights_tile<T>(&t, &task);
	else if (!rows_tile<T, PRODUCT>(&t, &task))
		return;
	for (int k = 0; k < t.x.depth; k += SLICE) {
		load_slice<T>(x, &t.x, k);
		load_slice<T>(y, &t.y, k);
		if (PRODUCT == GATE_UP)
			load_slice<T>(z, &t.u, k);
		__syncthreads();
		multiply_slice(d, x, y);
		if (PRODUCT == GATE_UP)
			multiply_slice(u, x, z);
		__syncthreads();
	}
	finish<T, PRODUCT>(&task, &t, d, u);
	if (PRODUCT == D_LATENT)
		sum_parts(&task, t.row, t.rows);
}

template <typename T, int PRODUCT>
static void
launch(const struct expert_task *task, const struct k3_cuda *cuda)
{
	size_t r = (size_t)task->r, f = (size_t)task->f, n2 = blocks_for(r, TILE);
	bool narrow_out = PRODUCT == GATE_UP || PRODUCT == D_HIDDEN;
	dim3 grid((unsigned)(task->tk / TILE + (size_t)task->experts),
		  blocks_for(narrow_out ? f : r, TILE));

	if (PRODUCT == WEIGHTS)
		grid = dim3((unsigned)task->experts,
			    (unsigned)n2 * (blocks_for(2 * f, TILE) + blocks_for(f, TILE)));
	multiply<T, PRODUCT><<<grid, THREADS, 0, (cudaStream_t)cuda->stream>>>(*task);
	K3_CUDA_LAUNCHED("multiply");
}

template <typename T>
static void
launch_product(enum expert_product product, const struct expert_task *task,
	       const struct k3_cuda *cuda)
{
	if (product == GATE_UP)
		launch<T, GATE_UP>(task, cuda);
	else if (product == DOWN)
		launch<T, DOWN>(task, cuda);
	else if (product == D_HIDDEN)
		launch<T, D_HIDDEN>(task, cuda);
	else if (product == D_LATENT)
		launch<T, D_LATENT>(task, cuda);
	else
		launch<T, WEIGHTS>(task, cuda);
}

void
k3i_expert_fma(enum k3_cuda_type type, enum expert_product product, const struct expert_task *task,
	       const struct k3_cuda *cuda)
{
	(type == K3_CUDA_BF16 ? launch_product<k3_bf16> : launch_product<float>)(product, task,
										 cuda);
}
