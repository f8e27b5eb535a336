/* KDA, chunkwise WY form (model.md 3.4, 3.5), forward, and the parts that the backward repeats.
 *
 * A segment is cut in chunks of 64 rows from its own first row, so its results do not depend on
 * what else is in the tile.  Inside a chunk the tokens' rank-one updates are gathered in triangular
 * 64 x 64 matrices; the state meets only products of matrices.  The trap: exp(-G) of a chunk leaves
 * the range of float by far; see kda_lanes.h for the factors that never do.  What underflows is
 * flushed, as denormal operands would cost more than the product.
 */
#include "kda_chunk.h"

#include "flush.h"

void
k3i_kda_chunk_init(struct k3i_kda_chunk *c, const struct k3_kda_chunk_args *a, float **work)
{
	size_t kp = k3_kda_pad(a->k), vp = k3_kda_pad(a->v);
	float **arrays[] = {&c->q, &c->k_ck, &c->x, &c->l, &c->el, &c->er, &c->kbar, &c->qd};

	*c = (struct k3i_kda_chunk){.k = a->k, .v = a->v, .kp = kp, .vp = vp, .scale = a->scale};
	for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++)
		*arrays[i] = k3i_take(work, K3I_CHUNK * kp);
	c->v_cv = k3i_take(work, K3I_CHUNK * vp);
	c->o = k3i_take(work, K3I_CHUNK * vp);
	c->dt = k3i_take(work, kp);
	c->beta = k3i_take(work, K3I_CHUNK);
	c->et = k3i_take(work, K3I_BLOCKS * kp);
	c->pre = k3i_take(work, (K3I_BLOCKS + 1) * kp);
	c->suf = k3i_take(work, K3I_BLOCKS * kp);
	c->xy = k3i_take(work, K3I_CHUNK * (kp + vp));
	c->panels = k3i_take(work, kp * vp + 2 * K3I_CHUNK * (kp + vp));
}

void
k3i_kda_chunk_keep(struct k3i_kda_chunk *c, float **work)
{
	c->m = k3i_take(work, K3I_CHUNK * K3I_CHUNK);
	c->p = k3i_take(work, K3I_CHUNK * K3I_CHUNK);
	c->t = k3i_take(work, K3I_CHUNK * K3I_CHUNK);
	c->wu = k3i_take(work, K3I_CHUNK * (c->kp + c->vp));
	c->vt = k3i_take(work, K3I_CHUNK * c->vp);
	c->s = k3i_take(work, c->kp * c->vp);
}

/* Copies n floats and clears up to the padded width. */
static void
copy_padded(float *dst, const float *src, size_t n, size_t padded)
{
	memcpy(dst, src, n * sizeof(*dst));
	memset(dst + n, 0, (padded - n) * sizeof(*dst));
}

void
k3i_kda_chunk_head(struct k3i_kda_chunk *c, const struct k3i_kda_head *x,
		   const struct k3_kda_chunk_args *a)
{
	c->exp_a = x->exp_a;
	c->lower_bound = a->lower_bound;
	if (x->dt_k)
		copy_padded(c->dt, x->dt_k, c->k, c->kp);
}

void
k3i_kda_chunk_pack(struct k3i_kda_chunk *c, const struct k3i_kda_head *x, const int32_t *order,
		   size_t n, int raw)
{
	const struct k3i_kda_lanes *lanes = k3i_kda_lanes();
	size_t kp = c->kp, vp = c->vp, rest;
	float *gate = raw ? c->l : c->x, unused;

	c->n_rows = n;
	c->rows = (n + K3I_SUB - 1) / K3I_SUB * K3I_SUB;
	rest = c->rows - n;
	for (size_t r = 0; r < n; r++) {
		size_t t = (size_t)order[r];

		copy_padded(c->q + r * kp, x->q + t * x->ld_qkv, c->k, kp);
		copy_padded(c->k_ck + r * kp, x->k + t * x->ld_qkv, c->k, kp);
		copy_padded(c->v_cv + r * vp, x->v + t * x->ld_qkv, c->v, vp);
		copy_padded(gate + r * kp, x->f + t * x->ld_f, c->k, kp);
		c->beta[r] = raw ? x->br[t * x->ld_br] : k3i_sigmoid(x->br[t * x->ld_br], &unused);
	}
	memset(c->q + n * kp, 0, rest * kp * sizeof(float));
	memset(c->k_ck + n * kp, 0, rest * kp * sizeof(float));
	memset(c->v_cv + n * vp, 0, rest * vp * sizeof(float));
	memset(c->l + n * kp, 0, rest * kp * sizeof(float));
	memset(c->beta + n, 0, rest * sizeof(float));
	if (!raw)
		lanes->gate(c);
}

