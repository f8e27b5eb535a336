/* KDA's chunk kernels on CUDA against the CPU kernels: chunks cut by documents and holes, states in
 * and out, gates over their whole range, widths with and without a fast path. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>

#include "../../codelets/cuda/kernels.h"
#include "../../common/op/kda.h"
#include "kda_tile.h"

/* A case for each shape, so that they can run side by side. */
#define EACH_SHAPE(name)                                                                           \
	ParameterizedTestParameters(cuda_kda_chunk, name)                                          \
	{                                                                                          \
		return cr_make_param_array(struct shape, shapes, COUNT(shapes));                   \
	}                                                                                          \
	ParameterizedTest(struct shape *s, cuda_kda_chunk, name, .init = cuda_case_need_device,    \
			  .timeout = 120)
#define COUNT(x) (sizeof(x) / sizeof((x)[0]))

/* Where gates lie: both ends and between by elements, or everywhere at an end, or at one end in the
 * even channels and at the other in the odd ones. */
enum gates { MIXED, AT_BOUND, AT_ZERO, BY_CHANNEL };

static struct shape {
	size_t h, k, v;
	uint32_t h0, h1;
	int states, raw;
	struct kda_tile tile;
	enum gates gates;
} shapes[] = {
	{2, 128, 128, 0, 2, 0, 0, {64, {64}, 0, 0, 0}, MIXED},
	{2, 128, 128, 0, 2, 1, 0, {300, {300}, 0, 3, 3}, MIXED},
	{3, 64, 64, 1, 3, 1, 0, {333, {70, 1, 128, 15, 64, 40}, 0, 3, 3}, MIXED},
	{2, 32, 32, 0, 2, 1, 0, {260, {100, 60, 65}, 7, 3, 3}, MIXED},
	{1, 128, 128, 0, 1, 1, 1, {200, {100, 100}, 0, 3, 3}, MIXED},
	{3, 24, 40, 1, 2, 1, 0, {130, {129}, 0, 3, 3}, MIXED},
	{1, 17, 33, 0, 1, 0, 1, {66, {3, 60}, 5, 0, 0}, MIXED},
	{1, 100, 200, 0, 1, 1, 0, {70, {65}, 0, 3, 3}, MIXED},
	{2, 16, 16, 0, 2, 1, 0, {1, {1}, 0, 3, 3}, MIXED},
	{2, 16, 16, 0, 2, 1, 0, {5, {0}, 0, 3, 3}, MIXED},
	{2, 16, 16, 0, 2, 1, 1, {0, {0}, 0, 3, 3}, MIXED},
	{16, 128, 128, 0, 16, 1, 0, {100, {40, 60}, 0, 3, 3}, MIXED},
	{1, 128, 128, 0, 1, 1, 0, {150, {70, 80}, 0, 3, 3}, AT_BOUND},
	{1, 128, 128, 0, 1, 1, 0, {150, {70, 80}, 0, 3, 3}, AT_ZERO},
	{1, 128, 128, 0, 1, 1, 0, {150, {70, 80}, 0, 3, 3}, BY_CHANNEL},
	{1, 100, 72, 0, 1, 1, 0, {100, {100}, 0, 3, 3}, BY_CHANNEL},
	{2, 128, 192, 0, 2, 1, 0, {700, {321, 300, 70}, 0, 3, 3}, MIXED},
	{1, 120, 100, 0, 1, 1, 1, {450, {64, 128, 63, 65, 100}, 3, 3, 3}, MIXED},
	{2, 256, 256, 0, 2, 1, 0, {150, {80, 65}, 0, 3, 3}, MIXED},
	{11, 129, 20, 1, 11, 1, 1, {70, {1, 64}, 5, 3, 3}, MIXED},
	{1, 200, 8, 0, 1, 1, 0, {3, {0}, 0, 3, 3}, MIXED},
};

static struct k3_kda_chunk_args
args_of(const struct shape *s)
{
	return (struct k3_kda_chunk_args){.t = s->tile.t,
					  .h = s->h,
					  .k = s->k,
					  .v = s->v,
					  .h0 = s->h0,
					  .h1 = s->h1,
					  .raw = (uint32_t)s->raw,
					  .lower_bound = -5,
					  .scale = (float)(1 / sqrt((double)s->k))};
}

/* q and k of unit length. */
static void
unit_heads(float *x, const struct shape *s)
{
	size_t width = s->h * (2 * s->k + s->v);

	for (size_t r = 0; r < s->tile.t; r++)
		for (size_t h = 0; h < 2 * s->h; h++) {
			float *head = x + r * width + h * s->k;
			double sum = 0;
			for (size_t i = 0; i < s->k; i++)
				sum += (double)head[i] * (double)head[i];
			for (size_t i = 0; i < s->k; i++)
				head[i] = (float)((double)head[i] / sqrt(sum));
		}
}

/* qkv, f, br, layout.  Gates are at both ends of their range and between; raw ones too. */
static void
inputs(struct cuda_case *c, const struct shape *s)
{
	size_t t = s->tile.t;
	float *f, *beta;

	cuda_case_add(c, CUDA_T, CUDA_R, t * s->h * (2 * s->k + s->v), 1, "qkv");
	unit_heads(c->operand[c->n - 1].host, s);
	cuda_case_add(c, CUDA_T, CUDA_R, t * s->h * s->k, 1, "f");
	f = c->operand[c->n - 1].host;
	for (size_t i = 0; i < t * s->h * s->k; i++) {
		float x = f[i];
		f[i] = x < -1 ? -12 : x > 1 ? 12 : 4 * x;
		if (s->gates != MIXED)
			f[i] = s->gates == AT_BOUND || (s->gates == BY_CHANNEL && i % s->k % 2)
				       ? 12
				       : -12;
		if (s->raw)
			f[i] = -5 / (1 + expf(-f[i]));
	}
	cuda_case_add(c, CUDA_T, CUDA_R, t * s->h, 2, "br");
	beta = c->operand[c->n - 1].host;
	for (size_t i = 0; s->raw && i < t * s->h; i++)
		beta[i] = 1 / (1 + expf(-beta[i]));
	kda_tile_add(c, &s->tile);
}

