/* Times of a case and of its limit, in turns.  The trap: turbo, neighbours on the same core and
 * memory traffic of other processes change a machine's speed within seconds, so only figures that
 * were taken side by side may be divided by each other. */
#include <cblas.h>
#include <string.h>

#include "../../common/clock.h"
#include "bench.h"

static void
multiply(const struct bench_product *p)
{
	blasint m = (blasint)p->m, n = (blasint)p->n, k = (blasint)p->k;

	cblas_sgemm(CblasRowMajor, p->form == BENCH_TN ? CblasTrans : CblasNoTrans,
		    p->form == BENCH_NT ? CblasTrans : CblasNoTrans, m, n, k, 1.0f, p->a,
		    p->form == BENCH_TN ? m : k, p->b, p->form == BENCH_NT ? k : n, 0.0f, p->c, n);
}

static double
product_flops(const struct bench_product *p)
{
	return 2.0 * (double)p->m * (double)p->n * (double)p->k;
}

static void
give_operands(struct bench_case *c, struct bench_product *p)
{
	p->a = bench_random(c, p->m * p->k, -1, 1);
	p->b = bench_random(c, p->k * p->n, -1, 1);
	p->c = bench_memory(c, p->m * p->n * sizeof(float));
}

/* The products of the limit: the case's own, or the cube. */
static void
prepare_products(struct bench_case *c, struct bench_product *cube, const struct bench_product **p,
		 size_t *n)
{
	if (c->limit == BENCH_CUBE) {
		*cube = (struct bench_product){BENCH_NN, 512, 512, 512, NULL, NULL, NULL};
		give_operands(c, cube);
		*p = cube;
		*n = 1;
		return;
	}
	for (size_t i = 0; i < c->n_products; i++)
		give_operands(c, &c->product[i]);
	*p = c->product;
	*n = c->n_products;
}

static double
product_rate(const struct bench_product *p, size_t n)
{
	double flops = 0, start = k3_clock_s(CLOCK_THREAD_CPUTIME_ID);

	for (size_t i = 0; i < n; i++) {
		multiply(&p[i]);
		flops += product_flops(&p[i]);
	}
	return flops / (k3_clock_s(CLOCK_THREAD_CPUTIME_ID) - start);
}

struct update {
	float *a, *b;
	size_t n;
};

__attribute__((noinline)) static void
update(float *restrict a, const float *restrict b, float s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		a[i] += s * b[i];
}

static double
update_rate(const struct update *u)
{
	double start = k3_clock_s(CLOCK_THREAD_CPUTIME_ID);

	update(u->a, u->b, 0x1p-10f, u->n);
	return 12.0 * (double)u->n / (k3_clock_s(CLOCK_THREAD_CPUTIME_ID) - start);
}

static struct update
prepare_update(struct bench_case *c)
{
	struct update u = {NULL, NULL, 0};
	double bytes = 0;

	for (size_t i = 0; i < c->n_calls; i++)
		bytes += c->call[i].size_bytes;
	u.n = (size_t)(bytes / 8) + 1;
	/* arrays at the same place of a page would make loads wait for stores */
	size_t apart = (u.n + 1023) / 1024 * 1024 + 336;
	u.a = bench_random(c, 2 * apart, -1, 1);
	u.b = u.a + apart;
	return u;
}

void
bench_measure(struct bench_case *c, double *limit_rate)
{
	struct bench_product cube;
	const struct bench_product *p = NULL;
	struct update u = {NULL, NULL, 0};
	size_t n = 0, repeat = c->b->repeat;

	if (c->limit == BENCH_MEMORY)
		u = prepare_update(c);
	else
		prepare_products(c, &cube, &p, &n);
	for (size_t k = 0; k < c->n_calls; k++)
		c->call[k].seconds = bench_memory(c, repeat * sizeof(double));
	/* the first round warms up; its figures are overwritten */
	for (size_t round = 0; round <= repeat; round++) {
		size_t i = round ? round - 1 : 0;

		for (size_t k = 0; k < c->n_calls; k++) {
			double start = k3_clock_s(CLOCK_THREAD_CPUTIME_ID);
			bench_kernel(&c->call[k]);
			c->call[k].seconds[i] = k3_clock_s(CLOCK_THREAD_CPUTIME_ID) - start;
		}
		limit_rate[i] = c->limit == BENCH_MEMORY ? update_rate(&u) : product_rate(p, n);
	}
}

double
bench_quantile(double *x, size_t n, double q)
{
	for (size_t i = 1; i < n; i++) {
		double v = x[i];
		size_t j = i;
		for (; j > 0 && x[j - 1] > v; j--)
			x[j] = x[j - 1];
		x[j] = v;
	}
	double at = q * (double)(n - 1);
	size_t low = (size_t)at;

	return low + 1 < n ? x[low] + (at - (double)low) * (x[low + 1] - x[low]) : x[n - 1];
}
