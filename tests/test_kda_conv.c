/* KDA's convolution with SiLU and l2 norm: the layer dump of the oracle, whole and cut in tiles
 * with halos. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/op/kda.h"
#include "fixture.h"

enum { H = 2, K = 16, P = H * K, TAPS = 4, W3 = 3 * P, HALO = (TAPS - 1) * W3 };

/* The dump: inputs and expected values of all rows. */
struct dump {
	struct k3_st *st;
	size_t t;
	int32_t *docs;
	float *u, *w, *dqkv, *qkv, *rstd;
};

static struct dump
dump_open(void)
{
	struct dump d = {.st = fixture_open("kda_layer")};

	d.docs = fixture_i32(d.st, "docs", &d.t);
	d.u = fixture_f32(d.st, "qkvr", NULL);
	d.w = fixture_f32(d.st, "w", NULL);
	d.dqkv = fixture_f32(d.st, "dqkv", NULL);
	d.qkv = fixture_f32(d.st, "qkv", NULL);
	d.rstd = fixture_f32(d.st, "rstd", NULL);
	return d;
}

static void
dump_close(struct dump *d)
{
	float *in[] = {d->u, d->w, d->dqkv, d->qkv, d->rstd};

	for (size_t i = 0; i < 5; i++)
		free(in[i]);
	free(d->docs);
	k3_st_close(d->st);
}

static void
expect(struct dump *d, const char *name, const float *got, double tol)
{
	size_t n;
	double *want = fixture_f64(d->st, name, &n);

	fixture_expect_close(got, want, n, tol, name);
	free(want);
}

static struct k3_kda_conv_args
args_of(size_t t)
{
	struct k3_kda_conv_args a = {.t = t, .p = P, .h = H, .k = K, .taps = TAPS, .l2_eps = 1e-6f};

	return a;
}

static struct k3_list
optional(void **buf, uint32_t at, float *x)
{
	struct k3_list l = {at, x != NULL};

	buf[at] = x;
	return l;
}

static void
forward(float *qkv, float *rstd, float *u, float *w, int32_t *layout, float *halo_in,
	float *halo_out)
{
	struct k3_kda_conv_args a = args_of((size_t)layout[K3_TL_ROWS]);
	void *buf[9] = {qkv, rstd, u, layout, NULL, NULL, w, w + P * TAPS, w + 2 * P * TAPS};

	a.n_buf = 9;
	a.halo_in = optional(buf, 4, halo_in);
	a.halo_out = optional(buf, 5, halo_out);
	a.cq = fixture_weight(6, P, TAPS, 0);
	a.ck = fixture_weight(7, P, TAPS, 0);
	a.cv = fixture_weight(8, P, TAPS, 0);
	k3_kda_conv_fwd_cpu_f32(buf, &a);
}

/* group_heads 2: dqkv holds both heads in one buffer, as the dump does. */
static void
backward(float *dqkvr, float *dw, int accumulate, struct dump *d, size_t row, float *qkv,
	 float *rstd, int32_t *layout, float *halo_in, float *dhalo_out, float *dhalo_in)
{
	struct k3_kda_conv_args a = args_of((size_t)layout[K3_TL_ROWS]);
	void *buf[15] = {dqkvr, qkv, rstd, d->u + row * W3, layout, d->dqkv + row * W3};

	a.n_buf = 15;
	a.group_heads = H;
	a.dqkv = (struct k3_list){5, 1};
	a.halo_in = optional(buf, 6, halo_in);
	a.dhalo_out = optional(buf, 7, dhalo_out);
	a.dhalo_in = optional(buf, 8, dhalo_in);
	for (uint32_t i = 0; i < 3; i++) {
		buf[9 + i] = dw + i * P * TAPS;
		buf[12 + i] = d->w + i * P * TAPS;
	}
	a.dcq = fixture_weight(9, P, TAPS, accumulate);
	a.dck = fixture_weight(10, P, TAPS, accumulate);
	a.dcv = fixture_weight(11, P, TAPS, accumulate);
	a.cq = fixture_weight(12, P, TAPS, 0);
	a.ck = fixture_weight(13, P, TAPS, 0);
	a.cv = fixture_weight(14, P, TAPS, 0);
	k3_kda_conv_bwd_cpu_f32(buf, &a);
}

