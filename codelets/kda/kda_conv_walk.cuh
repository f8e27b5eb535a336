/* KDA's convolution backward, fast: a warp walks over a strip with 128 neighbouring channels of q,
 * k or v, four to a lane, so that enough warps share a multiprocessor.
 *
 * Positions are taken two at a time, their sums over a head together.  Between boxes the window has
 * one form: inputs of the three positions before in u[5], u[6], u[7], their incomplete gradients in
 * du[1], du[2], du[3].  The loop of whole turns of eight positions renames registers in place of
 * moving values; all that is special, the ends of documents and holes, goes through a small loop
 * that moves them.  The trap: special cases inside of the turns do not fit into the instruction
 * cache.
 */
#ifndef K3_KDA_CONV_WALK_CUH
#define K3_KDA_CONV_WALK_CUH
#include "kda_conv_boxes.cuh"

enum { WALK_TURN = 8 }; /* positions */

struct walk {
	float w[CONV_TAPS][WALK_N], dw[CONV_TAPS][WALK_N];
	float u[WALK_TURN][WALK_N], du[4][WALK_N]; /* by position and by position modulo 4 */
};

/* Sums of two values over a head.  A whole warp folds both into one. */
static __device__ __forceinline__ void
pair_sums(float *x, int lanes)
{
	const bool upper = threadIdx.x & 16;

	if (lanes < 32) {
		x[0] = lanes_sum(x[0], lanes);
		x[1] = lanes_sum(x[1], lanes);
		return;
	}
	float both = upper ? x[1] : x[0];
	both += __shfl_xor_sync(0xffffffffu, upper ? x[0] : x[1], 16);
#pragma unroll
	for (int step = 8; step > 0; step >>= 1)
		both += __shfl_xor_sync(0xffffffffu, both, step);
	x[0] = __shfl_sync(0xffffffffu, both, 0);
	x[1] = __shfl_sync(0xffffffffu, both, 16);
}

/* Rows j and j + 1 of a box become positions i and i + 1 of the turn: da from dy, through y = r s
 * and s = a sigmoid(a), with a the convolution of four inputs. */
template <typename T>
static __device__ __forceinline__ void
pair_gradients(float (*da)[WALK_N], struct walk *x, int i, const struct walk_stage<T> *stage, int j,
	       float factors, bool normed, int lanes)
{
	const int c = (int)threadIdx.x % 32 * WALK_N;
	float s[2][WALK_N], slope[2][WALK_N], dot[2] = {}, r[2];

#pragma unroll
	for (int b = 0; b < 2; b++) {
		run_load<T, WALK_N>(x->u[i + b], &stage->u[j + b][c]);
		run_load<T, WALK_N>(da[b], &stage->dy[j + b][c]);
		r[b] = __shfl_sync(0xffffffffu, factors, j + b, walk_stage<T>::rows);
#pragma unroll
		for (int k = 0; k < WALK_N; k++) {
			float a = x->w[0][k] * x->u[(i + b + 5) % 8][k];
			a += x->w[1][k] * x->u[(i + b + 6) % 8][k];
			a += x->w[2][k] * x->u[(i + b + 7) % 8][k];
			a += x->w[3][k] * x->u[i + b][k];
			float z = sigmoid(a);
			s[b][k] = a * z;
			slope[b][k] = z + s[b][k] * (1.0f - z);
			dot[b] += da[b][k] * s[b][k];
		}
	}
	if (normed)
		pair_sums(dot, lanes);
#pragma unroll
	for (int b = 0; b < 2; b++) {
		dot[b] *= r[b] * r[b];
#pragma unroll
		for (int k = 0; k < WALK_N; k++)
			da[b][k] = normed ? r[b] * (da[b][k] - dot[b] * s[b][k]) * slope[b][k]
					  : da[b][k] * slope[b][k];
	}
}

/* Adds da of two positions to the input gradients that they take part in; `done` are those of the
 * positions three before. */
static __device__ __forceinline__ void
pair_inputs(float (*done)[WALK_N], struct walk *x, int i, const float (*da)[WALK_N])
{
	float(*du)[WALK_N] = x->du;

#pragma unroll
	for (int k = 0; k < WALK_N; k++) {
		done[0][k] = du[(i + 1) % 4][k] + x->w[0][k] * da[0][k];
		done[1][k] = du[(i + 2) % 4][k] + x->w[1][k] * da[0][k];
		done[1][k] += x->w[0][k] * da[1][k];
		du[(i + 3) % 4][k] += x->w[2][k] * da[0][k];
		du[(i + 3) % 4][k] += x->w[1][k] * da[1][k];
		du[i % 4][k] = x->w[3][k] * da[0][k];
		du[i % 4][k] += x->w[2][k] * da[1][k];
		du[(i + 1) % 4][k] = x->w[3][k] * da[1][k];
	}
}

/* Adds da of the turn's position i to the gradients of the taps. */
static __device__ __forceinline__ void
add_taps(struct walk *x, int i, const float *da)
{
#pragma unroll
	for (int j = 0; j < CONV_TAPS; j++)
#pragma unroll
		for (int k = 0; k < WALK_N; k++)
			x->dw[j][k] += x->u[(i + 5 + j) % 8][k] * da[k];
}

/* Turns from position m on, inside of a document whose rows follow each other, as far as they end
 * before `inner`, where a warp has one head; the position behind them. */
