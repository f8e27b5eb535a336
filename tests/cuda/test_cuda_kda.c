/* KDA's projections, gates, convolution and output on CUDA against the CPU kernels. */
#include <criterion/criterion.h>
#include <math.h>

#include "../../codelets/cuda/kernels.h"
#include "../../common/op/kda.h"
#include "kda_tile.h"

#define TEST(name) Test(cuda_kda, name, .init = cuda_case_need_device, .timeout = 120)
#define COUNT(x) (sizeof(x) / sizeof((x)[0]))

static const struct shape {
	size_t t, d, h, k, block;
	uint32_t group;
} shapes[] = {{64, 64, 4, 32, 1000, 2}, {257, 72, 3, 24, 40, 2}, {33, 31, 2, 17, 10, 1},
	      {1, 8, 1, 5, 3, 1},	{0, 16, 2, 16, 1000, 2}, {128, 1024, 16, 128, 512, 16},
	      {70, 40, 2, 136, 1000, 2}};

static size_t
groups_of(const struct shape *s)
{
	return (s->h + s->group - 1) / s->group;
}

/* Buffers by head groups, `each` elements a head and row. */
static struct k3_list
by_groups(struct cuda_case *c, enum cuda_operand_type type, enum cuda_operand_mode mode,
	  const struct shape *s, size_t rows, size_t each, size_t more, const char *name)
{
	struct k3_list list = {(uint32_t)c->n, (uint32_t)groups_of(s)};

	for (size_t h = 0; h < s->h; h += s->group) {
		size_t heads = s->h - h < s->group ? s->h - h : s->group;
		cuda_case_add(c, type, mode, heads * (rows * each + more), 1, name);
	}
	return list;
}

TEST(projections_equal_the_cpu)
{
	for (size_t i = 0; i < COUNT(shapes); i++) {
		const struct shape *s = &shapes[i];
		size_t p = s->h * s->k;
		struct k3_kda_proj_args a = {.t = s->t, .d = s->d, .p = p};
		struct cuda_case c;
		double scale = 1 / sqrt((double)s->d);
		for (int adds = 0; adds < 4; adds++) { /* forward, dx, dw, dw that adds */
			cuda_case_begin(&c, i);
			cuda_case_add(&c, CUDA_T, adds < 2 ? CUDA_W : CUDA_R,
				      s->t * (adds == 1 ? s->d : 3 * p), 1, "out");
			cuda_case_add(&c, CUDA_T, CUDA_R, s->t * (adds == 1 ? 3 * p : s->d), 1,
				      "in");
			struct k3_weight *w[] = {&a.wq, &a.wk, &a.wv};
			for (int j = 0; j < 3; j++)
				*w[j] = cuda_case_weight(&c, adds < 2 ? CUDA_T : CUDA_F32,
							 adds < 2    ? CUDA_R
							 : adds == 2 ? CUDA_W
								     : CUDA_RW,
							 p, s->d, s->block, scale, "w");
			if (adds == 0)
				CUDA_CASE_COMPARE(&c, "kda_proj_fwd", &a, k3_kda_proj_fwd_cpu_f32,
						  kda_proj_fwd, 0);
			else if (adds == 1)
				CUDA_CASE_COMPARE(&c, "kda_proj_bwd_dx", &a,
						  k3_kda_proj_bwd_dx_cpu_f32, kda_proj_bwd_dx, 0);
			else
				CUDA_CASE_COMPARE(&c, "kda_proj_bwd_dw", &a,
						  k3_kda_proj_bwd_dw_cpu_f32, kda_proj_bwd_dw, 0);
			cuda_case_end(&c);
		}
	}
}

static void
gate_weights(struct cuda_case *c, struct k3_kda_gate_args *a, enum cuda_operand_type type,
	     enum cuda_operand_mode mode, size_t block)
{
	double scale = 1 / sqrt((double)a->d);

