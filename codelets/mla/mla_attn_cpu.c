/* Document-causal attention of one query tile against key tiles (model.md 4): blocks of 64 queries
 * against the keys that they can see, scores by sgemm, one pass of softmax per key tile, merged by
 * (normalised output, log-sum-exp). The trap: a query without any key (padding, or only keys of
 * other documents in this range) must not divide by zero: its weight is exp(-inf) and it is
 * skipped. */
#include <cblas.h>
#include <math.h>
#include <string.h>

#include "../../common/op/mla.h"

typedef blasint bint;

enum { BLOCK = K3_MLA_QUERY_BLOCK };

/* A key tile as one head sees it. */
struct keys {
	const int32_t *doc;
	size_t rows, row0;
	const float *k, *v; /* [rows, kq] copied together, [rows] with stride ldv */
	size_t ldv;
};

/* The visible key rows of a query block: a contiguous range, since documents are; holes inside are
 * masked. */
static void
key_range(const struct keys *keys, const int32_t *qdoc, size_t q0, size_t nq, size_t qrow0,
	  size_t *from, size_t *to)
{
	int32_t lo = 0, hi = 0;
	size_t last = qrow0 + q0 + nq; /* first row that none of the block may see */

	for (size_t i = 0; i < nq; i++) {
		if (!qdoc[q0 + i])
			continue;
		if (!lo)
			lo = qdoc[q0 + i];
		hi = qdoc[q0 + i];
	}
	*from = *to = 0;
	if (!lo)
		return;
	size_t most = last > keys->row0 ? last - keys->row0 : 0;
	if (most > keys->rows)
		most = keys->rows;
	while (*from < most && (keys->doc[*from] < lo || keys->doc[*from] > hi))
		++*from;
	*to = most;
	while (*to > *from && (keys->doc[*to - 1] < lo || keys->doc[*to - 1] > hi))
		--*to;
}

static int
visible(const struct keys *keys, size_t j, int32_t doc, size_t row)
{
	return keys->doc[j] == doc && doc != 0 && keys->row0 + j <= row;
}

/* Key rows of one head: nope part and the shared part side by side. */
static void
gather_keys(float *out, const float *kv, size_t rows, size_t head_col, size_t nope, size_t rope,
	    size_t ld)
{
	for (size_t j = 0; j < rows; j++) {
		memcpy(out + j * (nope + rope), kv + j * ld + head_col, nope * sizeof(float));
		memcpy(out + j * (nope + rope) + nope, kv + (j + 1) * ld - rope,
		       rope * sizeof(float));
	}
}

static size_t
lower(size_t x, size_t y)
{
	return x < y ? x : y;
}

/* Softmax of a block of scores in place; returns through m and l the maximum and the sum of each
 * row. */
static void
softmax_rows(float *s, size_t nq, size_t from, size_t to, const struct keys *keys,
	     const int32_t *qdoc, size_t qrow, float scale, float *m, double *l)
{
	size_t n = to - from;

	for (size_t i = 0; i < nq; i++) {
		float *row = s + i * n, most = -INFINITY;
		double sum = 0;
		for (size_t j = 0; j < n; j++) {
			row[j] = visible(keys, from + j, qdoc[i], qrow + i) ? row[j] * scale
									    : -INFINITY;
			most = row[j] > most ? row[j] : most;
		}
		for (size_t j = 0; j < n; j++) {
			row[j] = row[j] == -INFINITY ? 0.0f : expf(row[j] - most);
			sum += (double)row[j];
		}
		m[i] = most;
		l[i] = sum;
	}
}

/* (o, lse) of a row with a further range whose unnormalised output is acc, maximum m, sum l. */
static void
merge_row(float *o, float *lse, const float *acc, float m, double l, size_t v)
{
	if (l == 0) /* no visible key; a NaN must go on, so that it is seen in the loss */
		return;
	double fresh = (double)m + log(l);
	if (*lse == -INFINITY) {
		for (size_t c = 0; c < v; c++)
			o[c] = acc[c] / (float)l;
		*lse = (float)fresh;
		return;
	}
	double old = (double)*lse, top = old > fresh ? old : fresh;
	double sum = exp(old - top) + exp(fresh - top), w_old = exp(old - top) / sum,
	       w_new = exp(fresh - top) / sum / l;
	for (size_t c = 0; c < v; c++)
		o[c] = (float)(w_old * (double)o[c] + w_new * (double)acc[c]);
	*lse = (float)(top + log(sum));
}

