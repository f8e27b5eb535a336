/* Checks that hold for every KDA kernel.  Expected values: golden file, float64 oracle, closed
 * forms; comparisons of a kernel with itself only where the claim is an invariance. */
#include "kda_suite.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double *
tensor(struct k3_st *st, const char *prefix, const char *name, size_t *n)
{
	char key[64];

	snprintf(key, sizeof(key), "%s.%s", prefix, name);
	return fixture_f64(st, key, n);
}

static float *
tensor_f32(struct k3_st *st, const char *prefix, const char *name)
{
	char key[64];

	snprintf(key, sizeof(key), "%s.%s", prefix, name);
	return k3_st_find(st, key) ? fixture_f32(st, key, NULL) : NULL;
}

/* Columns of width w at offset col of rows of ld elements, packed. */
static float *
columns(const float *x, size_t t, size_t ld, size_t col, size_t w)
{
	float *y = malloc((t * w + 1) * sizeof(*y));

	for (size_t r = 0; r < t; r++)
		memcpy(y + r * w, x + r * ld + col, w * sizeof(*y));
	return y;
}

static float *
join_qkv(const float *q, const float *k, const float *v, size_t t, size_t wk, size_t wv)
{
	float *x = malloc(t * (2 * wk + wv) * sizeof(*x));

	for (size_t r = 0; r < t; r++) {
		memcpy(x + r * (2 * wk + wv), q + r * wk, wk * sizeof(*x));
		memcpy(x + r * (2 * wk + wv) + wk, k + r * wk, wk * sizeof(*x));
		memcpy(x + r * (2 * wk + wv) + 2 * wk, v + r * wv, wv * sizeof(*x));
	}
	return x;
}

/* As fixture_expect_close, but passes when no element is further off than 1e-7: dg of a single
 * token is 0. */
static void
expect(struct k3_st *st, const char *prefix, const char *name, const float *got, double tol)
{
	size_t n;
	double *want = tensor(st, prefix, name, &n);
	char what[128];
	int off = 0;

	snprintf(what, sizeof(what), "%s.%s", prefix, name);
	for (size_t i = 0; i < n; i++)
		off |= !(fabs((double)got[i] - want[i]) <= 1e-7);
	if (off)
		fixture_expect_close(got, want, n, tol, what);
	free(want);
}

static void
expect_columns(struct k3_st *st, const char *prefix, const char *name, const struct kda_case *c,
	       size_t col, size_t w, double tol)
{
	float *part = columns(c->dqkv, c->t, c->h * (2 * c->k + c->v), col, w);

	expect(st, prefix, name, part, tol);
	free(part);
}

static void
check_file_case(struct k3_st *st, const char *prefix, size_t t, size_t h, size_t k, size_t v,
		kda_kernel *fwd, kda_kernel *bwd)
{
	struct kda_case c = kda_case(t, h, k, v);
	float *q = tensor_f32(st, prefix, "q"), *key = tensor_f32(st, prefix, "k"),
	      *val = tensor_f32(st, prefix, "v");
	float *qkv = join_qkv(q, key, val, t, h * k, h * v), *g = tensor_f32(st, prefix, "g");
	float *beta = tensor_f32(st, prefix, "beta"), *d_o = tensor_f32(st, prefix, "do");
	float *s0 = tensor_f32(st, prefix, "S0"), *dst = tensor_f32(st, prefix, "dST");

	c.qkv = qkv;
	c.f = g;
	c.br = beta;
	c.d_o = d_o;
	c.s_in = s0;
	c.ds_out = dst;
	c.scale = (float)(1 / sqrt((double)k));
	c.want_s_out = c.want_ds_in = 1;
	kda_forward(&c, fwd);
	kda_backward(&c, bwd);
	expect(st, prefix, "o", c.o, 2e-5);
	expect(st, prefix, "ST", c.s_out, 2e-5);
	expect_columns(st, prefix, "dq", &c, 0, h * k, 1e-4);
	expect_columns(st, prefix, "dk", &c, h * k, h * k, 1e-4);
	expect_columns(st, prefix, "dv", &c, 2 * h * k, h * v, 1e-4);
	expect(st, prefix, "dg", c.df, 1e-4);
	expect(st, prefix, "dbeta", c.dbr, 1e-4);
	if (s0)
		expect(st, prefix, "dS0", c.ds_in, 1e-4);
	for (size_t i = 0; i < h + h * k; i++)
		cr_assert_eq(c.dab[i], 0.0f, "raw mode has no gate parameters");
	kda_case_free(&c);
	float *in[] = {q, key, val, qkv, g, beta, d_o, s0, dst};
	for (size_t i = 0; i < sizeof(in) / sizeof(*in); i++)
		free(in[i]);
}

