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
 * are turned once into a small array on the stack.
 */
#include "exp_neg.h"
#include "kda_lanes.h"
#include "kda_tile.h"

enum { STRIP = 64, STRIP_FLOATS = 1024 };

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
	x->n = room < STRIP ? room : STRIP;
	x->n = x->n < left ? x->n : left;
	for (size_t j = 0; j < a->taps; j++)
		for (size_t c = 0; c < x->n; c++)
			x->c_tn[j * x->n + c] = c_pw[c * a->taps + j];
}

/* y += x * w, any n */
static void
muladd(float *y, const float *x, const float *w, size_t n)
{
	size_t whole = n / K3I_LANES * K3I_LANES;

	k3i_kda_lanes()->muladd(y, x, w, whole);
	for (size_t i = whole; i < n; i++)
		y[i] += x[i] * w[i];
}

/* Columns of the strip in all rows of a [t, 3P]. */
static void
convolve(float *a_tc, const struct segment *s, const struct strip *x)
{
	for (ptrdiff_t n = 0; n < s->rows; n++) {
		float *y = a_tc + (size_t)s->order[n] * s->width + x->col;

		memset(y, 0, x->n * sizeof(*y));
		for (ptrdiff_t j = 0; j < s->taps; j++) {
			const float *u = input_row(s, n - (s->taps - 1) + j);

			if (u)
				muladd(y, u + x->col, x->c_tn + (size_t)j * x->n, x->n);
		}
	}
}

/* y *= sigmoid(y) */
static void
silu(float *y, size_t n)
{
	const struct k3i_kda_lanes *lanes = k3i_kda_lanes();
	float z[STRIP];

	for (size_t i = 0; i < n; i += STRIP) {
		size_t len = n - i < STRIP ? n - i : STRIP;

		lanes->sigmoid(z, y + i, len);
		for (size_t j = 0; j < len; j++)
			y[i + j] *= z[j];
	}
}

/* y /= |y| in one head; returns the factor. */
static float
normalise(float *y, size_t k, float eps)
{
	double sum = 0;
	float r;

	for (size_t c = 0; c < k; c++)
		sum += (double)y[c] * (double)y[c];
	r = (float)(1.0 / sqrt(sum + (double)eps));
	for (size_t c = 0; c < k; c++)
		y[c] *= r;
	return r;
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
	struct strip strip;

	k3i_zero_holes(qkv, width, layout);
	k3i_zero_holes(rstd, 2 * a->h, layout);
	for (size_t s = 0; s < segments; s++) {
		struct segment x = segment_at(buf, a, buf[2], layout, s);

		for (size_t col = 0; col < width; col += strip.n) {
			strip_at(&strip, col, buf, a);
			convolve(qkv, &x, &strip);
		}
		for (ptrdiff_t n = 0; n < x.rows; n++) {
			size_t t = (size_t)x.order[n];
			float *y = qkv + t * width;

			silu(y, width);
			for (size_t h = 0; h < 2 * a->h; h++)
				rstd[t * 2 * a->h + h] = normalise(y + h * a->k, a->k, a->l2_eps);
		}
		if (halo_out && s + 1 == segments)
			leave(halo_out, &x);
	}
	if (halo_out && segments == 0)
		pass_halo(halo_out, optional(buf, &a->halo_in), a);
}

/* a [n] in, da [n] out: da = f (dy - dot y) (z + a z (1 - z)), the l2 norm's and the SiLU's
 * gradient. */
static void
activation_bwd(float *a, const float *dy, const float *y, float f, float dot, size_t n)
{
	const struct k3i_kda_lanes *lanes = k3i_kda_lanes();
	float z[STRIP];

	for (size_t i = 0; i < n; i += STRIP) {
		size_t len = n - i < STRIP ? n - i : STRIP;

		lanes->sigmoid(z, a + i, len);
		for (size_t j = i; j < i + len; j++) {
			float zj = z[j - i];

			a[j] = f * (dy[j] - dot * y[j]) * (zj + a[j] * zj * (1.0f - zj));
		}
	}
}

/* Row t of a -> row t of da: head by head, from the gradients of the head groups. */
static void
row_bwd(float *da, void *const *buf, const struct k3_kda_conv_args *a, size_t t)
{
	const float *y = (const float *)buf[1] + t * 3 * a->p,
		    *r = (const float *)buf[2] + t * 2 * a->h;

	for (size_t h = 0; h < a->h; h++) {
		size_t g = h / a->group_heads, h0 = g * a->group_heads;
		size_t hg = a->h - h0 < a->group_heads ? a->h - h0 : a->group_heads;
		const float *dqkv =
			(const float *)buf[a->dqkv.first + g] + t * 3 * hg * a->k + (h - h0) * a->k;

		for (size_t i = 0; i < 3; i++) {
			const float *dy = dqkv + i * hg * a->k, *unit = y + i * a->p + h * a->k;
			double dot = 0;

			for (size_t c = 0; i < 2 && c < a->k; c++)
				dot += (double)dy[c] * (double)unit[c];
			activation_bwd(da + i * a->p + h * a->k, dy, unit,
				       i < 2 ? r[i * a->h + h] : 1.0f, (float)dot, a->k);
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

	for (ptrdiff_t n = 0; n < s->rows; n++)
		for (ptrdiff_t j = 0; j < s->taps; j++) {
			const float *u = input_row(s, n - (s->taps - 1) + j);

			if (u)
				muladd(sum_tn + (size_t)j * x->n, u + x->col,
				       da_tc + (size_t)s->order[n] * s->width + x->col, x->n);
		}
	for (size_t c = 0; c < x->n; c++)
		for (size_t j = 0; j < a->taps; j++)
			dc_pw[c * a->taps + j] += sum_tn[j * x->n + c];
}

/* du of input row n (n < 0: halo) = sum_j c[:, j] da[n + taps-1 - j], plus what comes back from the
 * next tile. */
static void
input_grad(float *du, const struct segment *s, const struct strip *x, ptrdiff_t n,
	   const float *da_tc, const float *dhalo_out)
{
	ptrdiff_t last = s->taps - 1, slot = n - (s->rows - last);
	float sum[STRIP] = {0};

	for (ptrdiff_t j = last; j >= 0; j--) {
		ptrdiff_t m = n + last - j;

		if (m >= 0 && m < s->rows)
			muladd(sum, da_tc + (size_t)s->order[m] * s->width + x->col,
			       x->c_tn + (size_t)j * x->n, x->n);
	}
	for (size_t c = 0; dhalo_out && slot >= 0 && c < x->n; c++)
		sum[c] += dhalo_out[(size_t)slot * s->width + x->col + c];
	memcpy(du + x->col, sum, x->n * sizeof(*du));
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
	for (ptrdiff_t n = 0; n < s->rows; n++)
		input_grad(d + (size_t)s->order[n] * s->width, s, x, n, d, dhalo_out);
}

static void
segment_bwd(void *const *buf, const struct k3_kda_conv_args *a, const struct segment *s,
	    const float *dhalo_out, float *dhalo_in)
{
	struct strip x;
	float *d = buf[0];

	for (size_t col = 0; col < s->width; col += x.n) {
		strip_at(&x, col, buf, a);
		convolve(d, s, &x);
	}
	for (ptrdiff_t n = 0; n < s->rows; n++)
		row_bwd(d + (size_t)s->order[n] * s->width, buf, a, (size_t)s->order[n]);
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
