/* The chunk kernels of KDA: all that the recurrent ones are held to, then what a chunked form can
 * get wrong. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../codelets/kda/exp_neg.h"
#include "../codelets/kda/kda_chunk.h"
#include "kda_suite.h"

#define FWD k3_kda_chunk_fwd_cpu_f32
#define BWD k3_kda_chunk_bwd_cpu_f32

Test(kda_chunk, matches_the_golden_operator_file, .timeout = 60)
{
	kda_check_golden(FWD, BWD);
}

Test(kda_chunk, takes_key_and_value_widths_that_differ, .timeout = 60)
{
	kda_check_shapes(FWD, BWD);
}

Test(kda_chunk, matches_the_oracle_of_a_layer_with_short_documents_and_holes, .timeout = 60)
{
	kda_check_layer(FWD, BWD);
}

Test(kda_chunk, beta_one_returns_the_last_value_at_any_decay, .timeout = 60)
{
	kda_check_running_value(FWD, 0.0f);
	kda_check_running_value(FWD, -3.0f);
	kda_check_running_value(FWD, -5.0f);
	kda_check_running_value(FWD, -1000.0f);
}

Test(kda_chunk, half_steps_follow_their_geometric_series, .timeout = 60)
{
	kda_check_half_steps(FWD);
}

Test(kda_chunk, channels_of_unlike_decay_keep_apart, .timeout = 60)
{
	kda_check_two_channels(FWD);
}

Test(kda_chunk, gate_stays_within_its_bound_at_huge_inputs, .timeout = 60)
{
	kda_check_saturated_gates(FWD, BWD);
}

Test(kda_chunk, documents_restart_the_state, .timeout = 60)
{
	kda_check_documents(FWD);
}

Test(kda_chunk, empty_documents_change_nothing, .timeout = 60)
{
	kda_check_empty_segments(FWD, BWD);
}

Test(kda_chunk, hole_equals_the_compacted_row, .timeout = 60)
{
	kda_check_hole(FWD, BWD);
}

/* Random case against the recurrent kernels; g_value > 0 draws mixed gates. */
static void
against_recurrence(size_t t, size_t h, size_t k, size_t v, float g_value, double tol_fwd,
		   double tol_bwd)
{
	struct kda_case c = kda_case(t, h, k, v), r = kda_case(t, h, k, v);
	size_t kv = h * k * v;
	float *qkv = kda_random_qkv(31, t, h, k, v), *beta = kda_random(32, t * h, 0, 1);
	float *g = g_value > 0 ? kda_mixed_gates(33, t * h * k) : kda_constant(t * h * k, g_value);
	float *d_o = kda_random(34, t * h * v, -1, 1), *s = kda_random(35, kv, -1, 1),
	      *ds = kda_random(36, kv, -1, 1);
	struct kda_case *both[] = {&c, &r};

	for (size_t i = 0; i < 2; i++) {
		both[i]->qkv = qkv;
		both[i]->f = g;
		both[i]->br = beta;
		both[i]->d_o = d_o;
		both[i]->s_in = s;
		both[i]->ds_out = ds;
		both[i]->scale = (float)(1 / sqrt((double)k));
		both[i]->want_s_out = both[i]->want_ds_in = 1;
		kda_forward(both[i], i ? k3_kda_recurrent_fwd_cpu_f32 : FWD);
		kda_backward(both[i], i ? k3_kda_recurrent_bwd_cpu_f32 : BWD);
	}
	kda_expect_same(c.o, r.o, t * h * v, tol_fwd, "o");
	kda_expect_same(c.s_out, r.s_out, kv, tol_fwd, "s_out");
	kda_expect_same(c.dqkv, r.dqkv, t * h * (2 * k + v), tol_bwd, "dqkv");
	kda_expect_same(c.df, r.df, t * h * k, tol_bwd, "dg");
	kda_expect_same(c.dbr, r.dbr, t * h, tol_bwd, "dbeta");
	kda_expect_same(c.ds_in, r.ds_in, kv, tol_bwd, "ds_in");
	kda_case_free(&c);
	kda_case_free(&r);
	float *in[] = {qkv, beta, g, d_o, s, ds};
	for (size_t i = 0; i < sizeof(in) / sizeof(*in); i++)
		free(in[i]);
}