void
kda_check_golden(kda_kernel *fwd, kda_kernel *bwd)
{
	static const size_t lengths[] = {1, 15, 16, 17, 63, 64, 65, 130};
	struct k3_st *st = fixture_open("golden/kda_ops_d32");
	char prefix[16];

	for (size_t i = 0; i < 8; i++) {
		snprintf(prefix, sizeof(prefix), "T%zu", lengths[i]);
		check_file_case(st, prefix, lengths[i], 2, 32, 32, fwd, bwd);
	}
	k3_st_close(st);
}

void
kda_check_shapes(kda_kernel *fwd, kda_kernel *bwd)
{
	static const size_t dims[][3] = {{16, 48, 17}, {24, 16, 33}, {128, 32, 4}, {1, 1, 20}};
	struct k3_st *st = fixture_open("kda_shapes");
	char prefix[16];

	for (size_t i = 0; i < 4; i++) {
		snprintf(prefix, sizeof(prefix), "K%zuV%zu", dims[i][0], dims[i][1]);
		check_file_case(st, prefix, dims[i][2], 1, dims[i][0], dims[i][1], fwd, bwd);
	}
	k3_st_close(st);
}

/* Columns of one head in the oracle's array of all heads. */
static void
expect_head(struct k3_st *st, const char *name, const float *got, size_t t, size_t ld, size_t col,
	    size_t w, double tol)
{
	size_t n;
	double *all = fixture_f64(st, name, &n), *part = malloc(t * w * sizeof(*part));

	for (size_t r = 0; r < t; r++)
		for (size_t c = 0; c < w; c++)
			part[r * w + c] = all[r * ld + col + c];
	fixture_expect_close(got, part, t * w, tol, name);
	free(all);
	free(part);
}

static void
check_layer_head(struct k3_st *st, struct kda_case *c, uint32_t h)
{
	size_t t = c->t, k = c->k, p = c->h * k;

	expect_head(st, "o", c->o, t, p, h * k, k, 2e-5);
	for (size_t i = 0; i < 3; i++) {
		float *part = columns(c->dqkv, t, 3 * k, i * k, k);

		expect_head(st, "dqkv", part, t, 3 * p, i * p + h * k, k, 1e-4);
		free(part);
	}
	expect_head(st, "df", c->df, t, p, h * k, k, 1e-4);
	expect_head(st, "dbr", c->dbr, t, c->h, h, 1, 1e-4);
	expect_head(st, "dA", c->dab, 1, c->h, h, 1, 1e-4);
	expect_head(st, "ddt", c->dab + 1, 1, p, h * k, k, 1e-4);
}

void
kda_check_layer(kda_kernel *fwd, kda_kernel *bwd)
{
	struct k3_st *st = fixture_open("kda_layer");
	size_t t, h = 2, k = 16;
	int32_t *docs = fixture_i32(st, "docs", &t);
	struct kda_case c = kda_case(t, h, k, k);
	const char *names[] = {"qkv", "f", "br", "A", "dt", "do"};
	float *in[6];

	for (size_t i = 0; i < 6; i++)
		in[i] = fixture_f32(st, names[i], NULL);
	free(c.layout);
	c.layout = fixture_layout(docs, t, 0, 0, 0, 0, 0);
	c.qkv = in[0];
	c.f = in[1];
	c.br = in[2];
	c.a_log = in[3];
	c.dt = in[4];
	c.raw = 0;
	c.scale = 0.25f;
	for (c.h0 = 0; c.h0 < 2; c.h0++) {
		float *d_o = columns(in[5], t, h * k, c.h0 * k, k);

		c.h1 = c.h0 + 1;
		c.d_o = d_o;
		kda_forward(&c, fwd);
		kda_backward(&c, bwd);
		check_layer_head(st, &c, c.h0);
		for (size_t r = 0; r < t; r++)
			for (size_t j = 0; docs[r] == 0 && j < k; j++)
				cr_assert(c.o[r * k + j] == 0 && c.dqkv[r * 3 * k + j] == 0 &&
						  c.df[r * k + j] == 0,
					  "row %zu has no document and must be zero", r);
		free(d_o);
	}
	for (size_t i = 0; i < 6; i++)
		free(in[i]);
	free(docs);
	kda_case_free(&c);
	k3_st_close(st);
}