Test(kda_conv, forward_matches_the_oracle_and_clears_holes, .timeout = 60)
{
	struct dump d = dump_open();
	int32_t *layout = fixture_layout(d.docs, d.t, 0, 0, 0, 0, 0);
	float *qkv = fixture_poisoned(d.t * W3), *rstd = fixture_poisoned(d.t * 2 * H);

	forward(qkv, rstd, d.u, d.w, layout, NULL, NULL);
	expect(&d, "qkv", qkv, 2e-6);
	expect(&d, "rstd", rstd, 2e-6);
	for (size_t t = 0; t < d.t; t++)
		for (size_t c = 0; d.docs[t] == 0 && c < W3; c++)
			cr_assert_eq(qkv[t * W3 + c], 0.0f);
	cr_assert(fixture_guards_intact(qkv) && fixture_guards_intact(rstd));
	fixture_free_poisoned(qkv);
	fixture_free_poisoned(rstd);
	free(layout);
	dump_close(&d);
}

Test(kda_conv, backward_matches_the_oracle_for_documents_of_one_to_four_tokens, .timeout = 60)
{
	struct dump d = dump_open();
	int32_t *layout = fixture_layout(d.docs, d.t, 0, 0, 0, 0, 0);
	float *dqkvr = fixture_poisoned(d.t * W3), *dw = fixture_poisoned(W3 * TAPS), *twice;

	backward(dqkvr, dw, 0, &d, 0, d.qkv, d.rstd, layout, NULL, NULL, NULL);
	expect(&d, "dqkvr", dqkvr, 1e-5);
	expect(&d, "dw", dw, 1e-5);
	cr_assert(fixture_guards_intact(dqkvr) && fixture_guards_intact(dw));
	twice = malloc(W3 * TAPS * sizeof(*twice));
	memcpy(twice, dw, W3 * TAPS * sizeof(*twice));
	backward(dqkvr, twice, 1, &d, 0, d.qkv, d.rstd, layout, NULL, NULL, NULL);
	for (size_t i = 0; i < W3 * TAPS; i++)
		cr_assert_float_eq(twice[i], 2 * (double)dw[i], 1e-5, "accumulated tap %zu", i);
	fixture_free_poisoned(dqkvr);
	fixture_free_poisoned(dw);
	free(twice);
	free(layout);
	dump_close(&d);
}

/* Rows of the tile's first document that lie in earlier tiles, or of its last one up to its end; at
 * most TAPS - 1. */
static int
history(const struct dump *d, size_t end, int32_t doc)
{
	int n = 0;

	for (size_t i = 0; i < end; i++)
		n += d->docs[i] == doc;
	return n < TAPS - 1 ? n : TAPS - 1;
}

static int
goes_on(const struct dump *d, size_t row, int32_t doc)
{
	for (size_t i = row; i < d->t; i++)
		if (doc && d->docs[i] == doc)
			return 1;
	return 0;
}

static int32_t
first_doc(const struct dump *d, size_t lo, size_t hi, int last)
{
	int32_t doc = 0;

	for (size_t i = lo; i < hi; i++)
		if (d->docs[i] && (last || !doc))
			doc = d->docs[i];
	return doc;
}

/* Layout of rows lo .. hi-1; a tile of holes inside a document has both flags set. */
static int32_t *
tile_layout(const struct dump *d, size_t lo, size_t hi)
{
	int32_t first = first_doc(d, lo, hi, 0), last = first_doc(d, lo, hi, 1);
	int in, out;

	if (!first) {
		first = last = first_doc(d, 0, lo, 1);
		out = goes_on(d, hi, last);
		in = out;
	} else {
		in = history(d, lo, first) > 0;
		out = goes_on(d, hi, last);
	}
	return fixture_layout(d->docs + lo, hi - lo, (int)lo, in, out,
			      in ? history(d, lo, first) : 0, out ? history(d, hi, last) : 0);
}

