/* Projections, expansion and gated output of MLA on CUDA against the CPU kernels: odd widths,
 * weights in blocks, groups of heads of which the last is smaller, no rows. */
#include <criterion/criterion.h>

#include "../../common/op/mla.h"
#include "cuda_case.h"
#include "../../codelets/cuda/kernels.h"

#define TEST(name) Test(cuda_mla, name, .init = cuda_case_need_device, .timeout = 120)

static const struct shape {
	size_t t, d, h, nope, rope, v, rq, rkv, block;
	uint32_t group;
} shapes[] = {
	{64, 64, 4, 32, 16, 32, 48, 40, 1000, 4}, {33, 31, 3, 7, 5, 9, 13, 11, 10, 2},
	{257, 72, 5, 16, 8, 24, 56, 64, 24, 2},	  {0, 16, 2, 8, 8, 8, 16, 16, 16, 1},
	{1, 16, 2, 8, 8, 8, 16, 16, 16, 1},	  {96, 1024, 16, 128, 64, 128, 512, 256, 4096, 8}};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

static size_t
groups(const struct shape *s)
{
	return (s->h + s->group - 1) / s->group;
}

/* One buffer [t, heads * per_head + shared] for each group of heads. */
static struct k3_list
group_list(struct cuda_case *c, enum cuda_operand_type type, enum cuda_operand_mode mode,
	   const struct shape *s, size_t per_head, size_t shared, const char *name)
{
	struct k3_list list = {(uint32_t)c->n, (uint32_t)groups(s)};

	for (size_t h = 0; h < s->h; h += s->group) {
		size_t heads = s->h - h < s->group ? s->h - h : s->group;
		cuda_case_add(c, type, mode, s->t * (heads * per_head + shared), 1, name);
	}
	return list;
}

static struct k3_mla_proj_args
proj_args(const struct shape *s)
{
	return (struct k3_mla_proj_args){.t = s->t,
					 .d = s->d,
					 .h = s->h,
					 .kq = s->nope + s->rope,
					 .v = s->v,
					 .rq = s->rq,
					 .rkv = s->rkv,
					 .rope = s->rope,
					 .eps = 1e-5f,
					 .group_heads = s->group};
}

static double
scale_of(size_t width)
{
	double root = 1;

	while (root * root < (double)width)
		root++;
	return 1 / root;
}

static void
proj_weights(struct cuda_case *c, struct k3_mla_proj_args *a, const struct shape *s)
{
	double narrow = scale_of(s->d);

	a->wqa = cuda_case_weight(c, CUDA_T, CUDA_R, s->rq, s->d, s->block, narrow, "wqa");
	a->qn = cuda_case_weight(c, CUDA_F32, CUDA_R, 1, s->rq, 1, 1, "qn");
	a->wqb = cuda_case_weight(c, CUDA_T, CUDA_R, s->h * a->kq, s->rq, s->block, scale_of(s->rq),
				  "wqb");
	a->wkva = cuda_case_weight(c, CUDA_T, CUDA_R, s->rkv + s->rope, s->d, s->block, narrow,
				   "wkva");
	a->wgate =
		cuda_case_weight(c, CUDA_T, CUDA_R, s->h * s->v, s->d, s->block, narrow, "wgate");
}

TEST(projections_equal_the_cpu)
{
	for (size_t i = 0; i < SHAPES; i++) {
		const struct shape *s = &shapes[i];
		struct k3_mla_proj_args a = proj_args(s);
		struct cuda_case c;
		cuda_case_begin(&c, i);
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->rq, 0, "qa");
		/* norm of what bf16 rounded once, then a product of what it rounded again */
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->h * a.kq, 0, "q");
		cuda_case_tolerance(&c, 1e-5, 1e-2);
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * (s->rkv + s->rope), 0, "c");
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->h * s->v, 0, "zg");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "x");
		cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * s->t * s->rq, 0, "work");
		proj_weights(&c, &a, s);
		CUDA_CASE_COMPARE(&c, "mla_proj_fwd", &a, k3_mla_proj_fwd_cpu_f32, mla_proj_fwd, 0);
		cuda_case_end(&c);
	}
}

