/* Attention-residual mix and the norm behind it (model.md 2.1, 2.2), token by token: statistics and
 * scores of each value, softmax over the values, weighted sum, norm.  The values are a list of
 * separate buffers, never a copy. The trap: the scores use gamma * rho, whose gradients are
 * products of one common sum with the other vector; and without values (layer 0) the mix is the
 * identity. */
#include <math.h>
#include <string.h>

#include "../../common/config.h"
#include "../../common/op/attnres.h"
#include "../norm/rms.h"

enum { MAX_VALUES = K3_MAX_LAYERS + 1, MAX_ADDENDS = 2 };

/* Rows t of the values: the blocks, oldest first, and the prefix behind them. */
static size_t
value_rows(const float **v, void *const *buf, const struct k3_list *blocks, const float *p,
	   size_t t, size_t d)
{
	for (uint32_t j = 0; j < blocks->n; j++)
		v[j] = (const float *)buf[blocks->first + j] + t * d;
	v[blocks->n] = p + t * d;
	return blocks->n + 1;
}

/* share = softmax(s) of n scores. */
static void
softmax(float *share, const float *s, size_t n)
{
	const struct k3_vec *vec = k3_vec();
	double sum = vec->exp_sum(share, s, vec->largest(s, n), n);

	for (size_t j = 0; j < n; j++)
		share[j] = (float)((double)share[j] / sum);
}

/* r of each value, and its score r <v, gamma rho>; then their shares and the mix x. */
static void
mix_row(float *x, float *share, const float *const *v, size_t n, void *const *buf,
	const struct k3_mix_norm_fwd_args *a)
{
	const struct k3_vec *vec = k3_vec();
	const float *gamma = buf[a->gamma.first], *rho = buf[a->rho.first];
	float *r = share + n, *s = r + n;

	for (size_t j = 0; j < n; j++) {
		double score, square = vec->square_score(&score, v[j], gamma, rho, a->d),
			      root = sqrt(square / (double)a->d + (double)a->eps);

		r[j] = (float)(1.0 / root);
		s[j] = (float)(score / root);
	}
	softmax(share, s, n);
	vec->weighted_sum(x, v, share, n, a->d);
}

void
k3_mix_norm_fwd_cpu_f32(void *const *buf, const struct k3_mix_norm_fwd_args *a)
{
	float *y = buf[0], *stat = buf[1];
	const float *p = buf[2], *w = buf[a->w.first], *v[MAX_VALUES];
	size_t len = k3_mix_stat_len(a->blocks.n);

	for (size_t t = 0; t < a->t; t++) {
		size_t n = value_rows(v, buf, &a->blocks, p, t, a->d);
		float *share = stat + t * len, *out = y + t * a->d;
		const float *x = out;

		if (n == 1) {
			share[0] = 1;
			share[1] = share[2] = 0;
			x = v[0];
		} else {
			mix_row(out, share, v, n, buf, a);
		}
		share[3 * n] = k3_rms_factor(x, a->d, a->eps);
		k3_rms_fwd_row(out, x, w, share[3 * n], a->d);
	}
}

/* Gradients of one token's values; dx is the gradient of the mix, in the row of dp. */
static void
mix_back(void *const *buf, const struct k3_mix_norm_bwd_args *a, size_t t, const float *const *v,
	 const float *const *addend, float *dx)
{
	const struct k3_vec *vec = k3_vec();
	size_t n = a->blocks.n + 1, d = a->d;
	const float *share = (const float *)buf[2] + t * k3_mix_stat_len(a->blocks.n),
		    *r = share + n, *s = r + n;
	float *dv[MAX_VALUES], scale[MAX_VALUES], shrink[MAX_VALUES];
	double da[MAX_VALUES], mean = 0;

	for (size_t j = 0; j < n; j++) {
		dv[j] = j + 1 < n ? (float *)buf[a->dblocks.first + j] + t * d : dx;
		da[j] = vec->dot(v[j], dx, d);
		mean += (double)share[j] * da[j];
	}
	for (size_t j = 0; j < n; j++) {
		float ds = (float)((double)share[j] * (da[j] - mean));

		scale[j] = ds * r[j];
		shrink[j] = ds * s[j] * r[j] * r[j] / (float)d;
	}
	struct k3_vec_mix m = {.v = v,
			       .dv = dv,
			       .n_values = n,
			       .addend = addend,
			       .n_addends = a->addends.n,
			       .share = share,
			       .scale = scale,
			       .shrink = shrink,
			       .dx = dx,
			       .gamma = buf[a->gamma.first],
			       .rho = buf[a->rho.first],
			       .dgamma = buf[a->dgamma.first],
			       .drho = buf[a->drho.first],
			       .accumulate = (int)a->blocks_accumulate};
	vec->mix_bwd(&m, d);
}

static void
clear_unless(const struct k3_weight *w, void *const *buf, size_t d)
{
	if (w->n && !w->accumulate)
		memset(buf[w->first], 0, d * sizeof(float));
}

/* The row of dp holds the mix, then its gradient, then the gradient of the prefix. */
void
k3_mix_norm_bwd_cpu_f32(void *const *buf, const struct k3_mix_norm_bwd_args *a)
{
	const struct k3_vec *vec = k3_vec();
	float *dp = buf[0], *dw = buf[a->dw.first];
	const float *dy = buf[1], *stat = buf[2], *p = buf[3], *w = buf[a->w.first];
	const float *v[MAX_VALUES], *addend[MAX_ADDENDS];
	size_t len = k3_mix_stat_len(a->blocks.n), d = a->d;

	clear_unless(&a->dgamma, buf, d);
	clear_unless(&a->drho, buf, d);
	clear_unless(&a->dw, buf, d);
	for (size_t t = 0; t < a->t; t++) {
		size_t n = value_rows(v, buf, &a->blocks, p, t, d);
		const float *share = stat + t * len;
		float *row = dp + t * d;

		for (uint32_t k = 0; k < a->addends.n; k++)
			addend[k] = (const float *)buf[a->addends.first + k] + t * d;
		if (n > 1)
			vec->weighted_sum(row, v, share, n, d);
		k3_rms_bwd_row(row, dw, dy + t * d, n > 1 ? row : v[0], w, share[3 * n], d);
		if (n > 1)
			mix_back(buf, a, t, v, addend, row);
		else
			for (uint32_t k = 0; k < a->addends.n; k++)
				vec->add(row, row, addend[k], d);
	}
}
