/* k3_bench op optim: the passes over all parameters, on a matrix of the dense layer's size. */
#include <math.h>
#include <string.h>

#include "bench.h"

static size_t
elements(const struct bench *b)
{
	return (size_t)b->model->width * b->model->dense_ffn;
}

static void
grad_norm(struct bench *b)
{
	const size_t n = elements(b);
	struct k3_grad_norm_args a = {.n_elems = &n};
	struct bench_case c;

	if (!bench_open(&c, b, "grad_norm_partial", BENCH_MEMORY, 0, "n=%zu", n))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_GRAD_NORM);
	double *partial = bench_out_typed(call, "partial", 1, BENCH_F64);
	float *g = bench_in(call, n);
	bench_keep(&c, g);
	a.grads = bench_list(call, 1);
	bench_args(call, &a, sizeof(a));
	bench_traffic(call, n, 0, 0);
	if (bench_run(&c)) {
		/* sums of n positive numbers in double: the roundings do not cancel */
		long double sum = 0;
		for (size_t i = 0; i < n; i++)
			sum += (long double)g[i] * (long double)g[i];
		bench_judge(&c, "partial", fabs(*partial / (double)sum - 1),
			    0x1p-53 * (double)(n < 1000 ? 1000 : n));
	}
	bench_close(&c);
}

/* What the formula makes of one element. */
static void
expect_step(struct bench_case *c, float *const *after, float *const *before, const float *grad,
	    const struct k3_adamw_args *a, double lr, double step, double coef)
{
	static const char *const name[] = {"params", "exp_avg", "exp_avg_sq"};
	size_t n = a->n_elems[0];
	double *want[3];

	for (size_t i = 0; i < 3; i++)
		want[i] = bench_doubles(c, n);
	for (size_t i = 0; i < n; i++) {
		double g = (double)grad[i] * coef, p = (double)before[0][i];
		double m = a->beta1 * (double)before[1][i] + (1 - a->beta1) * g;
		double v = a->beta2 * (double)before[2][i] + (1 - a->beta2) * g * g;
		want[0][i] = p - lr * a->weight_decay * p -
			     lr * (m / (1 - pow(a->beta1, step))) /
				     (sqrt(v / (1 - pow(a->beta2, step))) + a->eps);
		want[1][i] = m;
		want[2][i] = v;
	}
	for (size_t i = 0; i < 3; i++)
		bench_expect(c, name[i], after[i], n, want[i], 1, n, 4);
}

static void
adamw(struct bench *b)
{
	const size_t n = elements(b);
	struct k3_adamw_args a = {
		.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .n_elems = &n};
	struct k3_list *const list[] = {&a.params, &a.exp_avg, &a.exp_avg_sq};
	static const char *const name[] = {"params", "exp_avg", "exp_avg_sq"};
	float *after[3], *before[3];
	struct bench_case c;

	if (!bench_open(&c, b, "adamw_step", BENCH_MEMORY, 0, "n=%zu", n))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_ADAMW_STEP);
	double *out = bench_push(call, bench_doubles(&c, K3_OUT_LEN));
	double *hyper = bench_push(call, bench_doubles(&c, K3_HYPER_LEN));
	out[K3_OUT_STATE] = K3_STEP_OK;
	out[K3_OUT_COEF] = 0.75;
	hyper[K3_HYPER_LR] = 1e-3;
	hyper[K3_HYPER_STEP] = 3;
	for (size_t i = 0; i < 3; i++) {
		*list[i] = (struct k3_list){call->n, 1};
		after[i] = bench_inout(call, name[i], n, &before[i]);
		bench_keep(&c, after[i]);
	}
	for (size_t i = 0; i < n; i++)
		after[2][i] = before[2][i] = before[2][i] * before[2][i];
	a.grads = (struct k3_list){call->n, 1};
	float *grad = bench_in(call, n);
	bench_keep(&c, grad);
	bench_args(call, &a, sizeof(a));
	bench_traffic(call, n, 0, 3 * n);
	if (bench_run(&c))
		expect_step(&c, after, before, grad, &a, hyper[K3_HYPER_LR], hyper[K3_HYPER_STEP],
			    out[K3_OUT_COEF]);
	bench_close(&c);
}

/* x to the nearest number of eight significant bits, ties to even. */
static double
nearest(double x)
{
	double unit = x == 0 ? 1 : ldexp(1, ilogb(x) - 7);

	return rint(x / unit) * unit;
}

static void
cast_params(struct bench *b)
{
	const size_t n = elements(b) / 2 * 2;
	const int32_t place = 0;
	struct k3_cast_args a = {.n_elems = &n, .copy = &place, .copies = {0, 1}};
	struct bench_case c;
	size_t wrong = 0;

	if (!bench_open(&c, b, "cast_params", BENCH_MEMORY, 0, "n=%zu", n))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_CAST_PARAMS);
	/* two numbers in each */
	const uint16_t *copy = bench_out_typed(call, "copies", n / 2, BENCH_I32);
	float *p = bench_in(call, n);
	bench_keep(&c, p);
	a.params = bench_list(call, 1);
	bench_args(call, &a, sizeof(a));
	bench_traffic(call, n, n / 2, 0);
	if (bench_run(&c)) {
		for (size_t i = 0; i < n; i++) {
			uint32_t bits = (uint32_t)copy[i] << 16;
			float got;
			memcpy(&got, &bits, sizeof(got));
			wrong += !((double)got == nearest((double)p[i]));
		}
		bench_judge(&c, "copies", (double)wrong, 0);
	}
	bench_close(&c);
}

void
bench_optim(struct bench *b)
{
	grad_norm(b);
	adamw(b);
	cast_params(b);
}
