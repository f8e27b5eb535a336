/* k3_bench op attnres: mix of the block payloads with the norm behind it, as many payloads as the
 * last layer has.  _first: of the first layer, which has none, so that the norm is left alone; _adds: gradients of
 * payloads are added to. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"

enum { MOST_BLOCKS = 10 };

struct mix {
	size_t t, d, n; /* n payloads */
	double eps;
	const float *p, *block[MOST_BLOCKS], *gamma, *rho, *w;
	double *share, *r, *s, *x; /* [t, n+1] each; x [t, d] before the norm */
};

static const float *
value(const struct mix *m, size_t j, size_t t)
{
	return (j < m->n ? m->block[j] : m->p) + t * m->d;
}

/* Weights of the values and the mix, by the formula. */
static void
mix_values(struct bench_case *c, struct mix *m)
{
	size_t v = m->n + 1;

	m->share = bench_doubles(c, m->t * v);
	m->r = bench_doubles(c, m->t * v);
	m->s = bench_doubles(c, m->t * v);
	m->x = bench_doubles(c, m->t * m->d);
	for (size_t t = 0; t < m->t; t++) {
		double *a = m->share + t * v, *r = m->r + t * v, *s = m->s + t * v, sum = 0;
		for (size_t j = 0; j < v; j++) {
			double square = 0, dot = 0;
			const float *x = value(m, j, t);
			for (size_t i = 0; i < m->d; i++) {
				square += (double)x[i] * (double)x[i];
				dot += (double)x[i] * (double)m->gamma[i] * (double)m->rho[i];
			}
			r[j] = 1 / sqrt(square / (double)m->d + m->eps);
			s[j] = r[j] * dot;
			sum += exp(s[j]);
		}
		for (size_t j = 0; j < v; j++) {
			a[j] = exp(s[j]) / sum;
			for (size_t i = 0; i < m->d; i++)
				m->x[t * m->d + i] += a[j] * (double)value(m, j, t)[i];
		}
	}
}

/* The saved statistics: a, r, s of each value, then the factor of the norm. */
static double *
statistics(struct bench_case *c, const struct mix *m)
{
	size_t v = m->n + 1, len = k3_mix_stat_len(m->n);
	double *stat = bench_doubles(c, m->t * len);

	for (size_t t = 0; t < m->t; t++) {
		double square = 0;
		for (size_t j = 0; j < v; j++) {
			stat[t * len + j] = m->share[t * v + j];
			stat[t * len + v + j] = m->n > 0 ? m->r[t * v + j] : 0; /* not used */
			stat[t * len + 2 * v + j] = m->s[t * v + j];
		}
		for (size_t i = 0; i < m->d; i++)
			square += m->x[t * m->d + i] * m->x[t * m->d + i];
		stat[t * len + 3 * v] = 1 / sqrt(square / (double)m->d + m->eps);
	}
	return stat;
}

static bool
open_mix(struct bench_case *c, struct bench *b, enum k3_op op, const char *suffix, struct mix *m)
{
	size_t each = b->model->block_layers;
	size_t n = b->payloads ? b->payloads : (b->model->layers - 1) / each + 1;
	char name[64];

	if (strcmp(suffix, "_first") == 0)
		n = 0;
	snprintf(name, sizeof(name), "%s%s", k3_op_name(op), suffix);
	*m = (struct mix){.t = b->tokens,
			  .d = b->model->width,
			  .n = n < MOST_BLOCKS ? n : MOST_BLOCKS,
			  .eps = b->model->norm_eps};
	if (!bench_open(c, b, name, BENCH_MEMORY, 0, "t=%zu d=%zu blocks=%zu", m->t, m->d, m->n))
		return false;
	m->p = bench_random(c, m->t * m->d, -1, 1);
	for (size_t j = 0; j < m->n; j++)
		m->block[j] = bench_random(c, m->t * m->d, -1, 1);
	m->gamma = bench_random(c, m->d, 0.5, 1.5);
	m->rho = bench_random(c, m->d, n > 0 ? -0.1 : 0,
			      n > 0 ? 0.1 : 0); /* no score without payloads */
	m->w = bench_random(c, m->d, 0.5, 1.5);
	if (bench_checks(c))
		mix_values(c, m);
	return true;
}

