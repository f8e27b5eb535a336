/* k3_bench op moe: the way to the experts and back: dispatch with the down-projection, combine with
 * norm and up-projection. */
#include <math.h>
#include <string.h>

#include "bench_moe.h"

struct share {
	struct bench_route route;
	size_t t, d, r, n, k;
	double eps;
};

static bool
open_share(struct bench_case *c, struct bench *b, enum k3_op op, struct share *x)
{
	const struct k3_config *m = b->model;

	*x = (struct share){.t = b->tokens,
			    .d = m->width,
			    .r = m->latent,
			    .n = m->experts,
			    .k = m->top_k,
			    .eps = m->norm_eps};
	if (!bench_open(c, b, k3_op_name(op), BENCH_SAME, BENCH_TARGET_GEMM,
			"t=%zu d=%zu r=%zu experts=%zu k=%zu", x->t, x->d, x->r, x->n, x->k))
		return false;
	x->route = bench_route(c, BENCH_RANDOM);
	return true;
}

static struct k3_moe_dispatch_args
dispatch_args(const struct share *x, const struct k3_config *m)
{
	return (struct k3_moe_dispatch_args){.t = x->t,
					     .d = x->d,
					     .r = x->r,
					     .n_experts = x->n,
					     .k = x->k,
					     .sum_eps = (float)m->router_sum_eps,
					     .scale = 1};
}

static struct k3_moe_combine_args
combine_args(const struct share *x)
{
	return (struct k3_moe_combine_args){.t = x->t,
					    .d = x->d,
					    .r = x->r,
					    .n_experts = x->n,
					    .k = x->k,
					    .eps = (float)x->eps};
}

/* Differing elements between the sorted rows of a token and its row in one [t, r]. */
static double
copies_differ(const struct share *x, const float *sorted, float *one)
{
	double differ = 0;

	for (size_t i = 0; i < x->t * x->k; i++) {
		const float *row = sorted + (size_t)x->route.row[i] * x->r;
		float *token = one + i / x->k * x->r;
		if (i % x->k == 0)
			memcpy(token, row, x->r * sizeof(*row));
		for (size_t j = 0; j < x->r; j++)
			differ += token[j] != row[j];
	}
	return differ;
}

static void
dispatch_forward(struct bench *b)
{
	struct share x;
	struct bench_case c;
	float *w;

	if (!open_share(&c, b, K3_OP_MOE_DISPATCH_FWD, &x))
		return;
	struct k3_moe_dispatch_args a = dispatch_args(&x, b->model);
	struct bench_call *call = bench_call(&c, K3_OP_MOE_DISPATCH_FWD);
	float *zs = bench_out(call, "zs", x.t * x.k * x.r), *in = bench_in(call, x.t * x.d);
	bench_push(call, x.route.route);
	bench_work(call, x.t * x.r);
	a.wdown = bench_weight(call, x.r, x.d, &w);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NT, x.t, x.r, x.d);
	if (bench_run(&c)) {
		float *z = bench_memory(&c, x.t * x.r * sizeof(*z));
		bench_judge(&c, "zs (copies)", copies_differ(&x, zs, z), 0);
		struct bench_rows rows = bench_rows(&c, z, x.r, x.t, x.r);
		bench_rows_product(&rows, BENCH_NT, x.d, in, x.d, w, x.d);
		bench_rows_expect(&rows, "zs");
	}
	bench_close(&c);
}

/* Sums of a token's rows, and the gradient of its router logits. */
static void
expect_gather(struct bench_case *c, const struct share *x, const float *dzs, const float *dwt,
	      const float *dz, const float *dl)
{
	double *sum = bench_doubles(c, x->t * x->r), *want = bench_doubles(c, x->t * x->n);

	for (size_t i = 0; i < x->t * x->k; i++)
		for (size_t j = 0; j < x->r; j++)
			sum[i / x->k * x->r + j] += (double)dzs[(size_t)x->route.row[i] * x->r + j];
	for (size_t i = 0; i < x->t; i++) {
		double all = 0, mean = 0;
		for (size_t j = i * x->k; j < (i + 1) * x->k; j++) {
			all += (double)x->route.score[i * x->n + (size_t)x->route.ids[j]];
			mean += (double)dwt[x->route.row[j]] * (double)x->route.routew[j];
		}
		for (size_t j = i * x->k; j < (i + 1) * x->k; j++) {
			size_t at = i * x->n + (size_t)x->route.ids[j];
			double s = (double)x->route.score[at];
			want[at] = ((double)dwt[x->route.row[j]] - mean) / all * s * (1 - s);
		}
	}
	bench_expect(c, "dz", dz, x->r, sum, x->t, x->r, x->k);
	bench_expect(c, "dl", dl, x->n, want, x->t, x->n, x->k);
}

