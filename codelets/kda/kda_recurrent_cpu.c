/* KDA token by token (model.md 3.3): the text to read first, and the oracle of the chunk kernels.
 *
 * The state [k, v] decays by channel, then one outer product corrects what it predicts for the
 * token's key. The backward needs every state again.  It keeps one per 64 tokens and replays those
 * 64 from it; undoing a step by division instead would fail at once, as a decay of exp(-5) loses
 * the old state's digits.
 */
#include "kda_tile.h"

enum { SPAN = 64 };

struct token {
	const float *q, *k, *v;
	const float *f; /* gate input, or g in raw mode */
	float beta, dbeta_dbr;
};

static struct token
token_at(const struct k3i_kda_head *x, size_t t, int raw)
{
	struct token tok = {x->q + t * x->ld_qkv, x->k + t * x->ld_qkv, x->v + t * x->ld_qkv,
			    x->f + t * x->ld_f,	  x->br[t * x->ld_br],	1.0f};

	if (!raw) {
		float rest, beta = k3i_sigmoid(tok.beta, &rest);
		tok.beta = beta;
		tok.dbeta_dbr = beta * rest;
	}
	return tok;
}

/* g of channel c, and the derivative of g with respect to the gate input. */
static float
gate_at(const struct token *tok, const struct k3i_kda_head *x, const struct k3_kda_chunk_args *a,
	size_t c, float *slope)
{
	float rest, z;

	*slope = 1.0f;
	if (a->raw)
		return tok->f[c];
	z = k3i_sigmoid(x->exp_a * (tok->f[c] + x->dt_k[c]), &rest);
	*slope = a->lower_bound * x->exp_a * z * rest;
	return a->lower_bound * z;
}

/* s [k, v]: the state before the token becomes the one after it; e [v] is the prediction error. */
static void
step(float *s, float *e, const struct token *tok, const struct k3i_kda_head *x,
     const struct k3_kda_chunk_args *a)
{
	size_t kd = a->k, vd = a->v;
	float slope;

	memcpy(e, tok->v, vd * sizeof(*e));
	for (size_t c = 0; c < kd; c++) {
		float decay = expf(gate_at(tok, x, a, c, &slope));

		for (size_t j = 0; j < vd; j++) {
			s[c * vd + j] *= decay;
			e[j] -= s[c * vd + j] * tok->k[c];
		}
	}
	for (size_t c = 0; c < kd; c++)
		for (size_t j = 0; j < vd; j++)
			s[c * vd + j] += tok->beta * tok->k[c] * e[j];
}

static void
read_state(float *o, const float *s, const struct token *tok, const struct k3_kda_chunk_args *a)
{
	memset(o, 0, a->v * sizeof(*o));
	for (size_t c = 0; c < a->k; c++)
		for (size_t j = 0; j < a->v; j++)
			o[j] += a->scale * tok->q[c] * s[c * a->v + j];
}

static void
forward_head(void *const *buf, const struct k3_kda_chunk_args *a, size_t i)
{
	const int32_t *layout = buf[4], *order = k3_tile_order(layout),
		      *seg = k3_tile_segments(layout);
	size_t kv = a->k * a->v, hg = a->h1 - a->h0, segments = (size_t)layout[K3_TL_SEGMENTS];
	struct k3i_kda_head x = k3i_kda_head(buf, 1, a->h0 + i, a);
	float *s = buf[5], *e = s + kv, *o = (float *)buf[0] + i * a->v;

	k3i_copy_or_zero(s, k3i_kda_state(buf, &a->s_in, i, a), kv);
	for (size_t n = 0; n < segments; n++) {
		if (n > 0)
			memset(s, 0, kv * sizeof(*s));
		for (int32_t r = seg[n]; r < seg[n + 1]; r++) {
			size_t t = (size_t)order[r];
			struct token tok = token_at(&x, t, (int)a->raw);

			step(s, e, &tok, &x, a);
			read_state(o + t * hg * a->v, s, &tok, a);
		}
	}
	if (a->s_out.n)
		memcpy(k3i_kda_state(buf, &a->s_out, i, a), s, kv * sizeof(*s));
}

