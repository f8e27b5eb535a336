/* The end of a step on CUDA against the CPU kernels: many blocks of odd sizes, verdicts of every
 * kind, states that forbid an update. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/op/loss.h"
#include "../../common/op/optim.h"
#include "../../common/rng.h"
#include "cuda_case.h"
#include "../../codelets/cuda/kernels.h"

#define TEST(name) Test(cuda_optim, name, .init = cuda_case_need_device, .timeout = 120)

static const size_t sizes[] = {1,  2,	  3,	  4,   5,  31,	 4096, 4097, 10000, 8,
			       16, 65536, 100003, 128, 64, 2048, 2049, 7,    300};
enum { N_SIZES = sizeof(sizes) / sizeof(sizes[0]) };

/* The first n of the sizes above; squares: none is negative. */
static struct k3_list
add_typed(struct cuda_case *c, enum cuda_operand_type type, enum cuda_operand_mode mode, size_t n,
	  double scale, bool squares, const char *name)
{
	struct k3_list list = {(uint32_t)c->n, (uint32_t)n};

	for (size_t i = 0; i < n; i++) {
		float *x = c->operand[cuda_case_add(c, type, mode, sizes[i], scale, name)].host;
		for (size_t k = 0; squares && k < sizes[i]; k++)
			x[k] *= x[k];
	}
	return list;
}

static struct k3_list
add_blocks(struct cuda_case *c, enum cuda_operand_mode mode, size_t n, double scale, bool squares,
	   const char *name)
{
	return add_typed(c, CUDA_F32, mode, n, scale, squares, name);
}

TEST(squares_are_summed_over_all_blocks)
{
	static const size_t counts[] = {0, 1, 2, 15, 16, 17, N_SIZES};

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		struct k3_grad_norm_args a = {.n_elems = sizes};
		struct cuda_case c;
		cuda_case_begin(&c, i);
		cuda_case_add(&c, CUDA_F64, CUDA_W, 1, 0, "partial");
		a.grads = add_blocks(&c, CUDA_R, counts[i], 0.3, false, "grads");
		CUDA_CASE_COMPARE(&c, "grad_norm", &a, k3_grad_norm_cpu_f32, grad_norm,
				  k3_grad_norm_cuda_scratch(&a));
		cuda_case_end(&c);
	}
}

static void
verdict(size_t n, double max_norm, double loss, double valid, double first)
{
	struct k3_clip_args a = {.max_norm = max_norm, .eps = 1e-6};
	double acc[K3_LOSS_LEN] = {loss, valid, 3, 11}, x;
	double hyper[K3_HYPER_LEN] = {[K3_HYPER_VALID] = valid};
	struct cuda_case c;

	cuda_case_begin(&c, n);
	cuda_case_add(&c, CUDA_F64, CUDA_W, K3_OUT_LEN, 0, "out");
	cuda_case_values(&c, CUDA_F64, CUDA_R, K3_LOSS_LEN, acc, "acc");
	cuda_case_values(&c, CUDA_F64, CUDA_R, K3_HYPER_LEN, hyper, "hyper");
	a.partials = (struct k3_list){(uint32_t)c.n, (uint32_t)n};
	for (size_t i = 0; i < n; i++) {
		x = i ? k3_rng_uniform(21, i) : first;
		cuda_case_values(&c, CUDA_F64, CUDA_R, 1, &x, "partials");
	}
	CUDA_CASE_COMPARE(&c, "clip_factor", &a, k3_clip_factor_cpu, clip_factor, 0);
	cuda_case_end(&c);
}

TEST(verdicts_equal_the_cpu)
{
	verdict(1, 1, 7, 5, 25);
	verdict(80, 1, 7, 5, 0.5);
	verdict(80, 100, 7, 5, 0.5);
	verdict(3, 0, 7, 5, 0.5);
	verdict(2, 1, 0, 0, 0);
	verdict(2, 1, 7, 5, INFINITY);
	verdict(0, 1, 7, 5, 0);
}

