/* What becomes of a finished tile of the products of moe_task.h.  As in expert_finish.cuh the
 * four lanes of a row trade words, so that each has eight columns together of every 32.  The
 * trap: what is read from memory is read for all columns of a row before it is used, or each read
 * waits for the last. */
#ifndef K3_MOE_MOE_FINISH_CUH
#define K3_MOE_MOE_FINISH_CUH
#include "expert_finish.cuh"

enum { JOIN_RUNS = 4 };

static __device__ __forceinline__ uint4
run_of(const void *p, size_t at, bool there)
{
	return there ? *reinterpret_cast<const uint4 *>((const k3_bf16 *)p + at)
		     : make_uint4(0, 0, 0, 0);
}

/* sum[8] += factor x */
static __device__ __forceinline__ void
add_run(float (&sum)[8], uint4 x, float factor)
{
	const uint32_t w[4] = {x.x, x.y, x.z, x.w};

#pragma unroll
	for (int i = 0; i < 4; i++) {
		sum[2 * i] += factor * pair_first(w[i]);
		sum[2 * i + 1] += factor * pair_second(w[i]);
	}
}

static __device__ __forceinline__ void
store_run(void *to, size_t at, const float (&x)[8])
{
	*reinterpret_cast<uint4 *>((k3_bf16 *)to + at) =
		make_uint4(bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]), bf16_pair(x[4], x[5]),
			   bf16_pair(x[6], x[7]));
}

/* Columns 32 i .. of this thread's row, eight of each 32 */
template <int N>
static __device__ __forceinline__ void
turned_run(float (&x)[8], const float (&d)[N], int half, int i)
{
	float even[4], odd[4];

#pragma unroll
	for (int q = 0; q < 4; q++) {
		even[q] = d[16 * i + 4 * q + 2 * half];
		odd[q] = d[16 * i + 4 * q + 2 * half + 1];
	}
	turn<1>(even);
	turn<1>(odd);
#pragma unroll
	for (int q = 0; q < 4; q++) {
		x[2 * q] = even[q];
		x[2 * q + 1] = odd[q];
	}
}

template <int N>
static __device__ __forceinline__ void
finish_spread(const struct expert_task *task, const struct tile *t, const float (&d)[N], int m)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		size_t row = (size_t)(t->row + local_row(m, half));
		int col = thread_col(t), live = row < (size_t)t->end ? task->k : 0;
		uint32_t w[N / 16][4];
#pragma unroll
		for (int i = 0; i < N / 16; i++) {
#pragma unroll
			for (int q = 0; q < 4; q++)
				w[i][q] = bf16_pair(d[16 * i + 4 * q + 2 * half],
						    d[16 * i + 4 * q + 2 * half + 1]);
			turn<1>(w[i]);
		}
		for (int j = 0; j < live; j++) {
			k3_bf16 *to = (k3_bf16 *)task->out[0] +
				      (size_t)task->src[row * task->k + j] * task->r + col;
#pragma unroll
			for (int i = 0; i < N / 16; i++)
				if (col + 32 * i < task->r)
					*reinterpret_cast<uint4 *>(to + 32 * i) =
						make_uint4(w[i][0], w[i][1], w[i][2], w[i][3]);
		}
	}
}

template <int N>
static __device__ __forceinline__ void
finish_join(const struct expert_task *task, const struct tile *t, const float (&d)[N], int m)
{
	static_assert(N == 16 * JOIN_RUNS, "runs of a row");
#pragma unroll
	for (int half = 0; half < 2; half++) {
		size_t row = (size_t)(t->row + local_row(m, half)), col = (size_t)thread_col(t),
		       at = row * task->r + col;
		bool live = row < (size_t)t->end;
		uint4 a[JOIN_RUNS], b[JOIN_RUNS];
#pragma unroll
		for (int i = 0; i < JOIN_RUNS; i++) {
			bool there = live && col + 32 * i < (size_t)task->r;
			a[i] = run_of(task->add[0], at + 32 * i, there);
			b[i] = run_of(task->add[1], at + 32 * i, there);
		}
#pragma unroll
		for (int i = 0; i < JOIN_RUNS; i++) {
			float x[8];
			turned_run(x, d, half, i);
			add_run(x, a[i], 1);
			add_run(x, b[i], 1);
			if (live && col + 32 * i < (size_t)task->r)
				store_run(task->out[0], at + 32 * i, x);
		}
	}
}

/* Slots are added in their order, then what was there. */
template <int N>
static __device__ __forceinline__ void
finish_routed(const struct expert_task *task, const struct tile *t, const float (&d)[N], int m)
{
	static_assert(N == 16 * JOIN_RUNS, "runs of a row");
#pragma unroll
	for (int half = 0; half < 2; half++) {
		size_t row = (size_t)(t->row + local_row(m, half)), col = (size_t)thread_col(t),
		       at = row * task->r + col;
		bool live = row < (size_t)t->end;
		float x[JOIN_RUNS][8];
		uint4 old[JOIN_RUNS];
#pragma unroll
		for (int i = 0; i < JOIN_RUNS; i++) {
			old[i] = run_of(task->out[0], at + 32 * i,
					live && col + 32 * i < (size_t)task->r);
			turned_run(x[i], d, half, i);
		}
		for (int j = 0; live && j < task->k; j++) {
			int e = task->ids[row * task->k + j];
			float g = task->dl[row * task->n_experts + e];
			uint4 w[JOIN_RUNS];
#pragma unroll
			for (int i = 0; i < JOIN_RUNS; i++)
				w[i] = run_of(task->add[0], (size_t)e * task->r + col + 32 * i,
					      col + 32 * i < (size_t)task->r);
#pragma unroll
			for (int i = 0; i < JOIN_RUNS; i++)
				add_run(x[i], w[i], g);
		}
#pragma unroll
		for (int i = 0; i < JOIN_RUNS; i++) {
			add_run(x[i], old[i], 1);
			if (live && col + 32 * i < (size_t)task->r)
				store_run(task->out[0], at + 32 * i, x[i]);
		}
	}
}

#endif