/* q = k = e0 in every row, v constant along its width, set per row by value(row). */
static float *
basis_rows(size_t t, size_t k, size_t v, float first, float slope)
{
	float *x = kda_constant(t * (2 * k + v), 0.0f);

	for (size_t r = 0; r < t; r++) {
		float *row = x + r * (2 * k + v);

		row[0] = row[k] = 1.0f;
		for (size_t j = 0; j < v; j++)
			row[2 * k + j] = first + slope * (float)r;
	}
	return x;
}

void
kda_check_running_value(kda_kernel *fwd, float g_value)
{
	size_t t = 129, k = 128;
	struct kda_case c = kda_case(t, 1, k, k);
	float *qkv = basis_rows(t, k, k, 1.0f, 1.0f), *g = kda_constant(t * k, g_value),
	      *beta = kda_constant(t, 1.0f);

	c.qkv = qkv;
	c.f = g;
	c.br = beta;
	kda_forward(&c, fwd);
	for (size_t r = 0; r < t; r++)
		for (size_t j = 0; j < k; j++)
			cr_assert_float_eq(c.o[r * k + j], (double)(r + 1), 1e-6 * (double)(r + 1),
					   "g = %g, token %zu: %.9g", (double)g_value, r,
					   (double)c.o[r * k + j]);
	free(qkv);
	free(g);
	free(beta);
	kda_case_free(&c);
}

void
kda_check_half_steps(kda_kernel *fwd)
{
	size_t t = 70;
	struct kda_case c = kda_case(t, 1, 2, 3);
	float *qkv = basis_rows(t, 2, 3, 1.0f, 0.0f), *beta = kda_constant(t, 0.5f);
	float *gates[] = {kda_constant(2 * t, 0.0f), kda_constant(2 * t, -0.69314718f)};

	c.qkv = qkv;
	c.br = beta;
	for (size_t i = 0; i < 2; i++) {
		c.f = gates[i];
		kda_forward(&c, fwd);
		for (size_t r = 0; r < t; r++) {
			double n = (double)(r + 1),
			       want = i ? 2.0 / 3 * (1 - pow(4, -n)) : 1 - pow(2, -n);

			cr_assert_float_eq(c.o[3 * r], want, 1e-6, "case %zu token %zu: %g", i, r,
					   (double)c.o[3 * r]);
		}
		free(gates[i]);
	}
	free(qkv);
	free(beta);
	kda_case_free(&c);
}

void
kda_check_two_channels(kda_kernel *fwd)
{
	static const double want[] = {.5,	.709634,  1.502391, 1.248736,
				      2.504207, 1.660811, 3.505595, 1.979501};
	struct kda_case c = kda_case(8, 1, 2, 1);
	float *qkv = basis_rows(8, 2, 1, 1.0f, 1.0f), *beta = kda_constant(8, 0.5f),
	      *g = kda_constant(16, -5.0f);

	for (size_t r = 0; r < 8; r++) {
		g[2 * r + 1] = -0.01f;
		if (r % 2)
			qkv[5 * r + 2] = qkv[5 * r + 3] = (float)sqrt(0.5);
	}
	c.qkv = qkv;
	c.f = g;
	c.br = beta;
	c.want_s_out = 1;
	kda_forward(&c, fwd);
	for (size_t r = 0; r < 8; r++)
		cr_assert_float_eq(c.o[r], want[r], 2e-6, "token %zu: %.9g", r, (double)c.o[r]);
	cr_assert_float_eq(c.s_out[0], 1.979501, 2e-6);
	cr_assert_float_eq(c.s_out[1], 5.422447, 2e-6);
	free(qkv);
	free(g);
	free(beta);
	kda_case_free(&c);
}

