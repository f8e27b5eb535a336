/* Patches to tower inputs (model.md 6.2): one product, then positions row by row. */
#include <math.h>
#include <string.h>

#include "../../common/op/vit.h"
#include "../linalg/linear.h"
#include "../vec/vec.h"
#include "position.h"

enum { TIME_BLOCK = 64 };

/* One band of an item: where it lies in the tile and in the item. */
struct band {
	size_t t, h, w, row0, rows, patch0;
};

static struct band
band_of(const int32_t *layout, int32_t part)
{
	const int32_t *p = k3_vit_part(layout, part);

	return (struct band){(size_t)p[K3_VP_T],    (size_t)p[K3_VP_H],	   (size_t)p[K3_VP_W],
			     (size_t)p[K3_VP_ROW0], (size_t)p[K3_VP_ROWS], (size_t)p[K3_VP_PATCH0]};
}

/* The four table rows of a patch with their weights; a tap of weight 0 is left out, so that a
 * grid of the table's own size reads one entry. */
static size_t
four_taps(size_t *row, float *weight, const struct taps *y, const struct taps *x, size_t table_w)
{
	size_t n = 0;

	for (size_t i = 0; i < 2; i++)
		for (size_t j = 0; j < 2; j++) {
			weight[n] = y->weight[i] * x->weight[j];
			row[n] = y->at[i] * table_w + x->at[j];
			n += weight[n] != 0.0f;
		}
	return n;
}

static void
add_positions(float *x, void *const *buf, const struct k3_vit_embed_args *a, const struct band *b)
{
	const struct k3_vec *vec = k3_vec();

	for (size_t r = 0; r < b->rows; r++) {
		struct taps ty = position_taps(b->row0 + r, b->h, a->table_h);
		for (size_t c = 0; c < b->w; c++) {
			struct taps tx = position_taps(c, b->w, a->table_w);
			size_t row[4];
			float weight[4];
			size_t n = four_taps(row, weight, &ty, &tx, a->table_w);
			for (size_t f = 0; f < b->t; f++) {
				size_t at = b->patch0 + (f * b->rows + r) * b->w + c;
				for (size_t k = 0; k < n; k++)
					vec->axpy(x + at * a->d, weight[k],
						  k3_weight_row(buf, &a->pos, row[k]), a->d);
			}
		}
	}
}

/* sin | cos of frame f at the channels from c0 on. */
static void
time_term(float *out, size_t f, size_t c0, size_t n, size_t d)
{
	for (size_t k = 0; k < n; k++) {
		size_t c = c0 + k, i = c < d / 2 ? c : c - d / 2;
		double angle = (double)f * pow(10000.0, -(double)i / ((double)d / 2));
		out[k] = (float)(c < d / 2 ? sin(angle) : cos(angle));
	}
}

static void
add_times(float *x, const struct k3_vit_embed_args *a, const struct band *b)
{
	float term[TIME_BLOCK];
	size_t frame = b->rows * b->w;

	for (size_t f = 0; f < b->t; f++)
		for (size_t c = 0; c < a->d; c += TIME_BLOCK) {
			size_t n = a->d - c < TIME_BLOCK ? a->d - c : TIME_BLOCK;
			time_term(term, f, c, n, a->d);
			for (size_t p = 0; p < frame; p++) {
				float *row = x + (b->patch0 + f * frame + p) * a->d + c;
				for (size_t k = 0; k < n; k++)
					row[k] += term[k];
			}
		}
}

void
k3_vit_patch_embed_fwd_cpu_f32(void *const *buf, const struct k3_vit_embed_args *a)
{
	const int32_t *layout = buf[2];
	float *x = buf[0];

	k3_linear_fwd(x, a->d, 0, buf[1], a->pixels, buf, &a->wpe, 0, a->d, a->n);
	for (int32_t p = 0; p < layout[K3_VL_PARTS]; p++) {
		struct band b = band_of(layout, p);
		add_positions(x, buf, a, &b);
		if (b.t > 1) /* a single image has no time */
			add_times(x, a, &b);
	}
}

void
k3_vit_patch_embed_bwd_cpu_f32(void *const *buf, const struct k3_vit_embed_args *a)
{
	const struct k3_vec *vec = k3_vec();
	const struct k3_weight *w = &a->pos;
	const int32_t *layout = buf[2];
	const float *dx = buf[0];

	k3_linear_dw(buf, &a->wpe, 0, a->d, dx, a->d, buf[1], a->pixels, a->n);
	if (!w->accumulate)
		k3_weight_clear(buf, w);
	for (int32_t p = 0; p < layout[K3_VL_PARTS]; p++) {
		struct band b = band_of(layout, p);
		for (size_t i = 0; i < b.t * b.rows * b.w; i++) {
			size_t r = i / b.w % b.rows, row[4];
			struct taps ty = position_taps(b.row0 + r, b.h, a->table_h),
				    tx = position_taps(i % b.w, b.w, a->table_w);
			float weight[4];
			size_t n = four_taps(row, weight, &ty, &tx, a->table_w);
			for (size_t k = 0; k < n; k++)
				vec->axpy(k3_weight_row(buf, w, row[k]), weight[k],
					  dx + (b.patch0 + i) * a->d, a->d);
		}
	}
}
