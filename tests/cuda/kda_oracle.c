/* See kda_oracle.h.  The states of a segment are all kept. */
#include "kda_oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct head {
	const struct k3_kda_chunk_args *a;
	const float *q, *k, *v, *f, *br, *dt;
	double exp_a;
	size_t hg, i; /* heads of the group, this one's number in it */
};

static struct head
head_of(void *const *buf, uint32_t qkv, size_t i, const struct k3_kda_chunk_args *a)
{
	size_t h = a->h0 + i;
	struct head x = {.a = a, .hg = a->h1 - a->h0, .i = i, .exp_a = 1};

	x.q = (const float *)buf[qkv] + h * a->k;
	x.k = x.q + a->h * a->k;
	x.v = (const float *)buf[qkv] + 2 * a->h * a->k + h * a->v;
	x.f = (const float *)buf[qkv + 1] + h * a->k;
	x.br = (const float *)buf[qkv + 2] + h;
	if (!a->raw) {
		x.dt = (const float *)buf[a->dt_bias.first] + h * a->k;
		x.exp_a = exp((double)((const float *)buf[a->a_log.first])[h]);
	}
	return x;
}

static double
sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

static double
beta_of(const struct head *x, size_t t)
{
	double br = (double)x->br[t * x->a->h];

	return x->a->raw ? br : sigmoid(br);
}

/* g, and its derivative by f. */
static double
gate_of(const struct head *x, size_t t, size_t c, double *slope)
{
	double f = (double)x->f[t * x->a->h * x->a->k + c], y;

	*slope = 1;
	if (x->a->raw)
		return f;
	y = x->exp_a * (f + (double)x->dt[c]);
	*slope = (double)x->a->lower_bound * x->exp_a * sigmoid(y) * sigmoid(-y);
	return (double)x->a->lower_bound * sigmoid(y);
}

/* sd = e^g s, e = v - sd^T k */
static void
predict(const struct head *x, size_t t, const double *s, double *sd, double *e)
{
	size_t kd = x->a->k, vd = x->a->v, ld = x->a->h * (2 * kd + vd);
	double slope;

	for (size_t j = 0; j < vd; j++)
		e[j] = (double)x->v[t * ld + j];
	for (size_t c = 0; c < kd; c++) {
		double decay = exp(gate_of(x, t, c, &slope)), k = (double)x->k[t * ld + c];
		for (size_t j = 0; j < vd; j++) {
			sd[c * vd + j] = decay * s[c * vd + j];
			e[j] -= sd[c * vd + j] * k;
		}
	}
}

static double *
zeros(size_t n)
{
	double *x = calloc(n + 1, sizeof(*x));

	if (!x)
		abort();
	return x;
}

/* s[0 .. n]: states before and after each of n rows; s[0] is there. */
static void
states(const struct head *x, const int32_t *rows, size_t n, double *s)
{
	size_t kd = x->a->k, vd = x->a->v, kv = kd * vd, ld = x->a->h * (2 * kd + vd);
	double *e = zeros(vd);

	for (size_t r = 0; r < n; r++, s += kv) {
		size_t t = (size_t)rows[r];
		double beta = beta_of(x, t);
		predict(x, t, s, s + kv, e);
		for (size_t i = 0; i < kv; i++)
			s[kv + i] += beta * (double)x->k[t * ld + i / vd] * e[i % vd];
	}
	free(e);
}

static void
load(double *to, void *const *buf, const struct k3_list *list, size_t kv, size_t i)
{
	for (size_t j = 0; j < kv; j++)
		to[j] = list->n ? (double)((const float *)buf[list->first])[i * kv + j] : 0;
}

static void
store(const double *from, void *const *buf, const struct k3_list *list, size_t kv, size_t i)
{
	for (size_t j = 0; list->n && j < kv; j++)
		((float *)buf[list->first])[i * kv + j] = (float)from[j];
}

void
kda_oracle_fwd(void *const *buf, const struct k3_kda_chunk_args *a)
{
	const int32_t *layout = buf[4], *order = k3_tile_order(layout),
		      *seg = k3_tile_segments(layout);
	size_t kv = a->k * a->v, hg = a->h1 - a->h0, ld = a->h * (2 * a->k + a->v);

	memset(buf[0], 0, a->t * hg * a->v * sizeof(float));
	for (size_t i = 0; i < hg; i++) {
		struct head x = head_of(buf, 1, i, a);
		double *last = zeros(kv);

		load(last, buf, &a->s_in, kv, i);
		for (int d = 0; d < layout[K3_TL_SEGMENTS]; d++) {
			size_t n = (size_t)(seg[d + 1] - seg[d]);
			double *s = zeros((n + 1) * kv);

			if (d == 0)
				memcpy(s, last, kv * sizeof(*s));
			states(&x, order + seg[d], n, s);
			for (size_t r = 0; r < n; r++)
				for (size_t j = 0; j < a->v; j++) {
					size_t t = (size_t)order[seg[d] + (int32_t)r];
					double o = 0;
					for (size_t c = 0; c < a->k; c++)
						o += (double)x.q[t * ld + c] *
						     s[(r + 1) * kv + c * a->v + j];
					((float *)buf[0])[(t * hg + i) * a->v + j] =
						(float)((double)a->scale * o);
				}
			memcpy(last, s + n * kv, kv * sizeof(*s));
			free(s);
		}
		store(last, buf, &a->s_out, kv, i);
		free(last);
	}
}