static void
attend(const struct k3_mla_attn_args *a, const struct keys *keys, const float *q,
       const int32_t *qlayout, float *o, float *lse, size_t head, float *work)
{
	size_t kq = a->nope + a->rope, hg = a->h1 - a->h0, ldq = a->h * kq, ldo = hg * a->v;
	const int32_t *qdoc = k3_tile_doc(qlayout);
	size_t qrow0 = (size_t)qlayout[K3_TL_ROW0];
	float *s = work, *acc = s + BLOCK * a->tk_max;
	float m[BLOCK];
	double l[BLOCK];

	for (size_t q0 = 0; q0 < a->t; q0 += BLOCK) {
		size_t nq = lower(BLOCK, a->t - q0), from, to;
		key_range(keys, qdoc, q0, nq, qrow0, &from, &to);
		if (from >= to)
			continue;
		size_t n = to - from;
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (bint)nq, (bint)n, (bint)kq,
			    1.0f, q + q0 * ldq + (a->h0 + head) * kq, (bint)ldq,
			    keys->k + from * kq, (bint)kq, 0.0f, s, (bint)n);
		softmax_rows(s, nq, from, to, keys, qdoc + q0, qrow0 + q0, a->scale, m, l);
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (bint)nq, (bint)a->v,
			    (bint)n, 1.0f, s, (bint)n, keys->v + from * keys->ldv, (bint)keys->ldv,
			    0.0f, acc, (bint)a->v);
		for (size_t i = 0; i < nq; i++)
			merge_row(o + (q0 + i) * ldo + head * a->v, lse + (q0 + i) * hg + head,
				  acc + i * a->v, m[i], l[i], a->v);
	}
}

void
k3_mla_attn_fwd_cpu_f32(void *const *buf, const struct k3_mla_attn_args *a)
{
	float *o = buf[0], *lse = buf[1], *work = buf[4];
	const float *q = buf[2];
	const int32_t *qlayout = buf[3];
	size_t kq = a->nope + a->rope, hg = a->h1 - a->h0, kvw = a->nope + a->v,
	       ld = a->h * kvw + a->rope;

	if (a->first) {
		memset(o, 0, a->t * hg * a->v * sizeof(*o));
		for (size_t i = 0; i < a->t * hg; i++)
			lse[i] = -INFINITY;
	}
	for (uint32_t n = 0; n < a->kv.n; n++) {
		const float *kv = buf[a->kv.first + n];
		const int32_t *klayout = buf[a->klayout.first + n];
		size_t rows = (size_t)klayout[K3_TL_ROWS];
		for (size_t h = 0; h < hg; h++) {
			gather_keys(work, kv, rows, (a->h0 + h) * kvw, a->nope, a->rope, ld);
			struct keys keys = {k3_tile_doc(klayout),
					    rows,
					    (size_t)klayout[K3_TL_ROW0],
					    work,
					    kv + (a->h0 + h) * kvw + a->nope,
					    ld};
			attend(a, &keys, q, qlayout, o, lse, h, work + a->tk_max * kq);
		}
	}
}

/* Buffers of the backward pass of one head. */
struct back {
	float *dq, *dk, *dv; /* dk [rows, kq] gathered, dv [rows] stride ldv */
	size_t ldv;
	const float *da, *lse, *delta;
	float *p, *dp; /* [BLOCK, range] */
};

/* P and dS of a block in place: p -> P, dp -> dS. */
static void
score_gradients(struct back *b, size_t nq, size_t from, size_t to, const struct keys *keys,
		const int32_t *qdoc, size_t qrow, float scale, const float *lse, const float *delta,
		size_t hg)
{
	size_t n = to - from;

	for (size_t i = 0; i < nq; i++) {
		float *p = b->p + i * n, *dp = b->dp + i * n, l = lse[i * hg], d = delta[i * hg];
		for (size_t j = 0; j < n; j++) {
			int see = l != -INFINITY && visible(keys, from + j, qdoc[i], qrow + i);
			p[j] = see ? expf(scale * p[j] - l) : 0.0f;
			dp[j] = see ? p[j] * (dp[j] - d) * scale : 0.0f;
		}
	}
}

