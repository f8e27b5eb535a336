/* Decays of a bf16 chunk by channels (kda_channels.cuh), and the decayed sums as chains of
 * products.
 *
 * The pivot of a sub-block is its row 7.  e[m][i] = 2^(l - pivot) of an element; step[b] leads
 * from the pivot of sub-block b - 1 to that of b, step[0] from the chunk's beginning, step[4] to
 * its end.  A sum over earlier rows goes from the first sub-block to the last and decays on the
 * way, one over later rows goes back.  The trap: the gates' gradient is the difference of what
 * rows give and what columns get; both must see the same rounded factors, or what should cancel
 * adds up over the chunk.
 */
#ifndef K3_KDA_DECAY_CUH
#define K3_KDA_DECAY_CUH

#include "kda_channels.cuh"

struct kda_decay {
	float e[8][4];
	float step[5][2];
};

/** The gates of a lane's two channels: sigmoid(f e^A + e^A dt) is 1 / (1 + 2^-(f rate + shift)). */
struct kda_gate {
	float rate, shift[2], dt[2];
	float bound[2]; /* lower bound in units of log 2, 0 for a channel that is not there */
};

/** channel: the lane's first of `k` channels of a head. */
static __device__ __forceinline__ struct kda_gate
gate_of(const struct kda_head<k3_bf16> &h, int channel, int k, float lower_bound)
{
	struct kda_gate g;

	g.rate = LOG2_E * h.exp_a;
#pragma unroll
	for (int c = 0; c < 2; c++) {
		bool live = channel + 8 * c < k;

		g.dt[c] = live ? h.dt[channel + 8 * c] : 0.0f;
		g.shift[c] = g.rate * g.dt[c];
		g.bound[c] = live ? LOG2_E * lower_bound : 0.0f;
	}
	return g;
}

/* Inclusive sums over the 8 rows of x[m] of one channel; returns the sum of all. */
static __device__ __forceinline__ float
sum_down(float *x)
{
	int lane = (int)(threadIdx.x & 31), t = lane & 3;
	float all = x[0] + x[1], other;

	other = __shfl_up_sync(0xffffffffu, all, 1);
	all += t >= 1 ? other : 0.0f;
	other = __shfl_up_sync(0xffffffffu, all, 2);
	all += t >= 2 ? other : 0.0f;
	x[0] = all - x[1];
	x[1] = all;
	return __shfl_sync(0xffffffffu, all, lane | 3);
}

/** Decays of the warp's channels from the gate inputs f in a tile. */
template <int COLS>
static __device__ __forceinline__ void
decay_load(struct kda_decay *d, const k3_bf16 *f, int pack, const struct kda_gate &g, int n)
{
	int t = (int)(threadIdx.x & 3);
	float total[8][2];

#pragma unroll
	for (int b = 0; b < 4; b++) {
		kda_frag frag;

		channels_load<COLS>(&frag, f, b * 16, pack);
		fragment_widen(d->e, frag, b);
	}
#pragma unroll
	for (int m = 0; m < 8; m++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float y = -g.rate * d->e[m][i] - g.shift[i >> 1];

			d->e[m][i] = 8 * m + 2 * t + (i & 1) < n
					     ? g.bound[i >> 1] * reciprocal(1.0f + power_of_2(y))
					     : 0.0f;
		}
#pragma unroll
	for (int m = 0; m < 8; m++)
#pragma unroll
		for (int c = 0; c < 2; c++) {
			total[m][c] = sum_down(d->e[m] + 2 * c);
#pragma unroll
			for (int i = 0; i < 2; i++)
				d->e[m][2 * c + i] = power_of_2(d->e[m][2 * c + i] -
								(m & 1 ? 0.0f : total[m][c]));
		}
#pragma unroll
	for (int b = 0; b < 5; b++)
#pragma unroll
		for (int c = 0; c < 2; c++)
			d->step[b][c] = power_of_2((b > 0 ? total[2 * b - 1][c] : 0.0f) +
						   (b < 4 ? total[2 * b][c] : 0.0f));
}

/* Rows 16 b .. 16 b+15 of x times a factor by channels. */
static __device__ __forceinline__ void
scale_block(float (*x)[4], int b, const float *factor)
{
#pragma unroll
	for (int i = 0; i < 8; i++)
		x[2 * b + (i >> 2)][i & 3] *= factor[i >> 1 & 1];
}

