/* Attention-residual mix with its norm, against the oracle with one, two and five values.  The trap
 * that the small cases look for: the score is a product of two vectors, so a zero query still has a
 * gradient while its partner has none. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../common/op/attnres.h"
#include "held.h"

enum { T = 6, D = 24, MOST = 4, STAT_MOST = 3 * (MOST + 1) + 1 };
static const float eps = 1e-5f;

struct mix {
	uint32_t n; /* blocks beside the prefix */
	size_t stat_len;
	float *p, *blocks, *gamma, *rho, *w, *dy, *add;
	float *y, *stat;
	float *dp, *dblocks, *dgamma, *drho, *dw;
};

static const char *
name_of(uint32_t n, const char *tensor)
{
	static char names[8][32];
	static unsigned turn;
	char *name = names[turn++ % 8];

	snprintf(name, sizeof(names[0]), "mix%u.%s", n, tensor);
	return name;
}

static float *
input(uint32_t n, const char *tensor)
{
	return held_input("blocks", name_of(n, tensor));
}

static void
expect(const struct mix *m, const float *got, const char *tensor, double tol)
{
	held_expect(got, "blocks", name_of(m->n, tensor), tol);
}

static struct mix
golden(uint32_t n)
{
	struct mix m = {.n = n, .stat_len = k3_mix_stat_len(n)};

	m.p = input(n, "p");
	m.dy = input(n, "dy");
	m.add = input(n, "add");
	m.w = input(n, "w");
	if (n) {
		m.blocks = input(n, "blocks");
		m.gamma = input(n, "gamma");
		m.rho = input(n, "rho");
	}
	m.y = held_out(T * D);
	m.stat = held_out(T * m.stat_len);
	m.dp = held_out(T * D);
	m.dblocks = held_out(n * T * D);
	m.dgamma = held_out(D);
	m.drho = held_out(D);
	m.dw = held_out(D);
	return m;
}

/* Rows t0 .. t1-1 as a tile of their own. */
static void
forward(const struct mix *m, size_t t0, size_t t1)
{
	size_t at = t0 * D;
	struct held_task task = {{m->y + at, m->stat + t0 * m->stat_len, m->p + at}, 3};
	struct k3_mix_norm_fwd_args a = {.t = t1 - t0, .d = D, .eps = eps, .blocks = {3, m->n}};

	for (uint32_t j = 0; j < m->n; j++)
		held_push(&task, m->blocks + j * T * D + at);
	if (m->n) {
		a.gamma = held_push_weight(&task, m->gamma, 1, D, 1, 0);
		a.rho = held_push_weight(&task, m->rho, 1, D, 1, 0);
	}
	a.w = held_push_weight(&task, m->w, 1, D, 1, 0);
	a.n_buf = task.n;
	k3_mix_norm_fwd_cpu_f32(task.buf, &a);
}

static void
backward(const struct mix *m, size_t t0, size_t t1, uint32_t addends, int add_blocks,
	 int add_weights)
{
	size_t at = t0 * D;
	struct held_task task = {{m->dp + at, m->dy + at, m->stat + t0 * m->stat_len, m->p + at},
				 4};
	struct k3_mix_norm_bwd_args a = {.t = t1 - t0, .d = D, .eps = eps};

	a.blocks_accumulate = (uint32_t)add_blocks;
	a.addends = (struct k3_list){task.n, addends};
	for (uint32_t j = 0; j < addends; j++)
		held_push(&task, m->add + j * T * D + at);
	a.blocks = (struct k3_list){task.n, m->n};
	for (uint32_t j = 0; j < m->n; j++)
		held_push(&task, m->blocks + j * T * D + at);
	a.dblocks = (struct k3_list){task.n, m->n};
	for (uint32_t j = 0; j < m->n; j++)
		held_push(&task, m->dblocks + j * T * D + at);
	if (m->n) {
		a.dgamma = held_push_weight(&task, m->dgamma, 1, D, 1, add_weights);
		a.drho = held_push_weight(&task, m->drho, 1, D, 1, add_weights);
	}
	a.dw = held_push_weight(&task, m->dw, 1, D, 1, add_weights);
	if (m->n) {
		a.gamma = held_push_weight(&task, m->gamma, 1, D, 1, 0);
		a.rho = held_push_weight(&task, m->rho, 1, D, 1, 0);
	}
	a.w = held_push_weight(&task, m->w, 1, D, 1, 0);
	a.n_buf = task.n;
	k3_mix_norm_bwd_cpu_f32(task.buf, &a);
}

