/* One tile that holds one image; what the vision cases share. */
#ifndef K3_TESTS_BENCH_VIT_H
#define K3_TESTS_BENCH_VIT_H
#include "bench.h"

struct bench_vit_shape {
	size_t rows, cols, n, m; /* grid, patches, merged tokens */
	size_t d, dq, h, hd, f, c, dt, pixels;
	const struct k3_vision_config *v;
};

/** A grid of about as many patches as a tile has tokens, in whole merge rows and columns. */
struct bench_vit_shape bench_vit_shape(const struct bench *b);
int32_t *bench_vit_layout(struct bench_case *c, const struct bench_vit_shape *x);
/** All rows of x [n, d] normed, rounded. */
float *bench_vit_normed(struct bench_case *c, const float *x, const float *w, size_t n, size_t d,
			double eps);
/** 1 / sqrt(mean x^2 + eps) of all rows. */
double *bench_vit_factors(struct bench_case *c, const float *x, size_t n, size_t d, double eps);

void bench_vit_ends(struct bench *b);
void bench_vit_qkv(struct bench *b);
void bench_vit_attn(struct bench *b);
void bench_vit_out(struct bench *b);
void bench_vit_mlp(struct bench *b);
void bench_vit_project(struct bench *b);

#endif
