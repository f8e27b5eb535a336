/* Bicubic reduction with antialias in integers, row by row.
 *
 * An output sums the inputs under a cubic that is stretched by the reduction factor, with weights
 * rounded to multiples of 2^-22; the horizontal pass comes first and its results are rounded to 8
 * bits.  Colours under alpha are summed multiplied by it, or what is invisible would bleed into
 * what is seen, and divided by the reduced alpha: products are rounded to the nearest, quotients
 * down.  The trap: all bytes are to equal Pillow's, so the weights must be rounded like there.
 * Products that end in a sum are kept out of fused multiply-adds, which round once where two
 * roundings are expected.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "image_parts.h"
#include "status.h"

enum { WEIGHT_BITS = 22, HALF = 1 << (WEIGHT_BITS - 1) };

/* Rounded by itself. */
static double
product(double a, double b)
{
	volatile double p = a * b;

	return p;
}

/* The cubic with a = -0.5: 1 at 0, 0 at 1 and from 2 on. */
static double
cubic(double x)
{
	x = fabs(x);
	if (x < 1.0)
		return product(product(product(1.5, x) - 2.5, x), x) + 1.0;
	if (x < 2.0)
		return product(product(product(x - 5.0, x) + 8.0, x) - 4.0, -0.5);
	return 0.0;
}

/* Weights of one output; exact is room for as many doubles. */
static void
taps_fill(struct k3i_taps *t, uint32_t out, uint32_t n_in, double scale, double *exact)
{
	double stretch = fmax(scale, 1.0), support = 2.0 * stretch, shrink = 1.0 / stretch;
	double centre = product(out + 0.5, scale), sum = 0.0;
	double from = centre - support + 0.5, to = centre + support + 0.5;
	uint32_t first = from > 0.0 ? (uint32_t)from : 0;
	uint32_t end = to < n_in ? (uint32_t)to : n_in;

	t->first[out] = first;
	t->n[out] = end - first;
	for (uint32_t i = first; i < end; i++) {
		exact[i - first] = cubic((i - centre + 0.5) * shrink);
		sum += exact[i - first];
	}
	for (uint32_t i = 0; i < end - first; i++) {
		double w = exact[i] / sum * (1 << WEIGHT_BITS);
		t->weight[(size_t)out * t->most + i] = (int32_t)(w < 0.0 ? w - 0.5 : w + 0.5);
	}
}

static void
taps_fini(struct k3i_taps *t)
{
	free(t->first);
	free(t->n);
	free(t->weight);
}

/* Equal lengths give one tap of weight 1: the pass then changes nothing. */
static int
taps_init(struct k3i_taps *t, uint32_t n_in, uint32_t n_out)
{
	double scale = (double)n_in / n_out;

	t->n_out = n_out;
	t->most = n_in == n_out ? 1 : 2 * (uint32_t)ceil(2.0 * fmax(scale, 1.0)) + 1;
	t->first = malloc(n_out * sizeof(*t->first));
	t->n = malloc(n_out * sizeof(*t->n));
	t->weight = malloc((size_t)n_out * t->most * sizeof(*t->weight));
	double *exact = malloc(t->most * sizeof(*exact));
	if (!t->first || !t->n || !t->weight || !exact) {
		free(exact);
		return K3_ENOMEM;
	}
	for (uint32_t out = 0; out < n_out; out++) {
		if (n_in == n_out) {
			t->first[out] = out;
			t->n[out] = 1;
			t->weight[out] = 1 << WEIGHT_BITS;
		} else {
			taps_fill(t, out, n_in, scale, exact);
		}
	}
	free(exact);
	return K3_OK;
}

int
k3i_resize_init(struct k3i_resize *r, uint32_t channels, uint32_t in_width, uint32_t in_height,
		uint32_t out_width, uint32_t out_height)
{
	size_t width = (size_t)out_width * channels;

	*r = (struct k3i_resize){.channels = channels, .in_width = in_width};
	r->weighted = channels == 4 && (in_width != out_width || in_height != out_height);
	if (taps_init(&r->x, in_width, out_width) != K3_OK ||
	    taps_init(&r->y, in_height, out_height) != K3_OK)
		return K3_ENOMEM;
	r->ring = malloc(r->y.most * width);
	r->sum = malloc(width * sizeof(*r->sum));
	return r->ring && r->sum ? K3_OK : K3_ENOMEM;
}

void
k3i_resize_fini(struct k3i_resize *r)
{
	taps_fini(&r->x);
	taps_fini(&r->y);
	free(r->ring);
	free(r->sum);
	*r = (struct k3i_resize){0};
}

/* A sum as a byte; the cubic's negative lobes lead beyond both ends. */
static uint8_t
clip(int32_t sum)
{
	sum >>= WEIGHT_BITS;
	return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static inline void
across(uint8_t *out, const uint8_t *row, const struct k3i_taps *t, uint32_t channels)
{
	for (uint32_t x = 0; x < t->n_out; x++) {
		const uint8_t *in = row + (size_t)t->first[x] * channels;
		const int32_t *weight = t->weight + (size_t)x * t->most;
		int32_t sum[4] = {HALF, HALF, HALF, HALF};
		for (uint32_t i = 0; i < t->n[x]; i++)
			for (uint32_t c = 0; c < channels; c++)
				sum[c] += weight[i] * *in++;
		for (uint32_t c = 0; c < channels; c++)
			*out++ = clip(sum[c]);
	}
}

static void
premultiply(uint8_t *row, uint32_t width)
{
	for (uint8_t *p = row; p < row + (size_t)width * 4; p += 4)
		for (int i = 0; i < 3; i++)
			p[i] = k3i_blend(p[i], p[3], 0);
}

static void
unpremultiply(uint8_t *row, uint32_t width)
{
	for (uint8_t *p = row; p < row + (size_t)width * 4; p += 4)
		for (int i = 0; i < 3 && p[3] != 0; i++) {
			uint32_t v = 255u * p[i] / p[3];
			p[i] = (uint8_t)(v < 255 ? v : 255);
		}
}

void
k3i_resize_push(struct k3i_resize *r, uint8_t *row)
{
	size_t width = (size_t)r->x.n_out * r->channels;
	uint8_t *out = r->ring + r->pushed % r->y.most * width;

	if (r->weighted)
		premultiply(row, r->in_width);
	if (r->x.n_out == r->in_width)
		memcpy(out, row, width);
	else if (r->channels == 3)
		across(out, row, &r->x, 3);
	else
		across(out, row, &r->x, 4);
	r->pushed++;
}

bool
k3i_resize_pull(struct k3i_resize *r, uint8_t *row)
{
	const struct k3i_taps *t = &r->y;
	size_t width = (size_t)r->x.n_out * r->channels;
	uint32_t y = r->pulled;

	if (y == t->n_out || t->first[y] + t->n[y] > r->pushed)
		return false;
	for (size_t i = 0; i < width; i++)
		r->sum[i] = HALF;
	for (uint32_t k = 0; k < t->n[y]; k++) {
		const uint8_t *in = r->ring + (t->first[y] + k) % t->most * width;
		int32_t weight = t->weight[(size_t)y * t->most + k];
		for (size_t i = 0; i < width; i++)
			r->sum[i] += weight * in[i];
	}
	for (size_t i = 0; i < width; i++)
		row[i] = clip(r->sum[i]);
	if (r->weighted)
		unpremultiply(row, r->x.n_out);
	r->pulled++;
	return true;
}