static void
forward_is_golden(uint32_t n)
{
	struct mix m = golden(n);
	const char *parts[] = {"a", "r", "s"};

	forward(&m, 0, T);
	expect(&m, m.y, "y", 1e-6);
	expect(&m, held_columns(m.stat, T, m.stat_len, 3 * (n + 1), m.stat_len), "rx", 1e-6);
	for (size_t i = 0; n && i < 3; i++)
		expect(&m, held_columns(m.stat, T, m.stat_len, i * (n + 1), (i + 1) * (n + 1)),
		       parts[i], 2e-6);
}

Test(mix_norm, without_blocks_is_the_norm_of_the_prefix, .timeout = 60)
{
	forward_is_golden(0);
	held_end();
}

Test(mix_norm, without_blocks_all_statistics_are_set, .timeout = 60)
{
	struct mix m = golden(0);

	forward(&m, 0, T);
	for (size_t i = 0; i < T * m.stat_len; i++)
		cr_assert(isfinite(m.stat[i]), "stat[%zu] was not set", i);
	for (size_t t = 0; t < T; t++)
		cr_assert_eq(m.stat[t * m.stat_len], 1, "the prefix has the whole share");
	held_end();
}

Test(mix_norm, forward_over_two_values_matches_the_oracle, .timeout = 60)
{
	forward_is_golden(1);
	held_end();
}

Test(mix_norm, forward_over_five_values_matches_the_oracle, .timeout = 60)
{
	forward_is_golden(4);
	held_end();
}

static void
backward_is_golden(uint32_t n)
{
	struct mix m = golden(n);

	forward(&m, 0, T);
	backward(&m, 0, T, 0, 0, 0);
	expect(&m, m.dp, "dp", 1e-5);
	expect(&m, m.dw, "dw", 1e-5);
	if (n) {
		expect(&m, m.dblocks, "dblocks", 1e-5);
		expect(&m, m.dgamma, "dgamma", 1e-5);
		expect(&m, m.drho, "drho", 1e-5);
	}
}

Test(mix_norm, gradients_of_the_norm_alone_match_the_oracle, .timeout = 60)
{
	backward_is_golden(0);
	held_end();
}

Test(mix_norm, gradients_of_two_values_match_the_oracle, .timeout = 60)
{
	backward_is_golden(1);
	held_end();
}

Test(mix_norm, gradients_of_five_values_match_the_oracle, .timeout = 60)
{
	backward_is_golden(4);
	held_end();
}

/* got must be what the oracle has plus x (n_x arrays, one behind the other). */
static void
expect_sum(const struct mix *m, const float *got, const char *tensor, const float *x, uint32_t n_x,
	   size_t n)
{
	float *rest = held_copy(got, n);

	for (uint32_t k = 0; k < n_x; k++)
		for (size_t i = 0; i < n; i++)
			rest[i] -= x[k * n + i];
	expect(m, rest, tensor, 1e-5);
}

Test(mix_norm, addends_join_the_gradient_of_the_prefix, .timeout = 60)
{
	for (uint32_t n = 0; n <= 4; n += 4) {
		struct mix m = golden(n);

		forward(&m, 0, T);
		for (uint32_t addends = 1; addends <= 2; addends++) {
			memset(m.dp, 0xff, T * D * sizeof(*m.dp));
			backward(&m, 0, T, addends, 0, 0);
			expect_sum(&m, m.dp, "dp", m.add, addends, T * D);
			if (n)
				expect(&m, m.dblocks, "dblocks", 1e-5);
		}
	}
	held_end();
}

Test(mix_norm, later_contributions_add_to_the_first, .timeout = 60)
{
	struct mix m = golden(4);
	float *blocks = held_random(1, 4 * T * D, -1, 1), *vectors = held_random(2, 3 * D, -1, 1);

	forward(&m, 0, T);
	memcpy(m.dblocks, blocks, 4 * T * D * sizeof(float));
	memcpy(m.dgamma, vectors, D * sizeof(float));
	memcpy(m.drho, vectors + D, D * sizeof(float));
	memcpy(m.dw, vectors + 2 * (size_t)D, D * sizeof(float));
	backward(&m, 0, T, 0, 1, 1);
	expect(&m, m.dp, "dp", 1e-5);
	expect_sum(&m, m.dblocks, "dblocks", blocks, 1, 4 * T * D);
	expect_sum(&m, m.dgamma, "dgamma", vectors, 1, D);
	expect_sum(&m, m.drho, "drho", vectors + D, 1, D);
	expect_sum(&m, m.dw, "dw", vectors + 2 * (size_t)D, 1, D);
	held_end();
}