static struct k3_list
push_blocks(struct bench_call *call, const struct mix *m)
{
	uint32_t at = call->n;

	for (size_t j = 0; j < m->n; j++)
		bench_push(call, m->block[j]);
	return bench_list(call, at);
}

static struct k3_weight
push_vector(struct bench_call *call, const float *x, size_t d)
{
	bench_push(call, x);
	bench_keep(call->c, x);
	return bench_last(call, 1, d);
}

static void
forward(struct bench *b, const char *suffix)
{
	struct mix m;
	struct bench_case c;

	if (!open_mix(&c, b, K3_OP_MIX_NORM_FWD, suffix, &m))
		return;
	struct k3_mix_norm_fwd_args a = {.t = m.t, .d = m.d, .eps = (float)m.eps};
	struct bench_call *call = bench_call(&c, K3_OP_MIX_NORM_FWD);
	size_t len = k3_mix_stat_len(m.n);
	float *y = bench_out(call, "y", m.t * m.d), *stat = bench_out(call, "stat", m.t * len);
	bench_keep(&c, stat);
	bench_push(call, m.p);
	a.blocks = push_blocks(call, &m);
	if (m.n > 0) {
		a.gamma = push_vector(call, m.gamma, m.d);
		a.rho = push_vector(call, m.rho, m.d);
	}
	a.w = push_vector(call, m.w, m.d);
	bench_args(call, &a, sizeof(a));
	bench_traffic(call, m.t * m.d * (m.n + 1), m.t * (m.d + len), 0);
	if (bench_run(&c)) {
		double *want = bench_doubles(&c, m.t * m.d), *want_stat = statistics(&c, &m);
		for (size_t i = 0; i < m.t * m.d; i++)
			want[i] =
				m.x[i] * want_stat[i / m.d * len + len - 1] * (double)m.w[i % m.d];
		bench_expect(&c, "y", y, m.d, want, m.t, m.d, m.d);
		bench_expect(&c, "stat", stat, len, want_stat, m.t, len, m.d);
	}
	bench_close(&c);
}

struct mix_grad {
	double *dp, *dblock[MOST_BLOCKS], *dgamma, *drho, *dw;
};

/* Gradients of one token: through the norm to dx, through the softmax to the values. */
static void
token_back(const struct mix *m, const struct mix_grad *g, size_t t, const float *dy, double rx)
{
	size_t v = m->n + 1, d = m->d;
	double dx[d], da[MOST_BLOCKS + 1], inner = 0, mean = 0;
	const double *x = m->x + t * d;

	for (size_t i = 0; i < d; i++) {
		inner += (double)dy[i] * (double)m->w[i] * x[i] * rx / (double)d;
		g->dw[i] += (double)dy[i] * x[i] * rx;
	}
	for (size_t i = 0; i < d; i++)
		dx[i] = rx * ((double)dy[i] * (double)m->w[i] - x[i] * rx * inner);
	for (size_t j = 0; j < v; j++) {
		da[j] = 0;
		for (size_t i = 0; i < d; i++)
			da[j] += (double)value(m, j, t)[i] * dx[i];
		mean += m->share[t * v + j] * da[j];
	}
	for (size_t j = 0; j < v; j++) {
		double a = m->share[t * v + j], r = m->r[t * v + j], s = m->s[t * v + j];
		double ds = a * (da[j] - mean);
		double *dv = (j < m->n ? g->dblock[j] : g->dp) + t * d;
		for (size_t i = 0; i < d; i++) {
			double x_i = (double)value(m, j, t)[i];
			double gamma = (double)m->gamma[i], rho = (double)m->rho[i];
			dv[i] +=
				a * dx[i] + ds * r * gamma * rho - ds * s * r * r / (double)d * x_i;
			g->dgamma[i] += ds * r * x_i * rho;
			g->drho[i] += ds * r * x_i * gamma;
		}
	}
}

