/* Bidirectional attention inside items (model.md 6.3), compiled once per vector width.
 *
 * Patches of a part lie together and see all patches of its item, so there are no masks: parts of
 * the query tile meet parts of the same item.  A block of keys is packed once per head and stays in
 * the second-level cache while slices of 16 queries pass by; o itself is the running sum.  The
 * traps: columns behind the last key are padded up to whole registers and must not enter the
 * softmax; an output may hold NaN until its first block is written.
 */
#include "../linalg/softmax_body.h"
#include "vit_attn.h"

enum {
	QUERIES = K3_VIT_QUERY_BLOCK,
	KEYS = K3_VIT_KEY_BLOCK,
	LDS = KEYS + 16 /* of scores: not a power of two, since their transpose is read too */
};

/* Rows first .. first + n - 1 of a tile belong to an item. */
struct run {
	int32_t item;
	size_t first, n;
};

static struct run
run_of(const int32_t *layout, int32_t part)
{
	const int32_t *p = k3_vit_part(layout, part);

	return (struct run){p[K3_VP_ITEM], (size_t)p[K3_VP_PATCH0], k3_vit_part_patches(p)};
}

/* n rounded up to whole registers. */
static size_t
registers_of(size_t n)
{
	return (n + 15) / 16 * 16;
}

/* One head of the forward pass: a block of keys, and the softmax of a part's queries. */
struct forward {
	const struct k3_vit_attn_args *a;
	size_t hd;
	float *kt, *v;	     /* panels of K^T [hd, keys] and of V [keys, hd] */
	float *s;	     /* [SLICE, LDS] */
	struct running *run; /* of each slice of the part */
};

/* Queries of a part against the block of keys; go_on: not their first. */
static void
meet(struct forward *f, const float *q, float *o, size_t n_queries, size_t n_keys, int go_on)
{
	size_t wide = registers_of(n_keys), ldq = 3 * f->a->dq, ldo = f->a->dq;

	for (size_t i = 0; i < n_queries; i += SLICE, q += SLICE * ldq, o += SLICE * ldo) {
		size_t rows = lower(SLICE, n_queries - i);

		panel_product(f->s, LDS, 0, 1.0f, q, ldq, 1, f->kt, f->hd, rows, wide, f->hd);
		for (size_t r = 0; r < rows; r++)
			for (size_t j = n_keys; j < wide; j++)
				f->s[r * LDS + j] = -INFINITY;
		softmax_slice(f->s, LDS, rows, wide, NULL, f->a->scale, &f->run[i / SLICE],
			      go_on ? o : NULL, ldo, f->hd);
		panel_product(o, ldo, go_on, 1.0f, f->s, LDS, 1, f->v, KEYS, rows, f->hd, n_keys);
	}
}

/* Queries of a part against all keys of their item in a key tile; returns whether there were any.
 */
static int
meet_tile(struct forward *f, const float *q, float *o, const struct run *part, const float *kqkv,
	  const int32_t *klayout, size_t head, int go_on)
{
	size_t ld = 3 * f->a->dq;

	for (int32_t p = 0; p < klayout[K3_VL_PARTS]; p++) {
		struct run keys = run_of(klayout, p);

		for (size_t k0 = 0; keys.item == part->item && k0 < keys.n; k0 += KEYS, go_on = 1) {
			const float *k = kqkv + (keys.first + k0) * ld + f->a->dq + head * f->hd;
			size_t n = lower(KEYS, keys.n - k0);

			panel_columns(f->kt, f->hd, k, ld, n, f->hd);
			panel_rows(f->v, KEYS, k + f->a->dq, ld, n, f->hd, NULL);
			meet(f, q, o, part->n, n, go_on);
		}
	}
	return go_on;
}

static void
finish(const struct forward *f, float *o, float *lse, size_t n)
{
	for (size_t i = 0; i < n; i++, o += f->a->dq, lse += f->a->h) {
		float most = f->run[i / SLICE].most[i % SLICE],
		      sum = f->run[i / SLICE].sum[i % SLICE];

		scale_row(o, 1.0f / sum, f->hd);
		*lse = (float)((double)most + log((double)sum));
	}
}

static void
attn_fwd(void *const *buf, const struct k3_vit_attn_args *a)
{
	float *o = buf[0], *lse = buf[1], *work = aligned(buf[4]);
	const float *qkv = buf[2];
	const int32_t *layout = buf[3];
	size_t hd = a->dq / a->h;
	struct forward f = {.a = a, .hd = hd};

	f.kt = take(&work, KEYS * hd);
	f.v = take(&work, KEYS * panel_pad(hd));
	f.s = take(&work, SLICE * LDS);
	f.run = (struct running *)(void *)work;
	for (int32_t p = 0; p < layout[K3_VL_PARTS]; p++) {
		struct run part = run_of(layout, p);

		for (size_t h = 0; h < a->h; h++) {
			const float *q = qkv + part.first * 3 * a->dq + h * hd;
			float *to = o + part.first * a->dq + h * hd;
			int go_on = 0;

			for (size_t i = 0; i < part.n; i++) {
				f.run[i / SLICE].most[i % SLICE] = -INFINITY;
				f.run[i / SLICE].sum[i % SLICE] = 0;
			}
			for (uint32_t k = 0; k < a->kqkv.n; k++)
				go_on = meet_tile(&f, q, to, &part, buf[a->kqkv.first + k],
						  buf[a->klayout.first + k], h, go_on);
			finish(&f, to, lse + part.first * a->h + h, part.n);
		}
	}
}

#include "vit_attn_bwd_body.h"