void
kda_check_saturated_gates(kda_kernel *fwd, kda_kernel *bwd)
{
	static const float inputs[] = {-1e4f, 0.0f, 1e4f};
	static const double decay[] = {0.0, -2.5, -5.0};
	struct kda_case c = kda_case(2, 1, 1, 1);
	float *qkv = basis_rows(2, 1, 1, 1.0f, 0.0f), br[] = {1e4f, -1e4f}, d_o[] = {0.0f, 1.0f},
	      zero = 0.0f;

	c.raw = 0;
	c.a_log = c.dt = &zero;
	c.qkv = qkv;
	c.br = br;
	c.d_o = d_o;
	for (size_t i = 0; i < 3; i++) {
		float f[] = {inputs[i], inputs[i]};
		double want = exp(decay[i]), slope = i == 1 ? -5 * 0.25 : 0;

		c.f = f;
		kda_forward(&c, fwd);
		cr_assert_float_eq(c.o[1], want, 1e-6 * want, "gate input %g: %.9g", (double)f[0],
				   (double)c.o[1]);
		kda_backward(&c, bwd);
		cr_assert_float_eq(c.df[1], want * slope, 1e-6, "gradient at gate input %g: %g",
				   (double)f[0], (double)c.df[1]);
		cr_assert(isfinite(c.dab[0]) && isfinite(c.dab[1]) && c.dbr[0] == 0,
			  "finite, and beta is saturated");
	}
	free(qkv);
	kda_case_free(&c);
}

void
kda_check_documents(kda_kernel *fwd)
{
	static const int32_t docs[] = {1, 1, 1, 2, 2};
	static const double want[] = {.5, .75, .875, .5, .75};
	struct kda_case c = kda_case(5, 1, 2, 1);
	float *qkv = basis_rows(5, 2, 1, 1.0f, 0.0f), *beta = kda_constant(5, 0.5f),
	      *g = kda_constant(10, 0.0f), before[2];

	free(c.layout);
	c.layout = fixture_layout(docs, 5, 0, 0, 0, 0, 0);
	c.qkv = qkv;
	c.f = g;
	c.br = beta;
	kda_forward(&c, fwd);
	for (size_t r = 0; r < 5; r++)
		cr_assert_float_eq(c.o[r], want[r], 1e-7, "token %zu: %.9g", r, (double)c.o[r]);
	memcpy(before, c.o + 3, sizeof(before));
	qkv[5 * 2 + 4] = 77.0f;
	kda_forward(&c, fwd);
	cr_assert_eq(memcmp(before, c.o + 3, sizeof(before)), 0,
		     "the first document leaks into the second");
	free(qkv);
	free(g);
	free(beta);
	kda_case_free(&c);
}

/* Layout of one document cut in segments at offsets seg[0 .. n]; equal offsets are empty segments.
 */
static void
set_segments(struct kda_case *c, const int32_t *offsets, size_t n)
{
	int32_t *at = c->layout + K3_TL_HEAD + 2 * c->t;

	c->layout[K3_TL_SEGMENTS] = (int32_t)n;
	memcpy(at, offsets, (n + 1) * sizeof(*at));
}

