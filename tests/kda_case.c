/* Every result lies between poisoned guards and is NaN before the kernel runs; the work buffer too.
 */
#include "kda_case.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct kda_case
kda_case(size_t t, size_t h, size_t k, size_t v)
{
	struct kda_case c = {
		.t = t, .h = h, .k = k, .v = v, .raw = 1, .scale = 1.0f, .lower_bound = -5.0f};
	int32_t *docs = malloc((t + 1) * sizeof(*docs));

	for (size_t i = 0; i < t; i++)
		docs[i] = 1;
	c.layout = fixture_layout(docs, t, 0, 0, 0, 0, 0);
	free(docs);
	return c;
}

static size_t
heads(const struct kda_case *c)
{
	return (c->h1 ? c->h1 : c->h) - c->h0;
}

static struct k3_kda_chunk_args
args_of(const struct kda_case *c)
{
	struct k3_kda_chunk_args a = {.t = c->t,
				      .h = c->h,
				      .k = c->k,
				      .v = c->v,
				      .h0 = c->h0,
				      .h1 = c->h1 ? c->h1 : (uint32_t)c->h,
				      .raw = (uint32_t)c->raw,
				      .lower_bound = c->lower_bound,
				      .scale = c->scale};

	return a;
}

static uint32_t
push(void **buf, uint32_t *n, const void *p)
{
	buf[*n] = (void *)p;
	return (*n)++;
}

static struct k3_list
push_list(void **buf, uint32_t *n, const void *p)
{
	struct k3_list l = {*n, p != NULL};

	if (p)
		push(buf, n, p);
	return l;
}

static void
push_gate(void **buf, struct k3_kda_chunk_args *a, const struct kda_case *c)
{
	if (c->raw)
		return;
	a->a_log = fixture_weight(push(buf, &a->n_buf, c->a_log), 1, c->h, 0);
	a->dt_bias = fixture_weight(push(buf, &a->n_buf, c->dt), 1, c->h * c->k, 0);
}

static size_t
larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

static void
renew(float **p, size_t n)
{
	fixture_free_poisoned(*p);
	*p = fixture_poisoned(n);
}

void
kda_forward(struct kda_case *c, kda_kernel *fwd)
{
	struct k3_kda_chunk_args a = args_of(c);
	size_t hg = heads(c);
	float *work = fixture_poisoned(larger(k3_kda_chunk_fwd_work_floats(c->t, hg, c->k, c->v),
					      k3_kda_recurrent_fwd_work_floats(c->k, c->v)));
	void *buf[12];

	renew(&c->o, c->t * hg * c->v);
	if (c->want_s_out)
		renew(&c->s_out, hg * c->k * c->v);
	push(buf, &a.n_buf, c->o);
	push(buf, &a.n_buf, c->qkv);
	push(buf, &a.n_buf, c->f);
	push(buf, &a.n_buf, c->br);
	push(buf, &a.n_buf, c->layout);
	push(buf, &a.n_buf, work);
	a.s_in = push_list(buf, &a.n_buf, c->s_in);
	a.s_out = push_list(buf, &a.n_buf, c->want_s_out ? c->s_out : NULL);
	push_gate(buf, &a, c);
	fwd(buf, &a);
	cr_assert(fixture_guards_intact(work) && fixture_guards_intact(c->o),
		  "forward wrote out of bounds");
	cr_assert(!c->want_s_out || fixture_guards_intact(c->s_out),
		  "forward wrote beyond the state");
	fixture_free_poisoned(work);
}

void
kda_backward(struct kda_case *c, kda_kernel *bwd)
{
	struct k3_kda_chunk_args a = args_of(c);
	size_t hg = heads(c);
	float *work = fixture_poisoned(larger(k3_kda_chunk_bwd_work_floats(c->t, hg, c->k, c->v),
					      k3_kda_recurrent_bwd_work_floats(c->t, c->k, c->v)));
	float **out[] = {&c->dqkv, &c->df, &c->dbr, &c->dab};
	size_t n_out[] = {c->t * hg * (2 * c->k + c->v), c->t * hg * c->k, c->t * hg,
			  hg + hg * c->k};
	void *buf[16];

	for (size_t i = 0; i < 4; i++) {
		renew(out[i], n_out[i]);
		push(buf, &a.n_buf, *out[i]);
	}
	if (c->want_ds_in)
		renew(&c->ds_in, hg * c->k * c->v);
	push(buf, &a.n_buf, c->d_o);
	push(buf, &a.n_buf, c->qkv);
	push(buf, &a.n_buf, c->f);
	push(buf, &a.n_buf, c->br);
	push(buf, &a.n_buf, c->layout);
	push(buf, &a.n_buf, work);
	a.s_in = push_list(buf, &a.n_buf, c->s_in);
	a.ds_out = push_list(buf, &a.n_buf, c->ds_out);
	a.ds_in = push_list(buf, &a.n_buf, c->want_ds_in ? c->ds_in : NULL);
	push_gate(buf, &a, c);
	bwd(buf, &a);
	for (size_t i = 0; i < 4; i++)
		cr_assert(fixture_guards_intact(*out[i]), "backward wrote beyond output %zu", i);
	cr_assert(fixture_guards_intact(work), "backward wrote beyond the work buffer");
	cr_assert(!c->want_ds_in || fixture_guards_intact(c->ds_in), "backward wrote beyond ds_in");
	fixture_free_poisoned(work);
}

void
kda_case_free(struct kda_case *c)
{
	float *out[] = {c->o, c->s_out, c->dqkv, c->df, c->dbr, c->dab, c->ds_in};

	for (size_t i = 0; i < sizeof(out) / sizeof(*out); i++)
		fixture_free_poisoned(out[i]);
	free(c->layout);
}

float *
kda_random(uint64_t seed, size_t n, double lo, double hi)
{
	float *x = malloc((n + 1) * sizeof(*x));

	for (size_t i = 0; i < n; i++)
		x[i] = (float)fixture_uniform(seed, i, lo, hi);
	return x;
}

float *
kda_constant(size_t n, float value)
{
	float *x = malloc((n + 1) * sizeof(*x));

	for (size_t i = 0; i < n; i++)
		x[i] = value;
	return x;
}

float *
kda_random_qkv(uint64_t seed, size_t t, size_t h, size_t k, size_t v)
{
	size_t width = h * (2 * k + v);
	float *x = kda_random(seed, t * width, -1, 1);

	for (size_t r = 0; r < t; r++)
		for (size_t i = 0; i < 2 * h; i++) {
			float *head = x + r * width + i * k;
			double sum = 0;

			for (size_t c = 0; c < k; c++)
				sum += (double)head[c] * (double)head[c];
			for (size_t c = 0; c < k; c++)
				head[c] = (float)((double)head[c] / sqrt(sum));
		}
	return x;
}

float *
kda_mixed_gates(uint64_t seed, size_t n)
{
	float *g = kda_random(seed, n, -5, 0);

	for (size_t i = 0; i < n; i++) {
		double pick = fixture_uniform(seed + 1000, i, 0, 1);

		g[i] = pick < 0.25 ? -0.001f : pick > 0.75 ? -5.0f : g[i];
	}
	return g;
}

void
kda_expect_same(const float *got, const float *want, size_t n, double tol, const char *what)
{
	double *d = malloc((n + 1) * sizeof(*d));

	int off = 0;

	for (size_t i = 0; i < n; i++) {
		d[i] = (double)want[i];
		off |= !(fabs((double)got[i] - d[i]) <= 1e-7);
	}
	if (off)
		fixture_expect_close(got, d, n, tol, what);
	free(d);
}
