/* k3_bench op vit: patch embedding, merge and projector.  Positions are made again with hat
 * functions over the table, which know no taps. */
#include <math.h>

#include "bench_vit.h"

/* Weights [n_out, n_in] of an axis of the table. */
static double *
axis(struct bench_case *c, size_t n_out, size_t n_in)
{
	double *w = bench_doubles(c, n_out * n_in);

	for (size_t i = 0; i < n_out * n_in; i++) {
		double at = ((double)(i / n_in) + 0.5) * (double)n_in / (double)n_out - 0.5;
		at = fmin(fmax(at, 0), (double)n_in - 1);
		w[i] = fmax(0, 1 - fabs(at - (double)(i % n_in)));
	}
	return w;
}

/* y += positions from the table, or the table's gradient += that of y. */
static void
positions(struct bench_case *c, const struct bench_vit_shape *x, double *y, const float *table,
	  double *dtable)
{
	size_t th = x->v->table_h, tw = x->v->table_w, d = x->d;
	double *wr = axis(c, x->rows, th), *wc = axis(c, x->cols, tw);

	for (size_t i = 0; i < x->n; i++)
		for (size_t e = 0; e < th * tw; e++) {
			double w = wr[i / x->cols * th + e / tw] * wc[i % x->cols * tw + e % tw];
			for (size_t k = 0; w > 0 && k < d; k++) {
				if (table)
					y[i * d + k] += w * (double)table[e * d + k];
				else
					dtable[e * d + k] += w * y[i * d + k];
			}
		}
}

static struct k3_vit_embed_args
embed_args(const struct bench_vit_shape *x)
{
	return (struct k3_vit_embed_args){.n = x->n,
					  .d = x->d,
					  .pixels = x->pixels,
					  .table_h = x->v->table_h,
					  .table_w = x->v->table_w};
}

static bool
open_embed(struct bench_case *c, struct bench *b, const struct bench_vit_shape *x, enum k3_op op)
{
	return bench_open(c, b, k3_op_name(op), BENCH_SAME, BENCH_TARGET_GEMM,
			  "n=%zu d=%zu pixels=%zu", x->n, x->d, x->pixels);
}

static void
embed(struct bench *b, const struct bench_vit_shape *x)
{
	struct k3_vit_embed_args a = embed_args(x);
	struct bench_case c;
	float *wpe, *table;

	if (!open_embed(&c, b, x, K3_OP_VIT_PATCH_EMBED_FWD))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_PATCH_EMBED_FWD);
	float *y = bench_out(call, "x", x->n * x->d), *patches = bench_in(call, x->n * x->pixels);
	bench_push(call, bench_vit_layout(&c, x));
	a.wpe = bench_weight(call, x->d, x->pixels, &wpe);
	a.pos = bench_weight(call, a.table_h * a.table_w, x->d, &table);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NT, x->n, x->d, x->pixels);
	if (bench_run(&c)) {
		double *pos = bench_doubles(&c, x->n * x->d);
		struct bench_rows rows = bench_rows(&c, y, x->d, x->n, x->d);
		positions(&c, x, pos, table, NULL);
		bench_rows_add(&rows, bench_narrow(&c, pos, x->n * x->d), x->d);
		bench_rows_product(&rows, BENCH_NT, x->pixels, patches, x->pixels, wpe, x->pixels);
		bench_rows_expect(&rows, "x");
	}
	bench_close(&c);
}

static void
embed_back(struct bench *b, const struct bench_vit_shape *x)
{
	struct k3_vit_embed_args a = embed_args(x);
	size_t entries = a.table_h * a.table_w;
	struct bench_case c;
	float *dwpe, *dpos;

	if (!open_embed(&c, b, x, K3_OP_VIT_PATCH_EMBED_BWD))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_PATCH_EMBED_BWD);
	float *dx = bench_in(call, x->n * x->d), *patches = bench_in(call, x->n * x->pixels);
	bench_push(call, bench_vit_layout(&c, x));
	a.wpe = bench_gradient(call, "dwpe", x->d, x->pixels, &dwpe);
	a.pos = bench_gradient(call, "dpos", entries, x->d, &dpos);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_TN, x->d, x->pixels, x->n);
	if (bench_run(&c)) {
		double *want = bench_doubles(&c, entries * x->d),
		       *dy = bench_doubles(&c, x->n * x->d);
		struct bench_rows rows = bench_rows(&c, dwpe, x->pixels, x->d, x->pixels);
		bench_rows_product(&rows, BENCH_TN, x->n, dx, x->d, patches, x->pixels);
		bench_rows_expect(&rows, "dwpe");
		for (size_t i = 0; i < x->n * x->d; i++)
			dy[i] = (double)dx[i];
		positions(&c, x, dy, NULL, want);
		bench_expect(&c, "dpos", dpos, x->d, want, entries, x->d, x->n);
	}
	bench_close(&c);
}