static void
attend_back(const struct k3_mla_attn_args *a, const struct keys *keys, const float *q,
	    const int32_t *qlayout, struct back *b, size_t head)
{
	size_t kq = a->nope + a->rope, hg = a->h1 - a->h0, ldq = a->h * kq, ldo = hg * a->v,
	       lddq = hg * kq;
	const int32_t *qdoc = k3_tile_doc(qlayout);
	size_t qrow0 = (size_t)qlayout[K3_TL_ROW0];

	for (size_t q0 = 0; q0 < a->t; q0 += BLOCK) {
		size_t nq = lower(BLOCK, a->t - q0), from, to;
		key_range(keys, qdoc, q0, nq, qrow0, &from, &to);
		if (from >= to)
			continue;
		bint n = (bint)(to - from), m = (bint)nq;
		const float *qb = q + q0 * ldq + (a->h0 + head) * kq,
			    *dab = b->da + q0 * ldo + head * a->v;
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, (bint)kq, 1.0f, qb,
			    (bint)ldq, keys->k + from * kq, (bint)kq, 0.0f, b->p, n);
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, (bint)a->v, 1.0f, dab,
			    (bint)ldo, keys->v + from * keys->ldv, (bint)keys->ldv, 0.0f, b->dp, n);
		score_gradients(b, nq, from, to, keys, qdoc + q0, qrow0 + q0, a->scale,
				b->lse + q0 * hg + head, b->delta + q0 * hg + head, hg);
		cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, (bint)a->v, m, 1.0f, b->p,
			    n, dab, (bint)ldo, 1.0f, b->dv + from * b->ldv, (bint)b->ldv);
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, (bint)kq, n, 1.0f, b->dp,
			    n, keys->k + from * kq, (bint)kq, 1.0f, b->dq + q0 * lddq + head * kq,
			    (bint)lddq);
		cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, (bint)kq, m, 1.0f, b->dp, n,
			    qb, (bint)ldq, 1.0f, b->dk + from * kq, (bint)kq);
	}
}

/* Adds the gathered key gradient of one head to the rows of dkv. */
static void
scatter_keys(float *dkv, const float *dk, size_t rows, size_t head_col, size_t nope, size_t rope,
	     size_t ld)
{
	for (size_t j = 0; j < rows; j++) {
		const float *from = dk + j * (nope + rope);
		float *to = dkv + j * ld + head_col, *shared = dkv + (j + 1) * ld - rope;
		for (size_t c = 0; c < nope; c++)
			to[c] += from[c];
		for (size_t c = 0; c < rope; c++)
			shared[c] += from[nope + c];
	}
}

void
k3_mla_attn_bwd_cpu_f32(void *const *buf, const struct k3_mla_attn_args *a)
{
	float *dq = buf[0], *dkv = buf[1], *work = buf[9];
	const float *q = buf[2], *kv = buf[3];
	const int32_t *qlayout = buf[7], *klayout = buf[8];
	size_t kq = a->nope + a->rope, hg = a->h1 - a->h0, kvw = a->nope + a->v,
	       ld = a->h * kvw + a->rope;
	size_t rows = (size_t)klayout[K3_TL_ROWS], ldd = hg * kvw + a->rope;
	float *keys_at = work, *dk = keys_at + a->tk_max * kq, *p = dk + a->tk_max * kq;

	if (a->init_dq)
		memset(dq, 0, a->t * hg * kq * sizeof(*dq));
	if (a->init_dkv)
		memset(dkv, 0, rows * ldd * sizeof(*dkv));
	for (size_t h = 0; h < hg; h++) {
		gather_keys(keys_at, kv, rows, (a->h0 + h) * kvw, a->nope, a->rope, ld);
		memset(dk, 0, rows * kq * sizeof(*dk));
		struct keys keys = {k3_tile_doc(klayout),
				    rows,
				    (size_t)klayout[K3_TL_ROW0],
				    keys_at,
				    kv + (a->h0 + h) * kvw + a->nope,
				    ld};
		struct back b = {dq,	 dk, dkv + h * kvw + a->nope, ldd, buf[4], buf[5],
				 buf[6], p,  p + BLOCK * a->tk_max};
		attend_back(a, &keys, q, qlayout, &b, h);
		scatter_keys(dkv, dk, rows, h * kvw, a->nope, a->rope, ldd);
	}
}
