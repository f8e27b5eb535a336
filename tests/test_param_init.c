/* Initial values: distributions, and that an element depends on seed, name and index alone. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/op/optim.h"
#include "../common/rng.h"
#include "held.h"

enum { MANY = 100000 };

static void
fill(float *block, enum k3_init_kind kind, double scale, uint64_t key, uint64_t first,
     size_t offset, size_t n)
{
	void *buf[] = {block};
	struct k3_param_init_args a = {.n_buf = 1,
				       .kind = kind,
				       .scale = scale,
				       .key = key,
				       .first_elem = first,
				       .offset_elems = offset,
				       .n_elems = n};

	k3_param_init_cpu_f32(buf, &a);
}

static float *
drawn(enum k3_init_kind kind, double scale, const char *name, uint64_t seed, size_t n)
{
	float *x = held_out(n);

	fill(x, kind, scale, k3_rng_key(name, seed), 0, 0, n);
	return x;
}

struct moments {
	double mean, variance, least, most;
};

static struct moments
moments_of(const float *x, size_t n)
{
	struct moments m = {0, 0, INFINITY, -INFINITY};

	for (size_t i = 0; i < n; i++) {
		m.mean += (double)x[i] / (double)n;
		m.least = fmin(m.least, (double)x[i]);
		m.most = fmax(m.most, (double)x[i]);
		cr_assert(isfinite(x[i]));
	}
	for (size_t i = 0; i < n; i++)
		m.variance += ((double)x[i] - m.mean) * ((double)x[i] - m.mean) / (double)n;
	return m;
}

/* Mean 0 and the variance to five standard errors of a normal sample. */
static void
expect_normal(const struct moments *m, double variance)
{
	double n = MANY;

	cr_assert(fabs(m->mean) < 5 * sqrt(variance / n), "mean %g", m->mean);
	cr_assert(fabs(m->variance / variance - 1) < 5 * sqrt(2 / n), "variance %g, expected %g",
		  m->variance, variance);
}

/* Variance of a unit normal that is cut at +-c. */
static double
cut_variance(double c)
{
	double density = exp(-c * c / 2) / sqrt(2 * M_PI);

	return 1 - 2 * c * density / erf(c / sqrt(2));
}

Test(param_init, zeros_and_ones_are_exact, .timeout = 60)
{
	held_expect_all(drawn(K3_INIT_ZERO, 0, "b", 1, 1000), 0, 1000, "zero");
	held_expect_all(drawn(K3_INIT_ONE, 0, "w", 1, 1000), 1, 1000, "one");
	held_end();
}

Test(param_init, small_scales_are_practically_normal, .timeout = 60)
{
	struct moments m = moments_of(drawn(K3_INIT_NORMAL, 0.02, "w", 1, MANY), MANY);

	expect_normal(&m, 0.02 * 0.02);
	cr_assert(m.most > 0.06 && m.least < -0.06, "the bound is 2, not 2 or 3 scale");
	held_end();
}

Test(param_init, bound_2_is_absolute, .timeout = 60)
{
	struct moments m = moments_of(drawn(K3_INIT_NORMAL, 1, "w", 1, MANY), MANY);

	expect_normal(&m, cut_variance(2));
	cr_assert(m.most <= 2 && m.least >= -2);
	cr_assert(m.most > 1.98 && m.least < -1.98, "nothing comes near the bound");
	held_end();
}

Test(param_init, head_is_cut_at_three_scales, .timeout = 60)
{
	struct moments m = moments_of(drawn(K3_INIT_NORMAL_3S, 0.1, "head", 1, MANY), MANY);

	expect_normal(&m, 0.01 * cut_variance(3));
	cr_assert(m.most <= 0.3001 && m.least >= -0.3001);
	cr_assert(m.most > 0.28 && m.least < -0.28);
	held_end();
}

Test(param_init, embeddings_are_not_cut, .timeout = 60)
{
	float *x = drawn(K3_INIT_NORMAL_FREE, 1, "embed", 1, MANY);
	struct moments m = moments_of(x, MANY);
	size_t outside = 0;

	expect_normal(&m, 1);
	for (size_t i = 0; i < MANY; i++)
		outside += fabsf(x[i]) > 3;
	cr_assert(outside > 180 && outside < 360, "%zu of 270 expected beyond 3", outside);
	held_end();
}

