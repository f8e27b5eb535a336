/* KDA's chunk kernels on CUDA against the recurrence in double: widths of keys and values,
 * documents around the borders of chunks and sub-blocks, gates and beta over their range and at its
 * ends.
 *
 * A case of the table is a pair of widths; how its documents, gates, beta and states are follows
 * from its number and from that of the test's turn, so that neighbours differ.  Bounds are those of
 * FLA's own tests in bf16, 2e-5 and 1e-4 in float.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>

#include "../../codelets/cuda/kernels.h"
#include "kda_oracle.h"
#include "kda_tile.h"

#define COUNT(x) (sizeof(x) / sizeof((x)[0]))

enum gates { STEEP, SLOW, EVEN, AT_BOUND, AT_ZERO, GONE, GATES };
enum betas { SOME, NONE, FULL, BETAS };
enum { TURNS = 7 };

static const struct width {
	size_t k, v;
} widths[] = {{128, 128}, {16, 16},  {24, 40},	 {32, 32},   {48, 16},
	      {64, 64},	  {80, 96},  {96, 80},	 {100, 128}, {128, 96},
	      {128, 160}, {129, 64}, {160, 128}, {192, 48},  {256, 160}};

static const struct kda_tile tiles[] = {
	{63, {63}, 0, 0, 0},   {180, {1, 2, 15, 16, 17, 63, 64}, 0, 3, 3},
	{65, {65}, 0, 3, 0},   {20, {1, 1, 1, 1, 1, 2, 1, 3, 1, 1, 1, 1, 1, 1, 1}, 0, 0, 0},
	{130, {130}, 0, 0, 3}, {200, {64, 65, 33}, 9, 3, 3},
};

struct turn {
	struct width w;
	struct kda_tile tile;
	enum gates gates;
	enum betas betas;
	int s_in, s_out;
	uint64_t seed;
};

static struct turn turns[COUNT(widths) * TURNS];

static struct turn *
all_turns(void)
{
	for (size_t i = 0; i < COUNT(turns); i++) {
		size_t w = i / TURNS, j = i % TURNS;
		struct turn *x = &turns[i];

		x->w = widths[w];
		x->tile = tiles[(w + j) % COUNT(tiles)];
		x->gates = (enum gates)((2 * w + j) % GATES);
		x->betas = j < 5 ? SOME : j == 5 ? NONE : FULL;
		x->s_in = x->tile.hist_in > 0;
		x->s_out = x->tile.hist_out > 0;
		x->seed = i;
	}
	return turns;
}

#define EACH_TURN(name)                                                                            \
	ParameterizedTestParameters(cuda_kda_oracle, name)                                         \
	{                                                                                          \
		return cr_make_param_array(struct turn, all_turns(), COUNT(turns));                \
	}                                                                                          \
	ParameterizedTest(struct turn *x, cuda_kda_oracle, name, .init = cuda_case_need_device,    \
			  .timeout = 120)

/* Gates below the bound exist without one alone. */
static struct k3_kda_chunk_args
args_of(const struct turn *x)
{
	return (struct k3_kda_chunk_args){.t = x->tile.t,
					  .h = 2,
					  .k = x->w.k,
					  .v = x->w.v,
					  .h0 = 0,
					  .h1 = 2,
					  .raw = x->gates == GONE || x->seed % 4 == 3,
					  .lower_bound = -5,
					  .scale = (float)(1 / sqrt((double)x->w.k))};
}

/* From a normal number; 0 to 1 is drawn from it where that is meant. */
static double
gate(const struct turn *x, double normal)
{
	double unit = 0.5 * erfc(-normal / sqrt(2));

	switch (x->gates) {
	case STEEP:
		return -5 / (1 + exp(-6 * normal));
	case SLOW:
		return -0.03 * unit;
	case EVEN:
		return -5 * unit;
	case AT_BOUND:
		return -4.999;
	case AT_ZERO:
		return -1e-5;
	default:
		return -200 * unit;
	}
}

static double
logit(double x)
{
	return log(x / (1 - x));
}

static void
gates_and_beta(struct cuda_case *c, const struct turn *x, const struct k3_kda_chunk_args *a)
{
	float *f, *br;

	cuda_case_add(c, CUDA_T, CUDA_R, a->t * a->h * a->k, 1, "f");
	f = c->operand[c->n - 1].host;
	for (size_t i = 0; i < a->t * a->h * a->k; i++) {
		double g = fmin(fmax(gate(x, (double)f[i]), -4.9999), -1e-6);

		f[i] = (float)(a->raw ? gate(x, (double)f[i]) : logit(g / -5));
	}
	cuda_case_add(c, CUDA_T, CUDA_R, a->t * a->h, 2, "br");
	br = c->operand[c->n - 1].host;
	for (size_t i = 0; i < a->t * a->h; i++) {
		if (x->betas != SOME)
			br[i] = x->betas == NONE ? -40 : 40;
		if (a->raw)
			br[i] = 1 / (1 + expf(-br[i]));
	}
}

