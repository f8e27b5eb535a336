/* Causal depthwise convolution of q | k | v, SiLU, and the l2 norm of each head's q and k.
 *
 *   a[n] = sum_j c[:, j] u[n - (taps-1) + j],   y = a sigmoid(a),   q, k: y / sqrt(sum y^2 + eps)
 *
 * n counts the rows of a document; rows before its start are zeros, rows of an earlier tile come
 * from the halo. The traps: a document shorter than the taps reaches through the whole tile, so
 * that its halo passes on rows of the entering one, with their gradient; and only slots that held a
 * row get a gradient.
 *
 * Taps lie [channel, tap] in memory, so the loops over rows run on strips of channels, whose taps
 * are turned once into a small array on the stack.  Rows that lie one behind the other, with their
 * inputs, are one call.  What follows the convolution works on some rows at once, while they
 * are in the cache.
 */
#include "../../common/config.h"
#include "../vec/vec.h"
#include "kda_tile.h"

enum { STRIP_FLOATS = 1024, ROWS_AT_ONCE = 64 };

/* One document inside the tile. */
struct segment {
	const float *u;	   /* conv inputs [t, 3P] */
	const float *halo; /* entering halo or NULL */
	const int32_t *order;
	ptrdiff_t rows, history; /* history: valid halo rows */
	size_t width;		 /* 3P */
	ptrdiff_t taps;
};

static struct segment
segment_at(void *const *buf, const struct k3_kda_conv_args *a, const float *u,
	   const int32_t *layout, size_t s)
{
	const int32_t *seg = k3_tile_segments(layout);
	int enters = s == 0 && a->halo_in.n > 0;
	struct segment x = {u,
			    enters ? buf[a->halo_in.first] : NULL,
			    k3_tile_order(layout) + seg[s],
			    seg[s + 1] - seg[s],
			    enters ? layout[K3_TL_HIST_IN] : 0,
			    3 * a->p,
			    (ptrdiff_t)a->taps};

	return x;
}

/* Conv input of row n of the document, n < 0 for the halo; NULL where the document has not begun.
 */
static const float *
input_row(const struct segment *s, ptrdiff_t n)
{
	if (n >= 0)
		return s->u + (size_t)s->order[n] * s->width;
	return -n <= s->history ? s->halo + (size_t)(s->taps - 1 + n) * s->width : NULL;
}

/* Channels col .. col + n-1 of a row, and their taps [taps, n]. */
struct strip {
	size_t col, n;
	float c_tn[STRIP_FLOATS];
};

/* The strip from col on: whole in one of q, k, v, and small enough for its taps. */
static void
strip_at(struct strip *x, size_t col, void *const *buf, const struct k3_kda_conv_args *a)
{
	const struct k3_weight *w[] = {&a->cq, &a->ck, &a->cv};
	size_t part = col / a->p, room = STRIP_FLOATS / a->taps, left = (part + 1) * a->p - col;
	const float *c_pw = k3_weight_ptr(buf, w[part]) + (col - part * a->p) * a->taps;

	x->col = col;
	x->n = room < left ? room : left;
	for (size_t j = 0; j < a->taps; j++)
		for (size_t c = 0; c < x->n; c++)
			x->c_tn[j * x->n + c] = c_pw[c * a->taps + j];
}

/* How many rows from n on, before `end`, lie one behind the other; at least 1. */
static size_t
consecutive(const struct segment *s, ptrdiff_t n, ptrdiff_t end)
{
	ptrdiff_t m = n + 1;

	while (m < end && s->order[m] - s->order[n] == m - n)
		m++;
	return (size_t)(m - n);
}

/* What one output row reads: pointers of inputs `from` .. `to`-1 of the taps. */
struct reach {
	const float *u[K3_MAX_TAPS];
	size_t from, to, rows; /* the same offsets hold for so many rows */
};

/* Inputs of rows n .. end-1 of the document; taps that reach before its begin drop out. */
static void
inputs_of(struct reach *x, const struct segment *s, ptrdiff_t n, ptrdiff_t end, size_t col)
{
	ptrdiff_t last = s->taps - 1;

	x->from = x->to = (size_t)s->taps;
	for (ptrdiff_t j = last; j >= 0; j--) {
		const float *u = input_row(s, n - last + j);

		if (!u)
			break;
		x->from = (size_t)j;
		x->u[j] = u + col;
	}
	x->rows = n < last || s->order[n] - s->order[n - last] != last ? 1 : consecutive(s, n, end);
}

/* Rows n0 .. n1-1 of the document in a [t, 3P]. */
static void
convolve(float *a_tc, const struct segment *s, ptrdiff_t n0, ptrdiff_t n1, void *const *buf,
	 const struct k3_kda_conv_args *a)
{
	const struct k3_vec *vec = k3_vec();
	struct strip x;
	struct reach in;

	for (size_t col = 0; col < s->width; col += x.n) {
		strip_at(&x, col, buf, a);
		for (ptrdiff_t n = n0; n < n1; n += (ptrdiff_t)in.rows) {
			inputs_of(&in, s, n, n1, col);
			vec->taps_fwd(a_tc + (size_t)s->order[n] * s->width + col, in.u + in.from,
				      x.c_tn + in.from * x.n, s->width, in.rows, in.to - in.from,
				      x.n);
		}
	}
}