static void
dispatch_data(struct bench *b)
{
	struct share x;
	struct bench_case c;
	float *before, *wdown, *wr;

	if (!open_share(&c, b, K3_OP_MOE_DISPATCH_BWD_DX, &x))
		return;
	struct k3_moe_dispatch_args a = dispatch_args(&x, b->model);
	struct bench_call *call = bench_call(&c, K3_OP_MOE_DISPATCH_BWD_DX);
	float *dx = bench_inout(call, "dx", x.t * x.d, &before);
	float *dz = bench_out(call, "dz", x.t * x.r), *dl = bench_out(call, "dl", x.t * x.n);
	float *dzs = bench_in(call, x.t * x.k * x.r), *dwt = bench_in(call, x.t * x.k);
	bench_keep(&c, dl);
	bench_keep(&c, dwt);
	bench_push(call, x.route.route);
	bench_push(call, x.route.routew);
	a.wdown = bench_weight(call, x.r, x.d, &wdown);
	a.wr = bench_weight(call, x.n, x.d, &wr);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NN, x.t, x.d, x.r);
	bench_product(call, BENCH_NN, x.t, x.d, x.n);
	if (bench_run(&c)) {
		struct bench_rows rows = bench_rows(&c, dx, x.d, x.t, x.d);
		expect_gather(&c, &x, dzs, dwt, dz, dl);
		bench_rows_add(&rows, before, x.d);
		bench_rows_product(&rows, BENCH_NN, x.r, dz, x.r, wdown, x.d);
		bench_rows_product(&rows, BENCH_NN, x.n, dl, x.n, wr, x.d);
		bench_rows_expect(&rows, "dx");
	}
	bench_close(&c);
}

static void
dispatch_weights(struct bench *b)
{
	struct share x;
	struct bench_case c;
	float *dwdown, *dwr;

	if (!open_share(&c, b, K3_OP_MOE_DISPATCH_BWD_DW, &x))
		return;
	struct k3_moe_dispatch_args a = dispatch_args(&x, b->model);
	struct bench_call *call = bench_call(&c, K3_OP_MOE_DISPATCH_BWD_DW);
	float *dz = bench_in(call, x.t * x.r), *dl = bench_in(call, x.t * x.n);
	bench_keep(&c, dl);
	float *in = bench_in(call, x.t * x.d);
	a.wdown = bench_gradient(call, "dwdown", x.r, x.d, &dwdown);
	a.wr = bench_gradient(call, "dwr", x.n, x.d, &dwr);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_TN, x.r, x.d, x.t);
	bench_product(call, BENCH_TN, x.n, x.d, x.t);
	if (bench_run(&c)) {
		struct bench_rows down = bench_rows(&c, dwdown, x.d, x.r, x.d),
				  router = bench_rows(&c, dwr, x.d, x.n, x.d);
		bench_rows_product(&down, BENCH_TN, x.t, dz, x.r, in, x.d);
		bench_rows_product(&router, BENCH_TN, x.t, dl, x.n, in, x.d);
		bench_rows_expect(&down, "dwdown");
		bench_rows_expect(&router, "dwr");
	}
	bench_close(&c);
}

static float *
normed(struct bench_case *c, const struct share *x, const float *y, const float *norm)
{
	double *n = bench_doubles(c, x->t * x->r);

	for (size_t i = 0; i < x->t * x->r; i += x->r)
		bench_rms(n + i, y + i, norm, x->r, x->eps);
	return bench_narrow(c, n, x->t * x->r);
}

