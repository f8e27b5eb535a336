/* Bodies of the loops over channels (kda_lanes.h); each kda_lanes*_cpu.c compiles them for one
 * vector width. Loops run over whole lanes, so every width and every leading dimension here is a
 * multiple of K3I_LANES.
 */
#include <string.h>

#include "../linalg/panel_body.h"
#include "exp_neg.h"
#include "kda_lanes.h"

enum { L = K3I_LANES };

K3I_INLINE k3i_vf *
at(float *p, size_t i)
{
	return (k3i_vf *)(p + i);
}

/* Sum of the lanes, in a fixed order. */
K3I_INLINE float
lane_sum(const k3i_vf *v)
{
	typedef float half __attribute__((vector_size(32), aligned(4), may_alias));
	typedef float quarter __attribute__((vector_size(16), aligned(4), may_alias));
	const float *p = (const float *)v;
	half h = *(const half *)p + *(const half *)(p + 8);
	const float *hp = (const float *)&h;
	quarter q = *(const quarter *)hp + *(const quarter *)(hp + 4);

	return (q[0] + q[2]) + (q[1] + q[3]);
}

/* z = sigmoid(y) and its complement, neither by cancellation. */
K3I_INLINE void
sigmoid_lanes(k3i_vf *z, k3i_vf *rest, const k3i_vf *y)
{
	k3i_vi pos = *y >= 0.0f;
	k3i_vf minus = (k3i_vf)((k3i_vi)*y | INT32_MIN), e, big, small;

	k3i_exp_neg(&e, &minus);
	big = 1.0f / (1.0f + e);
	small = e * big;
	*z = (k3i_vf)((pos & (k3i_vi)big) | (~pos & (k3i_vi)small));
	*rest = (k3i_vf)((pos & (k3i_vi)small) | (~pos & (k3i_vi)big));
}

static void
gate(const struct k3i_kda_chunk *c)
{
	for (size_t r = 0; r < c->n_rows; r++)
		for (size_t i = 0; i < c->kp; i += L) {
			k3i_vf y = c->exp_a * (*at(c->x, r * c->kp + i) + *at(c->dt, i)), z, rest;

			sigmoid_lanes(&z, &rest, &y);
			*at(c->l, r * c->kp + i) = c->lower_bound * z;
		}
}

/* Sums inside the sub-blocks, and their exponentials. */
static void
block_decay(const struct k3i_kda_chunk *c, size_t b, size_t i)
{
	size_t at0 = b * K3I_SUB * c->kp + i;
	k3i_vf sum = {0};

	for (size_t r = 0, j = at0; r < K3I_SUB; r++, j += c->kp) {
		sum += *at(c->l, j);
		*at(c->l, j) = sum;
		k3i_exp_neg(at(c->el, j), &sum);
	}
	for (size_t r = 0, j = at0; r < K3I_SUB; r++, j += c->kp) {
		k3i_vf rest = sum - *at(c->l, j);

		k3i_exp_neg(at(c->er, j), &rest);
	}
	k3i_exp_neg(at(c->et, b * c->kp + i), &sum);
}

static void
decay(const struct k3i_kda_chunk *c)
{
	size_t kp = c->kp, vp = c->vp, ld = kp + vp, blocks = c->rows / K3I_SUB;

	for (size_t i = 0; i < kp; i += L) {
		k3i_vf one = {0};

		one += 1.0f;
		*at(c->pre, i) = one;
		*at(c->suf, (blocks - 1) * kp + i) = one;
		for (size_t b = 0; b < blocks; b++) {
			block_decay(c, b, i);
			*at(c->pre, (b + 1) * kp + i) =
				*at(c->pre, b * kp + i) * *at(c->et, b * kp + i);
		}
		for (size_t b = blocks - 1; b > 0; b--)
			*at(c->suf, (b - 1) * kp + i) =
				*at(c->suf, b * kp + i) * *at(c->et, b * kp + i);
	}
	for (size_t r = 0; r < c->rows; r++) {
		size_t b = r / K3I_SUB;

		for (size_t i = 0; i < kp; i += L) {
			k3i_vf k = *at(c->k_ck, r * kp + i);
			k3i_vf down = *at(c->el, r * kp + i) * *at(c->pre, b * kp + i);

			*at(c->kbar, r * kp + i) =
				k * *at(c->er, r * kp + i) * *at(c->suf, b * kp + i);
			*at(c->xy, r * ld + i) = c->beta[r] * k * down;
			*at(c->qd, r * kp + i) = -c->scale * *at(c->q, r * kp + i) * down;
		}
		for (size_t i = 0; i < vp; i += L)
			*at(c->xy, r * ld + kp + i) = c->beta[r] * *at(c->v_cv, r * vp + i);
	}
}

