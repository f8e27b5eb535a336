/* Attention-residual mix and the norm behind it (model.md 2.1, 2.2), token by token: statistics and
 * scores of each value, softmax over the values, weighted sum, norm.  The values are a list of
 * separate buffers, never a copy. The trap: the scores use gamma * rho, whose gradients are
 * products of one common sum with the other vector; and without values (layer 0) the mix is the
 * identity. */
#include <math.h>
#include <string.h>

#include "../../common/op/attnres.h"
#include "../norm/rms.h"

enum { MAX_VALUES = 512 };

/* r of one value, and its score r <v, gamma rho>. */
static void
score_value(const float *v, const float *gamma, const float *rho, size_t d, float eps, float *r,
	    float *s)
{
	double square = 0, dot = 0;

	for (size_t i = 0; i < d; i++) {
		square += (double)v[i] * (double)v[i];
		dot += (double)v[i] * (double)(gamma[i] * rho[i]);
	}
	*r = (float)(1.0 / sqrt(square / (double)d + (double)eps));
	*s = (float)(dot / sqrt(square / (double)d + (double)eps));
}

/* Softmax of n scores. */
static void
softmax(float *a, const float *s, size_t n)
{
	float most = s[0];
	double sum = 0;

	for (size_t j = 1; j < n; j++)
		most = s[j] > most ? s[j] : most;
	for (size_t j = 0; j < n; j++) {
		a[j] = expf(s[j] - most);
		sum += (double)a[j];
	}
	for (size_t j = 0; j < n; j++)
		a[j] = (float)((double)a[j] / sum);
}

/* x = sum_j a_j v_j of one token; the prefix is the last value. */
static void
mix_row(float *x, void *const *buf, const struct k3_list *blocks, const float *p, const float *a,
	size_t row, size_t d)
{
	for (size_t i = 0; i < d; i++)
		x[i] = a[blocks->n] * p[i];
	for (uint32_t j = 0; j < blocks->n; j++) {
		const float *v = (const float *)buf[blocks->first + j] + row * d;
		for (size_t i = 0; i < d; i++)
			x[i] += a[j] * v[i];
	}
}

void
k3_mix_norm_fwd_cpu_f32(void *const *buf, const struct k3_mix_norm_fwd_args *a)
{
	float *y = buf[0], *stat = buf[1];
	const float *p = buf[2], *w = buf[a->w.first];
	size_t n = a->blocks.n + 1, len = k3_mix_stat_len(a->blocks.n);

	for (size_t t = 0; t < a->t; t++) {
		float *share = stat + t * len, *r = share + n, *s = r + n, *out = y + t * a->d;
		const float *pt = p + t * a->d;
		if (a->blocks.n == 0) {
			share[0] = 1;
			r[0] = s[0] = 0;
			memcpy(out, pt, a->d * sizeof(*out));
		} else {
			const float *gamma = buf[a->gamma.first], *rho = buf[a->rho.first];
			for (uint32_t j = 0; j < a->blocks.n; j++)
				score_value((const float *)buf[a->blocks.first + j] + t * a->d,
					    gamma, rho, a->d, a->eps, r + j, s + j);
			score_value(pt, gamma, rho, a->d, a->eps, r + n - 1, s + n - 1);
			softmax(share, s, n);
			mix_row(out, buf, &a->blocks, pt, share, t, a->d);
		}
		share[3 * n] = k3_rms_factor(out, a->d, a->eps);
		k3_rms_fwd_row(out, out, w, share[3 * n], a->d);
	}
}

/* <v, dx> of one value. */
static double
dot_row(const float *v, const float *dx, size_t d)
{
	double sum = 0;

	for (size_t i = 0; i < d; i++)
		sum += (double)v[i] * (double)dx[i];
	return sum;
}

/* Adds (or sets) one value's gradient, and its part of d(gamma rho): dw += ds r v goes to dgamma,
 * drho by the other's factor. */
static void
value_back(float *dv, int add, const float *v, const float *dx, float share, float ds, float r,
	   float s, const float *gamma, const float *rho, float *dgamma, float *drho, size_t d)
{
	float scale = ds * r, shrink = ds * s * r * r / (float)d;

	for (size_t i = 0; i < d; i++) {
		float g = share * dx[i] + scale * gamma[i] * rho[i] - shrink * v[i];
		dv[i] = add ? dv[i] + g : g;
		dgamma[i] += scale * v[i] * rho[i];
		drho[i] += scale * v[i] * gamma[i];
	}
}

/* dp starts as the sum of the addends. */
static void
start_row(float *dp, void *const *buf, const struct k3_list *addends, size_t row, size_t d)
{
	memset(dp, 0, d * sizeof(*dp));
	for (uint32_t k = 0; k < addends->n; k++) {
		const float *from = (const float *)buf[addends->first + k] + row * d;
		for (size_t i = 0; i < d; i++)
			dp[i] += from[i];
	}
}

/* One token with values; dx is the gradient of the mix. */
static void
mix_back(void *const *buf, const struct k3_mix_norm_bwd_args *a, size_t t, const float *dx,
	 float *dp)
{
	size_t n = a->blocks.n + 1, d = a->d;
	const float *share = (const float *)buf[2] + t * k3_mix_stat_len(a->blocks.n),
		    *r = share + n, *s = r + n;
	const float *p = (const float *)buf[3] + t * d, *gamma = buf[a->gamma.first],
		    *rho = buf[a->rho.first];
	float *dgamma = buf[a->dgamma.first], *drho = buf[a->drho.first];
	double da[MAX_VALUES], mean = 0;

	for (size_t j = 0; j < n; j++) {
		da[j] = dot_row(j + 1 < n ? (const float *)buf[a->blocks.first + j] + t * d : p, dx,
				d);
		mean += (double)share[j] * da[j];
	}
	for (size_t j = 0; j < n; j++) {
		float ds = (float)((double)share[j] * (da[j] - mean));
		const float *v = j + 1 < n ? (const float *)buf[a->blocks.first + j] + t * d : p;
		float *dv = j + 1 < n ? (float *)buf[a->dblocks.first + j] + t * d : dp;
		int add = j + 1 < n ? (int)a->blocks_accumulate : 1;
		value_back(dv, add, v, dx, share[j], ds, r[j], s[j], gamma, rho, dgamma, drho, d);
	}
}

static void
clear_unless(const struct k3_weight *w, void *const *buf, size_t d)
{
	if (w->n && !w->accumulate)
		memset(buf[w->first], 0, d * sizeof(float));
}

void
k3_mix_norm_bwd_cpu_f32(void *const *buf, const struct k3_mix_norm_bwd_args *a)
{
	float *dp = buf[0], *dw = buf[a->dw.first];
	const float *dy = buf[1], *stat = buf[2], *p = buf[3], *w = buf[a->w.first];
	size_t n = a->blocks.n + 1, len = k3_mix_stat_len(a->blocks.n), d = a->d;

	clear_unless(&a->dgamma, buf, d);
	clear_unless(&a->drho, buf, d);
	clear_unless(&a->dw, buf, d);
	for (size_t t = 0; t < a->t; t++) {
		const float *share = stat + t * len;
		float x[d], dx[d];
		mix_row(x, buf, &a->blocks, p + t * d, share, t, d);
		k3_rms_bwd_row(dx, dw, dy + t * d, x, w, share[3 * n], d, 0);
		start_row(dp + t * d, buf, &a->addends, t, d);
		if (a->blocks.n > 0)
			mix_back(buf, a, t, dx, dp + t * d);
		else
			for (size_t i = 0; i < d; i++)
				dp[t * d + i] += dx[i];
	}
}