Test(kda_chunk, lengths_around_the_chunk_equal_the_recurrence, .timeout = 60)
{
	static const size_t lengths[] = {1, 15, 16, 17, 31, 33, 48, 63, 64, 65, 127, 128, 129};

	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++)
		against_recurrence(lengths[i], 2, 16, 16, 1.0f, 5e-6, 2e-5);
}

Test(kda_chunk, strong_decay_of_every_channel_stays_finite_and_right, .timeout = 60)
{
	against_recurrence(129, 1, 128, 128, -3.0f, 5e-6, 2e-5);
	against_recurrence(129, 1, 128, 128, -5.0f, 5e-6, 2e-5);
	against_recurrence(64, 1, 128, 128, -27.6f, 5e-6, 2e-5);
	against_recurrence(64, 1, 32, 32, -1000.0f, 5e-6, 2e-5);
}

Test(kda_chunk, chunks_without_decay_equal_the_recurrence, .timeout = 60)
{
	against_recurrence(130, 1, 64, 64, 0.0f, 1e-5, 5e-5);
	against_recurrence(130, 1, 64, 64, -0.001f, 1e-5, 5e-5);
}

Test(kda_chunk, widths_that_fill_no_register_equal_the_recurrence, .timeout = 60)
{
	static const size_t dims[][2] = {{1, 1},    {8, 8},   {3, 17}, {128, 512},
					 {128, 32}, {16, 48}, {33, 7}};

	for (size_t i = 0; i < sizeof(dims) / sizeof(*dims); i++)
		against_recurrence(70, 1, dims[i][0], dims[i][1], 1.0f, 5e-6, 2e-5);
}

Test(kda_chunk, four_thousand_tokens_at_the_lower_bound_keep_the_parity_target, .timeout = 60)
{
	against_recurrence(4096, 1, 32, 32, -5.0f, 1e-5, 1e-4);
	against_recurrence(4096, 1, 32, 32, -4.9999f, 1e-5, 1e-4);
	against_recurrence(4096, 1, 32, 32, 1.0f, 1e-5, 1e-4);
}

Test(kda_chunk, token_behind_65536_is_not_forgotten, .timeout = 60)
{
	against_recurrence(65537, 1, 16, 16, 1.0f, 1e-5, 1e-4);
}

Test(kda_chunk, any_cut_in_tiles_equals_the_recurrence, .timeout = 60)
{
	static const size_t lengths[] = {1, 31, 32, 33, 100, 200}, rows[] = {16, 32, 64};

	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++)
		for (size_t j = 0; j < 3; j++)
			kda_check_tiles(FWD, BWD, lengths[i], rows[j]);
}

Test(kda_chunk, packed_document_has_the_bits_of_the_document_alone, .timeout = 60)
{
	enum { T = 150, LO = 37, N = 80, K = 24 };
	struct kda_case c = kda_case(T, 1, K, K), alone = kda_case(N, 1, K, K);
	float *qkv = kda_random_qkv(41, T, 1, K, K), *g = kda_mixed_gates(42, T * K),
	      *beta = kda_random(43, T, 0, 1);
	float *d_o = kda_random(44, T * K, -1, 1);
	int32_t docs[T];

	for (size_t i = 0; i < T; i++)
		docs[i] = i < LO ? 1 : i < LO + N ? 2 : 3;
	free(c.layout);
	c.layout = fixture_layout(docs, T, 0, 0, 0, 0, 0);
	c.qkv = qkv;
	c.f = g;
	c.br = beta;
	c.d_o = d_o;
	alone.qkv = qkv + LO * 3 * K;
	alone.f = g + LO * K;
	alone.br = beta + LO;
	alone.d_o = d_o + LO * K;
	kda_forward(&c, FWD);
	kda_forward(&alone, FWD);
	kda_backward(&c, BWD);
	kda_backward(&alone, BWD);
	cr_assert_eq(memcmp(c.o + LO * K, alone.o, N * K * sizeof(float)), 0);
	cr_assert_eq(memcmp(c.dqkv + LO * 3 * K, alone.dqkv, N * 3 * K * sizeof(float)), 0);
	cr_assert_eq(memcmp(c.df + LO * K, alone.df, N * K * sizeof(float)), 0);
	kda_case_free(&c);
	kda_case_free(&alone);
	free(qkv);
	free(g);
	free(beta);
	free(d_o);
}