	a->wfa = cuda_case_weight(c, type, mode, a->k, a->d, block, scale, "wfa");
	a->wfb = cuda_case_weight(c, type, mode, a->p, a->k, block, 0.3, "wfb");
	a->wb = cuda_case_weight(c, type, mode, a->h, a->d, block, scale, "wb");
	a->wg = cuda_case_weight(c, type, mode, a->p, a->d, block, scale, "wg");
}

static struct k3_kda_gate_args
gate_args(const struct shape *s)
{
	return (struct k3_kda_gate_args){.t = s->t,
					 .d = s->d,
					 .p = s->h * s->k,
					 .h = s->h,
					 .k = s->k,
					 .group_heads = s->group};
}

TEST(gates_equal_the_cpu)
{
	for (size_t i = 0; i < COUNT(shapes); i++) {
		const struct shape *s = &shapes[i];
		struct k3_kda_gate_args a = gate_args(s);
		struct cuda_case c;
		cuda_case_begin(&c, i);
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->k, 0, "fa");
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * a.p, 0, "f");
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->h, 0, "br");
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * a.p, 0, "gg");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "x");
		gate_weights(&c, &a, CUDA_T, CUDA_R, s->block);
		CUDA_CASE_COMPARE(&c, "kda_gate_fwd", &a, k3_kda_gate_fwd_cpu_f32, kda_gate_fwd, 0);
		cuda_case_end(&c);
	}
}

TEST(input_gradients_of_gates_equal_the_cpu)
{
	for (size_t i = 0; i < COUNT(shapes); i++) {
		const struct shape *s = &shapes[i];
		struct k3_kda_gate_args a = gate_args(s);
		struct cuda_case c;
		cuda_case_begin(&c, i);
		cuda_case_add(&c, CUDA_T, CUDA_RW, s->t * s->d, 1, "dx");
		/* rounded once per contribution */
		cuda_case_tolerance(&c, 0, 1e-2);
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->k, 0, "dfa");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * a.p, 1, "dgg");
		a.df = by_groups(&c, CUDA_T, CUDA_R, s, s->t, s->k, 0, "df");
		a.dbr = by_groups(&c, CUDA_T, CUDA_R, s, s->t, 1, 0, "dbr");
		gate_weights(&c, &a, CUDA_T, CUDA_R, s->block);
		CUDA_CASE_COMPARE(&c, "kda_gate_bwd_dx", &a, k3_kda_gate_bwd_dx_cpu_f32,
				  kda_gate_bwd_dx, 0);
		cuda_case_end(&c);
	}
}

TEST(weight_gradients_of_gates_are_written_or_added)
{
	for (size_t i = 0; i < COUNT(shapes); i++)
		for (int adds = 0; adds < 2; adds++) {
			const struct shape *s = &shapes[i];
			struct k3_kda_gate_args a = gate_args(s);
			enum cuda_operand_mode mode = adds ? CUDA_RW : CUDA_W;
			struct cuda_case c;
			cuda_case_begin(&c, i);
			cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->k, 1, "dfa");
			cuda_case_add(&c, CUDA_T, CUDA_R, s->t * a.p, 1, "dgg");
			cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "x");
			cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->k, 1, "fa");
			a.df = by_groups(&c, CUDA_T, CUDA_R, s, s->t, s->k, 0, "df");
			a.dbr = by_groups(&c, CUDA_T, CUDA_R, s, s->t, 1, 0, "dbr");
			a.dab = by_groups(&c, CUDA_F32, CUDA_R, s, 0, 0, 1 + s->k, "dab");
			gate_weights(&c, &a, CUDA_F32, mode, s->block);
			a.a_log = cuda_case_weight(&c, CUDA_F32, mode, 1, s->h, 1, 1, "a_log");
			a.dt_bias = cuda_case_weight(&c, CUDA_F32, mode, 1, a.p, 1, 1, "dt_bias");
			CUDA_CASE_COMPARE(&c, "kda_gate_bwd_dw", &a, k3_kda_gate_bwd_dw_cpu_f32,
					  kda_gate_bwd_dw, 0);
			cuda_case_end(&c);
		}
}

