/* The projections around KDA and its gated output norm, against the oracle; three heads in groups
 * of two. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../common/op/kda.h"
#include "fixture.h"

enum { T = 7, H = 3, V = 5, D = 11, K = 5, P = H * V, GROUP = 2, GROUPS = 2 };

static float *
input(const char *name)
{
	struct k3_st *st = fixture_open("kda_small");
	float *x = fixture_f32(st, name, NULL);

	k3_st_close(st);
	return x;
}

static void
expect(const char *name, const float *got, double tol)
{
	struct k3_st *st = fixture_open("kda_small");
	size_t n;
	double *want = fixture_f64(st, name, &n);

	fixture_expect_close(got, want, n, tol, name);
	cr_assert(fixture_guards_intact(got), "%s: wrote out of bounds", name);
	free(want);
	k3_st_close(st);
}

/* Columns of group g of x [T, H * w] as a buffer of their own. */
static float *
group_of(const float *x, size_t g, size_t w)
{
	size_t h0 = g * GROUP, hg = H - h0 < GROUP ? H - h0 : GROUP;
	float *y = malloc(T * hg * w * sizeof(*y));

	for (size_t t = 0; t < T; t++)
		memcpy(y + t * hg * w, x + (t * H + h0) * w, hg * w * sizeof(*y));
	return y;
}

/* A weight or gradient of two row blocks, so that groups and blocks do not coincide. */
static struct k3_weight
two_blocks(void **buf, uint32_t at, float *x, size_t rows, size_t cols, int accumulate)
{
	size_t block = (rows + 1) / 2;
	struct k3_weight w = {at, 2, rows, cols, block, (uint32_t)accumulate};

	buf[at] = x;
	buf[at + 1] = x + block * cols;
	return w;
}

Test(kda_small, projections_put_q_k_v_side_by_side, .timeout = 60)
{
	float *x = input("x"), *w[] = {input("wq"), input("wk"), input("wv")},
	      *dqkvr = input("dqkvr");
	float *qkvr = fixture_poisoned(T * 3 * P), *dx = fixture_poisoned(T * D), *dw[3];
	void *buf[8] = {qkvr, x};
	struct k3_kda_proj_args a = {.n_buf = 8, .t = T, .d = D, .p = P};
	const char *names[] = {"dwq", "dwk", "dwv"};

	a.wq = two_blocks(buf, 2, w[0], P, D, 0);
	a.wk = two_blocks(buf, 4, w[1], P, D, 0);
	a.wv = two_blocks(buf, 6, w[2], P, D, 0);
	k3_kda_proj_fwd_cpu_f32(buf, &a);
	expect("qkvr", qkvr, 1e-6);
	buf[0] = dx;
	buf[1] = dqkvr;
	k3_kda_proj_bwd_dx_cpu_f32(buf, &a);
	expect("dx_proj", dx, 1e-6);
	buf[0] = dqkvr;
	buf[1] = x;
	for (uint32_t i = 0; i < 3; i++) {
		dw[i] = fixture_poisoned(P * D);
		two_blocks(buf, 2 + 2 * i, dw[i], P, D, 0);
	}
	k3_kda_proj_bwd_dw_cpu_f32(buf, &a);
	for (size_t i = 0; i < 3; i++) {
		expect(names[i], dw[i], 1e-6);
		fixture_free_poisoned(dw[i]);
		free(w[i]);
	}
	fixture_free_poisoned(qkvr);
	fixture_free_poisoned(dx);
	free(x);
	free(dqkvr);
}

Test(kda_small, gate_inputs_match_the_oracle, .timeout = 60)
{
	float *x = input("x"), *wfa = input("wfa"), *wfb = input("wfb"), *wb = input("wb"),
	      *wg = input("wg");
	float *fa = fixture_poisoned(T * K), *f = fixture_poisoned(T * P),
	      *br = fixture_poisoned(T * H);
	float *gg = fixture_poisoned(T * P);
	void *buf[13] = {fa, f, br, gg, x};
	struct k3_kda_gate_args a = {.n_buf = 13, .t = T, .d = D, .p = P, .h = H, .k = K};

	a.wfa = two_blocks(buf, 5, wfa, K, D, 0);
	a.wfb = two_blocks(buf, 7, wfb, P, K, 0);
	a.wb = two_blocks(buf, 9, wb, H, D, 0);
	a.wg = two_blocks(buf, 11, wg, P, D, 0);
	k3_kda_gate_fwd_cpu_f32(buf, &a);
	expect("fa", fa, 1e-6);
	expect("f", f, 1e-6);
	expect("br", br, 1e-6);
	expect("ggp", gg, 1e-6);
	float *out[] = {fa, f, br, gg}, *in[] = {x, wfa, wfb, wb, wg};
	for (size_t i = 0; i < 4; i++)
		fixture_free_poisoned(out[i]);
	for (size_t i = 0; i < 5; i++)
		free(in[i]);
}

