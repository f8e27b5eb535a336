#include "fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/rng.h"
#include "../common/status.h"

enum { GUARD = 16 };
static const uint32_t guard_bits = 0x7fc0dead; /* a NaN */

struct k3_st *
fixture_open(const char *name)
{
	const char *dir = getenv("K3_TEST_DATA");
	char path[4096];
	struct k3_st *st = NULL;

	snprintf(path, sizeof(path), "%s/%s.safetensors", dir ? dir : "tests/data", name);
	cr_assert_eq(k3_st_open(&st, path), K3_OK, "cannot open %s", path);
	return st;
}

static const struct k3_st_tensor *
find(const struct k3_st *st, const char *tensor, size_t *n_elems)
{
	const struct k3_st_tensor *t = k3_st_find(st, tensor);

	cr_assert_not_null(t, "no tensor %s", tensor);
	if (n_elems)
		*n_elems = t->n_elems;
	return t;
}

float *
fixture_f32(const struct k3_st *st, const char *tensor, size_t *n_elems)
{
	const struct k3_st_tensor *t = find(st, tensor, n_elems);
	float *out = malloc((t->n_elems + 1) * sizeof(*out));

	cr_assert_eq(k3_st_read_f32(t, 0, t->n_elems, out), K3_OK);
	return out;
}

double *
fixture_f64(const struct k3_st *st, const char *tensor, size_t *n_elems)
{
	const struct k3_st_tensor *t = find(st, tensor, n_elems);
	double *out = malloc((t->n_elems + 1) * sizeof(*out));

	cr_assert_eq(k3_st_read_f64(t, 0, t->n_elems, out), K3_OK);
	return out;
}

int32_t *
fixture_i32(const struct k3_st *st, const char *tensor, size_t *n_elems)
{
	const struct k3_st_tensor *t = find(st, tensor, n_elems);
	int32_t *out = malloc((t->n_elems + 1) * sizeof(*out));

	cr_assert_eq(k3_st_read_i32(t, 0, t->n_elems, out), K3_OK);
	return out;
}

float *
fixture_poisoned(size_t n_elems)
{
	size_t all = n_elems + 2 * GUARD;
	char *base = malloc(64 + all * sizeof(float));
	float *data = (float *)(base + 64) + GUARD;

	memcpy(base, &n_elems, sizeof(n_elems));
	for (size_t i = 0; i < all; i++)
		memcpy((float *)(base + 64) + i, &guard_bits, sizeof(guard_bits));
	return data;
}

int
fixture_guards_intact(const float *data)
{
	const char *base = (const char *)(data - GUARD) - 64;
	size_t n_elems;

	memcpy(&n_elems, base, sizeof(n_elems));
	for (size_t i = 0; i < GUARD; i++)
		if (memcmp(data - GUARD + i, &guard_bits, 4) != 0 ||
		    memcmp(data + n_elems + i, &guard_bits, 4) != 0)
			return 0;
	return 1;
}

void
fixture_free_poisoned(float *data)
{
	if (data)
		free((char *)(data - GUARD) - 64);
}

double
fixture_rms_ratio(const float *got, const double *want, size_t n_elems)
{
	double err = 0, ref = 0;

	for (size_t i = 0; i < n_elems; i++) {
		double e = (double)got[i] - want[i];
		err += e * e;
		ref += want[i] * want[i];
	}
	return ref > 0 ? sqrt(err / ref) : sqrt(err);
}

double
fixture_rms_ratio_f32(const float *got, const float *want, size_t n_elems)
{
	double err = 0, ref = 0;

	for (size_t i = 0; i < n_elems; i++) {
		double e = (double)got[i] - (double)want[i];
		err += e * e;
		ref += (double)want[i] * (double)want[i];
	}
	return ref > 0 ? sqrt(err / ref) : sqrt(err);
}

void
fixture_expect_close(const float *got, const double *want, size_t n_elems, double tol,
		     const char *what)
{
	double worst = -1;
	size_t at = 0;
	double ratio = fixture_rms_ratio(got, want, n_elems);

	for (size_t i = 0; i < n_elems; i++) {
		double e = fabs((double)got[i] - want[i]);
		if (!(e <= worst)) {
			worst = e;
			at = i;
		}
		cr_assert(isfinite(got[i]), "%s[%zu] is %g, expected %g", what, i, (double)got[i],
			  want[i]);
	}
	cr_assert(ratio <= tol,
		  "%s: RMS ratio %.3g above %.3g; worst at %zu: got %.9g, expected %.9g", what,
		  ratio, tol, at, n_elems ? (double)got[at] : 0.0, n_elems ? want[at] : 0.0);
}

struct k3_weight
fixture_weight(uint32_t first, size_t rows, size_t cols, int accumulate)
{
	struct k3_weight w = {first, 1, rows, cols, rows, (uint32_t)accumulate};

	return w;
}

int32_t *
fixture_layout(const int32_t *doc_ids, size_t t, int row0, int cont_in, int cont_out, int hist_in,
	       int hist_out)
{
	int32_t *l = calloc(k3_tile_layout_len(t), sizeof(*l));
	int32_t *doc = l + K3_TL_HEAD, *order = doc + t, *seg = order + t, last = 0;

	l[K3_TL_ROWS] = (int32_t)t;
	l[K3_TL_ROW0] = row0;
	l[K3_TL_CONT_IN] = cont_in;
	l[K3_TL_CONT_OUT] = cont_out;
	l[K3_TL_HIST_IN] = hist_in;
	l[K3_TL_HIST_OUT] = hist_out;
	for (size_t i = 0; i < t; i++) {
		doc[i] = doc_ids[i];
		if (doc_ids[i] == 0)
			continue;
		if (doc_ids[i] != last)
			seg[l[K3_TL_SEGMENTS]++] = l[K3_TL_VALID];
		last = doc_ids[i];
		order[l[K3_TL_VALID]++] = (int32_t)i;
	}
	seg[l[K3_TL_SEGMENTS]] = l[K3_TL_VALID];
	return l;
}

double
fixture_uniform(uint64_t seed, uint64_t i, double lo, double hi)
{
	return lo + (hi - lo) * k3_rng_uniform(k3_rng_key("fixture", seed), i);
}

size_t
fixture_count(const char *text, const char *part)
{
	size_t n = 0, bytes = strlen(part);

	/* a sanitizer's strstr takes the length of the whole text each time */
	for (const char *p = text; *p; p++)
		n += *p == *part && strncmp(p, part, bytes) == 0;
	return n;
}