static void
combine_forward(struct bench *b)
{
	struct share x;
	struct bench_case c;
	float *norm, *w;

	if (!open_share(&c, b, K3_OP_MOE_COMBINE_FWD, &x))
		return;
	struct k3_moe_combine_args a = combine_args(&x);
	struct bench_call *call = bench_call(&c, K3_OP_MOE_COMBINE_FWD);
	float *p_out = bench_out(call, "p_out", x.t * x.d), *y = bench_out(call, "y", x.t * x.r);
	float *ys = bench_in(call, x.t * x.k * x.r);
	bench_push(call, x.route.route);
	bench_push(call, x.route.routew);
	float *shared = bench_in(call, x.t * x.d), *p_in = bench_in(call, x.t * x.d);
	bench_work(call, x.t * x.r);
	a.norm = bench_weight(call, 1, x.r, &norm);
	a.wup = bench_weight(call, x.d, x.r, &w);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NT, x.t, x.d, x.r);
	if (bench_run(&c)) {
		double *sum = bench_doubles(&c, x.t * x.r);
		struct bench_rows rows = bench_rows(&c, p_out, x.d, x.t, x.d);
		for (size_t i = 0; i < x.t * x.k; i++)
			for (size_t j = 0; j < x.r; j++)
				sum[i / x.k * x.r + j] +=
					(double)x.route.routew[i] *
					(double)ys[(size_t)x.route.row[i] * x.r + j];
		bench_expect(&c, "y", y, x.r, sum, x.t, x.r, x.k);
		bench_rows_add(&rows, p_in, x.d);
		bench_rows_add(&rows, shared, x.d);
		bench_rows_product(&rows, BENCH_NT, x.r, normed(&c, &x, y, norm), x.r, w, x.r);
		bench_rows_expect(&rows, "p_out");
	}
	bench_close(&c);
}

static void
combine_data(struct bench *b)
{
	struct share x;
	struct bench_case c;
	float *dnorm, *norm, *w;

	if (!open_share(&c, b, K3_OP_MOE_COMBINE_BWD_DX, &x))
		return;
	struct k3_moe_combine_args a = combine_args(&x);
	struct bench_call *call = bench_call(&c, K3_OP_MOE_COMBINE_BWD_DX);
	float *dys = bench_out(call, "dys", x.t * x.k * x.r), *dp = bench_in(call, x.t * x.d);
	float *y = bench_in(call, x.t * x.r);
	bench_push(call, x.route.route);
	bench_work(call, 2 * x.t * x.r);
	a.dnorm = bench_gradient(call, "dnorm", 1, x.r, &dnorm);
	a.norm = bench_weight(call, 1, x.r, &norm);
	a.wup = bench_weight(call, x.d, x.r, &w);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NN, x.t, x.r, x.d);
	if (bench_run(&c)) {
		double *dn = bench_wide(&c, BENCH_NN, x.t, x.r, x.d, dp, x.d, w, x.r);
		double *want = bench_doubles(&c, x.t * x.r), *want_dnorm = bench_doubles(&c, x.r);
		float *dy = bench_memory(&c, x.t * x.r * sizeof(*dy));
		for (size_t i = 0; i < x.t * x.r; i += x.r)
			bench_rms_back(want + i, want_dnorm, dn + i, y + i, norm, x.r, x.eps);
		bench_judge(&c, "dys (copies)", copies_differ(&x, dys, dy), 0);
		bench_expect(&c, "dys", dy, x.r, want, x.t, x.r, x.d);
		bench_expect(&c, "dnorm", dnorm, x.r, want_dnorm, 1, x.r, x.t);
	}
	bench_close(&c);
}

static void
combine_weights(struct bench *b)
{
	struct share x;
	struct bench_case c;
	float *norm, *dw;

	if (!open_share(&c, b, K3_OP_MOE_COMBINE_BWD_DW, &x))
		return;
	struct k3_moe_combine_args a = combine_args(&x);
	struct bench_call *call = bench_call(&c, K3_OP_MOE_COMBINE_BWD_DW);
	float *dp = bench_in(call, x.t * x.d), *y = bench_in(call, x.t * x.r);
	bench_work(call, x.t * x.r);
	a.norm = bench_weight(call, 1, x.r, &norm);
	a.wup = bench_gradient(call, "dwup", x.d, x.r, &dw);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_TN, x.d, x.r, x.t);
	if (bench_run(&c)) {
		struct bench_rows rows = bench_rows(&c, dw, x.r, x.d, x.r);
		bench_rows_product(&rows, BENCH_TN, x.t, dp, x.d, normed(&c, &x, y, norm), x.r);
		bench_rows_expect(&rows, "dwup");
	}
	bench_close(&c);
}

void
bench_moe_share(struct bench *b)
{
	dispatch_forward(b);
	dispatch_data(b);
	dispatch_weights(b);
	combine_forward(b);
	combine_data(b);
	combine_weights(b);
}