Test(mix_norm, gradients_of_vectors_are_summed_over_tiles, .timeout = 60)
{
	struct mix m = golden(4);

	for (size_t cut = 0; cut < T; cut += 2) {
		forward(&m, cut, cut + 2);
		backward(&m, cut, cut + 2, 0, 0, cut > 0);
	}
	expect(&m, m.y, "y", 1e-6);
	expect(&m, m.dblocks, "dblocks", 1e-5);
	expect(&m, m.dgamma, "dgamma", 1e-5);
	expect(&m, m.drho, "drho", 1e-5);
	expect(&m, m.dw, "dw", 1e-5);
	held_end();
}

Test(mix_norm, a_token_does_not_depend_on_its_tile, .timeout = 60)
{
	struct mix whole = golden(4), single = golden(4);

	forward(&whole, 0, T);
	for (size_t t = 0; t < T; t++)
		forward(&single, t, t + 1);
	held_expect_same(single.y, whole.y, T * D, "y");
	held_expect_same(single.stat, whole.stat, T * whole.stat_len, "stat");
	held_end();
}

Test(mix_norm, first_contribution_over_no_rows_is_zero, .timeout = 60)
{
	struct mix m = golden(1);

	backward(&m, 0, 0, 2, 0, 0);
	held_expect_all(m.dgamma, 0, D, "dgamma");
	held_expect_all(m.drho, 0, D, "drho");
	held_expect_all(m.dw, 0, D, "dw");
	cr_assert(isnan(m.dp[0]) && isnan(m.dblocks[0]), "rows that are not there were written");
	held_end();
}

/* Constant sources 1, 2 and 3 (3 is the prefix), query zero, keys scaled by anything. */
static struct mix
constant_sources(void)
{
	struct mix m = golden(4);

	m.n = 2;
	m.stat_len = k3_mix_stat_len(2);
	memset(m.rho, 0, D * sizeof(float));
	for (size_t i = 0; i < T * D; i++) {
		m.blocks[i] = 1;
		m.blocks[T * D + i] = 2;
		m.p[i] = 3;
	}
	return m;
}

Test(mix_norm, zero_query_gives_the_mean_of_the_sources, .timeout = 60)
{
	struct mix m = constant_sources();

	forward(&m, 0, T);
	for (size_t t = 0; t < T; t++) {
		const float *s = m.stat + t * m.stat_len;
		for (size_t j = 0; j < 3; j++)
			cr_assert_float_eq(s[j], 1.0f / 3, 1e-7f, "share %zu is %g", j,
					   (double)s[j]);
		for (size_t i = 0; i < D; i++) {
			float x = m.y[t * D + i] / (m.w[i] * s[9]);
			cr_assert_float_eq(x, 2, 2e-6f, "source mean is %.9g", (double)x);
		}
	}
	held_end();
}

Test(mix_norm, zero_query_has_a_gradient_and_its_key_norm_has_none, .timeout = 60)
{
	struct mix m = golden(4);
	float most = 0;

	memset(m.rho, 0, D * sizeof(float));
	forward(&m, 0, T);
	backward(&m, 0, T, 0, 0, 0);
	held_expect_all(m.dgamma, 0, D, "dgamma");
	for (size_t i = 0; i < D; i++)
		most = fmaxf(most, fabsf(m.drho[i]));
	cr_assert(most > 0.01f, "a zero query would never learn");
	held_end();
}

Test(mix_norm, extreme_scores_choose_one_source_without_overflow, .timeout = 60)
{
	struct mix m = golden(1);

	for (size_t i = 0; i < D; i++) {
		m.gamma[i] = 1;
		m.rho[i] = 1e4f;
	}
	for (size_t i = 0; i < T * D; i++) {
		m.blocks[i] = -1e15f;
		m.p[i] = 1e15f;
	}
	forward(&m, 0, T);
	backward(&m, 0, T, 0, 0, 0);
	for (size_t t = 0; t < T; t++)
		cr_assert(m.stat[t * m.stat_len] == 0 && m.stat[t * m.stat_len + 1] == 1);
	for (size_t i = 0; i < T * D; i++) {
		cr_assert_float_eq(m.y[i], m.w[i % D], 1e-6f, "y[%zu] is %g", i, (double)m.y[i]);
		cr_assert(isfinite(m.dp[i]) && m.dblocks[i] == 0);
	}
	held_end();
}
