/* Plain forms that results are compared with, in double, and the comparisons.  The trap: comparing
 * with a NaN is false, so everything is written such that only a proven small error passes. */
#include <cblas.h>
#include <math.h>
#include <string.h>

#include "../../common/log.h"
#include "../../common/rng.h"
#include "bench.h"

double
bench_tolerance(size_t length)
{
	return 8 * 0x1p-24 * (8 + sqrt((double)length));
}

void
bench_judge(struct bench_case *c, const char *what, double error, double tolerance)
{
	if (!(error <= c->error))
		c->error = error;
	if (error <= tolerance)
		return;
	k3_error("drivers", "%s (%s, %s): %s is wrong: error %.3g, allowed %.3g", c->name,
		 c->b->model->name, c->shape, what, error, tolerance);
	c->wrong = true;
}

/* Largest difference over the size of a usual element; NaN when there is one. */
struct error {
	double most, square, difference; /* sums of squares */
	size_t n;
};

static void
add_error(struct error *e, double got, double want, double square)
{
	double d = fabs(got - want);

	if (!(d <= e->most))
		e->most = d;
	e->square += square;
	e->difference += d * d;
	e->n++;
}

/* In bf16 every element is rounded to eight bits and so are the factors of products, so the root mean
 * square is judged as the device tests do, with room for two roundings more, and single elements only when they
 * are off by so much. */
static void
judge(struct bench_case *c, const char *what, const struct error *e, size_t length, double most)
{
	double usual = e->square > 0 ? sqrt(e->square / (double)e->n) : 1;
	double rms = e->n ? sqrt(e->difference / (double)e->n) / usual : 0;

	if (!c->b->bf16) {
		bench_judge(c, what, e->most / usual, bench_tolerance(length));
		return;
	}
	bench_judge(c, what, rms, 0.02 * (c->loose > 0 ? c->loose : 1));
	if (!(e->most <= most * usual))
		bench_judge(c, what, e->most / usual, most);
}

void
bench_expect(struct bench_case *c, const char *what, const float *got, size_t ldg,
	     const double *want, size_t m, size_t n, size_t length)
{
	struct error e = {0};

	for (size_t i = 0; i < m; i++)
		for (size_t j = 0; j < n; j++)
			add_error(&e, (double)got[i * ldg + j], want[i * n + j],
				  want[i * n + j] * want[i * n + j]);
	judge(c, what, &e, length, 1);
}

double *
bench_doubles(struct bench_case *c, size_t n)
{
	double *x = bench_memory(c, n * sizeof(*x));

	return memset(x, 0, n * sizeof(*x));
}

float *
bench_narrow(struct bench_case *c, const double *x, size_t n)
{
	float *y = bench_memory(c, n * sizeof(*y));

	bench_keep(c, y);
	for (size_t i = 0; i < n; i++)
		y[i] = (float)x[i];
	return y;
}

struct bench_rows
bench_rows(struct bench_case *c, const float *y, size_t ldy, size_t m, size_t n)
{
	struct bench_rows w = {c, y, ldy, m, n, 0, bench_doubles(c, n), bench_doubles(c, m)};
	uint64_t key = k3_rng_key("signs", c->seed++);

	for (size_t j = 0; j < n; j++)
		w.sign[j] = k3_rng_bits(key, j) & 1 ? 1.0 : -1.0;
	return w;
}

static double
dot(const float *x, const double *v, size_t n)
{
	double sum[8] = {0}, all = 0;
	size_t i = 0;

	for (; i + 8 <= n; i += 8)
		for (size_t j = 0; j < 8; j++)
			sum[j] += (double)x[i + j] * v[i + j];
	for (; i < n; i++)
		all += (double)x[i] * v[i];
	for (size_t j = 0; j < 8; j++)
		all += sum[j];
	return all;
}

static void
add_scaled(double *y, double s, const float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		y[i] += s * (double)x[i];
}