void
k3_kda_recurrent_fwd_cpu_f32(void *const *buf, const struct k3_kda_chunk_args *a)
{
	k3i_zero_holes(buf[0], (a->h1 - a->h0) * a->v, buf[4]);
	for (size_t i = 0; i < a->h1 - a->h0; i++)
		forward_head(buf, a, i);
}

/* Where the gradients of one head lie, and its work space. */
struct backward {
	struct k3i_kda_head x;
	float *dq, *dk, *dv, *df, *dbr, *da, *db_k; /* row 0 */
	size_t ld_dqkv, ld_df, ld_dbr;
	float *ds, *replay, *keep, *e, *de;
};

/* One channel: gate gradients, ds [v] from the state after the token to the one before, the decay's
 * part of dk. */
static void
channel_bwd(struct backward *w, const struct token *tok, const struct k3_kda_chunk_args *a,
	    size_t t, size_t c, const float *s_old, float *ds, float *dk)
{
	float slope, decay = expf(gate_at(tok, &w->x, a, c, &slope)), dg = 0, df;

	for (size_t j = 0; j < a->v; j++) {
		float sd = decay * s_old[j], dsd = ds[j] - tok->k[c] * w->de[j];

		*dk -= sd * w->de[j];
		dg += dsd * sd;
		ds[j] = decay * dsd;
	}
	df = dg * slope;
	w->df[t * w->ld_df + c] = df;
	if (!a->raw) {
		*w->da += df * (tok->f[c] + w->x.dt_k[c]);
		w->db_k[c] += df;
	}
}

/* Undoes one token: ds is the gradient of s_new on entry and of s_old on return. */
static void
undo(struct backward *w, const struct k3_kda_chunk_args *a, size_t t, const float *do_v,
     const float *s_old, const float *s_new)
{
	struct token tok = token_at(&w->x, t, (int)a->raw);
	size_t kd = a->k, vd = a->v;
	float *dq = w->dq + t * w->ld_dqkv, *dk = w->dk + t * w->ld_dqkv,
	      *dv = w->dv + t * w->ld_dqkv, dbeta = 0, slope;

	memcpy(w->e, tok.v, vd * sizeof(float));
	memset(w->de, 0, vd * sizeof(float));
	for (size_t c = 0; c < kd; c++) {
		float decay = expf(gate_at(&tok, &w->x, a, c, &slope));

		dq[c] = 0;
		for (size_t j = 0; j < vd; j++) {
			dq[c] += a->scale * s_new[c * vd + j] * do_v[j];
			w->ds[c * vd + j] += a->scale * tok.q[c] * do_v[j];
			w->de[j] += w->ds[c * vd + j] * tok.k[c];
			w->e[j] -= decay * s_old[c * vd + j] * tok.k[c];
		}
	}
	for (size_t j = 0; j < vd; j++) {
		dbeta += w->de[j] * w->e[j];
		w->de[j] *= tok.beta;
		dv[j] = w->de[j];
	}
	w->dbr[t * w->ld_dbr] = dbeta * tok.dbeta_dbr;
	for (size_t c = 0; c < kd; c++) {
		dk[c] = 0;
		for (size_t j = 0; j < vd; j++)
			dk[c] += w->ds[c * vd + j] * tok.beta * w->e[j];
		channel_bwd(w, &tok, a, t, c, s_old + c * vd, w->ds + c * vd, dk + c);
	}
}

