/* Products with the states of bf16 chunks (kda_channels.cuh): a warp takes 16 rows of a state
 * straight from memory, as left operand.
 */
#ifndef K3_KDA_STATE_CUH
#define K3_KDA_STATE_CUH

#include "kda_channels.cuh"

/** The rounded state of an entry, [KP, VP] in its slot, or NULL: zero.  edge: the one that came
 * from outside, NULL: there is none. */
static __device__ __forceinline__ const k3_bf16 *
kda_state_at(const void *slots, const void *edge, bool has_edge, int at, size_t head,
	     const struct kda_scratch &w, size_t kp)
{
	size_t size = kp * w.vp;

	if (at >= 0)
		return (const k3_bf16 *)slots + (head * w.slots + (size_t)at) * size;
	return at == KDA_OUTSIDE && has_edge ? (const k3_bf16 *)edge + head * size : NULL;
}

static __device__ __forceinline__ const k3_bf16 *
kda_entering(const struct kda_task &x, const struct kda_entry &e, size_t head, size_t kp)
{
	return kda_state_at(x.work.s, x.work.s_edge, x.s_in, e.from, head, x.work, kp);
}

static __device__ __forceinline__ const k3_bf16 *
kda_leaving_gradient(const struct kda_task &x, const struct kda_entry &e, size_t head, size_t kp)
{
	return kda_state_at(x.work.ds, x.work.ds_edge, x.ds_out, e.to, head, x.work, kp);
}

/** Asks for 64 rows of a state, a line of 64 elements a thread, ahead of their use. */
static __device__ __forceinline__ void
state_ask(const k3_bf16 *state, int vp)
{
	if (state && (int)threadIdx.x < vp)
		prefetch(state + threadIdx.x * 64);
}

/* Left operands of two products, 32 deep from column 32 s on: a lane takes 8 elements that follow
 * each other, so both operands count their depth in another order, the same for both. */
struct state_left {
	kda_frag f[2];
};

static __device__ __forceinline__ void
state_left_load(struct state_left *a, const k3_bf16 *state, int vp, int channel, int step)
{
	int row = channel + (int)(threadIdx.x & 31) / 4, c = step * 32 + (int)(threadIdx.x & 3) * 8;
	const k3_bf16 *at = state + row * vp + c;
	uint4 lo = make_uint4(0, 0, 0, 0), hi = lo;

	if (c < vp) {
		lo = *reinterpret_cast<const uint4 *>(at);
		hi = *reinterpret_cast<const uint4 *>(at + 8 * vp);
	}
	a->f[0] = {{lo.x, hi.x, lo.y, hi.y}};
	a->f[1] = {{lo.z, hi.z, lo.w, hi.w}};
}

/** The same depth of rows row .. row+7 of a tile, as right operand of both. */
static __device__ __forceinline__ uint4
deep_load(const k3_bf16 *tile, int row, int step)
{
	int lane = (int)(threadIdx.x & 31);

	return *reinterpret_cast<const uint4 *>(
		tile + pack_at<128>(row + lane / 4, step * 4 + (lane & 3)));
}

/** x [16, 64] += state [16, v] tile [64, v]^T; a: all four steps. */
static __device__ __forceinline__ void
times_state(float (*x)[4], const struct state_left *a, const k3_bf16 *tile)
{
#pragma unroll
	for (int step = 0; step < 4; step++)
#pragma unroll
		for (int m = 0; m < 8; m++) {
			uint4 b = deep_load(tile, m * 8, step);

			mma_bf16(x[m], a[step].f[0].r, b.x, b.y);
			mma_bf16(x[m], a[step].f[1].r, b.z, b.w);
		}
}

#endif
