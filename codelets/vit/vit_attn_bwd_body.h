/* The backward half of vit_attn_body.h.  Key blocks are outside.  Gradients are summed where they
 * lie: those of keys over the query blocks, those of queries over the key blocks, both in ascending
 * order. */

struct backward {
	const struct k3_vit_attn_args *a;
	size_t hd;
	float *kt, *k_rows, *vt; /* panels of K^T [hd, keys], K [keys, hd], V^T [hd, keys] */
	float *q_rows, *do_rows; /* panels of a query block: Q, dO [queries, hd] */
	float *p, *ds;		 /* [QUERIES, LDS] */
	size_t n_keys;
};

/* Operands of one head: its columns, from a query or a key on. */
struct queries {
	const float *q, *dout, *lse, *delta;
	float *dq;
};
struct keys {
	const float *k, *v;
	float *dk, *dv;
};

static void
load_keys(struct backward *b, const struct keys *keys, size_t n)
{
	size_t ld = 3 * b->a->dq;

	b->n_keys = n;
	panel_columns(b->kt, b->hd, keys->k, ld, n, b->hd);
	panel_rows(b->k_rows, KEYS, keys->k, ld, n, b->hd, NULL);
	panel_columns(b->vt, b->hd, keys->v, ld, n, b->hd);
}

/* P and dS of n queries and the block of keys, and the queries' part of dq.  Columns behind the
 * last key hold what padding gives; nothing reads them. */
static void
scores_back(struct backward *b, const struct queries *of, size_t n, int add)
{
	size_t wide = registers_of(b->n_keys), dq = b->a->dq, h = b->a->h, hd = b->hd;

	for (size_t i = 0; i < n; i += SLICE) {
		size_t rows = lower(SLICE, n - i);
		float *p = b->p + i * LDS, *ds = b->ds + i * LDS;

		panel_product(p, LDS, 0, 1.0f, of->q + i * 3 * dq, 3 * dq, 1, b->kt, hd, rows, wide,
			      hd);
		panel_product(ds, LDS, 0, 1.0f, of->dout + i * dq, dq, 1, b->vt, hd, rows, wide,
			      hd);
		gradient_slice(p, ds, LDS, rows, wide, NULL, b->a->scale, of->lse + i * h,
			       of->delta + i * h, h);
		panel_product(of->dq + i * dq, dq, add, 1.0f, ds, LDS, 1, b->k_rows, KEYS, rows, hd,
			      b->n_keys);
	}
}

/* n queries against the block of keys. */
static void
block_back(struct backward *b, const struct queries *of, const struct keys *keys, size_t n,
	   int add_dq, int add_dkv)
{
	size_t dq = b->a->dq, hd = b->hd;

	panel_rows(b->q_rows, QUERIES, of->q, 3 * dq, n, hd, NULL);
	panel_rows(b->do_rows, QUERIES, of->dout, dq, n, hd, NULL);
	scores_back(b, of, n, add_dq);
	panel_product(keys->dv, 2 * dq, add_dkv, 1.0f, b->p, 1, LDS, b->do_rows, QUERIES, b->n_keys,
		      hd, n);
	panel_product(keys->dk, 2 * dq, add_dkv, 1.0f, b->ds, 1, LDS, b->q_rows, QUERIES, b->n_keys,
		      hd, n);
}

static struct queries
queries_at(void *const *buf, const struct k3_vit_attn_args *a, size_t row, size_t head)
{
	size_t at = row * a->dq + head * (a->dq / a->h), factor = row * a->h + head;

	return (struct queries){(float *)buf[2] + at + 2 * row * a->dq, (float *)buf[4] + at,
				(float *)buf[5] + factor, (float *)buf[6] + factor,
				(float *)buf[0] + at};
}

static struct keys
keys_at(void *const *buf, const struct k3_vit_attn_args *a, size_t row, size_t head)
{
	size_t column = head * (a->dq / a->h);
	const float *k = (float *)buf[3] + (3 * row + 1) * a->dq + column;
	float *dk = (float *)buf[1] + 2 * row * a->dq + column;

	return (struct keys){k, k + a->dq, dk, dk + a->dq};
}

/* The first part of the item in a tile, -1: there is none. */
static int32_t
first_of(const int32_t *layout, int32_t item)
{
	for (int32_t p = 0; p < layout[K3_VL_PARTS]; p++)
		if (run_of(layout, p).item == item)
			return p;
	return -1;
}

/* One head of the keys of a part against all queries of its item; first: it is the item's first
 * part in its tile. */
static void
keys_back(struct backward *b, void *const *buf, const struct run *part, size_t head, int first)
{
	const int32_t *layout = buf[7];

	for (size_t k0 = 0; k0 < part->n; k0 += KEYS) {
		struct keys keys = keys_at(buf, b->a, part->first + k0, head);
		int add_dq = !b->a->init_dq || !first || k0 > 0, add_dkv = !b->a->init_dkv;

		load_keys(b, &keys, lower(KEYS, part->n - k0));
		for (int32_t p = 0; p < layout[K3_VL_PARTS]; p++) {
			struct run to = run_of(layout, p);

			for (size_t q0 = 0; to.item == part->item && q0 < to.n; q0 += QUERIES) {
				struct queries of = queries_at(buf, b->a, to.first + q0, head);

				block_back(b, &of, &keys, lower(QUERIES, to.n - q0), add_dq,
					   add_dkv);
				add_dkv = 1;
			}
		}
	}
}

/* Zeros for the rows of a tile whose item is not in the other one. */
static void
clear_lonely(float *rows, size_t width, const int32_t *layout, const int32_t *other)
{
	for (int32_t p = 0; p < layout[K3_VL_PARTS]; p++) {
		struct run part = run_of(layout, p);

		if (first_of(other, part.item) < 0)
			memset(rows + part.first * width, 0, part.n * width * sizeof(*rows));
	}
}

static void
attn_bwd(void *const *buf, const struct k3_vit_attn_args *a)
{
	float *work = aligned(buf[9]);
	const int32_t *layout = buf[7], *klayout = buf[8];
	size_t hd = a->dq / a->h, hdp = panel_pad(hd);
	struct backward b = {.a = a, .hd = hd};

	b.kt = take(&work, KEYS * hd);
	b.vt = take(&work, KEYS * hd);
	b.k_rows = take(&work, KEYS * hdp);
	b.q_rows = take(&work, QUERIES * hdp);
	b.do_rows = take(&work, QUERIES * hdp);
	b.p = take(&work, QUERIES * LDS);
	b.ds = take(&work, QUERIES * LDS);
	if (a->init_dq)
		clear_lonely(buf[0], a->dq, layout, klayout);
	if (a->init_dkv)
		clear_lonely(buf[1], 2 * a->dq, klayout, layout);
	for (int32_t p = 0; p < klayout[K3_VL_PARTS]; p++) {
		struct run part = run_of(klayout, p);

		if (first_of(layout, part.item) < 0)
			continue;
		for (size_t h = 0; h < a->h; h++)
			keys_back(&b, buf, &part, h, first_of(klayout, part.item) == p);
	}
}