static void
segment_bwd(struct backward *w, const struct k3_kda_chunk_args *a, const float *do_tv,
	    const int32_t *order, size_t n, const float *s_in)
{
	size_t kv = a->k * a->v, ld_do = (a->h1 - a->h0) * a->v, spans = (n + SPAN - 1) / SPAN;

	if (n == 0)
		return;
	k3i_copy_or_zero(w->keep, s_in, kv);
	for (size_t r = 0; r < (spans - 1) * SPAN; r++) {
		struct token tok = token_at(&w->x, (size_t)order[r], (int)a->raw);

		if (r % SPAN == 0)
			memcpy(w->keep + (r / SPAN + 1) * kv, w->keep + r / SPAN * kv,
			       kv * sizeof(float));
		step(w->keep + (r / SPAN + 1) * kv, w->e, &tok, &w->x, a);
	}
	for (size_t p = spans; p-- > 0;) {
		size_t lo = p * SPAN, hi = lo + SPAN < n ? lo + SPAN : n;

		memcpy(w->replay, w->keep + p * kv, kv * sizeof(float));
		for (size_t r = lo; r < hi; r++) {
			float *s = w->replay + (r - lo + 1) * kv;
			struct token tok = token_at(&w->x, (size_t)order[r], (int)a->raw);

			memcpy(s, s - kv, kv * sizeof(float));
			step(s, w->e, &tok, &w->x, a);
		}
		for (size_t r = hi; r-- > lo;)
			undo(w, a, (size_t)order[r], do_tv + (size_t)order[r] * ld_do,
			     w->replay + (r - lo) * kv, w->replay + (r - lo + 1) * kv);
	}
}

static struct backward
backward_at(void *const *buf, const struct k3_kda_chunk_args *a, size_t i)
{
	size_t hg = a->h1 - a->h0, kv = a->k * a->v,
	       t = (size_t)((const int32_t *)buf[8])[K3_TL_ROWS];
	float *dqkv = buf[0], *dab = buf[3], *work = buf[9];
	struct backward w = {.x = k3i_kda_head(buf, 5, a->h0 + i, a),
			     .dq = dqkv + i * a->k,
			     .dk = dqkv + (hg + i) * a->k,
			     .dv = dqkv + 2 * hg * a->k + i * a->v,
			     .df = (float *)buf[1] + i * a->k,
			     .dbr = (float *)buf[2] + i,
			     .da = dab + i,
			     .db_k = dab + hg + i * a->k,
			     .ld_dqkv = hg * (2 * a->k + a->v),
			     .ld_df = hg * a->k,
			     .ld_dbr = hg};

	w.ds = work;
	w.replay = w.ds + kv;
	w.keep = w.replay + (SPAN + 1) * kv;
	w.e = w.keep + (t + SPAN - 1) / SPAN * kv;
	w.de = w.e + a->v;
	return w;
}

void
k3_kda_recurrent_bwd_cpu_f32(void *const *buf, const struct k3_kda_chunk_args *a)
{
	const int32_t *layout = buf[8], *order = k3_tile_order(layout),
		      *seg = k3_tile_segments(layout);
	size_t hg = a->h1 - a->h0, kv = a->k * a->v, segments = (size_t)layout[K3_TL_SEGMENTS];

	k3i_zero_holes(buf[0], hg * (2 * a->k + a->v), layout);
	k3i_zero_holes(buf[1], hg * a->k, layout);
	k3i_zero_holes(buf[2], hg, layout);
	memset(buf[3], 0, (hg + hg * a->k) * sizeof(float));
	for (size_t i = 0; i < hg; i++) {
		struct backward w = backward_at(buf, a, i);

		k3i_copy_or_zero(w.ds, k3i_kda_state(buf, &a->ds_out, i, a), kv);
		for (size_t s = segments; s-- > 0;) {
			if (s + 1 < segments)
				memset(w.ds, 0, kv * sizeof(float));
			segment_bwd(&w, a, (const float *)buf[4] + i * a->v, order + seg[s],
				    (size_t)(seg[s + 1] - seg[s]),
				    s == 0 ? k3i_kda_state(buf, &a->s_in, i, a) : NULL);
		}
		if (a->ds_in.n)
			memcpy(k3i_kda_state(buf, &a->ds_in, i, a), w.ds, kv * sizeof(float));
	}
}
