/* The loops over channels of the chunk kernel, sixteen lanes wide, and the chunk they work on.
 *
 * Widths are padded to whole panels and rows to whole sub-blocks with zeros, which change nothing:
 * q = k = v = 0, beta = 0 and g = 0 in padded rows.
 *
 * Decay without overflow (no exponent above 0): l is the sum of g inside a sub-block of 16 rows,
 * inclusive, and el = exp(l),  er = exp(l[last] - l),  et[b] = exp(l[last of b]),  pre[b] = prod
 * et[< b],  suf[b] = prod et[> b]. Then exp(G_i - G_j) with i in block I behind j in block J is
 * el_i * prod et[J+1 .. I-1] * er_j, and inside a block exp(l_i - l_j).  Sums of 16 rows stay
 * short, which keeps the rounding of the exponents small too.
 */
#ifndef K3_KDA_LANES_H
#define K3_KDA_LANES_H
#include <stddef.h>
#include <stdint.h>

#include "../linalg/lanes.h"

enum { K3I_CHUNK = 64, K3I_SUB = 16, K3I_BLOCKS = K3I_CHUNK / K3I_SUB };

struct k3i_kda_chunk {
	size_t rows, kp, vp; /* padded */
	size_t n_rows, k, v; /* true */
	float scale, exp_a, lower_bound;
	float *q, *k_ck, *v_cv; /* [rows, kp], [rows, kp], [rows, vp] */
	float *x, *dt;		/* gate input [rows, kp], bias [kp] */
	float *beta;		/* [rows] */
	float *l, *el, *er;	/* [rows, kp]; l holds g before `decay` */
	float *et, *pre, *suf;	/* [BLOCKS (+ 1), kp]; pre[blocks] = exp(G of the last row) */
	float *kbar;		/* [rows, kp] k * exp(G_last - G) */
	float *m, *p, *t;	/* [rows, CHUNK] lower triangles */
	float *wu;		/* [rows, kp + vp]: W | U */
	float *qd;		/* [rows, kp]: -s q exp(G) */
	float *xy;		/* [rows, kp + vp]: beta k exp(G) | beta v */
	float *vt, *o;		/* [rows, vp]: V~, output */
	float *s;		/* [kp, vp] entering state */
	float *panels;		/* right operand of the product at work */
};

/** Gradients inside one chunk. */
struct k3i_kda_chunk_grad {
	float *e;			  /* [2 rows, kp + vp]: dW | dU, then -do S^T | unused */
	float *dxy;			  /* [rows, kp + vp] */
	float *dkbar;			  /* [rows, kp] */
	float *dp, *dm;			  /* [rows, CHUNK]; dm holds -dL on entry of wy */
	float *dq, *dk_row, *dk_col, *dg; /* [rows, kp]; dk_row is all of dk in the end */
	float *dbeta;			  /* [rows] */
	float *dg_last;			  /* [kp] */
	float *ds;			  /* [kp, vp] gradient of the leaving state */
	float *dab; /* [1 + kp]: dA_log, ddt_bias of the head; sums over chunks */
};

struct k3i_kda_lanes {
	/** l = lower_bound * sigmoid(exp_a * (x + dt)) */
	void (*gate)(const struct k3i_kda_chunk *c);
	/** g in l -> l, el, er, et, pre, suf, kbar, xy and qd. */
	void (*decay)(const struct k3i_kda_chunk *c);
	/** Diagonal block b of m and p (p without scale). */
	void (*diagonal)(const struct k3i_kda_chunk *c, size_t b);
	/** t = (I + diag(beta) m)^-1 */
	void (*inverse)(const struct k3i_kda_chunk *c);
	/** y[r] = x[r] * w[r] elementwise over n floats, n a multiple of the lanes; may alias. */
	void (*mul)(float *y, const float *x, const float *w, size_t n);
	/** y += x * w */
	void (*muladd)(float *y, const float *x, const float *w, size_t n);
	/** y *= w */
	void (*scale_all)(float *y, float w, size_t n);
	/** Each of the rows of y [rows, n] times w [n]. */
	void (*mul_rows)(float *y, const float *w, size_t rows, size_t n);
	/** Row r of y [rows, n] times w[r]. */
	void (*scale_rows)(float *y, const float *w, size_t rows, size_t n);
	/** dv (into dxy), dbeta, dm, dg_last and the parts of dq, dk_row, dk_col outside the
	 * triangles. */
	void (*wy)(const struct k3i_kda_chunk *c, const struct k3i_kda_chunk_grad *d);
	/** Adds diagonal block b of the decayed sums to dq, dk_row, dk_col. */
	void (*diagonal_bwd)(const struct k3i_kda_chunk *c, const struct k3i_kda_chunk_grad *d,
			     size_t b);
	/** dg from the products with dq, dk and dg_last; then dk_row += dk_col. */
	void (*gate_sum)(const struct k3i_kda_chunk *c, const struct k3i_kda_chunk_grad *d);
	/** dg -> gradient of x in place; adds to dab. */
	void (*gate_bwd)(const struct k3i_kda_chunk *c, const struct k3i_kda_chunk_grad *d);
	/** Products with the right operand in panels; see ../linalg/panel_body.h. */
	void (*panel_rows)(float *b, size_t ldb, const float *x, size_t ld, size_t k, size_t n,
			   const int32_t *keep);
	void (*panel_columns)(float *b, size_t ldb, const float *x, size_t ld, size_t n, size_t k);
	void (*product)(float *c, size_t ldc, int add, float alpha, const float *a, size_t rs,
			size_t cs, const float *b, size_t ldb, size_t m, size_t n, size_t k);
	/** Panels of x * w elementwise, both [rows, n] without padding. */
	void (*panel_mul)(float *b, size_t ldb, const float *x, const float *w, size_t rows,
			  size_t n);
};

extern const struct k3i_kda_lanes k3i_kda_lanes_base, k3i_kda_lanes_avx2, k3i_kda_lanes_avx512;

/** The widest implementation that this processor runs; all give the same sums up to fused rounding.
 */
const struct k3i_kda_lanes *k3i_kda_lanes(void);

#endif
