/* Gradients by the input of weights in row blocks.  The bound for bf16 tells one rounding from
 * several: of sums of 256 normal products the RMS error is 0.00166 with one, 0.00205 with one more
 * after the first half, 0.0035 with one after each of eight blocks (simulated). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../codelets/cuda/gemm.h"
#include "cuda_case.h"

#define TEST(name) Test(cuda_linear, name, .init = cuda_case_need_device, .timeout = 120)

/* buf: dx [t, lddx], dy [t, lddy], then the weight's blocks */
struct dx_args {
	uint32_t n_buf;
	size_t t, r0, r1, lddx, lddy;
	float beta;
	struct k3_weight w;
};

static void
dx_cpu(void *const *buf, const void *args)
{
	const struct dx_args *a = args;
	float *dx = buf[0];
	const float *dy = buf[1];
	double *sum = malloc(a->w.cols * sizeof(*sum));

	for (size_t i = 0; i < a->t; i++) {
		for (size_t c = 0; c < a->w.cols; c++)
			sum[c] = a->beta != 0 ? dx[i * a->lddx + c] : 0;
		for (size_t r = a->r0; r < a->r1; r++) {
			const float *w = (const float *)buf[a->w.first + r / a->w.block_rows] +
					 r % a->w.block_rows * a->w.cols;
			double y = dy[i * a->lddy + r - a->r0];
			for (size_t c = 0; c < a->w.cols; c++)
				sum[c] += y * w[c];
		}
		for (size_t c = 0; c < a->w.cols; c++)
			dx[i * a->lddx + c] = (float)sum[c];
	}
	free(sum);
}

static void
dx_cuda(void *const *buf, const struct dx_args *a, const struct k3_cuda *cuda,
	enum k3_cuda_type type)
{
	k3_cuda_linear_dx(cuda, type, buf[0], a->lddx, a->beta, buf[1], a->lddy, buf, &a->w, a->r0,
			  a->r1, a->t);
}

static void
dx_f32(void *const *buf, const void *args, const struct k3_cuda *cuda)
{
	dx_cuda(buf, args, cuda, K3_CUDA_F32);
}

static void
dx_bf16(void *const *buf, const void *args, const struct k3_cuda *cuda)
{
	dx_cuda(buf, args, cuda, K3_CUDA_BF16);
}

static const struct shape {
	size_t t, cols, rows, block_rows, r0, r1;
	size_t pad; /* elements behind each row of dx */
	float beta;
} shapes[] = {
	{0, 64, 64, 16, 0, 64, 0, 0},	    /* no row */
	{1, 8, 40, 40, 0, 40, 0, 0},	    /* one block: there is no sum of blocks */
	{700, 64, 256, 32, 0, 256, 0, 0},   /* eight */
	{700, 64, 256, 32, 0, 256, 0, 1},   /* and what was there */
	{900, 33, 250, 31, 40, 200, 0, 1},  /* odd width, parts of blocks */
	{900, 40, 250, 31, 31, 93, 3, 0},   /* rows that are not packed */
	{500, 128, 128, 16, 16, 32, 64, 1}, /* one block of several */
	{4700, 2048, 64, 8, 0, 64, 0, 1},   /* more rows than are summed at once */
};

TEST(a_sum_over_blocks_is_rounded_once)
{
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		const struct shape *s = &shapes[i];
		struct dx_args a = {.t = s->t,
				    .r0 = s->r0,
				    .r1 = s->r1,
				    .lddx = s->cols + s->pad,
				    .lddy = s->r1 - s->r0,
				    .beta = s->beta};
		struct cuda_case c;
		char name[32];
		cuda_case_begin(&c, i);
		snprintf(name, sizeof(name), "linear_dx, shape %zu", i);
		/* read as well when it has columns that no one writes */
		cuda_case_add(&c, CUDA_T, s->beta != 0 || s->pad ? CUDA_RW : CUDA_W, s->t * a.lddx,
			      1, "dx");
		/* cuBLAS rounds twice where one product is added to bf16 */
		bool several = s->r0 / s->block_rows != (s->r1 - 1) / s->block_rows;
		cuda_case_tolerance(&c, 1e-5, several ? 0.00185 : 0.004);
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * a.lddy, 1, "dy");
		a.w = cuda_case_weight(&c, CUDA_T, CUDA_R, s->rows, s->cols, s->block_rows, 1, "w");
		cuda_case_compare(&c, name, &a, dx_cpu, dx_f32, dx_bf16, 0);
		cuda_case_end(&c);
	}
}
