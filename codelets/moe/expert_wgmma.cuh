/* The kernel of expert_wgmma.cu: stages, and the product of one tile. */
#ifndef K3_MOE_EXPERT_WGMMA_CUH
#define K3_MOE_EXPERT_WGMMA_CUH
#include "expert_tiles.cuh"
#include "expert_finish.cuh"

/* What thread 0 loads next. */
struct loader {
	struct tile t;
	int index, total, step; /* tile, tiles, stage of the tile */
	unsigned loads;
};

/* The next tile that has something to load. */
template <int PRODUCT>
static __device__ __forceinline__ void
loader_seek(struct loader *o, const struct expert_job *job, const struct layout *l)
{
	o->step = 0;
	for (; o->index < o->total; o->index += gridDim.x) {
		o->t = tile_at<PRODUCT>(job, l, o->index);
		if (o->t.steps > 0)
			return;
	}
}

/* A stage of g or of u for D_HIDDEN: the tile's elements, boxes by rows and then by columns. */
static __device__ __forceinline__ void
load_saved(uint32_t to, uint32_t bar, const struct expert_job *job, const struct tile *t, int col,
	   int boxes)
{
	barrier_expect(bar, 2 * boxes * BOX_BYTES);
	for (int i = 0; i < 2 * boxes; i++)
		box_load(to + i * BOX_BYTES, &job->x[1], bar, col + i % 2 * BOX,
			 t->row + i / 2 * BOX, 0);
}

/* A stage: x, in boxes that hold rows of the tile, and two boxes of y. */
template <int PRODUCT>
static __device__ __forceinline__ void
load_boxes(uint32_t to, uint32_t bar, const struct expert_job *job, const struct tile *t, int step)
{
	const CUtensorMap *x = &job->x[t->side], *y = &job->y[t->side];
	uint32_t b = to + x_boxes<PRODUCT>() * BOX_BYTES;
	int k = step * BOX, saved = step - (t->steps - 2), i;
	int boxes = min(x_boxes<PRODUCT>(), (t->end - t->row + BOX - 1) / BOX);

	if (PRODUCT == D_HIDDEN && saved >= 0) {
		load_saved(to, bar, job, t, t->col + saved * job->task.f, boxes);
		return;
	}
	barrier_expect(bar, (boxes + 2) * BOX_BYTES);
	for (i = 0; i < boxes; i++)
		if (PRODUCT == WEIGHTS)
			box_load(to + i * BOX_BYTES, x, bar, t->row + i * BOX, t->from + k, 0);
		else
			box_load(to + i * BOX_BYTES, x, bar, k, t->row + i * BOX, 0);
	if (PRODUCT == WEIGHTS) {
		box_load(b, y, bar, t->col, t->from + k, 0);
		box_load(b + BOX_BYTES, y, bar, t->col + BOX, t->from + k, 0);
	} else if (PRODUCT == GATE_UP || PRODUCT == DOWN) {
		int other = PRODUCT == GATE_UP ? job->task.f : BOX;
		box_load(b, y, bar, k, t->col, t->expert);
		box_load(b + BOX_BYTES, y, bar, k, t->col + other, t->expert);
	} else {
		box_load(b, y, bar, t->col, k, t->expert);
		box_load(b + BOX_BYTES, y, bar, t->col + BOX, k, t->expert);
	}
}

template <int PRODUCT>
static __device__ __forceinline__ void
load_next(struct loader *o, const struct expert_job *job, const struct layout *l)
{
	const unsigned stages = stages_of<PRODUCT>();
	unsigned stage = o->loads % stages, round = o->loads / stages;

	if (o->index >= o->total)
		return;
	barrier_wait(l->empty + 8 * stage, (round & 1) ^ 1);
	load_boxes<PRODUCT>(l->stages + stage * stage_bytes<PRODUCT>(), l->full + 8 * stage, job,
			    &o->t, o->step);
	o->loads++;
	if (++o->step >= o->t.steps) {
		o->index += gridDim.x;
		loader_seek<PRODUCT>(o, job, l);
	}
}

/* Rows from `rows` on of all boxes become zero. */
static __device__ __forceinline__ void
clear_tail(uint32_t stage, int rows)
{
	const int boxes = x_boxes<WEIGHTS>() + 2;
	int words = (BOX - rows) * 8;

	for (int i = threadIdx.x; i < boxes * words; i += block_threads<WEIGHTS>()) {
		uint32_t at = stage + i / words * BOX_BYTES + rows * 128 + i % words * 16;
		asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0)
			     : "memory");
	}
	shared_publish();
	__syncthreads();
}

