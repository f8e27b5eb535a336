/* KDA, chunkwise WY form (model.md 3.6), backward.
 *
 * Per head and segment: a forward sweep keeps of each chunk its triangles, W, U, V~ and entering
 * state, then the chunks are undone from the last to the first.  dV~ and dO share a product: with
 * the stack D = [dV~; dO],  [dW; -dO S^T] = -D S^T.  The trap: the gradient of the gates needs the
 * decayed sums on the row side and on the column side apart (dk_row, dk_col); dK is their sum, dG
 * their difference.
 */
#include "flush.h"
#include "kda_chunk.h"

struct backward {
	struct k3i_kda_chunk c;
	struct k3i_kda_chunk_grad g;
	struct k3i_kda_head x;
	float *d;		/* [2 rows, vp]: dV~ | dO */
	float *right;		/* panels [CHUNK, kp] of the decayed keys of earlier rows */
	float *left_q, *left_k; /* panels [CHUNK, kp] of what later rows multiply */
	float *sum;		/* [SUB, kp] */
	float *kept;
};

static void
take_all(struct backward *w, const struct k3_kda_chunk_args *a, float *work)
{
	struct k3i_kda_chunk_grad *g = &w->g;

	k3i_kda_chunk_init(&w->c, a, &work);
	size_t kp = w->c.kp, vp = w->c.vp, ck = K3I_CHUNK * kp;
	float **rows[] = {&g->dkbar, &g->dq,	&g->dk_row, &g->dk_col,
			  &g->dg,    &w->right, &w->left_q, &w->left_k};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		*rows[i] = k3i_take(&work, ck);
	g->e = k3i_take(&work, 2 * K3I_CHUNK * (kp + vp));
	g->dxy = k3i_take(&work, K3I_CHUNK * (kp + vp));
	g->dp = k3i_take(&work, K3I_CHUNK * K3I_CHUNK);
	g->dm = k3i_take(&work, K3I_CHUNK * K3I_CHUNK);
	g->dbeta = k3i_take(&work, K3I_CHUNK);
	g->dg_last = k3i_take(&work, kp);
	g->ds = k3i_take(&work, kp * vp);
	g->dab = k3i_take(&work, 1 + kp);
	w->d = k3i_take(&work, 2 * K3I_CHUNK * vp);
	w->sum = k3i_take(&work, K3I_SUB * kp);
	w->kept = work;
}

/* Points the chunk at what is kept of chunk j. */
static void
select_chunk(struct backward *w, const struct k3_kda_chunk_args *a, size_t j)
{
	float *kept = w->kept + j * k3_kda_chunk_kept_floats(a->k, a->v);

	k3i_kda_chunk_keep(&w->c, &kept);
}

static void
sweep_forward(struct backward *w, const struct k3_kda_chunk_args *a, const int32_t *order, size_t n,
	      const float *s_in)
{
	size_t chunks = (n + K3I_CHUNK - 1) / K3I_CHUNK;

	select_chunk(w, a, 0);
	k3i_kda_state_load(&w->c, w->c.s, s_in);
	for (size_t j = 0; j < chunks; j++) {
		size_t r = j * K3I_CHUNK;

		select_chunk(w, a, j);
		k3i_kda_chunk_pack(&w->c, &w->x, order + r, n - r < K3I_CHUNK ? n - r : K3I_CHUNK,
				   (int)a->raw);
		k3i_kda_chunk_intra(&w->c, w->sum);
		k3i_kda_chunk_scan(
			&w->c,
			j + 1 < chunks ? w->c.s + k3_kda_chunk_kept_floats(a->k, a->v) : NULL, 0);
	}
}