Test(kda_small, gate_input_gradients_gather_the_head_groups, .timeout = 60)
{
	float *df = input("df"), *dbr = input("dbr"), *dgg = input("gg"),
	      *w[] = {input("wfa"), input("wfb"), input("wb"), input("wg")};
	float *dx = fixture_poisoned(T * D), *dfa = fixture_poisoned(T * K);
	void *buf[15] = {dx, dfa, dgg};
	struct k3_kda_gate_args a = {.n_buf = 15,
				     .t = T,
				     .d = D,
				     .p = P,
				     .h = H,
				     .k = K,
				     .group_heads = GROUP,
				     .df = {3, GROUPS},
				     .dbr = {5, GROUPS}};

	for (size_t g = 0; g < GROUPS; g++) {
		buf[3 + g] = group_of(df, g, K);
		buf[5 + g] = group_of(dbr, g, 1);
	}
	a.wfa = two_blocks(buf, 7, w[0], K, D, 0);
	a.wfb = two_blocks(buf, 9, w[1], P, K, 0);
	a.wb = two_blocks(buf, 11, w[2], H, D, 0);
	a.wg = two_blocks(buf, 13, w[3], P, D, 0);
	memset(dx, 0, T * D * sizeof(*dx));
	k3_kda_gate_bwd_dx_cpu_f32(buf, &a);
	expect("dx_gate", dx, 1e-6);
	expect("dfa", dfa, 1e-6);
	for (size_t i = 3; i < 7; i++)
		free(buf[i]);
	for (size_t i = 0; i < 4; i++)
		free(w[i]);
	free(df);
	free(dbr);
	free(dgg);
	fixture_free_poisoned(dx);
	fixture_free_poisoned(dfa);
}

Test(kda_small, gate_weight_gradients_write_first_and_add_later, .timeout = 60)
{
	float *df = input("df"), *dbr = input("dbr"), *dgg = input("gg"), *x = input("x"),
	      *fa = input("fa"), *dfa = input("dfa");
	size_t rows[] = {K, P, H, P}, cols[] = {D, K, D, D};
	const char *names[] = {"dwfa", "dwfb", "dwb", "dwg"};
	float *dw[4], *da = fixture_poisoned(H), *db = fixture_poisoned(P),
		      dab[GROUPS][GROUP * (K + 1)];
	void *buf[20] = {dfa, dgg, x, fa};
	struct k3_kda_gate_args a = {.n_buf = 20,
				     .t = T,
				     .d = D,
				     .p = P,
				     .h = H,
				     .k = K,
				     .group_heads = GROUP,
				     .df = {4, GROUPS},
				     .dbr = {6, GROUPS},
				     .dab = {8, GROUPS}};
	struct k3_weight *w[] = {&a.wfa, &a.wfb, &a.wb, &a.wg};

	for (size_t g = 0; g < GROUPS; g++) {
		buf[4 + g] = group_of(df, g, K);
		buf[6 + g] = group_of(dbr, g, 1);
		buf[8 + g] = dab[g];
		for (size_t i = 0; i < GROUP * (K + 1); i++)
			dab[g][i] = (float)(100 * g + i);
	}
	for (size_t i = 0; i < 4; i++)
		dw[i] = fixture_poisoned(rows[i] * cols[i]);
	for (int again = 0; again < 2; again++) {
		for (uint32_t i = 0; i < 4; i++)
			*w[i] = two_blocks(buf, 10 + 2 * i, dw[i], rows[i], cols[i], 0);
		buf[18] = da;
		buf[19] = db;
		a.a_log = fixture_weight(18, 1, H, again);
		a.dt_bias = fixture_weight(19, 1, P, again);
		k3_kda_gate_bwd_dw_cpu_f32(buf, &a);
		for (size_t i = 0; i < 4; i++)
			expect(names[i], dw[i], 1e-6);
		float f = again ? 2.0f : 1.0f;
		cr_assert(da[0] == 0 * f && da[1] == 1 * f && da[2] == 100 * f,
			  "head order of dA_log");
		cr_assert(db[0] == 2 * f && db[2 * K - 1] == 11 * f && db[2 * K] == 101 * f &&
			  db[P - 1] == 105 * f);
	}
	float *in[] = {df, dbr, dgg, x, fa, dfa, buf[4], buf[5], buf[6], buf[7]};
	for (size_t i = 0; i < 10; i++)
		free(in[i]);
	for (size_t i = 0; i < 4; i++)
		fixture_free_poisoned(dw[i]);
	fixture_free_poisoned(da);
	fixture_free_poisoned(db);
}