Test(param_init, no_decay_rate_starts_frozen, .timeout = 60)
{
	float *a_log = drawn(K3_INIT_LOG_UNIFORM, 0, "A_log", 1, MANY);
	double mean = 0, square = 0;

	for (size_t i = 0; i < MANY; i++) {
		double a = exp((double)a_log[i]);
		cr_assert(a_log[i] >= 0 && a <= 16.0001, "exp(A_log[%zu]) is %g", i, a);
		mean += a / MANY;
		square += a * a / MANY;
	}
	/* uniform in (1, 16): mean 8.5, variance 225 / 12 */
	cr_assert_float_eq(mean, 8.5, 0.07, "mean %g", mean);
	cr_assert_float_eq(square - mean * mean, 18.75, 0.3, "variance %g", square - mean * mean);
	held_end();
}

Test(param_init, values_do_not_depend_on_the_cut, .timeout = 60)
{
	const enum k3_init_kind kinds[] = {K3_INIT_NORMAL, K3_INIT_NORMAL_FREE, K3_INIT_NORMAL_3S,
					   K3_INIT_LOG_UNIFORM};
	uint64_t key = k3_rng_key("w", 5);

	for (size_t k = 0; k < 4; k++) {
		float *whole = drawn(kinds[k], 1.5, "w", 5, 1000);
		for (size_t piece = 1; piece < 1000; piece = 3 * piece + 7) {
			float *x = held_out(1000);
			for (size_t at = 0; at < 1000; at += piece) /* blocks of their own */
				fill(x + at, kinds[k], 1.5, key, at, 0,
				     1000 - at < piece ? 1000 - at : piece);
			held_expect_same(x, whole, 1000, "separate blocks");
			for (size_t at = 0; at < 1000; at += piece) /* parts of one block */
				fill(x, kinds[k], 1.5, key, 7 + at, at,
				     1000 - at < piece ? 1000 - at : piece);
			held_expect_same(x, whole + 7, 993, "parts of a block");
		}
	}
	held_end();
}

Test(param_init, only_its_part_of_a_block_is_filled, .timeout = 60)
{
	float *x = held_out(20);

	fill(x, K3_INIT_ONE, 0, 0, 100, 5, 6);
	for (size_t i = 0; i < 20; i++)
		cr_assert(i >= 5 && i < 11 ? x[i] == 1 : isnan(x[i]), "element %zu is %g", i,
			  (double)x[i]);
	held_end();
}

/* Correlation of two samples of unit normals. */
static double
correlation(const float *x, const float *y, size_t n)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += (double)x[i] * (double)y[i];
	return sum / (double)n;
}

Test(param_init, names_seeds_and_neighbours_are_independent, .timeout = 60)
{
	float *x = drawn(K3_INIT_NORMAL_FREE, 1, "layers.1.w", 1, MANY);
	float *name = drawn(K3_INIT_NORMAL_FREE, 1, "layers.2.w", 1, MANY);
	float *seed = drawn(K3_INIT_NORMAL_FREE, 1, "layers.1.w", 2, MANY);
	double most = 5 / sqrt(MANY);

	cr_assert(fabs(correlation(x, name, MANY)) < most, "names");
	cr_assert(fabs(correlation(x, seed, MANY)) < most, "seeds");
	cr_assert(fabs(correlation(x, x + 1, MANY - 1)) < most, "neighbours");
	held_end();
}

static void
expect_values(enum k3_init_kind kind, const char *tensor)
{
	uint64_t key = k3_rng_key("model.x", 7), far = (uint64_t)*held_ints("init", "far");
	float *x = held_out(72);

	fill(x, kind, 1.5, key, 0, 0, 64);
	fill(x, kind, 1.5, key, far - 1, 64, 4);
	fill(x, kind, 1.5, key, (UINT64_C(1) << 33) + 5, 68, 4);
	struct k3_st *st = fixture_open("init");
	double *want = fixture_f64(st, tensor, NULL);
	for (size_t i = 0; i < 72; i++)
		cr_assert_float_eq(x[i], want[i], 1e-6, "%s[%zu] is %.9g, expected %.9g", tensor, i,
				   (double)x[i], want[i]);
	free(want);
	k3_st_close(st);
}

Test(param_init, values_are_those_of_an_independent_generator, .timeout = 60)
{
	expect_values(K3_INIT_NORMAL, "normal");
	expect_values(K3_INIT_NORMAL_FREE, "free");
	expect_values(K3_INIT_NORMAL_3S, "three");
	expect_values(K3_INIT_LOG_UNIFORM, "log_uniform");
	held_end();
}