/** x, at the chunk's beginning, goes to the rows' pivots and takes up sum_j<=i d[i][j] right[j]
 * on the way; right: tile of rows decayed to their pivots. */
template <int COLS>
static __device__ __forceinline__ void
sum_earlier(float (*x)[4], const struct kda_decay &d, const k3_bf16 *right, int pack,
	    const k3_bf16 *lower)
{
#pragma unroll
	for (int b = 0; b < 4; b++) {
		kda_frag a;

		channels_load<COLS>(&a, right, b * 16, pack);
#pragma unroll
		for (int row = b; row < 4; row++) {
			kda_frag f;

			scale_block(x, row, d.step[b]);
			lower_load(&f, lower, row, b);
			multiply<false>(x + 2 * row, a, f);
		}
	}
}

/** x, at the chunk's end, goes back to the rows' pivots and takes up
 * sum_i>=j d1[i][j] left1[i] + d2[i][j] left2[i]. */
template <int COLS>
static __device__ __forceinline__ void
sum_later(float (*x)[4], const struct kda_decay &d, int pack, const k3_bf16 *left1,
	  const k3_bf16 *d1, const k3_bf16 *left2, const k3_bf16 *d2)
{
#pragma unroll
	for (int b = 3; b >= 0; b--) {
		kda_frag a1, a2;

		channels_load<COLS>(&a1, left1, b * 16, pack);
		channels_load<COLS>(&a2, left2, b * 16, pack);
#pragma unroll
		for (int col = 0; col <= b; col++) {
			kda_frag f;

			scale_block(x, col, d.step[b + 1]);
			lower_load_deep(&f, d1, b, col);
			multiply<false>(x + 2 * col, a1, f);
			lower_load_deep(&f, d2, b, col);
			multiply<false>(x + 2 * col, a2, f);
		}
	}
}

/** x becomes its sums from the last row up, with what all rows get. */
static __device__ __forceinline__ void
sum_up(float (*x)[4], const float *end)
{
	int lane = (int)(threadIdx.x & 31), t = lane & 3;

#pragma unroll
	for (int c = 0; c < 2; c++) {
		float behind = end[c];

#pragma unroll
		for (int m = 7; m >= 0; m--) {
			float *own = x[m] + 2 * c, all = own[0] + own[1], other, rest;

			other = __shfl_down_sync(0xffffffffu, all, 1);
			all += t <= 2 ? other : 0.0f;
			other = __shfl_down_sync(0xffffffffu, all, 2);
			all += t <= 1 ? other : 0.0f;
			rest = __shfl_down_sync(0xffffffffu, all, 1);
			own[1] += (t <= 2 ? rest : 0.0f) + behind;
			own[0] += own[1];
			behind += __shfl_sync(0xffffffffu, all, lane & ~3);
		}
	}
}

/** Sums of df over rows: with f + dt over all channels, and by channels. */
struct kda_gate_sums {
	float da, db[2];
};

/** dG to df through the gate's slope, which is `slope` times that of the sigmoid; f: tile of the
 * gate's inputs. */
template <int COLS>
static __device__ __forceinline__ void
gate_slope(float (*x)[4], struct kda_gate_sums *sum, const k3_bf16 *f, int pack,
	   const struct kda_gate &g, float slope, int n)
{
	int t = (int)(threadIdx.x & 3);
	float with_f[2] = {0, 0}, alone[2] = {0, 0};

#pragma unroll
	for (int b = 0; b < 4; b++) {
		float in[8][4];
		kda_frag frag;

		channels_load<COLS>(&frag, f, b * 16, pack);
		fragment_widen(in, frag, b);
#pragma unroll
		for (int m = 2 * b; m < 2 * b + 2; m++)
#pragma unroll
			for (int i = 0; i < 4; i++) {
				float y = g.rate * in[m][i] + g.shift[i >> 1],
				      small = power_of_2(-fabsf(y)), z = reciprocal(1.0f + small);

				x[m][i] = 8 * m + 2 * t + (i & 1) < n
						  ? x[m][i] * slope * (small * z * z)
						  : 0.0f;
				with_f[i >> 1] += x[m][i] * in[m][i];
				alone[i >> 1] += x[m][i];
			}
	}
#pragma unroll
	for (int c = 0; c < 2; c++) {
		sum->da += with_f[c] + g.dt[c] * alone[c];
		sum->db[c] += alone[c];
	}
}

#endif