void
kda_check_empty_segments(kda_kernel *fwd, kda_kernel *bwd)
{
	static const int32_t plain[] = {0, 5, 8}, gaps[] = {0, 0, 5, 5, 8, 8};
	struct kda_case c = kda_case(8, 1, 4, 4), none = kda_case(8, 1, 4, 4);
	float *qkv = kda_random_qkv(3, 8, 1, 4, 4), *g = kda_mixed_gates(4, 32),
	      *beta = kda_random(5, 8, 0, 1);
	float *d_o = kda_random(6, 32, -1, 1), *s = kda_random(7, 16, -1, 1), o[32], dqkv[96],
	      dg[32];

	c.qkv = none.qkv = qkv;
	c.f = none.f = g;
	c.br = none.br = beta;
	c.d_o = none.d_o = d_o;
	set_segments(&c, plain, 2);
	kda_forward(&c, fwd);
	kda_backward(&c, bwd);
	memcpy(o, c.o, sizeof(o));
	memcpy(dqkv, c.dqkv, sizeof(dqkv));
	memcpy(dg, c.df, sizeof(dg));
	set_segments(&c, gaps, 5);
	c.want_s_out = c.want_ds_in = 1;
	kda_forward(&c, fwd);
	kda_backward(&c, bwd);
	cr_assert_eq(memcmp(o, c.o, sizeof(o)), 0);
	cr_assert(memcmp(dqkv, c.dqkv, sizeof(dqkv)) == 0 && memcmp(dg, c.df, sizeof(dg)) == 0);
	for (size_t i = 0; i < 16; i++)
		cr_assert(c.s_out[i] == 0 && c.ds_in[i] == 0,
			  "an empty document has state and gradient 0");

	memset(none.layout + K3_TL_HEAD, 0, 8 * sizeof(int32_t));
	none.layout[K3_TL_SEGMENTS] = none.layout[K3_TL_VALID] = 0;
	none.s_in = none.ds_out = s;
	none.want_s_out = none.want_ds_in = 1;
	kda_forward(&none, fwd);
	kda_backward(&none, bwd);
	for (size_t i = 0; i < 32; i++)
		cr_assert(none.o[i] == 0 && none.df[i] == 0);
	cr_assert_eq(memcmp(none.s_out, s, 16 * sizeof(float)), 0, "holes hand the state on");
	cr_assert_eq(memcmp(none.ds_in, s, 16 * sizeof(float)), 0, "holes hand the gradient on");
	kda_case_free(&c);
	kda_case_free(&none);
	float *in[] = {qkv, g, beta, d_o, s};
	for (size_t i = 0; i < 5; i++)
		free(in[i]);
}

void
kda_check_hole(kda_kernel *fwd, kda_kernel *bwd)
{
	enum { T = 90, K = 8, HOLE = 40 };
	struct kda_case c = kda_case(T, 1, K, K), without = kda_case(T - 1, 1, K, K);
	float *qkv = kda_random_qkv(13, T, 1, K, K), *g = kda_mixed_gates(14, T * K),
	      *beta = kda_random(15, T, 0, 1);
	float *d_o = kda_random(16, T * K, -1, 1), *all[] = {qkv, g, beta, d_o}, *cut[4];
	size_t width[] = {3 * K, K, 1, K};
	int32_t docs[T];

	for (size_t i = 0; i < T; i++)
		docs[i] = i != HOLE;
	free(c.layout);
	c.layout = fixture_layout(docs, T, 0, 0, 0, 0, 0);
	for (size_t i = 0; i < 4; i++) {
		cut[i] = malloc(T * width[i] * sizeof(float));
		memcpy(cut[i], all[i], HOLE * width[i] * sizeof(float));
		memcpy(cut[i] + HOLE * width[i], all[i] + (HOLE + 1) * width[i],
		       (T - 1 - HOLE) * width[i] * sizeof(float));
		for (size_t j = 0; j < width[i]; j++)
			all[i][HOLE * width[i] + j] = NAN; /* nobody may read it */
	}
	c.qkv = qkv;
	c.f = g;
	c.br = beta;
	c.d_o = d_o;
	without.qkv = cut[0];
	without.f = cut[1];
	without.br = cut[2];
	without.d_o = cut[3];
	kda_forward(&c, fwd);
	kda_forward(&without, fwd);
	kda_backward(&c, bwd);
	kda_backward(&without, bwd);
	float *got[] = {c.o, c.dqkv, c.df, c.dbr},
	      *want[] = {without.o, without.dqkv, without.df, without.dbr};
	size_t out_width[] = {K, 3 * K, K, 1};
	for (size_t i = 0; i < 4; i++) {
		size_t w = out_width[i], tail = (T - 1 - HOLE) * w * sizeof(float);

		cr_assert_eq(memcmp(got[i], want[i], HOLE * w * sizeof(float)), 0,
			     "output %zu before the hole", i);
		cr_assert_eq(memcmp(got[i] + (HOLE + 1) * w, want[i] + HOLE * w, tail), 0,
			     "output %zu behind it", i);
		for (size_t j = 0; j < w; j++)
			cr_assert_eq(got[i][HOLE * w + j], 0.0f, "output %zu in the hole", i);
		free(all[i]);
		free(cut[i]);
	}
	kda_case_free(&c);
	kda_case_free(&without);
}