void
bench_rows_product(struct bench_rows *w, enum bench_form form, size_t k, const float *a, size_t lda,
		   const float *b, size_t ldb)
{
	double *inner = bench_doubles(w->c, k);

	for (size_t j = 0; form == BENCH_NT && j < w->n; j++)
		add_scaled(inner, w->sign[j], b + j * ldb, k);
	for (size_t p = 0; form != BENCH_NT && p < k; p++)
		inner[p] = dot(b + p * ldb, w->sign, w->n);
	for (size_t i = 0; form != BENCH_TN && i < w->m; i++)
		w->want[i] += dot(a + i * lda, inner, k);
	for (size_t p = 0; form == BENCH_TN && p < k; p++)
		add_scaled(w->want, inner[p], a + p * lda, w->m);
	w->length += k;
}

void
bench_rows_add(struct bench_rows *w, const float *x, size_t ldx)
{
	for (size_t i = 0; i < w->m; i++)
		w->want[i] += dot(x + i * ldx, w->sign, w->n);
	w->length++;
}

void
bench_rows_expect(const struct bench_rows *w, const char *what)
{
	struct error e = {0};

	/* a usual sum of n random signs is the row's norm; a few sums alone may all be near 0 */
	for (size_t i = 0; i < w->m; i++) {
		const float *y = w->y + i * w->ldy;
		double norm = 0;
		for (size_t j = 0; j < w->n; j++)
			norm += (double)y[j] * (double)y[j];
		add_error(&e, dot(y, w->sign, w->n), w->want[i], norm);
	}
	judge(w->c, what, &e, w->length, 0.2);
}

static double *
widen(struct bench_case *c, const float *x, size_t ldx, size_t rows, size_t cols)
{
	double *y = bench_doubles(c, rows * cols);

	for (size_t i = 0; i < rows; i++)
		for (size_t j = 0; j < cols; j++)
			y[i * cols + j] = (double)x[i * ldx + j];
	return y;
}

void
bench_dgemm(double *y, enum bench_form form, size_t m, size_t n, size_t k, const double *a,
	    const double *b)
{
	cblas_dgemm(CblasRowMajor, form == BENCH_TN ? CblasTrans : CblasNoTrans,
		    form == BENCH_NT ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n,
		    (blasint)k, 1.0, a, (blasint)(form == BENCH_TN ? m : k), b,
		    (blasint)(form == BENCH_NT ? k : n), 0.0, y, (blasint)n);
}

double *
bench_wide(struct bench_case *c, enum bench_form form, size_t m, size_t n, size_t k, const float *a,
	   size_t lda, const float *b, size_t ldb)
{
	double *y = bench_doubles(c, m * n);
	size_t a_rows = form == BENCH_TN ? k : m, a_cols = form == BENCH_TN ? m : k;
	size_t b_rows = form == BENCH_NT ? n : k, b_cols = form == BENCH_NT ? k : n;

	bench_dgemm(y, form, m, n, k, widen(c, a, lda, a_rows, a_cols),
		    widen(c, b, ldb, b_rows, b_cols));
	return y;
}

double
bench_sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

static double
rms_factor(const float *x, size_t n, double eps)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += (double)x[i] * (double)x[i];
	return 1 / sqrt(sum / (double)n + eps);
}

void
bench_rms(double *y, const float *x, const float *w, size_t n, double eps)
{
	double r = rms_factor(x, n, eps);

	for (size_t i = 0; i < n; i++)
		y[i] = (double)x[i] * r * (double)w[i];
}

void
bench_rms_back(double *dx, double *dw, const double *dy, const float *x, const float *w, size_t n,
	       double eps)
{
	double r = rms_factor(x, n, eps), mean = 0;

	for (size_t i = 0; i < n; i++) {
		mean += dy[i] * (double)w[i] * (double)x[i] * r / (double)n;
		dw[i] += dy[i] * (double)x[i] * r;
	}
	for (size_t i = 0; i < n; i++)
		dx[i] = r * (dy[i] * (double)w[i] - (double)x[i] * r * mean);
}
