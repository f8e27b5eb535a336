/* The backward half of mla_attn_body.h.  Key blocks are outside: their gradients are summed in the
 * work buffer over the query blocks, those of the queries in place over the key blocks, both in
 * ascending order. */

struct backward {
	const struct k3_mla_attn_args *a;
	struct rows tile, keys, queries; /* keys: the block of the tile */
	size_t k0;			 /* its first row */
	size_t kqp, vp;			 /* widths in whole panels */
	float *k;			 /* [BWD_KEYS, kq] gathered */
	float *kt, *k_rows, *vt;	 /* panels of K^T [kq, keys], K [keys, kq], V^T [v, keys] */
	float *q_rows, *da_rows;  /* panels of a query block: Q [queries, kq], dA [queries, v] */
	float *p, *ds;		  /* [QUERIES, BWD_KEYS] */
	float *dk, *dv;		  /* [BWD_KEYS, kqp], [BWD_KEYS, vp] */
	struct span span[SLICES]; /* in the key tile */
};

/* Operands of one head, from query row 0. */
struct head {
	const float *q, *da, *lse, *delta;
	float *dq;
	size_t ldq, ldda, lddq, hg;
};

/* Takes key rows from .. from + n - 1 of the tile. */
static void
load_keys(struct backward *b, size_t from, const float *kv, size_t head, float *docs)
{
	size_t nope = b->a->nope, rope = b->a->rope, kq = nope + rope, kvw = nope + b->a->v,
	       ld = b->a->h * kvw + rope;
	const float *rows = kv + from * ld;

	b->k0 = from;
	b->keys = part(&b->tile, from, BWD_KEYS);
	b->keys.doc = padded_docs(docs, &b->tile, from, b->keys.n);
	gather_keys(b->k, rows, b->keys.n, head * kvw, nope, rope, ld);
	scored_columns(b->kt, kq, b->k, kq, b->keys.n, kq);
	panel_rows(b->k_rows, BWD_KEYS, b->k, kq, b->keys.n, kq, b->keys.doc);
	scored_columns(b->vt, b->a->v, rows + head * kvw + nope, ld, b->keys.n, b->a->v);
	memset(b->dk, 0, b->keys.n * b->kqp * sizeof(float));
	memset(b->dv, 0, b->keys.n * b->vp * sizeof(float));
}

/* The keys of slice s in the block at work. */
static struct span
block_span(const struct backward *b, size_t s)
{
	struct span span = in_block(b->span[s], b->k0, BWD_KEYS);

	return (struct span){span.from - b->k0, span.to - b->k0};
}

/* P and dS of slice s at the keys of its span, and its part of dq; the first part may overwrite. */
static void
slice_back(struct backward *b, const struct head *h, size_t q0, size_t s)
{
	struct span span = block_span(b, s);
	struct rows slice = part(&b->queries, q0 + s * SLICE, SLICE);
	size_t n = span.to - span.from, wide = (n + 15) / 16 * 16, row = q0 + s * SLICE,
	       kq = b->a->nope + b->a->rope, v = b->a->v;
	float *p = b->p + s * SLICE * BWD_KEYS + span.from,
	      *ds = b->ds + s * SLICE * BWD_KEYS + span.from;
	struct mask mask = {b->keys.doc + span.from, slice.doc, b->keys.row0 + span.from,
			    slice.row0};

	if (n == 0)
		return;
	panel_product(p, BWD_KEYS, 0, 1.0f, h->q + row * h->ldq, h->ldq, 1, b->kt + span.from * kq,
		      kq, slice.n, wide, kq);
	panel_product(ds, BWD_KEYS, 0, 1.0f, h->da + row * h->ldda, h->ldda, 1,
		      b->vt + span.from * v, v, slice.n, wide, v);
	gradient_slice(p, ds, BWD_KEYS, slice.n, wide,
		       all_seen(&b->keys, span, &slice) ? NULL : &mask, b->a->scale,
		       h->lse + row * h->hg, h->delta + row * h->hg, h->hg);
	size_t first = higher(b->span[s].from, b->k0) - b->k0; /* its panel may begin before it */
	panel_product(h->dq + row * h->lddq, h->lddq, !b->a->init_dq || b->span[s].from < b->k0,
		      1.0f, ds + (first - span.from), BWD_KEYS, 1, b->k_rows + first * PANEL,
		      BWD_KEYS, slice.n, kq, span.to - first);
}