static void
inputs(struct cuda_case *c, const struct turn *x, const struct k3_kda_chunk_args *a)
{
	size_t width = a->h * (2 * a->k + a->v);
	float *qkv;

	cuda_case_add(c, CUDA_T, CUDA_R, a->t * width, 1, "qkv");
	qkv = c->operand[c->n - 1].host;
	for (size_t r = 0; r < a->t * 2 * a->h; r++) {
		float *head = qkv + r / (2 * a->h) * width + r % (2 * a->h) * a->k;
		double sum = 0;
		for (size_t i = 0; i < a->k; i++)
			sum += (double)head[i] * (double)head[i];
		for (size_t i = 0; i < a->k; i++)
			head[i] = (float)((double)head[i] / sqrt(sum));
	}
	gates_and_beta(c, x, a);
	kda_tile_add(c, &x->tile);
}

static void
gate_vectors(struct cuda_case *c, struct k3_kda_chunk_args *a)
{
	if (a->raw)
		return;
	a->a_log = cuda_case_weight(c, CUDA_F32, CUDA_R, 1, a->h, 1, 0.1, "a_log");
	a->dt_bias = cuda_case_weight(c, CUDA_F32, CUDA_R, 1, a->h * a->k, 1, 0.1, "dt_bias");
}

EACH_TURN(forward_equals_the_recurrence)
{
	struct k3_kda_chunk_args a = args_of(x);
	size_t state = 2 * a.k * a.v;
	struct cuda_case c;

	cuda_case_begin(&c, x->seed);
	cuda_case_add(&c, CUDA_T, CUDA_W, a.t * 2 * a.v, 0, "o");
	cuda_case_tolerance(&c, 2e-5, 5e-3);
	inputs(&c, x, &a);
	cuda_case_add(&c, CUDA_WORK, CUDA_W, 64, 0, "work");
	a.s_in = cuda_case_list(&c, CUDA_F32, CUDA_R, (size_t)x->s_in, state, 0.3, "s_in");
	a.s_out = cuda_case_list(&c, CUDA_F32, CUDA_W, (size_t)x->s_out, state, 0, "s_out");
	if (x->s_out)
		cuda_case_tolerance(&c, 2e-5, 5e-3);
	gate_vectors(&c, &a);
	CUDA_CASE_COMPARE(&c, "kda_chunk_fwd", &a, kda_oracle_fwd, kda_chunk_fwd,
			  k3_kda_chunk_fwd_cuda_scratch(&a));
	cuda_case_end(&c);
}

EACH_TURN(backward_equals_the_recurrence)
{
	struct k3_kda_chunk_args a = args_of(x);
	size_t state = 2 * a.k * a.v;
	double left = x->gates == AT_BOUND ? 0.05 : 1;
	struct cuda_case c;

	cuda_case_begin(&c, x->seed);
	cuda_case_add(&c, CUDA_T, CUDA_W, a.t * 2 * (2 * a.k + a.v), 0, "dqkv");
	cuda_case_tolerance(&c, 1e-4, 8e-3);
	cuda_case_add(&c, CUDA_T, CUDA_W, a.t * 2 * a.k, 0, "df");
	/* at the bound a difference of sums, of which e^-5 is left; so is dab */
	cuda_case_tolerance(&c, 1e-4 / left, 2e-2);
	cuda_case_add(&c, CUDA_T, CUDA_W, a.t * 2, 0, "dbr");
	cuda_case_tolerance(&c, 1e-4, 2e-2);
	cuda_case_add(&c, CUDA_F32, CUDA_W, 2 + 2 * a.k, 0, "dab");
	cuda_case_tolerance(&c, 1e-4 / left, 2e-2);
	cuda_case_add(&c, CUDA_T, CUDA_R, a.t * 2 * a.v, 1, "do");
	inputs(&c, x, &a);
	cuda_case_add(&c, CUDA_WORK, CUDA_W, 64, 0, "work");
	a.s_in = cuda_case_list(&c, CUDA_F32, CUDA_R, (size_t)x->s_in, state, 0.3, "s_in");
	a.ds_out = cuda_case_list(&c, CUDA_F32, CUDA_R, (size_t)x->s_out, state, 0.3, "ds_out");
	a.ds_in = cuda_case_list(&c, CUDA_F32, CUDA_W, (size_t)x->s_in, state, 0, "ds_in");
	if (x->s_in)
		cuda_case_tolerance(&c, 1e-4, 8e-3);
	gate_vectors(&c, &a);
	CUDA_CASE_COMPARE(&c, "kda_chunk_bwd", &a, kda_oracle_bwd, kda_chunk_bwd,
			  k3_kda_chunk_bwd_cuda_scratch(&a));
	cuda_case_end(&c);
}