static struct k3_kda_out_args
out_args(const struct shape *s)
{
	return (struct k3_kda_out_args){.t = s->t,
					.d = s->d,
					.p = s->h * s->k,
					.h = s->h,
					.v = s->k,
					.eps = 1e-5f,
					.group_heads = s->group};
}

TEST(output_equals_the_cpu)
{
	for (size_t i = 0; i < COUNT(shapes); i++)
		for (size_t with_p = 0; with_p < 2; with_p++) {
			const struct shape *s = &shapes[i];
			struct k3_kda_out_args a = out_args(s);
			struct cuda_case c;
			cuda_case_begin(&c, i);
			cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->d, 0, "p_out");
			cuda_case_add(&c, CUDA_T, CUDA_R, s->t * a.p, 1, "gg");
			cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * s->t * a.p, 0, "work");
			a.o = by_groups(&c, CUDA_T, CUDA_R, s, s->t, s->k, 0, "o");
			a.p_in = cuda_case_list(&c, CUDA_T, CUDA_R, with_p, s->t * s->d, 1, "p_in");
			a.on = cuda_case_weight(&c, CUDA_F32, CUDA_R, 1, s->k, 1, 1, "on");
			a.wo = cuda_case_weight(&c, CUDA_T, CUDA_R, s->d, a.p, s->block, 0.1, "wo");
			CUDA_CASE_COMPARE(&c, "kda_out_fwd", &a, k3_kda_out_fwd_cpu_f32,
					  kda_out_fwd, 0);
			cuda_case_end(&c);
		}
}

TEST(gradients_of_the_output_equal_the_cpu)
{
	for (size_t i = 0; i < COUNT(shapes); i++)
		for (int adds = 0; adds < 2; adds++) {
			const struct shape *s = &shapes[i];
			struct k3_kda_out_args a = out_args(s);
			enum cuda_operand_mode mode = adds ? CUDA_RW : CUDA_W;
			struct cuda_case c;
			cuda_case_begin(&c, i);
			cuda_case_add(&c, CUDA_T, CUDA_W, s->t * a.p, 0, "dgg");
			cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "dp");
			cuda_case_add(&c, CUDA_T, CUDA_R, s->t * a.p, 1, "gg");
			cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * s->t * a.p, 0, "work");
			a.dout = by_groups(&c, CUDA_T, CUDA_W, s, s->t, s->k, 0, "dout");
			a.o = by_groups(&c, CUDA_T, CUDA_R, s, s->t, s->k, 0, "o");
			a.don = cuda_case_weight(&c, CUDA_F32, mode, 1, s->k, 1, 1, "don");
			a.on = cuda_case_weight(&c, CUDA_F32, CUDA_R, 1, s->k, 1, 1, "on");
			a.wo = cuda_case_weight(&c, CUDA_T, CUDA_R, s->d, a.p, s->block, 0.1, "wo");
			CUDA_CASE_COMPARE(&c, "kda_out_bwd_dx", &a, k3_kda_out_bwd_dx_cpu_f32,
					  kda_out_bwd_dx, k3_kda_out_bwd_dx_cuda_scratch(&a));
			cuda_case_end(&c);
			cuda_case_begin(&c, i);
			cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "dp");
			cuda_case_add(&c, CUDA_T, CUDA_R, s->t * a.p, 1, "gg");
			cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * s->t * a.p, 0, "work");
			a.o = by_groups(&c, CUDA_T, CUDA_R, s, s->t, s->k, 0, "o");
			a.on = cuda_case_weight(&c, CUDA_F32, CUDA_R, 1, s->k, 1, 1, "on");
			a.wo = cuda_case_weight(&c, CUDA_F32, mode, s->d, a.p, s->block, 1, "wo");
			CUDA_CASE_COMPARE(&c, "kda_out_bwd_dw", &a, k3_kda_out_bwd_dw_cpu_f32,
					  kda_out_bwd_dw, 0);
			cuda_case_end(&c);
		}
}