TEST(gradients_through_projections_equal_the_cpu)
{
	for (size_t i = 0; i < SHAPES; i++) {
		const struct shape *s = &shapes[i];
		struct k3_mla_proj_args a = proj_args(s);
		struct cuda_case c;
		cuda_case_begin(&c, i);
		/* sums over groups and three products are rounded in between */
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->d, 0, "dx");
		cuda_case_tolerance(&c, 1e-5, 1e-2);
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->rq, 0, "dqa");
		cuda_case_tolerance(&c, 1e-5, 1e-2);
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * (s->rkv + s->rope), 1, "dc");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->h * s->v, 1, "dzg");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->rq, 1, "qa");
		cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * s->t * s->rq, 0, "work");
		a.dq = group_list(&c, CUDA_T, CUDA_R, s, a.kq, 0, "dq");
		a.dqn = cuda_case_weight(&c, CUDA_F32, i % 2 ? CUDA_RW : CUDA_W, 1, s->rq, 1, 1,
					 "dqn");
		proj_weights(&c, &a, s);
		CUDA_CASE_COMPARE(&c, "mla_proj_bwd_dx", &a, k3_mla_proj_bwd_dx_cpu_f32,
				  mla_proj_bwd_dx, k3_mla_proj_bwd_dx_cuda_scratch(&a));
		cuda_case_end(&c);
	}
}

TEST(gradients_of_projections_are_written_or_added)
{
	for (size_t i = 0; i < 2 * SHAPES; i++) {
		const struct shape *s = &shapes[i / 2];
		enum cuda_operand_mode mode = i % 2 ? CUDA_RW : CUDA_W;
		struct k3_mla_proj_args a = proj_args(s);
		struct cuda_case c;
		cuda_case_begin(&c, i);
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->rq, 1, "dqa");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * (s->rkv + s->rope), 1, "dc");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->h * s->v, 1, "dzg");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->rq, 1, "qa");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "x");
		cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * s->t * s->rq, 0, "work");
		a.dq = group_list(&c, CUDA_T, CUDA_R, s, a.kq, 0, "dq");
		a.qn = cuda_case_weight(&c, CUDA_F32, CUDA_R, 1, s->rq, 1, 1, "qn");
		a.wqa = cuda_case_weight(&c, CUDA_F32, mode, s->rq, s->d, s->block, 1, "dwqa");
		a.wqb = cuda_case_weight(&c, CUDA_F32, mode, s->h * a.kq, s->rq, s->block, 1,
					 "dwqb");
		a.wkva = cuda_case_weight(&c, CUDA_F32, mode, s->rkv + s->rope, s->d, s->block, 1,
					  "dwkva");
		a.wgate = cuda_case_weight(&c, CUDA_F32, mode, s->h * s->v, s->d, s->block, 1,
					   "dwgate");
		CUDA_CASE_COMPARE(&c, "mla_proj_bwd_dw", &a, k3_mla_proj_bwd_dw_cpu_f32,
				  mla_proj_bwd_dw, 0);
		cuda_case_end(&c);
	}
}

static struct k3_mla_expand_args
expand_args(const struct shape *s)
{
	return (struct k3_mla_expand_args){.t = s->t,
					   .h = s->h,
					   .nope = s->nope,
					   .rope = s->rope,
					   .v = s->v,
					   .rkv = s->rkv,
					   .eps = 1e-5f,
					   .group_heads = s->group};
}

static void
expand_weights(struct cuda_case *c, struct k3_mla_expand_args *a, const struct shape *s,
	       enum cuda_operand_type type, enum cuda_operand_mode mode)
{
	a->kn = cuda_case_weight(c, CUDA_F32, CUDA_R, 1, s->rkv, 1, 1, "kn");
	a->wkvb = cuda_case_weight(c, type, mode, s->h * (s->nope + s->v), s->rkv, s->block,
				   scale_of(s->rkv), "wkvb");
}

TEST(expansion_equals_the_cpu)
{
	for (size_t i = 0; i < SHAPES; i++) {
		const struct shape *s = &shapes[i];
		struct k3_mla_expand_args a = expand_args(s);
		struct cuda_case c;
		cuda_case_begin(&c, i);
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * (s->h * (s->nope + s->v) + s->rope), 0,
			      "kv");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * (s->rkv + s->rope), 1, "c");
		cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * s->t * s->rkv, 0, "work");
		expand_weights(&c, &a, s, CUDA_T, CUDA_R);
		CUDA_CASE_COMPARE(&c, "mla_expand_fwd", &a, k3_mla_expand_fwd_cpu_f32,
				  mla_expand_fwd, 0);
		cuda_case_end(&c);
	}
}

TEST(gradients_through_the_expansion_equal_the_cpu)
{
	for (size_t i = 0; i < SHAPES; i++) {
		const struct shape *s = &shapes[i];
		struct k3_mla_expand_args a = expand_args(s);
		struct cuda_case c;
		cuda_case_begin(&c, i);
		/* sums over groups are rounded in between */
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * (s->rkv + s->rope), 0, "dc");
		cuda_case_tolerance(&c, 1e-5, 1e-2);
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * (s->rkv + s->rope), 1, "c");
		cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * s->t * s->rkv, 0, "work");
		a.dkv = group_list(&c, CUDA_T, CUDA_R, s, s->nope + s->v, s->rope, "dkv");
		a.dkn = cuda_case_weight(&c, CUDA_F32, i % 2 ? CUDA_RW : CUDA_W, 1, s->rkv, 1, 1,
					 "dkn");
		expand_weights(&c, &a, s, CUDA_T, CUDA_R);
		CUDA_CASE_COMPARE(&c, "mla_expand_bwd_dx", &a, k3_mla_expand_bwd_dx_cpu_f32,
				  mla_expand_bwd_dx, k3_mla_expand_bwd_dx_cuda_scratch(&a));
		cuda_case_end(&c);
	}
}

