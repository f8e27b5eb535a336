/* Shapes of the vision tower's cases: a tile that holds one image (inside tests/bench). */
#ifndef K3_TESTS_BENCH_VIT_H
#define K3_TESTS_BENCH_VIT_H
#include "bench.h"

struct vit {
	size_t n, h, w;		    /* patches, rows and columns of them */
	size_t d, dq, heads, hd, f; /* widths: tower, attention, its heads, hidden */
	size_t m, c, dt;	    /* merged tokens, their width, that of the text */
	double eps;
};

int32_t *bench_vit_layout(struct bench_case *c, const struct vit *v);
/** rstd of the rows of x [rows, d], and the rows normed with the weight. */
double *bench_vit_rstd(struct bench_case *c, const float *x, size_t rows, size_t d, double eps);
double *bench_vit_normed(struct bench_case *c, const float *x, const float *norm, size_t rows,
			 size_t d, double eps);
/** What bench_rms_back gives for all rows, with `add` [rows, d] added (NULL: nothing); *dnorm
 * [d]. */
double *bench_vit_norm_back(struct bench_case *c, const double *dy, const float *x,
			    const float *norm, const float *add, size_t rows, size_t d, double eps,
			    double **dnorm);

void bench_vit_attn(struct bench *b, const struct vit *v);
void bench_vit_qkv(struct bench *b, const struct vit *v);
void bench_vit_project(struct bench *b, const struct vit *v);
void bench_vit_edges(struct bench *b, const struct vit *v);

#endif