/* dV~ and, from it, the gradients of W, U and of the decayed queries. */
static void
output_products(struct backward *w)
{
	const struct k3i_kda_lanes *lanes = k3i_kda_lanes();
	struct k3i_kda_chunk *c = &w->c;
	struct k3i_kda_chunk_grad *g = &w->g;
	size_t kp = c->kp, vp = c->vp, ld = kp + vp, rows = c->rows;

	lanes->panel_rows(c->panels, K3I_CHUNK, w->d + rows * vp, vp, rows, vp, NULL);
	k3i_upper_product(w->d, vp, 0, c->p, c->panels, K3I_CHUNK, rows, vp);
	lanes->panel_rows(c->panels, kp, g->ds, vp, kp, vp, NULL);
	lanes->product(w->d, vp, 1, 1.0f, c->kbar, kp, 1, c->panels, kp, rows, vp, kp);
	lanes->panel_columns(c->panels, vp, c->s, vp, kp, vp);
	lanes->product(g->e, ld, 0, -1.0f, w->d, vp, 1, c->panels, vp, 2 * rows, kp, vp);
	for (size_t r = 0; r < rows; r++)
		memcpy(g->e + r * ld + kp, w->d + r * vp, vp * sizeof(float));
}

/* The products with the state and the inverse, up to the local gradients of the WY form. */
static void
state_products(struct backward *w)
{
	const struct k3i_kda_lanes *lanes = k3i_kda_lanes();
	struct k3i_kda_chunk *c = &w->c;
	struct k3i_kda_chunk_grad *g = &w->g;
	size_t kp = c->kp, vp = c->vp, ld = kp + vp, rows = c->rows;
	const float *do_cv = w->d + rows * vp;

	lanes->panel_rows(c->panels, K3I_CHUNK, g->e, ld, rows, ld, NULL);
	k3i_upper_product(g->dxy, ld, 0, c->t, c->panels, K3I_CHUNK, rows, ld);
	lanes->panel_columns(c->panels, vp, g->ds, vp, kp, vp);
	lanes->product(g->dkbar, kp, 0, 1.0f, c->vt, vp, 1, c->panels, vp, rows, kp, vp);
	lanes->panel_columns(c->panels, vp, c->vt, vp, rows, vp);
	for (size_t r = 0; r < rows; r += K3I_SUB)
		lanes->product(g->dp + r * K3I_CHUNK, K3I_CHUNK, 0, c->scale, do_cv + r * vp, vp, 1,
			       c->panels, vp, K3I_SUB, r + K3I_SUB, vp);
	lanes->panel_columns(c->panels, ld, c->wu, ld, rows, ld);
	for (size_t r = 0; r < rows; r += K3I_SUB)
		lanes->product(g->dm + r * K3I_CHUNK, K3I_CHUNK, 0, 1.0f, g->dxy + r * ld, ld, 1,
			       c->panels, ld, K3I_SUB, r + K3I_SUB, ld);
}

/* Rows from .. to - 1 of the panels of x [CHUNK, kp] times w [kp]. */
static void
decay_panels(float *x, const float *w, size_t from, size_t to, size_t kp)
{
	const size_t panel = 2 * K3I_SUB;

	for (size_t i = 0; i < kp; i += panel)
		k3i_kda_lanes()->mul_rows(x + i * K3I_CHUNK + from * panel, w + i, to - from,
					  panel);
}

/* Row side of the decayed sums left of the diagonal: dq_i += sum_j dp_ij k_j exp(G_i - G_j), dk_row
 * likewise; right grows with the sub-blocks. */
static void
off_diagonal_rows(struct backward *w)
{
	const struct k3i_kda_lanes *lanes = k3i_kda_lanes();
	struct k3i_kda_chunk *c = &w->c;
	size_t kp = c->kp, sub = K3I_SUB * kp;

	for (size_t b = 1; b < c->rows / K3I_SUB; b++) {
		size_t n = b * K3I_SUB, last = n - K3I_SUB;

		decay_panels(w->right, c->et + (b - 1) * kp, 0, last, kp);
		lanes->panel_mul(w->right + last * 2 * K3I_SUB, K3I_CHUNK, c->k_ck + last * kp,
				 c->er + last * kp, K3I_SUB, kp);
		lanes->product(w->sum, kp, 0, 1.0f, w->g.dp + n * K3I_CHUNK, K3I_CHUNK, 1, w->right,
			       K3I_CHUNK, K3I_SUB, kp, n);
		lanes->muladd(w->g.dq + n * kp, w->sum, c->el + n * kp, sub);
		lanes->product(w->sum, kp, 0, 1.0f, w->g.dm + n * K3I_CHUNK, K3I_CHUNK, 1, w->right,
			       K3I_CHUNK, K3I_SUB, kp, n);
		lanes->muladd(w->g.dk_row + n * kp, w->sum, c->el + n * kp, sub);
	}
}