static void
diagonal(const struct k3i_kda_chunk *c, size_t b)
{
	size_t kp = c->kp, lo = b * K3I_SUB;

	for (size_t r = lo; r < lo + K3I_SUB; r++)
		for (size_t j = lo; j <= r; j++) {
			k3i_vf m = {0}, p = {0};

			for (size_t i = 0; i < kp; i += L) {
				k3i_vf w, x = *at(c->l, r * kp + i) - *at(c->l, j * kp + i);

				k3i_exp_neg(&w, &x);
				w *= *at(c->k_ck, j * kp + i);
				m += *at(c->k_ck, r * kp + i) * w;
				p += *at(c->q, r * kp + i) * w;
			}
			c->p[r * K3I_CHUNK + j] = lane_sum(&p);
			if (j < r)
				c->m[r * K3I_CHUNK + j] = lane_sum(&m);
		}
}

/* Forward substitution by rows: row r of the inverse is e_r minus a combination of the rows above.
 */
static void
inverse(const struct k3i_kda_chunk *c)
{
	memset(c->t, 0, c->rows * K3I_CHUNK * sizeof(float));
	for (size_t r = 0; r < c->rows; r++) {
		float *row = c->t + r * K3I_CHUNK;

		for (size_t i = 0; i < r; i += L) {
			k3i_vf sum = {0};

			for (size_t j = i; j < r; j++)
				sum += c->m[r * K3I_CHUNK + j] * *at(c->t, j * K3I_CHUNK + i);
			*at(row, i) = -c->beta[r] * sum;
		}
		row[r] = 1.0f;
	}
}

static void
mul(float *y, const float *x, const float *w, size_t n)
{
	for (size_t i = 0; i < n; i += L)
		*at(y, i) = *(const k3i_vf *)(x + i) * *(const k3i_vf *)(w + i);
}

static void
muladd(float *y, const float *x, const float *w, size_t n)
{
	for (size_t i = 0; i < n; i += L)
		*at(y, i) += *(const k3i_vf *)(x + i) * *(const k3i_vf *)(w + i);
}

static void
scale_all(float *y, float w, size_t n)
{
	for (size_t i = 0; i < n; i += L)
		*at(y, i) *= w;
}

static void
mul_rows(float *y, const float *w, size_t rows, size_t n)
{
	for (size_t r = 0; r < rows; r++)
		mul(y + r * n, y + r * n, w, n);
}

static void
scale_rows(float *y, const float *w, size_t rows, size_t n)
{
	for (size_t r = 0; r < rows; r++)
		for (size_t i = 0; i < n; i += L)
			*at(y, r * n + i) *= w[r];
}

/* The part of dg_last that the state carries: sum over v of exp(G_last) S dS. */
static void
state_decay_bwd(const struct k3i_kda_chunk *c, const struct k3i_kda_chunk_grad *d)
{
	const float *all = c->pre + c->rows / K3I_SUB * c->kp;

	for (size_t i = 0; i < c->kp; i++) {
		k3i_vf sum = {0};

		for (size_t j = 0; j < c->vp; j += L)
			sum += *at(c->s, i * c->vp + j) * *at(d->ds, i * c->vp + j);
		d->dg_last[i] = all[i] * lane_sum(&sum);
	}
}

/* One row: dq, dk_row, dk_col from the state products and the WY form; returns <dX, K exp(G)>. */
static float
wy_row_keys(const struct k3i_kda_chunk *c, const struct k3i_kda_chunk_grad *d, size_t r)
{
	size_t kp = c->kp, ld = kp + c->vp, b = r / K3I_SUB;
	k3i_vf sum = {0};

	for (size_t i = 0; i < kp; i += L) {
		size_t j = r * kp + i;
		k3i_vf down = *at(c->el, j) * *at(c->pre, b * kp + i),
		       dx = *at(d->dxy, r * ld + i) * down;

		sum += dx * *at(c->k_ck, j);
		*at(d->dk_row, j) = c->beta[r] * dx;
		*at(d->dq, j) = -c->scale * *at(d->e, (c->rows + r) * ld + i) * down;
		*at(d->dk_col, j) = *at(d->dkbar, j) * *at(c->er, j) * *at(c->suf, b * kp + i);
		*at(d->dg_last, i) += *at(c->kbar, j) * *at(d->dkbar, j);
	}
	return lane_sum(&sum);
}

