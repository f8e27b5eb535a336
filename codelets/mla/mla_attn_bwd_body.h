/* The backward half of mla_attn_body.h.  Key blocks are outside: their gradients are summed in the
 * work buffer over the query blocks, those of the queries in place over the key blocks, both in
 * ascending order. */

struct backward {
	const struct k3_mla_attn_args *a;
	struct rows keys, queries; /* keys: the block */
	size_t kqp, vp;		   /* widths in whole panels */
	float *k;		   /* [BWD_KEYS, kq] gathered */
	float *kt, *k_rows, *vt;   /* panels of K^T [kq, keys], K [keys, kq], V^T [v, keys] */
	float *q_rows, *da_rows;   /* panels of a query block: Q [queries, kq], dA [queries, v] */
	float *p, *ds;		   /* [QUERIES, BWD_KEYS] */
	float *dk, *dv;		   /* [BWD_KEYS, kqp], [BWD_KEYS, vp] */
	struct span span[SLICES];  /* in the key block */
};

/* Operands of one head, from query row 0. */
struct head {
	const float *q, *da, *lse, *delta;
	float *dq;
	size_t ldq, ldda, lddq, hg;
};

/* Takes key rows from .. from + n - 1 of the tile. */
static void
load_keys(struct backward *b, const struct rows *tile, size_t from, const float *kv, size_t head,
	  float *docs)
{
	size_t nope = b->a->nope, rope = b->a->rope, kq = nope + rope, kvw = nope + b->a->v,
	       ld = b->a->h * kvw + rope;
	const float *rows = kv + from * ld;

	b->keys = part(tile, from, BWD_KEYS);
	b->keys.doc = padded_docs(docs, tile, from, b->keys.n);
	gather_keys(b->k, rows, b->keys.n, head * kvw, nope, rope, ld);
	panel_columns(b->kt, kq, b->k, kq, b->keys.n, kq);
	panel_rows(b->k_rows, BWD_KEYS, b->k, kq, b->keys.n, kq, b->keys.doc);
	panel_columns(b->vt, b->a->v, rows + head * kvw + nope, ld, b->keys.n, b->a->v);
	memset(b->dk, 0, b->keys.n * b->kqp * sizeof(float));
	memset(b->dv, 0, b->keys.n * b->vp * sizeof(float));
}

/* P and dS of slice s, and its part of dq; zeros at the keys outside its span. */
static void
slice_back(struct backward *b, const struct head *h, size_t q0, size_t s)
{
	struct span span = in_block(b->span[s], 0, BWD_KEYS);
	struct rows slice = part(&b->queries, q0 + s * SLICE, SLICE);
	size_t n = span.to - span.from, row = q0 + s * SLICE, kq = b->a->nope + b->a->rope,
	       v = b->a->v;
	float *p = b->p + s * SLICE * BWD_KEYS, *ds = b->ds + s * SLICE * BWD_KEYS;
	struct mask mask = {b->keys.doc + span.from, slice.doc, b->keys.row0 + span.from,
			    slice.row0};

	if (n < BWD_KEYS) {
		memset(p, 0, slice.n * BWD_KEYS * sizeof(*p));
		memset(ds, 0, slice.n * BWD_KEYS * sizeof(*ds));
	}
	if (n == 0)
		return;
	p += span.from;
	ds += span.from;
	panel_product(p, BWD_KEYS, 0, 1.0f, h->q + row * h->ldq, h->ldq, 1, b->kt + span.from * kq,
		      kq, slice.n, panel_pad(n), kq);
	panel_product(ds, BWD_KEYS, 0, 1.0f, h->da + row * h->ldda, h->ldda, 1,
		      b->vt + span.from * v, v, slice.n, panel_pad(n), v);
	gradient_slice(p, ds, BWD_KEYS, slice.n, panel_pad(n),
		       all_seen(&b->keys, span, &slice) && n % PANEL == 0 ? NULL : &mask,
		       b->a->scale, h->lse + row * h->hg, h->delta + row * h->hg, h->hg);
	panel_product(h->dq + row * h->lddq, h->lddq, 1, 1.0f, ds, BWD_KEYS, 1,
		      b->k_rows + span.from * PANEL, BWD_KEYS, slice.n, kq, n);
}

/* dK and dV of the key block from a query block: 16 keys at a time against the queries of the slices
 * that see any of them. */