/* Column side: dk_col_j += sum_i (dp_ij q_i + dm_ij k_i) exp(G_i - G_j); left_q and left_k grow
 * from the last sub-block up. */
static void
off_diagonal_columns(struct backward *w)
{
	const struct k3i_kda_lanes *lanes = k3i_kda_lanes();
	struct k3i_kda_chunk *c = &w->c;
	size_t kp = c->kp, sub = K3I_SUB * kp;

	for (size_t b = c->rows / K3I_SUB; b-- > 1;) {
		size_t lo = b * K3I_SUB, col = lo - K3I_SUB, at = lo * 2 * K3I_SUB,
		       from = lo * K3I_CHUNK + col;

		decay_panels(w->left_q, c->et + b * kp, lo + K3I_SUB, c->rows, kp);
		decay_panels(w->left_k, c->et + b * kp, lo + K3I_SUB, c->rows, kp);
		lanes->panel_mul(w->left_q + at, K3I_CHUNK, c->q + lo * kp, c->el + lo * kp,
				 K3I_SUB, kp);
		lanes->panel_mul(w->left_k + at, K3I_CHUNK, c->k_ck + lo * kp, c->el + lo * kp,
				 K3I_SUB, kp);
		lanes->product(w->sum, kp, 0, 1.0f, w->g.dp + from, 1, K3I_CHUNK, w->left_q + at,
			       K3I_CHUNK, K3I_SUB, kp, c->rows - lo);
		lanes->product(w->sum, kp, 1, 1.0f, w->g.dm + from, 1, K3I_CHUNK, w->left_k + at,
			       K3I_CHUNK, K3I_SUB, kp, c->rows - lo);
		lanes->muladd(w->g.dk_col + col * kp, w->sum, c->er + col * kp, sub);
	}
}

/* All gradients of the chunk; ds becomes the gradient of its entering state. */
static void
undo_chunk(struct backward *w, int raw)
{
	const struct k3i_kda_lanes *lanes = k3i_kda_lanes();
	struct k3i_kda_chunk *c = &w->c;
	struct k3i_kda_chunk_grad *g = &w->g;
	size_t kp = c->kp, vp = c->vp;

	output_products(w);
	state_products(w);
	lanes->wy(c, g);
	off_diagonal_rows(w);
	off_diagonal_columns(w);
	for (size_t b = 0; b < c->rows / K3I_SUB; b++)
		lanes->diagonal_bwd(c, g, b);
	lanes->gate_sum(c, g);
	if (!raw)
		lanes->gate_bwd(c, g);
	lanes->scale_rows(g->ds, c->pre + c->rows / K3I_SUB * kp, kp, vp);
	lanes->panel_rows(c->panels, K3I_CHUNK, w->d, vp, c->rows, vp, NULL);
	lanes->product(g->ds, vp, 1, -1.0f, c->wu, 1, kp + vp, c->panels, K3I_CHUNK, kp, vp,
		       c->rows);
	lanes->panel_rows(c->panels, K3I_CHUNK, w->d + c->rows * vp, vp, c->rows, vp, NULL);
	lanes->product(g->ds, vp, 1, -1.0f, c->qd, 1, kp, c->panels, K3I_CHUNK, kp, vp, c->rows);
}

static void
pack_do(struct backward *w, const float *do_tv, size_t ld, const int32_t *order)
{
	struct k3i_kda_chunk *c = &w->c;
	float *dst = w->d + c->rows * c->vp;

	memset(dst, 0, c->rows * c->vp * sizeof(float));
	for (size_t r = 0; r < c->n_rows; r++)
		memcpy(dst + r * c->vp, do_tv + (size_t)order[r] * ld, c->v * sizeof(float));
}