Test(kda_small, output_norm_gate_and_projection_match_the_oracle, .timeout = 60)
{
	float *o = input("o"), *gg = input("gg"), *wo = input("wo"), *on = input("on"),
	      *p_in = input("p_in"), *dp = input("dp");
	float *p_out = fixture_poisoned(T * D), *work = fixture_poisoned(T * P),
	      *dwo = fixture_poisoned(D * P);
	void *buf[9] = {p_out, gg, work, group_of(o, 0, V), group_of(o, 1, V), p_in, on};
	struct k3_kda_out_args a = {.n_buf = 9,
				    .t = T,
				    .d = D,
				    .p = P,
				    .h = H,
				    .v = V,
				    .eps = 1e-5f,
				    .group_heads = GROUP,
				    .o = {3, GROUPS},
				    .p_in = {5, 1}};

	a.on = fixture_weight(6, 1, V, 0);
	a.wo = two_blocks(buf, 7, wo, D, P, 0);
	k3_kda_out_fwd_cpu_f32(buf, &a);
	expect("p_out", p_out, 2e-6);
	a.p_in.n = 0;
	k3_kda_out_fwd_cpu_f32(buf, &a);
	for (size_t i = 0; i < T * D; i++)
		p_out[i] += p_in[i];
	expect("p_out", p_out, 2e-6);
	cr_assert(fixture_guards_intact(work));

	buf[0] = dp;
	two_blocks(buf, 7, dwo, D, P, 0);
	k3_kda_out_bwd_dw_cpu_f32(buf, &a);
	expect("dwo", dwo, 2e-6);
	float *in[] = {o, gg, wo, on, p_in, dp, buf[3], buf[4]};
	for (size_t i = 0; i < 8; i++)
		free(in[i]);
	fixture_free_poisoned(p_out);
	fixture_free_poisoned(work);
	fixture_free_poisoned(dwo);
}

Test(kda_small, output_gradients_match_the_oracle, .timeout = 60)
{
	float *o = input("o"), *gg = input("gg"), *wo = input("wo"), *on = input("on"),
	      *dp = input("dp");
	float *dgg = fixture_poisoned(T * P), *work = fixture_poisoned(T * P),
	      *don = fixture_poisoned(V);
	float *dout[] = {fixture_poisoned(T * 2 * V), fixture_poisoned(T * V)},
	      *joined = fixture_poisoned(T * P);
	void *buf[12] = {dgg, dp, gg, work, dout[0], dout[1], group_of(o, 0, V), group_of(o, 1, V),
			 don, on};
	struct k3_kda_out_args a = {.n_buf = 12,
				    .t = T,
				    .d = D,
				    .p = P,
				    .h = H,
				    .v = V,
				    .eps = 1e-5f,
				    .group_heads = GROUP,
				    .dout = {4, GROUPS},
				    .o = {6, GROUPS}};

	a.don = fixture_weight(8, 1, V, 0);
	a.on = fixture_weight(9, 1, V, 0);
	a.wo = two_blocks(buf, 10, wo, D, P, 0);
	k3_kda_out_bwd_dx_cpu_f32(buf, &a);
	for (size_t t = 0; t < T; t++) {
		memcpy(joined + t * P, dout[0] + t * 2 * V, 2 * V * sizeof(float));
		memcpy(joined + t * P + 2 * V, dout[1] + t * V, V * sizeof(float));
	}
	expect("do", joined, 1e-5);
	expect("dgg", dgg, 1e-5);
	expect("don", don, 1e-5);
	cr_assert(fixture_guards_intact(dout[0]) && fixture_guards_intact(dout[1]) &&
		  fixture_guards_intact(work));
	float *in[] = {o, gg, wo, on, dp, buf[6], buf[7]},
	      *out[] = {dgg, work, don, dout[0], dout[1], joined};
	for (size_t i = 0; i < 7; i++)
		free(in[i]);
	for (size_t i = 0; i < 6; i++)
		fixture_free_poisoned(out[i]);
}