/* Runs the tiles of c (k = v) forward with states handed on, then backward, gathering into
 * whole-stream arrays. */
static void
run_tiles(const struct kda_case *c, size_t rows, kda_kernel *fwd, kda_kernel *bwd, float *o,
	  float *dqkv, float *df, float *ds_in)
{
	size_t k = c->k, kv = k * k, n = (c->t + rows - 1) / rows;
	float *s = malloc((n + 1) * kv * sizeof(*s));

	memcpy(s, c->s_in, kv * sizeof(*s));
	memcpy(ds_in, c->ds_out, kv * sizeof(*s));
	for (size_t step = 0; step < 2 * n; step++) {
		size_t i = step < n ? step : 2 * n - 1 - step, r = i * rows,
		       len = c->t - r < rows ? c->t - r : rows;
		struct kda_case tile = kda_case(len, 1, k, k);

		tile.scale = c->scale;
		tile.qkv = c->qkv + r * 3 * k;
		tile.f = c->f + r * k;
		tile.br = c->br + r;
		tile.d_o = c->d_o + r * k;
		tile.s_in = s + i * kv;
		tile.ds_out = ds_in;
		tile.want_s_out = tile.want_ds_in = 1;
		if (step < n) {
			kda_forward(&tile, fwd);
			memcpy(s + (i + 1) * kv, tile.s_out, kv * sizeof(*s));
			memcpy(o + r * k, tile.o, len * k * sizeof(*s));
		} else {
			kda_backward(&tile, bwd);
			memcpy(ds_in, tile.ds_in, kv * sizeof(*s));
			memcpy(dqkv + r * 3 * k, tile.dqkv, len * 3 * k * sizeof(*s));
			memcpy(df + r * k, tile.df, len * k * sizeof(*s));
		}
		kda_case_free(&tile);
	}
	free(s);
}

void
kda_check_tiles(kda_kernel *fwd, kda_kernel *bwd, size_t t, size_t rows)
{
	size_t k = 16, kv = k * k;
	struct kda_case c = kda_case(t, 1, k, k);
	float *qkv = kda_random_qkv(23, t, 1, k, k), *g = kda_mixed_gates(24, t * k),
	      *beta = kda_random(25, t, 0, 1);
	float *d_o = kda_random(26, t * k, -1, 1), *s = kda_random(27, kv, -1, 1),
	      *ds = kda_random(28, kv, -1, 1);
	float *o = kda_constant(t * k, NAN), *dqkv = kda_constant(t * 3 * k, NAN),
	      *df = kda_constant(t * k, NAN);
	float *ds_in = kda_constant(kv, NAN);

	c.scale = 0.25f;
	c.qkv = qkv;
	c.f = g;
	c.br = beta;
	c.d_o = d_o;
	c.s_in = s;
	c.ds_out = ds;
	c.want_ds_in = 1;
	kda_forward(&c, k3_kda_recurrent_fwd_cpu_f32);
	kda_backward(&c, k3_kda_recurrent_bwd_cpu_f32);
	run_tiles(&c, rows, fwd, bwd, o, dqkv, df, ds_in);
	kda_expect_same(o, c.o, t * k, 5e-6, "o of the tiles");
	kda_expect_same(dqkv, c.dqkv, t * 3 * k, 1e-5, "dqkv of the tiles");
	kda_expect_same(df, c.df, t * k, 2e-5, "dg of the tiles");
	kda_expect_same(ds_in, c.ds_in, kv, 1e-5, "ds_in of the tiles");
	kda_case_free(&c);
	float *in[] = {qkv, g, beta, d_o, s, ds, o, dqkv, df, ds_in};
	for (size_t i = 0; i < sizeof(in) / sizeof(*in); i++)
		free(in[i]);
}