static void
adamw(size_t n, double state, double coef)
{
	struct k3_adamw_args a = {
		.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .n_elems = sizes};
	double out[K3_OUT_LEN] = {[K3_OUT_STATE] = state, [K3_OUT_COEF] = coef};
	double hyper[K3_HYPER_LEN] = {[K3_HYPER_LR] = 8e-4, [K3_HYPER_STEP] = 3};
	struct cuda_case c;

	cuda_case_begin(&c, n);
	cuda_case_values(&c, CUDA_F64, CUDA_R, K3_OUT_LEN, out, "out");
	cuda_case_values(&c, CUDA_F64, CUDA_R, K3_HYPER_LEN, hyper, "hyper");
	a.params = add_blocks(&c, CUDA_RW, n, 1, false, "params");
	a.exp_avg = add_blocks(&c, CUDA_RW, n, 0.1, false, "exp_avg");
	a.exp_avg_sq = add_blocks(&c, CUDA_RW, n, 0.1, true, "exp_avg_sq");
	a.grads = add_blocks(&c, CUDA_R, n, 0.2, false, "grads");
	CUDA_CASE_COMPARE(&c, "adamw_step", &a, k3_adamw_step_cpu_f32, adamw_step, 0);
	cuda_case_end(&c);
}

TEST(updates_equal_the_cpu)
{
	adamw(0, K3_STEP_OK, 1);
	adamw(1, K3_STEP_OK, 1);
	adamw(16, K3_STEP_OK, 0.25);
	adamw(N_SIZES, K3_STEP_OK, 1);
}

/* On floats, whatever the state's type is on the device. */
static void
float_state_cpu(void *const *buf, const void *args)
{
	struct k3_adamw_args a = *(const struct k3_adamw_args *)args;

	a.half = NULL;
	k3_adamw_step_cpu_f32(buf, &a);
}

static void
float_state_cuda(void *const *buf, const void *args, const struct k3_cuda *cuda)
{
	struct k3_adamw_args a = *(const struct k3_adamw_args *)args;

	a.half = NULL;
	k3_adamw_step_cuda_f32(buf, &a, cuda);
}

/* The bf16 kernel's parameters and moments are halves. */
static void
adamw_halves(size_t n, double state)
{
	struct k3_adamw_args a = {
		.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .n_elems = sizes};
	double out[K3_OUT_LEN] = {[K3_OUT_STATE] = state, [K3_OUT_COEF] = 0.5};
	double hyper[K3_HYPER_LEN] = {[K3_HYPER_LR] = 8e-4, [K3_HYPER_STEP] = 3};
	bool half[N_SIZES];
	struct cuda_case c;

	for (size_t i = 0; i < N_SIZES; i++)
		half[i] = true;
	cuda_case_begin(&c, n);
	cuda_case_values(&c, CUDA_F64, CUDA_R, K3_OUT_LEN, out, "out");
	cuda_case_values(&c, CUDA_F64, CUDA_R, K3_HYPER_LEN, hyper, "hyper");
	a.params = add_typed(&c, CUDA_T, CUDA_RW, n, 1, false, "params");
	a.exp_avg = add_typed(&c, CUDA_T, CUDA_RW, n, 0.1, false, "exp_avg");
	a.exp_avg_sq = add_typed(&c, CUDA_T, CUDA_RW, n, 0.1, true, "exp_avg_sq");
	a.grads = add_blocks(&c, CUDA_R, n, 0.2, false, "grads");
	a.half = half;
	cuda_case_compare(&c, "adamw_step, halves", &a, float_state_cpu, float_state_cuda,
			  (cuda_case_cuda *)(void (*)(void))k3_adamw_step_cuda_bf16, 0);
	cuda_case_end(&c);
}

TEST(a_state_of_halves_is_updated_as_on_the_cpu)
{
	adamw_halves(1, K3_STEP_OK);
	adamw_halves(N_SIZES, K3_STEP_OK);
	adamw_halves(N_SIZES, K3_STEP_NOT_FINITE);
}

/* Halves as pairs, compared bit by bit; the sizes from there on are even. */
static struct k3_list
add_copies(struct cuda_case *c, int32_t *copy, size_t n)
{
	struct k3_list list = {(uint32_t)c->n, 0};

	for (size_t i = 0; i < n; i++) {
		copy[i] = sizes[i] % 2 ? -1 : (int32_t)list.n;
		if (sizes[i] % 2)
			continue;
		cuda_case_add(c, CUDA_I32, CUDA_W, sizes[i] / 2, 0, "copies");
		list.n++;
	}
	return list;
}

