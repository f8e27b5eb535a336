/* KDA, chunkwise WY form (model.md 3.6), backward.
 *
 * Per head and segment: a forward sweep keeps of each chunk its triangles, W, U, V~ and entering
 * state, then the chunks are undone from the last to the first.  V~ and the output share their
 * products: with the stacks F = [W; -s Q exp(G)] and D = [dV~; dO],  [dW; -dO S^T] = -D S^T  and dS
 * -= F^T D. The trap: the gradient of the gates needs the decayed sums on the row side and on the
 * column side apart (dk_row, dk_col); dK is their sum, dG their difference.
 */
#include "flush.h"
#include "kda_chunk.h"

struct backward {
	struct k3i_kda_chunk c;
	struct k3i_kda_chunk_grad g;
	struct k3i_kda_head x;
	float *d;		   /* [2 rows, vp]: dV~ | dO */
	float *tmp, *left, *right; /* [6 SUB, CHUNK], [6 SUB, kp], [CHUNK, kp] */
	float *sum;		   /* [2 SUB, kp] */
	float *kept;
};

static void
take_all(struct backward *w, const struct k3_kda_chunk_args *a, float *work)
{
	struct k3i_kda_chunk_grad *g = &w->g;

	k3i_kda_chunk_init(&w->c, a, &work);
	size_t kp = w->c.kp, vp = w->c.vp, ck = K3I_CHUNK * kp;
	float **rows[] = {&g->dkbar, &g->dq, &g->dk_row, &g->dk_col, &g->dg, &w->right};

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
	w->tmp = k3i_take(&work, 6 * K3I_SUB * K3I_CHUNK);
	w->left = k3i_take(&work, 6 * K3I_SUB * kp);
	w->sum = k3i_take(&work, 2 * K3I_SUB * kp);
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
		k3i_kda_chunk_intra(&w->c, w->tmp, w->left, w->right);
		k3i_kda_chunk_scan(&w->c, j + 1 < chunks
						  ? w->c.s + k3_kda_chunk_kept_floats(a->k, a->v)
						  : NULL);
	}
}

/* The products with the state and the inverse, up to the local gradients of the WY form. */
static void
state_products(struct backward *w)
{
	struct k3i_kda_chunk *c = &w->c;
	struct k3i_kda_chunk_grad *g = &w->g;
	size_t kp = c->kp, vp = c->vp, ld = kp + vp, rows = c->rows;
	float *do_cv = w->d + rows * vp;

	k3i_gemm(CblasTrans, CblasNoTrans, rows, vp, rows, 1.0f, c->p, K3I_CHUNK, do_cv, vp, 0.0f,
		 w->d, vp);
	k3i_gemm(CblasNoTrans, CblasNoTrans, rows, vp, kp, 1.0f, c->kbar, kp, g->ds, vp, 1.0f, w->d,
		 vp);
	k3i_gemm(CblasNoTrans, CblasTrans, 2 * rows, kp, vp, -1.0f, w->d, vp, c->s, vp, 0.0f, g->e,
		 ld);
	for (size_t r = 0; r < rows; r++)
		memcpy(g->e + r * ld + kp, w->d + r * vp, vp * sizeof(float));
	k3i_gemm(CblasTrans, CblasNoTrans, rows, ld, rows, 1.0f, c->t, K3I_CHUNK, g->e, ld, 0.0f,
		 g->dxy, ld);
	k3i_gemm(CblasNoTrans, CblasTrans, rows, kp, vp, 1.0f, c->vt, vp, g->ds, vp, 0.0f, g->dkbar,
		 kp);
	k3i_gemm(CblasNoTrans, CblasTrans, rows, rows, vp, c->scale, do_cv, vp, c->vt, vp, 0.0f,
		 g->dp, K3I_CHUNK);
	k3i_gemm(CblasNoTrans, CblasTrans, rows, rows, ld, 1.0f, g->dxy, ld, c->wu, ld, 0.0f, g->dm,
		 K3I_CHUNK);
}

/* Row side of the decayed sums left of the diagonal: dq_i += sum_j dp_ij k_j exp(G_i - G_j), dk_row
 * likewise. */
static void
off_diagonal_rows(struct backward *w)
{
	const struct k3i_kda_lanes *lanes = k3i_kda_lanes();
	struct k3i_kda_chunk *c = &w->c;
	size_t kp = c->kp, sub = K3I_SUB * kp;

	for (size_t b = 1; b < c->rows / K3I_SUB; b++) {
		size_t n = b * K3I_SUB;

		k3i_kda_chunk_push_right(c, w->right, b - 1);
		memcpy(w->tmp, w->g.dp + n * K3I_CHUNK, K3I_SUB * K3I_CHUNK * sizeof(float));
		memcpy(w->tmp + K3I_SUB * K3I_CHUNK, w->g.dm + n * K3I_CHUNK,
		       K3I_SUB * K3I_CHUNK * sizeof(float));
		k3i_gemm(CblasNoTrans, CblasNoTrans, 2 * K3I_SUB, kp, n, 1.0f, w->tmp, K3I_CHUNK,
			 w->right, kp, 0.0f, w->sum, kp);
		lanes->muladd(w->g.dq + n * kp, w->sum, c->el + n * kp, sub);
		lanes->muladd(w->g.dk_row + n * kp, w->sum + sub, c->el + n * kp, sub);
	}
}

/* Column side: dk_col_j += sum_i (dp_ij q_i + dm_ij k_i) exp(G_i - G_j); left grows from the last
 * sub-block up. */
static void
off_diagonal_columns(struct backward *w)
{
	const struct k3i_kda_lanes *lanes = k3i_kda_lanes();
	struct k3i_kda_chunk *c = &w->c;
	size_t kp = c->kp, sub = K3I_SUB * kp, n = 0; /* n rows in left */

	for (size_t b = c->rows / K3I_SUB; b-- > 1;) {
		size_t lo = b * K3I_SUB, col = lo - K3I_SUB;

		if (n > 0)
			lanes->mul_rows(w->left, c->et + b * kp, n, kp);
		lanes->mul(w->left + n * kp, c->q + lo * kp, c->el + lo * kp, sub);
		lanes->mul(w->left + n * kp + sub, c->k_ck + lo * kp, c->el + lo * kp, sub);
		memcpy(w->tmp + n * K3I_CHUNK, w->g.dp + lo * K3I_CHUNK,
		       K3I_SUB * K3I_CHUNK * sizeof(float));
		memcpy(w->tmp + (n + K3I_SUB) * K3I_CHUNK, w->g.dm + lo * K3I_CHUNK,
		       K3I_SUB * K3I_CHUNK * sizeof(float));
		n += 2 * K3I_SUB;
		k3i_gemm(CblasTrans, CblasNoTrans, K3I_SUB, kp, n, 1.0f, w->tmp + col, K3I_CHUNK,
			 w->left, kp, 0.0f, w->sum, kp);
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
	k3i_gemm(CblasTrans, CblasNoTrans, kp, vp, 2 * c->rows, -1.0f, c->wu, kp + vp, w->d, vp,
		 1.0f, g->ds, vp);
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