template <typename T>
static __device__ __forceinline__ int
walk_turns(struct walk *x, struct walk_source<T> *from, const struct walk_span &span, int m,
	   int inner, float *factors, bool normed, T *out)
{
	const int rows = walk_stage<T>::rows;

	for (; m + WALK_TURN <= inner; m += WALK_TURN)
#pragma unroll
		for (int i = 0; i < WALK_TURN; i += rows) {
			float r = *factors;
			if (normed)
				*factors = walk_factors<T>(*from, span, m + i + rows);
			const struct walk_stage<T> *stage = walk_wait<T>(*from);
#pragma unroll
			for (int j = 0; j < rows; j += 2) {
				float da[2][WALK_N], done[2][WALK_N];
				pair_gradients<T>(da, x, i + j, stage, j, r, normed, 32);
				pair_inputs(done, x, i + j, da);
				run_store<T, WALK_N>(out, done[0]);
				run_store<T, WALK_N>(out + from->u_pitch, done[1]);
				out += 2 * (size_t)from->u_pitch;
				add_taps(x, i + j, da[0]);
				add_taps(x, i + j + 1, da[1]);
			}
			walk_next<T>(from, span, m + i + rows * walk_ring<T>::stages, true);
		}
	return m;
}

/* The window's form after positions 0 and 1 of a turn, as before position 0. */
static __device__ __forceinline__ void
walk_move(struct walk *x)
{
#pragma unroll
	for (int k = 0; k < WALK_N; k++) {
		float last = x->du[1][k];

		x->u[5][k] = x->u[7][k], x->u[6][k] = x->u[0][k], x->u[7][k] = x->u[1][k];
		x->du[1][k] = x->du[3][k], x->du[2][k] = x->du[0][k], x->du[3][k] = last;
	}
}

/* The positions of a box anywhere, from m on. */
template <typename T>
static __device__ __forceinline__ void
walk_box(struct walk *x, struct walk_source<T> *from, const struct conv_bwd &b,
	 const struct conv_strip &s, const struct walk_span &span, int m, float *factors)
{
	const struct walk_stage<T> *stage = walk_wait<T>(*from);
	const int rows = walk_stage<T>::rows;

#pragma unroll 1
	for (int j = 0; j < rows; j += 2, m += 2) {
		float da[2][WALK_N], done[2][WALK_N];

		pair_gradients<T>(da, x, 0, stage, j, *factors, from->normed, from->lanes);
#pragma unroll
		for (int k = 0; k < WALK_N; k++) {
			da[0][k] = m < span.hi ? da[0][k] : 0.0f;
			da[1][k] = m + 1 < span.hi ? da[1][k] : 0.0f;
		}
		pair_inputs(done, x, 0, da);
#pragma unroll
		for (int a = 0; a < 2; a++) {
			int n = m + a - (CONV_TAPS - 1);
			if (n >= span.lo && n < span.last)
				conv_let_go<T, WALK_N>(done[a], b, s, span.rows.order, n);
			if (m + a < span.last)
				add_taps(x, a, da[a]);
		}
		walk_move(x);
	}
	*factors = walk_factors<T>(*from, span, m);
	walk_next<T>(from, span, m + rows * (walk_ring<T>::stages - 1), span.rows.dense);
}

/* Begins a document: its first boxes, then the window before it. */
template <typename T>
static __device__ __forceinline__ void
walk_begin(struct walk *x, const struct walk_source<T> &from, const struct conv_bwd &b,
	   const struct conv_place &doc, const struct walk_span &span, size_t col)
{
	const uint32_t stages = walk_ring<T>::stages;

	if (lane_elected())
#pragma unroll 1
		for (uint32_t i = 0; i < stages; i++) {
			int q = span.lo + (int)i * walk_stage<T>::rows;
			if (q < span.last + CONV_TAPS - 1)
				walk_ask<T>(from, span, (from.at + i) % stages, q, span.rows.dense);
		}
	conv_window<T, WALK_N>(x->u + 4, b.c, col, doc, span.rows.order, span.lo);
#pragma unroll
	for (int j = 1; j < 4; j++)
#pragma unroll
		for (int k = 0; k < WALK_N; k++)
			x->du[j][k] = 0;
}

/* Positions lo .. hi-1 of a document; those from the strip's end on belong to the next strip. */
template <typename T>
static __device__ __forceinline__ void
walk_document(struct walk *x, struct walk_source<T> *from, const struct conv_bwd &b,
	      const struct conv_strip &s, const struct conv_place &doc, int lo, int hi)
{
	const int32_t *order = conv_order(b.c.layout);
	struct walk_span span = {conv_rows_of(order, lo, hi), lo, hi, hi < s.i1 ? hi : s.i1};
	const int back = s.valid - (CONV_TAPS - 1); /* from there on gradients come back */
	int inner = b.dhalo_out && span.last > back ? back : span.last;

	if (!span.rows.dense || from->lanes < 32)
		inner = lo;
	walk_begin<T>(x, *from, b, doc, span, s.col);
	float factors = walk_factors<T>(*from, span, lo);
	for (int m = lo; m < span.last + CONV_TAPS - 1;) {
		walk_box<T>(x, from, b, s, span, m, &factors);
		m += walk_stage<T>::rows;
		T *out = (T *)b.dx + s.col +
			 (ptrdiff_t)(m - (CONV_TAPS - 1) + span.rows.shift) * from->u_pitch;
		if (from->normed)
			m = walk_turns<T>(x, from, span, m, inner, &factors, true, out);
		else
			m = walk_turns<T>(x, from, span, m, inner, &factors, false, out);
	}
}

#endif