static ptrdiff_t
rows_end(const struct segment *s, ptrdiff_t n)
{
	return n + ROWS_AT_ONCE < s->rows ? n + ROWS_AT_ONCE : s->rows;
}

/* y /= |y| in one head; returns the factor. */
static float
normalise(float *y, size_t k, float eps)
{
	const struct k3_vec *vec = k3_vec();
	float r = (float)(1.0 / sqrt(vec->square(y, k) + (double)eps));

	vec->scale(y, r, y, k);
	return r;
}

/* Row t of a -> row t of qkv and of rstd. */
static void
row_fwd(float *qkv, float *rstd, const struct k3_kda_conv_args *a, size_t t)
{
	float *y = qkv + t * 3 * a->p;

	k3_vec()->silu(y, y, 3 * a->p);
	for (size_t h = 0; h < 2 * a->h; h++)
		rstd[t * 2 * a->h + h] = normalise(y + h * a->k, a->k, a->l2_eps);
}

/* The last taps - 1 inputs of the document, for the tile that it goes on in. */
static void
leave(float *halo, const struct segment *s)
{
	for (ptrdiff_t j = 0; j < s->taps - 1; j++) {
		const float *u = input_row(s, s->rows - (s->taps - 1) + j);

		if (u)
			memcpy(halo + (size_t)j * s->width, u, s->width * sizeof(*halo));
		else
			memset(halo + (size_t)j * s->width, 0, s->width * sizeof(*halo));
	}
}

/* dst = src, or zeros: what a tile of holes does with the halo of a document around it. */
static void
pass_halo(float *dst, const float *src, const struct k3_kda_conv_args *a)
{
	size_t bytes = (a->taps - 1) * 3 * a->p * sizeof(*dst);

	if (src)
		memcpy(dst, src, bytes);
	else
		memset(dst, 0, bytes);
}

static float *
optional(void *const *buf, const struct k3_list *l)
{
	return l->n ? (float *)buf[l->first] : NULL;
}

void
k3_kda_conv_fwd_cpu_f32(void *const *buf, const struct k3_kda_conv_args *a)
{
	float *qkv = buf[0], *rstd = buf[1], *halo_out = optional(buf, &a->halo_out);
	const int32_t *layout = buf[3];
	size_t width = 3 * a->p, segments = (size_t)layout[K3_TL_SEGMENTS];

	k3i_zero_holes(qkv, width, layout);
	k3i_zero_holes(rstd, 2 * a->h, layout);
	for (size_t s = 0; s < segments; s++) {
		struct segment x = segment_at(buf, a, buf[2], layout, s);

		for (ptrdiff_t n = 0, end; n < x.rows; n = end) {
			end = rows_end(&x, n);
			convolve(qkv, &x, n, end, buf, a);
			for (ptrdiff_t i = n; i < end; i++)
				row_fwd(qkv, rstd, a, (size_t)x.order[i]);
		}
		if (halo_out && s + 1 == segments)
			leave(halo_out, &x);
	}
	if (halo_out && segments == 0)
		pass_halo(halo_out, optional(buf, &a->halo_in), a);
}

/* Row t of a -> row t of da through the l2 norm and the SiLU: head by head, from the gradients of
 * the head groups. */
static void
row_bwd(float *da, void *const *buf, const struct k3_kda_conv_args *a, size_t t)
{
	const float *y = (const float *)buf[1] + t * 3 * a->p,
		    *r = (const float *)buf[2] + t * 2 * a->h;
	const struct k3_vec *vec = k3_vec();

	for (size_t h = 0; h < a->h; h++) {
		size_t g = h / a->group_heads, h0;
		size_t hg = k3_heads_of_group(a->h, a->group_heads, g, &h0);
		const float *dqkv =
			(const float *)buf[a->dqkv.first + g] + t * 3 * hg * a->k + (h - h0) * a->k;

		for (size_t i = 0; i < 3; i++) {
			const float *dy = dqkv + i * hg * a->k, *unit = y + i * a->p + h * a->k;
			float dot = i < 2 ? (float)vec->dot(dy, unit, a->k) : 0.0f;

			vec->silu_bwd(da + i * a->p + h * a->k, dy, unit,
				      i < 2 ? r[i * a->h + h] : 1.0f, dot, a->k);
		}
	}
}