/* Appends sub-block b to the columns k_j exp(G_end of b - G_j), which the rows behind it meet. */
static void
push_columns(struct k3i_kda_chunk *c, float *tmp, size_t b)
{
	const struct k3i_kda_lanes *lanes = k3i_kda_lanes();
	size_t n = b * K3I_SUB, kp = c->kp, panel = 2 * K3I_SUB;

	for (size_t j = 0; j < n; j += panel)
		lanes->scale_rows(c->panels + j * kp, c->et + b * kp, kp, panel);
	lanes->mul(tmp, c->k_ck + n * kp, c->er + n * kp, K3I_SUB * kp);
	lanes->panel_columns(c->panels + n / panel * panel * kp + n % panel, kp, tmp, kp, K3I_SUB,
			     kp);
}

/* Sub-block rows b of m and p left of the diagonal block. */
static void
off_diagonal(struct k3i_kda_chunk *c, size_t b, float *left)
{
	const struct k3i_kda_lanes *lanes = k3i_kda_lanes();
	size_t n = b * K3I_SUB, kp = c->kp;

	lanes->mul(left, c->q + n * kp, c->el + n * kp, K3I_SUB * kp);
	lanes->product(c->p + n * K3I_CHUNK, K3I_CHUNK, 0, 1.0f, left, kp, 1, c->panels, kp,
		       K3I_SUB, n, kp);
	lanes->mul(left, c->k_ck + n * kp, c->el + n * kp, K3I_SUB * kp);
	lanes->product(c->m + n * K3I_CHUNK, K3I_CHUNK, 0, 1.0f, left, kp, 1, c->panels, kp,
		       K3I_SUB, n, kp);
}

void
k3i_kda_chunk_intra(struct k3i_kda_chunk *c, float *left)
{
	const struct k3i_kda_lanes *lanes = k3i_kda_lanes();
	size_t ld = c->kp + c->vp;

	lanes->decay(c);
	memset(c->m, 0, c->rows * K3I_CHUNK * sizeof(float));
	memset(c->p, 0, c->rows * K3I_CHUNK * sizeof(float));
	memset(c->panels, 0, K3I_CHUNK * c->kp * sizeof(float));
	for (size_t b = 0; b < c->rows / K3I_SUB; b++) {
		if (b > 0) {
			push_columns(c, left, b - 1);
			off_diagonal(c, b, left);
		}
		lanes->diagonal(c, b);
	}
	lanes->scale_all(c->p, c->scale, c->rows * K3I_CHUNK);
	lanes->inverse(c);
	lanes->panel_rows(c->panels, K3I_CHUNK, c->xy, ld, c->rows, ld, NULL);
	k3i_lower_product(c->wu, ld, 0, c->t, c->panels, K3I_CHUNK, c->rows, ld);
}