static void
scatter(const struct backward *w, void *const *buf, const struct k3_kda_chunk_args *a, size_t i,
	const int32_t *order)
{
	const struct k3i_kda_chunk *c = &w->c;
	size_t hg = a->h1 - a->h0, k = a->k, v = a->v, ld = hg * (2 * k + v);
	float *dqkv = buf[0], *df = buf[1], *dbr = buf[2];

	for (size_t r = 0; r < c->n_rows; r++) {
		size_t t = (size_t)order[r];
		float *row = dqkv + t * ld, *dbeta = dbr + t * hg + i, rest;

		memcpy(row + i * k, w->g.dq + r * c->kp, k * sizeof(float));
		memcpy(row + (hg + i) * k, w->g.dk_row + r * c->kp, k * sizeof(float));
		memcpy(row + 2 * hg * k + i * v, w->g.dxy + r * (c->kp + c->vp) + c->kp,
		       v * sizeof(float));
		memcpy(df + (t * hg + i) * k, w->g.dg + r * c->kp, k * sizeof(float));
		*dbeta = w->g.dbeta[r];
		if (!a->raw) {
			float beta = k3i_sigmoid(w->x.br[t * w->x.ld_br], &rest);
			*dbeta *= beta * rest;
		}
	}
}

static void
backward_head(struct backward *w, void *const *buf, const struct k3_kda_chunk_args *a, size_t i)
{
	const int32_t *layout = buf[8], *order = k3_tile_order(layout),
		      *seg = k3_tile_segments(layout);
	size_t hg = a->h1 - a->h0, segments = (size_t)layout[K3_TL_SEGMENTS];
	const float *do_tv = (const float *)buf[4] + i * a->v;

	w->x = k3i_kda_head(buf, 5, a->h0 + i, a);
	k3i_kda_chunk_head(&w->c, &w->x, a);
	memset(w->g.dab, 0, (1 + w->c.kp) * sizeof(float));
	k3i_kda_state_load(&w->c, w->g.ds, k3i_kda_state(buf, &a->ds_out, i, a));
	for (size_t s = segments; s-- > 0;) {
		const int32_t *rows = order + seg[s];
		size_t n = (size_t)(seg[s + 1] - seg[s]);

		if (s + 1 < segments)
			k3i_kda_state_load(&w->c, w->g.ds, NULL);
		sweep_forward(w, a, rows, n, s == 0 ? k3i_kda_state(buf, &a->s_in, i, a) : NULL);
		for (size_t j = (n + K3I_CHUNK - 1) / K3I_CHUNK; j-- > 0;) {
			size_t r = j * K3I_CHUNK, len = n - r < K3I_CHUNK ? n - r : K3I_CHUNK;

			select_chunk(w, a, j);
			k3i_kda_chunk_pack(&w->c, &w->x, rows + r, len, (int)a->raw);
			k3i_kda_lanes()->decay(&w->c);
			pack_do(w, do_tv, hg * a->v, rows + r);
			undo_chunk(w, (int)a->raw);
			scatter(w, buf, a, i, rows + r);
		}
	}
	if (a->ds_in.n)
		k3i_kda_state_store(&w->c, k3i_kda_state(buf, &a->ds_in, i, a), w->g.ds);
	((float *)buf[3])[i] = w->g.dab[0];
	memcpy((float *)buf[3] + hg + i * a->k, w->g.dab + 1, a->k * sizeof(float));
}

void
k3_kda_chunk_bwd_cpu_f32(void *const *buf, const struct k3_kda_chunk_args *a)
{
	const int32_t *layout = buf[8];
	size_t hg = a->h1 - a->h0;
	unsigned mode = k3i_flush_begin();
	struct backward w;

	k3i_zero_holes(buf[0], hg * (2 * a->k + a->v), layout);
	k3i_zero_holes(buf[1], hg * a->k, layout);
	k3i_zero_holes(buf[2], hg, layout);
	take_all(&w, a, k3i_align(buf[9]));
	for (size_t i = 0; i < hg; i++)
		backward_head(&w, buf, a, i);
	k3i_flush_end(mode);
}