static void
expect_back(struct bench_case *c, const struct mix *m, const float *dy, const float *addend,
	    const double *stat, const float *dp, float *const *dblock, float *const *before,
	    float *const *dvector)
{
	size_t len = k3_mix_stat_len(m->n);
	struct mix_grad g = {.dp = bench_doubles(c, m->t * m->d),
			     .dgamma = bench_doubles(c, m->d),
			     .drho = bench_doubles(c, m->d),
			     .dw = bench_doubles(c, m->d)};

	for (size_t j = 0; j < m->n; j++)
		g.dblock[j] = bench_doubles(c, m->t * m->d);
	for (size_t j = 0; before[0] && j < m->n; j++)
		for (size_t i = 0; i < m->t * m->d; i++)
			g.dblock[j][i] = (double)before[j][i];
	for (size_t i = 0; i < m->t * m->d; i++)
		g.dp[i] = (double)addend[i];
	for (size_t t = 0; t < m->t; t++)
		token_back(m, &g, t, dy + t * m->d, stat[t * len + len - 1]);
	bench_expect(c, "dp", dp, m->d, g.dp, m->t, m->d, m->d);
	for (size_t j = 0; j < m->n; j++)
		bench_expect(c, "dblocks", dblock[j], m->d, g.dblock[j], m->t, m->d, m->d);
	if (m->n > 0) {
		bench_expect(c, "dgamma", dvector[0], m->d, g.dgamma, 1, m->d, m->t);
		bench_expect(c, "drho", dvector[1], m->d, g.drho, 1, m->d, m->t);
	}
	bench_expect(c, "dw", dvector[2], m->d, g.dw, 1, m->d, m->t);
}

static void
backward(struct bench *b, const char *suffix)
{
	bool adds = strcmp(suffix, "_adds") == 0;
	struct mix m;
	struct bench_case c;
	float *dblock[MOST_BLOCKS], *before[MOST_BLOCKS] = {NULL}, *dvector[3] = {NULL};

	if (!open_mix(&c, b, K3_OP_MIX_NORM_BWD, suffix, &m))
		return;
	struct k3_mix_norm_bwd_args a = {
		.t = m.t, .d = m.d, .eps = (float)m.eps, .blocks_accumulate = adds};
	struct bench_call *call = bench_call(&c, K3_OP_MIX_NORM_BWD);
	double *stat = bench_checks(&c) ? statistics(&c, &m)
					: bench_constants(&c, m.t * k3_mix_stat_len(m.n), 0.1);
	float *dp = bench_out(call, "dp", m.t * m.d), *dy = bench_in(call, m.t * m.d);
	bench_push(call, bench_narrow(&c, stat, m.t * k3_mix_stat_len(m.n)));
	bench_push(call, m.p);
	a.addends = (struct k3_list){call->n, 1};
	float *addend = bench_in(call, m.t * m.d);
	a.blocks = push_blocks(call, &m);
	a.dblocks = (struct k3_list){call->n, (uint32_t)m.n};
	for (size_t j = 0; j < m.n; j++)
		dblock[j] = adds ? bench_inout(call, "dblocks", m.t * m.d, &before[j])
				 : bench_out(call, "dblocks", m.t * m.d);
	if (m.n > 0) {
		a.dgamma = bench_gradient(call, "dgamma", 1, m.d, &dvector[0]);
		a.drho = bench_gradient(call, "drho", 1, m.d, &dvector[1]);
	}
	a.dw = bench_gradient(call, "dw", 1, m.d, &dvector[2]);
	if (m.n > 0) {
		a.gamma = push_vector(call, m.gamma, m.d);
		a.rho = push_vector(call, m.rho, m.d);
	}
	a.w = push_vector(call, m.w, m.d);
	bench_args(call, &a, sizeof(a));
	bench_traffic(call, m.t * m.d * (m.n + 3), m.t * m.d * (adds ? 1 : m.n + 1),
		      adds ? m.t * m.d * m.n : 0);
	if (bench_run(&c))
		expect_back(&c, &m, dy, addend, stat, dp, dblock, before, dvector);
	bench_close(&c);
}

void
bench_attnres(struct bench *b)
{
	forward(b, "_first");
	forward(b, "");
	backward(b, "_first");
	backward(b, "");
	backward(b, "_adds");
}
