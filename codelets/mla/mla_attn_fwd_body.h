/* The forward half of mla_attn_body.h. */

/* One head at work: a key tile packed, a query block's state. */
struct forward {
	const struct k3_mla_attn_args *a;
	struct rows keys, queries;
	size_t tkp, vp;	    /* keys of the tile and width of a value in whole panels */
	float *kt, *v_rows; /* panels of K^T [kq, tkp] and of V [tkp, v] */
	float *s;	    /* [SLICE, FWD_KEYS] */
	float *acc;	    /* [QUERIES, vp] */
	struct span span[SLICES];
	struct running run[SLICES];
};

static void
pack_keys(struct forward *f, const float *kv, size_t head)
{
	size_t nope = f->a->nope, rope = f->a->rope, kvw = nope + f->a->v,
	       ld = f->a->h * kvw + rope, n = f->keys.n;
	const float *k = kv + head * kvw;

	scored_columns(f->kt, nope + rope, k, ld, n, nope);
	scored_columns(f->kt + nope * PANEL, nope + rope, kv + ld - rope, ld, n, rope);
	panel_rows(f->v_rows, f->tkp, k + nope, ld, n, f->a->v, f->keys.doc);
}

/* Slice s of the query block (rows from q0 on) against its keys in the block at k0. */
static void
meet(struct forward *f, const float *q, size_t ldq, size_t q0, size_t s, size_t k0)
{
	struct span span = in_block(f->span[s], k0, FWD_KEYS);
	struct rows slice = part(&f->queries, q0 + s * SLICE, SLICE);
	size_t n = span.to - span.from, wide = (n + 15) / 16 * 16, kq = f->a->nope + f->a->rope,
	       from;
	int go_on;
	float *acc = f->acc + s * SLICE * f->vp;
	struct mask mask = {f->keys.doc + span.from, slice.doc, f->keys.row0 + span.from,
			    slice.row0};

	if (n == 0)
		return;
	panel_product(f->s, FWD_KEYS, 0, 1.0f, q + (q0 + s * SLICE) * ldq, ldq, 1,
		      f->kt + span.from * kq, kq, slice.n, wide, kq);
	from = higher(f->span[s].from, span.from); /* its panel may begin before it */
	go_on = f->span[s].from < k0;		   /* not its first keys */
	softmax_slice(f->s, FWD_KEYS, slice.n, wide,
		      all_seen(&f->keys, span, &slice) ? NULL : &mask, f->a->scale, &f->run[s],
		      go_on ? acc : NULL, f->vp, f->vp);
	panel_product(acc, f->vp, go_on, 1.0f, f->s + (from - span.from), FWD_KEYS, 1,
		      f->v_rows + from * PANEL, f->tkp, slice.n, f->vp, span.to - from);
}

/* (o, lse) of a row with a further range whose unnormalised output is acc, maximum m, sum l. */
static void
merge_row(float *o, float *lse, const float *acc, float m, float l, size_t v)
{
	if (l == 0.0f) /* no visible key; a NaN must go on, so that it is seen in the loss */
		return;
	double fresh = (double)m + log((double)l);
	if (*lse == -INFINITY) {
		float w = 1.0f / l;
		for (size_t c = 0; c < v; c++)
			o[c] = acc[c] * w;
		*lse = (float)fresh;
		return;
	}
	double old = (double)*lse, top = old > fresh ? old : fresh;
	double sum = exp(old - top) + exp(fresh - top);
	float w_old = (float)(exp(old - top) / sum),
	      w_new = (float)(exp(fresh - top) / sum / (double)l);
	for (size_t c = 0; c < v; c++)
		o[c] = w_old * o[c] + w_new * acc[c];
	*lse = (float)(top + log(sum));
}

static void
attend(struct forward *f, const float *q, size_t ldq, float *o, float *lse, size_t head)
{
	size_t hg = f->a->h1 - f->a->h0, ldo = hg * f->a->v, at = 0;

	for (size_t q0 = 0; q0 < f->queries.n; q0 += QUERIES) {
		struct rows block = part(&f->queries, q0, QUERIES);
		struct span all = key_spans(&f->keys, &block, f->span, &at);

		if (all.from >= all.to)
			continue;
		for (size_t i = 0; i < QUERIES; i++) {
			f->run[i / SLICE].most[i % SLICE] = -INFINITY;
			f->run[i / SLICE].sum[i % SLICE] = 0;
		}
		for (size_t k0 = all.from / PANEL * PANEL; k0 < all.to; k0 += FWD_KEYS)
			for (size_t s = 0; s * SLICE < block.n; s++)
				meet(f, q, ldq, q0, s, k0);
		for (size_t i = 0; i < block.n; i++)
			merge_row(o + (q0 + i) * ldo + head * f->a->v, lse + (q0 + i) * hg + head,
				  f->acc + i * f->vp, f->run[i / SLICE].most[i % SLICE],
				  f->run[i / SLICE].sum[i % SLICE], f->a->v);
	}
}

static void
attn_fwd(void *const *buf, const struct k3_mla_attn_args *a)
{
	float *o = buf[0], *lse = buf[1], *work = aligned(buf[4]);
	const float *q = buf[2];
	size_t kq = a->nope + a->rope, hg = a->h1 - a->h0, tkp = panel_pad(a->tk_max),
	       vp = panel_pad(a->v);
	struct forward f = {.a = a, .queries = rows_of(buf[3]), .tkp = tkp, .vp = vp};

	f.kt = take(&work, tkp * kq);
	f.v_rows = take(&work, tkp * vp);
	f.s = take(&work, SLICE * FWD_KEYS);
	f.acc = take(&work, QUERIES * vp);
	for (size_t i = 0; a->first && i < a->t * hg; i++)
		lse[i] = -INFINITY;
	for (uint32_t n = 0; n < a->kv.n; n++) {
		f.keys = rows_of(buf[a->klayout.first + n]);
		f.keys.doc = padded_docs(work, &f.keys, 0, f.keys.n);
		for (size_t h = 0; h < hg; h++) {
			pack_keys(&f, buf[a->kv.first + n], a->h0 + h);
			attend(&f, q + (a->h0 + h) * kq, a->h * kq, o, lse, h);
		}
	}
	for (size_t i = 0; a->first && i < a->t * hg; i++)
		if (lse[i] == -INFINITY)
			memset(o + i * a->v, 0, a->v * sizeof(*o));
}