static void
gate_vectors(struct cuda_case *c, const struct shape *s, struct k3_kda_chunk_args *a)
{
	if (s->raw)
		return;
	a->a_log = cuda_case_weight(c, CUDA_F32, CUDA_R, 1, s->h, 1, 0.3, "a_log");
	a->dt_bias = cuda_case_weight(c, CUDA_F32, CUDA_R, 1, s->h * s->k, 1, 1, "dt_bias");
}

/* bf16 heads of up to 64 are float inside: what they write is off by its own rounding, at most
 * 2^-8. */
static void
narrow_bounds(struct cuda_case *c, const struct shape *s)
{
	for (size_t i = 0; s->k <= 64 && i < c->n; i++)
		if (c->operand[i].mode == CUDA_W && c->operand[i].type <= CUDA_F32)
			c->operand[i].tolerance_bf16 = 4e-3;
}

/* bf16: bound of the output, 0: as usual. */
static void
forward(const struct shape *s, double bf16)
{
	struct k3_kda_chunk_args a = args_of(s);
	size_t hg = s->h1 - s->h0, state = hg * s->k * s->v, with = (size_t)s->states;
	struct cuda_case c;
	cuda_case_begin(&c, s->tile.t + s->k);
	cuda_case_add(&c, CUDA_T, CUDA_W, a.t * hg * s->v, 0, "o");
	cuda_case_tolerance(&c, 0, bf16);
	inputs(&c, s);
	cuda_case_add(&c, CUDA_WORK, CUDA_W,
		      4 * k3_kda_chunk_fwd_work_floats(a.t, hg, s->k, s->v) + 64, 0, "work");
	a.s_in = cuda_case_list(&c, CUDA_F32, CUDA_R, with, state, 0.3, "s_in");
	a.s_out = cuda_case_list(&c, CUDA_F32, CUDA_W, with, state, 0, "s_out");
	gate_vectors(&c, s, &a);
	narrow_bounds(&c, s);
	CUDA_CASE_COMPARE(&c, "kda_chunk_fwd", &a, k3_kda_chunk_fwd_cpu_f32, kda_chunk_fwd,
			  k3_kda_chunk_fwd_cuda_scratch(&a));
	cuda_case_end(&c);
}

EACH_SHAPE(forward_equals_the_cpu)
{
	forward(s, 0);
}

/* Operands that were rounded to bf16 put 3.1e-3 on the output by themselves.  Where the bound of
 * 5e-3 is to hold against operands that were not, 3.9e-3 are left for the kernel. */
Test(cuda_kda_chunk, rounding_inside_leaves_room_for_that_of_the_operands,
     .init = cuda_case_need_device, .timeout = 120)
{
	for (size_t t = 16; t <= 130; t += t < 63 ? 47 : 67) {
		struct shape s = {2, 128, 128, 0, 2, 0, 0, {t, {(int)t}, 0, 0, 0}, MIXED};

		forward(&s, 3.5e-3);
		s.raw = 1;
		forward(&s, 3.5e-3);
	}
}

EACH_SHAPE(backward_equals_the_cpu)
{
	struct k3_kda_chunk_args a = args_of(s);
	size_t hg = s->h1 - s->h0, state = hg * s->k * s->v, with = (size_t)s->states;
	struct cuda_case c;
	cuda_case_begin(&c, s->tile.t + s->k);
	cuda_case_add(&c, CUDA_T, CUDA_W, a.t * hg * (2 * s->k + s->v), 0, "dqkv");
	cuda_case_add(&c, CUDA_T, CUDA_W, a.t * hg * s->k, 0, "df");
	/* a difference of sums, of which e^-5 is left at the bound; so is dbeta */
	double left = s->gates == AT_BOUND ? 0.05 : 1;
	cuda_case_tolerance(&c, 1e-5 / left, 1e-2);
	cuda_case_add(&c, CUDA_T, CUDA_W, a.t * hg, 0, "dbr");
	cuda_case_tolerance(&c, 0, 1e-2);
	cuda_case_add(&c, CUDA_F32, CUDA_W, hg + hg * s->k, 0, "dab");
	/* terms of both signs over all rows: what is left is far below them */
	cuda_case_tolerance(&c, 1e-4 / left, 2e-2);
	cuda_case_add(&c, CUDA_T, CUDA_R, a.t * hg * s->v, 1, "do");
	inputs(&c, s);
	cuda_case_add(&c, CUDA_WORK, CUDA_W,
		      4 * k3_kda_chunk_bwd_work_floats(a.t, hg, s->k, s->v) + 64, 0, "work");
	a.s_in = cuda_case_list(&c, CUDA_F32, CUDA_R, with, state, 0.3, "s_in");
	a.ds_out = cuda_case_list(&c, CUDA_F32, CUDA_R, with, state, 0.3, "ds_out");
	a.ds_in = cuda_case_list(&c, CUDA_F32, CUDA_W, with, state, 0, "ds_in");
	gate_vectors(&c, s, &a);
	narrow_bounds(&c, s);
	CUDA_CASE_COMPARE(&c, "kda_chunk_bwd", &a, k3_kda_chunk_bwd_cpu_f32, kda_chunk_bwd,
			  k3_kda_chunk_bwd_cuda_scratch(&a));
	cuda_case_end(&c);
}
