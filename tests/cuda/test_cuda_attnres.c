/* Mix and norm on CUDA against the CPU kernels: values that fit in registers and others, rings
 * that hold old gradients and rings too small for them, teams of one warp and of several, odd
 * widths, more tokens than teams. */
#include <criterion/criterion.h>
#include <math.h>

#include "../../common/op/attnres.h"
#include "cuda_case.h"
#include "../../codelets/cuda/kernels.h"

#define TEST(name) Test(cuda_attnres, name, .init = cuda_case_need_device, .timeout = 120)

static const struct shape {
	size_t t, d, n;
} shapes[] = {{0, 64, 2},    {1, 8, 1},	     {5, 31, 3},     {257, 72, 2},  {300, 1024, 8},
	      {1500, 64, 2}, {1200, 48, 8},  {70, 1024, 2},  {19, 2056, 5}, {7, 7168, 8},
	      {3, 7168, 14}, {40, 40, 18},   {40, 40, 19},   {9, 56, 30},   {1100, 20, 24},
	      {64, 16, 0},   {1, 5, 0},	     {2500, 24, 0},  {30, 1024, 0}, {6, 14000, 0},
	      {0, 8, 0},     {130, 1028, 3}, {40, 4096, 2},  {21, 2048, 6}, {2500, 72, 2},
	      {850, 520, 3}, {140, 7168, 1}, {1100, 40, 18}, {4000, 40, 0}, {140, 7168, 0}};

enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

static struct k3_weight
vector(struct cuda_case *c, enum cuda_operand_mode mode, size_t d, double scale, const char *name)
{
	return cuda_case_weight(c, CUDA_F32, mode, 1, d, 1, scale, name);
}

static struct k3_mix_norm_fwd_args
forward_case(struct cuda_case *c, const struct shape *s, uint64_t seed)
{
	struct k3_mix_norm_fwd_args a = {.t = s->t, .d = s->d, .eps = 1e-5f};

	cuda_case_begin(c, seed);
	cuda_case_add(c, CUDA_T, CUDA_W, s->t * s->d, 0, "y");
	cuda_case_add(c, CUDA_F32, CUDA_W, s->t * k3_mix_stat_len(s->n), 0, "stat");
	cuda_case_add(c, CUDA_T, CUDA_R, s->t * s->d, 1.5, "p");
	a.blocks = cuda_case_list(c, CUDA_T, CUDA_R, s->n, s->t * s->d, 1, "blocks");
	if (s->n) {
		a.gamma = vector(c, CUDA_R, s->d, 1, "gamma");
		a.rho = vector(c, CUDA_R, s->d, 1 / sqrt((double)s->d), "rho");
	}
	a.w = vector(c, CUDA_R, s->d, 1, "w");
	return a;
}

TEST(forward_equals_the_cpu)
{
	for (size_t i = 0; i < SHAPES; i++) {
		struct cuda_case c;
		struct k3_mix_norm_fwd_args a = forward_case(&c, &shapes[i], i);
		CUDA_CASE_COMPARE(&c, "mix_norm_fwd", &a, k3_mix_norm_fwd_cpu_f32, mix_norm_fwd, 0);
		cuda_case_end(&c);
	}
}

/* Statistics as the forward pass leaves them, of other values of the same kind. */
static void
statistics(float *stat, const struct shape *s, uint64_t seed)
{
	struct cuda_case c;
	struct k3_mix_norm_fwd_args a = forward_case(&c, s, seed);
	void *buf[CUDA_CASE_MAX];

	for (size_t i = 0; i < c.n; i++)
		buf[i] = c.operand[i].host;
	buf[1] = stat;
	k3_mix_norm_fwd_cpu_f32(buf, &a);
	cuda_case_end(&c);
}

static void
backward(const struct shape *s, uint64_t seed, size_t addends, bool adds)
{
	struct k3_mix_norm_bwd_args a = {
		.t = s->t, .d = s->d, .eps = 1e-5f, .blocks_accumulate = adds};
	enum cuda_operand_mode mode = adds ? CUDA_RW : CUDA_W;
	size_t len = s->t * k3_mix_stat_len(s->n);
	float *stat = malloc((len + 1) * sizeof(*stat));
	struct cuda_case c;

	statistics(stat, s, seed);
	cuda_case_begin(&c, seed);
	cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->d, 0, "dp");
	cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "dy");
	cuda_case_values(&c, CUDA_F32, CUDA_R, len, stat, "stat");
	cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1.5, "p");
	a.addends = cuda_case_list(&c, CUDA_T, CUDA_R, addends, s->t * s->d, 1, "addends");
	a.blocks = cuda_case_list(&c, CUDA_T, CUDA_R, s->n, s->t * s->d, 1, "blocks");
	a.dblocks = cuda_case_list(&c, CUDA_T, mode, s->n, s->t * s->d, 1, "dblocks");
	/* sums over tokens of terms of either sign, in another order */
	if (s->n) {
		a.dgamma = vector(&c, mode, s->d, 1, "dgamma");
		cuda_case_tolerance(&c, 1e-4, 0);
		a.drho = vector(&c, mode, s->d, 1, "drho");
		cuda_case_tolerance(&c, 1e-4, 0);
	}
	a.dw = vector(&c, mode, s->d, 1, "dw");
	cuda_case_tolerance(&c, 1e-4, 0);
	if (s->n) {
		a.gamma = vector(&c, CUDA_R, s->d, 1, "gamma");
		a.rho = vector(&c, CUDA_R, s->d, 1 / sqrt((double)s->d), "rho");
	}
	a.w = vector(&c, CUDA_R, s->d, 1, "w");
	CUDA_CASE_COMPARE(&c, "mix_norm_bwd", &a, k3_mix_norm_bwd_cpu_f32, mix_norm_bwd,
			  k3_mix_norm_bwd_cuda_scratch(&a));
	cuda_case_end(&c);
	free(stat);
}

TEST(gradients_that_are_written_equal_the_cpu)
{
	for (size_t i = 0; i < SHAPES; i++)
		backward(&shapes[i], i, i % 3, false);
}

TEST(gradients_that_are_added_to_equal_the_cpu)
{
	for (size_t i = 0; i < SHAPES; i++)
		backward(&shapes[i], i + 100, (i + 1) % 3, true);
}