/* Without a learning rate the parameters keep their bits, so the copies must be equal. */
static void
adamw_copies(size_t n, double state)
{
	struct k3_adamw_args a = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .n_elems = sizes};
	double out[K3_OUT_LEN] = {[K3_OUT_STATE] = state, [K3_OUT_COEF] = 1};
	double hyper[K3_HYPER_LEN] = {[K3_HYPER_STEP] = 3};
	int32_t copy[N_SIZES];
	struct cuda_case c;

	cuda_case_begin(&c, n);
	cuda_case_values(&c, CUDA_F64, CUDA_R, K3_OUT_LEN, out, "out");
	cuda_case_values(&c, CUDA_F64, CUDA_R, K3_HYPER_LEN, hyper, "hyper");
	a.params = add_blocks(&c, CUDA_RW, n, 1, false, "params");
	a.exp_avg = add_blocks(&c, CUDA_RW, n, 0.1, false, "exp_avg");
	a.exp_avg_sq = add_blocks(&c, CUDA_RW, n, 0.1, true, "exp_avg_sq");
	a.grads = add_blocks(&c, CUDA_R, n, 0.2, false, "grads");
	a.copies = add_copies(&c, copy, n);
	a.copy = copy;
	CUDA_CASE_COMPARE(&c, "adamw_step", &a, k3_adamw_step_cpu_f32, adamw_step, 0);
	cuda_case_end(&c);
}

TEST(copies_are_rounded_as_on_the_cpu)
{
	static const size_t counts[] = {0, 1, 2, 16, 17, N_SIZES};

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		struct k3_cast_args a = {.n_elems = sizes};
		int32_t copy[N_SIZES];
		struct cuda_case c;
		adamw_copies(counts[i], K3_STEP_OK);
		adamw_copies(counts[i], K3_STEP_NOT_FINITE);
		cuda_case_begin(&c, 100 + i);
		a.copies = add_copies(&c, copy, counts[i]);
		a.copy = copy;
		a.params = add_blocks(&c, CUDA_R, counts[i], 1, false, "params");
		CUDA_CASE_COMPARE(&c, "cast_params", &a, k3_cast_params_cpu, cast_params, 0);
		cuda_case_end(&c);
	}
}

TEST(a_step_that_must_not_happen_changes_nothing)
{
	adamw(N_SIZES, K3_STEP_NOT_FINITE, 0.5);
	adamw(3, K3_STEP_NO_LABELS, 1);
}

/* Counts of a layer sum to the histogram's totals; skewed, so that some experts have empty
 * histograms. */
static void
count_experts(int32_t *balance, size_t experts, size_t bins, uint64_t layer)
{
	memset(balance, 0, (experts + experts * bins) * sizeof(*balance));
	for (size_t e = 0; e < experts; e++)
		for (size_t b = 0; b < bins; b++) {
			int32_t x =
				e % 7 == 3
					? 0
					: (int32_t)(k3_rng_bits(e + 1000 * layer, b) % (e % 5 + 2));
			balance[experts + e * bins + b] = x;
			balance[e] += x;
		}
	for (size_t e = 0; e < experts && bins == 0; e++)
		balance[e] = (int32_t)(k3_rng_bits(33 + layer, e) % 1000);
}

static void
router_biases(uint32_t rule, size_t layers, size_t experts, size_t bins, double state, bool empty)
{
	struct k3_router_bias_args a = {
		.rule = rule, .n_experts = experts, .k = experts / 4 + 1, .bins = bins, .u = 1e-3};
	double out[K3_OUT_LEN] = {[K3_OUT_STATE] = state};
	size_t n = experts + experts * bins;
	int32_t *balance = calloc(n, sizeof(*balance));
	struct cuda_case c;

	cuda_case_begin(&c, experts);
	cuda_case_values(&c, CUDA_F64, CUDA_R, K3_OUT_LEN, out, "out");
	a.bias = (struct k3_list){1, (uint32_t)layers};
	a.balance = (struct k3_list){1 + (uint32_t)layers, (uint32_t)layers};
	for (size_t l = 0; l < layers; l++)
		cuda_case_add(&c, CUDA_F32, CUDA_RW, experts, 0.1, "bias");
	for (size_t l = 0; l < layers; l++) {
		if (!empty)
			count_experts(balance, experts, bins, l);
		cuda_case_values(&c, CUDA_I32, CUDA_R, n, balance, "balance");
	}
	CUDA_CASE_COMPARE(&c, "router_bias_update", &a, k3_router_bias_update_cpu_f32,
			  router_bias_update, k3_router_bias_update_cuda_scratch(&a));
	cuda_case_end(&c);
	free(balance);
}