Test(kda_chunk, exp_of_what_is_not_positive_errs_by_two_units_at_most, .timeout = 60)
{
	double worst = 0;

	for (uint32_t bits = 0; bits + 16 * 1021 < 0x42ae0000u; bits += 16 * 1021) { /* up to 87 */
		float x[16], y[16];

		for (uint32_t i = 0; i < 16; i++) {
			uint32_t negative = (bits + i * 1021) | 0x80000000u;

			memcpy(x + i, &negative, sizeof(negative));
		}
		k3i_exp_neg((k3i_vf *)y, (const k3i_vf *)x);
		for (size_t i = 0; i < 16; i++) {
			float want = (float)exp((double)x[i]);
			double unit = (double)nextafterf(want, 2.0f) - (double)want;

			worst = fmax(worst, fabs((double)y[i] - exp((double)x[i])) / unit);
		}
	}
	cr_assert_leq(worst, 2.0, "%g units", worst);
}

Test(kda_chunk, exp_flushes_what_would_be_denormal_and_keeps_nan, .timeout = 60)
{
	float x[16] = {0.0f, -0.0f, -87.5f, -1000.0f, -INFINITY, NAN, -86.9f}, y[16];

	k3i_exp_neg((k3i_vf *)y, (const k3i_vf *)x);
	cr_assert(y[0] == 1.0f && y[1] == 1.0f && y[2] == 0.0f && y[3] == 0.0f && y[4] == 0.0f);
	cr_assert(isnan(y[5]) && y[6] >= FLT_MIN);
}

/* All loops over channels on 32 rows, 29 of them real, every array cut from the same random work.
 */
static void
run_lanes(const struct k3i_kda_lanes *lanes, float *work)
{
	struct k3_kda_chunk_args a = {.k = 24, .v = 16, .scale = 0.2f};
	struct k3i_kda_chunk_grad g;
	struct k3i_kda_chunk c;
	float **rows[] = {&g.e,	     &g.dxy,   &g.dkbar, &g.dp,	     &g.dm, &g.dq, &g.dk_row,
			  &g.dk_col, &g.dbeta, &g.dg,	 &g.dg_last, &g.ds, &g.dab};

	k3i_kda_chunk_init(&c, &a, &work);
	k3i_kda_chunk_keep(&c, &work);
	c.rows = 32;
	c.n_rows = 29;
	c.exp_a = 1.5f;
	c.lower_bound = -5.0f;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		*rows[i] = k3i_take(&work, 2 * K3I_CHUNK * (c.kp + c.vp));
	memset(c.l, 0, c.rows * c.kp * sizeof(float));
	lanes->gate(&c);
	lanes->decay(&c);
	lanes->diagonal(&c, 0);
	lanes->diagonal(&c, 1);
	lanes->scale_all(c.p, c.scale, c.rows * K3I_CHUNK);
	lanes->inverse(&c);
	lanes->wy(&c, &g);
	lanes->diagonal_bwd(&c, &g, 1);
	lanes->gate_sum(&c, &g);
	lanes->gate_bwd(&c, &g);
	lanes->mul_rows(g.dxy, g.dg, 32, c.kp);
	lanes->scale_rows(g.e, g.dbeta, 32, c.kp);
	lanes->mul(g.dp, g.e, g.dxy, c.kp);
	lanes->muladd(g.dm, g.e, g.dxy, c.kp);
}

Test(kda_chunk, every_register_width_gives_the_same_loops, .timeout = 60)
{
	size_t n = 180000;
	float *base = kda_random(51, n, -0.5, 0.5), *wide = kda_random(51, n, -0.5, 0.5);

	run_lanes(&k3i_kda_lanes_base, base);
	run_lanes(k3i_kda_lanes(), wide);
	kda_expect_same(wide, base, n, 1e-5, "widest registers");
#ifdef K3_HAVE_WIDE_LANES
	if (k3_lanes_of_cpu() >= K3_LANES_AVX2) {
		free(wide);
		wide = kda_random(51, n, -0.5, 0.5);
		run_lanes(&k3i_kda_lanes_avx2, wide);
		kda_expect_same(wide, base, n, 1e-5, "256-bit registers");
	}
#endif
	free(base);
	free(wide);
}