/* dc[:, j] += sum_n da[n] u[n - (taps-1) + j] in the channels of the strip. */
static void
tap_grad(void *const *buf, const struct k3_kda_conv_args *a, const struct segment *s,
	 const struct strip *x, const float *da_tc)
{
	const struct k3_weight *w[] = {&a->dcq, &a->dck, &a->dcv};
	size_t part = x->col / a->p;
	float *dc_pw = k3_weight_ptr(buf, w[part]) + (x->col - part * a->p) * a->taps;
	float sum_tn[STRIP_FLOATS] = {0};

	struct reach in;

	for (ptrdiff_t n = 0; n < s->rows; n += (ptrdiff_t)in.rows) {
		inputs_of(&in, s, n, s->rows, x->col);
		k3_vec()->taps_grad(sum_tn + in.from * x->n, in.u + in.from,
				    da_tc + (size_t)s->order[n] * s->width + x->col, s->width,
				    in.rows, in.to - in.from, x->n);
	}
	for (size_t c = 0; c < x->n; c++)
		for (size_t j = 0; j < a->taps; j++)
			dc_pw[c * a->taps + j] += sum_tn[j * x->n + c];
}

/* What du of input row n reads (n < 0: halo): da[n + taps-1 - j] of the taps j. */
static void
outputs_of(struct reach *x, const struct segment *s, ptrdiff_t n, size_t col, const float *da_tc)
{
	ptrdiff_t last = s->taps - 1;
	size_t rows = n < 0 ? 0 : consecutive(s, n, s->rows);

	x->from = x->to = 0;
	for (ptrdiff_t j = 0; j <= last; j++) {
		ptrdiff_t m = n + last - j;

		if (m >= s->rows)
			x->from = x->to = (size_t)j + 1;
		if (m < 0 || m >= s->rows)
			continue;
		x->u[j] = da_tc + (size_t)s->order[m] * s->width + col;
		x->to = (size_t)j + 1;
	}
	x->rows = rows > (size_t)last ? rows - (size_t)last : 1;
}

/* du of input rows n.. = sum_j c[:, j] da[n + taps-1 - j], plus what comes back from the next tile;
 * returns the number of rows. */
static size_t
input_grad(float *du, const struct segment *s, const struct strip *x, ptrdiff_t n,
	   const float *da_tc, const float *dhalo_out)
{
	const struct k3_vec *vec = k3_vec();
	ptrdiff_t slot = n - (s->rows - (s->taps - 1));
	struct reach out;

	outputs_of(&out, s, n, x->col, da_tc);
	vec->taps_fwd(du + x->col, out.u + out.from, x->c_tn + out.from * x->n, s->width, out.rows,
		      out.to - out.from, x->n);
	if (dhalo_out && slot >= 0)
		vec->add(du + x->col, du + x->col, dhalo_out + (size_t)slot * s->width + x->col,
			 x->n);
	return out.rows;
}

/* One strip, from da in d to du in d: a row's du replaces its da, which no later row needs. */
static void
strip_bwd(float *d, const struct segment *s, const struct strip *x, const float *dhalo_out,
	  float *dhalo_in)
{
	for (ptrdiff_t n = 1 - s->taps; dhalo_in && n < 0; n++) {
		float *du = dhalo_in + (size_t)(s->taps - 1 + n) * s->width;

		if (-n <= s->history)
			input_grad(du, s, x, n, d, dhalo_out);
		else
			memset(du + x->col, 0, x->n * sizeof(*du));
	}
	for (ptrdiff_t n = 0; n < s->rows;)
		n += (ptrdiff_t)input_grad(d + (size_t)s->order[n] * s->width, s, x, n, d,
					   dhalo_out);
}

static void
segment_bwd(void *const *buf, const struct k3_kda_conv_args *a, const struct segment *s,
	    const float *dhalo_out, float *dhalo_in)
{
	struct strip x;
	float *d = buf[0];

	for (ptrdiff_t n = 0, end; n < s->rows; n = end) {
		end = rows_end(s, n);
		convolve(d, s, n, end, buf, a);
		for (ptrdiff_t i = n; i < end; i++)
			row_bwd(d + (size_t)s->order[i] * s->width, buf, a, (size_t)s->order[i]);
	}
	for (size_t col = 0; col < s->width; col += x.n) {
		strip_at(&x, col, buf, a);
		tap_grad(buf, a, s, &x, d);
		strip_bwd(d, s, &x, dhalo_out, dhalo_in);
	}
}

void
k3_kda_conv_bwd_cpu_f32(void *const *buf, const struct k3_kda_conv_args *a)
{
	const struct k3_weight *w[] = {&a->dcq, &a->dck, &a->dcv};
	const int32_t *layout = buf[4];
	const float *dhalo_out = optional(buf, &a->dhalo_out);
	float *dhalo_in = optional(buf, &a->dhalo_in);
	size_t segments = (size_t)layout[K3_TL_SEGMENTS];

	k3i_zero_holes(buf[0], 3 * a->p, layout);
	for (size_t i = 0; i < 3; i++)
		if (!w[i]->accumulate)
			memset(k3_weight_ptr(buf, w[i]), 0, a->p * a->taps * sizeof(float));
	for (size_t s = 0; s < segments; s++) {
		struct segment x = segment_at(buf, a, buf[3], layout, s);

		segment_bwd(buf, a, &x, s + 1 == segments ? dhalo_out : NULL,
			    s == 0 ? dhalo_in : NULL);
	}
	if (dhalo_in && segments == 0)
		pass_halo(dhalo_in, dhalo_out, a);
}
