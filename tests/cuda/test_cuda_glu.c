/* SiTU feed-forward on CUDA against the CPU kernels: whole and odd widths, weights in blocks, no rows. */
#include <criterion/criterion.h>

#include "../../common/op/glu.h"
#include "cuda_case.h"
#include "../../codelets/cuda/kernels.h"

#define TEST(name) Test(cuda_glu, name, .init = cuda_case_need_device, .timeout = 120)

static const struct shape {
	size_t t, d, f, block;
} shapes[] = {{64, 64, 128, 1000},
	      {257, 72, 56, 24},
	      {33, 31, 17, 10},
	      {1, 8, 5, 3},
	      {512, 256, 512, 256}};

static struct k3_glu_args
args_of(const struct shape *s)
{
	return (struct k3_glu_args){.t = s->t, .d = s->d, .f = s->f, .beta1 = 4, .beta2 = 25};
}

static void
weights(struct cuda_case *c, struct k3_glu_args *a, enum cuda_operand_type type,
	enum cuda_operand_mode mode, size_t block)
{
	a->w1 = cuda_case_weight(c, type, mode, a->f, a->d, block, 0.2, "w1");
	a->w3 = cuda_case_weight(c, type, mode, a->f, a->d, block, 0.2, "w3");
	a->w2 = cuda_case_weight(c, type, mode, a->d, a->f, block, 0.2, "w2");
}

TEST(forward_equals_the_cpu)
{
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		for (size_t with_p = 0; with_p < 2; with_p++) {
			const struct shape *s = &shapes[i];
			struct k3_glu_args a = args_of(s);
			struct cuda_case c;
			cuda_case_begin(&c, i);
			cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->d, 0, "y");
			cuda_case_add(&c, CUDA_T, CUDA_W, s->t * 2 * s->f, 0, "gu");
			cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "x");
			cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * s->t * s->f, 0, "work");
			a.p_in = cuda_case_list(&c, CUDA_T, CUDA_R, with_p, s->t * s->d, 1, "p_in");
			weights(&c, &a, CUDA_T, CUDA_R, s->block);
			CUDA_CASE_COMPARE(&c, "glu_fwd", &a, k3_glu_fwd_cpu_f32, glu_fwd, 0);
			cuda_case_end(&c);
		}
}

TEST(products_alone_equal_the_cpu)
{
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		const struct shape *s = &shapes[i];
		struct k3_glu_args a = args_of(s);
		struct cuda_case c;
		cuda_case_begin(&c, i);
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * 2 * s->f, 0, "gu");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "x");
		a.w1 = cuda_case_weight(&c, CUDA_T, CUDA_R, s->f, s->d, s->block, 0.2, "w1");
		a.w3 = cuda_case_weight(&c, CUDA_T, CUDA_R, s->f, s->d, s->block, 0.2, "w3");
		CUDA_CASE_COMPARE(&c, "glu_gu", &a, k3_glu_gu_cpu_f32, glu_gu, 0);
		cuda_case_end(&c);
	}
}

TEST(input_gradients_equal_the_cpu)
{
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		const struct shape *s = &shapes[i];
		struct k3_glu_args a = args_of(s);
		struct cuda_case c;
		cuda_case_begin(&c, i);
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->d, 0, "dx");
		/* dh, dgu and the first of two products are rounded on the way */
		cuda_case_tolerance(&c, 0, 7e-3);
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * 2 * s->f, 0, "dgu");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "dy");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * 2 * s->f, 2, "gu");
		cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * s->t * s->f, 0, "work");
		weights(&c, &a, CUDA_T, CUDA_R, s->block);
		CUDA_CASE_COMPARE(&c, "glu_bwd_dx", &a, k3_glu_bwd_dx_cpu_f32, glu_bwd_dx, 0);
		cuda_case_end(&c);
	}
}

TEST(weight_gradients_are_written_or_added)
{
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		for (int adds = 0; adds < 2; adds++) {
			const struct shape *s = &shapes[i];
			struct k3_glu_args a = args_of(s);
			struct cuda_case c;
			cuda_case_begin(&c, i);
			cuda_case_add(&c, CUDA_T, CUDA_R, s->t * 2 * s->f, 1, "dgu");
			cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "dy");
			cuda_case_add(&c, CUDA_T, CUDA_R, s->t * 2 * s->f, 2, "gu");
			cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "x");
			cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * s->t * s->f, 0, "work");
			weights(&c, &a, CUDA_F32, adds ? CUDA_RW : CUDA_W, s->block);
			CUDA_CASE_COMPARE(&c, "glu_bwd_dw", &a, k3_glu_bwd_dw_cpu_f32, glu_bwd_dw,
					  0);
			cuda_case_end(&c);
		}
}