void
k3i_kda_chunk_scan(struct k3i_kda_chunk *c, float *s_next, int with_output)
{
	const struct k3i_kda_lanes *lanes = k3i_kda_lanes();
	size_t ld = c->kp + c->vp, kp = c->kp, vp = c->vp, rows = c->rows;

	for (size_t r = 0; r < rows; r++)
		memcpy(c->vt + r * vp, c->wu + r * ld + kp, vp * sizeof(float));
	lanes->panel_rows(c->panels, kp, c->s, vp, kp, vp, NULL);
	lanes->product(c->vt, vp, 1, -1.0f, c->wu, ld, 1, c->panels, kp, rows, vp, kp);
	if (with_output)
		lanes->product(c->o, vp, 0, -1.0f, c->qd, kp, 1, c->panels, kp, rows, vp, kp);
	lanes->panel_rows(c->panels, K3I_CHUNK, c->vt, vp, rows, vp, NULL);
	if (s_next == NULL)
		return;
	if (s_next != c->s)
		memcpy(s_next, c->s, kp * vp * sizeof(float));
	lanes->scale_rows(s_next, c->pre + rows / K3I_SUB * kp, kp, vp);
	lanes->product(s_next, vp, 1, 1.0f, c->kbar, 1, kp, c->panels, K3I_CHUNK, kp, vp, rows);
}

void
k3i_kda_state_load(const struct k3i_kda_chunk *c, float *s, const float *src)
{
	memset(s, 0, c->kp * c->vp * sizeof(float));
	for (size_t i = 0; src && i < c->k; i++)
		memcpy(s + i * c->vp, src + i * c->v, c->v * sizeof(float));
}

void
k3i_kda_state_store(const struct k3i_kda_chunk *c, float *dst, const float *s)
{
	for (size_t i = 0; i < c->k; i++)
		memcpy(dst + i * c->v, s + i * c->vp, c->v * sizeof(float));
}

/* Output rows of the packed chunk, after its scan. */
static void
output(struct k3i_kda_chunk *c, float *o, size_t ld_o, const int32_t *order)
{
	size_t vp = c->vp, rows = c->rows;

	k3i_lower_product(c->o, vp, 1, c->p, c->panels, K3I_CHUNK, rows, vp);
	for (size_t r = 0; r < c->n_rows; r++)
		memcpy(o + (size_t)order[r] * ld_o, c->o + r * vp, c->v * sizeof(float));
}

static void
forward_head(void *const *buf, const struct k3_kda_chunk_args *a, size_t i, struct k3i_kda_chunk *c,
	     float *work)
{
	const int32_t *layout = buf[4], *order = k3_tile_order(layout),
		      *seg = k3_tile_segments(layout);
	size_t ld_o = (a->h1 - a->h0) * a->v, segments = (size_t)layout[K3_TL_SEGMENTS];
	struct k3i_kda_head x = k3i_kda_head(buf, 1, a->h0 + i, a);
	float *left = k3i_take(&work, K3I_SUB * c->kp), *o = (float *)buf[0] + i * a->v;

	k3i_kda_chunk_head(c, &x, a);
	k3i_kda_state_load(c, c->s, k3i_kda_state(buf, &a->s_in, i, a));
	for (size_t s = 0; s < segments; s++) {
		if (s > 0)
			k3i_kda_state_load(c, c->s, NULL);
		for (size_t r = (size_t)seg[s], end = (size_t)seg[s + 1]; r < end; r += K3I_CHUNK) {
			k3i_kda_chunk_pack(c, &x, order + r,
					   end - r < K3I_CHUNK ? end - r : K3I_CHUNK, (int)a->raw);
			k3i_kda_chunk_intra(c, left);
			k3i_kda_chunk_scan(c, c->s, 1);
			output(c, o, ld_o, order + r);
		}
	}
	if (a->s_out.n)
		k3i_kda_state_store(c, k3i_kda_state(buf, &a->s_out, i, a), c->s);
}

void
k3_kda_chunk_fwd_cpu_f32(void *const *buf, const struct k3_kda_chunk_args *a)
{
	float *work = k3i_align(buf[5]);
	unsigned mode = k3i_flush_begin();
	struct k3i_kda_chunk c;

	k3i_zero_holes(buf[0], (a->h1 - a->h0) * a->v, buf[4]);
	k3i_kda_chunk_init(&c, a, &work);
	k3i_kda_chunk_keep(&c, &work);
	for (size_t i = 0; i < a->h1 - a->h0; i++)
		forward_head(buf, a, i, &c, work);
	k3i_flush_end(mode);
}