static void
wy(const struct k3i_kda_chunk *c, const struct k3i_kda_chunk_grad *d)
{
	size_t ld = c->kp + c->vp;

	state_decay_bwd(c, d);
	for (size_t r = 0; r < c->rows; r++) {
		float dbeta = wy_row_keys(c, d, r), *dm = d->dm + r * K3I_CHUNK,
		      *dp = d->dp + r * K3I_CHUNK;
		k3i_vf sum = {0};

		for (size_t i = 0; i < c->vp; i += L) {
			k3i_vf *dy = at(d->dxy, r * ld + c->kp + i);

			sum += *dy * *at(c->v_cv, r * c->vp + i);
			*dy *= c->beta[r];
		}
		memset(dp + r + 1, 0, (c->rows - r - 1) * sizeof(*dp));
		memset(dm + r, 0, (c->rows - r) * sizeof(*dm));
		dbeta += lane_sum(&sum);
		sum = (k3i_vf){0};
		for (size_t j = 0; j < r; j += L) {
			sum -= *at(dm, j) * *at(c->m, r * K3I_CHUNK + j);
			*at(dm, j) *= -c->beta[r];
		}
		d->dbeta[r] = dbeta + lane_sum(&sum);
	}
}

static void
diagonal_bwd(const struct k3i_kda_chunk *c, const struct k3i_kda_chunk_grad *d, size_t b)
{
	size_t kp = c->kp, lo = b * K3I_SUB;

	for (size_t i = 0; i < kp; i += L)
		for (size_t r = lo; r < lo + K3I_SUB; r++) {
			const float *dp = d->dp + r * K3I_CHUNK, *dm = d->dm + r * K3I_CHUNK;
			k3i_vf l = *at(c->l, r * kp + i), q = *at(c->q, r * kp + i),
			       k = *at(c->k_ck, r * kp + i);
			k3i_vf dq = {0}, dk = {0};

			for (size_t j = lo; j <= r; j++) {
				k3i_vf w, x = l - *at(c->l, j * kp + i), kw;

				k3i_exp_neg(&w, &x);
				kw = w * *at(c->k_ck, j * kp + i);
				dq += dp[j] * kw;
				dk += dm[j] * kw;
				*at(d->dk_col, j * kp + i) += (dp[j] * q + dm[j] * k) * w;
			}
			*at(d->dq, r * kp + i) += dq;
			*at(d->dk_row, r * kp + i) += dk;
		}
}

static void
gate_sum(const struct k3i_kda_chunk *c, const struct k3i_kda_chunk_grad *d)
{
	for (size_t i = 0; i < c->kp; i += L) {
		k3i_vf sum = *at(d->dg_last, i);

		for (size_t r = c->rows; r-- > 0;) {
			size_t j = r * c->kp + i;
			k3i_vf k = *at(c->k_ck, j), row = *at(d->dk_row, j),
			       col = *at(d->dk_col, j);

			sum += *at(c->q, j) * *at(d->dq, j) + k * (row - col);
			*at(d->dg, j) = sum;
			*at(d->dk_row, j) = row + col;
		}
	}
}

static void
gate_bwd(const struct k3i_kda_chunk *c, const struct k3i_kda_chunk_grad *d)
{
	k3i_vf da = {0};

	for (size_t r = 0; r < c->n_rows; r++)
		for (size_t i = 0; i < c->kp; i += L) {
			size_t j = r * c->kp + i;
			k3i_vf x = *at(c->x, j) + *at(c->dt, i), y = c->exp_a * x, z, rest, df;

			sigmoid_lanes(&z, &rest, &y);
			df = *at(d->dg, j) * (c->lower_bound * c->exp_a) * (z * rest);
			*at(d->dg, j) = df;
			da += df * x;
			*at(d->dab, 1 + i) += df;
		}
	d->dab[0] += lane_sum(&da);
}

static void
panel_mul(float *b, size_t ldb, const float *x, const float *w, size_t rows, size_t n)
{
	for (size_t j = 0; j < n; j += PANEL)
		for (size_t r = 0; r < rows; r++)
			mul(b + j * ldb + r * PANEL, x + r * n + j, w + r * n + j, PANEL);
}

#define K3I_LANES_TABLE                                                                            \
	{                                                                                          \
		gate, decay, diagonal, inverse, mul, muladd, scale_all, mul_rows, scale_rows, wy,  \
			diagonal_bwd, gate_sum, gate_bwd, panel_rows, panel_columns,               \
			panel_product, panel_mul                                                   \
	}