static void
check_tiles(size_t rows)
{
	struct dump d = dump_open();
	size_t n = (d.t + rows - 1) / rows;
	int32_t **layout = malloc(n * sizeof(*layout));
	float *halo = fixture_poisoned((n + 1) * HALO), *dhalo = fixture_poisoned((n + 1) * HALO);
	float *qkv = fixture_poisoned(d.t * W3), *rstd = fixture_poisoned(d.t * 2 * H);
	float *dqkvr = fixture_poisoned(d.t * W3), *dw = fixture_poisoned(W3 * TAPS);

	for (size_t i = 0; i < n; i++) {
		size_t lo = i * rows, hi = lo + rows < d.t ? lo + rows : d.t;
		int32_t *l = layout[i] = tile_layout(&d, lo, hi);

		forward(qkv + lo * W3, rstd + lo * 2 * H, d.u + lo * W3, d.w, l,
			l[K3_TL_CONT_IN] ? halo + i * HALO : NULL,
			l[K3_TL_CONT_OUT] ? halo + (i + 1) * HALO : NULL);
	}
	for (size_t i = n; i-- > 0;) {
		int32_t *l = layout[i];
		int in = l[K3_TL_CONT_IN], out = l[K3_TL_CONT_OUT];

		backward(dqkvr + i * rows * W3, dw, i + 1 < n, &d, i * rows, qkv + i * rows * W3,
			 rstd + i * rows * 2 * H, l, in ? halo + i * HALO : NULL,
			 out ? dhalo + (i + 1) * HALO : NULL, in ? dhalo + i * HALO : NULL);
		free(l);
	}
	expect(&d, "qkv", qkv, 2e-6);
	expect(&d, "dqkvr", dqkvr, 1e-5);
	expect(&d, "dw", dw, 1e-5);
	cr_assert(fixture_guards_intact(halo) && fixture_guards_intact(dhalo));
	float *out[] = {halo, dhalo, qkv, rstd, dqkvr, dw};
	for (size_t i = 0; i < 6; i++)
		fixture_free_poisoned(out[i]);
	free(layout);
	dump_close(&d);
}

Test(kda_conv, tiles_with_halos_equal_the_whole, .timeout = 60)
{
	check_tiles(32);
	check_tiles(16);
	check_tiles(5);
}

Test(kda_conv, halo_passes_through_tiles_shorter_than_the_taps, .timeout = 60)
{
	check_tiles(2);
	check_tiles(1);
}

Test(kda_conv, last_tap_multiplies_the_current_token, .timeout = 60)
{
	enum { T = 6 };
	int32_t docs[T] = {1, 1, 1, 1, 1, 1}, *layout = fixture_layout(docs, T, 0, 0, 0, 0, 0);
	float *u = calloc(T * W3, sizeof(*u)), *w = calloc(W3 * TAPS, sizeof(*w)), qkv[T * W3],
	      rstd[T * 2 * H];

	u[2 * W3 + 2 * P] = 1.0f; /* v channel 0 of token 2 */
	for (size_t j = 0; j < TAPS; j++)
		w[2 * P * TAPS + j] = (float)(j + 1);
	forward(qkv, rstd, u, w, layout, NULL, NULL);
	for (size_t t = 0; t < T; t++) {
		double a = t >= 2 && t < 6 ? (double)(TAPS - (t - 2)) : 0;

		cr_assert_float_eq(qkv[t * W3 + 2 * P], a / (1 + exp(-a)), 1e-6, "token %zu: %g", t,
				   (double)qkv[t * W3 + 2 * P]);
	}
	free(u);
	free(w);
	free(layout);
}