/* Keys j .. j + n - 1 of the block against queries from .. to - 1. */
static void
run_back(struct backward *b, size_t j, size_t n, size_t from, size_t to)
{
	panel_product(b->dv + j * b->vp, b->vp, 1, 1.0f, b->p + from * BWD_KEYS + j, 1, BWD_KEYS,
		      b->da_rows + from * PANEL, QUERIES, n, b->vp, to - from);
	panel_product(b->dk + j * b->kqp, b->kqp, 1, 1.0f, b->ds + from * BWD_KEYS + j, 1, BWD_KEYS,
		      b->q_rows + from * PANEL, QUERIES, n, b->kqp, to - from);
}

/* dK and dV of the key block from a query block: 16 keys at a time against the runs of slices that
 * see any of them.  A slice between two that do need not: its scores were never formed. */
static void
keys_back(struct backward *b, size_t n_queries)
{
	for (size_t j = 0; j < b->keys.n; j += SLICE) {
		size_t n = lower(SLICE, b->keys.n - j), from = 0;

		for (size_t s = 0; s * SLICE < n_queries; s++) {
			size_t row = s * SLICE, end = lower(row + SLICE, n_queries);
			struct span span = block_span(b, s);

			if (span.from < j + n && span.to > j) {
				if (end == n_queries)
					run_back(b, j, n, from, end);
				continue;
			}
			if (from < row)
				run_back(b, j, n, from, row);
			from = end;
		}
	}
}

/* Zeros in the gradient of queries that see no key of the tile. */
static void
clear_blind(const struct backward *b, const struct head *h, size_t q0, size_t n_queries, size_t kq)
{
	for (size_t i = 0; i < n_queries; i++)
		if (b->span[i / SLICE].to == 0)
			memset(h->dq + (q0 + i) * h->lddq, 0, kq * sizeof(float));
}

static void
block_back(struct backward *b, const struct head *h)
{
	size_t at = 0, kq = b->a->nope + b->a->rope;

	for (size_t q0 = 0; q0 < b->queries.n; q0 += QUERIES) {
		struct rows block = part(&b->queries, q0, QUERIES);
		struct span all = key_spans(&b->tile, &block, b->span, &at);

		if (b->k0 == 0 && b->a->init_dq)
			clear_blind(b, h, q0, block.n, kq);
		if (all.from >= b->k0 + b->keys.n || all.to <= b->k0)
			continue;
		panel_rows(b->q_rows, QUERIES, h->q + q0 * h->ldq, h->ldq, block.n, kq, block.doc);
		panel_rows(b->da_rows, QUERIES, h->da + q0 * h->ldda, h->ldda, block.n, b->a->v,
			   block.doc);
		for (size_t s = 0; s * SLICE < block.n; s++)
			slice_back(b, h, q0, s);
		keys_back(b, block.n);
	}
}

/* dst = (add ? dst : 0) + src */
static void
add_row(float *dst, const float *src, size_t n, int add)
{
	if (!add) {
		memcpy(dst, src, n * sizeof(*dst));
		return;
	}
	for (size_t c = 0; c < n; c++)
		dst[c] += src[c];
}

/* The gradients of a key block go to the rows of dkv, a head's columns and the shared part. */
static void
store_keys(const struct backward *b, float *dkv, size_t head, size_t ld)
{
	size_t nope = b->a->nope, rope = b->a->rope, v = b->a->v;
	int add = !b->a->init_dkv;

	for (size_t j = 0; j < b->keys.n; j++) {
		const float *dk = b->dk + j * b->kqp;
		float *row = dkv + (b->k0 + j) * ld, *to = row + head * (nope + v);

		add_row(to, dk, nope, add);
		add_row(to + nope, b->dv + j * b->vp, v, add);
		add_row(row + ld - rope, dk + nope, rope, add || head > 0);
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
	size_t kq = a->nope + a->rope, hg = a->h1 - a->h0, ldd = hg * (a->nope + a->v) + a->rope;
	struct backward b = {.a = a, .tile = rows_of(buf[8]), .queries = rows_of(buf[7])};

	take_all(&b, &work);
	for (size_t h = 0; h < hg; h++) {
		struct head head = {q + (a->h0 + h) * kq,
				    da + h * a->v,
				    lse + h,
				    delta + h,
				    dq + h * kq,
				    a->h * kq,
				    hg * a->v,
				    hg * kq,
				    hg};

		for (size_t k0 = 0; k0 < b.tile.n; k0 += BWD_KEYS) {
			load_keys(&b, k0, kv, a->h0 + h, work);
			block_back(&b, &head);
			store_keys(&b, dkv, h, ldd);
		}
	}
}