/* Of one row: ds is the gradient of the state after it (s + kv) on entry and before it (s) on
 * return. */
static void
undo(const struct head *x, void *const *buf, size_t t, const double *s, double *ds, double *dab)
{
	const struct k3_kda_chunk_args *a = x->a;
	size_t kd = a->k, vd = a->v, kv = kd * vd, ld = a->h * (2 * kd + vd), hg = x->hg;
	const float *d_o = (const float *)buf[4] + (t * hg + x->i) * vd;
	float *row = (float *)buf[0] + t * hg * (2 * kd + vd), *dq = row + x->i * kd,
	      *dk = row + (hg + x->i) * kd, *dv = row + 2 * hg * kd + x->i * vd;
	double *sd = zeros(kv), *e = zeros(vd), *du = zeros(vd), beta = beta_of(x, t), dbeta = 0;

	predict(x, t, s, sd, e);
	for (size_t c = 0; c < kd; c++) {
		double sum = 0;
		for (size_t j = 0; j < vd; j++) {
			sum += s[kv + c * vd + j] * (double)d_o[j];
			ds[c * vd + j] +=
				(double)a->scale * (double)x->q[t * ld + c] * (double)d_o[j];
			du[j] += ds[c * vd + j] * (double)x->k[t * ld + c];
		}
		dq[c] = (float)((double)a->scale * sum);
	}
	for (size_t j = 0; j < vd; j++) {
		dbeta += du[j] * e[j];
		dv[j] = (float)(beta * du[j]);
	}
	((float *)buf[2])[t * hg + x->i] =
		(float)(a->raw ? dbeta : dbeta * beta * sigmoid(-(double)x->br[t * a->h]));
	for (size_t c = 0; c < kd; c++) {
		double slope, decay = exp(gate_of(x, t, c, &slope)), sum = 0, dg = 0;
		for (size_t j = 0; j < vd; j++) {
			double *at = ds + c * vd + j;
			sum += *at * beta * e[j] - sd[c * vd + j] * beta * du[j];
			*at -= (double)x->k[t * ld + c] * beta * du[j];
			dg += *at * sd[c * vd + j];
			*at *= decay;
		}
		dk[c] = (float)sum;
		((float *)buf[1])[(t * hg + x->i) * kd + c] = (float)(dg * slope);
		if (a->raw)
			continue;
		dab[0] += dg * slope * ((double)x->f[t * a->h * kd + c] + (double)x->dt[c]);
		dab[1 + c] += dg * slope;
	}
	free(sd);
	free(e);
	free(du);
}

void
kda_oracle_bwd(void *const *buf, const struct k3_kda_chunk_args *a)
{
	const int32_t *layout = buf[8], *order = k3_tile_order(layout),
		      *seg = k3_tile_segments(layout);
	size_t kv = a->k * a->v, hg = a->h1 - a->h0;

	memset(buf[0], 0, a->t * hg * (2 * a->k + a->v) * sizeof(float));
	memset(buf[1], 0, a->t * hg * a->k * sizeof(float));
	memset(buf[2], 0, a->t * hg * sizeof(float));
	for (size_t i = 0; i < hg; i++) {
		struct head x = head_of(buf, 5, i, a);
		double *ds = zeros(kv), *dab = zeros(1 + a->k);

		load(ds, buf, &a->ds_out, kv, i);
		for (int d = layout[K3_TL_SEGMENTS] - 1; d >= 0; d--) {
			size_t n = (size_t)(seg[d + 1] - seg[d]);
			double *s = zeros((n + 1) * kv);

			if (d + 1 < layout[K3_TL_SEGMENTS])
				memset(ds, 0, kv * sizeof(*ds));
			if (d == 0)
				load(s, buf, &a->s_in, kv, i);
			states(&x, order + seg[d], n, s);
			for (size_t r = n; r-- > 0;)
				undo(&x, buf, (size_t)order[seg[d] + (int32_t)r], s + r * kv, ds,
				     dab);
			free(s);
		}
		store(ds, buf, &a->ds_in, kv, i);
		((float *)buf[3])[i] = (float)dab[0];
		for (size_t c = 0; c < a->k; c++)
			((float *)buf[3])[hg + i * a->k + c] = (float)dab[1 + c];
		free(ds);
		free(dab);
	}
}