TEST(router_biases_equal_the_cpu)
{
	router_biases(K3_BALANCE_SIGN, 1, 8, 0, K3_STEP_OK, false);
	router_biases(K3_BALANCE_SIGN, 3, 896, 0, K3_STEP_OK, false);
	router_biases(K3_BALANCE_SIGN, 2, 1100, 0, K3_STEP_OK, false);
	router_biases(K3_BALANCE_QUANTILE, 1, 8, 7, K3_STEP_OK, false);
	router_biases(K3_BALANCE_QUANTILE, 40, 33, 64, K3_STEP_OK, false);
	router_biases(K3_BALANCE_QUANTILE, 3, 896, 1000, K3_STEP_OK, false);
	router_biases(K3_BALANCE_QUANTILE, 2, 8, 40, K3_STEP_OK, true);
	router_biases(K3_BALANCE_QUANTILE, 2, 8, 40, K3_STEP_NOT_FINITE, false);
	router_biases(K3_BALANCE_NONE, 2, 8, 0, K3_STEP_OK, false);
}

/* Whole words, tails of 1 to 7 bytes, empty data, more data than one launch takes. */
TEST(fingerprints_are_those_of_the_cpu)
{
	static const size_t bytes[][4] = {
		{0}, {8}, {13}, {7}, {16384, 8, 0, 3}, {16392, 40004, 5, 16376}, {300001}};
	static const size_t small[70] = {[0] = 9, [33] = 24, [64] = 8, [69] = 17};

	for (size_t i = 0; i <= sizeof(bytes) / sizeof(bytes[0]); i++) {
		bool many = i == sizeof(bytes) / sizeof(bytes[0]);
		struct k3_hash_args a = {.n_bytes = many ? small : bytes[i]};
		struct cuda_case c;
		cuda_case_begin(&c, i);
		cuda_case_add(&c, CUDA_I32, CUDA_W, 2, 0, "hash");
		a.data = (struct k3_list){(uint32_t)c.n, many ? 70 : 4};
		for (size_t k = 0; k < a.data.n; k++)
			cuda_case_add(&c, CUDA_F32, CUDA_R, a.n_bytes[k] / 4 + 1, 1, "data");
		CUDA_CASE_COMPARE(&c, "hash_data", &a, k3_hash_data_cpu, hash_data, 0);
		cuda_case_end(&c);
	}
}

TEST(initial_values_are_those_of_the_cpu)
{
	static const struct {
		uint32_t kind;
		double scale;
	} kinds[] = {{K3_INIT_ZERO, 0},	      {K3_INIT_ONE, 0},		{K3_INIT_NORMAL, 0.02},
		     {K3_INIT_NORMAL, 1.5},   {K3_INIT_NORMAL_FREE, 1}, {K3_INIT_NORMAL_3S, 0.03},
		     {K3_INIT_LOG_UNIFORM, 0}};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		struct k3_param_init_args a = {.kind = kinds[i].kind,
					       .scale = kinds[i].scale,
					       .key = k3_rng_key("tensor", 5),
					       .first_elem = UINT64_C(1) << 33,
					       .offset_elems = 1000,
					       .n_elems = 20003};
		struct cuda_case c;
		cuda_case_begin(&c, i);
		cuda_case_add(&c, CUDA_F32, CUDA_RW, 22000, 1, "data");
		cuda_case_tolerance(&c, 1e-7, 1e-7);
		CUDA_CASE_COMPARE(&c, "param_init", &a, k3_param_init_cpu_f32, param_init, 0);
		a.n_elems = 0;
		CUDA_CASE_COMPARE(&c, "param_init", &a, k3_param_init_cpu_f32, param_init, 0);
		cuda_case_end(&c);
	}
}