static void
keys_back(struct backward *b, size_t n_queries)
{
	for (size_t j = 0; j < b->keys.n; j += SLICE) {
		size_t n = lower(SLICE, b->keys.n - j), from = n_queries, to = 0;

		for (size_t s = 0; s * SLICE < n_queries; s++)
			if (b->span[s].from < j + n && b->span[s].to > j) {
				from = lower(from, s * SLICE);
				to = lower((s + 1) * SLICE, n_queries);
			}
		if (from >= to)
			continue;
		panel_product(b->dv + j * b->vp, b->vp, 1, 1.0f, b->p + from * BWD_KEYS + j, 1,
			      BWD_KEYS, b->da_rows + from * PANEL, QUERIES, n, b->vp, to - from);
		panel_product(b->dk + j * b->kqp, b->kqp, 1, 1.0f, b->ds + from * BWD_KEYS + j, 1,
			      BWD_KEYS, b->q_rows + from * PANEL, QUERIES, n, b->kqp, to - from);
	}
}

static void
block_back(struct backward *b, const struct head *h)
{
	size_t at = 0, kq = b->a->nope + b->a->rope;

	for (size_t q0 = 0; q0 < b->queries.n; q0 += QUERIES) {
		struct rows block = part(&b->queries, q0, QUERIES);
		struct span all = key_spans(&b->keys, &block, b->span, &at);

		if (all.from >= all.to)
			continue;
		panel_rows(b->q_rows, QUERIES, h->q + q0 * h->ldq, h->ldq, block.n, kq, block.doc);
		panel_rows(b->da_rows, QUERIES, h->da + q0 * h->ldda, h->ldda, block.n, b->a->v,
			   block.doc);
		for (size_t s = 0; s * SLICE < block.n; s++)
			slice_back(b, h, q0, s);
		keys_back(b, block.n);
	}
}

/* Adds the gradients of a key block to the rows of dkv, a head's columns and the shared part. */
static void
store_keys(const struct backward *b, float *dkv, size_t head_col, size_t ld)
{
	size_t nope = b->a->nope, rope = b->a->rope, v = b->a->v;

	for (size_t j = 0; j < b->keys.n; j++) {
		const float *dk = b->dk + j * b->kqp, *dv = b->dv + j * b->vp;
		float *to = dkv + j * ld + head_col, *shared = dkv + (j + 1) * ld - rope;

		for (size_t c = 0; c < nope; c++)
			to[c] += dk[c];
		for (size_t c = 0; c < v; c++)
			to[nope + c] += dv[c];
		for (size_t c = 0; c < rope; c++)
			shared[c] += dk[nope + c];
	}
}

static void
take_all(struct backward *b, float **work)
{
	size_t kq = b->a->nope + b->a->rope, v = b->a->v;

	b->kqp = panel_pad(kq);
	b->vp = panel_pad(v);
	b->k = take(work, BWD_KEYS * kq);
	b->kt = take(work, BWD_KEYS * kq);
	b->k_rows = take(work, BWD_KEYS * b->kqp);
	b->vt = take(work, BWD_KEYS * v);
	b->q_rows = take(work, QUERIES * b->kqp);
	b->da_rows = take(work, QUERIES * b->vp);
	b->p = take(work, QUERIES * BWD_KEYS);
	b->ds = take(work, QUERIES * BWD_KEYS);
	b->dk = take(work, BWD_KEYS * b->kqp);
	b->dv = take(work, BWD_KEYS * b->vp);
}

static void
attn_bwd(void *const *buf, const struct k3_mla_attn_args *a)
{
	float *dq = buf[0], *dkv = buf[1], *work = aligned(buf[9]);
	const float *q = buf[2], *kv = buf[3], *da = buf[4], *lse = buf[5], *delta = buf[6];
	struct rows tile = rows_of(buf[8]);
	size_t kq = a->nope + a->rope, hg = a->h1 - a->h0, kvw = a->nope + a->v,
	       ldd = hg * kvw + a->rope;
	struct backward b = {.a = a, .queries = rows_of(buf[7])};

	take_all(&b, &work);
	if (a->init_dq)
		memset(dq, 0, a->t * hg * kq * sizeof(*dq));
	if (a->init_dkv)
		memset(dkv, 0, tile.n * ldd * sizeof(*dkv));
	for (size_t h = 0; h < hg; h++) {
		struct head head = {q + (a->h0 + h) * kq, da + h * a->v, lse + h, delta + h,
				    dq + h * kq,	  a->h * kq,	 hg * a->v, hg * kq, hg};

		for (size_t k0 = 0; k0 < tile.n; k0 += BWD_KEYS) {
			load_keys(&b, &tile, k0, kv, a->h0 + h, work);
			block_back(&b, &head);
			store_keys(&b, dkv + k0 * ldd, h * kvw, ldd);
		}
	}
}
