/* Row loops (codelets/vec) give the same bits at every length, place and fused width, write nothing
 * beyond the row, and keep NaN. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "held.h"
#include "vec_case.h"

enum { OUTS = 24, INS = 6, SUMS = 6 };

/* What the loops give for one length. */
struct all {
	float *out[OUTS];
	double sum[SUMS];
};

static void
run_all(struct all *x, const struct k3_vec *vec, float *const in[INS], size_t len)
{
	const float *a = in[0], *b = in[1], *c = in[2], *d = in[3], *v[] = {in[0], in[1], in[2]};
	static const float w[] = {0.5f, -0.3f, 0.7f};
	float **o = x->out, *dv[] = {o[14], o[15], o[16]};
	struct k3_vec_mix m = {v, dv, 3, 1, w, w, w, v, d, a, b, o[17], o[18], 0};

	x->sum[0] = vec->dot(a, b, len);
	x->sum[1] = vec->square(a, len);
	x->sum[2] = vec->dot_weighted(a, b, c, len);
	x->sum[3] = vec->exp_sum(o[0], in[4], 0, len);
	vec->scale(o[1], 0.3f, a, len);
	memcpy(o[2], b, len * sizeof(*b));
	vec->axpy(o[2], 0.3f, a, len);
	vec->add(o[3], a, b, len);
	vec->weighted_sum(o[4], v, w, 3, len);
	vec->rms_fwd(o[5], a, b, 0.7f, len);
	vec->sigmoid(o[6], in[5], len);
	vec->situ_fwd(o[7], in[5], a, 0.9f, 4, 25, len);
	x->sum[4] = vec->situ_bwd(o[8], o[9], c, in[5], a, 0.9f, 4, 25, len);
	vec->gate_fwd(o[10], a, in[5], len);
	x->sum[5] = vec->gate_bwd(o[11], o[12], c, a, in[5], len);
	vec->norm_gate_fwd(o[13], a, b, in[5], 0.7f, len);
	memset(o[17], 0, len * sizeof(float));
	memset(o[18], 0, len * sizeof(float));
	vec->mix_bwd(&m, len);
	vec->silu(o[19], in[5], len);
	vec->gelu_tanh(o[20], in[5], len);
	vec->gelu_tanh_bwd(o[21], a, in[5], len);
	vec->gelu_erf(o[22], in[5], len);
	vec->gelu_erf_bwd(o[23], a, in[5], len);
}

static struct all
all_outputs(size_t len)
{
	struct all x = {0};

	for (size_t i = 0; i < OUTS; i++)
		x.out[i] = held_out(len);
	return x;
}

static void
all_inputs(float *in[INS], size_t len)
{
	for (size_t i = 0; i < INS; i++)
		in[i] = held_random(10 + i, len,
				    i == 4   ? -30
				    : i == 5 ? -8
					     : -2,
				    i == 4   ? 0
				    : i == 5 ? 8
					     : 2);
}

enum { MOST = 36 };

/* len elements from `from` on have the bits of the whole row, and nothing behind them is touched.
 */
static void
expect_part(struct all *part, const struct all *whole, const struct k3_vec *vec,
	    float *const in[INS], size_t from, size_t len)
{
	float *part_in[INS];

	for (size_t i = 0; i < INS; i++)
		part_in[i] = in[i] + from;
	for (size_t i = 0; i < OUTS; i++)
		for (size_t j = 0; j < MOST; j++)
			part->out[i][j] = -77;
	run_all(part, vec, part_in, len);
	for (size_t i = 0; i < OUTS; i++) {
		held_expect_same(part->out[i], whole->out[i] + from, len, "part of a row");
		held_expect_all(part->out[i] + len, -77, MOST - len, "behind the row");
	}
}

Test(vec, an_element_does_not_depend_on_length_or_place, .timeout = 60)
{
	enum { N = 83 };
	const struct k3_vec *table[3];
	size_t n = tables(table);
	float *in[INS];

	all_inputs(in, N);
	for (size_t k = 0; k < n; k++) {
		struct all whole = all_outputs(N), part = all_outputs(MOST);

		run_all(&whole, table[k], in, N);
		for (size_t from = 0; from < 19; from++)
			for (size_t len = 1; len < MOST; len += 1 + from % 3)
				expect_part(&part, &whole, table[k], in, from, len);
	}
	held_end();
}

/* Zeros at the end add nothing, and sums have the same lanes with and without them. */
Test(vec, a_sum_does_not_depend_on_the_register_width_of_its_rest, .timeout = 60)
{
	const struct k3_vec *table[3];
	size_t n = tables(table);
	float *x = held_random(1, 96, -1, 1), *y = held_random(2, 96, -1, 1);

	for (size_t k = 0; k < n; k++)
		for (size_t len = 1; len < 80; len++) {
			float *padded = held_copy(x, 96);

			for (size_t i = len; i < 96; i++)
				padded[i] = 0;
			cr_assert_eq(table[k]->dot(x, y, len), table[k]->dot(padded, y, 96),
				     "length %zu", len);
			cr_assert_eq(table[k]->dot(x, y, len), table[0]->dot(x, y, len),
				     "length %zu: products are exact, so all widths agree", len);
		}
	held_end();
}

Test(vec, both_fused_widths_give_the_same_bits, .timeout = 60)
{
	enum { N = 1003 };
	const struct k3_vec *table[3];
	float *in[INS];
	struct all a, b;

	if (tables(table) < 3)
		cr_skip_test("this processor has no 512-bit registers");
	all_inputs(in, N);
	a = all_outputs(N);
	b = all_outputs(N);
	run_all(&a, table[1], in, N);
	run_all(&b, table[2], in, N);
	for (size_t i = 0; i < OUTS; i++)
		held_expect_same(b.out[i], a.out[i], N, "loop");
	for (size_t i = 0; i < SUMS; i++)
		cr_assert_eq(a.sum[i], b.sum[i], "sum %zu", i);
	held_end();
}

Test(vec, nan_stays_nan_in_its_element_alone, .timeout = 60)
{
	enum { N = 21, AT = 18 };
	const struct k3_vec *table[3];
	size_t n = tables(table);
	float *in[INS];

	all_inputs(in, N);
	for (size_t i = 0; i < INS; i++)
		in[i][AT] = NAN;
	for (size_t k = 0; k < n; k++) {
		struct all x = all_outputs(N);

		run_all(&x, table[k], in, N);
		for (size_t i = 0; i < OUTS; i++)
			for (size_t j = 0; j < N; j++)
				cr_assert_eq(isnan(x.out[i][j]) != 0, j == AT,
					     "loop %zu, element %zu is %g", i, j,
					     (double)x.out[i][j]);
		for (size_t i = 0; i < SUMS; i++)
			cr_assert(isnan(x.sum[i]), "sum %zu", i);
	}
	held_end();
}