TEST(gradients_of_the_expansion_are_written_or_added)
{
	for (size_t i = 0; i < 2 * SHAPES; i++) {
		const struct shape *s = &shapes[i / 2];
		struct k3_mla_expand_args a = expand_args(s);
		struct cuda_case c;
		cuda_case_begin(&c, i);
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * (s->rkv + s->rope), 1, "c");
		cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * s->t * s->rkv, 0, "work");
		a.dkv = group_list(&c, CUDA_T, CUDA_R, s, s->nope + s->v, s->rope, "dkv");
		expand_weights(&c, &a, s, CUDA_F32, i % 2 ? CUDA_RW : CUDA_W);
		CUDA_CASE_COMPARE(&c, "mla_expand_bwd_dw", &a, k3_mla_expand_bwd_dw_cpu_f32,
				  mla_expand_bwd_dw, 0);
		cuda_case_end(&c);
	}
}

static struct k3_mla_out_args
out_args(const struct shape *s)
{
	return (struct k3_mla_out_args){
		.t = s->t, .d = s->d, .h = s->h, .v = s->v, .group_heads = s->group};
}

TEST(gated_output_equals_the_cpu)
{
	for (size_t i = 0; i < 2 * SHAPES; i++) {
		const struct shape *s = &shapes[i / 2];
		struct k3_mla_out_args a = out_args(s);
		struct cuda_case c;
		cuda_case_begin(&c, i);
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->d, 0, "p_out");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->h * s->v, 1, "zg");
		cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * s->t * s->h * s->v, 0, "work");
		a.o = group_list(&c, CUDA_T, CUDA_R, s, s->v, 0, "o");
		a.p_in = cuda_case_list(&c, CUDA_T, CUDA_R, i % 2, s->t * s->d, 1, "p_in");
		a.wo = cuda_case_weight(&c, CUDA_T, CUDA_R, s->d, s->h * s->v, s->block,
					scale_of(s->h * s->v), "wo");
		CUDA_CASE_COMPARE(&c, "mla_out_fwd", &a, k3_mla_out_fwd_cpu_f32, mla_out_fwd, 0);
		cuda_case_end(&c);
	}
}

TEST(gradients_through_the_gate_equal_the_cpu)
{
	for (size_t i = 0; i < SHAPES; i++) {
		const struct shape *s = &shapes[i];
		struct k3_mla_out_args a = out_args(s);
		struct cuda_case c;
		cuda_case_begin(&c, i);
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->h * s->v, 0, "dzg");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "dp");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->h * s->v, 1, "zg");
		cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * s->t * s->h * s->v, 0, "work");
		a.da = group_list(&c, CUDA_T, CUDA_W, s, s->v, 0, "da");
		a.delta = group_list(&c, CUDA_F32, CUDA_W, s, 1, 0, "delta");
		a.o = group_list(&c, CUDA_T, CUDA_R, s, s->v, 0, "o");
		a.wo = cuda_case_weight(&c, CUDA_T, CUDA_R, s->d, s->h * s->v, s->block,
					scale_of(s->h * s->v), "wo");
		CUDA_CASE_COMPARE(&c, "mla_out_bwd_dx", &a, k3_mla_out_bwd_dx_cpu_f32,
				  mla_out_bwd_dx, 0);
		cuda_case_end(&c);
	}
}

TEST(gradients_of_the_output_are_written_or_added)
{
	for (size_t i = 0; i < 2 * SHAPES; i++) {
		const struct shape *s = &shapes[i / 2];
		struct k3_mla_out_args a = out_args(s);
		struct cuda_case c;
		cuda_case_begin(&c, i);
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "dp");
		cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->h * s->v, 1, "zg");
		cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * s->t * s->h * s->v, 0, "work");
		a.o = group_list(&c, CUDA_T, CUDA_R, s, s->v, 0, "o");
		a.wo = cuda_case_weight(&c, CUDA_F32, i % 2 ? CUDA_RW : CUDA_W, s->d, s->h * s->v,
					s->block, 1, "dwo");
		CUDA_CASE_COMPARE(&c, "mla_out_bwd_dw", &a, k3_mla_out_bwd_dw_cpu_f32,
				  mla_out_bwd_dw, 0);
		cuda_case_end(&c);
	}
}