static struct k3_vit_merge_args
merge_args(const struct bench_vit_shape *x)
{
	return (struct k3_vit_merge_args){.n = x->n,
					  .m = x->m,
					  .d = x->d,
					  .merge_h = x->v->merge_h,
					  .merge_w = x->v->merge_w,
					  .eps = (float)x->v->norm_eps};
}

/* Patch i, channel k among the merged tokens. */
static size_t
merged_at(const struct bench_vit_shape *x, size_t i, size_t k)
{
	size_t mh = x->v->merge_h, mw = x->v->merge_w, row = i / x->cols, col = i % x->cols;
	size_t token = row / mh * (x->cols / mw) + col / mw;

	return ((token * mh + row % mh) * mw + col % mw) * x->d + k;
}

static void
merge(struct bench *b, const struct bench_vit_shape *x)
{
	struct k3_vit_merge_args a = merge_args(x);
	size_t all = x->n * x->d;
	struct bench_case c;
	float *w;

	if (!bench_open(&c, b, "vit_merge_fwd", BENCH_MEMORY, 0, "n=%zu d=%zu", x->n, x->d))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_MERGE_FWD);
	float *z = bench_out(call, "z", all), *xf = bench_out(call, "xf", all),
	      *rstd = bench_out(call, "rstd", x->n), *in = bench_in(call, all);
	bench_keep(&c, rstd);
	bench_push(call, bench_vit_layout(&c, x));
	a.norm = bench_weight(call, 1, x->d, &w);
	bench_args(call, &a, sizeof(a));
	bench_traffic(call, all, 2 * all, 0);
	if (bench_run(&c)) {
		double *want = bench_doubles(&c, all), *merged = bench_doubles(&c, all);
		for (size_t i = 0; i < x->n; i++)
			bench_rms(want + i * x->d, in + i * x->d, w, x->d, x->v->norm_eps);
		for (size_t i = 0; i < all; i++)
			merged[merged_at(x, i / x->d, i % x->d)] = want[i];
		bench_expect(&c, "xf", xf, x->d, want, x->n, x->d, 1);
		bench_expect(&c, "z", z, x->d, merged, x->n, x->d, 1);
		bench_expect(&c, "rstd", rstd, 1,
			     bench_vit_factors(&c, in, x->n, x->d, x->v->norm_eps), x->n, 1, 1);
	}
	bench_close(&c);
}

static void
merge_back(struct bench *b, const struct bench_vit_shape *x)
{
	struct k3_vit_merge_args a = merge_args(x);
	size_t d = x->d, all = x->n * d;
	struct bench_case c;
	float *w, *dnorm;

	if (!bench_open(&c, b, "vit_merge_bwd", BENCH_MEMORY, 0, "n=%zu d=%zu", x->n, d))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_MERGE_BWD);
	float *dx = bench_out(call, "dx", all), *dxf = bench_out(call, "dxf", all),
	      *dz = bench_in(call, all), *in = bench_in(call, all);
	double *factor = bench_vit_factors(&c, in, x->n, d, x->v->norm_eps);
	bench_push(call, bench_narrow(&c, factor, x->n));
	bench_push(call, bench_vit_layout(&c, x));
	a.dnorm = bench_gradient(call, "dnorm", 1, d, &dnorm);
	a.norm = bench_weight(call, 1, d, &w);
	bench_args(call, &a, sizeof(a));
	bench_traffic(call, 2 * all, 2 * all, 0);
	if (bench_run(&c)) {
		double *dn = bench_doubles(&c, all), *want = bench_doubles(&c, all),
		       *dw = bench_doubles(&c, d);
		for (size_t i = 0; i < all; i++)
			dn[i] = (double)dz[merged_at(x, i / d, i % d)];
		for (size_t i = 0; i < all; i += d)
			bench_rms_back(want + i, dw, dn + i, in + i, w, d, x->v->norm_eps);
		bench_expect(&c, "dxf", dxf, d, dn, x->n, d, 0);
		bench_expect(&c, "dx", dx, d, want, x->n, d, d);
		bench_expect(&c, "dnorm", dnorm, d, dw, 1, d, x->n);
	}
	bench_close(&c);
}

void
bench_vit_ends(struct bench *b)
{
	struct bench_vit_shape x = bench_vit_shape(b);

	embed(b, &x);
	embed_back(b, &x);
	merge(b, &x);
	merge_back(b, &x);
}