/* The stage used as number `used` is free for this warp; thread 0 loads when all warps have left. */
template <int PRODUCT>
static __device__ __forceinline__ void
release(unsigned used, struct loader *o, const struct expert_job *job, const struct layout *l)
{
	if ((threadIdx.x & 31) == 0)
		barrier_arrive(l->empty + 8 * (used % stages_of<PRODUCT>()));
	if (threadIdx.x == 0)
		load_next<PRODUCT>(o, job, l);
	__syncwarp();
}

/* Address of the stage that is used as number `used`, when it is there. */
template <int PRODUCT>
static __device__ __forceinline__ uint32_t
await_stage(const struct layout *l, unsigned used)
{
	const unsigned stages = stages_of<PRODUCT>(), stage = used % stages;

	barrier_wait(l->full + 8 * stage, used / stages & 1);
	return l->stages + stage * stage_bytes<PRODUCT>();
}

/* d = the tile, rows of this warpgroup; where there are none, of what the stage held before.  *used
 * counts stages. */
template <int PRODUCT>
static __device__ __forceinline__ void
multiply_tile(float (&d)[64], const struct tile *t, unsigned *used, struct loader *o,
	      const struct expert_job *job, const struct layout *l)
{
	const int a_turned = PRODUCT == WEIGHTS, b_turned = PRODUCT != GATE_UP && PRODUCT != DOWN;

	for (int k = 0; k < t->depth; k += BOX) {
		uint32_t at = await_stage<PRODUCT>(l, *used);
		if (PRODUCT == WEIGHTS && t->depth - k < BOX)
			clear_tail(at, t->depth - k);
		uint64_t a = operand(at + (threadIdx.x >> 7) * BOX_BYTES),
			 b = operand(at + x_boxes<PRODUCT>() * BOX_BYTES);
		wgmma_begin();
#pragma unroll
		for (int i = 0; i < BOX / 16; i++)
			wgmma_128<a_turned, b_turned>(d, a + i * operand_step<a_turned>(),
						      b + i * operand_step<b_turned>(), k + i > 0);
		wgmma_commit();
		if (k > 0) {
			wgmma_wait<1>();
			release<PRODUCT>(*used - 1, o, job, l);
		}
		++*used;
	}
	wgmma_wait<0>();
	wgmma_pin(d);
	if (t->depth > 0)
		release<PRODUCT>(*used - 1, o, job, l);
}

template <int PRODUCT>
static __global__ void
__launch_bounds__(block_threads<PRODUCT>(), PRODUCT == D_HIDDEN ? 2 : 1)
	multiply(const __grid_constant__ struct expert_job job)
{
	extern __shared__ unsigned char raw[];
	struct layout l = layout_of<PRODUCT>(raw, job.task.experts);
	struct loader o = {};
	unsigned used = 0;
	int total;

	if (threadIdx.x < 32)
		list_tiles(&l, job.task.offs, job.task.experts, tile_rows<PRODUCT>());
	if (threadIdx.x == 0) {
		for (int i = 0; i < stages_of<PRODUCT>(); i++) {
			barrier_init(l.full + 8 * i, 1);
			barrier_init(l.empty + 8 * i, block_threads<PRODUCT>() / 32);
		}
		barrier_publish();
	}
	__syncthreads();
	total = count_tiles<PRODUCT>(&job, &l);
	if (threadIdx.x == 0) {
		o.index = (int)blockIdx.x;
		o.total = total;
		loader_seek<PRODUCT>(&o, &job, &l);
		for (int i = 0; i < stages_of<PRODUCT>(); i++)
			load_next<PRODUCT>(&o, &job, &l);
	}
	__syncwarp();
	for (int i = (int)blockIdx.x; i < total; i += gridDim.x) {
		struct tile t = tile_at<PRODUCT>(&job, &l, i);
		float d[64];
		if (PRODUCT == WEIGHTS)
			expect_weights(&job.task, &t);
#pragma unroll
		for (int q = 0; q < 64; q++)
			d[q] = 0;
		multiply_tile<PRODUCT>(d, &t, &used, &o, &job, &l);
		if (PRODUCT == D_HIDDEN) {
			uint32_t g = await_stage<PRODUCT>(&l, used),
				 u = await_stage<PRODUCT>(&l, used + 1);
			finish_hidden(&job.task, &t, d, g, u);
			release<PRODUCT>(used++, &o, &job, &l);
			release<PRODUCT>(used++, &o, &job, &l);
		} else {
			finish<PRODUCT>(&job.task, &t, d);
		}
	}
}

#endif
